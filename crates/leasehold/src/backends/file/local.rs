//! What this process holds and who waits in it, by name: leases with their open files, spent ids, and
//! the queue of local waiters. No I/O but closing files.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Attempt, Claim, Gone, Grant, Mode, Release, Released, SPENT_FOR, WaiterInfo};
use crate::clock::Moment;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::state::WAITERS_SHOWN;

use super::locked::Locked;

/// How long the front of the queue may be out of touch: between being woken and coming back, or because
/// its runtime is blocked. Then the next is let past.
pub(crate) const GRACE: Duration = Duration::from_millis(250);

/// Spent ids below which nobody looks for those to forget.
const PURGE_FROM: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Local {
    names: HashMap<Arc<str>, Entry>,
    spent: usize,
    purge_at: usize,
}

#[derive(Debug, Default)]
struct Entry {
    leases: HashMap<LeaseId, Lease>,
    spent: HashMap<LeaseId, Spent>,
    places: VecDeque<Place>,
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) file: Locked,
    pub(crate) grant: Grant,
    pub(crate) owner: Arc<str>,
    pub(crate) ttl: Duration,
    pub(crate) nonce: u64,
    pub(crate) repeated: bool,
    /// Rung when it is over, however it ended.
    pub(crate) over: Arc<Notify>,
}

#[derive(Debug, Clone, Copy)]
struct Spent {
    until: Moment,
    why: Gone,
}

/// A local waiter.
#[derive(Debug)]
struct Place {
    id: LeaseId,
    mode: Mode,
    owner: Arc<str>,
    joined: Moment,
    /// When it was last in touch, or came to the front.
    seen: Moment,
    bell: Arc<Notify>,
}

/// Where a waiter stands.
pub(crate) enum Stand {
    Front,
    /// Look again after this long at the latest.
    Behind(Duration),
    /// It was let past while it was out of touch.
    Nowhere,
}

impl Local {
    fn entry(&mut self, name: &Name) -> &mut Entry {
        // Looked up by `&str` first: an entry is there more often than not.
        if !self.names.contains_key(name.stored()) {
            self.names.insert(Arc::clone(name.stored_arc()), Entry::default());
        }
        self.names.entry(Arc::clone(name.stored_arc())).or_default()
    }

    fn tidy(&mut self, name: &Name) {
        let unused =
            |entry: &Entry| entry.leases.is_empty() && entry.spent.is_empty() && entry.places.is_empty();
        if self.names.get(name.stored()).is_some_and(unused) {
            self.names.remove(name.stored());
        }
    }

    pub(crate) fn lease(&mut self, name: &Name, id: &LeaseId) -> Option<&mut Lease> {
        self.names.get_mut(name.stored())?.leases.get_mut(id)
    }

    /// The ids of all leases of a name.
    pub(crate) fn held(&self, name: &Name) -> Vec<LeaseId> {
        self.names.get(name.stored()).map(|entry| entry.leases.keys().copied().collect()).unwrap_or_default()
    }

    /// The lease with this id, whatever its name.
    pub(crate) fn by_id(&mut self, id: &LeaseId) -> Option<&mut Lease> {
        self.names.values_mut().find_map(|entry| entry.leases.get_mut(id))
    }

    /// The answer that needs no file: the id is spent, has its lease already, or others wait before it.
    /// `None`: try.
    pub(crate) fn known(&mut self, claim: &Claim, now: Moment) -> Result<Option<Known>> {
        let Some(entry) = self.names.get_mut(claim.name.stored()) else { return Ok(None) };
        if entry.is_spent(&claim.id, now) {
            return Ok(Some(Known::Answer(Attempt::Gone(Gone::Superseded))));
        }
        if let Some(lease) = entry.leases.get_mut(&claim.id) {
            if !lease.grant.mode.is_same_kind(claim.mode) {
                return Err(claim.mode.mismatch(lease.grant.mode));
            }
            if !claim.first && lease.nonce != claim.nonce {
                return Ok(Some(Known::Answer(Attempt::Gone(Gone::Superseded))));
            }
            lease.nonce = claim.nonce;
            lease.repeated |= claim.repeat;
            return Ok(Some(Known::Answer(Attempt::Granted(lease.grant.clone()))));
        }
        entry.settle(now);
        let waits = entry.places.front().is_some_and(|front| front.id != claim.id);
        Ok(waits.then_some(Known::Wait))
    }

    /// Keeps a new lease, unless its id was given up meanwhile: then the file is handed back.
    pub(crate) fn keep(&mut self, claim: &Claim, lease: Lease, now: Moment) -> Result<Grant, Box<Lease>> {
        let entry = self.entry(&claim.name);
        if entry.is_spent(&claim.id, now) {
            return Err(Box::new(lease));
        }
        let grant = lease.grant.clone();
        entry.leases.insert(claim.id, lease);
        entry.leave(&claim.id, now);
        Ok(grant)
    }

    /// Ends a lease, or says why there is none to end; the file is for the caller to let go.
    pub(crate) fn release(&mut self, release: &Release, now: Moment) -> (Released, Option<Lease>) {
        let entry = self.entry(&release.name);
        entry.leave(&release.id, now);
        let spent = entry.spent.get(&release.id).filter(|spent| spent.until > now).copied();
        let (mut ttl, mut ended) = (release.unanswered, None);
        let answer = match entry.leases.get(&release.id) {
            None => Released::Gone(spent.map_or(Gone::NotFound, |spent| spent.why)),
            Some(lease) if release.nonce.is_some_and(|nonce| nonce != lease.nonce) => {
                return (Released::Gone(Gone::Superseded), None);
            }
            Some(lease) if !lease.matches(release.fence, release.owner.as_deref()) => {
                return (Released::Gone(Gone::NotFound), None);
            }
            Some(lease) => {
                if lease.repeated || ttl.is_some() {
                    ttl = Some(ttl.unwrap_or_default().max(lease.ttl));
                }
                ended = entry.leases.remove(&release.id);
                if let Some(lease) = &ended {
                    lease.over.notify_one();
                }
                Released::Done
            }
        };
        if let Some(ttl) = ttl {
            self.spend(&release.name, release.id, ttl, now);
        }
        self.tidy(&release.name);
        (answer, ended)
    }

