//! One locked file. Locking never waits, and makes sure that the locked file is the one that has the name.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};

use super::dir::{Dir, Identity, broken};

/// The most bytes read from a file: more than the files of a name ever have.
const READ_LIMIT: u64 = 1 << 20;

/// How often a file may be replaced between opening and locking before that is a fault. Cooperating processes replace
/// a file only under the meta lock, at most once per attempt.
const TRIES: usize = 100;

/// A locked file. Dropping it unlocks it, unless it was handed over.
#[derive(Debug)]
pub(crate) struct Locked {
    file: File,
    name: String,
    identity: Identity,
    /// A child process has the file open too, on purpose, and keeps the lock if we end without releasing it.
    handed_over: bool,
    /// The process that locked it. A fork has the file open too, but must not unlock it.
    process: u32,
}

/// Tries to lock. Returns false if another lock is in the way.
fn try_flock(file: &File, operation: FlockOperation) -> Result<bool> {
    loop {
        return match flock(file, operation) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(Errno::INTR) => continue,
            Err(error) => Err(broken("cannot lock a lock file", error)),
        };
    }
}

impl Locked {
    /// Locks the file with this name, if that is possible now. Without `create`, also `None` if the file does not
    /// exist.
    pub(crate) fn take(dir: &Dir, name: &str, shared: bool, create: bool) -> Result<Option<Self>> {
        let operation = if shared {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        for _ in 0..TRIES {
            let Some(file) = dir.open_file(name, create)? else { return Ok(None) };
            if !try_flock(&file, operation)? {
                return Ok(None);
            }
            let identity = Dir::identify(&file)?;
            let process = std::process::id();
            let locked = Locked { file, name: name.to_owned(), identity, handed_over: false, process };
            // Removed or replaced since it was opened: no other process will find the file that we locked.
            if locked.is_in_place(dir)? {
                return Ok(Some(locked));
            }
        }
        Err(Error::new(ErrorKind::Overloaded, "a lock file keeps being replaced by another process"))
    }

    /// Whether the file is locked. No other process may try to lock it meanwhile.
    pub(crate) fn is_held(dir: &Dir, name: &str) -> Result<bool> {
        Locked::keeps_out(dir, name, false)
    }

    /// Whether a lock on the file blocks a claim that wants it shared, or alone. No other process may try to lock it
    /// meanwhile.
    pub(crate) fn keeps_out(dir: &Dir, name: &str, shared: bool) -> Result<bool> {
        // Open for reading: closing a file that was opened for writing would wake every waiter.
        let Some(file) = dir.open_to_look(name)? else { return Ok(false) };
        let operation = if shared {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        let free = try_flock(&file, operation)?;
        if free {
            let _ = flock(&file, FlockOperation::Unlock);
        }
        Ok(!free)
    }

    /// Whether the name still belongs to this file.
    pub(crate) fn is_in_place(&self, dir: &Dir) -> Result<bool> {
        dir.is_at(&self.name, self.identity)
    }

    /// The data that [`is_in_place`](Locked::is_in_place) compares.
    pub(crate) fn identity(&self) -> (String, Identity) {
        (self.name.clone(), self.identity)
    }

    /// The number of its descriptor, for [`is_locked`].
    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Turns an exclusive lock into a shared one. Returns false if the lock was lost on the way to a program that
    /// ignores the meta lock: changing a lock is not atomic.
    pub(crate) fn share(&self) -> Result<bool> {
        try_flock(&self.file, FlockOperation::NonBlockingLockShared)
    }

    pub(crate) fn read(&self) -> Result<String> {
        read(&self.file)
    }

    pub(crate) fn write(&self, text: &str) -> Result<()> {
        let failed = |error| broken("cannot write a lock file", error);
        self.file.write_all_at(text.as_bytes(), 0).map_err(failed)?;
        self.file.set_len(text.len() as u64).map_err(failed)
    }

    /// Unlocks the file, and removes it if no other process shares it. Call it only under the meta lock: then no
    /// process is between opening and locking the file. `or_write` changes its text for the processes that share it.
    pub(crate) fn remove(mut self, dir: &Dir, or_write: impl FnOnce(String) -> String) -> Result<()> {
        self.handed_over = false;
        if try_flock(&self.file, FlockOperation::NonBlockingLockExclusive)? {
            if self.is_in_place(dir)? {
                dir.remove(&self.name)?;
            }
            return Ok(());
        }
        self.write(&or_write(self.read()?))
    }

    /// Unlocks it and leaves it where it is.
    pub(crate) fn unlock(mut self) {
        self.handed_over = false;
    }

    /// Duplicates the open file for a child to inherit. From now on the lock is free only when it is released, or when
    /// every process that has the file open has ended.
    pub(crate) fn hand_over(&mut self) -> Result<OwnedFd> {
        let handed = rustix::io::dup(&self.file)
            .map_err(|error| broken("cannot pass a lock file to the child process", error))?;
        self.handed_over = true;
        Ok(handed)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.handed_over || self.process != std::process::id() {
            return;
        }
        // Closing is not enough while a child that was just forked still has it open.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Whether an open file of this process has a lock, exclusive or shared, according to the system. If a process that
/// inherited the file unlocks it, it is unlocked for all. `None` where the system does not say.
pub(crate) fn is_locked(descriptor: RawFd, shared: bool) -> Option<bool> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?;
    let kind = if shared { "READ" } else { "WRITE" };
    // `lock: 1: FLOCK  ADVISORY  WRITE 4711 fe:00:10010625 0 EOF`
    let mut locks = text.lines().filter(|line| line.starts_with("lock:"));
    Some(locks.any(|line| line.contains("FLOCK") && line.split_whitespace().any(|word| word == kind)))
}

/// The text of a file; empty if it is not text.
pub(crate) fn read(mut file: &File) -> Result<String> {
    use std::io::Seek as _;
    let mut bytes = Vec::new();
    file.rewind()
        .and_then(|()| file.take(READ_LIMIT).read_to_end(&mut bytes))
        .map_err(|error| broken("cannot read a lock file", error))?;
    Ok(String::from_utf8(bytes).unwrap_or_default())
}
