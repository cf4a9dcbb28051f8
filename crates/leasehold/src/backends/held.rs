//! Leases of stores that keep them in the holder's process: what a claim, a renewal and a release do to an existing
//! lease, and which ids are spent. No I/O.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Attempt, Claim, Gone, Grant, Release, Renewal, SPENT_FOR};
use crate::clock::Moment;
use crate::engine::reporter;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

/// With fewer spent ids than this, do not look for old ones to forget.
const PURGE_FROM: usize = 1024;

/// A lease, without the part that holds it in the store.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) grant: Grant,
    pub(crate) owner: Arc<str>,
    ttl: Duration,
    nonce: u64,
    repeated: bool,
}

impl Held {
    /// The lease of a claim that was granted at this wall-clock time.
    pub(crate) fn new(claim: &Claim, fence: Fence, wall_micros: u64) -> Self {
        if fence > Fence::WARN {
            reporter::log(
                move || tracing::warn!(%fence, "a fence is far above the clock of today: some clock was in the future"),
            );
        }
        Held {
            grant: Grant { acquired_at_ms: wall_micros / 1000, ..Grant::new(fence, claim.mode, None) },
            owner: Arc::clone(&claim.owner),
            ttl: claim.ttl,
            nonce: claim.nonce,
            repeated: claim.repeat,
        }
    }

    /// The answer to a repeated claim.
    pub(crate) fn again(&mut self, claim: &Claim) -> Result<Attempt> {
        if !self.grant.mode.is_same_kind(claim.mode) {
            return Err(claim.mode.mismatch(self.grant.mode));
        }
        if !claim.first && self.nonce != claim.nonce {
            return Ok(Attempt::Gone(Gone::Superseded));
        }
        self.nonce = claim.nonce;
        self.repeated |= claim.repeat;
        Ok(Attempt::Granted(self.grant.clone()))
    }

    /// Whether fence and owner match this lease.
    pub(crate) fn matches(&self, fence: Option<Fence>, owner: Option<&str>) -> bool {
        fence.is_none_or(|fence| fence == self.grant.fence) && owner.is_none_or(|owner| owner == &*self.owner)
    }

    /// Records a renewal that was found valid.
    pub(crate) fn renewed(&mut self, renewal: &Renewal) -> Grant {
        if renewal.shorten.is_none_or(|count| count == self.grant.renewals) {
            self.grant.fence = self.grant.fence.max(renewal.raise_fence.unwrap_or(Fence::UNFENCED));
            self.grant.renewals += 1;
            self.ttl = self.ttl.max(renewal.ttl);
        }
        self.grant.clone()
    }

    /// Whether this release ends the lease, and with which ttl its id is then spent, if at all; or why it does not.
    pub(crate) fn ended_by(&self, release: &Release) -> Result<Option<Duration>, Gone> {
        if release.nonce.is_some_and(|nonce| nonce != self.nonce) {
            return Err(Gone::Superseded);
        }
        if !self.matches(release.fence, release.owner.as_deref()) {
            return Err(Gone::NotFound);
        }
        Ok(self.spends().max(release.unanswered.map(|ttl| ttl.max(self.ttl))))
    }

    /// The ttl with which its id is spent however it ends, if at all.
    pub(crate) fn spends(&self) -> Option<Duration> {
        self.repeated.then_some(self.ttl)
    }
}

/// Ids that are refused for a while, because an attempt with them may still be in transit.
#[derive(Debug, Default)]
pub(crate) struct Spent {
    until: HashMap<(Name, LeaseId), Moment>,
    purge_at: usize,
}

impl Spent {
    pub(crate) fn contains(&self, name: &Name, id: &LeaseId, now: Moment) -> bool {
        self.until.get(&(name.clone(), *id)).is_some_and(|until| *until > now)
    }

    /// Spends an id if `ttl` is set.
    pub(crate) fn add(&mut self, name: &Name, id: LeaseId, ttl: Option<Duration>, now: Moment) {
        let Some(ttl) = ttl else { return };
        if self.until.len() >= self.purge_at.max(PURGE_FROM) {
            self.until.retain(|_, until| *until > now);
            self.purge_at = self.until.len() * 2;
        }
        let until = now + ttl.max(SPENT_FOR);
        let spent = self.until.entry((name.clone(), id)).or_insert(until);
        *spent = (*spent).max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Mode;

    /// A test of promise 9.
    #[test]
    fn only_the_latest_attempt_gives_back_and_repeats_a_lease() {
        let mut claim = Claim::new(Name::new("x").unwrap(), Mode::Exclusive, Duration::from_secs(1), "me");
        (claim.nonce, claim.first) = (1, true);
        let mut held = Held::new(&claim, Fence::new(7), 0);
        let older = claim.clone();
        claim.nonce = 2;
        assert!(matches!(held.again(&claim), Ok(Attempt::Granted(_))));
        let mut release = Release::new(claim.name.clone(), claim.id);
        release.nonce = Some(1);
        assert_eq!(held.ended_by(&release), Err(Gone::Superseded));
        release.nonce = Some(2);
        assert_eq!(held.ended_by(&release), Ok(None));
        let again = held.again(&Claim { first: false, ..older });
        assert!(matches!(again, Ok(Attempt::Gone(Gone::Superseded))));
    }
}
