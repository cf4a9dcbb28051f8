//! Turns with plain leases: ids chosen by the caller, repeats, renewals, releases, and leases that are left to expire.

use std::time::Duration;

use leasehold::backend::{Attempt, Claim, Grant, Release, Released, Renewal, Renewed};
use leasehold::{Error, ErrorKind, Name, Result};

use crate::history::record::{Face, Kind, Mode};

use super::guards::Wait;
use super::pen::{now, recorded};
use super::{Part, Player};

/// What a task knows about a plain lease.
struct Kept {
    claim: Claim,
    /// Whether the caller chose the id; only then can the claim be repeated.
    chosen: bool,
    deadline: u64,
}

/// Whether an attempt is for a lease that its holder already has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    No,
    Yes,
}

impl Player {
    fn mode(&self) -> leasehold::Mode {
        match self.pen.mode {
            Mode::Exclusive => leasehold::Mode::Exclusive,
            Mode::Shared => leasehold::Mode::Shared,
            Mode::Permit => leasehold::Mode::Permit { limit: self.name().limit },
        }
    }

    /// One turn.
    pub(super) async fn take_lease(&mut self) {
        let Ok(name) = self.locks.name(&self.name().name) else { return };
        let taken =
            if self.dice.once_in(2) { self.take_chosen(name).await } else { self.take_waiting(name).await };
        let Some(mut kept) = taken else { return };
        if !kept.chosen && !self.renew_lease(&mut kept).await {
            return;
        }
        if self.part() != Part::Hot && self.task.abandons && self.dice.once_in(5) {
            // Left to expire.
            return;
        }
        self.keep_lease(&mut kept).await;
        self.release_lease(&kept).await;
        if self.dice.once_in(3) {
            // When another client may have it.
            tokio::time::sleep(self.dice.micros(20_000)).await;
            self.release_lease(&kept).await;
        }
    }

    /// Takes the quiet lock, which nobody waits for, and tries to renew it after its time is over: that is refused,
    /// even if nobody else has come.
    pub(super) async fn outlive(&mut self) {
        let quiet = self.task.names.len() - 1;
        (self.pen.name, self.pen.mode) = (quiet as u16, Mode::Exclusive);
        self.ttl = self.task.ttl();
        let Ok(name) = self.locks.name(&self.name().name) else { return };
        let Some(mut kept) = self.take_chosen(name).await else { return };
        // Beyond any difference between clocks.
        tokio::time::sleep(self.task.ttl().mul_f64(1.02)).await;
        if self.renew_lease(&mut kept).await {
            self.release_lease(&kept).await;
        }
    }

    /// One attempt with an id chosen here.
    async fn take_chosen(&mut self, name: Name) -> Option<Kept> {
        let mut claim = Claim::new(name, self.mode(), self.ttl, self.owner());
        // It may be repeated, and a repeat that comes after its end must not start it again.
        claim.repeat = true;
        self.pen.know(Some(claim.id), 0);
        let (grant, sent) = self.attempt(&claim, Repeat::No).await?;
        self.pen.know(Some(claim.id), grant.fence.get());
        // The mode that was granted, not the one requested.
        self.pen.mode = recorded(grant.mode);
        let until = deadline(sent, &grant, claim.ttl);
        self.pen.note(Kind::Granted, now(), until, 0);
        Some(Kept { claim, chosen: true, deadline: until })
    }

    /// One attempt, and when it was sent. If it may have been granted without an answer, it is repeated with the same
    /// claim, or given back. A repeat is not given back: the holder of that lease releases it.
    async fn attempt(&mut self, claim: &Claim, repeat: Repeat) -> Option<(Grant, u64)> {
        let patience = Duration::from_millis(self.task.patience_ms);
        let tries = if repeat == Repeat::No && self.task.repeats { self.dice.below(4) } else { 0 };
        for left in (0..=tries).rev() {
            let sent = now();
            let face = if left < tries { Face::Again } else { Face::Usual };
            self.pen.call(sent, self.asked(), 0, face);
            match within(patience, self.locks.backend().try_acquire(claim)).await {
                Ok(Attempt::Granted(grant)) => return Some((grant, sent)),
                // An earlier unanswered attempt may still arrive.
                Ok(answer) => {
                    let busy = matches!(answer, Attempt::Busy(_));
                    let (kind, value) = match (busy, repeat) {
                        (true, _) => (Kind::Busy, 0),
                        (false, repeat) => (Kind::AcquireFailed, u64::from(repeat == Repeat::Yes)),
                    };
                    self.pen.note(kind, now(), 0, value);
                    if left == tries {
                        return None;
                    }
                    break;
                }
                Err(_) if left > 0 => {
                    self.pen.note(Kind::AcquireFailed, now(), 0, 1);
                    self.rest().await;
                }
                Err(_) => self.pen.note(Kind::AcquireFailed, now(), 0, u64::from(repeat == Repeat::Yes)),
            }
        }
        let mut release = Release::new(claim.name.clone(), claim.id);
        release.unanswered = Some(claim.ttl);
        for _ in 0..if repeat == Repeat::Yes { 0 } else { 3 } {
            if within(patience, self.locks.backend().release(&release)).await.is_ok() {
                break;
            }
            self.rest().await;
        }
        None
    }

