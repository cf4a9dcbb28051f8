//! The figures the SQLite store has to reach, measured and judged, as a table: `make bench`.
//!
//! Each rate takes turns with a bare loop of prepared statements on the same disk; ratios are of one round, and medians
//! of the rounds are shown. The files are in the directory `LEASEHOLD_BENCH_DIR`, or beside
//! what cargo builds: the system's temporary directory may be memory, where nothing waits for a disk.

#![allow(clippy::unwrap_used)] // a benchmark that cannot go on should stop

mod other;

use std::path::Path;
use std::time::{Duration, Instant};

use leasehold::backend::{Attempt, Backend, Claim, Release};
use leasehold::backends::sqlite::Sqlite;
use leasehold::{Locks, Mode, Name};
use testkit::turns::{Spread, in_turns};
use tokio::runtime::Builder;

use other::{NAME, Other, now, percentile};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(600);
const TASKS: usize = 64;
const WAKES: usize = 300;
const WAITERS: usize = 1000;
const IDLE: Duration = Duration::from_secs(10);

fn main() {
    if let Some(path) = other::place() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(async { other::play(Locks::new(Sqlite::open(path).await.unwrap())).await });
    }
    let place = std::env::var_os("LEASEHOLD_BENCH_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let directory = tempfile::tempdir_in(place).unwrap();
    let mut files = 0;
    // Operations a second, and operations to a commit.
    let rounds: Vec<[(f64, f64); 3]> = in_turns(ROUNDS, |which| {
        files += 1;
        let path = directory.path().join(format!("{files}.db"));
        match which {
            0 => (bare(&path), TASKS as f64),
            1 => verbs(&path),
            _ => guards(&path),
        }
    });
    let of = |value: fn(&[(f64, f64); 3]) -> f64| Spread::of(rounds.iter().map(value));
    let (bare, verbs, guards) = (of(|round| round[0].0), of(|round| round[1].0), of(|round| round[2].0));
    let (ratio, through) = (of(|round| round[1].0 / round[0].0), of(|round| round[2].0 / round[0].0));
    let (per_commit, guards_per_commit) = (of(|round| round[1].1), of(|round| round[2].1));

    let mut reached = true;
    println!("| figure | measured | to reach | bare loop, same run |");
    println!("|---|---|---|---|");
    let mut row = |name: &str, ok: bool, measured: String, goal: &str, bare: String| {
        reached &= ok;
        let mark = if ok { "" } else { " **not reached**" };
        println!("| {name} | {measured}{mark} | {goal} | {bare} |");
    };
    row(
        "acquires and releases, 64 tasks on 64 names",
        ratio.median >= 0.30,
        format!("{:.0}/s, {ratio:.2} of the bare loop", verbs.median),
        "≥ 0.30",
        format!("{:.0} rows/s in batches of 64", bare.median),
    );
    row(
        "operations per commit",
        per_commit.median >= 20.0,
        format!("{per_commit:.1}"),
        "≥ 20",
        String::new(),
    );
    row(
        "the same through guards",
        true,
        format!("{:.0}/s, {through:.2} of the bare loop", guards.median),
        "",
        format!("{guards_per_commit:.1} operations per commit"),
    );
    let mut woken = wake_ups(&directory.path().join("woken.db"));
    let (half, most) = (percentile(&mut woken, 50), percentile(&mut woken, 99));
    let in_time = most < Duration::from_millis(50);
    let measured = format!("p50 {half:.1?}, p99 {most:.1?}");
    row(
        "from a release in one process to the grant in another",
        in_time,
        measured,
        "p99 < 50 ms",
        String::new(),
    );
    let (commits, core) = idle(&directory.path().join("idle.db"));
    let measured = format!("{commits} commits, {core:.2} % of a core");
    row("1 000 idle waiters for 10 s", true, measured, "", String::new());
    println!();
    println!("{}", if reached { "all figures reached" } else { "NOT all figures reached" });
}

