//! The recent history of each lock, as far as it came through this server, for people to look at.
//!
//! Nothing depends on it. It is bounded, kept in memory only, and lost when the server ends.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::wire::floor_ms;
use leasehold::{Fence, LeaseId, Name};
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use utoipa::ToSchema;

/// Events kept per name: about a screenful.
const EVENTS: usize = 24;

/// Names in one generation of a shard. Two generations and all shards hold 8192 names: about 35 MB if each has all its
/// events and short owners, 90 MB if each name and owner has its greatest length; see the test.
const NAMES: usize = 256;

/// Shards, so that operations on different names seldom wait for each other.
const SHARDS: usize = 16;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    Granted,
    Released,
    /// The holder renewed too late: its lease was gone.
    RenewalRefused,
    ReleaseRefused,
    Revoked,
}

/// One event, as stored.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    at: SystemTime,
    what: What,
    lease: Option<LeaseId>,
    owner: Option<Arc<str>>,
    fence: Option<Fence>,
    waited: Option<Duration>,
    why: Option<String>,
}

impl Event {
    pub(crate) fn new(what: What, lease: Option<LeaseId>) -> Self {
        Event { at: SystemTime::now(), what, lease, owner: None, fence: None, waited: None, why: None }
    }

    pub(crate) fn granted(
        mut self,
        owner: Option<&str>,
        fence: Option<Fence>,
        waited: Option<Duration>,
    ) -> Self {
        (self.owner, self.fence, self.waited) = (owner.map(Into::into), fence, waited);
        self
    }

    pub(crate) fn because(mut self, why: Option<&str>) -> Self {
        self.why = why.map(str::to_owned);
        self
    }
}

/// One event, as shown. Never contains a lease id.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Shown {
    /// When this server answered, in milliseconds since 1970.
    at_ms: u64,
    what: What,
    /// The lease's owner, if this server granted it.
    owner_id: Option<String>,
    fencing_token: Option<u64>,
    /// A digest that tells the events of one lease from those of others.
    lease_digest: Option<String>,
    waited_ms: Option<u64>,
    /// Why the renewal or release was refused.
    reason: Option<String>,
}

impl From<&Event> for Shown {
    fn from(event: &Event) -> Self {
        Shown {
            at_ms: floor_ms(event.at.duration_since(UNIX_EPOCH).unwrap_or_default()),
            what: event.what,
            owner_id: event.owner.as_deref().map(str::to_owned),
            fencing_token: event.fence.map(Fence::get),
            lease_digest: event.lease.map(|id| id.digest().expose().to_owned()),
            waited_ms: event.waited.map(floor_ms),
            reason: event.why.clone(),
        }
    }
}

/// The recent history of a lock, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"lock_name": "nightly", "events": [
    {"at_ms": 1794827463890_u64, "what": "renewal_refused", "owner_id": "worker-7", "fencing_token": 459475822995008_u64, "lease_digest": "mZ3u1qYk0Vx8TgH5sJd2Pw", "waited_ms": null, "reason": "revoked"},
    {"at_ms": 1794827463574_u64, "what": "granted", "owner_id": "worker-7", "fencing_token": 459475822995008_u64, "lease_digest": "mZ3u1qYk0Vx8TgH5sJd2Pw", "waited_ms": 0, "reason": null}
]}))]
pub(crate) struct Recent {
    pub(crate) lock_name: String,
    pub(crate) events: Vec<Shown>,
}

/// Names with their events, in two generations: when the young generation is full, the old one is dropped.
#[derive(Default)]
struct Shard {
    young: HashMap<Name, VecDeque<Event>>,
    old: HashMap<Name, VecDeque<Event>>,
}

impl Shard {
    /// The events of a name, oldest first.
    fn events(&self, name: &Name) -> impl DoubleEndedIterator<Item = &Event> {
        self.young.get(name).or_else(|| self.old.get(name)).into_iter().flatten()
    }

    fn note(&mut self, name: &Name, event: Event) {
        if let Some(events) = self.young.get_mut(name) {
            return add(events, event);
        }
        if self.young.len() >= NAMES {
            self.old = std::mem::take(&mut self.young);
        }
        let mut events = self.old.remove(name).unwrap_or_default();
        add(&mut events, event);
        self.young.insert(name.clone(), events);
    }
}

