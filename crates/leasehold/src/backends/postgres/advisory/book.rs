//! What this client holds: leases by id, which keys are in use on which session, and ids that are spent. No I/O.

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
    /// Who waits: for people.
    pub(super) waiting: HashMap<LeaseId, Waiter>,
    /// Whose sessions are in the server's queue, how many, and the bell that rings when none is any more. Longer than
    /// somebody waits: getting out takes a while.
    standing: HashMap<LeaseId, (usize, Arc<Notify>)>,
}

/// One who waits in the server's queue.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) name: Name,
    pub(super) key: AdvisoryKey,
    pub(super) mode: Mode,
    pub(super) owner: Arc<str>,
    pub(super) since: Moment,
    /// The server's process that waits for it, once there is one.
    pub(super) pid: Option<i32>,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) name: Name,
    pub(super) key: AdvisoryKey,
    /// The session it is on, kept from being used otherwise.
    pub(super) loan: Loan,
    pub(super) held: Held,
    pub(super) metadata: Option<Arc<str>>,
    /// A downgrade is under way: until it is over, the session may have the key once, twice or in either mode.
    pub(super) changing: bool,
}

/// How a key is in use by this client.
#[derive(Debug, Default)]
struct Use {
    /// Those who hold it; their sessions must not be asked for it again.
    holders: Vec<LeaseId>,
    /// An attempt, downgrades and releases that are under way; the bell rings whenever one is over. An attempt waits
    /// until none is: a session that still has the key would be granted it again, before all who wait.
    under_way: usize,
    bell: Arc<Notify>,
}

/// What is known before asking the server.
pub(super) enum Known {
    Answer(Attempt),
    /// This client itself is in the way.
    Held,
    /// Something of this client is under way on the key: ask again when the bell rings.
    Later(OwnedNotified),
    /// Ask the server, on a session other than these. The attempt is noted as under way.
    Ask(Vec<Arc<Session>>),
}

impl Book {
    /// What can be said without asking the server; notes that it will be asked if not.
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

    /// What was under way on a key is over; with the lease that it changed, if it did.
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

    /// A downgrade of a lease begins.
    pub(super) fn change(&mut self, id: &LeaseId) {
        if let Some(lease) = self.leases.get_mut(id) {
            lease.changing = true;
            self.keys.entry(lease.key).or_default().under_way += 1;
        }
    }

    /// Resolves when a downgrade of a lease may be over, with its session, which may be given up before; `None` if
    /// none is under way.
    pub(super) fn changing(&self, id: &LeaseId) -> Option<(OwnedNotified, Arc<Session>)> {
        let lease = self.leases.get(id).filter(|lease| lease.changing && !lease.session().is_over())?;
        let used = self.keys.get(&lease.key)?;
        Some((Arc::clone(&used.bell).notified_owned(), Arc::clone(lease.session())))
    }

    /// Keeps a new lease, unless its id was given up meanwhile: then it is handed back.
    pub(super) fn keep(&mut self, id: LeaseId, lease: Lease, now: Moment) -> Result<(), Box<Lease>> {
        if self.spent.contains(&lease.name, &id, now) || self.leases.contains_key(&id) {
            return Err(Box::new(lease));
        }
        self.keys.entry(lease.key).or_default().holders.push(id);
        self.leases.insert(id, lease);
        Ok(())
    }

    /// A session goes into the server's queue.
    pub(super) fn stand(&mut self, id: LeaseId) {
        self.standing.entry(id).or_default().0 += 1;
    }

    /// It is out of it.
    pub(super) fn left(&mut self, id: &LeaseId) {
        let Some((sessions, _)) = self.standing.get_mut(id) else { return };
        *sessions -= 1;
        if *sessions == 0
            && let Some((_, bell)) = self.standing.remove(id)
        {
            bell.notify_waiters();
        }
    }

    /// Resolves when no session of it is in the server's queue any more; `None` if none is.
    pub(super) fn leaving(&self, id: &LeaseId) -> Option<OwnedNotified> {
        self.standing.get(id).map(|(_, bell)| Arc::clone(bell).notified_owned())
    }

    /// Takes a lease out to end it, which is under way from here on; or says why there is none to end.
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

    /// A lease that is there.
    pub(super) fn lease(&mut self, name: &Name, id: &LeaseId, now: Moment) -> Option<&mut Lease> {
        self.drop_lost(id, now);
        self.leases.get_mut(id).filter(|lease| lease.name == *name)
    }

    /// Takes a lease out.
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
