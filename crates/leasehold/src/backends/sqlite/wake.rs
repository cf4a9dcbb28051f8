//! The wake file: it lets waiters in one process notice a commit in another.
//!
//! A process writes it after a commit, and only if it woke a waiter of another process; every process watches it. A
//! lost touch (a crash in between, a deleted file) costs a waiter half a second, because while a claim waits here, the
//! process looks at the table that often anyway.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// The wake file of one database, with a watch on it.
pub(super) struct WakeFile {
    file: File,
    /// Readable after a touch.
    pub(super) watch: OwnedFd,
}

impl WakeFile {
    /// Opens the file, and creates it if needed.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32)
            .open(path)?;
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        inotify::add_watch(&watch, path, WatchFlags::MODIFY)?;
        Ok(WakeFile { file, watch })
    }

    /// Notifies the other processes, and this one. The content of the file means nothing.
    pub(super) fn touch(&self) {
        if let Err(error) = self.file.write_at(b"!", 0) {
            crate::engine::reporter::log(
                move || tracing::debug!(%error, "the wake file cannot be written; waiters elsewhere look by themselves"),
            );
        }
    }

    /// Whether the file was touched since the last call.
    pub(super) fn was_touched(&self) -> bool {
        drain(&self.watch)
    }
}

/// Clears the readiness of a descriptor. Returns whether there was any.
pub(super) fn drain(fd: &OwnedFd) -> bool {
    let mut buffer = [0u8; 4096];
    let mut any = false;
    while let Ok(read) = rustix::io::read(fd, &mut buffer) {
        any = true;
        if read < buffer.len() {
            break;
        }
    }
    any
}
