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
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (_, guard) in self.0.drain() {
            drop(guard.into_lease());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use leasehold::backends::memory::Memory;
    use leasehold::blocking::Locks;
    use testkit::hand::Hand;

    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    /// A client in whose store time passes only as the test wants it.
    fn by_hand() -> (Locks, Hand) {
        let clock = Hand::default();
        let store = Memory::with_clock(Arc::new(clock.clone()));
        (leasehold::Locks::builder(Arc::new(store)).clock(Arc::new(clock.clone())).build().into(), clock)
    }

    fn guard(locks: &Locks, name: &str) -> Guard {
        locks.mutex(name).ttl(TTL).try_lock().expect("the store works").expect("free")
    }

    #[test]
    fn what_is_lost_is_forgotten_at_the_next_lock() {
        let (locks, clock) = by_hand();
        let mut kept = Kept::default();
        for name in ["a", "b", "c"] {
            kept.add(guard(&locks, name));
        }
        assert_eq!(kept.0.len(), 3);
        clock.advance(TTL);
        kept.add(guard(&locks, "a"));
        assert_eq!(kept.0.len(), 1);
    }

    #[test]
    fn only_the_very_lock_is_stopped() {
        let (locks, _) = by_hand();
        let mut kept = Kept::default();
        let guards = [guard(&locks, "a"), guard(&locks, "b")];
        let [a, b] = guards.map(|guard| {
            let parts = (guard.name().clone(), guard.lease_id(), guard.fence());
            kept.add(guard);
            parts
        });
        let lease = |(name, id, fence): (leasehold::Name, LeaseId, leasehold::Fence)| {
            Lease::new(name, id, leasehold::Mode::Exclusive, fence, "me", TTL)
        };
        kept.stop(&lease((b.0.clone(), a.1, a.2)));
        kept.stop(&lease((a.0.clone(), a.1, b.2)));
        assert_eq!(kept.0.len(), 2);
        kept.stop(&lease(a));
        assert_eq!(kept.0.len(), 1);
        drop(kept);
        assert!(locks.is_locked("a").expect("the store works"), "nothing is released here");
        assert!(locks.is_locked("b").expect("the store works"), "nothing is released here");
    }
}
