//! The library's time: a clock that keeps counting while the machine is suspended, and a timer for it.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(target_os = "linux")]
use crate::engine::reporter;

/// A moment on a [`Clock`], in nanoseconds from that clock's start. All arithmetic saturates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Later than every real moment.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// A moment from nanoseconds since the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Moment(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Microseconds since the clock's start, rounded down.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1000
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    fn sub(self, by: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The source of time. [`SystemClock`] unless a test sets another.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time now, on a clock that never goes back and counts the time a machine was suspended.
    fn now(&self) -> Moment;

    /// Microseconds since 1970 by the wall clock, which may jump: for fences and display only.
    fn wall_micros(&self) -> u64;
}

/// The system's clock. On Linux it is `CLOCK_BOOTTIME`, which goes on while the machine is suspended; elsewhere the
/// monotonic clock, which may not.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[cfg(target_os = "linux")]
    fn now(&self) -> Moment {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Moment((time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64)
    }

    #[cfg(not(target_os = "linux"))]
    fn now(&self) -> Moment {
        use std::sync::LazyLock;
        use std::time::Instant;
        // The start only has to be the same for the whole process.
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        Moment::from_nanos(0) + START.elapsed()
    }

    fn wall_micros(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// Tokio's clock, for tests in paused time. Give the same clock to the store and to the client.
#[cfg(feature = "test-util")]
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    start: tokio::time::Instant,
    wall_start: u64,
}

#[cfg(feature = "test-util")]
impl TokioClock {
    /// A clock that starts now.
    pub fn new() -> Self {
        TokioClock { start: tokio::time::Instant::now(), wall_start: SystemClock.wall_micros() }
    }
}

#[cfg(feature = "test-util")]
impl Default for TokioClock {
    fn default() -> Self {
        TokioClock::new()
    }
}

#[cfg(feature = "test-util")]
impl Clock for TokioClock {
    fn now(&self) -> Moment {
        // Start at one hour, so that tests can subtract.
        Moment::from_nanos(3_600_000_000_000) + self.start.elapsed()
    }

    fn wall_micros(&self) -> u64 {
        self.wall_start + self.start.elapsed().as_micros() as u64
    }
}

/// Sleeps until a moment of a clock. Tokio's own timers stand still while the machine is suspended. So on Linux, on
/// the library's own runtime, this is a [`BootTimer`]. Elsewhere, and for a clock the system does not know, it sleeps
/// for at most a second at a time, so that after a resume a deadline is late by no more than that.
#[derive(Debug)]
pub(crate) enum Timer {
    #[cfg(target_os = "linux")]
    Boot(BootTimer),
    Naps,
}

const NAP: Duration = Duration::from_secs(1);

impl Timer {
    /// A timer for [`SystemClock`], on a runtime with I/O enabled.
    #[cfg(target_os = "linux")]
    pub(crate) fn system() -> Self {
        BootTimer::new().map_or_else(
            |error| {
                reporter::log(move || {
                    tracing::warn!(%error, "no boot-time timer: after a suspend, loss is noticed up to 1 s late");
                });
                Timer::Naps
            },
            Timer::Boot,
        )
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn system() -> Self {
        Timer::Naps
    }

    /// Sleeps until `at`, or a little less: the caller reads the clock again in any case. Cancel safe.
    pub(crate) async fn sleep_until(&self, at: Moment, clock: &dyn Clock) {
        match self {
            #[cfg(target_os = "linux")]
            Timer::Boot(timer) => timer.sleep_until(at).await,
            Timer::Naps if at == Moment::NEVER => std::future::pending().await,
            Timer::Naps => tokio::time::sleep(at.since(clock.now()).min(NAP)).await,
        }
    }
}

/// A timer on the clock of [`SystemClock`] that goes off in time after the machine was suspended: a timerfd. For the
/// library's own runtime and for `leasehold run`; the runtime needs I/O enabled.
#[cfg(target_os = "linux")]
#[doc(hidden)]
#[derive(Debug)]
pub struct BootTimer(tokio::io::unix::AsyncFd<rustix::fd::OwnedFd>);

#[cfg(target_os = "linux")]
impl BootTimer {
    /// A timer on the runtime of the caller.
    pub fn new() -> std::io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let fd = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // `with_interest` is deprecated because a type whose descriptor changes could misuse it. An `OwnedFd` cannot, and
        // the successor needs `unsafe`.
        #[allow(deprecated)]
        tokio::io::unix::AsyncFd::with_interest(fd, tokio::io::Interest::READABLE).map(BootTimer)
    }

    /// Sleeps until `at`, or a little less: the caller reads the clock again in any case. Cancel safe.
    pub async fn sleep_until(&self, at: Moment) {
        if at == Moment::NEVER {
            return std::future::pending().await;
        }
        if !self.fired(at).await {
            tokio::time::sleep(at.since(SystemClock.now()).min(NAP)).await;
        }
    }

    /// Arms the timer and waits for it. Returns false if it cannot be used.
    async fn fired(&self, at: Moment) -> bool {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        // An all-zero value would disarm it.
        let nanos = at.as_nanos().max(1);
        let spec = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: (nanos / 1_000_000_000) as _,
                tv_nsec: (nanos % 1_000_000_000) as _,
            },
        };
        if timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::ABSTIME, &spec).is_err() {
            return false;
        }
        loop {
            let Ok(mut ready) = self.0.readable().await else { return false };
            let mut count = [0u8; 8];
            match rustix::io::read(self.0.get_ref(), &mut count) {
                Ok(_) => return true,
                // This readiness was left over from an earlier arming.
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(_) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Moment::from_nanos(5) + Duration::MAX, Moment::NEVER);
        assert_eq!(Moment::from_nanos(5) - Duration::MAX, Moment::from_nanos(0));
        assert_eq!(Moment::from_nanos(5).since(Moment::NEVER), Duration::ZERO);
    }

    #[tokio::test]
    async fn the_timer_sleeps_and_can_be_armed_again() {
        let timer = Timer::system();
        for millis in [20, 1, 5] {
            let at = SystemClock.now() + Duration::from_millis(millis);
            // The second sleep replaces the first, which was cancelled.
            let far = SystemClock.now() + Duration::from_secs(3600);
            let cancelled =
                tokio::time::timeout(Duration::from_millis(1), timer.sleep_until(far, &SystemClock));
            assert!(cancelled.await.is_err());
            testkit::until::in_time("the end of the sleep", timer.sleep_until(at, &SystemClock)).await;
            assert!(SystemClock.now() >= at);
        }
        // A moment in the past is over at once.
        timer.sleep_until(Moment::from_nanos(0), &SystemClock).await;
    }
}
