//! The purpose of each lock.

use leasehold::backend::{Info, Liveness};
use serde::{Deserialize, Serialize};

use crate::history::setting::Name;

/// What a lock is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Part {
    /// Held for moments, and always wanted.
    Hot,
    /// Read and written.
    Book,
    /// A semaphore.
    Pool,
    /// Written, and then downgraded.
    Turn,
    /// Revoked.
    Evict,
    /// Given to another process.
    Relay,
    /// Waited for by bare HTTP clients that vanish.
    Raw,
    /// Locks of several kinds that share one name.
    Mixed,
    /// Taken together with others of the same purpose.
    Several,
    /// Read for seconds, by readers of which some die or leave their leases behind, and seldom written.
    Archive,
    /// Any other.
    Cool,
    /// Nobody waits for it: for workers that outlive their leases.
    Quiet,
}

/// How many permits a pool has.
const PERMITS: u32 = 3;

/// The locks of a run on a store with these abilities. The hot ones come first. `kills`: workers are killed.
pub(crate) fn all(info: &Info, hot: u16, kills: bool, prefix: &str) -> Vec<(Part, Name)> {
    let mut all = Vec::new();
    let mut add = |part: Part, name: String, limit: u32| {
        all.push((part, Name { name: format!("{prefix}{name}"), limit, part: 0 }));
    };
    (1..=hot).for_each(|number| add(Part::Hot, format!("hot-{number}"), 0));
    add(Part::Book, "book".into(), 0);
    if info.max_permits >= PERMITS {
        add(Part::Pool, "pool".into(), PERMITS);
    }
    if info.shared && info.downgrade {
        add(Part::Turn, "turn".into(), 0);
    }
    if info.revoke {
        add(Part::Evict, "evict".into(), 0);
        if info.max_permits >= PERMITS {
            add(Part::Evict, "evict-pool".into(), PERMITS - 1);
        }
    }
    add(Part::Relay, "relay".into(), 0);
    (1..=2).for_each(|number| add(Part::Several, format!("several-{number}"), 0));
    if info.max_permits >= PERMITS {
        add(Part::Several, "several-pool".into(), PERMITS - 1);
    }
    if info.max_permits >= PERMITS {
        (0..PERMITS).for_each(|limit| add(Part::Mixed, "mixed".into(), limit));
    }
    if kills && info.shared && info.liveness != Liveness::Session {
        add(Part::Archive, "archive".into(), 0);
    }
    if info.scheme == "http" {
        add(Part::Raw, "raw".into(), 0);
    }
    (1..=4).for_each(|number| add(Part::Cool, format!("cool-{number}"), 0));
    add(Part::Quiet, "quiet".into(), 0);
    all
}
