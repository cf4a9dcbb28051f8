//! One token in use: its permissions and its limits.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::Notify;

use super::usage::Usage;
use super::{Entry, Limits, Verb};
use crate::problem::Refusal;

/// One token and what it uses. Identified by its hash: its line may change, and its use stays counted.
#[derive(Debug)]
pub(crate) struct Token {
    pub(super) hash: [u8; 32],
    /// `None` once the token was removed from the file.
    entry: RwLock<Option<Arc<Entry>>>,
    /// Notified when `entry` has changed.
    pub(super) bell: Notify,
    bucket: Mutex<Bucket>,
    usage: Mutex<Usage>,
}

/// How many requests may be sent now: at most one second's worth.
#[derive(Debug)]
struct Bucket {
    drops: f64,
    filled: Instant,
}

impl Token {
    pub(super) fn new(entry: Entry, hash: [u8; 32]) -> Self {
        let drops = f64::from(entry.limits.requests_per_second.unwrap_or(0));
        Token {
            hash,
            entry: RwLock::new(Some(Arc::new(entry))),
            bell: Notify::new(),
            bucket: Mutex::new(Bucket { drops, filled: Instant::now() }),
            usage: Mutex::default(),
        }
    }

    /// The token's line has changed or is gone. Wakes the requests that wait with it, so that they check again.
    pub(super) fn change(&self, entry: Option<Entry>) {
        *self.entry.write() = entry.map(Arc::new);
        self.bell.notify_waiters();
    }

    fn entry(&self) -> Option<Arc<Entry>> {
        self.entry.read().clone()
    }

    pub(super) fn limits(&self) -> Limits {
        self.entry().map_or_else(Limits::default, |entry| entry.limits)
    }

    pub(super) fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock()
    }

    /// Out of scope is always 403, whether or not the lock exists.
    pub(crate) fn may(&self, verb: Verb, name: &str) -> Result<(), Refusal> {
        let entry = self.entry().ok_or_else(Refusal::no_token)?;
        if entry.allows(verb, name) { Ok(()) } else { Err(Refusal::out_of_scope()) }
    }

    /// The part of a prefix that the token may read: all of it, or the only scope inside it.
    pub(crate) fn readable(&self, prefix: String) -> Option<String> {
        let entry = self.entry()?;
        if entry.allows(Verb::Read, &prefix) {
            return Some(prefix);
        }
        let mut inside = entry
            .scopes
            .iter()
            .filter(|scope| scope.allow.contains(&Verb::Read) && scope.prefix.starts_with(&prefix));
        match (inside.next(), inside.next()) {
            (Some(only), None) => Some(only.prefix.clone()),
            _ => None,
        }
    }

    /// Counts a request.
    pub(crate) fn spend_request(&self) -> Result<(), Refusal> {
        let Some(rate) = self.limits().requests_per_second.map(f64::from) else { return Ok(()) };
        let mut bucket = self.bucket.lock();
        let now = Instant::now();
        bucket.drops =
            (bucket.drops + now.duration_since(bucket.filled).as_secs_f64() * rate).min(rate.max(1.0));
        bucket.filled = now;
        if bucket.drops < 1.0 {
            let wait = ((1.0 - bucket.drops) / rate.max(1e-3) * 1e3).ceil();
            return Err(Refusal::too_many("too many requests a second for this token", wait as u64));
        }
        bucket.drops -= 1.0;
        Ok(())
    }
}
