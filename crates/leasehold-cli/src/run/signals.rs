//! Reads signals one by one instead of being interrupted: the sender of a signal decides where it goes.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::report::Failure;

/// The signals that are read instead of delivered.
const HANDLED: [Signal; 12] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGCONT,
    Signal::SIGCHLD,
];

/// `si_code` of signals from the kernel, such as those of a terminal to its foreground group.
const SI_KERNEL: i32 = 0x80;

/// A signal that has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrived {
    pub(crate) signal: Signal,
    /// Sent by the terminal: then the whole foreground group has received it too.
    pub(crate) by_terminal: bool,
}

/// The blocked signals of this process. Must be created before any other thread starts.
#[derive(Debug)]
pub(crate) struct Blocked(SigSet, bool);

/// The signals of this process, ready to be read.
#[derive(Debug)]
pub(crate) struct Signals(AsyncFd<SignalFd>);

impl Blocked {
    /// Blocks the handled signals, except those that the parent process set to be ignored, as `nohup` does.
    pub(crate) fn new() -> Result<Self, Failure> {
        let ignored = ignored();
        let mut set = SigSet::empty();
        for signal in HANDLED {
            let is_ignored = ignored & (1 << (signal as u32 - 1)) != 0;
            if signal == Signal::SIGCHLD || !is_ignored {
                set.add(signal);
            }
        }
        set.thread_block().map_err(|error| Failure::system("signals cannot be blocked", error))?;
        Ok(Blocked(set, ignored & (1 << (Signal::SIGCHLD as u32 - 1)) != 0))
    }

    /// Starts reading signals, on a runtime.
    pub(crate) fn read(self) -> Result<Signals, Failure> {
        let failed = |error| Failure::system("signals cannot be read", error);
        if self.1 {
            // While SIGCHLD is ignored, the system forgets how children ended. Installing a handler, which never runs,
            // prevents that.
            let _handler =
                tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()).map_err(failed)?;
        }
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let fd = SignalFd::with_flags(&self.0, flags).map_err(|error| failed(error.into()))?;
        // Deprecated because a type whose descriptor changes under it could misuse it; this one cannot.
        #[allow(deprecated)]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE).map_err(failed)?;
        Ok(Signals(fd))
    }
}

impl Signals {
    /// The next signal. Cancel safe.
    pub(crate) async fn next(&self) -> Arrived {
        loop {
            let Ok(mut ready) = self.0.readable().await else {
                // The runtime is ending, and so are we.
                return std::future::pending().await;
            };
            match self.0.get_ref().read_signal() {
                Ok(Some(info)) => {
                    if let Ok(signal) = Signal::try_from(info.ssi_signo as i32) {
                        return Arrived { signal, by_terminal: info.ssi_code == SI_KERNEL };
                    }
                }
                _ => ready.clear_ready(),
            }
        }
    }
}

/// The signals ignored when this process started, as a bit set.
fn ignored() -> u64 {
    set_in(&status(), "SigIgn:")
}

/// Whether this signal waits to be read.
pub(crate) fn is_pending(signal: Signal) -> bool {
    set_in(&status(), "ShdPnd:") & (1 << (signal as u32 - 1)) != 0
}

fn status() -> String {
    std::fs::read_to_string("/proc/self/status").unwrap_or_default()
}

/// A set of signals from a `/proc/…/status`, as bits.
pub(crate) fn set_in(status: &str, which: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(which));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Unblocks all signals, so that a command starts as if started directly.
pub(crate) fn unblock() {
    let mut set = SigSet::empty();
    HANDLED.into_iter().for_each(|signal| set.add(signal));
    let _ = set.thread_unblock();
}

/// Applies the signal's default action to this process; returns if that was a stop, once the process continues. The
/// system itself refuses to stop a process that nobody could continue.
pub(crate) fn take(signal: Signal) {
    let mut set = SigSet::empty();
    set.add(signal);
    // Send it to the process while blocked, so that it merges with another one that has arrived meanwhile. Otherwise
    // we would stop twice, the second time after being continued.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), signal);
    // Delivered before this returns, because no other thread takes it.
    let _ = set.thread_unblock();
    let _ = set.thread_block();
}
