//! How long leases are held and hand-overs take, as far as both ends come through this server.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use leasehold::{LeaseId, Name};
use parking_lot::Mutex;

/// How many starts are remembered. Beyond that all are forgotten, and a few spans go unmeasured.
const MOST: usize = 65_536;

/// The starts of spans that have not ended.
#[derive(Default)]
pub(super) struct Spans {
    granted: Mutex<HashMap<LeaseId, Instant>>,
    released: Mutex<HashMap<Name, Instant>>,
}

fn begin<K: Eq + Hash>(map: &Mutex<HashMap<K, Instant>>, key: K) {
    let mut map = map.lock();
    if map.len() >= MOST {
        map.clear();
    }
    map.insert(key, Instant::now());
}

fn end<K: Eq + Hash>(map: &Mutex<HashMap<K, Instant>>, key: &K) -> Option<Duration> {
    map.lock().remove(key).map(|began| began.elapsed())
}

impl Spans {
    /// A lease was granted. Returns how long ago its name was released, if waiters were queued then.
    pub(super) fn granted(&self, name: &Name, id: LeaseId) -> Option<Duration> {
        begin(&self.granted, id);
        end(&self.released, name)
    }

    /// A name with waiters is about to be released. Call this before the store is asked, because the next waiter may
    /// hold the lock before the store's answer arrives.
    pub(super) fn releasing(&self, name: &Name) {
        begin(&self.released, name.clone());
    }

    /// The release failed.
    pub(super) fn not_released(&self, name: &Name) {
        end(&self.released, name);
    }

    /// A lease was released. Returns how long it was held.
    pub(super) fn released(&self, id: LeaseId) -> Option<Duration> {
        end(&self.granted, &id)
    }
}
