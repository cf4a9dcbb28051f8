//! What a task writes its history with: one turn's name, mode and lease, filled in as they become known.

use std::sync::Arc;

use leasehold::LeaseId;
use leasehold::clock::{Clock as _, SystemClock};

use crate::history::record::{Kind, Log, Mode, Record, hash};

/// Now, on the clock of all histories.
pub(crate) fn now() -> u64 {
    SystemClock.now().as_nanos()
}

/// A task's pen.
#[derive(Debug)]
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

    /// The number of the next write, which no other of this process has.
    pub(super) fn next_write(&mut self) -> u64 {
        self.writes += 1;
        u64::from(self.task) << 48 | self.writes
    }

    /// Writes down one thing. A history with a hole shows nothing, so who cannot write ends.
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
