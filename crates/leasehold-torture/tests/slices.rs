//! Short slices of torture: a few seconds of one profile on each kind of store, one after the other.
//!
//! A binary without the usual harness, because its processes are itself. `make torture` has the long runs. The floors
//! of a slice are low: a machine that builds and tests at the same time is slow, and a slice that shows little is
//! still worth its violations.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use leasehold_torture::history::record::Fault;
use leasehold_torture::report::Report;
use leasehold_torture::roles;
use leasehold_torture::store::{Profile, Store};
use leasehold_torture::supervise::Order;

/// What is run, and what must have happened at the least.
struct Slice {
    name: &'static str,
    store: Store,
    profile: Profile,
    shows: fn(&Report) -> bool,
}

const SLICES: [Slice; 6] = [
    Slice {
        name: "workers_on_sqlite_are_killed_and_every_invariant_holds",
        store: Store::Sqlite,
        profile: Profile::Kill,
        shows: |report| report.faults.get(Fault::Kill).holders >= 3,
    },
    Slice {
        name: "workers_on_redis_stand_still_past_their_ttl_and_every_invariant_holds",
        store: Store::Redis,
        profile: Profile::Pause,
        // What would have been corrupted without fences.
        shows: |report| report.figures.unfenced_overlaps > 0 && report.faults.get(Fault::Pause).past_ttl >= 3,
    },
    Slice {
        name: "the_network_before_a_quorum_fails_and_every_invariant_holds",
        store: Store::Quorum,
        profile: Profile::Net,
        shows: |report| report.faults.landed() >= 5,
    },
    Slice {
        name: "postgres_is_killed_and_started_again_and_every_invariant_holds",
        store: Store::Postgres,
        profile: Profile::Restart,
        shows: |report| report.faults.get(Fault::RestartStore).landed >= 1,
    },
    Slice {
        name: "holders_of_session_locks_are_killed_and_every_invariant_holds",
        store: Store::Advisory,
        profile: Profile::Kill,
        shows: |report| report.faults.get(Fault::Kill).holders >= 3,
    },
    Slice {
        name: "everything_at_once_on_a_lock_server_and_every_invariant_holds",
        store: Store::Http,
        profile: Profile::All,
        shows: |report| report.faults.landed() >= 5,
    },
];

fn main() -> ExitCode {
    if let Some(code) = roles::play() {
        return code;
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted =
        |slice: &Slice| wanted.is_empty() || wanted.iter().any(|part| slice.name.contains(part.as_str()));
    if std::env::args().any(|arg| arg == "--list") {
        SLICES.iter().for_each(|slice| println!("{}: test", slice.name));
        return ExitCode::SUCCESS;
    }
    let mut failed = 0;
    for slice in SLICES.iter().filter(|slice| is_wanted(slice)) {
        let started = Instant::now();
        let outcome = run(slice);
        let took = started.elapsed().as_secs();
        match outcome {
            Ok(()) => println!("test {} ... ok ({took} s)", slice.name),
            Err(why) => {
                failed += 1;
                println!("test {} ... FAILED ({took} s)\n{why}", slice.name);
            }
        }
    }
    println!("\ntest result: {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(slice: &Slice) -> Result<(), String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut order = Order::new(slice.store, slice.profile, directory.path().join("run"));
    order.time = Duration::from_secs(7);
    order.workers = 8;
    order.seed = 9;
    let report = order.run().map_err(|error| error.to_string())?;
    if !report.broken.is_empty() {
        // Whoever looks into it needs the histories.
        let kept = directory.keep();
        return Err(format!("{report}the histories are in {}", kept.display()));
    }
    let works = report.figures.handovers >= 5 && report.figures.grants >= 10;
    if works && (slice.shows)(&report) { Ok(()) } else { Err(format!("this shows nothing:\n{report}")) }
}
