//! A client of a faulty memory store in paused time, and futures that are dropped in the middle.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use leasehold::backend::{Attempt, Backend as _, Claim, Info, Mode, NameInfo, Query, Release, Released};
use leasehold::backends::memory::Memory;
use leasehold::clock::{Clock, TokioClock};
use leasehold::{Guard, Locks, LocksBuilder};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::faulty::{Faulty, Verb};

/// A memory store, a [`Faulty`] around it and a client of that, all on tokio's paused clock.
#[derive(Debug, Clone)]
pub struct Paused {
    /// When it was made.
    pub start: Instant,
    /// The clock of all three.
    pub clock: Arc<dyn Clock>,
    /// The store behind the faults.
    pub memory: Memory,
    /// The store that plays the script.
    pub store: Faulty,
    /// The client.
    pub locks: Locks,
}

impl Paused {
    /// With the abilities of the memory store and the default options.
    pub fn new() -> Self {
        Paused::with(|_| {}, |builder| builder)
    }

    /// With other abilities.
    pub fn with_info(change: impl FnOnce(&mut Info)) -> Self {
        Paused::with(change, |builder| builder)
    }

    /// With other abilities and options.
    pub fn with(info: impl FnOnce(&mut Info), options: impl FnOnce(LocksBuilder) -> LocksBuilder) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let memory = Memory::with_clock(Arc::clone(&clock));
        let store = Faulty::new(memory.clone(), Arc::clone(&clock)).with_info(info);
        let builder =
            Locks::builder(Arc::new(store.clone())).clock(Arc::clone(&clock)).runtime(Handle::current());
        Paused { start: Instant::now(), clock, memory, store, locks: options(builder).build() }
    }

    /// A second client, directly on the memory store: its calls neither fail nor appear in the log.
    pub fn other(&self) -> Locks {
        Locks::builder(Arc::new(self.memory.clone()))
            .clock(Arc::clone(&self.clock))
            .runtime(Handle::current())
            .build()
    }

    /// The time since it was made.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Takes a lease of a name directly on the store, which nothing renews; returns the release that ends it.
    ///
    /// # Panics
    /// If the name is invalid, or the lock is not free.
    pub async fn hold(&self, name: &str, mode: Mode, ttl: Duration) -> Release {
        let name = self.locks.name(name).expect("a good name");
        let claim = Claim::new(name.clone(), mode, ttl, "holder");
        let attempt = self.memory.try_acquire(&claim).await.expect("memory does not fail");
        assert!(matches!(attempt, Attempt::Granted(_)), "the lock is free");
        Release::new(name, claim.id)
    }

    /// Ends what [`hold`](Paused::hold) took.
    ///
    /// # Panics
    /// If it was gone.
    pub async fn end(&self, held: &Release) {
        let released = self.memory.release(held).await.expect("memory does not fail");
        assert_eq!(released, Released::Done);
    }

    /// Ends it after this long.
    pub fn end_after(&self, time: Duration, held: Release) {
        let this = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            this.end(&held).await;
        });
    }

    /// Sleeps until this many milliseconds after the start, and lets everything run that is due then.
    pub async fn until(&self, millis: u64) {
        tokio::time::sleep_until(self.start + Duration::from_millis(millis)).await;
        settle().await;
    }

    /// When the calls of a verb were made, in milliseconds since the start.
    pub fn times(&self, verb: Verb) -> Vec<u128> {
        let start = self.clock.now() - self.elapsed();
        self.store.calls(verb).iter().map(|call| call.at.since(start).as_millis()).collect()
    }

    /// The local deadline of a guard, as time since the start.
    ///
    /// # Panics
    /// If it has none.
    pub fn deadline(&self, guard: &Guard) -> Duration {
        self.elapsed() + guard.valid_for().expect("a lease with a ttl")
    }

    /// What the store knows about a name.
    ///
    /// # Panics
    /// If the name is invalid.
    pub async fn look(&self, name: &str) -> NameInfo {
        let name = self.locks.name(name).expect("a good name");
        let page = self.memory.inspect(&Query::Name(name)).await.expect("memory does not fail");
        page.items.into_iter().next().expect("a name is always one item")
    }

    /// Whether the store has neither a lease nor a place of that name.
    pub async fn is_free(&self, name: &str) -> bool {
        let info = self.look(name).await;
        info.holders.is_empty() && info.waiters.is_empty()
    }
}

impl Default for Paused {
    fn default() -> Self {
        Paused::new()
    }
}

/// How long a client relies on a lease of this many milliseconds, counted from its request: 1 % and 2 ms less.
pub fn believed(ttl: u64) -> Duration {
    let ttl = Duration::from_millis(ttl);
    ttl - ttl / 100 - Duration::from_millis(2)
}

/// Lets everything run that can run now. No time passes.
pub async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// How many tasks the runtime has.
pub fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// Polls a future at most this many times, each time it was woken, and drops it. Returns its output, if it was done by
/// then. Time passes as for a caller that awaits it.
///
/// # Panics
/// If it is not woken within a year.
pub async fn poll_at_most<F: Future>(most: usize, future: F) -> Option<F::Output> {
    struct Bell(Notify);
    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.notify_one();
        }
    }
    let bell = Arc::new(Bell(Notify::new()));
    let waker = Waker::from(Arc::clone(&bell));
    let mut future = pin!(future);
    for polls in 1..=most {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        if polls < most {
            let woken = tokio::time::timeout(Duration::from_secs(365 * 24 * 3600), bell.0.notified()).await;
            assert!(woken.is_ok(), "it was not woken");
        }
    }
    None
}
