//! The tools of the checks: two plugins, random keys, and functions that expect an answer.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bext_plugin_api::locking::{LockHandle, LockingPlugin};
use leasehold::LeaseId;
use parking_lot::Mutex;

use super::{Harness, Shown};

/// How often to test a condition.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A ttl for locks that must not expire while a check runs. Servers that limit the ttl allow this much.
pub(super) const LONG_MS: u64 = 120_000;

/// One run of one check.
pub(super) struct Trial<'a> {
    pub(super) harness: &'a Harness,
    /// The plugin of one node.
    pub(super) a: Arc<dyn LockingPlugin>,
    /// The plugin of another.
    pub(super) b: Arc<dyn LockingPlugin>,
    /// Everything that was granted, to be released at the end.
    granted: Mutex<Vec<LockHandle>>,
}

impl<'a> Trial<'a> {
    pub(super) fn new(harness: &'a Harness) -> Result<Self, String> {
        let (a, b) = ((harness.connect)()?, (harness.connect)()?);
        Ok(Trial { harness, a, b, granted: Mutex::default() })
    }

    /// A key that nobody else uses.
    pub(super) fn key(&self) -> String {
        format!("conformance/{}", LeaseId::random().expose())
    }

    /// Tries to lock, and remembers what was granted.
    pub(super) fn try_lock(
        &self,
        plugin: &dyn LockingPlugin,
        key: &str,
        ttl_ms: u64,
    ) -> Result<Option<LockHandle>, String> {
        let answer = plugin.try_lock(key, ttl_ms);
        if let Ok(Some(handle)) = &answer {
            self.granted.lock().push(handle.clone());
        }
        answer
    }

    /// Locks a key that must be free.
    pub(super) fn lock(
        &self,
        plugin: &dyn LockingPlugin,
        key: &str,
        ttl_ms: u64,
    ) -> Result<LockHandle, String> {
        match self.try_lock(plugin, key, ttl_ms) {
            Ok(Some(handle)) => Ok(handle),
            Ok(None) => Err("a free key must be granted, and the answer was contention".into()),
            Err(error) => Err(format!("a free key must be granted, and the answer was the error {error:?}")),
        }
    }

    /// Expects that another owner holds the key.
    pub(super) fn is_held(&self, plugin: &dyn LockingPlugin, key: &str) -> Shown {
        match self.try_lock(plugin, key, LONG_MS) {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err("a key that is held was granted a second time".into()),
            Err(error) => {
                Err(format!("contention must be `Ok(None)`, and the answer was the error {error:?}"))
            }
        }
    }

    /// Tries until the key is granted. Returns when the answer came, too.
    pub(super) fn take_over(
        &self,
        plugin: &dyn LockingPlugin,
        key: &str,
    ) -> Result<(LockHandle, Instant), String> {
        let end = Instant::now() + self.harness.patience;
        loop {
            let answer = self.try_lock(plugin, key, LONG_MS);
            let answered = Instant::now();
            match answer {
                Ok(Some(handle)) => return Ok((handle, answered)),
                Ok(None) if answered < end => thread::sleep(LOOK_EVERY),
                Ok(None) => {
                    return Err(format!("the key did not become free within {:?}", self.harness.patience));
                }
                Err(error) => return Err(format!("contention must be `Ok(None)`, not the error {error:?}")),
            }
        }
    }

    /// A ttl in which a check has time for some calls, `times` as long as usual.
    pub(super) fn ttl_ms(&self, times: u32) -> u64 {
        u64::try_from(self.harness.ttl.saturating_mul(times).as_millis()).unwrap_or(u64::MAX)
    }

    /// Releases everything. If the store fails here, a check has failed before, or has broken it.
    pub(super) fn clean_up(&self) {
        for handle in self.granted.lock().drain(..) {
            let _ = self.a.release(handle);
        }
        let _ = (self.a.cleanup(), self.b.cleanup());
    }
}

/// Expects success.
pub(super) fn done(what: &str, answer: Result<(), String>) -> Shown {
    answer.map_err(|error| format!("{what} must be Ok, and was the error {error:?}"))
}

/// Expects an error.
pub(super) fn fails<T>(what: &str, answer: Result<T, String>) -> Shown {
    match answer {
        Ok(_) => Err(format!("{what} must be an error, and was Ok")),
        Err(_) => Ok(()),
    }
}
