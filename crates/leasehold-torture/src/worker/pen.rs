//! Writes a task's history: name, mode and lease of one turn, filled in as they become known.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use leasehold::{Error, ErrorKind, LeaseId, LostReason, blocking};

use crate::history::record::{Face, Kind, Log, Loss, Mode, Record, SESSION, hash};

/// The current time on the clock of all histories.
pub(crate) fn now() -> u64 {
    SystemClock.now().as_nanos()
}

/// What both kinds of guards offer.
pub(super) trait AnyGuard {
    fn terms(&self) -> (LeaseId, u64, leasehold::Mode);
    fn lost_by_now(&self) -> Option<LostReason>;
    fn left(&self) -> Option<Duration>;

    /// Until when it may be relied on.
    fn deadline(&self, now: u64) -> u64 {
        self.left().map_or(SESSION, |left| now + left.as_nanos() as u64)
    }
}

macro_rules! tells {
    ($guard:ty) => {
        impl AnyGuard for $guard {
            fn terms(&self) -> (LeaseId, u64, leasehold::Mode) {
                (self.lease_id(), self.fence().get(), self.mode())
            }

            fn lost_by_now(&self) -> Option<LostReason> {
                self.lost().now()
            }

            fn left(&self) -> Option<Duration> {
                self.valid_for()
            }
        }
    };
}

tells!(leasehold::Guard);
tells!(blocking::Guard);

/// As recorded in a history.
pub(super) fn recorded(mode: leasehold::Mode) -> Mode {
    match mode {
        leasehold::Mode::Shared => Mode::Shared,
        leasehold::Mode::Permit { .. } => Mode::Permit,
        _ => Mode::Exclusive,
    }
}

/// A task's history writer.
#[derive(Debug, Clone)]
pub(super) struct Pen {
    log: Arc<Log>,
    pub(super) worker: u32,
    pub(super) task: u16,
    pub(super) name: u16,
    pub(super) mode: Mode,
    pub(super) claim: u64,
    pub(super) lease: u64,
    pub(super) fence: u64,
    writes: u64,
}

impl Pen {
    pub(super) fn new(log: Arc<Log>, worker: u32, task: u16) -> Self {
        Pen { log, worker, task, name: 0, mode: Mode::Exclusive, claim: 0, lease: 0, fence: 0, writes: 0 }
    }

    /// Begins another turn's lease, of which only this is known.
    pub(super) fn know(&mut self, id: Option<LeaseId>, fence: u64) {
        self.lease = id.map_or(0, |id| hash(id.expose().as_bytes()));
        self.fence = fence;
    }

    /// The number of the next write, unique in this process.
    pub(super) fn next_write(&mut self) -> u64 {
        self.writes += 1;
        u64::from(self.task) << 48 | self.writes
    }

    /// Records that an acquire is about to be called, and how long it may wait.
    pub(super) fn call(&self, at: u64, ttl: u64, wait: u64, face: Face) {
        let call = Pen { fence: face as u64, ..self.clone() };
        call.note(Kind::AcquireCall, at, ttl, wait);
    }

    /// Records a grant.
    pub(super) fn granted(&mut self, guard: &impl AnyGuard) {
        let at = now();
        let (id, fence, mode) = guard.terms();
        self.know(Some(id), fence);
        self.mode = recorded(mode);
        self.note(Kind::Granted, at, guard.deadline(at), 0);
    }

    /// Records that an acquire was not granted. Returns whether its store failed.
    pub(super) fn refused(&self, error: Option<&Error>) -> bool {
        let busy = error.is_none_or(|error| error.kind() == ErrorKind::Timeout);
        self.note(if busy { Kind::Busy } else { Kind::AcquireFailed }, now(), 0, 0);
        !busy
    }

    /// Looks, and records what is seen; returns whether the holder may still rely on its lease.
    pub(super) fn look(&self, guard: &impl AnyGuard) -> bool {
        // Read before looking: what is seen is true at this moment and a little later.
        let at = now();
        let deadline = guard.deadline(at);
        let lost = guard.lost_by_now();
        match lost {
            // Also if the deadline, which was read first, has passed: a guard that is not lost then is relied on for
            // too long.
            None => self.note(Kind::Held, at, deadline, 0),
            Some(reason) => self.lost(reason),
        }
        lost.is_none()
    }

    /// Records that the lost signal was set by now.
    pub(super) fn lost(&self, reason: LostReason) {
        let loss = match reason {
            LostReason::DeadlinePassed => Loss::Deadline,
            LostReason::Refused(_) => Loss::Refused,
            _ => Loss::Other,
        };
        self.note(Kind::Lost, now(), 0, loss as u64);
    }

    /// Records one thing. A history with a hole proves nothing, so a process that cannot write ends.
    pub(super) fn note(&self, kind: Kind, at: u64, deadline: u64, value: u64) {
        let Pen { worker, task, name, mode, claim, lease, fence, .. } = *self;
        let record = Record {
            mode,
            name,
            task,
            claim,
            lease,
            fence,
            deadline,
            value,
            ..Record::new(kind, worker, at)
        };
        if let Err(error) = self.log.write(record) {
            eprintln!("worker {worker}: the history cannot be written: {error}");
            std::process::exit(3);
        }
    }
}
