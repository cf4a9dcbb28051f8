//! Cancelling a wait from outside: what dropping the future is for async callers, for everybody else.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Cancels acquires from outside, for good. Clones are the same switch.
///
/// An async caller just drops the future; this is for blocking callers and for whoever wants many
/// waits to end together. An acquire that is cancelled says `Aborted` and leaves nothing behind.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Switch>);

#[derive(Default)]
struct Switch {
    on: AtomicBool,
    bell: Notify,
}

impl Cancel {
    /// A switch that is off.
    pub fn new() -> Self {
        Cancel::default()
    }

    /// Cancels everything that was or will be started with this switch.
    pub fn cancel(&self) {
        self.0.on.store(true, Ordering::SeqCst);
        self.0.bell.notify_waiters();
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.on.load(Ordering::SeqCst)
    }

    /// Resolves when it is cancelled.
    ///
    /// # Cancel safety
    /// Dropping this future loses nothing.
    pub async fn cancelled(&self) {
        let mut rung = std::pin::pin!(self.0.bell.notified());
        // Listen first, look second: a cancel in between is not missed.
        rung.as_mut().enable();
        if !self.is_cancelled() {
            rung.await;
        }
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}
