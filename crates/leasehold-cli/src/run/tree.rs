//! Everything that a command has started: its children and theirs, whatever group or session they are in.
//!
//! This process adopts what loses its parent (it is a subreaper), so nothing below it gets away, and
//! when it has no child left everything is gone. Nothing else in here relies on `/proc` being complete.

use std::collections::HashMap;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open, pidfd_send_signal,
};

use crate::report::Failure;

/// From here on, what loses its parent below this process becomes its child.
pub(crate) fn adopt_orphans() -> Result<(), Failure> {
    rustix::process::set_child_subreaper(Some(getpid()))
        .map_err(|error| Failure::system("the kernel does not hand over orphaned processes", error))
}

/// What waiting without blocking has found.
#[derive(Debug)]
pub(crate) enum Reaped {
    /// A child has ended or was stopped.
    Child(Pid, WaitStatus),
    /// Nothing new; there are children.
    Nothing,
    /// There is no child left, and so nothing below this process.
    AllGone,
}

/// One change of one child, if there is any.
pub(crate) fn reap() -> Reaped {
    loop {
        return match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) => Reaped::Child(pid, status),
            Ok(None) => Reaped::Nothing,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => Reaped::AllGone,
        };
    }
}

/// A process as `/proc` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: i32,
    /// Tells it from another that got its number later.
    started: u64,
    ended: bool,
}

impl Process {
    fn look(pid: Pid) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        Process::parse(pid, &stat)
    }

    fn parse(pid: Pid, stat: &str) -> Option<Self> {
        // `pid (name) state parent …`, where the name may hold anything; 22 is when it was started.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let ended = matches!(fields.next()?, "Z" | "X");
        let parent = fields.next()?.parse().ok()?;
        let started = fields.nth(17)?.parse().ok()?;
        Some(Process { pid, parent, started, ended })
    }
}

/// Everything below this process that has not ended.
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
    while let Some(parent) = parents.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            parents.push(process.pid.as_raw_nonzero().get());
            found.push(process);
        }
    }
    found.retain(|process| !process.ended);
    found
}

/// How many processes are below this one.
pub(crate) fn count() -> usize {
    below().len()
}

/// Sends a signal to everything below this process. What is started meanwhile may not get it: whoever
/// means to kill does it again until nothing is left.
pub(crate) fn signal(signal: Signal) {
    for process in below() {
        match pidfd_open(process.pid, PidfdFlags::empty()) {
            // Its number may have passed to a stranger since it was looked at; after this it cannot.
            Ok(fd) => {
                if Process::look(process.pid).is_some_and(|now| now.started == process.started) {
                    let _ = pidfd_send_signal(&fd, signal);
                }
            }
            Err(rustix::io::Errno::NOSYS) => {
                let _ = kill_process(process.pid, signal);
            }
            // It has ended.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let rest = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 777 0 0";
        let pid = Pid::from_raw(42).unwrap();
        let read = Process::parse(pid, &format!("42 (a) S 9 (x) Z 7 {rest}"));
        assert_eq!(read, Some(Process { pid, parent: 7, started: 777, ended: true }));
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
        let parents: Vec<i32> = below().iter().map(|process| process.parent).collect();
        assert!(parents.contains(&(child.id() as i32)), "{parents:?}");
        signal(Signal::KILL);
        child.wait().unwrap();
    }
}
