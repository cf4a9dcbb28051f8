//! Hours of torture in seconds: residents (long-lived workers) take and give back some hundred locks. Nothing grows,
//! and each planted leak is seen.
//!
//! A binary without the usual harness, because it starts itself as its processes.

use std::io;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use leasehold_testbed::dice::{chosen_seed, fresh_seed};
use leasehold_torture::hours::{Hours, Report, SAMPLES};
use leasehold_torture::roles;
use leasehold_torture::store::{Profile, Store};
use leasehold_torture::zoo::leaks::{LEAKS, Leak};

/// The argument with which this binary starts itself, to run with a leak.
const LEAKING: &str = "--leaking";

/// Acquires of a run.
const ACQUIRES: u64 = 600;

/// No run takes longer, however slow the machine is.
const BOUND: Duration = Duration::from_secs(300);

type Test = (&'static str, fn(u64) -> Result<(), String>);

const TESTS: [Test; 5] = [
    ("memory_stays_constant", |seed| nothing_grows(Store::Memory, seed)),
    ("sqlite_stays_constant", |seed| nothing_grows(Store::Sqlite, seed)),
    ("every_planted_leak_is_seen", every_leak_is_seen),
    ("rounds_are_judged_and_told", rounds_are_judged),
    ("ends_early_on_request", ends_early),
];

fn main() -> ExitCode {
    if let Some(code) = roles::play_if_asked() {
        return code;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [word, name, seed] = &words[..]
        && word == LEAKING
    {
        return leaking(name, seed.parse().unwrap_or(1));
    }
    if words.iter().any(|word| word == "--list") {
        TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let seed = chosen_seed().unwrap_or_else(fresh_seed);
    println!("SEED={seed}");
    let (mut ran, mut failed) = (0, 0);
    for (name, test) in TESTS {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let started = Instant::now();
        ran += 1;
        match test(seed) {
            Ok(()) => println!("test {name} ... ok ({:.1} s)", started.elapsed().as_secs_f64()),
            Err(why) => {
                failed += 1;
                println!("test {name} ... FAILED (SEED={seed})\n{why}");
            }
        }
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {result}. {} passed; {failed} failed; 0 ignored", ran - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn ensure(is_so: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(otherwise()) }
}

/// Runs residents alone, in a directory that is removed.
fn residents(store: Store, seed: u64) -> io::Result<Report> {
    let directory = tempfile::tempdir()?;
    let mut hours = Hours::new(store, directory.path().join("run"));
    (hours.profiles, hours.acquires, hours.time, hours.seed) = (Vec::new(), Some(ACQUIRES), BOUND, seed);
    hours.run()
}

fn nothing_grows(store: Store, seed: u64) -> Result<(), String> {
    let report = residents(store, seed).map_err(|error| error.to_string())?;
    ensure(report.broken.is_empty() && report.too_little.is_empty(), || report.to_string())?;
    ensure(report.acquires >= ACQUIRES, || report.to_string())?;
    let measured = |what: &str| report.growth.iter().any(|growth| growth.what.ends_with(what));
    let kept = if store == Store::Sqlite { "store: rows" } else { "server: connections" };
    ensure(measured("memory") && measured("descriptors") && measured(kept), || report.to_string())
}

/// Runs all leaks at the same time, each in a process that has the leak, as do all processes it starts.
fn every_leak_is_seen(seed: u64) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let start = |leak: &'static Leak| {
        let mut command = Command::new(&own);
        command.args([LEAKING, leak.bug.as_str(), &seed.to_string()]).env("LEASEHOLD_BUG", leak.bug.as_str());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map(|child| (leak, child))
    };
    let started =
        LEAKS.iter().map(start).collect::<io::Result<Vec<_>>>().map_err(|error| error.to_string())?;
    for (leak, child) in started {
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        ensure(output.status.success(), || format!("{} is not seen:\n{said}", leak.bug.as_str()))?;
    }
    Ok(())
}

/// The code of that process. Returns whether the leak was seen.
fn leaking(name: &str, seed: u64) -> ExitCode {
    let seen = |leak: &Leak, report: &Report| {
        report.growth.iter().any(|growth| growth.grows && growth.what.ends_with(leak.grows))
    };
    let Some(leak) = LEAKS.iter().find(|leak| leak.bug.as_str() == name) else { return ExitCode::from(64) };
    match residents(leak.store, seed) {
        Ok(report) => {
            println!("{report}");
            ExitCode::from(u8::from(!seen(leak, &report) || report.broken.is_empty()))
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn rounds_are_judged(seed: u64) -> Result<(), String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut hours = Hours::new(Store::Sqlite, directory.path().join("run"));
    hours.profiles = vec![Profile::Calm, Profile::Net, Profile::Kill];
    (hours.round, hours.workers, hours.seed, hours.time) = (Duration::from_secs(1), 4, seed, BOUND);
    let stop = Arc::clone(&hours.stop);
    let out = hours.out.clone();
    // Two rounds, however long they take.
    let watch = std::thread::spawn(move || {
        let started = Instant::now();
        let told = || std::fs::read_to_string(out.join("report.json")).unwrap_or_default();
        while told().matches("\"handovers\"").count() < 2 && started.elapsed() < BOUND {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let report = hours.run().map_err(|error| error.to_string())?;
    watch.join().map_err(|_| "the watch".to_owned())?;
    ensure(report.broken.is_empty() && report.interrupted, || report.to_string())?;
    // `net` does not suit SQLite.
    let profiles: Vec<_> = report.rounds.iter().take(2).map(|round| round.profile).collect();
    ensure(profiles == [Profile::Calm, Profile::Kill], || report.to_string())?;
    let handovers: u64 = report.rounds.iter().map(|round| round.handovers).sum();
    ensure(handovers > 0, || report.to_string())?;
    let samples = std::fs::read_to_string(hours.out.join(SAMPLES)).map_err(|error| error.to_string())?;
    ensure(samples.lines().count() as u64 == report.samples + 1, || samples)
}

fn ends_early(seed: u64) -> Result<(), String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut hours = Hours::new(Store::Memory, directory.path().join("run"));
    hours.seed = seed;
    hours.stop.store(true, Ordering::Relaxed);
    let started = Instant::now();
    let report = hours.run().map_err(|error| error.to_string())?;
    ensure(report.interrupted && report.broken.is_empty(), || report.to_string())?;
    ensure(started.elapsed() < BOUND, || "it goes on".into())
}
