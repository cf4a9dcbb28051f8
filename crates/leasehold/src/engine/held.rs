//! What is believed about one held lease: state, deadline, and the one-way step to Lost.
//!
//! Shared by the guard, the renewal loop and the lost signals. No I/O; the clock is passed in.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::{Claim, Gone, Grant, Mode, Renewal};
use crate::bugs::{self, Bug};
use crate::clock::{Clock, Moment};
use crate::engine::telemetry;
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

/// What a guard knows about its lease, without asking the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GuardState {
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
    /// The client's background work, which renews it, has ended: its thread panicked, or the runtime given to
    /// [`LocksBuilder::runtime`](crate::LocksBuilder::runtime) was shut down.
    Unattended,
    /// This process is a fork of the one that holds it.
    Forked,
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
            LostReason::Unattended => "the background work that renews it has ended",
            LostReason::Forked => "this process is a fork of the one that holds it",
        }
    }
}

/// Until when a grant may be believed (promise 7).
///
/// `sent` is from before the request that succeeded was queued for a connection, so the store
/// measured `left` no earlier than `sent + waited`. One percent and 2 ms are taken off for clocks
/// that run at different rates and for rounding. A store whose clock was set back says that more is
/// left than the `ttl` that was asked for: nobody relies on that, for it may be put right again.
pub(crate) fn deadline(sent: Moment, grant: &Grant, ttl: Duration) -> Option<Moment> {
    const ROUNDING: Duration = Duration::from_millis(2);
    let span = grant.waited.saturating_add(grant.left?.min(ttl));
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
    /// The process that holds it.
    process: u32,
    /// When the lease was granted to this process.
    pub(crate) since: Moment,
    belief: Mutex<Belief>,
    lost: Arc<Notify>,
}

#[derive(Debug)]
struct Belief {
    state: GuardState,
    reason: Option<LostReason>,
    mode: Mode,
    /// The store has not confirmed yet that it is only shared.
    downgrading: bool,
    fence: Fence,
    /// `None`: a session lock, which has none.
    deadline: Option<Moment>,
    ttl: Duration,
    /// The longest that was ever asked for.
    longest: Duration,
    renew_every: Duration,
    /// Renewals do not reach past this.
    hold_until: Moment,
    /// What was confirmed last was cut short by `hold_until`: there is nothing more to ask for.
    capped: bool,
    renewals: u64,
    /// Counts shortenings: what was sent before one must not move the deadline after it.
    epoch: u32,
    /// When the renewal that is under way was sent.
    in_flight: Option<Moment>,
    /// When to renew, or to give up on the renewal under way.
    next: Moment,
    /// Where the renewal loop has it in its queue; `NEVER` if it has not.
    due: Moment,
    watch: Watch,
}

/// Whether the store was asked to tell of the end of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    No,
    Pending,
    /// It told, and what it told of is being found out. Not asked again before the next check: a store that
    /// always tells at once must not keep the loop busy.
    Told,
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
    /// Nothing, until it is due again, if ever.
    Nothing,
    /// A session lock was held too long: release it.
    Release,
    /// Send this.
    Renew(Box<Renewal>, Sent),
}

/// When, and in which epoch, a renewal was sent, and whether `hold_until` cut it short.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    at: Moment,
    epoch: u32,
    capped: bool,
}

impl Cell {
    pub(crate) fn new(terms: Terms, sent: Moment, grant: &Grant, check_every: Option<Duration>) -> Self {
        // Where the store itself waited, holding began after that.
        let since = sent + grant.waited;
        let hold_until = terms.max_hold.map_or(Moment::NEVER, |hold| since + hold);
        let deadline = deadline(sent, grant, terms.ttl).map(|deadline| deadline.min(hold_until));
        // Without a ttl there is nothing to renew, only to ask.
        let renew_every = if deadline.is_some() { Some(terms.renew_every) } else { check_every };
        // A repeated claim gets what is left of its lease: that has to be renewed sooner.
        let soon = grant.left.map_or(Duration::MAX, |left| left / 2);
        let next = renew_every.map_or(Moment::NEVER, |every| since + every.min(soon));
        let capped = deadline.is_some() && terms.max_hold.is_some_and(|hold| hold <= terms.ttl);
        Cell {
            name: terms.name,
            id: terms.id,
            owner: terms.owner,
            number: terms.number,
            process: std::process::id(),
            since,
            belief: Mutex::new(Belief {
                state: GuardState::Held,
                reason: None,
                mode: grant.mode,
                downgrading: false,
                fence: grant.fence,
                deadline,
                ttl: terms.ttl,
                longest: terms.ttl,
                renew_every: renew_every.unwrap_or(Duration::MAX),
                hold_until,
                capped,
                renewals: grant.renewals,
                epoch: 0,
                in_flight: None,
                next: if capped { Moment::NEVER } else { next },
                due: Moment::NEVER,
                watch: Watch::No,
            }),
            lost: Arc::new(Notify::new()),
        }
    }