    /// A lease whose file is no longer in its place.
    pub(crate) fn lose(&mut self, name: &Name, id: &LeaseId, now: Moment) -> Option<Lease> {
        let lease = self.names.get_mut(name.stored())?.leases.remove(id)?;
        lease.over.notify_one();
        if lease.repeated {
            self.spend(name, *id, lease.ttl, now);
        }
        self.tidy(name);
        Some(lease)
    }

    fn spend(&mut self, name: &Name, id: LeaseId, ttl: Duration, now: Moment) {
        if self.spent >= self.purge_at.max(PURGE_FROM) {
            self.spent = 0;
            self.names.retain(|_, entry| {
                entry.spent.retain(|_, spent| spent.until > now);
                self.spent += entry.spent.len();
                !(entry.leases.is_empty() && entry.spent.is_empty() && entry.places.is_empty())
            });
            self.purge_at = self.spent * 2;
        }
        let until = now + ttl.max(SPENT_FOR);
        let entry = self.entry(name);
        let had = entry.spent.len();
        let spent = entry.spent.entry(id).or_insert(Spent { until, why: Gone::NotFound });
        spent.until = spent.until.max(until);
        let more = entry.spent.len() - had;
        self.spent += more;
    }

    /// Rings for the front of the queue.
    pub(crate) fn ring(&mut self, name: &Name) {
        if let Some(front) = self.names.get(name.stored()).and_then(|entry| entry.places.front()) {
            front.bell.notify_one();
        }
    }

    /// Joins the queue, or comes back to a place in it.
    pub(crate) fn join(&mut self, claim: &Claim, now: Moment) -> Arc<Notify> {
        let entry = self.entry(&claim.name);
        if let Some(place) = entry.places.iter_mut().find(|place| place.id == claim.id) {
            place.seen = now;
            return Arc::clone(&place.bell);
        }
        let bell = Arc::new(Notify::new());
        entry.places.push_back(Place {
            id: claim.id,
            mode: claim.mode,
            owner: Arc::clone(&claim.owner),
            joined: now,
            seen: now,
            bell: Arc::clone(&bell),
        });
        bell
    }

    /// Shows that a waiter is there, and says where it stands.
    pub(crate) fn stand(&mut self, claim: &Claim, now: Moment) -> Stand {
        let Some(entry) = self.names.get_mut(claim.name.stored()) else { return Stand::Nowhere };
        if let Some(front) = entry.places.front_mut().filter(|front| front.id == claim.id) {
            front.seen = now;
            return Stand::Front;
        }
        entry.settle(now);
        match entry.places.iter().take(2).position(|place| place.id == claim.id) {
            Some(0) => Stand::Front,
            // Nobody else looks whether the front is still there.
            Some(_) => Stand::Behind(GRACE),
            None if entry.places.iter().any(|place| place.id == claim.id) => Stand::Behind(Duration::MAX),
            None => Stand::Nowhere,
        }
    }

    /// Gives up a place in the queue.
    pub(crate) fn leave(&mut self, name: &Name, id: &LeaseId, now: Moment) {
        if let Some(entry) = self.names.get_mut(name.stored()) {
            entry.leave(id, now);
            self.tidy(name);
        }
    }

    /// Who waits here: the first, and how many.
    pub(crate) fn waiters(&self, name: &Name, now: Moment) -> (Vec<WaiterInfo>, u64) {
        let Some(entry) = self.names.get(name.stored()) else { return (Vec::new(), 0) };
        let show = |place: &Place| WaiterInfo {
            id: place.id,
            owner: Arc::clone(&place.owner),
            mode: place.mode,
            waited: now.since(place.joined),
        };
        (entry.places.iter().take(WAITERS_SHOWN).map(show).collect(), entry.places.len() as u64)
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.names.values().map(|entry| entry.places.len() as u64).sum()
    }
}

/// What is known without trying.
pub(crate) enum Known {
    Answer(Attempt),
    /// Others wait before it.
    Wait,
}

impl Entry {
    fn is_spent(&self, id: &LeaseId, now: Moment) -> bool {
        self.spent.get(id).is_some_and(|spent| spent.until > now)
    }

    /// Lets those past a front that is out of touch.
    fn settle(&mut self, now: Moment) {
        while self.places.front().is_some_and(|front| front.seen + GRACE <= now) {
            self.places.pop_front();
            self.promote(now);
        }
    }

    fn leave(&mut self, id: &LeaseId, now: Moment) {
        if let Some(index) = self.places.iter().position(|place| place.id == *id) {
            self.places.remove(index);
            if index <= 1 {
                self.promote(now);
            }
        }
    }

    /// Somebody came to the front, and somebody stands behind it now.
    fn promote(&mut self, now: Moment) {
        if let Some(front) = self.places.front_mut() {
            front.seen = now;
        }
        self.places.iter().take(2).for_each(|place| place.bell.notify_one());
    }
}

impl Lease {
    pub(crate) fn matches(&self, fence: Option<Fence>, owner: Option<&str>) -> bool {
        fence.is_none_or(|fence| fence == self.grant.fence) && owner.is_none_or(|owner| owner == &*self.owner)
    }
}