/// Rows a second of a loop that only upserts, 64 to a transaction, as durable as the store.
fn bare(path: &Path) -> f64 {
    let db = rusqlite::Connection::open(path).unwrap();
    db.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE held (name TEXT PRIMARY KEY, id TEXT, fence INTEGER, expires INTEGER) WITHOUT ROWID;",
    )
    .unwrap();
    let names: Vec<_> = (0..TASKS).map(|n| format!("bench/job-{n}")).collect();
    let mut put = db
        .prepare(
            "INSERT INTO held VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (name) DO UPDATE SET id = excluded.id, fence = excluded.fence, expires = excluded.expires",
        )
        .unwrap();
    let (started, mut count) = (Instant::now(), 0u64);
    while started.elapsed() < ROUND {
        db.execute_batch("BEGIN IMMEDIATE").unwrap();
        for name in &names {
            put.execute((name, "AAAAAAAAAAAAAAAAAAAAAA", count as i64, count as i64)).unwrap();
            count += 1;
        }
        db.execute_batch("COMMIT").unwrap();
    }
    count as f64 / started.elapsed().as_secs_f64()
}

/// Operations a second of many tasks, and operations to a commit.
fn verbs(path: &Path) -> (f64, f64) {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let store = Sqlite::open(path).await.unwrap();
        let started = Instant::now();
        let tasks: Vec<_> = (0..TASKS)
            .map(|n| {
                let store = store.clone();
                tokio::spawn(async move {
                    let name = Name::within("bench", &format!("job-{n}")).unwrap();
                    let mut count = 0u64;
                    while started.elapsed() < ROUND {
                        let claim =
                            Claim::new(name.clone(), Mode::Exclusive, Duration::from_secs(30), "bench");
                        let attempt = store.try_acquire(&claim).await.unwrap();
                        assert!(matches!(attempt, Attempt::Granted(_)));
                        store.release(&Release::new(name.clone(), claim.id)).await.unwrap();
                        count += 2;
                    }
                    count
                })
            })
            .collect();
        finish(&store, started, tasks).await
    })
}

/// The same, as a program would do it.
fn guards(path: &Path) -> (f64, f64) {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let store = Sqlite::open(path).await.unwrap();
        let locks = Locks::new(store.clone());
        let started = Instant::now();
        let tasks: Vec<_> = (0..TASKS)
            .map(|n| {
                let mutex = locks.mutex(format!("job-{n}"));
                tokio::spawn(async move {
                    let mut count = 0u64;
                    while started.elapsed() < ROUND {
                        mutex.lock().await.unwrap().release().await.unwrap();
                        count += 2;
                    }
                    count
                })
            })
            .collect();
        finish(&store, started, tasks).await
    })
}

async fn finish(store: &Sqlite, started: Instant, tasks: Vec<tokio::task::JoinHandle<u64>>) -> (f64, f64) {
    let mut count = 0;
    for task in tasks {
        count += task.await.unwrap();
    }
    (count as f64 / started.elapsed().as_secs_f64(), count as f64 / store.commits() as f64)
}

/// From just before a release to the grant in the other process.
fn wake_ups(path: &Path) -> Vec<Duration> {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let store = Sqlite::open(path).await.unwrap();
        let locks = Locks::new(store);
        let mut other = Other::start(path);
        let mut times = Vec::new();
        for _ in 0..WAKES {
            let guard = locks.mutex(NAME).lock().await.unwrap();
            other.tell("take");
            while locks.inspect(NAME).await.unwrap().queue_length == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // It is blocked in its poll by then.
            tokio::time::sleep(Duration::from_millis(2)).await;
            let released = now();
            guard.release().await.unwrap();
            times.push(other.got_it().saturating_sub(released));
            other.tell("release");
        }
        times
    })
}

/// What many cost who only wait, half of them in one queue: commits, and the share of a core in percent.
fn idle(path: &Path) -> (u64, f64) {
    let cpu = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let store = Sqlite::open(path).await.unwrap();
        let locks = Locks::new(store.clone()).with_namespace("");
        let name = |n: usize| if n.is_multiple_of(2) { "crowd".to_owned() } else { format!("own-{n}") };
        for n in (1..WAITERS).step_by(2).chain([0]) {
            let name = Name::new(&name(n)).unwrap();
            let claim = Claim::new(name, Mode::Exclusive, Duration::from_secs(3600), "bench");
            assert!(matches!(store.try_acquire(&claim).await.unwrap(), Attempt::Granted(_)));
        }
        for n in 0..WAITERS {
            let mutex = locks.mutex(name(n));
            tokio::spawn(async move { mutex.lock().await });
        }
        while store.sweep().await.unwrap().waiting < WAITERS as u64 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let before = (store.commits(), cpu());
        tokio::time::sleep(IDLE).await;
        (store.commits() - before.0, (cpu() - before.1) / IDLE.as_secs_f64() * 100.0)
    })
}
