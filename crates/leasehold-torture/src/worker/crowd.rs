//! The profile `crowd`: many clients after one name, beside others each of which has a name of its own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::history::record::Mode;

use super::Player;

/// What a worker does in a crowd. Each of its tasks is a client with connections of its own.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Part {
    /// All its clients want the hot name. The first one keeps it at first for so many milliseconds: it is stuck.
    Crowd { stuck_ms: u64 },
    /// Each of its clients has a name of its own, from this one on, and keeps it for longer than a ttl.
    Quiet { from: u16 },
}

impl Player {
    /// Which name.
    pub(super) fn choose_in_crowd(&mut self, part: Part) {
        self.pen.mode = Mode::Exclusive;
        self.pen.name = match part {
            Part::Crowd { .. } => 0,
            Part::Quiet { from } => from + self.pen.task,
        };
    }

    /// For how long.
    pub(super) fn hold_in_crowd(&mut self, part: Part) -> Duration {
        match part {
            Part::Crowd { stuck_ms } if self.pen.task == 0 && self.pen.claim == 1 => {
                Duration::from_millis(stuck_ms)
            }
            Part::Crowd { .. } => Duration::from_micros(self.dice.between(500, 5_000)),
            Part::Quiet { .. } => self.task.ttl().mul_f64(1.2 + self.dice.below(100) as f64 / 100.0),
        }
    }
}