    /// Waits in the queue; the library chooses the id.
    async fn take_waiting(&mut self, name: Name) -> Option<Kept> {
        let wait = match self.wait() {
            Wait::Unbounded => Wait::For(self.task.ttl() * 4),
            wait => wait,
        };
        self.pen.know(None, 0);
        let called = now();
        self.pen.call(called, self.asked(), wait.nanos(), Face::Usual);
        let leasing = self.locks.leasing(&self.name().name).mode(self.mode());
        let leasing = leasing.ttl(self.ttl).owner(self.owner());
        let limit = Duration::from_nanos(wait.nanos());
        let mut finished = self.finished.clone();
        let taken = tokio::select! {
            taken = leasing.try_acquire_for(limit) => Some(taken),
            _ = finished.wait_for(|finished| *finished) => None,
        };
        let at = now();
        match taken {
            Some(Ok(Some(lease))) => {
                self.pen.know(Some(lease.id), lease.fence.get());
                self.pen.mode = recorded(lease.mode);
                // It is only known that it was not sent before the call: a renewal will tell more.
                let until = at.max(margin(called, self.ttl));
                self.pen.note(Kind::Granted, at, until, 0);
                let mut claim = Claim::new(name, lease.mode, lease.ttl, lease.owner);
                claim.id = lease.id;
                return Some(Kept { claim, chosen: false, deadline: until });
            }
            Some(Ok(None)) => self.pen.note(Kind::Busy, at, 0, 0),
            Some(Err(_)) => {
                self.pen.note(Kind::AcquireFailed, at, 0, 0);
                self.rest().await;
            }
            None => self.pen.note(Kind::AcquireDropped, at, 0, 0),
        }
        None
    }

    async fn keep_lease(&mut self, kept: &mut Kept) {
        let time = self.hold_for().min(self.ttl * 2);
        let end = now() + time.as_nanos() as u64;
        let protects = self.protects() && !time.is_zero();
        if protects {
            self.enter().await;
        }
        while now() < end && !*self.finished.borrow() {
            let at = now();
            if at < kept.deadline {
                self.pen.note(Kind::Held, at, kept.deadline, 0);
            }
            if self.dice.once_in(4) && !self.renew_lease(kept).await {
                break;
            }
            if kept.chosen && self.task.repeats && self.dice.once_in(8) && !self.repeat(kept).await {
                break;
            }
            if protects && self.dice.once_in(3) {
                self.write_fenced().await;
            }
            let rest = end.saturating_sub(now()) / 1_000;
            tokio::time::sleep(Duration::from_micros(200 + self.dice.below(rest.max(1_000)))).await;
        }
        if protects {
            self.write_fenced().await;
            self.leave().await;
        }
    }

    /// Repeats the claim; returns whether it still has the lease.
    async fn repeat(&mut self, kept: &mut Kept) -> bool {
        let Some((grant, sent)) = self.attempt(&kept.claim, Repeat::Yes).await else { return false };
        self.pen.know(Some(kept.claim.id), grant.fence.get());
        self.pen.mode = recorded(grant.mode);
        // A repeat does not restart the ttl, but the time it says is left is as true as what was said before.
        kept.deadline = kept.deadline.max(deadline(sent, &grant, kept.claim.ttl));
        self.pen.note(Kind::Granted, now(), kept.deadline, 1);
        true
    }

    /// Renews it; returns whether it may still exist.
    async fn renew_lease(&mut self, kept: &mut Kept) -> bool {
        let Claim { name, id, ttl, .. } = &kept.claim;
        let renewal = Renewal::new(name.clone(), *id, *ttl);
        let sent = now();
        self.pen.note(Kind::RenewCall, sent, 0, ttl.as_nanos() as u64);
        let patience = Duration::from_millis(self.task.patience_ms);
        let renewals = [renewal];
        let answer = within(patience, async {
            let mut answers = self.locks.backend().renew(&renewals).await;
            answers.pop().unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "no answer to a renewal")))
        });
        match answer.await {
            Ok(Renewed::Held(grant)) => {
                kept.deadline = kept.deadline.max(deadline(sent, &grant, *ttl));
                self.pen.note(Kind::Renewed, now(), kept.deadline, 0);
                true
            }
            Ok(_) => {
                self.pen.note(Kind::RenewRefused, now(), 0, 0);
                false
            }
            Err(_) => {
                self.pen.note(Kind::RenewFailed, now(), 0, 0);
                true
            }
        }
    }

    async fn release_lease(&mut self, kept: &Kept) {
        let release = Release::new(kept.claim.name.clone(), kept.claim.id);
        self.pen.note(Kind::ReleaseCall, now(), 0, 0);
        let patience = Duration::from_millis(self.task.patience_ms);
        let kind = match within(patience, self.locks.backend().release(&release)).await {
            Ok(Released::Done) => Kind::Released,
            Ok(_) => Kind::ReleasedNothing,
            Err(_) => Kind::ReleaseFailed,
        };
        self.pen.note(kind, now(), 0, 0);
    }
}

/// Until when a grant may be relied on, if it was requested at `sent` (promise 7): no longer than was requested,
/// whatever a store says whose clock was set back.
fn deadline(sent: u64, grant: &Grant, ttl: Duration) -> u64 {
    margin(sent, grant.waited + grant.left.unwrap_or_default().min(ttl))
}

/// This long after `sent`, less the allowance for clock differences.
pub(super) fn margin(sent: u64, left: Duration) -> u64 {
    (sent + (left - left / 100).as_nanos() as u64).saturating_sub(2_000_000)
}

async fn within<T>(patience: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Error::new(ErrorKind::NetworkTimeout, "the store did not answer in time");
    tokio::time::timeout(patience, call).await.map_err(late)?
}
