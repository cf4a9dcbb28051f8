//! What this client holds: leases by id, which session uses which key, and spent ids. No I/O.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::backend::{Attempt, Claim, Gone, Mode, Release, Released};
use crate::backends::held::{Held, Spent};
use crate::clock::Moment;
use crate::error::Result;
use crate::lease_id::LeaseId;
use crate::name::Name;

use super::key::AdvisoryKey;
use super::pool::Loan;
use super::session::Session;

#[derive(Debug, Default)]
pub(super) struct Book {
    leases: HashMap<LeaseId, Lease>,
    keys: HashMap<AdvisoryKey, Use>,
    spent: Spent,
    /// The waiters, for display.
    pub(super) waiting: HashMap<LeaseId, Waiter>,
    /// Claims whose sessions are in the server's queue, how many sessions, and a signal for when none is left. This
    /// outlasts the claim's wait, because leaving the queue takes a while.
    standing: HashMap<LeaseId, (usize, Arc<Notify>)>,
}

/// A waiter in the server's queue.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) name: Name,
    pub(super) key: AdvisoryKey,
    pub(super) mode: Mode,
    pub(super) owner: Arc<str>,
    pub(super) since: Moment,
    /// The server process that waits for it, once there is one.
    pub(super) pid: Option<i32>,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) name: Name,
    pub(super) key: AdvisoryKey,
    /// The session that holds it, kept from other uses.
    pub(super) loan: Loan,
    pub(super) held: Held,
    pub(super) metadata: Option<Arc<str>>,
    /// A downgrade is under way: until it is over, the session may have the key once, twice or in either mode.
    pub(super) changing: bool,
}

/// How this client uses a key.
#[derive(Debug, Default)]
struct Use {
    /// The holders; their sessions must not be asked for the key again.
    holders: Vec<LeaseId>,
    /// How many attempts, downgrades and releases are under way; the signal comes whenever one is over. An attempt
    /// waits until none is: the server would grant the key again to a session that still has it, before all waiters.
    under_way: usize,
    bell: Arc<Notify>,
}

/// What the client knows before it asks the server.
pub(super) enum Known {
    Answer(Attempt),
    /// This client itself holds the key.
    Held,
    /// This client has something under way on the key: ask again after the signal.
    Later(OwnedNotified),
    /// Ask the server, on a session other than these. The attempt is now counted as under way.
    Ask(Vec<Arc<Session>>),
}

impl Book {
    /// The answer if it needs no server; otherwise counts an attempt as under way.
    pub(super) fn begin(&mut self, claim: &Claim, key: AdvisoryKey, now: Moment) -> Result<Known> {
        if self.spent.contains(&claim.name, &claim.id, now) {
            return Ok(Known::Answer(Attempt::Gone(Gone::Superseded)));
        }
        self.drop_lost(&claim.id, now);
        if let Some(lease) = self.leases.get_mut(&claim.id).filter(|lease| lease.name == claim.name) {
            return lease.held.again(claim).map(Known::Answer);
        }
        let holders = self.keys.get(&key).map_or_else(Vec::new, |used| used.holders.clone());
        for id in &holders {
            self.drop_lost(id, now);
        }
        let used = self.keys.entry(key).or_default();
        if used.under_way > 0 {
            return Ok(Known::Later(Arc::clone(&used.bell).notified_owned()));
        }
        let leases = &self.leases;
        let held = used.holders.iter().filter_map(|id| leases.get(id));
        if held.clone().any(|lease| claim.mode == Mode::Exclusive || lease.held.grant.mode == Mode::Exclusive)
        {
            return Ok(Known::Held);
        }
        used.under_way = 1;
        Ok(Known::Ask(held.map(|lease| Arc::clone(lease.session())).collect()))
    }

    /// Ends what was under way on a key; with the lease that it changed, if it did.
    pub(super) fn end(&mut self, key: AdvisoryKey, changed: Option<&LeaseId>) {
        if let Some(lease) = changed.and_then(|id| self.leases.get_mut(id)) {
            lease.changing = false;
        }
        if let Some(used) = self.keys.get_mut(&key) {
            used.under_way -= 1;
            used.bell.notify_waiters();
        }
        self.tidy(key);
    }

    /// Begins a downgrade of a lease.
    pub(super) fn change(&mut self, id: &LeaseId) {
        if let Some(lease) = self.leases.get_mut(id) {
            lease.changing = true;
            self.keys.entry(lease.key).or_default().under_way += 1;
        }
    }

