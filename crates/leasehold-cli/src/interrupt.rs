//! Leaving at once when a signal says that nobody wants us to wait any more, with nothing left in the queue.

use std::process::ExitCode;
use std::time::Duration;

use leasehold::Locks;
use nix::sys::signal::Signal;

use crate::run::signals::{self, Arrived, Signals};

/// How long leaving a queue, or giving back a lease that is lost, is tried when we are to go at once.
pub(crate) const PARTING: Duration = Duration::from_secs(1);

/// Resolves when a signal says that nobody wants us to wait any more.
pub(crate) async fn leaving(signals: &Signals) -> Arrived {
    loop {
        let arrived = signals.next().await;
        match arrived.signal {
            Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT => return arrived,
            Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU => signals::take(arrived.signal),
            _ => {}
        }
    }
}

/// Waits until an attempt that was dropped has left the queue, but no longer than somebody who wants us to
/// go would.
pub(crate) async fn part(locks: &Locks) {
    let _ = tokio::time::timeout(PARTING, locks.close()).await;
}

/// Ends as what has arrived wants it.
pub(crate) fn end(arrived: Arrived) -> ExitCode {
    if arrived.by_terminal && arrived.signal == Signal::SIGINT {
        // A shell script ends on Ctrl-C only if what it runs dies of it.
        signals::take(arrived.signal);
    }
    by_signal(arrived.signal as i32)
}

/// The code of a shell for what ended by a signal.
pub(crate) fn by_signal(signal: i32) -> ExitCode {
    // A signal's number is below 65.
    ExitCode::from(128u8.saturating_add(u8::try_from(signal).unwrap_or(127)))
}
