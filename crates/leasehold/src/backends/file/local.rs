//! The leases and waiters of this process, by name: leases with their open files, spent ids, and the queue of local
//! waiters. It does no I/O except closing files.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Attempt, Claim, Gone, Grant, Mode, Release, Released, WaiterInfo};
use crate::backends::held::{Held, Spent};
use crate::clock::Moment;
use crate::error::Result;
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::state::WAITERS_SHOWN;

use super::locked::Locked;

/// How long the front waiter may be out of touch: between its wake-up and its return, or because its runtime is
/// blocked. After that the next waiter may pass it.
pub(crate) const GRACE: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(crate) struct Local {
    names: HashMap<Arc<str>, Entry>,
    spent: Spent,
}

#[derive(Debug, Default)]
struct Entry {
    leases: HashMap<LeaseId, Lease>,
    places: VecDeque<Place>,
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) file: Locked,
    pub(crate) held: Held,
    /// Notified when the lease is over, however it ended.
    pub(crate) over: Arc<Notify>,
}

/// A local waiter.
#[derive(Debug)]
struct Place {
    id: LeaseId,
    mode: Mode,
    owner: Arc<str>,
    joined: Moment,
    /// When the waiter was last in touch, or came to the front.
    seen: Moment,
    bell: Arc<Notify>,
}

/// A waiter's position.
pub(crate) enum Stand {
    Front,
    /// Look again after this long at the latest.
    Behind(Duration),
    /// It lost its place while it was out of touch.
    Nowhere,
}

impl Local {
    fn entry(&mut self, name: &Name) -> &mut Entry {
        // Look up by `&str` first: usually the entry exists.
        if !self.names.contains_key(name.stored()) {
            self.names.insert(Arc::clone(name.stored_arc()), Entry::default());
        }
        self.names.entry(Arc::clone(name.stored_arc())).or_default()
    }

    fn tidy(&mut self, name: &Name) {
        let unused = |entry: &Entry| entry.leases.is_empty() && entry.places.is_empty();
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

    /// The lease with this id, on any name.
    pub(crate) fn by_id(&mut self, id: &LeaseId) -> Option<&mut Lease> {
        self.names.values_mut().find_map(|entry| entry.leases.get_mut(id))
    }

    /// The answer that needs no file: the id is spent, has its lease already, or others wait before it. `None`: try.
    pub(crate) fn known(&mut self, claim: &Claim, now: Moment) -> Result<Option<Known>> {
        if self.spent.contains(&claim.name, &claim.id, now) {
            return Ok(Some(Known::Answer(Attempt::Gone(Gone::Superseded))));
        }
        let Some(entry) = self.names.get_mut(claim.name.stored()) else { return Ok(None) };
        if let Some(lease) = entry.leases.get_mut(&claim.id) {
            return lease.held.again(claim).map(|answer| Some(Known::Answer(answer)));
        }
        entry.settle(now);
        let waits = entry.places.front().is_some_and(|front| front.id != claim.id);
        Ok(waits.then_some(Known::Wait))
    }

    /// Keeps a new lease. If its id was given up meanwhile, returns the file instead.
    pub(crate) fn keep(&mut self, claim: &Claim, lease: Lease, now: Moment) -> Result<Grant, Box<Lease>> {
        if self.spent.contains(&claim.name, &claim.id, now) {
            return Err(Box::new(lease));
        }
        let grant = lease.held.grant.clone();
        let entry = self.entry(&claim.name);
        entry.leases.insert(claim.id, lease);
        entry.leave(&claim.id, now);
        Ok(grant)
    }

    /// Ends a lease, or says why there is none to end. The caller has to unlock the returned file.
    pub(crate) fn release(&mut self, release: &Release, now: Moment) -> (Released, Option<Lease>) {
        self.leave(&release.name, &release.id, now);
        let lease = self.lease(&release.name, &release.id);
        let (answer, spends) = match lease.map(|lease| lease.held.ended_by(release)) {
            None => (Released::Gone(Gone::NotFound), release.unanswered),
            Some(Err(gone)) => return (Released::Gone(gone), None),
            Some(Ok(spends)) => (Released::Done, spends),
        };
        self.spent.add(&release.name, release.id, spends, now);
        (answer, if answer == Released::Done { self.take(&release.name, &release.id) } else { None })
    }

    /// Drops a lease whose file is no longer in its place.
    pub(crate) fn lose(&mut self, name: &Name, id: &LeaseId, now: Moment) -> Option<Lease> {
        let lease = self.take(name, id)?;
        self.spent.add(name, *id, lease.held.spends(), now);
        Some(lease)
    }

    /// Removes a lease and notifies its watchers.
    fn take(&mut self, name: &Name, id: &LeaseId) -> Option<Lease> {
        let lease = self.names.get_mut(name.stored())?.leases.remove(id)?;
        lease.over.notify_one();
        self.tidy(name);
        Some(lease)
    }

    /// Wakes the front of the queue.
    pub(crate) fn ring(&mut self, name: &Name) {
        if let Some(front) = self.names.get(name.stored()).and_then(|entry| entry.places.front()) {
            front.bell.notify_one();
        }
    }

    /// Joins the queue, or returns to a place in it.
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

    /// Records that a waiter is alive, and returns its position.
    pub(crate) fn stand(&mut self, claim: &Claim, now: Moment) -> Stand {
        let Some(entry) = self.names.get_mut(claim.name.stored()) else { return Stand::Nowhere };
        if let Some(front) = entry.places.front_mut().filter(|front| front.id == claim.id) {
            front.seen = now;
            return Stand::Front;
        }
        entry.settle(now);
        match entry.places.iter().take(2).position(|place| place.id == claim.id) {
            Some(0) => Stand::Front,
            // Only the waiters behind it check whether the front is still there.
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

    /// The first waiter here, and how many there are.
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

/// The answer without trying.
pub(crate) enum Known {
    Answer(Attempt),
    /// Others wait before this claim.
    Wait,
}

impl Entry {
    /// Lets waiters pass a front that is out of touch.
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

    /// Handles a new front that has another waiter behind it.
    fn promote(&mut self, now: Moment) {
        if let Some(front) = self.places.front_mut() {
            front.seen = now;
        }
        self.places.iter().take(2).for_each(|place| place.bell.notify_one());
    }
}
