//! Checks a server when a store is opened, and again when it is examined: its version, and settings that can lose
//! leases.

use std::sync::Arc;

use redis::Value;

use super::address::Layout;
use super::link::{Failure, Link};
use super::{fault, keys};
use crate::doctor::Finding;
use crate::error::{Error, ErrorKind, Result};

/// The oldest version whose commands the scripts use (`SET … PXAT`).
const OLDEST: (u32, u32) = (6, 2);

/// The layout of keys and values that this build reads and writes: heads marked `LH0:` and `LH1:`. A build with
/// another layout uses other marks, and writes its number under [`keys::LAYOUT`] before its first head.
const KNOWN_LAYOUT: u64 = 1;

/// What the check found out about one server.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// A server makes a new one when it starts: two equal ones are the same server.
    pub(super) run_id: String,
    /// How many replicas follow it.
    pub(super) replicas: u32,
    pub(super) findings: Vec<Finding>,
}

/// Refuses a server that is too old, or a cluster node where a single server was named, and examines what its settings
/// risk.
pub(super) async fn server(link: &Arc<Link>) -> Result<Checked> {
    layout(link).await?;
    let Some(info) = ask(link, &["INFO"]).await? else {
        let blind = Finding::risk(
            "this Redis user may not call INFO, or the command was renamed",
            "version, persistence, eviction policy, and whether it is a replica or a node of a cluster could not be \
             checked",
            "let it: ACL SETUSER … +info +config|get",
        );
        return Ok(Checked { findings: vec![blind], ..Checked::default() });
    };
    let field = |name: &str| {
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::trim).unwrap_or_default()
    };
    if field("cluster_enabled") == "1" && link.address.layout != Layout::Cluster {
        return Err(fault::one_of_a_cluster());
    }
    let mut version = field("redis_version").split('.').map(|part| part.parse().unwrap_or(0));
    if (version.next().unwrap_or(0), version.next().unwrap_or(0)) < OLDEST {
        return Err(Error::new(ErrorKind::Unsupported, "this Redis is older than 6.2"));
    }
    let mut findings = vec![Finding::ok(format!("this is Redis {}", field("redis_version")))];
    findings.push(match field("maxmemory_policy") {
        "noeviction" | "" => {
            Finding::ok("this Redis refuses to write when memory is short, and evicts nothing")
        }
        policy => Finding::risk(
            format!("this Redis evicts keys when memory is short (maxmemory-policy {policy})"),
            "leases can vanish while they are held, and a second holder be let in",
            "set maxmemory-policy to noeviction",
        ),
    });
    findings.push(persistence(link, field("aof_enabled") != "0").await?);
    if field("aof_last_write_status") == "err" {
        findings.push(Finding::risk(
            "this Redis cannot write its append-only file",
            "a restart forgets grants",
            "see its log: is the disk full?",
        ));
    }
    if field("role") == "slave" {
        findings.push(Finding::risk(
            "this Redis is a replica",
            "it takes no writes, or such as its primary does not know",
            "name the primary, or the sentinels (redis-sentinel:)",
        ));
    }
    let replicas = field("connected_slaves").parse().unwrap_or(0);
    Ok(Checked { run_id: field("run_id").to_owned(), replicas, findings })
}

/// Refuses data that a newer leasehold has written. If the layout cannot be read (the user lacks permission, another
/// cluster node has the key, the server is loading), each name still refuses, because its head has a mark.
async fn layout(link: &Arc<Link>) -> Result<()> {
    let mut get = redis::Cmd::new();
    get.arg("GET").arg(keys::LAYOUT);
    let foreign = || {
        let what =
            "the key leasehold:layout holds something that leasehold did not write; nothing was changed";
        Error::new(ErrorKind::Internal, what)
    };
    let text = match link.send(&get).await.map(|reply| reply.value) {
        Ok(Value::Nil) => return Ok(()),
        Ok(value) => redis::from_redis_value::<String>(value).map_err(|_| foreign())?,
        Err(Failure::Said(fault)) if fault::code(&fault).as_deref() == Some("WRONGTYPE") => {
            return Err(foreign());
        }
        Err(Failure::Said(_)) => return Ok(()),
        Err(failure) => return Err(failure.into()),
    };
    match text.parse::<u64>() {
        Ok(layout) if layout <= KNOWN_LAYOUT => Ok(()),
        Ok(layout) => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "this Redis has layout {layout}, written by a newer leasehold; this one knows layouts up to \
                 {KNOWN_LAYOUT}: update it, or use another Redis or database number"
            ),
        )),
        Err(_) => Err(foreign()),
    }
}

