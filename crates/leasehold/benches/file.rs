//! What the lock files cost, next to a bare `flock`, and how soon another process has a lock: `make bench`.
//!
//! The files are in the directory `LEASEHOLD_BENCH_DIR`, or beside what cargo builds, on a disk.

#![allow(clippy::unwrap_used)] // a benchmark that cannot go on should stop

mod other;

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold::backend::{Attempt, Backend, Claim, Release};
use leasehold::backends::file::Directory;
use leasehold::{Locks, Mode, Name};
use rustix::fs::{FlockOperation, flock};
use testkit::turns::{Spread, in_turns};
use tokio::runtime::Builder;

use other::{NAME, Other, now, percentile};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(400);
const WAKES: usize = 100;
const KILLS: usize = 20;

fn main() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    if let Some(place) = other::place() {
        return runtime.block_on(other::play(Locks::new(Directory::open(place).unwrap())));
    }
    let place = std::env::var_os("LEASEHOLD_BENCH_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let directory = tempfile::tempdir_in(place).unwrap();
    let rounds: Vec<[f64; 3]> = in_turns(ROUNDS, |which| match which {
        0 => bare_flock(&directory.path().join("bare")),
        1 => runtime.block_on(by_verbs(&directory.path().join("verbs"))),
        _ => runtime.block_on(by_guards(&directory.path().join("guards"))),
    });
    let of = |value: fn(&[f64; 3]) -> f64| Spread::of(rounds.iter().map(value));
    let (bare, verbs, guards) = (of(|round| round[0]), of(|round| round[1]), of(|round| round[2]));
    let (ratio, through) = (of(|round| round[1] / round[0]), of(|round| round[2] / round[0]));
    println!("| figure | measured | to reach | beside it |");
    println!("|---|---|---|---|");
    println!(
        "| uncontended acquire + release, one task | {:.0} pairs/s, {ratio:.3} of it | | bare open, flock, unlock, \
         close: {:.0}/s |",
        verbs.median, bare.median
    );
    println!("| the same through guards | {:.0} pairs/s, {through:.3} of it | | |", guards.median);
    let mut woken = runtime.block_on(wake_ups(&directory.path().join("woken")));
    let (half, most) = (percentile(&mut woken, 50), percentile(&mut woken, 99));
    println!(
        "| from a release in one process to the grant in another | p50 {half:.1?}, p99 {most:.1?} | | |"
    );
    let mut taken = runtime.block_on(takeovers(&directory.path().join("taken")));
    let (half, worst) = (percentile(&mut taken, 50), percentile(&mut taken, 100));
    let mark = if worst <= Duration::from_millis(200) { "" } else { " **not reached**" };
    println!(
        "| takeover after SIGKILL of the holder | p50 {half:.1?}, worst {worst:.1?}{mark} | ≤ 200 ms | |"
    );
}

/// What a shell script does: opens a file, locks it, unlocks it, closes it.
fn bare_flock(path: &Path) -> f64 {
    let (started, mut count) = (Instant::now(), 0u64);
    while started.elapsed() < ROUND {
        let file = File::options().create(true).append(true).open(path).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        flock(&file, FlockOperation::Unlock).unwrap();
        count += 1;
    }
    count as f64 / started.elapsed().as_secs_f64()
}

async fn by_verbs(path: &Path) -> f64 {
    let store = Directory::open(path).unwrap();
    let name = Name::new("alone").unwrap();
    let (started, mut count) = (Instant::now(), 0u64);
    while started.elapsed() < ROUND {
        let claim = Claim::new(name.clone(), Mode::Exclusive, Duration::from_secs(30), "bench");
        assert!(matches!(store.try_acquire(&claim).await.unwrap(), Attempt::Granted(_)));
        store.release(&Release::new(name.clone(), claim.id)).await.unwrap();
        count += 1;
    }
    count as f64 / started.elapsed().as_secs_f64()
}

async fn by_guards(path: &Path) -> f64 {
    let locks = Locks::new(Directory::open(path).unwrap());
    let mutex = locks.mutex("alone");
    let (started, mut count) = (Instant::now(), 0u64);
    while started.elapsed() < ROUND {
        mutex.lock().await.unwrap().release().await.unwrap();
        count += 1;
    }
    count as f64 / started.elapsed().as_secs_f64()
}

/// From just before a release to the grant in the other process, which has waited for a while.
async fn wake_ups(path: &Path) -> Vec<Duration> {
    let locks = Locks::new(Directory::open(path).unwrap());
    let mut other = Other::start(path);
    let mut times = Vec::new();
    for _ in 0..WAKES {
        let guard = locks.mutex(NAME).lock().await.unwrap();
        other.tell("take");
        // It looks often at first.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let released = now();
        guard.release().await.unwrap();
        times.push(other.got_it().saturating_sub(released));
        other.tell("release");
    }
    times
}

/// From the death of a holder to the grant here.
async fn takeovers(path: &Path) -> Vec<Duration> {
    let locks = Locks::new(Directory::open(path).unwrap());
    let mut times = Vec::new();
    for _ in 0..KILLS {
        let mut other = Other::start(path);
        other.tell("take");
        other.got_it();
        let mutex = locks.mutex(NAME);
        let waiter = tokio::spawn(async move { (mutex.lock().await.unwrap(), now()) });
        tokio::time::sleep(Duration::from_millis(150)).await;
        let killed = now();
        other.kill();
        let (guard, at) = waiter.await.unwrap();
        times.push(at.saturating_sub(killed));
        guard.release().await.unwrap();
    }
    times
}
