//! What is believed about one held lease: state, deadline, and the one-way step to Lost.
//!
//! Shared by the guard, the renewal loop and the lost signals. No I/O; the clock is passed in.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Gone, Grant, Mode, Renewal};
use crate::clock::{Clock, Moment};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::telemetry;

/// What a guard knows about its lease, without asking the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Held, and the last renewal succeeded.
    Held,
    /// Held, but the last renewal failed or hangs. A confirmed renewal makes it `Held` again.
    AtRisk,
    /// Gone, for good.
    Lost,
    /// Given up by its holder.
    Released,
}

/// Why a lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The store refused a renewal.
    Refused(Gone),
    /// No renewal was confirmed in time.
    DeadlinePassed,
    /// [`Options::max_hold`](crate::Options::max_hold) was reached.
    MaxHold,
}

impl LostReason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            LostReason::Refused(Gone::Expired) => "the store says it has expired",
            LostReason::Refused(Gone::NotFound) => "the store no longer has it",
            LostReason::Refused(Gone::Superseded) => "the store says it was superseded",
            LostReason::Refused(Gone::Revoked) => "it was revoked",
            LostReason::DeadlinePassed => "no renewal was confirmed in time",
            LostReason::MaxHold => "it was held for as long as max_hold allows",
        }
    }
}

/// Until when a grant may be believed (promise 7).
///
/// `sent` is from before the request that succeeded was queued for a connection, so the store
/// measured `left` no earlier than `sent + waited`. One percent and 2 ms are taken off for clocks
/// that run at different rates and for rounding.
pub(crate) fn deadline(sent: Moment, grant: &Grant) -> Option<Moment> {
    const ROUNDING: Duration = Duration::from_millis(2);
    let span = grant.waited.saturating_add(grant.left?);
    Some(sent + span.saturating_sub(span / 100).saturating_sub(ROUNDING))
}

/// One renewal may take no longer than this, so that several fit between the first and the
/// deadline, and a hanging one is noticed early.
fn renewal_timeout(ttl: Duration) -> Duration {
    (ttl / 6).min(Duration::from_secs(5))
}

/// How soon a failed renewal is tried again.
fn retry_after(ttl: Duration) -> Duration {
    (ttl / 12).min(Duration::from_secs(1))
}

#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) name: Name,
    pub(crate) id: LeaseId,
    pub(crate) owner: Arc<str>,
    /// Tells cells apart that are due at the same moment.
    pub(crate) number: u64,
    /// When the lease was granted to this process.
    pub(crate) since: Moment,
    belief: Mutex<Belief>,
    lost: Arc<Notify>,
}

#[derive(Debug)]
struct Belief {
    state: State,
    reason: Option<LostReason>,
    mode: Mode,
    fence: Fence,
    /// `None`: a session lock, which has none.
    deadline: Option<Moment>,
    ttl: Duration,
    renew_every: Duration,
    /// Renewals do not reach past this.
    hold_until: Moment,
    /// The last renewal asked for less than a ttl because of `hold_until`.
    capped: bool,
    renewals: u64,
    /// Counts shortenings: what was sent before one must not move the deadline after it.
    epoch: u32,
    /// When the renewal that is under way was sent.
    in_flight: Option<Moment>,
    /// When to renew, or to give up on the renewal under way.
    next: Moment,
    /// Where the renewal loop has it in its queue.
    due: Moment,
}

/// How a cell is set up.
pub(crate) struct Terms {
    pub(crate) name: Name,
    pub(crate) id: LeaseId,
    pub(crate) owner: Arc<str>,
    pub(crate) number: u64,
    pub(crate) ttl: Duration,
    pub(crate) renew_every: Duration,
    /// From the first grant on; later ones of an adopted lease count from the adoption.
    pub(crate) max_hold: Option<Duration>,
}

/// What the renewal loop has to do about a cell.
pub(crate) enum Task {
    /// Nothing before it is due again.
    Wait,
    /// Forget it: lost or released.
    Forget,
    /// A session lock that was held too long: forget it and release it.
    End,
    /// Send this.
    Renew(Box<Renewal>, Sent),
}

/// When, and in which epoch, a renewal was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    at: Moment,
    epoch: u32,
}

