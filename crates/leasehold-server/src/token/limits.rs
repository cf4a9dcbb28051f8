//! One token in use: what it may do, and how much of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold::LeaseId;

use super::{Entry, Verb};
use crate::problem::Refusal;

/// One token and what it uses.
#[derive(Debug)]
pub(crate) struct Token {
    entry: Entry,
    pub(super) hash: [u8; 32],
    waiting: AtomicU64,
    bucket: Mutex<Bucket>,
    /// The leases it took here, and until when they last; only kept where they are bounded.
    leases: Mutex<HashMap<LeaseId, Instant>>,
}

/// Requests that may be sent now. It holds those of one second.
#[derive(Debug)]
struct Bucket {
    drops: f64,
    filled: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Token {
    pub(super) fn new(entry: Entry, hash: [u8; 32]) -> Self {
        let drops = f64::from(entry.limits.requests_per_second.unwrap_or(0));
        Token {
            entry,
            hash,
            waiting: AtomicU64::new(0),
            bucket: Mutex::new(Bucket { drops, filled: Instant::now() }),
            leases: Mutex::default(),
        }
    }

    pub(super) fn is(&self, entry: &Entry) -> bool {
        self.entry == *entry
    }

    pub(crate) fn may(&self, verb: Verb, name: &str) -> bool {
        self.entry.scopes.iter().any(|scope| scope.allow.contains(&verb) && name.starts_with(&scope.prefix))
    }

    /// The part of a prefix that it may read: all of it, or the only scope inside.
    pub(crate) fn readable(&self, prefix: String) -> Option<String> {
        if self.may(Verb::Read, &prefix) {
            return Some(prefix);
        }
        let scopes = self.entry.scopes.iter();
        let mut inside =
            scopes.filter(|scope| scope.allow.contains(&Verb::Read) && scope.prefix.starts_with(&prefix));
        match (inside.next(), inside.next()) {
            (Some(only), None) => Some(only.prefix.clone()),
            _ => None,
        }
    }

    /// Counts a request.
    pub(crate) fn spend_request(&self) -> Result<(), Refusal> {
        let Some(rate) = self.entry.limits.requests_per_second.map(f64::from) else { return Ok(()) };
        let mut bucket = lock(&self.bucket);
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

    /// Counts a request that waits, for as long as it does.
    pub(crate) fn hold_place(token: &Arc<Self>) -> Result<Place, Refusal> {
        let most = token.entry.limits.waiters.unwrap_or(u64::MAX);
        let place = Place(Arc::clone(token));
        if token.waiting.fetch_add(1, Ordering::SeqCst) >= most {
            return Err(Refusal::too_many("too many requests of this token wait", 1000));
        }
        Ok(place)
    }

    /// A lease lasts so long from now, or is no more.
    pub(crate) fn lease_lasts(&self, id: LeaseId, time: Option<Duration>) {
        if self.entry.limits.leases.is_none() {
            return;
        }
        let mut leases = lock(&self.leases);
        match time {
            Some(time) => drop(leases.insert(id, Instant::now() + time)),
            None => drop(leases.remove(&id)),
        }
    }
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Place(Arc<Token>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Room for one more lease.
#[derive(Debug)]
pub(crate) struct Room(Option<Arc<Token>>);

impl Room {
    pub(crate) fn check(token: Option<Arc<Token>>, id: LeaseId) -> Result<Self, Refusal> {
        if let Some((token, most)) =
            token.as_ref().and_then(|token| Some((token, token.entry.limits.leases?)))
        {
            let mut leases = lock(&token.leases);
            let now = Instant::now();
            leases.retain(|_, until| *until > now);
            if leases.len() as u64 >= most && !leases.contains_key(&id) {
                return Err(Refusal::too_many("this token holds as many leases as it may", 1000));
            }
        }
        Ok(Room(token))
    }

    pub(crate) fn taken(self, id: LeaseId, ttl: Duration) {
        if let Some(token) = self.0 {
            token.lease_lasts(id, Some(ttl));
        }
    }
}
