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
        let begun =
            self.schedule.last_within(back(now, self.jitter), now).filter(|tick| self.due_at(*tick) > now);
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
        let digest =
            Sha256::new().chain_update(tick.as_u64().to_be_bytes()).chain_update(&self.name).finalize();
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::record::TickResult;
    use super::*;

    const MINUTE: u64 = 60_000;
    /// A day on which nothing happened before.
    const START: u64 = 1_763_596_800_000;

    fn plan(missed: Missed, policy: TickPolicy) -> Plan {
        Plan {
            schedule: Schedule::cron("* * * * *").unwrap(),
            policy,
            missed,
            jitter: Duration::ZERO,
            clock_bound: Duration::from_secs(2),
            name: "x".into(),
        }
    }

    /// A minute of the day, and milliseconds.
    fn at(minute: u64, millis: u64) -> Tick {
        (START + minute * MINUTE + millis).into()
    }

    fn after(plan: &Plan, last: Tick) -> TickRecord {
        TickRecord::done(last, &plan.schedule)
    }

    #[test]
    fn without_a_record_nothing_before_the_start_is_due() {
        for missed in [Missed::RunOnce, Missed::Skip, Missed::RunAll] {
            let plan = plan(missed, TickPolicy::AtMostOnce);
            let since = at(10, 1);
            assert_eq!(plan.due(&TickRecord::default(), since, at(10, 59_999)), None);
            assert_eq!(plan.due(&TickRecord::default(), since, at(11, 0)), Some(at(11, 0)));
            // Nor is it with a record of another schedule.
            let mut other = after(&plan, at(2, 0));
            other.schedule = Some((&Schedule::cron("0 0 * * *").unwrap()).into());
            assert_eq!(plan.due(&other, since, at(10, 59_999)), None);
        }
    }

    #[test]
    fn missed_ticks_are_run_once_or_not_or_one_by_one() {
        let since = at(30, 0);
        for (missed, late, expected) in [
            (Missed::RunOnce, 1, Some(14)),
            (Missed::RunOnce, 59_999, Some(14)),
            (Missed::RunAll, 59_999, Some(11)),
            (Missed::Skip, 2_000, Some(14)),
            (Missed::Skip, 2_001, None),
        ] {
            let plan = plan(missed, TickPolicy::AtMostOnce);
            let due = plan.due(&after(&plan, at(10, 0)), since, at(14, late));
            assert_eq!(due, expected.map(|minute| at(minute, 0)), "{missed:?} {late}");
        }
    }

    #[test]
    fn ticks_older_than_six_days_are_nobodys_business() {
        let plan = plan(Missed::RunAll, TickPolicy::AtLeastOnce);
        let now = at(0, 7 * 86_400_000);
        let six_days_ago = now.as_u64() - 6 * 86_400_000;
        assert_eq!(plan.due(&after(&plan, at(0, 0)), now, now), Some((six_days_ago + MINUTE).into()));
        let mut open = TickRecord { schedule: after(&plan, now).schedule, ..TickRecord::default() };
        open.begin(at(0, 0), "me", 0);
        assert_eq!(plan.due(&open, now, now), Some((six_days_ago + MINUTE).into()));
    }

    #[test]
    fn a_tick_without_an_end_is_run_again_only_at_least_once() {
        for missed in [Missed::RunOnce, Missed::Skip, Missed::RunAll] {
            let mut record = after(&plan(missed, TickPolicy::AtMostOnce), at(9, 0));
            record.begin(at(10, 0), "me", 0);
            let [most, least] =
                [TickPolicy::AtMostOnce, TickPolicy::AtLeastOnce].map(|policy| plan(missed, policy));
            assert_eq!(most.due(&record, at(0, 0), at(10, 30_000)), None);
            assert_eq!(least.due(&record, at(0, 0), at(10, 30_000)), Some(at(10, 0)));
            record.end(Duration::ZERO, &TickResult::Failed("exit 3".into()));
            assert_eq!(least.due(&record, at(0, 0), at(10, 30_000)), None);
        }
    }

    #[test]
    fn after_a_clock_was_set_back_no_tick_comes_again() {
        let plan = plan(Missed::RunAll, TickPolicy::AtMostOnce);
        let record = after(&plan, at(60, 0));
        for minute in 0..60 {
            assert_eq!(plan.due(&record, at(0, 0), at(minute, 0)), None);
            assert_eq!(plan.next(&record, at(minute, 0)), Some(at(61, 0)));
        }
    }

    proptest! {
        #[test]
        fn jitter_keeps_the_order_and_is_the_same_everywhere(
            name in "[a-z]{1,8}", jitter in 0u64..300_000, start in 0u64..1_000_000,
        ) {
            let mut plan = plan(Missed::RunAll, TickPolicy::AtMostOnce);
            (plan.name, plan.jitter) = (name, Duration::from_millis(jitter));
            let mut tick = plan.schedule.next_after(start * MINUTE).unwrap();
            for _ in 0..20 {
                let next = plan.schedule.next_after(tick).unwrap();
                let due = plan.due_at(tick);
                prop_assert_eq!(plan.clone().due_at(tick), due);
                prop_assert!(due >= tick && due < next && due.as_u64() <= tick.as_u64() + jitter);
                tick = next;
            }
        }

        /// A node that sleeps until `next` and then runs what is `due` runs every tick, once, in order, and never too
        /// early.
        #[test]
        fn a_node_that_sleeps_until_next_runs_every_tick(
            jitter in 0u64..200_000, missed in 0..3u8, lates in proptest::collection::vec(0u64..1_500, 30),
        ) {
            let missed = [Missed::RunOnce, Missed::Skip, Missed::RunAll][usize::from(missed)];
            let mut plan = plan(missed, TickPolicy::AtMostOnce);
            plan.jitter = Duration::from_millis(jitter);
            let (since, mut now) = (at(0, 0), at(0, 1));
            let mut record = after(&plan, since);
            let mut ran = Vec::new();
            for late in lates {
                now = plan.next(&record, now).unwrap();
                prop_assert_eq!(plan.due(&record, since, Tick::from(now.as_u64() - 1)), None);
                now = (now.as_u64() + late).into();
                let tick = plan.due(&record, since, now).unwrap();
                ran.push(tick);
                record = after(&plan, tick);
                prop_assert_eq!(plan.due(&record, since, now).filter(|_| jitter == 0), None);
            }
            let first = ran[0];
            let expected: Vec<Tick> = (0..30).map(|n| (first.as_u64() + n * MINUTE).into()).collect();
            prop_assert_eq!(ran, expected);
        }
    }
}