impl Cell {
    pub(crate) fn new(terms: Terms, sent: Moment, grant: &Grant, check_every: Option<Duration>) -> Self {
        let deadline = deadline(sent, grant);
        let hold_until = terms.max_hold.map_or(Moment::NEVER, |hold| sent + hold);
        // Without a ttl there is nothing to renew, only to ask.
        let renew_every = if deadline.is_some() { Some(terms.renew_every) } else { check_every };
        let next = renew_every.map_or(Moment::NEVER, |every| sent + every);
        let capped = terms.max_hold.is_some_and(|hold| hold <= terms.ttl);
        Cell {
            name: terms.name,
            id: terms.id,
            owner: terms.owner,
            number: terms.number,
            since: sent,
            belief: Mutex::new(Belief {
                state: State::Held,
                reason: None,
                mode: grant.mode,
                fence: grant.fence,
                deadline,
                ttl: terms.ttl,
                renew_every: renew_every.unwrap_or(Duration::MAX),
                hold_until,
                capped,
                renewals: grant.renewals,
                epoch: 0,
                in_flight: None,
                next: if capped { Moment::NEVER } else { next },
                due: Moment::NEVER,
            }),
            lost: Arc::new(Notify::new()),
        }
    }

    fn belief(&self) -> MutexGuard<'_, Belief> {
        // Nothing below panics while holding it; a poisoned belief is still a valid one.
        self.belief.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state at this moment: a deadline that has passed is a loss, whether or not anybody was
    /// there to notice.
    pub(crate) fn state(&self, clock: &dyn Clock) -> State {
        self.look(clock).state
    }

