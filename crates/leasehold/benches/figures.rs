//! The figures the memory store has to reach, measured and judged, as a table: `make bench`.
//!
//! Rates are from one thread. Each takes turns with the same thing on `tokio::sync`; ratios are of one round, and
//! medians of the rounds are shown. Memory and renewals are measured in a process of their own.

#![allow(clippy::unwrap_used)] // a benchmark that cannot go on should stop

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Guard, Locks};
use rustix::time::{ClockId, clock_gettime};
use testkit::turns::{Spread, in_turns};
use tokio::runtime::{Builder, Runtime};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(400);
const GUARDS: usize = 100_000;

fn main() {
    match std::env::args().find_map(|arg| arg.strip_prefix("--measure=").map(str::to_owned)).as_deref() {
        Some("memory") => println!("{}", memory_per_guard()),
        Some("renewals") => println!("{}", core_share_of_renewals()),
        _ => report(),
    }
}

fn report() {
    let mut reached = true;
    println!("| figure | measured | to reach | tokio::sync, same run | ratio |");
    println!("|---|---|---|---|---|");
    let mut row = |name: &str, ok: bool, measured: String, goal: &str, tokio: Option<[Spread; 2]>| {
        reached &= ok;
        let (tokio, ratio) = tokio.map_or_else(Default::default, |[rate, ratio]| {
            (format!("{:.0}/s", rate.median), format!("{ratio:.3}"))
        });
        let mark = if ok { "" } else { " **not reached**" };
        println!("| {name} | {measured}{mark} | {goal} | {tokio} | {ratio} |");
    };

    let [ours, tokio, ratio] = alternate(uncontended, uncontended_tokio);
    row(
        "uncontended pairs, 1 task",
        ours.median >= 300_000.0,
        format!("{:.0}/s", ours.median),
        "≥ 300 000/s",
        Some([tokio, ratio]),
    );

    let [ours, tokio, ratio] = alternate(|| hand_overs(16), || hand_overs_tokio(16));
    row(
        "hand-overs, 16 tasks on one name",
        ours.median >= 150_000.0,
        format!("{:.0}/s", ours.median),
        "≥ 150 000/s",
        Some([tokio, ratio]),
    );

    let [.., ratio] = alternate(|| hand_overs(10), || hand_overs(1000));
    row(
        "cost of a hand-over, 1 000 waiters to 10",
        ratio.median <= 1.5,
        format!("{ratio:.2}"),
        "≤ 1.5",
        None,
    );

    let bytes = in_own_process("memory");
    row(
        "process memory per held guard, 100 000 guards",
        bytes < 1024.0,
        format!("{bytes:.0} B"),
        "< 1 024 B",
        None,
    );

    let share = in_own_process("renewals");
    row("renewing 100 000 leases of 30 s", share < 10.0, format!("{share:.1} % of a core"), "< 10 %", None);

    println!();
    println!("{}", if reached { "all figures reached" } else { "NOT all figures reached" });
}

/// Two measurements that take turns, and the one to the other.
fn alternate(mut a: impl FnMut() -> f64, mut b: impl FnMut() -> f64) -> [Spread; 3] {
    let rounds: Vec<[f64; 2]> = in_turns(ROUNDS, |which| if which == 0 { a() } else { b() });
    let of = |value: fn(&[f64; 2]) -> f64| Spread::of(rounds.iter().map(value));
    [of(|round| round[0]), of(|round| round[1]), of(|round| round[0] / round[1])]
}

fn one_core() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn per_second(count: u64, started: Instant) -> f64 {
    count as f64 / started.elapsed().as_secs_f64()
}

fn uncontended() -> f64 {
    one_core().block_on(async {
        let locks = Locks::connect("memory:").await.unwrap();
        let mutex = locks.mutex("x");
        let (started, mut count) = (Instant::now(), 0);
        while started.elapsed() < ROUND {
            for _ in 0..100 {
                mutex.lock().await.unwrap().release().await.unwrap();
            }
            count += 100;
        }
        per_second(count, started)
    })
}

fn uncontended_tokio() -> f64 {
    one_core().block_on(async {
        let mutex = tokio::sync::Mutex::new(());
        let (started, mut count) = (Instant::now(), 0);
        while started.elapsed() < ROUND {
            for _ in 0..100 {
                drop(std::hint::black_box(mutex.lock().await));
            }
            count += 100;
        }
        per_second(count, started)
    })
}

/// Counts only grants to another task than the one before: what a queue is for.
#[derive(Default)]
struct Count {
    last: AtomicU64,
    hand_overs: AtomicU64,
}

impl Count {
    fn note(&self, task: u64) {
        if self.last.swap(task, Ordering::Relaxed) != task {
            self.hand_overs.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn run_tasks<F: Future<Output = ()> + Send + 'static>(
    tasks: u64,
    start: impl Fn(u64, Arc<Count>, Instant) -> F,
) -> f64 {
    let count = Arc::new(Count::default());
    let started = Instant::now();
    let running: Vec<_> =
        (1..=tasks).map(|task| tokio::spawn(start(task, Arc::clone(&count), started))).collect();
    for task in running {
        task.await.unwrap();
    }
    per_second(count.hand_overs.load(Ordering::Relaxed), started)
}

fn hand_overs(tasks: u64) -> f64 {
    one_core().block_on(async {
        let locks = Locks::connect("memory:").await.unwrap();
        run_tasks(tasks, |task, count, started| {
            let mutex = locks.mutex("x");
            async move {
                while started.elapsed() < ROUND {
                    let guard = mutex.lock().await.unwrap();
                    count.note(task);
                    // The others run, and queue up.
                    tokio::task::yield_now().await;
                    guard.release().await.unwrap();
                }
            }
        })
        .await
    })
}

fn hand_overs_tokio(tasks: u64) -> f64 {
    one_core().block_on(async {
        let mutex = Arc::new(tokio::sync::Mutex::new(()));
        run_tasks(tasks, |task, count, started| {
            let mutex = Arc::clone(&mutex);
            async move {
                while started.elapsed() < ROUND {
                    let guard = mutex.lock().await;
                    count.note(task);
                    tokio::task::yield_now().await;
                    drop(guard);
                }
            }
        })
        .await
    })
}

fn in_own_process(what: &str) -> f64 {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .arg(format!("--measure={what}"))
        .stderr(std::process::Stdio::inherit())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

async fn hold(locks: &Locks) -> Vec<Guard> {
    let mut guards = Vec::with_capacity(GUARDS);
    for n in 0..GUARDS {
        guards.push(locks.mutex(format!("job-{n}")).lock().await.unwrap());
    }
    guards
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// Everything a held guard costs the process: guard, renewal queue, and the store itself.
fn memory_per_guard() -> f64 {
    one_core().block_on(async {
        let locks = Locks::connect("memory:").await.unwrap();
        drop(locks.mutex("warm").lock().await.unwrap());
        let before = resident_bytes();
        let guards = hold(&locks).await;
        let used = resident_bytes() - before;
        used as f64 / guards.len() as f64
    })
}

/// Percent of a core, over one and a half ttls with nothing else to do.
fn core_share_of_renewals() -> f64 {
    let cpu = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    one_core().block_on(async {
        let locks = Locks::connect("memory:").await.unwrap();
        let guards = hold(&locks).await;
        let (started, before) = (Instant::now(), cpu());
        tokio::time::sleep(Duration::from_secs(45)).await;
        let share = (cpu() - before) / started.elapsed().as_secs_f64() * 100.0;
        assert!(guards.iter().all(|guard| guard.check().is_ok()), "a lease was lost");
        share
    })
}
