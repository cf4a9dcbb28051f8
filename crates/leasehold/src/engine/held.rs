//! What the client believes about one held lease: its state, its deadline, and the one-way step to `Lost`.
//!
//! The guard, the renewal loop and the lost signals share it. It does no I/O; the clock is passed in.
//!
//! One file because every method here reads or changes one private struct under one lock.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::{Claim, Gone, Grant, Mode, Renewal};
use crate::bugs::{self, Bug};
use crate::clock::{Clock, Moment};
use crate::engine::limits::{ROUNDING, renewal_timeout, retry_after};
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
    /// Released by its holder.
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

/// The moment until which the client may rely on a grant (promise 7).
///
/// `sent` was taken before the request that succeeded was queued for a connection, so the store measured `left` no
/// earlier than `sent + waited`. One percent and 2 ms are subtracted for clocks that run at different rates and for
/// rounding. A store whose clock was set back may report more time left than the `ttl` that was asked for. The client
/// never relies on the excess, because the clock may be corrected again.
pub(crate) fn deadline(sent: Moment, grant: &Grant, ttl: Duration) -> Option<Moment> {
    let span = grant.waited.saturating_add(grant.left?.min(ttl));
    Some(sent + span.saturating_sub(span / 100).saturating_sub(ROUNDING))
}

#[derive(Debug)]
pub(crate) struct HeldLease {
    pub(crate) name: Name,
    pub(crate) id: LeaseId,
    pub(crate) owner: Arc<str>,
    /// Distinguishes leases that are due at the same moment.
    pub(crate) number: u64,
    /// The process that holds it.
    process: u32,
    /// When the lease was granted to this process.
    pub(crate) since: Moment,
    pub(crate) fence: Fence,
    /// The mode of the grant.
    granted: Mode,
    /// The holder has made it shared.
    downgraded: AtomicBool,
    belief: Mutex<Belief>,
    lost: Arc<Notify>,
}

#[derive(Debug)]
struct Belief {
    state: GuardState,
    reason: Option<LostReason>,
    /// The store has not yet confirmed the downgrade to shared.
    downgrading: bool,
    /// `None` for a session lock, which has no deadline.
    deadline: Option<Moment>,
    ttl: Duration,
    /// The longest ttl that was ever asked for.
    longest: Duration,
    renew_every: Duration,
    /// Renewals do not extend the lease past this moment.
    hold_until: Moment,
    /// `hold_until` cut the last confirmed renewal short, so there is nothing more to ask for.
    capped: bool,
    renewals: u64,
    /// Counts shortenings: the answer to a request sent before one must not move the deadline after it.
    epoch: u32,
    /// When the renewal in flight was sent.
    in_flight: Option<Moment>,
    /// When to renew, or to give up on the renewal in flight.
    next: Moment,
    /// The lease's position in the renewal loop's queue; `NEVER` if it is not in it.
    due: Moment,
    watch: Watch,
}

/// Whether the client waits for the store to report the end of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    No,
    Pending,
    /// The store reported it, and the loop checks what happened. The client does not wait again before the next check:
    /// a store that always reports at once must not keep the loop busy.
    Reported,
}

/// The settings of a held lease.
pub(crate) struct Terms {
    pub(crate) name: Name,
    pub(crate) id: LeaseId,
    pub(crate) owner: Arc<str>,
    pub(crate) number: u64,
    pub(crate) ttl: Duration,
    pub(crate) renew_every: Duration,
    /// Counted from the first grant; for an adopted lease, from the adoption.
    pub(crate) max_hold: Option<Duration>,
}

/// What the renewal loop has to do for a held lease.
pub(crate) enum Task {
    /// Nothing until it is due again, if ever.
    Nothing,
    /// Release a session lock that was held too long.
    Release,
    /// Send this renewal.
    Renew(Box<Renewal>, Sent),
}

/// When and in which epoch a renewal was sent, and whether `hold_until` cut it short.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    at: Moment,
    epoch: u32,
    capped: bool,
}

