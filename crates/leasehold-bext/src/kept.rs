//! The locks that a plugin renews.

use std::collections::HashMap;

use leasehold::blocking::Guard;
use leasehold::{GuardState, Lease, LeaseId};

/// The guards of all locks that were not released yet. A guard that is dropped would release its lock, and only
/// `LockingPlugin::release` may do that: all that leave here give up the guard and keep the lease.
#[derive(Debug, Default)]
pub(crate) struct Kept(HashMap<LeaseId, Guard>);

impl Kept {
    /// Renews this lock from now on.
    pub(crate) fn add(&mut self, guard: Guard) {
        self.forget_lost();
        self.0.insert(guard.lease_id(), guard);
    }

    /// Stops renewing this very lock.
    pub(crate) fn stop(&mut self, lease: &Lease) {
        let is_it = |guard: &Guard| *guard.name() == lease.name && guard.fence() == lease.fence;
        if self.0.get(&lease.id).is_some_and(is_it) {
            self.0.remove(&lease.id).map(Guard::into_lease);
        }
    }

    /// Forgets the locks that another process released, or that reached `max_hold`. The host may still renew one of
    /// those by itself.
    fn forget_lost(&mut self) {
        for (_, guard) in self.0.extract_if(|_, guard| guard.state() == GuardState::Lost) {
            drop(guard.into_lease());
        }
    }

    /// How many locks are renewed.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (_, guard) in self.0.drain() {
            drop(guard.into_lease());
        }
    }
}
