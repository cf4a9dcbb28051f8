//! How long leases are held and hand-overs take, as far as both ends come through this server.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use leasehold::{LeaseId, Name};
use parking_lot::Mutex;

/// Beginnings that are remembered at most; then all are forgotten, and a few spans go unmeasured.
const MOST: usize = 65_536;

/// Beginnings of spans that have not ended.
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
    /// A lease was granted; how long ago its name was released while somebody waited.
    pub(super) fn granted(&self, name: &Name, id: LeaseId) -> Option<Duration> {
        begin(&self.granted, id);
        end(&self.released, name)
    }

    /// A name is about to be released while somebody waits. Begun before the store is asked, because the next may
    /// have it before the store's answer is here.
    pub(super) fn releasing(&self, name: &Name) {
        begin(&self.released, name.clone());
    }

    /// It was not released after all.
    pub(super) fn not_released(&self, name: &Name) {
        end(&self.released, name);
    }

    /// A lease was released; how long it was held.
    pub(super) fn released(&self, id: LeaseId) -> Option<Duration> {
        end(&self.granted, &id)
    }
}
