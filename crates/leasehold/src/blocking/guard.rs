//! What a blocking caller holds while it holds a lease.

use std::time::Duration;

use super::block_on;
use crate::backend::Mode;
use crate::client::guard::LostSignal;
use crate::engine::held::{GuardState, LostReason};
use crate::error::Result;
use crate::fence::Fence;
use crate::lease::Lease;
use crate::lease_id::LeaseId;
use crate::name::Name;

/// Proof that a lease was granted, as [`leasehold::Guard`](crate::Guard); renewed in the background
/// until it is released or dropped.
///
/// **Before each step that matters, look at [`check`](Guard::check), and pass [`fence`](Guard::fence)
/// to what the lock protects.** Dropping a guard releases it without blocking.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct Guard(pub(super) crate::Guard);

impl Guard {
    /// What is locked.
    pub fn name(&self) -> &Name {
        self.0.name()
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// The fencing token: pass it along with every write to what the lock protects.
    pub fn fence(&self) -> Fence {
        self.0.fence()
    }

    /// The id of the lease: a secret.
    pub fn lease_id(&self) -> LeaseId {
        self.0.lease_id()
    }

    /// The owner label.
    pub fn owner(&self) -> &str {
        self.0.owner()
    }

    /// How long the acquire took.
    pub fn waited(&self) -> Duration {
        self.0.waited()
    }

    /// In how many attempts it was granted.
    pub fn attempts(&self) -> u32 {
        self.0.attempts()
    }

    /// What is known about the lease now, without asking the store.
    pub fn state(&self) -> GuardState {
        self.0.state()
    }

    /// How long the lease may be relied on unless it is renewed, without asking the store. Zero when
    /// it is not held; `None` for session locks, which have no ttl.
    pub fn valid_for(&self) -> Option<Duration> {
        self.0.valid_for()
    }

    /// Whether the lock may be relied on at this moment, without asking the store.
    ///
    /// # Errors
    /// `Lost` if not.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// The signal of the loss, which any thread can [look at](LostSignal::now) and any task await. It
    /// does not keep the lease.
    pub fn lost(&self) -> LostSignal {
        self.0.lost()
    }

    /// Waits until the lease is lost, for at most `timeout`: the reason, or `None` if it is not.
    ///
    /// For a thread that stands guard over the work of others.
    pub fn wait_lost_for(&self, timeout: Duration) -> Option<LostReason> {
        let lost = async { Ok(tokio::time::timeout(timeout, self.lost()).await.ok()) };
        self.0.client().block_on(lost).unwrap_or_else(|_| self.lost().now())
    }

    /// Renews now, to last at least this long from now. Never shortens. Automatic renewal goes on.
    ///
    /// # Errors
    /// `Lost` if the lease is gone; `InvalidArgument` for a bad ttl; faults of the store, which leave the
    /// guard `AtRisk`.
    pub fn renew_for(&self, ttl: Duration) -> Result<()> {
        self.0.client().block_on(self.0.renew_for(ttl))
    }

    /// Lets the lease end this soon unless renewed, and renews it for no longer from here on.
    ///
    /// # Errors
    /// As [`renew_for`](Guard::renew_for).
    pub fn shorten_to(&self, ttl: Duration) -> Result<()> {
        self.0.client().block_on(self.0.shorten_to(ttl))
    }

    /// Turns an exclusive lease into a shared one, with nobody in between. Readers that wait enter.
    ///
    /// From the call on the guard is only shared, whatever the store answers. Downgrading a shared
    /// guard does nothing.
    ///
    /// # Errors
    /// `Lost` if the lease is gone; `Mismatch` for a permit; `Unsupported` where the store cannot;
    /// faults of the store.
    pub fn downgrade(&self) -> Result<()> {
        self.0.client().block_on(self.0.downgrade())
    }

    /// Gives up the guard but not the lease: as plain data it can go to another process, or become a
    /// guard again with [`Locks::adopt`](super::Locks::adopt). Nothing renews it from here on.
    pub fn into_lease(self) -> Lease {
        self.0.into_lease()
    }

    /// The same guard for async callers.
    pub fn into_async(self) -> crate::Guard {
        self.0
    }

    /// Releases and waits for the answer: `Released`, or `Lost` if the store no longer had the lease.
    ///
    /// Also sent for a guard that is `Lost`: it acts only on this very lease. If the store does not
    /// answer it is tried again for [`Options::release_timeout`](crate::Options::release_timeout).
    ///
    /// # Errors
    /// Faults of the store. The lease then ends when its ttl passes.
    pub fn release(self) -> Result<GuardState> {
        if self.0.is_copy() {
            return Ok(GuardState::Lost);
        }
        let client = self.0.client().clone();
        client.block_on(self.0.release())
    }

    pub(super) fn release_after_work(self) {
        let client = self.0.client().clone();
        // Never on the library's own thread: there, acquiring was refused.
        block_on(client.start().ok(), self.0.release_after_work());
    }
}

impl From<crate::Guard> for Guard {
    fn from(guard: crate::Guard) -> Self {
        Guard(guard)
    }
}
