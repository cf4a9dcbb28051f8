//! Measures locks side by side, in one run: shared by `make bench-redis`, `make bench-postgres` and `make
//! bench-server`.
//!
//! Everything that is compared takes turns ([`testkit::turns`]), because the machine is never quite the same twice.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use testkit::turns::{Spread, in_turns_async, percentile};

/// One way to lock, on one store.
#[async_trait]
pub trait Contender: Send + Sync {
    /// The lock of a name, as one task uses it.
    async fn lock(&self, name: &str) -> Box<dyn Lock>;
}

/// A lock of one name.
#[async_trait]
pub trait Lock: Send + Sync {
    /// Waits until it is held.
    async fn acquire(&self) -> Box<dyn Held>;
}

/// A lock that is held.
#[async_trait]
pub trait Held: Send {
    /// Releases it, and waits for the answer.
    async fn release(self: Box<Self>);
}

/// [`uncontended`] pairs a second of several contenders, in turns, by round.
pub async fn pairs_in_turns<const N: usize>(
    contenders: [&Arc<dyn Contender>; N],
    tasks: usize,
    rounds: usize,
    time: Duration,
) -> Vec<[f64; N]> {
    in_turns_async(rounds, async |which: usize| uncontended(contenders[which], tasks, time).await).await
}

/// One measured thing, over all rounds.
pub fn column<const N: usize>(rounds: &[[f64; N]], which: usize) -> Spread {
    Spread::of(rounds.iter().map(|round| round[which]))
}

/// The ratio of one to another, over all rounds.
pub fn ratio<const N: usize>(rounds: &[[f64; N]], one: usize, other: usize) -> Spread {
    Spread::of(rounds.iter().map(|round| round[one] / round[other]))
}

