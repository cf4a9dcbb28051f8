//! Child processes: the running test binary again, in another role, to be stopped and killed.
//!
//! A test with roles begins with `if let Some(role) = process::role() { … }`. The parent starts it by the test's own
//! name with [`Child::spawn`], reads what it [`say`]s, and sends it lines to [`hear`].

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use rustix::process::{Pid, Signal, kill_process};

use crate::until::{PATIENCE, until};

/// Selects the role of a child.
const ROLE: &str = "LEASEHOLD_TEST_ROLE";

/// Marks what a child says, among what its test harness prints.
const MARK: &str = "child says: ";

/// The role this process was started in, if it is a child.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// In a child: sends a line to the parent.
///
/// # Panics
/// If the parent is gone.
pub fn say(line: &str) {
    // The harness may have begun a line of its own.
    let mut out = std::io::stdout().lock();
    write!(out, "\n{MARK}{line}\n").and_then(|()| out.flush()).expect("the parent listens");
}

/// In a child: the next line from the parent. The process ends when the parent is gone.
pub fn hear() -> String {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(read) if read > 0 => line.trim_end().to_owned(),
        _ => std::process::exit(0),
    }
}

/// A child process, killed on drop.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Child {
    /// Starts this test binary with only the test of that name, in that role.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn(test: &str, role: &str) -> Self {
        Child::spawn_with(test, role, |_| {})
    }

    /// As [`spawn`](Child::spawn), with further changes to the command.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn_with(test: &str, role: &str, set_up: impl FnOnce(&mut Command)) -> Self {
        let binary = std::env::current_exe().expect("a test binary has a path");
        let mut command = Command::new(binary);
        command
            .args([test, "--exact", "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        set_up(&mut command);
        let mut process = command.spawn().expect("the test binary can be started");
        let stdin = process.stdin.take().expect("stdin is a pipe");
        let stdout = process.stdout.take().expect("stdout is a pipe");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let said = line.strip_prefix(MARK).map(str::to_owned);
                if said.is_some_and(|said| send.send(said).is_err()) {
                    return;
                }
            }
        });
        Child { process, stdin, lines }
    }

    /// The next line it says.
    ///
    /// # Panics
    /// If it ended, or says nothing for two minutes.
    pub fn line(&self) -> String {
        // Between two lines it may do the work of a whole test.
        match self.lines.recv_timeout(2 * PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => panic!("the child has ended"),
            Err(RecvTimeoutError::Timeout) => panic!("the child says nothing"),
        }
    }

    /// Sends it a line.
    ///
    /// # Panics
    /// If it ended.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").and_then(|()| self.stdin.flush()).expect("the child listens");
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it ended.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("the child is there");
    }

    /// Stops it with SIGSTOP, and returns when all its threads are stopped.
    ///
    /// # Panics
    /// If it ended, or does not stop within a minute.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        until("the child has stopped", || self.is_stopped());
    }

    /// Continues it with SIGCONT.
    ///
    /// # Panics
    /// If it ended.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn is_stopped(&self) -> bool {
        let tasks =
            std::fs::read_dir(format!("/proc/{}/task", self.process.id())).expect("the child is there");
        tasks.flatten().all(|task| {
            // `pid (name) state …`; a thread that has just ended does not run either.
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
        })
    }

    /// Waits until it ends by itself; returns whether its test passed.
    ///
    /// # Panics
    /// If it does not end within a minute.
    pub fn ended_well(mut self) -> bool {
        let mut status = None;
        until("the child has ended", || {
            status = self.process.try_wait().expect("the child can be waited for");
            status.is_some()
        });
        status.is_some_and(|status| status.success())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