    /// The only way to change the belief. It looks at the deadline first: one that has passed is a
    /// loss, whether or not anybody was there to notice. Then it changes what is to be changed, and
    /// tells of it when the lock is free again.
    fn update<T>(
        &self,
        clock: &dyn Clock,
        why: &dyn Display,
        change: impl FnOnce(&mut Belief, Moment) -> T,
    ) -> T {
        let mut belief = self.belief.lock();
        let before = belief.state;
        let now = clock.now();
        if belief.deadline.is_some_and(|deadline| now >= deadline) {
            let ended = belief.capped || now >= belief.hold_until;
            belief.lose(if ended { LostReason::MaxHold } else { LostReason::DeadlinePassed });
        }
        let result = change(&mut belief, now);
        let (after, reason, fence) = (belief.state, belief.reason, belief.fence);
        drop(belief);
        match (before, after) {
            (GuardState::Held, GuardState::AtRisk) => telemetry::at_risk(&self.name, fence, why),
            (GuardState::AtRisk, GuardState::Held) => telemetry::held_again(&self.name, fence),
            (GuardState::Held | GuardState::AtRisk, GuardState::Lost) => {
                self.lost.notify_waiters();
                telemetry::lost(&self.name, fence, reason);
            }
            _ => {}
        }
        result
    }

    fn look<T>(&self, clock: &dyn Clock, at: impl FnOnce(&mut Belief, Moment) -> T) -> T {
        if bugs::on(Bug::DeadlineNotLookedAt) {
            return at(&mut self.belief.lock(), clock.now());
        }
        self.update(clock, &"", at)
    }

    /// Whether this is the copy in a fork of the holder, where nobody renews it. Asked before anything is locked: the
    /// thread that would unlock it may be missing in the fork.
    pub(crate) fn is_copy(&self) -> bool {
        std::process::id() != self.process
    }

    /// The state at this moment.
    pub(crate) fn state(&self, clock: &dyn Clock) -> GuardState {
        if self.is_copy() {
            return GuardState::Lost;
        }
        self.look(clock, |belief, _| belief.state)
    }

    /// Why it was lost, if it was.
    pub(crate) fn lost_reason(&self, clock: &dyn Clock) -> Option<LostReason> {
        if self.is_copy() {
            return Some(LostReason::Forked);
        }
        self.look(clock, |belief, _| belief.reason)
    }

    /// Rings when it is lost; look at the reason after subscribing.
    pub(crate) fn lost_bell(&self) -> Arc<Notify> {
        Arc::clone(&self.lost)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.belief.lock().mode
    }

    pub(crate) fn fence(&self) -> Fence {
        self.belief.lock().fence
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.belief.lock().ttl
    }

    /// Time left by the local deadline; zero when it is not held, `None` for session locks.
    pub(crate) fn valid_for(&self, clock: &dyn Clock) -> Option<Duration> {
        if self.is_copy() {
            return Some(Duration::ZERO);
        }
        self.look(clock, |belief, now| {
            if !belief.is_alive() {
                return Some(Duration::ZERO);
            }
            belief.deadline.map(|deadline| deadline.since(now))
        })
    }

    /// The holder gives it up. Whether it was held until now.
    pub(crate) fn release(&self, clock: &dyn Clock) -> bool {
        self.look(clock, |belief, _| {
            let held = belief.is_alive();
            if held {
                belief.state = GuardState::Released;
            }
            held
        })
    }

    /// From here on it is only shared, whatever the store will answer; every renewal asks for that until
    /// the store has confirmed it. False if it has already.
    pub(crate) fn downgrade(&self) -> bool {
        let mut belief = self.belief.lock();
        if belief.mode != Mode::Shared {
            belief.mode = Mode::Shared;
            belief.downgrading = true;
        }
        belief.downgrading
    }

    /// Lets the deadline drop to at most `ttl` from now, before that is asked of the store, and renews
    /// for no longer than that from here on. How often it was renewed until now.
    pub(crate) fn shorten(&self, ttl: Duration, renew_every: Duration, clock: &dyn Clock) -> u64 {
        self.look(clock, |belief, now| {
            // A session lock has no ttl to shorten, and is looked at as often as before.
            if belief.deadline.is_some() {
                let grant = Grant::new(belief.fence, belief.mode, Some(ttl));
                belief.deadline = belief.deadline.min(deadline(now, &grant, ttl));
                belief.epoch += 1;
                belief.ttl = ttl;
                belief.renew_every = renew_every;
                // What is sent now renews too. One more beside it would only overtake it, and void it.
                belief.next = now + renew_every;
            }
            belief.renewals
        })
    }

