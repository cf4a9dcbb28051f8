//! A timer that also counts suspended time, as the deadline of a lease does.

use std::time::Duration;

use leasehold::clock::{Clock as _, Moment, SystemClock};
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::report::Failure;

/// The current moment, on the clock used throughout this module.
pub(crate) fn now() -> Moment {
    SystemClock.now()
}

#[derive(Debug)]
pub(crate) struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    pub(crate) fn new() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::system("cannot create a timer", error);
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Boottime, flags).map_err(|error| failed(error.into()))?;
        // Deprecated because a type whose descriptor changes under it could misuse it; this one cannot.
        #[allow(deprecated)]
        AsyncFd::with_interest(fd, Interest::READABLE).map(Alarm).map_err(failed)
    }

    /// Sleeps until then, or slightly less; for ever for `None`. Cancel safe.
    pub(crate) async fn at(&self, when: Option<Moment>) {
        let Some(when) = when else { return std::future::pending().await };
        let nanos = when.as_nanos().max(1);
        let time = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: (nanos / 1_000_000_000) as _,
                tv_nsec: (nanos % 1_000_000_000) as _,
            },
        };
        if timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::ABSTIME, &time).is_err() {
            // Sleep in short steps instead, to wake in time.
            return tokio::time::sleep(when.since(now()).min(Duration::from_millis(20))).await;
        }
        while let Ok(mut ready) = self.0.readable().await {
            match rustix::io::read(self.0.get_ref(), &mut [0; 8]) {
                // Readiness left over from an earlier setting of the timer.
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                _ => return,
            }
        }
    }
}