    /// Resolves when a downgrade of a lease may be over; also returns its session, which may be given up before.
    /// `None` if no downgrade is under way.
    pub(super) fn changing(&self, id: &LeaseId) -> Option<(OwnedNotified, Arc<Session>)> {
        let lease = self.leases.get(id).filter(|lease| lease.changing && !lease.session().is_over())?;
        let used = self.keys.get(&lease.key)?;
        Some((Arc::clone(&used.bell).notified_owned(), Arc::clone(lease.session())))
    }

    /// Keeps a new lease. If its id was given up meanwhile, returns the lease instead.
    pub(super) fn keep(&mut self, id: LeaseId, lease: Lease, now: Moment) -> Result<(), Box<Lease>> {
        if self.spent.contains(&lease.name, &id, now) || self.leases.contains_key(&id) {
            return Err(Box::new(lease));
        }
        self.keys.entry(lease.key).or_default().holders.push(id);
        self.leases.insert(id, lease);
        Ok(())
    }

    /// Records that a session enters the server's queue.
    pub(super) fn stand(&mut self, id: LeaseId) {
        self.standing.entry(id).or_default().0 += 1;
    }

    /// Records that a session has left the server's queue.
    pub(super) fn left(&mut self, id: &LeaseId) {
        let Some((sessions, _)) = self.standing.get_mut(id) else { return };
        *sessions -= 1;
        if *sessions == 0
            && let Some((_, bell)) = self.standing.remove(id)
        {
            bell.notify_waiters();
        }
    }

    /// Resolves when no session of this claim is in the server's queue any more; `None` if none is.
    pub(super) fn leaving(&self, id: &LeaseId) -> Option<OwnedNotified> {
        self.standing.get(id).map(|(_, bell)| Arc::clone(bell).notified_owned())
    }

    /// Removes a lease to end it, and counts that as under way; or says why there is none to end.
    pub(super) fn release(&mut self, release: &Release, now: Moment) -> (Released, Option<Lease>) {
        self.drop_lost(&release.id, now);
        let lease = self.leases.get(&release.id).filter(|lease| lease.name == release.name);
        let (answer, spends) = match lease.map(|lease| lease.held.ended_by(release)) {
            None => (Released::Gone(Gone::NotFound), release.unanswered),
            Some(Err(gone)) => return (Released::Gone(gone), None),
            Some(Ok(spends)) => (Released::Done, spends),
        };
        self.spent.add(&release.name, release.id, spends, now);
        if answer != Released::Done {
            return (answer, None);
        }
        let ended = self.take(&release.id);
        if let Some(lease) = &ended {
            self.keys.entry(lease.key).or_default().under_way += 1;
        }
        (answer, ended)
    }

    /// The lease, if it exists.
    pub(super) fn lease(&mut self, name: &Name, id: &LeaseId, now: Moment) -> Option<&mut Lease> {
        self.drop_lost(id, now);
        self.leases.get_mut(id).filter(|lease| lease.name == *name)
    }

    /// Removes a lease.
    pub(super) fn take(&mut self, id: &LeaseId) -> Option<Lease> {
        let lease = self.leases.remove(id)?;
        if let Some(used) = self.keys.get_mut(&lease.key) {
            used.holders.retain(|holder| holder != id);
        }
        self.tidy(lease.key);
        Some(lease)
    }

    /// Drops a lease whose session is over.
    fn drop_lost(&mut self, id: &LeaseId, now: Moment) {
        if self.leases.get(id).is_some_and(|lease| lease.session().is_over())
            && let Some(lease) = self.take(id)
        {
            self.spent.add(&lease.name, *id, lease.held.spends(), now);
        }
    }

    /// Drops all leases whose session is over.
    pub(super) fn drop_all_lost(&mut self, now: Moment) {
        let lost: Vec<LeaseId> =
            self.leases.iter().filter(|(_, lease)| lease.session().is_over()).map(|(id, _)| *id).collect();
        lost.iter().for_each(|id| self.drop_lost(id, now));
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = (&LeaseId, &Lease)> {
        self.leases.iter()
    }

    fn tidy(&mut self, key: AdvisoryKey) {
        if self.keys.get(&key).is_some_and(|used| used.holders.is_empty() && used.under_way == 0) {
            self.keys.remove(&key);
        }
    }
}

impl Lease {
    pub(super) fn session(&self) -> &Arc<Session> {
        self.loan.session()
    }
}