    /// A renewal to send now for `ttl`, and what its answer is to be judged by.
    pub(crate) fn renewal(&self, ttl: Duration, clock: &dyn Clock) -> (Renewal, Sent) {
        self.look(clock, |belief, now| self.ask(belief, ttl, now))
    }

    fn ask(&self, belief: &mut Belief, ttl: Duration, now: Moment) -> (Renewal, Sent) {
        let left = belief.hold_until.since(now);
        let asked = ttl.min(left);
        // From now on: the store may follow and its answer be lost.
        belief.longest = belief.longest.max(asked);
        let mut renewal = Renewal::new(self.name.clone(), self.id, asked);
        renewal.fence = Some(belief.fence);
        renewal.mode = belief.downgrading.then_some(Mode::Shared);
        let capped = belief.deadline.is_some() && left <= ttl;
        (renewal, Sent { at: now, epoch: belief.epoch, capped })
    }

    /// The store confirmed a renewal. One that comes after the deadline is too late.
    pub(crate) fn confirm(&self, sent: Sent, grant: &Grant, clock: &dyn Clock) {
        self.look(clock, |belief, _| {
            if bugs::on(Bug::LostNotFinal) {
                belief.reason = None;
            } else if !belief.is_alive() {
                return;
            }
            // Answers may come in another order than they were given.
            belief.renewals = belief.renewals.max(grant.renewals);
            belief.downgrading &= grant.mode != Mode::Shared;
            if sent.epoch == belief.epoch {
                // Both are true bounds unless it was shortened in between; the later one is the better.
                let confirmed =
                    deadline(sent.at, grant, belief.longest).map(|deadline| deadline.min(belief.hold_until));
                belief.deadline = belief.deadline.max(confirmed);
                belief.capped = sent.capped;
                belief.next = if belief.capped { Moment::NEVER } else { sent.at + belief.renew_every };
            }
            // Also if a later one is under way: the store is there.
            belief.in_flight = None;
            belief.state = GuardState::Held;
        });
    }

    /// The store refused a renewal: it is gone.
    pub(crate) fn refuse(&self, gone: Gone, clock: &dyn Clock) {
        self.look(clock, |belief, _| belief.lose(LostReason::Refused(gone)));
    }

    /// Nobody will renew it or ask for it any more. Does not look at the clock, which may be what has failed.
    pub(crate) fn abandon(&self) {
        let mut belief = self.belief.lock();
        let held = belief.is_alive();
        belief.lose(LostReason::Unattended);
        let (reason, fence) = (belief.reason, belief.fence);
        drop(belief);
        if held {
            self.lost.notify_waiters();
            telemetry::lost(&self.name, fence, reason);
        }
    }

    /// A renewal failed.
    pub(crate) fn fail(&self, sent: Sent, why: &dyn Display, clock: &dyn Clock) {
        self.update(clock, why, |belief, now| {
            // Unless a later one is under way already.
            if belief.in_flight.is_none_or(|at| at == sent.at) {
                belief.in_flight = None;
                belief.next = now + retry_after(belief.pace());
            }
            belief.risk();
        });
    }

    /// What to do now that it is due.
    pub(crate) fn task(&self, clock: &dyn Clock) -> Task {
        self.update(clock, &"the store does not answer", |belief, now| {
            if !belief.is_alive() {
                return Task::Nothing;
            }
            if belief.deadline.is_none() && now >= belief.hold_until {
                belief.lose(LostReason::MaxHold);
                return Task::Release;
            }
            if now < belief.next {
                return Task::Nothing;
            }
            if belief.in_flight.take().is_some() {
                belief.risk();
            }
            belief.in_flight = Some(now);
            belief.next = now + renewal_timeout(belief.pace());
            let (renewal, sent) = self.ask(belief, belief.ttl, now);
            Task::Renew(Box::new(renewal), sent)
        })
    }

    /// The claim to wait on for the end of the lease, if it is time to begin.
    pub(crate) fn begin_watch(&self) -> Option<Claim> {
        let mut belief = self.belief.lock();
        let begin = belief.is_alive() && belief.watch == Watch::No;
        belief.watch = if begin || belief.watch == Watch::Pending { Watch::Pending } else { Watch::No };
        let claim = Claim::new(self.name.clone(), belief.mode, belief.ttl, Arc::clone(&self.owner));
        begin.then_some(Claim { id: self.id, first: false, ..claim })
    }

    /// The store told that the lease may be over: ask at once.
    pub(crate) fn told(&self, clock: &dyn Clock) {
        self.look(clock, |belief, now| {
            belief.watch = Watch::Told;
            // The answer to what is under way comes soon enough.
            if belief.in_flight.is_none() {
                belief.next = belief.next.min(now);
            }
        });
    }