impl HeldLease {
    pub(crate) fn new(terms: Terms, sent: Moment, grant: &Grant, check_every: Option<Duration>) -> Self {
        // Where the store itself waited, the lease began after that wait.
        let since = sent + grant.waited;
        let hold_until = terms.max_hold.map_or(Moment::NEVER, |hold| since + hold);
        let deadline = deadline(sent, grant, terms.ttl).map(|deadline| deadline.min(hold_until));
        // Without a ttl there is nothing to renew; the loop only checks.
        let renew_every = if deadline.is_some() { Some(terms.renew_every) } else { check_every };
        // A repeated claim gets what is left of its lease, which must be renewed sooner.
        let soon = grant.left.map_or(Duration::MAX, |left| left / 2);
        let next = renew_every.map_or(Moment::NEVER, |every| since + every.min(soon));
        let capped = deadline.is_some() && terms.max_hold.is_some_and(|hold| hold <= terms.ttl);
        HeldLease {
            name: terms.name,
            id: terms.id,
            owner: terms.owner,
            number: terms.number,
            process: std::process::id(),
            since,
            fence: grant.fence,
            granted: grant.mode,
            downgraded: AtomicBool::new(false),
            belief: Mutex::new(Belief {
                state: GuardState::Held,
                reason: None,
                downgrading: false,
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

    /// The only way to change the belief. It checks the deadline first: one that has passed is a loss, even if nothing
    /// has noticed it yet. Then it makes the change, and reports it after unlocking.
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
        let (after, reason, fence) = (belief.state, belief.reason, self.fence);
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

    /// Whether this is the copy in a fork of the holder, which nothing renews. Checked before anything is locked: the
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

    /// Why the lease was lost, if it was.
    pub(crate) fn lost_reason(&self, clock: &dyn Clock) -> Option<LostReason> {
        if self.is_copy() {
            return Some(LostReason::Forked);
        }
        self.look(clock, |belief, _| belief.reason)
    }

    /// Notifies when the lease is lost; look at the reason after subscribing.
    pub(crate) fn lost_bell(&self) -> Arc<Notify> {
        Arc::clone(&self.lost)
    }

    /// The mode by now. Like the fence it is read without a lock, because a copy may ask for it.
    pub(crate) fn mode(&self) -> Mode {
        if self.downgraded.load(Ordering::SeqCst) { Mode::Shared } else { self.granted }
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

    /// The holder releases the lease. Returns whether it was held until now.
    pub(crate) fn release(&self, clock: &dyn Clock) -> bool {
        self.look(clock, |belief, _| {
            let held = belief.is_alive();
            if held {
                belief.state = GuardState::Released;
            }
            held
        })
    }

    /// Treats the lease as shared from now on, whatever the store answers; every renewal asks for the downgrade until
    /// the store has confirmed it. Returns false if the store already has.
    pub(crate) fn downgrade(&self) -> bool {
        let mut belief = self.belief.lock();
        if self.mode() != Mode::Shared {
            self.downgraded.store(true, Ordering::SeqCst);
            belief.downgrading = true;
        }
        belief.downgrading
    }

    /// Lowers the deadline to at most `ttl` from now, before the store is asked, and renews for no longer than that
    /// from now on. Returns how often the lease was renewed until now.
    pub(crate) fn shorten(&self, ttl: Duration, renew_every: Duration, clock: &dyn Clock) -> u64 {
        self.look(clock, |belief, now| {
            // A session lock has no ttl to shorten; it is checked as often as before.
            if belief.deadline.is_some() {
                let grant = Grant::new(self.fence, self.mode(), Some(ttl));
                belief.deadline = belief.deadline.min(deadline(now, &grant, ttl));
                belief.epoch += 1;
                belief.ttl = ttl;
                belief.renew_every = renew_every;
                // The shortening request renews too. A renewal beside it would only overtake it, and make it void.
                belief.next = now + renew_every;
            }
            belief.renewals
        })
    }

    /// Lets the lease be held for at most this long from now on.
    pub(crate) fn hold_for(&self, hold: Duration, clock: &dyn Clock) {
        self.look(clock, |belief, now| {
            belief.hold_until = belief.hold_until.min(now + hold);
            belief.deadline = belief.deadline.map(|deadline| deadline.min(belief.hold_until));
        });
    }

    /// Makes a renewal for `ttl` to send now, and the data that judges its answer.
    pub(crate) fn renewal(&self, ttl: Duration, clock: &dyn Clock) -> (Renewal, Sent) {
        self.look(clock, |belief, now| self.ask(belief, ttl, now))
    }

    fn ask(&self, belief: &mut Belief, ttl: Duration, now: Moment) -> (Renewal, Sent) {
        let left = belief.hold_until.since(now);
        let asked = ttl.min(left);
        // Count it from now on: the store may act although its answer is lost.
        belief.longest = belief.longest.max(asked);
        let mut renewal = Renewal::new(self.name.clone(), self.id, asked);
        renewal.fence = Some(self.fence);
        renewal.mode = belief.downgrading.then_some(Mode::Shared);
        let capped = belief.deadline.is_some() && left <= ttl;
        (renewal, Sent { at: now, epoch: belief.epoch, capped })
    }

    /// Applies a confirmed renewal. A confirmation after the deadline is too late.
    pub(crate) fn confirm(&self, sent: Sent, grant: &Grant, clock: &dyn Clock) {
        self.look(clock, |belief, _| {
            if bugs::on(Bug::LostNotFinal) {
                belief.reason = None;
            } else if !belief.is_alive() {
                return;
            }
            // Answers may arrive in another order than the store gave them.
            belief.renewals = belief.renewals.max(grant.renewals);
            belief.downgrading &= grant.mode != Mode::Shared;
            if sent.epoch == belief.epoch {
                // Unless the lease was shortened in between, both deadlines are valid, so the later one is used.
                let confirmed =
                    deadline(sent.at, grant, belief.longest).map(|deadline| deadline.min(belief.hold_until));
                belief.deadline = belief.deadline.max(confirmed);
                belief.capped = sent.capped;
                belief.next = if belief.capped { Moment::NEVER } else { sent.at + belief.renew_every };
            }
            // Even if a later renewal is in flight: the store is reachable.
            belief.in_flight = None;
            belief.state = GuardState::Held;
        });
    }

    /// The store refused a renewal: the lease is gone.
    pub(crate) fn refuse(&self, gone: Gone, clock: &dyn Clock) {
        self.look(clock, |belief, _| belief.lose(LostReason::Refused(gone)));
    }

    /// Marks the lease as lost because nothing renews or checks it any more. Does not read the clock, which may be
    /// what has failed.
    pub(crate) fn abandon(&self) {
        let mut belief = self.belief.lock();
        let held = belief.is_alive();
        belief.lose(LostReason::Unattended);
        let reason = belief.reason;
        drop(belief);
        if held {
            self.lost.notify_waiters();
            telemetry::lost(&self.name, self.fence, reason);
        }
    }

    /// A renewal failed.
    pub(crate) fn fail(&self, sent: Sent, why: &dyn Display, clock: &dyn Clock) {
        self.update(clock, why, |belief, now| {
            // Unless a later renewal is in flight already.
            if belief.in_flight.is_none_or(|at| at == sent.at) {
                belief.in_flight = None;
                belief.next = now + retry_after(belief.pace());
            }
            belief.risk();
        });
    }

    /// What to do when the lease is due.
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

    /// The claim to call `wait` with to learn of the end of the lease, if it is time to begin.
    pub(crate) fn begin_watch(&self) -> Option<Claim> {
        let mut belief = self.belief.lock();
        let begin = belief.is_alive() && belief.watch == Watch::No;
        belief.watch = if begin || belief.watch == Watch::Pending { Watch::Pending } else { Watch::No };
        let claim = Claim::new(self.name.clone(), self.mode(), belief.ttl, Arc::clone(&self.owner));
        begin.then_some(Claim { id: self.id, first: false, ..claim })
    }

    /// The store reported that the lease may be over: check at once.
    pub(crate) fn reported(&self, clock: &dyn Clock) {
        self.look(clock, |belief, now| {
            belief.watch = Watch::Reported;
            // A renewal in flight is answered soon enough.
            if belief.in_flight.is_none() {
                belief.next = belief.next.min(now);
            }
        });
    }

    /// How long a renewal may take.
    pub(crate) fn renewal_timeout(&self) -> Duration {
        renewal_timeout(self.belief.lock().pace())
    }

    /// When the loop has to look again, which is the lease's new position in the queue; and its old position.
    pub(crate) fn schedule(&self) -> (Moment, Moment) {
        let mut belief = self.belief.lock();
        let had = belief.due;
        let end = belief.deadline.unwrap_or(belief.hold_until);
        belief.due = if belief.is_alive() { belief.next.min(end) } else { Moment::NEVER };
        (had, belief.due)
    }

    /// Removes the lease from the loop's queue. Returns its old position.
    pub(crate) fn unschedule(&self) -> Moment {
        std::mem::replace(&mut self.belief.lock().due, Moment::NEVER)
    }
}

impl Belief {
    fn is_alive(&self) -> bool {
        matches!(self.state, GuardState::Held | GuardState::AtRisk)
    }

    /// The base of its timeouts and pauses: the ttl, or the closest equivalent for a session lock, whose ttl means
    /// nothing.
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
    fn deadlines_and_first_renewals_match_the_sdk_vectors() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../../../sdk/vectors.json")).unwrap();
        let millis =
            |case: &serde_json::Value, field: &str| Duration::from_millis(case[field].as_u64().unwrap());
        let nanos = |case: &serde_json::Value, field: &str| case[field].as_u64().unwrap();
        let granted = |case| Grant::new(Fence::new(1), Mode::Exclusive, Some(millis(case, "expires_in_ms")));
        for case in vectors["pure"]["deadlines"].as_array().unwrap() {
            let grant = Grant { waited: millis(case, "waited_ms"), ..granted(case) };
            let sent = nanos(case, "sent_ns");
            let end = deadline(Moment::from_nanos(sent), &grant, millis(case, "ttl_ms"));
            // One that had passed when the claim was sent is that moment here: both are too late.
            let expected = case["deadline_ns"].as_i64().unwrap().max(sent.cast_signed());
            assert_eq!(end.map(Moment::as_nanos), Some(expected.cast_unsigned()), "{case}");
        }
        for case in vectors["pure"]["first_renewals"].as_array().unwrap() {
            let ttl = millis(case, "ttl_ms");
            let terms = Terms { ttl, renew_every: ttl / 3, ..terms(None) };
            let cell = HeldLease::new(terms, Moment::from_nanos(7), &granted(case), None);
            assert_eq!(cell.belief.lock().next.as_nanos(), 7 + nanos(case, "after_ns"), "{case}");
        }
        for case in vectors["pure"]["renewal_timeouts"].as_array().unwrap() {
            let timeout = renewal_timeout(millis(case, "ttl_ms"));
            assert_eq!(timeout.as_nanos(), u128::from(nanos(case, "timeout_ns")), "{case}");
        }
        for case in vectors["pure"]["renewal_retries"].as_array().unwrap() {
            let pause = retry_after(millis(case, "ttl_ms"));
            assert_eq!(pause.as_nanos(), u128::from(nanos(case, "after_ns")), "{case}");
        }
    }

    #[test]
    fn a_store_clock_set_back_never_extends_belief_past_the_ttl() {
        let sent = Moment::from_nanos(1_000_000_000);
        let hour = Grant::new(Fence::new(1), Mode::Exclusive, Some(Duration::from_secs(3600)));
        let most = Some(sent + Duration::from_millis(29_698));
        assert_eq!(deadline(sent, &hour, Duration::from_secs(30)), most);
        let cell = HeldLease::new(terms(None), sent, &hour, None);
        assert_eq!(cell.belief.lock().deadline, most);
        let clock = crate::clock::SystemClock;
        let grant = Grant::new(Fence::new(1), Mode::Exclusive, Some(Duration::from_secs(30)));
        let cell = HeldLease::new(terms(None), clock.now(), &grant, None);
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
            let cell = HeldLease::new(terms(None), sent, &grant, None);
            assert_eq!(cell.schedule().1, sent + Duration::from_millis(due), "{left} s left");
        }
    }

    #[test]
    fn waiting_in_the_store_is_not_holding() {
        let sent = Moment::from_nanos(1_000_000_000);
        let (waited, hold) = (Duration::from_secs(100), Duration::from_secs(60));
        let left = Some(Duration::from_secs(30));
        let grant = Grant { waited, ..Grant::new(Fence::new(1), Mode::Exclusive, left) };
        let cell = HeldLease::new(terms(Some(hold)), sent, &grant, None);
        assert_eq!(cell.since, sent + waited);
        assert_eq!(cell.belief.lock().hold_until, sent + waited + hold);
        assert_eq!(cell.schedule().1, sent + waited + Duration::from_secs(10));
    }
}
