//! What the running calls to the store use of their token's limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::ErrorKind;
use leasehold::backend::{Claim, Gone, Grant, Release, Released, Renewal, Renewed};

use super::usage::{Full, Key};
use super::{Token, Verb};
use crate::problem::Refusal;

impl Token {
    /// The store answered a release that was sent at this time.
    pub(crate) fn released(&self, release: &Release, sent: Instant, answer: &Released) {
        let over = match answer {
            Released::Done => true,
            Released::Gone(gone) => is_over(*gone, release.fence.is_none() && release.owner.is_none()),
            _ => false,
        };
        if over {
            self.usage().ended(&(release.name.clone(), release.id), sent, Instant::now());
        }
    }
}

/// Whether the answer proves that the lease is gone. It may still be there if it was revoked, has a higher fence, or
/// was not examined because fence or owner did not match.
fn is_over(gone: Gone, any_will_do: bool) -> bool {
    match gone {
        Gone::Expired => true,
        Gone::NotFound => any_will_do,
        _ => false,
    }
}

/// What one acquire may use of its token's limits, from before the store is asked until none of its calls is in
/// flight.
#[derive(Debug)]
pub(crate) struct Share {
    token: Arc<Token>,
    key: Key,
    waits: bool,
    /// How long a queue place is kept after its last sign of life.
    kept_for: Duration,
}

impl Share {
    /// Reserves room for what this claim may get: a lease and, if it waits or queues, a place.
    pub(crate) fn of(token: &Arc<Token>, claim: &Claim, waits: bool) -> Result<Self, Refusal> {
        let key = (claim.name.clone(), claim.id);
        let waits = waits || claim.queue.is_some();
        let entered = token.usage().enter(&key, waits, &token.limits(), Instant::now());
        entered.map_err(|full| {
            let why = match full {
                Full::Leases => "this token has as many leases as it may, including those it waits for",
                Full::Waiters => "too many requests of this token wait, or have left a place in a queue",
            };
            Refusal::too_many(why, 1000)
        })?;
        let kept_for = claim.queue.unwrap_or_default();
        Ok(Share { token: Arc::clone(token), key, waits, kept_for })
    }

    /// Whether the token still allows it.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        self.token.may(Verb::Acquire, self.key.0.as_str())
    }

    /// Resolves when the token no longer allows it.
    pub(crate) async fn barred(&self) -> Refusal {
        loop {
            let mut rung = std::pin::pin!(self.token.bell.notified());
            // Listen first, look second: a change in between is not missed.
            rung.as_mut().enable();
            if let Err(refusal) = self.check() {
                return refusal;
            }
            rung.await;
        }
    }

    /// The store granted the lease, or still has it.
    pub(crate) fn granted(&self, grant: &Grant) {
        self.token.usage().granted(&self.key, grant, Instant::now());
    }

    /// The store gave a queue place, or still keeps it.
    pub(crate) fn placed(&self) {
        self.token.usage().placed(&self.key, self.kept_for, Instant::now());
    }

    /// The store answered a release of it that was sent at this time.
    pub(crate) fn given_back(&self, release: &Release, sent: Instant, answer: &Released) {
        self.token.released(release, sent, answer);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.token.usage().leave(&self.key, self.waits, self.kept_for, Instant::now());
    }
}

/// Renewals in flight. If they are dropped without an answer they may still have succeeded, so the leases stay counted
/// for as long as they could last: a client that disconnects, or a silent store, makes no lease outlast its count.
#[derive(Debug)]
pub(crate) struct Renewing<'a> {
    /// `None` without tokens, and once the answers have come.
    token: Option<&'a Token>,
    leases: &'a [Renewal],
    sent: Instant,
    /// Which of the leases were counted before; they stay counted meanwhile.
    known: Vec<bool>,
}

fn key(renewal: &Renewal) -> Key {
    (renewal.name.clone(), renewal.id)
}

impl<'a> Renewing<'a> {
    pub(crate) fn of(token: Option<&'a Token>, leases: &'a [Renewal]) -> Self {
        let known = token.map(|token| {
            let mut usage = token.usage();
            leases.iter().map(|renewal| usage.stays(&key(renewal))).collect()
        });
        Renewing { token, leases, sent: Instant::now(), known: known.unwrap_or_default() }
    }

    pub(crate) fn answered(mut self, answers: &[leasehold::Result<Renewed>]) {
        self.settle(answers);
    }

    fn settle(&mut self, answers: &[leasehold::Result<Renewed>]) {
        let Some(token) = self.token.take() else { return };
        let (mut usage, now) = (token.usage(), Instant::now());
        for (number, renewal) in self.leases.iter().enumerate() {
            let key = key(renewal);
            let any_will_do = renewal.fence.is_none() && renewal.owner.is_none();
            match answers.get(number) {
                Some(Ok(Renewed::Held(grant))) => usage.lasts(&key, grant, now),
                Some(Ok(Renewed::Gone(gone))) if is_over(*gone, any_will_do) => {
                    usage.ended(&key, self.sent, now);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) if error.kind() == ErrorKind::Overloaded => {}
                _ => usage.may_last(&key, now + renewal.ttl),
            }
            if self.known.get(number) == Some(&true) {
                usage.leave(&key, false, Duration::ZERO, now);
            }
        }
    }
}

impl Drop for Renewing<'_> {
    fn drop(&mut self) {
        self.settle(&[]);
    }
}
