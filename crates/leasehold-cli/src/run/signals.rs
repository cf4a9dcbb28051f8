//! Signals, read one after the other instead of interrupting: who sent them decides where they go.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::report::Failure;

/// What is read instead of being delivered.
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

/// `si_code` of what the kernel sends, such as the signals of a terminal to its foreground group.
const SI_KERNEL: i32 = 0x80;

/// A signal that has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrived {
    pub(crate) signal: Signal,
    /// From the terminal: then everybody in the foreground group has got it too.
    pub(crate) by_terminal: bool,
}

/// The signals of this process, blocked. Must be made before any other thread is.
#[derive(Debug)]
pub(crate) struct Blocked(SigSet, bool);

/// The signals of this process, to be read.
#[derive(Debug)]
pub(crate) struct Signals(AsyncFd<SignalFd>);

impl Blocked {
    /// Blocks what is handled, but nothing that whoever started us wants to be ignored, as `nohup` does.
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

    /// On a runtime, starts reading.
    pub(crate) fn read(self) -> Result<Signals, Failure> {
        let failed = |error| Failure::system("signals cannot be read", error);
        if self.1 {
            // While it is ignored, the system forgets how children ended. A handler, never run, cures that.
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
                // The runtime ends; so do we.
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

/// What was ignored when this process started, as a set of bits.
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

/// A set of signals in a `/proc/…/status`, as bits.
pub(crate) fn set_in(status: &str, which: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(which));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Lets all signals through again: for a command, which starts as if it had been started directly.
pub(crate) fn unblock() {
    let mut set = SigSet::empty();
    HANDLED.into_iter().for_each(|signal| set.add(signal));
    let _ = set.thread_unblock();
}

/// Does to this process what the signal does by default, and comes back if that was to stop and to go
/// on. The system itself then sees to it that nobody is stopped whom nobody could let go on.
pub(crate) fn take(signal: Signal) {
    let mut set = SigSet::empty();
    set.add(signal);
    // Sent while it is blocked, to the process, so that it is one with another that has arrived meanwhile:
    // or we would stop twice, the second time after having been let go on.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), signal);
    // Delivered before this returns, because no other thread takes it.
    let _ = set.thread_unblock();
    let _ = set.thread_block();
}
