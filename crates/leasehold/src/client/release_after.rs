//! A release that keeps the name taken for a while, for work that no other client may repeat too soon.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::backend::{Liveness, Release, Released, Renewal, Renewed};
use crate::client::home::Client;
use crate::client::locks::Locks;
use crate::engine::renew::ReleaseJob;
use crate::engine::{give_back, telemetry};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease::Lease;
use crate::options::{MIN_TTL, ReleaseSource, check_ttl};

/// How often the end of a lease is set anew when a renewal comes in between. The holder has stopped renewing, so more
/// than one such renewal is unusual.
const TRIES: u32 = 4;

impl Locks {
    /// Releases a plain lease, but its name stays taken for `stays` from now: no client gets it before, and nothing
    /// can renew the lease any more. A node whose clock is late then does not repeat what was just done.
    ///
    /// In the store the lease goes on without its holder, under a fence that is one higher, and ends after `stays`,
    /// whether that is sooner or later than it would have ended. A later renewal or release with the old fence does
    /// nothing. As [`release`](Locks::release), it is tried again for [`Options::release_timeout`] while the store
    /// does not answer.
    ///
    /// [`Options::release_timeout`]: crate::Options::release_timeout
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    /// use leasehold::backend::{Released, Renewed};
    ///
    /// let locks = leasehold::Locks::connect("memory:").await?;
    /// let lease = locks.leasing("nightly-report").acquire().await?;
    /// assert_eq!(locks.release_after(&lease, Duration::from_secs(60)).await?, Released::Done);
    /// assert!(locks.leasing("nightly-report").try_acquire().await?.is_none());
    /// assert!(matches!(locks.renew(&lease).await?, Renewed::Gone(_)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If dropped, it may or may not have happened; calling it again is harmless.
    ///
    /// # Errors
    /// `InvalidArgument` for a time that no lease can have; `Unsupported` on a store without ttl or fences, both
    /// before anything is sent; faults of the store. A lease that is gone is an answer, not an error.
    pub async fn release_after(&self, lease: &Lease, stays: Duration) -> Result<Released> {
        let Client { clock, info, .. } = &*self.client;
        if info.liveness != Liveness::Ttl || !info.fenced {
            let message = format!("{}: cannot keep a name taken after a release", info.scheme);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        check_ttl(stays, MIN_TTL, info.max_ttl)?;
        let mut release = Release::new(lease.name.clone(), lease.id);
        release.fence = Some(lease.fence);
        let job = ReleaseJob::new(release, self.options(), ReleaseSource::Drop);
        let times = give_back::Times { call: job.request_timeout, total: job.release_timeout };
        // A shortening names the renewals so far: none, as far as this client knows.
        let renewals = AtomicU64::new(0);
        let call = || self.set_end(lease, stays, &renewals);
        let answer = give_back::release(&job.release, job.held, times, &**clock, call).await;
        telemetry::released(&lease.name, &answer, None);
        answer
    }

    /// Lets the lease end after `stays`, under a fence that its holder does not have.
    async fn set_end(&self, lease: &Lease, stays: Duration, renewals: &AtomicU64) -> Result<Released> {
        let raised = Fence::new(lease.fence.get().saturating_add(1));
        let mut renewal = Renewal::new(lease.name.clone(), lease.id, stays);
        renewal.fence = Some(lease.fence);
        // In the same step: until the fence is raised, a renewal could still move the end.
        renewal.raise_fence = Some(raised);
        for _ in 0..TRIES {
            renewal.shorten = Some(renewals.load(Ordering::Relaxed));
            let mut answers = self.client.backend.renew(std::slice::from_ref(&renewal)).await;
            match answers.pop() {
                Some(Ok(Renewed::Held(grant))) if grant.fence >= raised => return Ok(Released::Done),
                Some(Ok(Renewed::Held(grant))) => renewals.store(grant.renewals, Ordering::Relaxed),
                Some(Ok(Renewed::Gone(gone))) => return Ok(Released::Gone(gone)),
                Some(Err(error)) => return Err(error),
                None => return Err(Error::new(ErrorKind::Internal, "the backend gave no answer")),
            }
        }
        Err(Error::new(ErrorKind::Overloaded, "the lease was renewed again and again while it was released"))
    }
}
