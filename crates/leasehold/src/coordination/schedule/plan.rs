//! Which tick a node runs next, as a pure function of the record and the time: no clock, no I/O.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::record::TickRecord;
use super::tick::Tick;
use super::{Missed, Schedule, TickPolicy};

/// Missed ticks are looked for this far back, and no further. A store may forget a note after 7 days without use, and
/// then nobody knows which ticks are done; a day of that is left for clocks that are wrong.
pub(super) const HORIZON: Duration = Duration::from_secs(6 * 86_400);

/// What decides which ticks are run, and when.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) schedule: Schedule,
    pub(super) policy: TickPolicy,
    pub(super) missed: Missed,
    pub(super) jitter: Duration,
    pub(super) clock_bound: Duration,
    /// Goes into the jitter, so that the jobs of one tick are spread.
    pub(super) name: String,
}

impl Plan {
    /// The tick to run now, if there is one.
    ///
    /// `since` is when this node began: without a record of this schedule, older ticks are not its business.
    pub(super) fn due(&self, record: &TickRecord, since: Tick, now: Tick) -> Option<Tick> {
        let horizon = back(now, HORIZON);
        if self.policy == TickPolicy::AtLeastOnce
            && let Some(open) = record.open().filter(|run| run.tick > horizon)
        {
            return Some(open.tick);
        }
        let last = record.last();
        let mut after = last.map_or(horizon, |last| last.max(horizon));
        if last.is_none() || !record.is_of(&self.schedule) {
            after = after.max(since);
        }
        let is_due = |tick: &Tick| self.due_at(*tick) <= now;
        match self.missed {
            Missed::RunAll => self.schedule.next_after(after).filter(is_due),
            Missed::RunOnce => self.latest(after, now),
            Missed::Skip => {
                let on_time = |tick: &Tick| now <= ahead(self.due_at(*tick), self.clock_bound);
                self.latest(after, now).filter(on_time)
            }
        }
    }

    /// The last tick that is due, with its jitter.
    fn latest(&self, after: Tick, now: Tick) -> Option<Tick> {
        let last = self.schedule.last_within(after, now)?;
        if self.due_at(last) <= now {
            return Some(last);
        }
        // Its delay is not over. That of the one before is, because it is never longer than the time between them.
        self.schedule.last_within(after, Tick::from(last.as_u64() - 1))
    }

    /// When there is something to do next: a tick becomes due that is later than all that are done.
    pub(super) fn next(&self, record: &TickRecord, now: Tick) -> Option<Tick> {
        // The last tick may still wait for its jitter.
        let begun = self.schedule.last_within(back(now, self.jitter), now).filter(|tick| self.due_at(*tick) > now);
        let from = begun.map_or(now, |tick| Tick::from(tick.as_u64() - 1));
        let from = record.last().map_or(from, |last| from.max(last));
        Some(self.due_at(self.schedule.next_after(from)?))
    }

    /// When a tick is run: all nodes delay it by the same time, which is shorter than that to the tick after it.
    pub(super) fn due_at(&self, tick: Tick) -> Tick {
        if self.jitter.is_zero() {
            return tick;
        }
        let gap = self.schedule.next_after(tick).map_or(u64::MAX, |next| next.as_u64() - tick.as_u64());
        let most = millis(self.jitter).min(gap - 1);
        let digest = Sha256::new().chain_update(tick.as_u64().to_be_bytes()).chain_update(&self.name).finalize();
        let number = digest.iter().take(8).fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
        ahead(tick, Duration::from_millis(number % (most + 1)))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX - 1).min(u64::MAX - 1)
}

pub(super) fn ahead(tick: Tick, by: Duration) -> Tick {
    tick.as_u64().saturating_add(millis(by)).into()
}

fn back(tick: Tick, by: Duration) -> Tick {
    tick.as_u64().saturating_sub(millis(by)).into()
}