/// Acquires and releases by this many tasks, each on its own name. Returns pairs a second.
pub async fn uncontended(contender: &Arc<dyn Contender>, tasks: usize, time: Duration) -> f64 {
    let mut running = Vec::new();
    let count = Arc::new(AtomicU64::new(0));
    let ready = Arc::new(tokio::sync::Barrier::new(tasks + 1));
    let stop = Arc::new(AtomicBool::new(false));
    for task in 0..tasks {
        let lock = contender.lock(&format!("own-{task}")).await;
        let (count, ready, stop) = (count.clone(), ready.clone(), stop.clone());
        running.push(tokio::spawn(async move {
            lock.acquire().await.release().await; // pay one-time costs first
            ready.wait().await;
            while !stop.load(Ordering::Relaxed) {
                lock.acquire().await.release().await;
                count.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    ready.wait().await;
    let (started, before) = (Instant::now(), count.load(Ordering::Relaxed));
    tokio::time::sleep(time).await;
    let rate = (count.load(Ordering::Relaxed) - before) as f64 / started.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for task in running {
        task.await.expect("a task of the benchmark");
    }
    rate
}

/// The result of many tasks on one name. Times in milliseconds. [`of_rounds`] combines several rounds.
#[derive(Debug, Clone, Copy)]
pub struct Contention {
    /// Grants to another task than the one before, a second.
    pub hand_overs: f64,
    /// The share of grants to the same task again, in percent.
    pub same_again: f64,
    /// From the call of release to the return of the next holder's acquire.
    pub hand_over: f64,
    pub wait_p50: f64,
    pub wait_p99: f64,
    pub wait_max: f64,
    /// The ratio of grants of the busiest task to those of the idlest.
    pub spread: f64,
    /// How long the probe took meanwhile.
    pub probe: f64,
}

/// A figure of one contender over several rounds.
pub fn of_rounds(rounds: &[Contention], figure: impl Fn(&Contention) -> f64) -> Spread {
    Spread::of(rounds.iter().map(figure))
}

const NOBODY: usize = usize::MAX;

/// Lets this many tasks acquire and release one name, without holding it; a probe, a bare round trip, runs beside
/// them.
pub async fn contended<P, F>(
    contender: &Arc<dyn Contender>,
    tasks: usize,
    time: Duration,
    mut probe: P,
) -> Contention
where
    P: FnMut() -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let began = Instant::now();
    let released = Arc::new(AtomicU64::new(0));
    let last = Arc::new(AtomicUsize::new(NOBODY));
    let samples = Arc::new(Mutex::new((Vec::<f64>::new(), Vec::<f64>::new())));
    let (ready, stop) = (Arc::new(tokio::sync::Barrier::new(tasks + 1)), Arc::new(AtomicBool::new(false)));
    let mut running = Vec::new();
    for task in 0..tasks {
        let lock = contender.lock("the-one").await;
        let (released, last, samples) = (released.clone(), last.clone(), samples.clone());
        let (ready, stop) = (ready.clone(), stop.clone());
        running.push(tokio::spawn(async move {
            let (mut waits, mut overs, mut same) = (Vec::new(), Vec::new(), 0u64);
            ready.wait().await;
            while !stop.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let held = lock.acquire().await;
                let now = began.elapsed().as_nanos() as u64;
                if last.swap(task, Ordering::Relaxed) == task {
                    same += 1;
                } else {
                    overs.push(now.saturating_sub(released.load(Ordering::Relaxed)) as f64 / 1e6);
                }
                waits.push(asked.elapsed().as_secs_f64() * 1e3);
                released.store(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
                held.release().await;
            }
            let grants = waits.len() as u64;
            let mut all = samples.lock().expect("no task panicked");
            all.0.extend(waits);
            all.1.extend(overs);
            (grants, same)
        }));
    }
    ready.wait().await;
    let started = Instant::now();
    let probing = tokio::spawn({
        let stop = stop.clone();
        async move {
            let mut times = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let sent = Instant::now();
                probe().await;
                times.push(sent.elapsed().as_secs_f64() * 1e3);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            times
        }
    });
    tokio::time::sleep(time).await;
    let took = started.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let mut counts = Vec::new();
    for task in running {
        counts.push(task.await.expect("a task of the benchmark"));
    }
    let mut probes = probing.await.expect("the probe");
    let (mut waits, mut overs) = std::mem::take(&mut *samples.lock().expect("no task panicked"));
    let same: u64 = counts.iter().map(|(_, same)| same).sum();
    let most = counts.iter().map(|(grants, _)| *grants).max().unwrap_or(0);
    let least = counts.iter().map(|(grants, _)| *grants).min().unwrap_or(0);
    Contention {
        hand_overs: overs.len() as f64 / took,
        same_again: 100.0 * same as f64 / waits.len().max(1) as f64,
        hand_over: percentile(&mut overs, 50.0),
        wait_p50: percentile(&mut waits, 50.0),
        wait_p99: percentile(&mut waits, 99.0),
        wait_max: percentile(&mut waits, 100.0),
        spread: most as f64 / least.max(1) as f64,
        probe: percentile(&mut probes, 50.0),
    }
}

/// The processor time of this process on all cores together.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The table of targets and results.
#[derive(Debug)]
pub struct Table {
    reached: bool,
}

impl Table {
    pub fn begin() -> Self {
        println!("| figure | measured | to reach | beside it, same run |");
        println!("|---|---|---|---|");
        Table { reached: true }
    }

    pub fn row(&mut self, figure: &str, ok: bool, measured: String, goal: &str, beside: String) {
        self.reached &= ok;
        let mark = if ok { "" } else { " **not reached**" };
        println!("| {figure} | {measured}{mark} | {goal} | {beside} |");
    }

    pub fn end(self) {
        println!();
        println!("{}", if self.reached { "all figures reached" } else { "NOT all figures reached" });
    }
}

/// leasehold itself, by URL.
pub struct Leasehold(pub leasehold::Locks);

struct LeaseholdLock(leasehold::Mutex);
struct LeaseholdHeld(leasehold::Guard);

#[async_trait]
impl Contender for Leasehold {
    async fn lock(&self, name: &str) -> Box<dyn Lock> {
        Box::new(LeaseholdLock(self.0.mutex(name)))
    }
}

#[async_trait]
impl Lock for LeaseholdLock {
    async fn acquire(&self) -> Box<dyn Held> {
        Box::new(LeaseholdHeld(self.0.lock().await.expect("leasehold: lock")))
    }
}

#[async_trait]
impl Held for LeaseholdHeld {
    async fn release(self: Box<Self>) {
        self.0.release().await.expect("leasehold: release");
    }
}
