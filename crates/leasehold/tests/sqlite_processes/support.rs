//! Child processes, and the log they leave.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// A child that is killed when dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This binary again, as a child with a role, an argument, and a directory to work in.
pub(crate) fn command(role: &str, argument: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("LEASEHOLD_TEST_CHILD", role)
        .env("LEASEHOLD_TEST_ARGUMENT", argument)
        .env("LEASEHOLD_TEST_DIRECTORY", directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// A directory of its own, in memory where possible: what a process wrote survives its death there too, and a busy
/// disk holds up no test.
pub(crate) fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

pub(crate) fn start(role: &str, argument: &str, directory: &Path) -> Process {
    Process(command(role, argument, directory).spawn().unwrap())
}

/// The argument and the directory that a child got.
pub(crate) fn told() -> (String, PathBuf) {
    // Nothing is left running, whatever becomes of the test.
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let var = |name: &str| std::env::var(name).unwrap();
    (var("LEASEHOLD_TEST_ARGUMENT"), var("LEASEHOLD_TEST_DIRECTORY").into())
}

/// A log of lines, each appended by one write: a written line survives a kill.
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn append(path: &Path) -> Self {
        Log(File::options().append(true).create(true).open(path).unwrap())
    }

    pub(crate) fn line(&self, line: &str) {
        let line = format!("{line}\n");
        assert_eq!((&self.0).write(line.as_bytes()).unwrap(), line.len());
    }
}

/// The complete lines of a log; empty if there is no file yet.
pub(crate) fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(str::to_owned).collect()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Between 0 and `below`.
pub(crate) fn random(below: u64) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) % below
}
