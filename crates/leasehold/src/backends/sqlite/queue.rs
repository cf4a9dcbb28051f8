//! The writer's queue of requests, and the descriptor that wakes it.

use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;

use super::wake::{WakeFile, drain};

/// The queue of a writer.
pub(super) struct Queue<T> {
    inner: Mutex<Inner<T>>,
    bell: OwnedFd,
}

struct Inner<T> {
    arrived: Vec<T>,
    open: bool,
}

impl<T> Queue<T> {
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Queue { inner: Mutex::new(Inner { arrived: Vec::new(), open: true }), bell })
    }

    /// Adds an item. Returns false if the writer will not take it.
    pub(super) fn push(&self, item: T) -> bool {
        let mut inner = self.inner.lock();
        if !inner.open {
            return false;
        }
        let first = inner.arrived.is_empty();
        inner.arrived.push(item);
        drop(inner);
        if first {
            self.ring();
        }
        true
    }

    /// Closes the queue; the writer still takes what has arrived.
    pub(super) fn close(&self) {
        self.inner.lock().open = false;
        self.ring();
    }

    /// Closes the queue and drops what has arrived, because the writer has ended.
    pub(super) fn abandon(&self) {
        let mut inner = self.inner.lock();
        inner.open = false;
        let abandoned = std::mem::take(&mut inner.arrived);
        drop(inner);
        drop(abandoned);
    }

    /// Takes what has arrived, at most `most`; `None` when the queue is empty and closed.
    pub(super) fn take(&self, most: usize) -> Option<Vec<T>> {
        let mut inner = self.inner.lock();
        if inner.arrived.is_empty() && !inner.open {
            return None;
        }
        if inner.arrived.len() > most {
            let rest = inner.arrived.split_off(most);
            return Some(std::mem::replace(&mut inner.arrived, rest));
        }
        Some(std::mem::take(&mut inner.arrived))
    }

    /// Blocks until something arrives, the wake file is touched, or this much time has passed.
    pub(super) fn wait(&self, wake: &WakeFile, most: Option<Duration>) {
        let most = most.and_then(|most| Timespec::try_from(most).ok());
        let mut fds = [PollFd::new(&self.bell, PollFlags::IN), PollFd::new(&wake.watch, PollFlags::IN)];
        // Ignore the result: the caller looks at everything.
        let _ = poll(&mut fds, most.as_ref());
        drain(&self.bell);
    }

    fn ring(&self) {
        // It can only fail when a wake-up is already pending.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}
