//! Claims made directly on the backend, as another language's client makes plain leases: one attempt each, repeated
//! with the same id, renewed and released by hand.

use std::time::Duration;

use leasehold::backend::{Attempt, Claim, Grant, Release, Released, Renewal, Renewed};
use leasehold::clock::{Clock as _, Moment};

use super::count::Count;
use super::worker::Claiming;
use crate::history::record::{Kind, Record, hash};

/// What a claim got.
pub(crate) struct Held {
    pub(crate) claim: Claim,
    pub(crate) fence: u64,
}

impl Claiming {
    /// One lease from a claim to its release.
    pub(crate) async fn bare(&self) {
        let Ok(name) = self.worker.locks.name(self.name()) else { return };
        let mut claim = Claim::new(name, self.mode(), self.ttl, "bare");
        // A client that may repeat an answered claim marks it from the start: a repeat that arrives after the lease
        // has ended must not start it again.
        let insists = self.world().chance().per_mille(300);
        claim.repeat = insists;
        let mut held = None;
        let mut until = None;
        // Repeats a claim whose answer was lost, and now and then an answered one as well.
        for again in 0..3 {
            match self.attempt(&claim, again > 0, until).await {
                Some(Some((grant, deadline))) => {
                    held = Some(Held { claim: claim.clone(), fence: grant.fence.get() });
                    // Both are true bounds; the later one is the better.
                    until = until.max(Some(deadline));
                    if !insists {
                        break;
                    }
                }
                Some(None) => {
                    held = None;
                    break;
                }
                None => {}
            }
            claim.repeat = true;
        }
        let Some(held) = held else {
            // A claim that was never answered, or answered late, is given up: its id is spent.
            if claim.repeat {
                let mut release = Release::new(claim.name.clone(), claim.id);
                release.unanswered = Some(claim.ttl);
                let _ = self.timely(self.worker.locks.backend().release(&release)).await;
            }
            return;
        };
        self.keep(&held).await;
        self.let_go(&held).await;
    }

    /// One attempt: granted, busy, or unknown. A grant after the end of the lease that it repeats is another lease,
    /// which nobody asked for.
    async fn attempt(&self, claim: &Claim, again: bool, until: Option<u64>) -> Option<Option<(Grant, u64)>> {
        let lease = hash(claim.id.expose().as_bytes());
        let deadline = claim.ttl.as_nanos() as u64;
        self.world().write(Record { lease, deadline, ..self.record(Kind::AcquireCall) });
        let sent = self.worker.process.clock.now();
        match self.timely(self.worker.locks.backend().try_acquire(claim)).await {
            Some(Ok(Attempt::Granted(grant))) => {
                let at = self.record(Kind::Granted);
                let deadline = self.deadline(sent, &grant, at.at);
                if until.is_some_and(|until| at.at >= until) {
                    self.world().write(Record { lease, ..self.record(Kind::AcquireFailed) });
                    return Some(None);
                }
                if again {
                    self.world().count(Count::Repeated);
                }
                let value = u64::from(again);
                self.world().write(Record { lease, fence: grant.fence.get(), deadline, value, ..at });
                Some(Some((grant, deadline)))
            }
            Some(Ok(Attempt::Busy(_))) => {
                self.world().write(Record { lease, ..self.record(Kind::Busy) });
                Some(None)
            }
            // Its id is refused: that ends this claim.
            Some(Ok(_)) => {
                self.world().write(Record { lease, ..self.record(Kind::AcquireFailed) });
                Some(None)
            }
            Some(Err(_)) | None => {
                self.world().write(Record { lease, ..self.record(Kind::AcquireFailed) });
                None
            }
        }
    }

    /// Holds it for a while, renewing now and then.
    pub(crate) async fn keep(&self, held: &Held) {
        let lease = hash(held.claim.id.expose().as_bytes());
        loop {
            let (nap, go_on) = {
                let mut chance = self.world().chance();
                (chance.part(self.ttl, 0, 60), chance.per_mille(500))
            };
            self.world().sleep(nap).await;
            if !go_on {
                return;
            }
            let value = self.ttl.as_nanos() as u64;
            let common = Record { lease, fence: held.fence, ..self.common };
            let call = Record { value, ..self.record(Kind::RenewCall) };
            self.world().write(Record { lease, fence: held.fence, ..call });
            let renewal = Renewal::new(held.claim.name.clone(), held.claim.id, self.ttl);
            let sent = self.worker.process.clock.now();
            let backend = self.worker.locks.backend();
            let answer = self.timely(backend.renew(std::slice::from_ref(&renewal))).await;
            let at = self.world().time.now();
            let record = match answer.and_then(|mut answers| answers.pop()) {
                Some(Ok(Renewed::Held(grant))) => {
                    Record { kind: Kind::Renewed, at, deadline: self.deadline(sent, &grant, at), ..common }
                }
                Some(Ok(_)) => Record { kind: Kind::RenewRefused, at, ..common },
                _ => Record { kind: Kind::RenewFailed, at, ..common },
            };
            self.world().write(record);
            if record.kind == Kind::RenewRefused {
                return;
            }
        }
    }

    /// Releases it, perhaps twice.
    pub(crate) async fn let_go(&self, held: &Held) {
        let lease = hash(held.claim.id.expose().as_bytes());
        let mut release = Release::new(held.claim.name.clone(), held.claim.id);
        release.unanswered = held.claim.repeat.then_some(self.ttl);
        for _ in 0..2 {
            let common = Record { lease, fence: held.fence, ..self.common };
            self.world().write(Record { kind: Kind::ReleaseCall, at: self.world().time.now(), ..common });
            let answer = self.timely(self.worker.locks.backend().release(&release)).await;
            let kind = match answer {
                Some(Ok(Released::Done)) => Kind::Released,
                Some(Ok(_)) => Kind::ReleasedNothing,
                _ => Kind::ReleaseFailed,
            };
            self.world().write(Record { kind, at: self.world().time.now(), ..common });
            if kind != Kind::ReleaseFailed && self.world().chance().per_mille(700) {
                return;
            }
        }
    }

    pub(crate) async fn timely<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(self.world().plan.request_timeout, call).await.ok()
    }

    /// Until when a grant may be relied on: promise 7, as the library computes it for guards.
    pub(crate) fn deadline(&self, sent: Moment, grant: &Grant, at: u64) -> u64 {
        // If a store's clock was set back, nobody relies on more than was requested.
        let span = grant.waited + grant.left.unwrap_or_default().min(self.ttl);
        let end = sent + span.saturating_sub(span / 100).saturating_sub(Duration::from_millis(2));
        self.after(at, end.since(self.worker.process.clock.now()))
    }
}
