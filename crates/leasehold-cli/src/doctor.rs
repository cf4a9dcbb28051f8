//! `leasehold doctor`: what this store guarantees as it is set up, and which risks it has.
//!
//! The checks for every store are here; those for one kind of store are in the library.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use leasehold::backend::{Liveness, TimeAuthority};
use leasehold::backends::http::Http;
use leasehold::doctor::{self, Finding, Level};
use leasehold::{Guard, Locks};

use crate::args::Output;
use crate::exit::Exit;
use crate::report::{Failure, answer};
use crate::store::{self, Store};
use crate::url::StoreArgs;
use crate::{duration, interrupt, table, view};

/// Number of measured round trips; the median is reported.
const TRIPS: usize = 9;

/// A greater offset of the wall clock is reported: fences that lost their counter rely on the clock.
const OFFSET: u64 = 1_000;

/// A slower round trip is reported: it takes a good part of the time for a renewal.
const SLOW: Duration = Duration::from_millis(500);

/// A working store, however loaded, grants a lock within this time. After that the check gives up.
const GRANTED: Duration = Duration::from_secs(5);

/// How many probe names there are. The first free one is used, so that a check that runs every few seconds leaves one
/// name behind, not one each time. More than one, because checks may run at the same time, or be killed.
const PROBES: usize = 8;

/// Check a store: whether it works, what it promises, what is risky.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Takes and releases its own lock, named leasehold-doctor-0 (up to -7 while other
checks run); touches no other lock.

Exit status: 0 no risk to safety, 1 a risk to safety, 69 the store does not work.

Examples:
  leasehold doctor
  leasehold doctor sqlite:/var/lib/app/locks.db
  leasehold doctor redis://localhost --output json | jq .safe")]
pub(crate) struct Doctor {
    #[command(flatten)]
    store: StoreArgs,
    /// How to print the findings.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Output,
    /// The store to check, same as --url.
    #[arg(value_name = "URL", conflicts_with_all = ["url", "url_file"])]
    place: Option<String>,
}

pub(crate) async fn run(mut args: Doctor) -> Result<ExitCode, Failure> {
    if let Some(url) = args.place.take() {
        args.store.url = Some(url);
    }
    let mut opened = store::open(&args.store).await?;
    // A store without fences is reported as a finding.
    opened.locks = opened.locks.with_options(|options| options.allow_unfenced = true);
    let mut findings = vec![Finding::ok(format!("{} is there", opened.url.shown()))];
    let failure = try_out(&opened, &mut findings).await.err();
    // The setup may explain why the store does not work.
    match (special(&opened).await, &failure) {
        (Ok(known), _) => findings.extend(known),
        (Err(error), None) => return Err(error.into()),
        (Err(_), Some(_)) => {}
    }
    interrupt::part(&opened.locks).await;
    let risky = findings.iter().any(|finding| finding.level == Level::Risk);
    let verdict = match (&failure, risky) {
        (Some(_), _) => "It does not work.",
        (None, true) => "There is a risk to safety.",
        (None, false) => "No risk to safety was found.",
    };
    let safe = !risky && failure.is_none();
    answer(&match args.output {
        Output::Json => view::json(&serde_json::json!({
            "store": opened.url.shown(), "works": failure.is_none(), "safe": safe, "findings": findings,
        }))?,
        Output::Table => print(&findings, verdict),
    })?;
    match failure {
        Some(failure) => Err(failure),
        None => Ok(if risky { Exit::Risk } else { Exit::Success }.into()),
    }
}

/// The checks that apply to every store.
async fn try_out(opened: &Store, findings: &mut Vec<Finding>) -> Result<(), Failure> {
    findings.extend(speed(&opened.locks).await?);
    findings.extend(exclusion(opened).await?);
    findings.extend(promises(&opened.locks));
    Ok(())
}

/// A lock for the checks: its name, and how long it took to get.
struct Probe {
    name: String,
    guard: Guard,
    took: Duration,
}

impl Probe {
    /// Takes the first probe lock that is free, or returns what prevents it.
    async fn take(locks: &Locks) -> Result<Self, Failure> {
        for number in 0..PROBES {
            let name = probe_name(number);
            let start = Instant::now();
            match locks.mutex(&name).try_lock().await {
                Ok(Some(guard)) => return Ok(Probe { name, guard, took: start.elapsed() }),
                Ok(None) if number + 1 < PROBES => {}
                // The last name, or a store with a passing problem.
                Ok(None) | Err(_) => {
                    let (start, guard) = (Instant::now(), take(locks, &name).await?);
                    return Ok(Probe { name, guard, took: start.elapsed() });
                }
            }
        }
        Err(not_granted())
    }
}

/// Takes this lock, or returns what prevents it.
async fn take(locks: &Locks, name: &str) -> Result<Guard, Failure> {
    locks.mutex(name).try_lock_for(GRANTED).await?.ok_or_else(not_granted)
}

fn not_granted() -> Failure {
    Failure::Ended(Exit::Store, "a lock that nobody but `leasehold doctor` uses was not granted".into())
}

/// The findings that only this kind of store can give.
async fn special(opened: &Store) -> Result<Vec<Finding>, leasehold::Error> {
    match &opened.access.server {
        Some(server) => Http::open(server.clone()).await?.findings().await,
        None => doctor::examine(&opened.url.text).await,
    }
}