/// Which leases survive a restart.
async fn persistence(link: &Arc<Link>, appends: bool) -> Result<Finding> {
    const FIX: &str = "set appendonly yes";
    if !appends {
        return Ok(match ask(link, &["CONFIG", "GET", "save"]).await? {
            Some(saves) if saves.trim().is_empty() => Finding::risk(
                "this Redis keeps nothing on disk",
                "a restart frees every lock while its holder still believes that it has it",
                FIX,
            ),
            Some(_) => Finding::risk(
                "this Redis saves snapshots only",
                "a restart forgets the latest grants and releases",
                FIX,
            ),
            None => Finding::risk(
                "this Redis writes no append-only file, and whether it saves snapshots could not be checked",
                "a restart forgets at least the latest grants",
                FIX,
            ),
        });
    }
    Ok(match ask(link, &["CONFIG", "GET", "appendfsync"]).await?.as_deref() {
        Some("always") => Finding::ok("this Redis has grants on disk before it answers (appendfsync always)"),
        Some("no") => Finding::risk(
            "this Redis leaves it to the system when its append-only file is on disk (appendfsync no)",
            "after a crash of the machine the grants of the last half minute are forgotten",
            "set appendfsync always, or at least everysec",
        ),
        // Not worth a warning for everybody: it takes a machine that crashes and is back within a ttl.
        policy => Finding::note(format!(
            "this Redis syncs its append-only file once a second (appendfsync {})",
            policy.unwrap_or("could not be checked")
        ))
        .because(
            "after a crash of the machine, not of Redis alone, the grants of the last second or two are forgotten: \
             if it is back within the ttl, a second holder can be let in",
            "set appendfsync always, or use a ttl shorter than a restart of the machine takes",
        ),
    })
}

/// The finding about replicas. `fails_over`: a replica takes over automatically.
pub(super) fn replication(replicas: u32, confirmed_by: Option<u32>, fails_over: bool) -> Option<Finding> {
    match (replicas, confirmed_by) {
        (0, Some(needed)) => Some(
            Finding::note(format!("there is no replica, and grants need {needed}"))
                .because("nothing can be locked", "start the replicas, or leave wait_replicas away"),
        ),
        (0, None) => None,
        (_, Some(needed)) => Some(
            Finding::note(format!("a grant counts when {needed} of {replicas} replicas have it")).because(
                "in a failover, one that does not have it may still be chosen",
                if needed >= replicas {
                    "watch that no replica lags"
                } else {
                    "let all confirm: raise wait_replicas"
                },
            ),
        ),
        (_, None) => {
            let what = format!("{replicas} of its replicas learn of grants later than the client");
            let risk = "a failover forgets the latest grants, and lets a second holder in";
            let fix = "say wait_replicas=1 in the URL, and set min-replicas-to-write 1";
            Some(if fails_over {
                Finding::risk(what, risk, fix)
            } else {
                Finding::note(what).because(risk, fix)
            })
        }
    }
}

/// The answer as text; `None` if the user may not run this command.
async fn ask(link: &Arc<Link>, words: &[&str]) -> Result<Option<String>> {
    let mut cmd = redis::Cmd::new();
    for word in words {
        cmd.arg(word);
    }
    match link.send(&cmd).await.map(|reply| reply.value) {
        Ok(Value::Array(items)) => match items.into_iter().nth(1) {
            Some(Value::BulkString(text)) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
            _ => Ok(None),
        },
        Ok(value) => redis::from_redis_value(value).map(Some).map_err(|_| fault::strange()),
        Err(Failure::Said(fault)) if fault::is_not_allowed(&fault) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}
