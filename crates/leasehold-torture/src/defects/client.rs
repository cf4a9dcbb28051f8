//! Defects of clients, and of a lock server as a client of its store: a layer between them and the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::backend::{
    Attempt, Backend, Busy, Claim, Gone, Grant, Info, Liveness, Mode, Page, Query, Release, Released,
    Renewal, Renewed, Revoked, SPENT_FOR, Swept, Wake,
};
use leasehold::bugs::{Bug, on};
use leasehold::clock::{Clock, Moment};
use leasehold::{Fence, LeaseId, LocksBuilder, Name, Result};
use parking_lot::Mutex;

/// A store as used by a client with a defect.
#[derive(Debug)]
struct Defective {
    store: Arc<dyn Backend>,
    /// The client's own clock.
    clock: Arc<dyn Clock>,
    /// Ids whose latest attempt went unanswered.
    unanswered: Mutex<BTreeSet<LeaseId>>,
    /// The ids under which the store knows the client's ids, if they differ.
    sent_as: Mutex<BTreeMap<LeaseId, LeaseId>>,
    /// Leases that the client was granted or has adopted.
    held: Mutex<BTreeSet<LeaseId>>,
    /// Since when claims wait.
    waits: Mutex<BTreeMap<LeaseId, Moment>>,
}

/// [`Bug::WaitersLetInLate`]: longer than any waiter with a limit waits in a run.
const LATE: Duration = Duration::from_millis(600);

/// Puts the layer around the store of a client with this clock, if any defect is planted: without one, a run shows the
/// library as it is.
pub(crate) fn plant(builder: LocksBuilder, clock: Arc<dyn Clock>) -> LocksBuilder {
    if !Bug::ALL.iter().any(|bug| on(*bug)) {
        return builder;
    }
    let (unanswered, sent_as, held, waits) = Default::default();
    builder.layer(|store| Arc::new(Defective { store, clock, unanswered, sent_as, held, waits }))
}

impl Defective {
    fn id(&self, id: LeaseId) -> LeaseId {
        self.sent_as.lock().get(&id).copied().unwrap_or(id)
    }

    /// The claim that is sent.
    fn claim(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        claim.id = self.id(claim.id);
        if on(Bug::HttpRepeatsWithNewId) && claim.repeat {
            claim.id = LeaseId::random();
        }
        if on(Bug::PermitGrantedAsLock) && matches!(claim.mode, Mode::Permit { .. }) {
            claim.mode = Mode::Exclusive;
        }
        claim
    }

    /// Whether a waiter does not get the lock yet.
    fn is_early(&self, claim: &Claim) -> bool {
        let now = self.clock.now();
        claim.queue.is_some() && now.since(*self.waits.lock().entry(claim.id).or_insert(now)) < LATE
    }

    /// The grant that the client sees.
    fn granted(&self, claim: &Claim, grant: Grant, sent: Moment) -> Grant {
        self.held.lock().insert(claim.id);
        if on(Bug::MemoryKept) {
            // Not zeros: pages that were never written to take no memory.
            std::mem::forget(vec![7_u8; 256 << 10]);
        } else if on(Bug::DescriptorsKept) {
            std::mem::forget(std::fs::File::open("/dev/null"));
        }
        self.measured(grant, claim.ttl, sent)
    }

    /// A client computes its deadline from `sent + waited + left`, subtracts one percent and 2 ms, and relies on no
    /// more than it requested. Changing `waited` moves the deadline as each defect does.
    fn measured(&self, mut grant: Grant, asked: Duration, sent: Moment) -> Grant {
        let Some(left) = grant.left else { return grant };
        if on(Bug::DeadlineFromReceipt) {
            grant.waited = self.clock.now().since(sent);
        } else if on(Bug::LeftNotCapped) {
            grant.waited += left.saturating_sub(asked);
        } else if on(Bug::DeadlineWithoutMargin) {
            let span = grant.waited + left.min(asked);
            grant.waited += (span + Duration::from_millis(2)) * 100 / 99 - span;
        }
        grant
    }

