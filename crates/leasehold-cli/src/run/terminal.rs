//! The terminal's foreground. A command may take it, as shells do, and leave it to nobody when it is killed.
//!
//! A background process that hands the foreground over is stopped by SIGTTOU, unless that is blocked, as it is here,
//! or ignored.

use std::fs::File;

use rustix::process::{Pid, getpgrp, test_kill_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// Our controlling terminal, if there is one.
#[derive(Debug)]
pub(crate) struct Terminal {
    file: Option<File>,
    /// Whether we were in its foreground at the start.
    ours: bool,
}

impl Terminal {
    /// Notes whether there is a terminal, and whether we are in its foreground.
    pub(crate) fn note() -> Self {
        let mut terminal =
            Terminal { file: File::options().read(true).write(true).open("/dev/tty").ok(), ours: false };
        terminal.ours = terminal.foreground() == Some(getpgrp());
        terminal
    }

    pub(crate) fn is_there(&self) -> bool {
        self.file.is_some()
    }

    /// The group in its foreground.
    pub(crate) fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(self.file.as_ref()?).ok()
    }

    /// Gives this group the foreground in our place, if we have it.
    pub(crate) fn hand_over(&self, group: Pid) {
        if let Some(terminal) = self.file.as_ref().filter(|_| self.foreground() == Some(getpgrp())) {
            let _ = tcsetpgrp(terminal, group);
        }
    }

    /// Gives the foreground back to our group, for the process that started us, if the group that had it is gone. If
    /// it still exists, it is a shell that has put us into the background.
    pub(crate) fn give_back(self) {
        let left_to_nobody = self
            .foreground()
            .is_some_and(|group| group != getpgrp() && test_kill_process_group(group).is_err());
        if let Some(terminal) = self.file.filter(|_| self.ours && left_to_nobody) {
            let _ = tcsetpgrp(terminal, getpgrp());
        }
    }
}