    /// How long a renewal may take.
    pub(crate) fn renewal_timeout(&self) -> Duration {
        renewal_timeout(self.belief.lock().pace())
    }

    /// When the loop has to look again, which is where it is put in its queue; and where it was before.
    pub(crate) fn schedule(&self) -> (Moment, Moment) {
        let mut belief = self.belief.lock();
        let had = belief.due;
        let end = belief.deadline.unwrap_or(belief.hold_until);
        belief.due = if belief.is_alive() { belief.next.min(end) } else { Moment::NEVER };
        (had, belief.due)
    }

    /// It is no longer in the loop's queue. Where it was.
    pub(crate) fn unschedule(&self) -> Moment {
        std::mem::replace(&mut self.belief.lock().due, Moment::NEVER)
    }
}

impl Belief {
    fn is_alive(&self) -> bool {
        matches!(self.state, GuardState::Held | GuardState::AtRisk)
    }

    /// What its timeouts and pauses are a part of: its ttl, or what comes closest for a session lock,
    /// whose ttl means nothing.
    fn pace(&self) -> Duration {
        if self.deadline.is_some() { self.ttl } else { self.renew_every.saturating_mul(3) }
    }

    fn lose(&mut self, reason: LostReason) {
        if self.is_alive() {
            self.state = GuardState::Lost;
            self.reason = Some(reason);
        }
    }

    fn risk(&mut self) {
        if self.is_alive() {
            self.state = GuardState::AtRisk;
        }
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
        let of = |waited, left, ttl| deadline(sent, &grant(waited, left), ttl);
        assert_eq!(of(second, Some(ten), ten), Some(sent + Duration::from_millis(10_888)));
        assert_eq!(of(Duration::ZERO, Some(Duration::from_millis(1)), ten), Some(sent));
        assert_eq!(of(Duration::MAX, Some(Duration::MAX), Duration::MAX), Some(Moment::NEVER));
        assert_eq!(of(second, None, ten), None);
    }

    #[test]
    fn a_store_whose_clock_was_set_back_is_not_believed_for_longer_than_was_asked() {
        let sent = Moment::from_nanos(1_000_000_000);
        let hour = Grant::new(Fence::new(1), Mode::Exclusive, Some(Duration::from_secs(3600)));
        let most = Some(sent + Duration::from_millis(29_698));
        assert_eq!(deadline(sent, &hour, Duration::from_secs(30)), most);
        let cell = Cell::new(terms(None), sent, &hour, None);
        assert_eq!(cell.belief.lock().deadline, most);
        let clock = crate::clock::SystemClock;
        let grant = Grant::new(Fence::new(1), Mode::Exclusive, Some(Duration::from_secs(30)));
        let cell = Cell::new(terms(None), clock.now(), &grant, None);
        let (_, sent) = cell.renewal(Duration::from_secs(30), &clock);
        cell.confirm(sent, &hour, &clock);
        assert_eq!(cell.belief.lock().deadline, Some(sent.at + Duration::from_millis(29_698)));
    }

    fn terms(max_hold: Option<Duration>) -> Terms {
        Terms {
            name: Name::new("x").unwrap(),
            id: LeaseId::random(),
            owner: "me".into(),
            number: 1,
            ttl: Duration::from_secs(30),
            renew_every: Duration::from_secs(10),
            max_hold,
        }
    }

    #[test]
    fn a_grant_that_is_partly_used_up_is_renewed_before_it_ends() {
        let sent = Moment::from_nanos(1_000_000_000);
        for (left, due) in [(30, 10_000), (12, 6_000), (3, 1_500)] {
            let grant = Grant::new(Fence::new(1), Mode::Exclusive, Some(Duration::from_secs(left)));
            let cell = Cell::new(terms(None), sent, &grant, None);
            assert_eq!(cell.schedule().1, sent + Duration::from_millis(due), "{left} s left");
        }
    }

    #[test]
    fn waiting_in_the_store_is_not_holding() {
        let sent = Moment::from_nanos(1_000_000_000);
        let (waited, hold) = (Duration::from_secs(100), Duration::from_secs(60));
        let left = Some(Duration::from_secs(30));
        let grant = Grant { waited, ..Grant::new(Fence::new(1), Mode::Exclusive, left) };
        let cell = Cell::new(terms(Some(hold)), sent, &grant, None);
        assert_eq!(cell.since, sent + waited);
        assert_eq!(cell.belief.lock().hold_until, sent + waited + hold);
        assert_eq!(cell.schedule().1, sent + waited + Duration::from_secs(10));
    }
}
