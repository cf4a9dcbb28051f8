//! Short slices of torture: a few seconds of one profile on each kind of store, one after the other.
//!
//! A binary without the usual harness, because it starts itself as its processes. `make torture` has the long runs. A
//! slice continues, round after round, until everything has happened that is needed to prove anything: a machine that
//! builds and tests at the same time needs more rounds. The seed is a new one each time, unless the variable `SEED`
//! sets it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use leasehold_testbed::dice::{chosen_seed, fresh_seed};
use leasehold_torture::floors::Floor;
use leasehold_torture::report::Outcome;
use leasehold_torture::roles;
use leasehold_torture::store::{Front, Profile, Store};
use leasehold_torture::supervise::Order;

/// No round starts after this: a machine that has shown too little by then proves nothing.
const BOUND: Duration = Duration::from_secs(120);

/// One slice.
struct Slice {
    name: &'static str,
    store: Store,
    front: Front,
    profile: Profile,
    /// How long the workers work in a round, in seconds.
    secs: u64,
}

const fn slice(name: &'static str, store: Store, profile: Profile, secs: u64) -> Slice {
    Slice { name, store, front: Front::None, profile, secs }
}

const fn behind(front: Front, slice: Slice) -> Slice {
    Slice { front, ..slice }
}

// After a restart, and in `all`, dead waiters delay the others for up to ten seconds: a round must last longer.
const SLICES: [Slice; 9] = [
    slice("sqlite_breaks_nothing_while_workers_are_killed", Store::Sqlite, Profile::Kill, 5),
    slice("redis_breaks_nothing_while_workers_stand_still", Store::Redis, Profile::Pause, 5),
    slice("quorum_breaks_nothing_while_the_network_fails", Store::Quorum, Profile::Net, 5),
    slice("postgres_breaks_nothing_while_it_is_restarted", Store::Postgres, Profile::Restart, 10),
    slice("session_locks_break_nothing_while_workers_are_killed", Store::Advisory, Profile::Kill, 5),
    behind(
        Front::TwoServers,
        slice("two_lock_servers_break_nothing_while_workers_are_killed", Store::Redis, Profile::Kill, 4),
    ),
    slice("locks_are_kept_while_logs_panic_and_block", Store::Redis, Profile::Logs, 4),
    slice("sentinels_break_nothing_while_the_primary_changes", Store::Sentinel, Profile::Failover, 12),
    slice("lock_server_breaks_nothing_under_all_faults", Store::Http, Profile::All, 7),
];

fn main() -> ExitCode {
    if let Some(code) = roles::play_if_asked() {
        return code;
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted =
        |slice: &Slice| wanted.is_empty() || wanted.iter().any(|part| slice.name.contains(part.as_str()));
    if std::env::args().any(|arg| arg == "--list") {
        SLICES.iter().for_each(|slice| println!("{}: test", slice.name));
        return ExitCode::SUCCESS;
    }
    let seed = chosen_seed().unwrap_or_else(fresh_seed);
    println!("SEED={seed}");
    let (mut ran, mut failed) = (0, 0);
    for slice in SLICES.iter().filter(|slice| is_wanted(slice)) {
        let started = Instant::now();
        let outcome = run(slice, seed);
        let took = started.elapsed().as_secs();
        ran += 1;
        match outcome {
            Ok(rounds) => println!("test {} ... ok ({took} s, rounds: {rounds})", slice.name),
            Err(why) => {
                failed += 1;
                println!("test {} ... FAILED ({took} s, SEED={seed})\n{why}", slice.name);
            }
        }
    }
    println!(
        "\ntest result: {}. {} passed; {failed} failed; 0 ignored",
        if failed == 0 { "ok" } else { "FAILED" },
        ran - failed
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs rounds of the slice until all rounds together meet its floors; returns how many.
fn run(slice: &Slice, seed: u64) -> Result<u64, String> {
    let started = Instant::now();
    let mut floors: Vec<Floor> = Vec::new();
    let mut round = 0;
    loop {
        round += 1;
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut order = Order::new(slice.store, slice.profile, directory.path().join("run"));
        order.front = slice.front;
        order.time = Duration::from_secs(slice.secs);
        order.workers = 8;
        order.seed = seed + round - 1;
        let report = order.run().map_err(|error| error.to_string())?;
        if report.outcome == Outcome::Violated {
            // Keep the histories for the investigation.
            let kept = directory.keep();
            return Err(format!("{report}the histories are in {}", kept.display()));
        }
        for floor in &report.floors {
            match floors.iter_mut().find(|sum| sum.what == floor.what) {
                Some(sum) => sum.seen += floor.seen,
                None => floors.push(floor.clone()),
            }
        }
        if floors.iter().all(Floor::is_met) {
            return Ok(round);
        }
        if started.elapsed() > BOUND {
            let missing: Vec<_> = floors.iter().filter(|sum| !sum.is_met()).map(Floor::to_string).collect();
            return Err(format!("too little in {round} rounds: {}; the last:\n{report}", missing.join(", ")));
        }
    }
}
