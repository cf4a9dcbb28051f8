//! Decides from the lease's deadline when the command is asked to end, and when it is killed.

use std::time::Duration;

use leasehold::clock::Moment;

/// The kill comes at most this long before the deadline. A kill takes microseconds, but getting scheduled on a loaded
/// machine takes much longer.
const MARGIN: Duration = Duration::from_millis(500);

/// The rules for one run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Between TERM and KILL.
    grace: Duration,
    /// Between KILL and the deadline.
    margin: Duration,
    /// When all processes must be gone, whatever the lease says.
    hold_until: Option<Moment>,
    /// `None` for locks that do not expire.
    ttl: Option<Duration>,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing until then.
    Wait(Option<Moment>),
    /// Send TERM now, and KILL no later than that.
    Stop(Why, Moment),
    /// KILL.
    Kill(Why),
}

/// Why the command has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The lease is about to end, or has ended.
    Lease,
    /// The lock was held for the maximum time.
    MaxHold,
}

impl Plan {
    /// `ttl` is `None` for locks that do not expire.
    pub(crate) fn new(
        ttl: Option<Duration>,
        kill_after: Duration,
        max_hold: Option<Duration>,
        since: Moment,
    ) -> Self {
        // Renewed at a third of the ttl, a healthy lease has two thirds left; with less than one third left, something
        // is wrong.
        let grace = ttl.map_or(kill_after, |ttl| kill_after.min(ttl / 3));
        let grace = max_hold.map_or(grace, |hold| grace.min(hold / 2));
        Plan { grace, margin: MARGIN.min(grace / 4), hold_until: max_hold.map(|hold| since + hold), ttl }
    }

    /// Between TERM and KILL.
    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    /// How long the lease lasts unless renewed; `None` for one that does not expire.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// When to kill a command that is asked to end now, with a lease that may be relied on for this long.
    pub(crate) fn end(&self, now: Moment, valid_for: Duration) -> Moment {
        (now + self.grace).min(now + valid_for.saturating_sub(self.margin))
    }

    /// What to do now, given how long the lease may be relied on; `None` for one that does not expire.
    pub(crate) fn step(&self, now: Moment, valid_for: Option<Duration>) -> Step {
        let lease = valid_for.map(|valid| (now + valid, Why::Lease));
        let hold = self.hold_until.map(|until| (until, Why::MaxHold));
        let Some((end, why)) = [lease, hold].into_iter().flatten().min_by_key(|(end, _)| *end) else {
            return Step::Wait(None);
        };
        let (stop, kill) = (end - self.grace, end - self.margin);
        if now >= kill {
            Step::Kill(why)
        } else if now >= stop {
            Step::Stop(why, kill)
        } else {
            Step::Wait(Some(stop))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const START: Moment = Moment::from_nanos(1_000_000_000_000);

    #[test]
    fn a_healthy_lease_needs_nothing_until_kill_after_is_left_of_it() {
        let plan = Plan::new(Some(secs(30)), secs(5), None, START);
        assert_eq!(plan.step(START, Some(secs(29))), Step::Wait(Some(START + secs(24))));
        assert_eq!(
            plan.step(START, Some(secs(5))),
            Step::Stop(Why::Lease, START + Duration::from_millis(4500))
        );
        assert_eq!(plan.step(START, Some(Duration::from_millis(500))), Step::Kill(Why::Lease));
        assert_eq!(plan.step(START, Some(Duration::ZERO)), Step::Kill(Why::Lease));
    }

    #[test]
    fn a_short_ttl_reserves_a_third_of_itself_for_stopping() {
        let ttl = secs(3);
        let plan = Plan::new(Some(ttl), secs(5), None, START);
        assert_eq!(plan.grace(), secs(1));
        assert!(matches!(plan.step(START, Some(ttl * 2 / 3 - Duration::from_millis(100))), Step::Wait(_)));
        assert!(matches!(plan.step(START, Some(secs(1))), Step::Stop(Why::Lease, _)));
    }

    #[test]
    fn a_lock_without_ttl_ends_by_max_hold_alone() {
        let plan = Plan::new(None, secs(5), None, START);
        assert_eq!(plan.step(START + secs(1_000_000), None), Step::Wait(None));
        // Such a lock can still be lost, where the store notices it.
        assert_eq!(plan.step(START, Some(Duration::ZERO)), Step::Kill(Why::Lease));
        let plan = Plan::new(None, secs(5), Some(secs(60)), START);
        assert_eq!(plan.step(START, None), Step::Wait(Some(START + secs(55))));
        assert!(matches!(plan.step(START + secs(55), None), Step::Stop(Why::MaxHold, _)));
        assert_eq!(plan.step(START + secs(60), None), Step::Kill(Why::MaxHold));
        // Shorter than twice the grace: half of it is left to work in.
        let plan = Plan::new(None, secs(5), Some(secs(2)), START);
        assert_eq!(plan.step(START, None), Step::Wait(Some(START + secs(1))));
    }

    #[test]
    fn an_early_stop_gets_its_grace_but_never_outlasts_the_lease() {
        let plan = Plan::new(Some(secs(30)), secs(5), None, START);
        assert_eq!(plan.end(START, secs(20)), START + secs(5));
        assert_eq!(plan.end(START, secs(4)), START + Duration::from_millis(3500));
        assert_eq!(plan.end(START, Duration::ZERO), START);
    }

    #[test]
    fn what_comes_first_decides() {
        let plan = Plan::new(Some(secs(30)), secs(5), Some(secs(60)), START);
        assert_eq!(plan.step(START, Some(secs(20))), Step::Wait(Some(START + secs(15))));
        assert!(matches!(plan.step(START + secs(58), Some(secs(20))), Step::Stop(Why::MaxHold, _)));
    }
}
