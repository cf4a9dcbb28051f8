//! How long the lease may be relied on: by its own deadline and, once it was revoked, by what the store says.
//!
//! A revoked lease is lost, because it will not be renewed, but nobody else gets the lock before it expires. That
//! leaves the command time to end in good order, unless the lock was freed at once (`revoke --now`). A renewal cannot
//! tell which, so the store is asked. Until it has answered, the command has only been asked to end.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all, pending};
use leasehold::clock::Moment;
use leasehold::{Gone, Guard, GuardState, Locks, LostReason};

use super::hold::Hold;
use super::now;

/// How long the store may take to say whether a revoked lease still keeps others out.
const ANSWER: Duration = Duration::from_secs(1);

pub(crate) struct Validity<'a> {
    hold: &'a Hold,
    locks: &'a Locks,
    /// The deadline when the lease was last seen to be held. Deadlines only move forward, so an old one is early.
    deadline: Option<Moment>,
    verdict: Verdict<'a>,
    at_risk: bool,
}

/// Whether a revoked lease keeps others out until it expires.
enum Verdict<'a> {
    Unknown,
    Pending(BoxFuture<'a, bool>),
    Known(bool),
}

/// A change to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Renewals are late or fail.
    AtRisk(Duration),
    /// Renewals work again.
    Renewed,
}

impl<'a> Validity<'a> {
    pub(crate) fn new(hold: &'a Hold, locks: &'a Locks) -> Self {
        Validity { hold, locks, deadline: None, verdict: Verdict::Unknown, at_risk: false }
    }

    /// Whether renewals are refused while others, as far as is known, are still kept out. A lease that is lost for
    /// another reason keeps nobody out.
    pub(crate) fn is_revoked(&self) -> bool {
        let mut reasons = self.hold.guards().iter().filter_map(|guard| guard.lost().now()).peekable();
        reasons.peek().is_some()
            && reasons.all(|reason| reason == LostReason::Refused(Gone::Revoked))
            && !matches!(self.verdict, Verdict::Known(false))
    }

    /// How long the lease may be relied on; `None` if it does not expire.
    pub(crate) fn valid_for(&mut self) -> Option<Duration> {
        // Read the clock first, so that the result is early rather than late.
        let now = now();
        let valid = self.hold.valid_for();
        match valid {
            Some(Duration::ZERO) if self.is_revoked() => {
                Some(self.deadline.map_or(Duration::ZERO, |deadline| deadline.since(now)))
            }
            Some(Duration::ZERO) | None => valid,
            Some(valid) => {
                self.deadline = Some(now + valid);
                Some(valid)
            }
        }
    }

    /// Asks the store anew: another lease was lost.
    pub(crate) fn ask_again(&mut self) {
        self.verdict = Verdict::Unknown;
    }

    /// Asks the store about the revoked leases. Resolves when there is something new. Cancel safe.
    pub(crate) async fn learned(&mut self) {
        if let Verdict::Unknown = self.verdict
            && self.is_revoked()
        {
            self.verdict = Verdict::Pending(all_stand(self.hold, self.locks).boxed());
        }
        match &mut self.verdict {
            Verdict::Pending(answer) => {
                let stands = answer.await;
                self.verdict = Verdict::Known(stands);
            }
            _ => pending().await,
        }
    }

    /// How renewals are going, given the ttl, and when to look again. Renewed at a third of its ttl, a lease has more
    /// than three fifths left unless something is wrong.
    pub(crate) fn renewals(&mut self, ttl: Duration) -> (Option<Change>, Moment) {
        let now = now();
        let due = self.deadline.map_or(now, |deadline| deadline - ttl * 3 / 5);
        let again = now + ttl / 20;
        match (self.hold.state(), self.at_risk) {
            (GuardState::AtRisk, false) if now >= due => {
                self.at_risk = true;
                (Some(Change::AtRisk(self.hold.valid_for().unwrap_or_default())), again)
            }
            (GuardState::Held, true) => {
                self.at_risk = false;
                (Some(Change::Renewed), due.max(again))
            }
            (_, true) => (None, again),
            (_, false) => (None, due.max(again)),
        }
    }
}

/// Whether the store still has every lease that was revoked.
async fn all_stand(hold: &Hold, locks: &Locks) -> bool {
    let lost = hold.guards().iter().filter(|guard| guard.lost().now().is_some());
    join_all(lost.map(|guard| stands(guard, locks))).await.into_iter().all(|stands| stands)
}

/// Whether the store still has this very lease, marked as revoked. If it cannot say so, the lock may belong to another
/// client.
async fn stands(guard: &Guard, locks: &Locks) -> bool {
    // Look it up by id, since it may be one of very many.
    let look = async {
        if locks.info().find_by_id {
            locks.find(guard.lease_id()).await
        } else {
            locks.inspect(guard.name().as_str()).await.map(Some)
        }
    };
    let Ok(Ok(Some(info))) = tokio::time::timeout(ANSWER, look).await else { return false };
    info.holders.iter().any(|holder| holder.revoked && holder.grant.fence == guard.fence())
}
