//! Leaves a wait at once when a signal ends it, without leaving a place in the queue.

use std::process::ExitCode;
use std::time::Duration;

use leasehold::Locks;
use nix::sys::signal::Signal;

use crate::run::signals::{self, Arrived, Signals};

/// How long to try to leave a queue, or to give back a lost lease, when the process must end at once.
pub(crate) const PARTING: Duration = Duration::from_secs(1);

/// Whether this signal asks a process to end.
pub(crate) fn asks_to_end(signal: Signal) -> bool {
    matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT)
}

/// Resolves when a signal asks this process to end.
pub(crate) async fn leaving(signals: &Signals) -> Arrived {
    loop {
        let arrived = signals.next().await;
        match arrived.signal {
            signal if asks_to_end(signal) => return arrived,
            Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU => signals::take(arrived.signal),
            _ => {}
        }
    }
}

/// Waits until a dropped attempt has left the queue, but only briefly: the user wants the process to end.
pub(crate) async fn part(locks: &Locks) {
    let _ = tokio::time::timeout(PARTING, locks.close()).await;
}

/// Ends the process as the signal asks.
pub(crate) fn end(arrived: Arrived) -> ExitCode {
    if arrived.by_terminal && arrived.signal == Signal::SIGINT {
        // A shell script ends on Ctrl-C only if the command it runs dies of it.
        signals::take(arrived.signal);
    }
    by_signal(arrived.signal as i32)
}

/// The shell's exit code for a process that a signal ended.
pub(crate) fn by_signal(signal: i32) -> ExitCode {
    // A signal's number is below 65.
    ExitCode::from(128u8.saturating_add(u8::try_from(signal).unwrap_or(127)))
}
