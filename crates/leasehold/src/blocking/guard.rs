//! The guard for blocking callers, held for as long as they hold a lease.

use std::sync::Arc;
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

/// Proof that a lease was granted, as [`leasehold::Guard`](crate::Guard). The client renews the lease in the
/// background until the guard is released or dropped.
///
/// **Before each step that matters, look at [`check`](Guard::check), and pass [`fence`](Guard::fence)
/// to what the lock protects.** Dropping a guard releases it without blocking.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct Guard(pub(super) crate::Guard);

impl Guard {
    /// As [`leasehold::Guard::name`](crate::Guard::name).
    pub fn name(&self) -> &Name {
        self.0.name()
    }

    /// As [`leasehold::Guard::mode`](crate::Guard::mode).
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// As [`leasehold::Guard::fence`](crate::Guard::fence).
    pub fn fence(&self) -> Fence {
        self.0.fence()
    }

    /// As [`leasehold::Guard::lease_id`](crate::Guard::lease_id).
    pub fn lease_id(&self) -> LeaseId {
        self.0.lease_id()
    }

    /// As [`leasehold::Guard::owner`](crate::Guard::owner).
    pub fn owner(&self) -> &str {
        self.0.owner()
    }

    /// As [`leasehold::Guard::waited`](crate::Guard::waited).
    pub fn waited(&self) -> Duration {
        self.0.waited()
    }

    /// As [`leasehold::Guard::attempts`](crate::Guard::attempts).
    pub fn attempts(&self) -> u32 {
        self.0.attempts()
    }

    /// As [`leasehold::Guard::state`](crate::Guard::state).
    pub fn state(&self) -> GuardState {
        self.0.state()
    }

    /// As [`leasehold::Guard::valid_for`](crate::Guard::valid_for).
    pub fn valid_for(&self) -> Option<Duration> {
        self.0.valid_for()
    }

    /// As [`leasehold::Guard::check`](crate::Guard::check).
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// A signal of the loss, which any thread can [read](LostSignal::now) and any task can await. It does not keep the
    /// lease alive.
    pub fn lost(&self) -> LostSignal {
        self.0.lost()
    }

    /// Waits until the lease is lost, for at most `timeout`. Returns the reason, or `None` if the lease is not lost.
    ///
    /// For a thread that watches over work done by other threads.
    pub fn wait_lost_for(&self, timeout: Duration) -> Option<LostReason> {
        self.0.client().wait_lost_for(self.lost(), timeout)
    }

    /// As [`leasehold::Guard::renew_for`](crate::Guard::renew_for), blocking.
    pub fn renew_for(&self, ttl: Duration) -> Result<()> {
        self.0.client().block_on(self.0.renew_for(ttl))
    }

    /// As [`leasehold::Guard::shorten_to`](crate::Guard::shorten_to), blocking.
    pub fn shorten_to(&self, ttl: Duration) -> Result<()> {
        self.0.client().block_on(self.0.shorten_to(ttl))
    }

    /// As [`leasehold::Guard::downgrade`](crate::Guard::downgrade), blocking.
    pub fn downgrade(&self) -> Result<()> {
        self.0.client().block_on(self.0.downgrade())
    }

    /// As [`leasehold::Guard::write_note`](crate::Guard::write_note), blocking.
    pub fn write_note(&self, text: impl Into<Arc<str>>) -> Result<()> {
        self.0.client().block_on(self.0.write_note(text))
    }

    /// As [`leasehold::Guard::into_lease`](crate::Guard::into_lease).
    pub fn into_lease(self) -> Lease {
        self.0.into_lease()
    }

    /// The same guard for async callers.
    pub fn into_async(self) -> crate::Guard {
        self.0
    }

    /// As [`leasehold::Guard::release`](crate::Guard::release), blocking.
    pub fn release(self) -> Result<GuardState> {
        if self.0.is_copy() {
            return Ok(GuardState::Lost);
        }
        let client = self.0.client().clone();
        client.block_on(self.0.release())
    }

    /// As [`leasehold::Guard::release_with_note`](crate::Guard::release_with_note), blocking.
    pub fn release_with_note(self, text: impl Into<Arc<str>>) -> Result<GuardState> {
        if self.0.is_copy() {
            return Ok(GuardState::Lost);
        }
        let client = self.0.client().clone();
        client.block_on(self.0.release_with_note(text))
    }

    pub(super) fn release_after_work(self) {
        let client = self.0.client().clone();
        // Never runs on the library's own thread: acquiring is refused there.
        block_on(client.start().ok(), self.0.release_after_work());
    }
}

impl From<crate::Guard> for Guard {
    fn from(guard: crate::Guard) -> Self {
        Guard(guard)
    }
}
