//! All processes that a command has started: its children and their children, whatever group or session they are in.
//!
//! This process adopts orphans (it is a subreaper), so nothing below it escapes, and when it has no child left
//! everything is gone. Nothing else here relies on `/proc` being complete.

use std::collections::HashMap;

use leasehold::clock::Moment;
use nix::sys::signal::Signal as Named;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process,
    pidfd_open, pidfd_send_signal, waitid,
};

use crate::report::Failure;

use super::signals;

/// From here on, orphans below this process become its children.
pub(crate) fn adopt_orphans() -> Result<(), Failure> {
    rustix::process::set_child_subreaper(Some(getpid()))
        .map_err(|error| Failure::system("the kernel does not hand over orphaned processes", error))
}

/// The result of waiting without blocking.
#[derive(Debug)]
pub(crate) enum Reaped {
    /// A child has ended, stopped or continued.
    Child(Pid, WaitStatus),
    /// No news; there are children.
    Nothing,
    /// No child is left, so nothing is below this process.
    AllGone,
}

/// Reads one change of one child, if there is any.
pub(crate) fn reap() -> Reaped {
    let changes = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
    loop {
        return match rustix::process::wait(changes) {
            Ok(Some((pid, status))) => Reaped::Child(pid, status),
            Ok(None) => Reaped::Nothing,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => Reaped::AllGone,
        };
    }
}

/// A process as `/proc` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    parent: i32,
    pub(crate) group: i32,
    /// When it started, which tells it from a later process with the same number.
    started: u64,
    pub(crate) state: State,
}

/// What a process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// In the kernel and out of reach of signals: waiting for a disk, or for a child that shares its memory.
    Stuck,
    Stopped,
    Ended,
}

impl Process {
    fn look(pid: Pid) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        Process::parse(pid, &stat)
    }

    fn parse(pid: Pid, stat: &str) -> Option<Self> {
        // `pid (name) state parent group …`, where the name may contain anything; field 22 is the start time.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = match fields.next()? {
            "D" => State::Stuck,
            "T" | "t" => State::Stopped,
            "Z" | "X" => State::Ended,
            _ => State::Running,
        };
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let started = fields.nth(16)?.parse().ok()?;
        Some(Process { pid, parent, group, started, state })
    }

    fn send(&self, signal: Signal) -> rustix::io::Result<()> {
        match pidfd_open(self.pid, PidfdFlags::empty()) {
            // Its number may have passed to another process before this check, but not after it.
            Ok(fd) if Process::look(self.pid).is_some_and(|now| now.started == self.started) => {
                pidfd_send_signal(&fd, signal)
            }
            Err(rustix::io::Errno::NOSYS) => kill_process(self.pid, signal),
            // It has ended.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Whether it certainly existed before this moment; the system counts in hundredths of a second.
    pub(crate) fn is_older_than(&self, moment: Moment) -> bool {
        self.started.saturating_add(1) < moment.as_nanos() / 10_000_000
    }

    /// Whether it ignores this signal.
    pub(crate) fn ignores(&self, signal: Named) -> bool {
        self.has_in(&["SigIgn:"], signal)
    }

    /// Whether this signal has its default effect on the process: it neither handles, blocks nor ignores it.
    pub(crate) fn does_as_usual_on(&self, signal: Named) -> bool {
        !self.has_in(&["SigIgn:", "SigCgt:"], signal)
    }

    fn has_in(&self, sets: &[&str], signal: Named) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid.as_raw_nonzero()));
        let status = status.unwrap_or_default();
        sets.iter().any(|set| signals::set_in(&status, set) & (1 << (signal as u32 - 1)) != 0)
    }
}

/// The children of this process. The kernel lists a parent's children even where the rest of `/proc` hides them.
fn own_children() -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let lists =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let numbers = lists.collect::<Vec<_>>().join(" ");
    numbers.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// The children that have not ended and that `/proc` hides (`hidepid`): mostly those of other users. A hidden process
/// further down becomes a child of this process when its parent is killed.
fn hidden(visible: &[Process]) -> Vec<Pid> {
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let lives = |pid: &Pid| matches!(waitid(WaitId::Pid(*pid), ended), Ok(None));
    let is_hidden = |pid: &Pid| !visible.iter().any(|process| process.pid == *pid);
    own_children().into_iter().filter(|pid| is_hidden(pid) && lives(pid)).collect()
}

/// All visible processes below this one that have not ended.
fn below() -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    for entry in entries.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        if let Some(process) = pid.and_then(Process::look) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![getpid().as_raw_nonzero().get()];
    // A hidden child may have visible children.
    parents.extend(own_children().into_iter().map(|pid| pid.as_raw_nonzero().get()));
    while let Some(parent) = parents.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            parents.push(process.pid.as_raw_nonzero().get());
            found.push(process);
        }
    }
    found.retain(|process| process.state != State::Ended);
    found
}

/// How many processes are below this one.
pub(crate) fn count() -> usize {
    let visible = below();
    visible.len() + hidden(&visible).len()
}

/// Sends a signal to all processes below this one. Processes started meanwhile may miss it, so a kill must be repeated
/// until nothing is left. Returns how many could not get it because they belong to another user.
pub(crate) fn signal(signal: Signal) -> usize {
    let visible = below();
    // The number of a child cannot pass to another process before `reap`.
    let refused = |pid: &Pid| kill_process(*pid, signal) == Err(rustix::io::Errno::PERM);
    let hidden = hidden(&visible).iter().filter(|pid| refused(pid)).count();
    hidden + send(&visible, signal)
}

/// All processes below this one that are not stopped.
pub(crate) fn running() -> Vec<Process> {
    below().into_iter().filter(|process| process.state != State::Stopped).collect()
}

/// All processes below this one that are stopped, or will be once they handle a pending signal.
pub(crate) fn stopped() -> Vec<Process> {
    below().into_iter().filter(|process| process.state != State::Running).collect()
}

/// Whether this process can do nothing until a stopped child of it continues.
pub(crate) fn is_stuck(pid: Pid) -> bool {
    let below = below();
    let waits = below.iter().any(|process| process.pid == pid && process.state == State::Stuck);
    let parent = pid.as_raw_nonzero().get();
    waits && below.iter().any(|process| process.parent == parent && process.state == State::Stopped)
}

/// Sends a signal to these. Returns how many could not get it because they belong to another user.
pub(crate) fn send(processes: &[Process], signal: Signal) -> usize {
    let refused = |process: &&Process| process.send(signal) == Err(rustix::io::Errno::PERM);
    processes.iter().filter(refused).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let rest = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 777 0 0";
        let pid = Pid::from_raw(42).unwrap();
        let read = Process::parse(pid, &format!("42 (a) S 9 (x) Z 7 {rest}"));
        assert_eq!(read, Some(Process { pid, parent: 7, group: 1, started: 777, state: State::Ended }));
        assert_eq!(Process::parse(pid, "42 (a"), None);
        assert_eq!(Process::parse(pid, ""), None);
    }

    #[test]
    fn a_child_and_its_child_are_below_this_process() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let own = child.id() as i32;
        let grandchild = below().into_iter().find(|process| process.parent == own);
        child.kill().unwrap();
        child.wait().unwrap();
        // Not `signal`, which would also hit the children of other tests.
        kill_process(grandchild.expect("it is below us").pid, Signal::KILL).unwrap();
    }
}
