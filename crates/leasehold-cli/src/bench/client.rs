//! One client of the load: takes a lock, holds it, and behaves like good and bad holders.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::backend::{Liveness, Release, Released, Renewed};
use leasehold::{Error, ErrorKind, Lease, Locks};

use super::resource::Resource;
use super::summary::ClientFigures;

/// How long to wait for a held lock.
const WAIT: Duration = Duration::from_secs(1);

/// Time limit for calls that the library does not retry.
const CALL: Duration = Duration::from_secs(5);

/// A random generator that needs nothing from the system.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(number: usize) -> Self {
        Dice(0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1))
    }

    /// Between 0 and 1.
    fn roll(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

pub(super) struct Client {
    pub(super) locks: Locks,
    pub(super) resources: Arc<Vec<Resource>>,
    pub(super) names: Arc<Vec<String>>,
    pub(super) dice: Dice,
    pub(super) ttl: Duration,
    pub(super) hold: Duration,
    pub(super) jitter: f64,
    pub(super) failure_rate: f64,
    pub(super) long_rate: f64,
}

impl Client {
    pub(super) async fn run(mut self, ended: Arc<AtomicBool>) -> ClientFigures {
        let mut seen = ClientFigures::default();
        while !ended.load(Ordering::SeqCst) {
            let which = ((self.dice.roll() * self.names.len() as f64) as usize).min(self.names.len() - 1);
            let began = Instant::now();
            let floor = self.resources[which].floor();
            match self.acquire(which, &mut seen).await {
                Ok(Some(lease)) => {
                    seen.acquires.push(began.elapsed());
                    // A plain lease does not say when its time was measured, but a renewal does, so renew at once. It
                    // was granted after we began.
                    if let Some(until) = self.renew(&lease, began + believed(self.ttl), &mut seen).await {
                        let gap = self.resources[which].granted(lease.fence, floor, until);
                        seen.handovers.extend(gap);
                        self.hold(&lease, which, until, &mut seen).await;
                    }
                }
                Ok(None) => seen.timeouts += 1,
                Err(error) => {
                    seen.failed(&error);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        seen
    }

    /// Tries first and waits then, to know which acquires had to wait.
    async fn acquire(&self, which: usize, seen: &mut ClientFigures) -> Result<Option<Lease>, Error> {
        let leasing = self.locks.leasing(&self.names[which]).ttl(self.ttl);
        if let Some(lease) = leasing.try_acquire().await? {
            return Ok(Some(lease));
        }
        let began = Instant::now();
        let lease = leasing.try_acquire_for(WAIT).await?;
        seen.waits.extend(lease.is_some().then(|| began.elapsed()));
        Ok(lease)
    }

    /// Renews. Returns until when the lease may be relied on, or `None` if it is lost.
    async fn renew(&self, lease: &Lease, until: Instant, seen: &mut ClientFigures) -> Option<Instant> {
        let sent = Instant::now();
        match self.locks.renew(lease).await {
            Ok(Renewed::Held(grant)) => {
                Some(sent + believed(grant.left.map_or(self.ttl, |left| left.min(self.ttl))))
            }
            Ok(Renewed::Gone(gone)) => {
                seen.lost(gone, Instant::now() < until);
                None
            }
            Ok(_) => Some(until),
            Err(error) => {
                seen.failed(&error);
                Some(until)
            }
        }
    }

    /// Writes at the start and at the end, as a holder does; a holder that stalls writes too late.
    async fn hold(&mut self, lease: &Lease, which: usize, mut until: Instant, seen: &mut ClientFigures) {
        let resources = Arc::clone(&self.resources);
        let resource = &resources[which];
        resource.write(lease.fence);
        if self.dice.roll() < self.failure_rate {
            return self.stall(lease, resource, seen).await;
        }
        let spread = 1.0 + self.jitter * (2.0 * self.dice.roll() - 1.0);
        let is_long = self.dice.roll() < self.long_rate;
        let hold = if is_long { self.ttl + self.ttl / 2 } else { self.hold.mul_f64(spread.max(0.0)) };
        let end = Instant::now() + hold;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            tokio::time::sleep(left.min(self.ttl / 3)).await;
            if left <= self.ttl / 3 {
                break;
            }
            match self.renew(lease, until, seen).await {
                Some(renewed) => {
                    seen.renewals += u64::from(renewed > until);
                    until = renewed;
                    resource.renewed(lease.fence, until);
                }
                None => return resource.lost(lease.fence),
            }
        }
        resource.write(lease.fence);
        resource.leave(lease.fence);
        match self.locks.release(lease).await {
            // An earlier try of the same release may have ended the lease, so this proves nothing.
            Ok(Released::Gone(gone)) => seen.lost(gone, false),
            Ok(_) => {}
            Err(error) => seen.failed(&error),
        }
    }

    /// Does nothing until the lease has expired, then acts like a holder that has not noticed.
    async fn stall(&self, lease: &Lease, resource: &Resource, seen: &mut ClientFigures) {
        tokio::time::sleep(self.ttl + self.ttl / 4).await;
        seen.stalls += 1;
        seen.stale_rejected += u64::from(!resource.write(lease.fence));
        // Only one call: the library treats a repeat that finds nothing as a successful release.
        let mut release = Release::new(lease.name.clone(), lease.id);
        release.fence = Some(lease.fence);
        let late = || Error::new(ErrorKind::NetworkTimeout, "the store did not answer the release in time");
        let answer = tokio::time::timeout(CALL, self.locks.backend().release(&release)).await;
        match answer.unwrap_or_else(|_| Err(late())) {
            // Where a lock lasts as long as its session, there was a lease to end.
            Ok(Released::Done) => {
                seen.stale_released += u64::from(self.locks.info().liveness == Liveness::Ttl);
            }
            Ok(_) => {}
            Err(error) => seen.failed(&error),
        }
    }
}

/// How long the library's guards would rely on a lease: 1 % and 2 ms less than its ttl.
fn believed(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}
