//! The terminal's foreground, which a command may take for itself, as shells do, and leave to nobody when it is killed.

use std::fs::File;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpgrp, test_kill_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// A terminal in whose foreground we are, if there is one.
#[derive(Debug)]
pub(crate) struct Foreground(Option<(File, Pid)>);

impl Foreground {
    /// Notes whether we are in the foreground of a terminal.
    pub(crate) fn note() -> Self {
        let terminal = File::options().read(true).write(true).open("/dev/tty").ok();
        let ours = getpgrp();
        Foreground(terminal.filter(|it| tcgetpgrp(it).is_ok_and(|group| group == ours)).map(|it| (it, ours)))
    }

    /// Gives it back to our group, for whoever started us, if those who had it last are all gone. While there is
    /// somebody, it is a shell that has put us into the background.
    pub(crate) fn give_back(self) {
        let Some((terminal, ours)) = self.0 else { return };
        let left_to_nobody =
            tcgetpgrp(&terminal).is_ok_and(|group| group != ours && test_kill_process_group(group).is_err());
        if left_to_nobody {
            // Who asks for it from the background is stopped unless this is blocked.
            let mut set = SigSet::empty();
            set.add(Signal::SIGTTOU);
            let _ = set.thread_block();
            let _ = tcsetpgrp(&terminal, ours);
            let _ = set.thread_unblock();
        }
    }
}
