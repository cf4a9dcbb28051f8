//! Who waits in this process.

use std::collections::{HashMap, hash_map};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{Attempt, Claim, Release};
use crate::backends::slot::Slot;
use crate::error::Result;
use crate::lease_id::LeaseId;
use crate::state::{Answer, Op, State};

/// The waiters of one process on one database, shared between its writer and those who wait.
#[derive(Default)]
pub(super) struct Waiters {
    by_name: Mutex<HashMap<Arc<str>, HashMap<LeaseId, Waiter>>>,
}

/// One who waits.
pub(super) struct Waiter {
    pub(super) claim: Claim,
    pub(super) slot: Arc<Slot>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiters {
    /// The slot of a claim that waits.
    pub(super) fn slot(&self, claim: &Claim) -> Option<Arc<Slot>> {
        let names = lock(&self.by_name);
        Some(Arc::clone(&names.get(claim.name.stored())?.get(&claim.id)?.slot))
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.by_name).is_empty()
    }

    /// The names somebody waits for.
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        lock(&self.by_name).keys().cloned().collect()
    }

    /// Whether this id waits here for this name.
    pub(super) fn has(&self, name: &str, id: &LeaseId) -> bool {
        lock(&self.by_name).get(name).is_some_and(|waiters| waiters.contains_key(id))
    }

    /// Takes one out.
    pub(super) fn take(&self, name: &str, id: &LeaseId) -> Option<Waiter> {
        let mut names = lock(&self.by_name);
        let waiters = names.get_mut(name)?;
        let waiter = waiters.remove(id);
        if waiters.is_empty() {
            names.remove(name);
        }
        waiter
    }

    /// Tells all to try again: what became of them is not known.
    pub(super) fn ring_all(&self) {
        let all = std::mem::take(&mut *lock(&self.by_name));
        all.values().flat_map(HashMap::values).for_each(|waiter| waiter.slot.ring(None));
    }

    /// Keeps the waiters of a name in step with its queue. Whoever waits in vain is told to try
    /// again, and so learns what became of its claim: those are added to `vain`.
    pub(super) fn keep_in_step(
        &self,
        name: &Arc<str>,
        state: &State,
        op: &Op<'_>,
        answer: &Result<Answer>,
        vain: &mut Vec<Arc<Slot>>,
    ) {
        let mut names = lock(&self.by_name);
        match (op, answer) {
            (Op::Acquire(claim), Ok(Answer::Acquired(Attempt::Busy(_)))) if claim.queue.is_some() => {
                let waiter =
                    || Waiter { claim: Claim { first: false, ..Claim::clone(claim) }, slot: Slot::new() };
                match names.entry(Arc::clone(name)).or_default().entry(claim.id) {
                    // A newer attempt with the same id takes over from the older one.
                    hash_map::Entry::Occupied(mut entry) if entry.get().claim.nonce != claim.nonce => {
                        vain.push(entry.insert(waiter()).slot);
                    }
                    hash_map::Entry::Occupied(mut entry) => entry.get_mut().claim = waiter().claim,
                    hash_map::Entry::Vacant(entry) => {
                        entry.insert(waiter());
                    }
                }
            }
            (Op::Acquire(Claim { id, .. }) | Op::Release(Release { id, .. }), _) if !state.is_queued(id) => {
                let waiter = names.get_mut(name).and_then(|waiters| waiters.remove(id));
                vain.extend(waiter.map(|waiter| waiter.slot));
            }
            _ => {}
        }
        let Some(waiters) = names.get_mut(name) else { return };
        // Settling drops the places of those who did not come back.
        if waiters.len() as u64 > state.queue_length() {
            vain.extend(waiters.extract_if(|id, _| !state.is_queued(id)).map(|(_, waiter)| waiter.slot));
        }
        if waiters.is_empty() {
            names.remove(name);
        }
    }
}
