//! Time in a simulation: one true time, in which no two things happen at the same moment, and the clocks of the
//! simulated machines, which run a little fast or slow and whose wall clocks step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use tokio::time::Instant;

/// When it begins, in nanoseconds: an hour in, so that there is a time before.
pub(crate) const BEGIN: u64 = 3_600_000_000_000;

/// The wall clock at the start: microseconds since 1970, on no special day.
const WALL_BEGIN: i64 = 1_793_000_000_000_000;

/// More readings than this in one moment mean that a task loops without waiting.
const MOST_IN_A_MOMENT: u64 = 4_000_000;

/// The true time, which no simulated machine knows.
#[derive(Debug)]
pub(crate) struct Time {
    start: Instant,
    last: AtomicU64,
    stood_still: AtomicBool,
}

impl Time {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Time {
            start: Instant::now(),
            last: AtomicU64::new(BEGIN),
            stood_still: AtomicBool::new(false),
        })
    }

    /// The current time in nanoseconds, later than every earlier reading. So events in one moment of tokio's paused
    /// time, which advances in milliseconds, still have an order.
    pub(crate) fn now(&self) -> u64 {
        let timer = BEGIN + self.start.elapsed().as_nanos() as u64;
        let now = timer.max(self.last.load(Ordering::Relaxed) + 1);
        self.last.store(now, Ordering::Relaxed);
        // Once: the panic ends the looping task, and the rest continues.
        let still = now >= timer + MOST_IN_A_MOMENT && !self.stood_still.swap(true, Ordering::Relaxed);
        assert!(!still, "time stands still: a task loops without waiting");
        now
    }

    /// Whether a task looped without waiting.
    pub(crate) fn stood_still(&self) -> bool {
        self.stood_still.load(Ordering::Relaxed)
    }
}

/// The clocks of one machine.
#[derive(Debug)]
pub(crate) struct MachineClock {
    time: Arc<Time>,
    /// How much faster than true time it runs, in millionths.
    fast: i64,
    /// By how much its wall clock was stepped, in microseconds.
    stepped: AtomicI64,
}

impl MachineClock {
    pub(crate) fn new(time: &Arc<Time>, fast: i64) -> Arc<Self> {
        Arc::new(MachineClock { time: Arc::clone(time), fast, stepped: AtomicI64::new(0) })
    }

    /// Steps the wall clock.
    pub(crate) fn step(&self, micros: i64) {
        self.stepped.fetch_add(micros, Ordering::Relaxed);
    }

    /// The true length of a time measured by this clock.
    pub(crate) fn truly(&self, time: Duration) -> Duration {
        let nanos = i128::try_from(time.as_nanos()).unwrap_or(i128::MAX / 1_000_000);
        let truly = nanos * 1_000_000 / (1_000_000 + i128::from(self.fast));
        Duration::from_nanos(u64::try_from(truly).unwrap_or(u64::MAX))
    }

    fn nanos(&self) -> u64 {
        let since = i128::from(self.time.now() - BEGIN);
        let shown = since + since * i128::from(self.fast) / 1_000_000;
        BEGIN + u64::try_from(shown).unwrap_or(0)
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.nanos())
    }

    fn wall_micros(&self) -> u64 {
        let since = i64::try_from((self.nanos() - BEGIN) / 1000).unwrap_or(i64::MAX / 2);
        u64::try_from(WALL_BEGIN + since + self.stepped.load(Ordering::Relaxed)).unwrap_or(0)
    }
}