    fn renewed(&self, renewal: &Renewal, answer: Result<Renewed>, sent: Moment) -> Result<Renewed> {
        let held = |left| {
            let mode = renewal.mode.unwrap_or(Mode::Exclusive);
            Ok(Renewed::Held(Grant::new(renewal.fence.unwrap_or_default(), mode, left)))
        };
        match answer {
            Ok(Renewed::Held(grant)) => {
                self.held.lock().insert(renewal.id);
                Ok(Renewed::Held(self.measured(grant, renewal.ttl, sent)))
            }
            Ok(Renewed::Gone(_))
                if on(Bug::SessionEndNotTold) && self.store.info().liveness == Liveness::Session =>
            {
                held(None)
            }
            Ok(Renewed::Gone(_)) if on(Bug::GoneAdopted) && self.held.lock().insert(renewal.id) => {
                held(Some(renewal.ttl))
            }
            Err(_) if on(Bug::FailureTakenForRenewal) => held(Some(renewal.ttl)),
            other => other,
        }
    }
}

#[async_trait]
impl Backend for Defective {
    fn info(&self) -> Info {
        self.store.info()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        if !self.unanswered.lock().insert(claim.id) && on(Bug::RetryWithNewId) {
            self.sent_as.lock().insert(claim.id, LeaseId::random());
        }
        let sent = self.clock.now();
        let answer = self.store.try_acquire(&self.claim(claim)).await;
        if on(Bug::WaitersLetInLate) && self.is_early(claim) {
            self.store.release(&Release::new(claim.name.clone(), claim.id)).await?;
            let mut busy = Busy::unknown();
            busy.retry_in = Some(LATE / 10);
            return Ok(Attempt::Busy(busy));
        }
        if answer.is_ok() {
            self.unanswered.lock().remove(&claim.id);
        }
        match answer {
            Ok(Attempt::Granted(grant)) => Ok(Attempt::Granted(self.granted(claim, grant, sent))),
            Ok(Attempt::Busy(_)) if on(Bug::BusyTakenForHeld) => {
                Ok(Attempt::Granted(Grant::new(Fence::new(1), claim.mode, Some(claim.ttl))))
            }
            Err(error) if on(Bug::ErrorReportedAsBusy) && error.is_retryable() => {
                Ok(Attempt::Busy(Busy::unknown()))
            }
            other => other,
        }
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let sent = self.clock.now();
        match self.store.wait(&self.claim(claim)).await {
            Ok(Wake::Granted(grant)) => Ok(Wake::Granted(self.granted(claim, grant, sent))),
            other => other,
        }
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut sent = leases.to_vec();
        for renewal in &mut sent {
            renewal.id = self.id(renewal.id);
            renewal.shorten = renewal.shorten.filter(|_| !on(Bug::ShortenIgnored));
            renewal.mode = renewal.mode.filter(|_| !on(Bug::DowngradeNotAsked));
        }
        let at = self.clock.now();
        let answers = self.store.renew(&sent).await;
        leases.iter().zip(answers).map(|(renewal, answer)| self.renewed(renewal, answer, at)).collect()
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        if on(Bug::DropWithoutGiveBack) && !self.held.lock().contains(&lease.id) {
            return Ok(Released::Gone(Gone::NotFound));
        }
        // Only a server's give-back for a vanished client has a nonce.
        if on(Bug::ServerKeepsVanished) && lease.nonce.is_some() {
            return Ok(Released::Gone(Gone::NotFound));
        }
        let mut release = lease.clone();
        release.id = self.id(release.id);
        if on(Bug::UnansweredNotSaid) {
            release.unanswered = None;
        } else if on(Bug::ReleasesLeaveIds) {
            release.unanswered = Some(SPENT_FOR);
        }
        self.store.release(&release).await
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        self.store.revoke(name, now, only).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.store.inspect(query).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.store.sweep().await
    }
}