    fn look(&self, clock: &dyn Clock) -> MutexGuard<'_, Belief> {
        let mut belief = self.belief();
        if belief.is_alive() && belief.deadline.is_some_and(|deadline| clock.now() >= deadline) {
            let reason = if belief.capped { LostReason::MaxHold } else { LostReason::DeadlinePassed };
            self.lose(&mut belief, reason);
        }
        belief
    }

    fn lose(&self, belief: &mut Belief, reason: LostReason) {
        belief.state = State::Lost;
        belief.reason = Some(reason);
        telemetry::lost(&self.name, belief.fence, reason);
        self.lost.notify_waiters();
    }

    /// Why it was lost, if it was.
    pub(crate) fn lost_reason(&self, clock: &dyn Clock) -> Option<LostReason> {
        self.look(clock).reason
    }

    /// Rings when it is lost; look at the reason after subscribing.
    pub(crate) fn lost_bell(&self) -> Arc<Notify> {
        Arc::clone(&self.lost)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.belief().mode
    }

    pub(crate) fn fence(&self) -> Fence {
        self.belief().fence
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.belief().ttl
    }

    pub(crate) fn renewals(&self) -> u64 {
        self.belief().renewals
    }

    /// Time left by the local deadline; zero when it is not held, `None` for session locks.
    pub(crate) fn valid_for(&self, clock: &dyn Clock) -> Option<Duration> {
        let belief = self.look(clock);
        if !belief.is_alive() {
            return Some(Duration::ZERO);
        }
        belief.deadline.map(|deadline| deadline.since(clock.now()))
    }

    /// The holder gives it up. What the state was until now.
    pub(crate) fn release(&self, clock: &dyn Clock) -> State {
        let mut belief = self.look(clock);
        let was = belief.state;
        if belief.is_alive() {
            belief.state = State::Released;
        }
        was
    }

    /// From here on it is only shared, whatever the store will answer.
    pub(crate) fn downgrade(&self) {
        self.belief().mode = Mode::Shared;
    }

    /// Lets the deadline drop to at most `ttl` from now, before that is asked of the store, and
    /// renews for no longer than that from here on.
    pub(crate) fn shorten(&self, ttl: Duration, renew_every: Duration, clock: &dyn Clock) {
        let mut belief = self.look(clock);
        let grant = Grant::new(belief.fence, belief.mode, Some(ttl));
        belief.deadline = belief.deadline.min(deadline(clock.now(), &grant));
        belief.epoch += 1;
        belief.ttl = ttl;
        belief.renew_every = renew_every;
        belief.next = belief.next.min(clock.now() + renew_every);
    }

    /// What a renewal sent now is to be judged by.
    pub(crate) fn sent(&self, clock: &dyn Clock) -> Sent {
        Sent { at: clock.now(), epoch: self.belief().epoch }
    }

    /// The store confirmed a renewal.
    pub(crate) fn confirm(&self, sent: Sent, grant: &Grant, clock: &dyn Clock) -> State {
        // A confirmation that comes after the deadline is too late: looking has lost it.
        let mut belief = self.look(clock);
        if !belief.is_alive() {
            return belief.state;
        }
        belief.renewals = grant.renewals;
        if sent.epoch == belief.epoch {
            // Both are true bounds unless it was shortened in between; the later one is the better.
            belief.deadline = belief.deadline.max(deadline(sent.at, grant));
            belief.next = if belief.capped { Moment::NEVER } else { sent.at + belief.renew_every };
        }
        // Also if a later one is under way: the store is there.
        belief.in_flight = None;
        if belief.state == State::AtRisk {
            belief.state = State::Held;
            telemetry::held_again(&self.name, belief.fence);
        }
        belief.state
    }

    /// The store refused a renewal: it is gone.
    pub(crate) fn refuse(&self, gone: Gone, clock: &dyn Clock) {
        let mut belief = self.look(clock);
        if belief.is_alive() {
            self.lose(&mut belief, LostReason::Refused(gone));
        }
    }

    /// A renewal failed, or got no answer.
    pub(crate) fn fail(&self, sent: Sent, why: &dyn std::fmt::Display, clock: &dyn Clock) {
        let mut belief = self.look(clock);
        if belief.is_alive() {
            // A later one may be under way already.
            if belief.answered(sent) {
                belief.next = clock.now() + retry_after(belief.ttl);
            }
            self.at_risk(&mut belief, why);
        }
    }

    fn at_risk(&self, belief: &mut Belief, why: &dyn std::fmt::Display) {
        if belief.state == State::Held {
            belief.state = State::AtRisk;
            telemetry::at_risk(&self.name, belief.fence, why);
        }
    }

    /// What to do now that it is due.
    pub(crate) fn task(&self, clock: &dyn Clock) -> Task {
        let mut belief = self.look(clock);
        let now = clock.now();
        if !belief.is_alive() {
            return Task::Forget;
        }
        if belief.deadline.is_none() && now >= belief.hold_until {
            self.lose(&mut belief, LostReason::MaxHold);
            return Task::End;
        }
        if now < belief.next {
            return Task::Wait;
        }
        if belief.in_flight.take().is_some() {
            self.at_risk(&mut belief, &"the store does not answer");
        }
        let left = belief.hold_until.since(now);
        belief.capped = belief.deadline.is_some() && left <= belief.ttl;
        let mut renewal = Renewal::new(self.name.clone(), self.id, belief.ttl.min(left));
        renewal.fence = Some(belief.fence);
        let sent = Sent { at: now, epoch: belief.epoch };
        belief.in_flight = Some(now);
        belief.next = now + renewal_timeout(belief.ttl);
        Task::Renew(Box::new(renewal), sent)
    }

    /// How long the renewal that was just sent may take.
    pub(crate) fn renewal_timeout(&self) -> Duration {
        renewal_timeout(self.belief().ttl)
    }

    /// When the loop has to look again, which it now has in its queue; and when it had before.
    pub(crate) fn schedule(&self) -> (Moment, Moment) {
        let mut belief = self.belief();
        let had = belief.due;
        let end = belief.deadline.unwrap_or(belief.hold_until);
        belief.due = if belief.is_alive() { belief.next.min(end) } else { Moment::NEVER };
        (had, belief.due)
    }

    /// Where the loop has it in its queue.
    pub(crate) fn due(&self) -> Moment {
        self.belief().due
    }
}

impl Belief {
    fn is_alive(&self) -> bool {
        matches!(self.state, State::Held | State::AtRisk)
    }

    /// Notes that the renewal sent then has its answer; false if another is under way by now.
    fn answered(&mut self, sent: Sent) -> bool {
        let latest = self.in_flight.is_none_or(|at| at == sent.at);
        if latest {
            self.in_flight = None;
        }
        latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_is_what_promise_7_says_and_never_overflows() {
        let grant = |waited, left| Grant { waited, ..Grant::new(Fence::new(1), Mode::Exclusive, left) };
        let sent = Moment::from_nanos(1_000_000_000);
        let (second, ten) = (Duration::from_secs(1), Duration::from_secs(10));
        assert_eq!(deadline(sent, &grant(second, Some(ten))), Some(sent + Duration::from_millis(10_888)));
        assert_eq!(deadline(sent, &grant(Duration::ZERO, Some(Duration::from_millis(1)))), Some(sent));
        assert_eq!(deadline(sent, &grant(Duration::MAX, Some(Duration::MAX))), Some(Moment::NEVER));
        assert_eq!(deadline(sent, &grant(second, None)), None);
    }
}
