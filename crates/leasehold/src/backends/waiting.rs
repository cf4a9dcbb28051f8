//! The waiters of this process by name, for stores that run the state machine in it; and how they are woken, with the
//! grant if the store made the attempt for them.

use std::collections::{HashMap, hash_map};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::backend::{Attempt, Claim, Grant, Release};
use crate::clock::Moment;
use crate::error::Result;
use crate::lease_id::LeaseId;
use crate::state::{Answer, Op, State};

/// The waiters of this process for one name.
#[derive(Default)]
pub(crate) struct Waiting(HashMap<LeaseId, Waiter>);

/// One waiter.
pub(crate) struct Waiter {
    pub(crate) claim: Claim,
    pub(crate) slot: Arc<Slot>,
}

impl Waiting {
    #[cfg(all(feature = "sqlite", target_os = "linux"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The slot of a waiter.
    pub(crate) fn slot(&self, id: &LeaseId) -> Option<Arc<Slot>> {
        self.0.get(id).map(|waiter| Arc::clone(&waiter.slot))
    }

    /// Removes a waiter.
    pub(crate) fn take(&mut self, id: &LeaseId) -> Option<Waiter> {
        self.0.remove(id)
    }

    /// All of them.
    #[cfg(all(feature = "sqlite", target_os = "linux"))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.0.values()
    }

    /// Wakes all of them to try again.
    #[cfg(all(feature = "sqlite", target_os = "linux"))]
    pub(crate) fn ring_all(&self) {
        self.0.values().for_each(|waiter| waiter.slot.ring(None));
    }

    /// Whether this answer makes the claim wait.
    pub(crate) fn begins(op: &Op<'_>, answer: &Result<Answer>) -> bool {
        matches!(op, Op::Acquire(claim) if claim.queue.is_some())
            && matches!(answer, Ok(Answer::Acquired(Attempt::Busy(_))))
    }

    /// Updates the waiters to match the queue after a verb. Waiters that wait in vain are added to `vain`: when woken
    /// to try again, they learn what became of their claim.
    pub(crate) fn keep_in_step(
        &mut self,
        state: &State,
        op: &Op<'_>,
        answer: &Result<Answer>,
        vain: &mut Vec<Arc<Slot>>,
    ) {
        match op {
            Op::Acquire(claim) if Waiting::begins(op, answer) => {
                let claim = Claim { first: false, ..Claim::clone(claim) };
                match self.0.entry(claim.id) {
                    // A newer attempt with the same id takes over from the older one.
                    hash_map::Entry::Occupied(mut entry) if entry.get().claim.nonce != claim.nonce => {
                        vain.push(entry.insert(Waiter { claim, slot: Slot::new() }).slot);
                    }
                    hash_map::Entry::Occupied(mut entry) => entry.get_mut().claim = claim,
                    hash_map::Entry::Vacant(entry) => {
                        entry.insert(Waiter { claim, slot: Slot::new() });
                    }
                }
            }
            Op::Acquire(Claim { id, .. }) | Op::Release(Release { id, .. }) if !state.is_queued(id) => {
                vain.extend(self.0.remove(id).map(|waiter| waiter.slot));
            }
            _ => {}
        }
        // Settling drops the places of waiters that did not come back.
        if self.0.len() as u64 > state.queue_length() {
            vain.extend(self.0.extract_if(|id, _| !state.is_queued(id)).map(|(_, waiter)| waiter.slot));
        }
    }
}

/// Where a waiter of this process finds the result of its wake-up.
pub(crate) struct Slot(Mutex<Bell>);

struct Bell {
    /// Woken; with a grant, and when it was measured, if the store made the attempt for it.
    rung: Option<Option<(Grant, Moment)>>,
    waker: Option<Waker>,
    /// How many calls are inside [`Slot::wait`]: one at most, unless a caller makes two at once.
    pending: u32,
}

impl Slot {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Slot(Mutex::new(Bell { rung: None, waker: None, pending: 0 })))
    }

    /// Wakes its waiter.
    pub(crate) fn ring(&self, grant: Option<(Grant, Moment)>) {
        let waker = {
            let mut bell = self.0.lock();
            bell.rung = Some(grant);
            bell.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether a caller waits for the wake-up at this moment.
    pub(crate) fn is_waited_on(&self) -> bool {
        self.0.lock().pending > 0
    }

    /// Waits for the wake-up.
    pub(crate) async fn wait(&self) -> Option<(Grant, Moment)> {
        let _pending = Pending::new(self);
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Option<(Grant, Moment)>> {
        let mut bell = self.0.lock();
        match &mut bell.rung {
            Some(grant) => Poll::Ready(grant.take()),
            None => {
                bell.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// A caller that waits for the wake-up, until this is dropped.
struct Pending<'a>(&'a Slot);

impl<'a> Pending<'a> {
    fn new(slot: &'a Slot) -> Self {
        slot.0.lock().pending += 1;
        Pending(slot)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.0.lock().pending -= 1;
    }
}