fn add(events: &mut VecDeque<Event>, mut event: Event) {
    let mut grants = events.iter().rev().filter(|known| known.what == What::Granted);
    if event.what == What::Granted {
        // A repeated call whose first answer was lost gets the same lease. Fences rise, so most known events need not
        // be compared.
        if grants.take_while(|known| known.fence >= event.fence).any(|known| known.lease == event.lease) {
            return;
        }
    } else if let Some(grant) = grants.find(|known| match event.lease {
        Some(lease) => known.lease == Some(lease),
        None => event.fence.is_some() && known.fence == event.fence,
    }) {
        (event.lease, event.owner, event.fence) = (grant.lease, grant.owner.clone(), grant.fence);
    }
    if events.len() >= EVENTS {
        events.pop_front();
    }
    events.push_back(event);
}

/// The recent history of all locks.
#[derive(Default)]
pub(crate) struct History {
    hasher: std::hash::RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").finish_non_exhaustive()
    }
}

impl History {
    fn shard(&self, name: &Name) -> MutexGuard<'_, Shard> {
        let index = self.hasher.hash_one(name) as usize % SHARDS;
        self.shards[index].lock()
    }

    pub(crate) fn note(&self, name: &Name, event: Event) {
        self.shard(name).note(name, event);
    }

    pub(crate) fn recent(&self, name: &Name) -> Vec<Shown> {
        self.shard(name).events(name).rev().map(Shown::from).collect()
    }

    /// Owner and fence of a lease, if its grant is still remembered.
    pub(crate) fn grant(&self, name: &Name, id: LeaseId) -> Option<(Option<Arc<str>>, Option<Fence>)> {
        let shard = self.shard(name);
        let mut grants = shard.events(name).rev().filter(|known| known.what == What::Granted);
        grants.find(|known| known.lease == Some(id)).map(|grant| (grant.owner.clone(), grant.fence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(id: LeaseId, owner: &str, fence: u64) -> Event {
        Event::new(What::Granted, Some(id)).granted(Some(owner), Some(Fence::new(fence)), None)
    }

    #[test]
    fn an_end_records_owner_and_fence_and_a_repeat_adds_no_event() {
        let (history, name, id) = (History::default(), Name::within("n", "x").unwrap(), LeaseId::random());
        history.note(&name, granted(id, "me", 7));
        history.note(&name, granted(id, "me", 7));
        history.note(&name, Event::new(What::Released, Some(id)));
        history.note(&name, Event::new(What::Released, Some(LeaseId::random())));
        let seen: Vec<_> =
            history.recent(&name).into_iter().map(|e| (e.what, e.owner_id, e.fencing_token)).collect();
        let mine = |what| (what, Some("me".to_owned()), Some(7));
        assert_eq!(seen, [(What::Released, None, None), mine(What::Released), mine(What::Granted)]);
    }

    #[test]
    fn it_is_bounded_in_events_and_names_and_forgets_the_oldest() {
        let history = History::default();
        let busy = Name::within("n", "busy").unwrap();
        for fence in 0..1000 {
            history.note(&busy, granted(LeaseId::random(), "me", fence));
        }
        let fences: Vec<_> = history.recent(&busy).iter().filter_map(|event| event.fencing_token).collect();
        assert_eq!(fences, (1000 - EVENTS as u64..1000).rev().collect::<Vec<_>>());
        for number in 0..4 * SHARDS * NAMES {
            let name = Name::within("n", &format!("{number}")).unwrap();
            history.note(&name, granted(LeaseId::random(), "me", 1));
        }
        let names: usize = history.shards.iter().map(|s| s.lock()).map(|s| s.young.len() + s.old.len()).sum();
        assert!(names <= 2 * SHARDS * NAMES, "{names} names are remembered");
        assert!(history.recent(&busy).is_empty());
    }

    /// The memory that 8192 names with all their events take, without the allocator's overhead.
    #[test]
    fn it_takes_no_more_memory_than_is_said() {
        let most = |name: &str, owner: &str| {
            let (mut shard, name) = (Shard::default(), Name::within("leasehold", name).unwrap());
            for fence in 0..2 * EVENTS as u64 {
                shard.note(&name, granted(LeaseId::random(), owner, fence));
            }
            let events = &shard.young[&name];
            let text = name.stored().len()
                + events.iter().flat_map(|e| e.owner.as_deref()).map(str::len).sum::<usize>();
            // Reference counts of shared values. A table is never much more than twice as large as its contents.
            let counts = 16 * (1 + events.len());
            let entry = 2 * (1 + size_of::<(Name, VecDeque<Event>)>());
            let each = events.capacity() * size_of::<Event>() + text + counts + entry;
            2 * SHARDS * NAMES * each / 1_000_000
        };
        let (short, long) = (most("nightly", "worker-7"), most(&"n".repeat(512), &"o".repeat(256)));
        assert!((30..=36).contains(&short) && (85..=90).contains(&long), "{short} MB and {long} MB");
    }
}
