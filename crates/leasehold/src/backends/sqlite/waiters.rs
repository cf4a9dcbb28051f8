//! The waiters of this process, by name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::backend::Claim;
use crate::backends::waiting::{Slot, Waiter, Waiting};
use crate::error::Result;
use crate::lease_id::LeaseId;
use crate::state::{Answer, Op, State};

/// The waiters of one process on one database; the writer and the waiting calls share them.
#[derive(Default)]
pub(super) struct Waiters {
    by_name: Mutex<HashMap<Arc<str>, Waiting>>,
}

/// A waiter whose `wait` is pending.
pub(super) struct Pending {
    pub(super) id: LeaseId,
    pub(super) nonce: u64,
    pub(super) ticket_ttl: Duration,
}

impl Waiters {
    /// The slot of a waiting claim.
    pub(super) fn slot(&self, claim: &Claim) -> Option<Arc<Slot>> {
        let names = self.by_name.lock();
        names.get(claim.name.stored())?.slot(&claim.id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.lock().is_empty()
    }

    /// The names with waiters.
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        self.by_name.lock().keys().cloned().collect()
    }

    /// Whether this id waits here for this name.
    pub(super) fn has(&self, name: &str, id: &LeaseId) -> bool {
        self.by_name.lock().get(name).is_some_and(|waiting| waiting.slot(id).is_some())
    }

    /// Removes a waiter.
    pub(super) fn take(&self, name: &str, id: &LeaseId) -> Option<Waiter> {
        let mut names = self.by_name.lock();
        let waiting = names.get_mut(name)?;
        let waiter = waiting.take(id);
        if waiting.is_empty() {
            names.remove(name);
        }
        waiter
    }

    /// The waiters whose `wait` for this name is pending.
    pub(super) fn pending(&self, name: &str) -> Vec<Pending> {
        let names = self.by_name.lock();
        let all = names.get(name).into_iter().flat_map(Waiting::iter);
        all.filter(|waiter| waiter.slot.is_waited_on())
            .filter_map(|Waiter { claim, .. }| {
                Some(Pending { id: claim.id, nonce: claim.nonce, ticket_ttl: claim.queue? })
            })
            .collect()
    }

    /// The shortest time for which a waiter's place is kept without a sign of life.
    pub(super) fn shortest_ticket(&self) -> Option<Duration> {
        self.by_name.lock().values().flat_map(Waiting::iter).filter_map(|waiter| waiter.claim.queue).min()
    }

    /// Wakes all waiters to try again: their state is unknown.
    pub(super) fn ring_all(&self) {
        let all = std::mem::take(&mut *self.by_name.lock());
        all.values().for_each(Waiting::ring_all);
    }

    /// Updates the waiters of a name to match its queue. A call that waits in vain must try again to learn what became
    /// of its claim: such calls are added to `vain`. Returns whether anything waits here.
    pub(super) fn keep_in_step(
        &self,
        name: &Arc<str>,
        state: &State,
        op: &Op<'_>,
        answer: &Result<Answer>,
        vain: &mut Vec<Arc<Slot>>,
    ) -> bool {
        let mut names = self.by_name.lock();
        let waiting = match names.get_mut(name) {
            Some(waiting) => waiting,
            None if Waiting::begins(op, answer) => names.entry(Arc::clone(name)).or_default(),
            None => return false,
        };
        waiting.keep_in_step(state, op, answer, vain);
        let any = !waiting.is_empty();
        if !any {
            names.remove(name);
        }
        any
    }
}
