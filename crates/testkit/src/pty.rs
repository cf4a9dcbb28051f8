//! A pseudo-terminal with a program on it, for tests that type.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::until::PATIENCE;

/// A terminal with a program on it, which is killed on drop, and with the test.
#[derive(Debug)]
pub struct Terminal {
    master: File,
    process: Child,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    /// Starts a program as the leader of a new session, on a new terminal.
    ///
    /// # Panics
    /// If no terminal is available, or the program cannot be started.
    pub fn start(program: &Command, columns: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a pseudo-terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a pseudo-terminal of our own");
        tcsetwinsize(&master, Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
            .expect("a size");
        let slave = ioctl_tiocgptpeer(&master, flags).expect("the other end");
        let other = || File::from(slave.try_clone().expect("a descriptor"));
        // Only the new process itself can make it the controlling terminal.
        let mut command = Command::new("setpriv");
        // Signals that the test ignores must not be ignored by a program at a terminal.
        command.args(["--pdeathsig", "KILL", "--", "setsid", "--ctty", "--wait", "env", "--default-signal"]);
        command.arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(dir) = program.get_current_dir() {
            command.current_dir(dir);
        }
        let process =
            command.stdin(other()).stdout(other()).stderr(other()).spawn().expect("setpriv and setsid");
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut from, to) = (File::from(master.try_clone().expect("a descriptor")), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // It fails when nobody has the other end open any more.
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                to.lock().push_str(&text);
            }
        });
        Terminal { master: master.into(), process, shown }
    }

    /// Types text; `\x03` is Ctrl-C, `\x1a` is Ctrl-Z.
    ///
    /// # Panics
    /// If the terminal is closed.
    pub fn type_in(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).expect("the terminal is open");
    }

    /// Whether the program has ended.
    ///
    /// # Panics
    /// If the system does not know.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("it is our child").is_some()
    }

    /// Everything it has shown since `sees` last returned.
    pub fn shown(&self) -> String {
        self.shown.lock().clone()
    }

    /// Waits until it shows this; returns everything up to there, and forgets it.
    ///
    /// # Panics
    /// If it does not within a minute.
    pub fn sees(&self, what: &str) -> String {
        let start = Instant::now();
        loop {
            {
                let mut shown = self.shown.lock();
                if let Some(at) = shown.find(what) {
                    let rest = shown.split_off(at + what.len());
                    return std::mem::replace(&mut *shown, rest);
                }
            }
            assert!(start.elapsed() < PATIENCE, "never saw {what:?} in {:?}", self.shown());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Processes on the terminal get a hang-up when the other end is closed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
