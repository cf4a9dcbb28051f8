//! The wake file: how a commit in one process is noticed by waiters in another.
//!
//! It is written after the commit, and only if somebody was woken who waits elsewhere; every process
//! watches it. A touch that is lost (a crash in between, a deleted file) costs a waiter
//! half a second, because while somebody waits here, the table is looked at that often anyway.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// The wake file of one database, watched.
pub(super) struct WakeFile {
    file: File,
    /// Readable when it was touched.
    pub(super) watch: OwnedFd,
}

impl WakeFile {
    /// Opens it, and creates it if need be.
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

    /// Tells the other processes, and this one. Its content means nothing.
    pub(super) fn touch(&self) {
        if let Err(error) = self.file.write_at(b"!", 0) {
            crate::engine::reporter::log(
                move || tracing::debug!(%error, "the wake file cannot be written; waiters elsewhere look by themselves"),
            );
        }
    }

    /// Whether it was touched since this was last asked.
    pub(super) fn was_touched(&self) -> bool {
        drain(&self.watch)
    }
}

/// Reads away what says "ready"; whether there was anything.
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
