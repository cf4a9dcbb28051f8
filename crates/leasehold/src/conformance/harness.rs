//! What the suite runs on: one store, seen by two clients.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, Info};
use crate::error::Result;

/// How long to wait for what must happen, by default: far longer than any store takes, so that only what never happens
/// is a failure.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many checks run at once: most of them sleep most of the time.
const AT_ONCE: usize = 16;

/// One store to test, seen by two clients that know nothing of each other, and the settings of the test.
#[derive(Clone)]
pub struct Harness {
    pub(super) first: Arc<dyn Backend>,
    pub(super) second: Arc<dyn Backend>,
    pub(super) scale: u32,
    patience: Duration,
    pub(super) at_once: usize,
    pub(super) left_out: Vec<(String, String)>,
}

impl Harness {
    /// Makes a harness with one backend for both clients, for stores without connections.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Harness {
            second: Arc::clone(&backend),
            first: backend,
            scale: 1,
            patience: PATIENCE,
            at_once: AT_ONCE,
            left_out: Vec::new(),
        }
    }

    /// Makes a harness with two backends of one store, from a function that connects to it.
    ///
    /// # Cancel safety
    /// If dropped, nothing is left behind but what the function leaves.
    ///
    /// # Errors
    /// The function's errors.
    pub async fn connect<C, F>(connect: C) -> Result<Self>
    where
        C: Fn() -> F,
        F: Future<Output = Result<Arc<dyn Backend>>>,
    {
        Ok(Harness::new(connect().await?).second(connect().await?))
    }

    /// Sets another backend of the same store for the second client.
    #[must_use]
    pub fn second(mut self, backend: Arc<dyn Backend>) -> Self {
        self.second = backend;
        self
    }

    /// Multiplies all times by this factor, for stores where a call takes longer than some 20 ms or whose ttls are
    /// coarse.
    #[must_use]
    pub fn slower(mut self, factor: u32) -> Self {
        self.scale = factor.max(1);
        self
    }

    /// Sets how long to wait for what must happen. Default 10 s. [`slower`](Harness::slower) multiplies it.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets how many checks run at once. Default 16.
    #[must_use]
    pub fn at_once(mut self, checks: usize) -> Self {
        self.at_once = checks.max(1);
        self
    }

    /// Leaves out a check, and gives the reason in the report: for what a store cannot do and [`Info`] cannot express.
    /// If no check has this name, the report fails.
    #[must_use]
    pub fn without(mut self, check: impl Into<String>, why: impl Into<String>) -> Self {
        self.left_out.push((check.into(), why.into()));
        self
    }

    /// What the store says it is and can do.
    pub fn info(&self) -> Info {
        self.first.info()
    }

    pub(super) fn scaled_patience(&self) -> Duration {
        self.patience.saturating_mul(self.scale)
    }

    /// A check waits a few times, and some try again with longer times.
    pub(super) fn check_limit(&self) -> Duration {
        self.scaled_patience().saturating_mul(12)
    }
}

impl fmt::Debug for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness")
            .field("scheme", &self.info().scheme)
            .field("slower", &self.scale)
            .field("patience", &self.patience)
            .field("at_once", &self.at_once)
            .field("without", &self.left_out)
            .finish()
    }
}
