//! The profile `crowd`: many clients for one name, beside others that each have their own name.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::history::record::Mode;
use crate::history::setting::Name;

use super::{Part, Player};

/// What a worker does in a crowd. Each of its tasks is a client with its own connections.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum CrowdPart {
    /// All its clients want the hot name. The first one keeps it for this many milliseconds at the start: it is stuck.
    Crowd { stuck_ms: u64 },
    /// Each of its clients has its own name, from this one on, and keeps it for longer than a ttl.
    Quiet { from: u16 },
}

/// The hot name, and one name for each of the other clients.
pub(crate) fn locks(tasks: u16, prefix: &str) -> Vec<(Part, Name)> {
    let lock = |part: Part, name: String| (part, Name { name: format!("{prefix}{name}"), limit: 0, part: 0 });
    let quiet = (1..=tasks).map(|number| lock(Part::Quiet, format!("quiet-{number}")));
    std::iter::once(lock(Part::Hot, "hot".into())).chain(quiet).collect()
}

impl Player {
    /// Begins a turn: chooses the name.
    pub(super) fn begin_in_crowd(&mut self, part: CrowdPart) {
        self.pen.claim = self.claims.fetch_add(1, Ordering::Relaxed);
        self.ttl = self.task.ttl();
        self.pen.mode = Mode::Exclusive;
        self.pen.name = match part {
            CrowdPart::Crowd { .. } => 0,
            CrowdPart::Quiet { from } => from + self.pen.task,
        };
    }

    /// How long to hold the lock.
    pub(super) fn hold_in_crowd(&mut self, part: CrowdPart) -> Duration {
        match part {
            CrowdPart::Crowd { stuck_ms } if self.pen.task == 0 && self.pen.claim == 1 => {
                Duration::from_millis(stuck_ms)
            }
            CrowdPart::Crowd { .. } => Duration::from_micros(self.dice.between(500, 5_000)),
            CrowdPart::Quiet { .. } => self.task.ttl().mul_f64(1.2 + self.dice.below(100) as f64 / 100.0),
        }
    }
}
