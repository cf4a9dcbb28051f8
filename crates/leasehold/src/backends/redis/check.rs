//! What is looked at once, when a store is opened: the version, and settings that can lose leases.

use std::sync::Arc;

use redis::Value;

use super::fault;
use super::link::{Failure, Link};
use crate::error::{Error, ErrorKind, Result};

/// The oldest version whose commands the scripts use (`SET … PXAT`).
const OLDEST: (u32, u32) = (6, 2);

/// What one server is like.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// Made anew when a server starts: the same one twice is the same server.
    pub(super) run_id: String,
}

/// Refuses a server that is too old, and warns of what a setting risks.
pub(super) async fn server(link: &Arc<Link>) -> Result<Checked> {
    let mut cmd = redis::cmd("INFO");
    let info = match ask(link, &mut cmd).await? {
        Some(info) => info,
        None => {
            tracing::warn!(
                "this Redis user may not call INFO: version, persistence and eviction policy could not be checked"
            );
            return Ok(Checked::default());
        }
    };
    let field = |name: &str| {
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::trim).unwrap_or_default()
    };
    let mut version = field("redis_version").split('.').map(|part| part.parse().unwrap_or(0));
    if (version.next().unwrap_or(0), version.next().unwrap_or(0)) < OLDEST {
        return Err(Error::new(ErrorKind::Unsupported, "this Redis is older than 6.2"));
    }
    let policy = field("maxmemory_policy");
    if !matches!(policy, "noeviction" | "") {
        tracing::warn!(
            policy,
            "this Redis evicts keys when memory is short: leases can vanish while they are held, and a second \
             holder be let in; set maxmemory-policy to noeviction"
        );
    }
    if field("aof_enabled") == "0" {
        let mut cmd = redis::cmd("CONFIG");
        cmd.arg("GET").arg("save");
        match ask(link, &mut cmd).await? {
            Some(saves) if saves.trim().is_empty() => tracing::warn!(
                "this Redis keeps nothing on disk: a restart frees every lock while its holder still believes to \
                 have it; set appendonly yes"
            ),
            Some(_) => tracing::warn!(
                "this Redis saves snapshots only: a restart forgets the latest grants and releases; set appendonly \
                 yes"
            ),
            None => tracing::warn!(
                "this Redis writes no append-only file, and whether it saves snapshots could not be checked: a \
                 restart forgets at least the latest grants"
            ),
        }
    }
    Ok(Checked { run_id: field("run_id").to_owned() })
}

/// The answer as text; `None` if this user may not ask.
async fn ask(link: &Arc<Link>, cmd: &mut redis::Cmd) -> Result<Option<String>> {
    match link.send(cmd).await.map(|reply| reply.value) {
        Ok(Value::Array(items)) => match items.into_iter().nth(1) {
            Some(Value::BulkString(text)) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
            _ => Ok(None),
        },
        Ok(value) => redis::from_redis_value(value).map(Some).map_err(|_| fault::strange()),
        Err(Failure::Said(fault)) if matches!(fault::code(&fault).as_deref(), Some("NOPERM" | "ERR")) => {
            Ok(None)
        }
        Err(failure) => Err(failure.into()),
    }
}
