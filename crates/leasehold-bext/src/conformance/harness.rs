//! What the suite runs on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bext_plugin_api::locking::{LockHandle, LockingPlugin};
use parking_lot::Mutex;

type Connect = dyn Fn() -> Result<Arc<dyn LockingPlugin>, String> + Send + Sync;
type Break = Box<dyn FnOnce() + Send>;

/// A way to make plugins on one store, and times that suit that store.
pub struct Harness {
    pub(super) connect: Box<Connect>,
    pub(super) fence_of: Option<fn(&LockHandle) -> Option<u64>>,
    pub(super) breaking: Option<Mutex<Option<Break>>>,
    pub(super) ttl: Duration,
    pub(super) patience: Duration,
    pub(super) answers_within: Duration,
}

impl Harness {
    /// A harness on one store. Each call of `connect` makes one more plugin that has no state in common with the others
    /// but the store.
    pub fn new(connect: impl Fn() -> Result<Arc<dyn LockingPlugin>, String> + Send + Sync + 'static) -> Self {
        Harness {
            connect: Box::new(connect),
            fence_of: None,
            breaking: None,
            ttl: Duration::from_secs(2),
            patience: Duration::from_secs(60),
            answers_within: Duration::from_secs(30),
        }
    }

    /// How to read the fencing token of a handle. Without it, no check looks at fences.
    #[must_use]
    pub fn fences(mut self, fence_of: fn(&LockHandle) -> Option<u64>) -> Self {
        self.fence_of = Some(fence_of);
        self
    }

    /// How to break the store, for the last check: stop its server, for example. Without it, no check looks at a broken
    /// store.
    #[must_use]
    pub fn breaks(mut self, store: impl FnOnce() + Send + 'static) -> Self {
        self.breaking = Some(Mutex::new(Some(Box::new(store))));
        self
    }

    /// The ttl of locks that have to expire. Default 2 s; more for a store that counts in seconds.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long the suite waits for what must happen. Default 60 s.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How long one call may take while the store is broken. Default 30 s.
    #[must_use]
    pub fn answers_within(mut self, time: Duration) -> Self {
        self.answers_within = time;
        self
    }
}

impl fmt::Debug for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness")
            .field("fences", &self.fence_of.is_some())
            .field("breaks", &self.breaking.is_some())
            .field("ttl", &self.ttl)
            .field("patience", &self.patience)
            .field("answers_within", &self.answers_within)
            .finish_non_exhaustive()
    }
}