fn probe_name(number: usize) -> String {
    format!("leasehold-doctor-{number}")
}

/// Measures how long a look, and taking and releasing a lock, take; and reads the store's clock.
async fn speed(locks: &Locks) -> Result<Vec<Finding>, Failure> {
    let mut trips = Vec::new();
    for _ in 0..TRIPS {
        let start = Instant::now();
        locks.inspect(probe_name(0)).await?;
        trips.push(start.elapsed());
    }
    trips.sort();
    let trip = trips[TRIPS / 2];
    let before = view::now_ms();
    let Probe { name, guard, took } = Probe::take(locks).await?;
    let after = view::now_ms();
    let granted = locks.inspect(&name).await?.holders.first().map(|holder| holder.grant.acquired_at_ms);
    guard.release().await?;
    let speed = format!("a look takes {}, a lock {}", micros(trip), micros(took));
    let mut findings = vec![if trip > SLOW {
        Finding::note(speed).because(
            "renewals that take long leave little time to notice trouble",
            "use a store that is nearer, or a longer --ttl",
        )
    } else {
        Finding::ok(speed)
    }];
    if let (Some(granted), TimeAuthority::Store) = (granted, locks.info().time) {
        let offset = granted.saturating_sub(after).max(before.saturating_sub(granted));
        let told = format!("the store's wall clock differs from this machine's by {offset} ms or less");
        findings.push(if offset > OFFSET {
            Finding::note(format!("the store's wall clock differs from this machine's by {offset} ms")).because(
                "none for locks, which go by durations; but fences rest on the store's clock if it loses its data",
                "let both machines set their clocks by NTP",
            )
        } else {
            Finding::ok(told)
        });
    }
    Ok(findings)
}

/// Checks that a held lock keeps another client out, and that the next fence is higher.
async fn exclusion(opened: &Store) -> Result<Vec<Finding>, Failure> {
    // A second client, like another process.
    let other = opened.again().await?.locks.with_options(|options| options.allow_unfenced = true);
    let Probe { name, guard: first, .. } = Probe::take(&opened.locks).await?;
    let second = other.mutex(&name).try_lock().await?;
    let excluded = second.is_none();
    drop(second);
    let fence = first.fence();
    first.release().await?;
    let next = take(&other, &name).await?;
    // A store without fences is reported elsewhere.
    let fenced = opened.locks.info().fenced;
    let rises = !fenced || next.fence() > fence;
    next.release().await?;
    other.close().await;
    Ok(vec![match (excluded, rises) {
        (true, true) if fenced => Finding::ok("a held lock keeps another client out, and fences rise"),
        (true, true) => Finding::ok("a held lock keeps another client out"),
        (false, _) => Finding::risk(
            "two clients held the same lock",
            "this store excludes nobody",
            "do not use it; find out what is between the client and the store",
        ),
        (true, false) => Finding::risk(
            "the fence of the second holder was not above that of the first",
            "a paused writer cannot be told from its successor",
            "find out whether two servers answer under this URL, and whether one's clock is wrong",
        ),
    }])
}

/// The store's abilities, as findings.
fn promises(locks: &Locks) -> Vec<Finding> {
    let info = locks.info();
    let mut findings = vec![
        match info.liveness {
            Liveness::Ttl => Finding::ok("a dead holder's lock is free when its ttl has passed"),
            _ => Finding::ok("a dead holder's lock is free when its process or connection has ended"),
        },
        if info.fifo {
            Finding::ok("waiting is first come, first served")
        } else {
            Finding::note("waiting is not first come, first served between processes")
        },
    ];
    if info.time == TimeAuthority::Client {
        findings.push(Finding::risk(
            "the clients' clocks decide when a lease has ended",
            "two machines whose clocks differ by more than a second can hold the same lock",
            "set the clocks of all machines by NTP, or use a store with a clock of its own",
        ));
    }
    if !info.fenced {
        findings.push(Finding::risk(
            "grants carry no fences",
            "a holder that was paused too long cannot be stopped from writing",
            "use a store with fences",
        ));
    }
    if !info.detects_loss {
        findings.push(Finding::risk(
            "a lost lock is not noticed",
            "the holder works on while another has the lock",
            "use a store that notices",
        ));
    }
    findings
}

fn micros(time: Duration) -> String {
    if time < Duration::from_millis(1) { format!("{} µs", time.as_micros()) } else { duration::show(time) }
}

fn print(findings: &[Finding], verdict: &str) -> String {
    let (mut out, colour) = (String::new(), table::colour());
    for finding in findings {
        let (mark, paint) = match finding.level {
            Level::Ok => ("ok  ", "32"),
            Level::Risk => ("RISK", "31"),
            // A newer library may have values that this program does not know.
            _ => ("note", "33"),
        };
        let mark = if colour { format!("\x1b[{paint}m{mark}\x1b[0m") } else { mark.to_owned() };
        out.push_str(&format!("{mark}  {}\n", table::plain(&finding.what)));
        for (label, text) in [("risks", &finding.risk), ("fix", &finding.fix)] {
            if let Some(text) = text {
                out.push_str(&format!("      {label}: {}\n", table::plain(text)));
            }
        }
    }
    out + verdict + "\n"
}
