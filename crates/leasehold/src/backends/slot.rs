//! How a store that runs in this process wakes those who wait in it, with the grant if it made the attempt.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::backend::Grant;
use crate::clock::Moment;

/// Where one who waits in this process finds what its wake-up brought.
pub(crate) struct Slot(Mutex<Inside>);

enum Inside {
    Waiting(Option<Waker>),
    /// Woken; with a grant, and when it was measured, if the attempt was made for it.
    Rung(Option<(Grant, Moment)>),
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Slot(Mutex::new(Inside::Waiting(None))))
    }

    /// Wakes its waiter.
    pub(crate) fn ring(&self, grant: Option<(Grant, Moment)>) {
        let was = std::mem::replace(&mut *self.lock(), Inside::Rung(grant));
        if let Inside::Waiting(Some(waker)) = was {
            waker.wake();
        }
    }

    /// Waits to be rung.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Option<(Grant, Moment)>> {
        match &mut *self.lock() {
            Inside::Rung(grant) => Poll::Ready(grant.take()),
            Inside::Waiting(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
