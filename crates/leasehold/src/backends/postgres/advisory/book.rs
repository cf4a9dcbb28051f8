//! What this client holds: leases by id, which keys are in use on which session, and ids that are spent. No I/O.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::backend::{Attempt, Claim, Gone, Grant, Mode, Release, Released, SPENT_FOR};
use crate::clock::Moment;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

use super::key::AdvisoryKey;
use super::pool::Loan;
use super::session::Session;

/// Spent ids below which nobody looks for those to forget.
const PURGE_FROM: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Book {
    leases: HashMap<LeaseId, Lease>,
    keys: HashMap<AdvisoryKey, Use>,
    spent: HashMap<LeaseId, Moment>,
    purge_at: usize,
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
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) name: Name,
    pub(super) key: AdvisoryKey,
    /// The session it is on, kept from being used otherwise.
    pub(super) loan: Loan,
    pub(super) grant: Grant,
    pub(super) owner: Arc<str>,
    pub(super) metadata: Option<Arc<str>>,
    pub(super) ttl: Duration,
    pub(super) nonce: u64,
    pub(super) repeated: bool,
}

/// How a key is in use by this client.
#[derive(Debug, Default)]
struct Use {
    /// Those who hold it; their sessions must not be asked for it again.
    holders: Vec<LeaseId>,
    /// An attempt is under way; the bell rings when it is over.
    attempt: Option<Arc<Notify>>,
}

/// What is known before asking the server.
pub(super) enum Known {
    Answer(Attempt),
    /// This client itself is in the way.
    Held,
    /// Another attempt of this client on the key is under way: ask again when the bell rings.
    Later(OwnedNotified),
    /// Ask the server, on a session other than these. The attempt is noted as under way.
    Ask(Vec<Arc<Session>>),
}

impl Book {
    /// What can be said without asking the server; notes that it will be asked if not.
    pub(super) fn begin(&mut self, claim: &Claim, key: AdvisoryKey, now: Moment) -> Result<Known> {
        if self.is_spent(&claim.id, now) {
            return Ok(Known::Answer(Attempt::Gone(Gone::Superseded)));
        }
        self.drop_lost(&claim.id, now);
        if let Some(lease) = self.leases.get_mut(&claim.id).filter(|lease| lease.name == claim.name) {
            if !lease.grant.mode.is_same_kind(claim.mode) {
                return Err(claim.mode.mismatch(lease.grant.mode));
            }
            if !claim.first && lease.nonce != claim.nonce {
                return Ok(Known::Answer(Attempt::Gone(Gone::Superseded)));
            }
            lease.nonce = claim.nonce;
            lease.repeated |= claim.repeat;
            return Ok(Known::Answer(Attempt::Granted(lease.grant.clone())));
        }
        let holders = self.keys.get(&key).map_or_else(Vec::new, |used| used.holders.clone());
        for id in &holders {
            self.drop_lost(id, now);
        }
        let used = self.keys.entry(key).or_default();
        if let Some(bell) = &used.attempt {
            return Ok(Known::Later(Arc::clone(bell).notified_owned()));
        }
        let leases = &self.leases;
        let held = used.holders.iter().filter_map(|id| leases.get(id));
        if held.clone().any(|lease| claim.mode == Mode::Exclusive || lease.grant.mode == Mode::Exclusive) {
            return Ok(Known::Held);
        }
        used.attempt = Some(Arc::new(Notify::new()));
        Ok(Known::Ask(held.map(|lease| Arc::clone(lease.session())).collect()))
    }

    /// The attempt on a key is over.
    pub(super) fn end(&mut self, key: AdvisoryKey) {
        if let Some(bell) = self.keys.get_mut(&key).and_then(|used| used.attempt.take()) {
            bell.notify_waiters();
        }
        self.tidy(key);
    }

    /// Keeps a new lease, unless its id was given up meanwhile: then it is handed back.
    pub(super) fn keep(&mut self, id: LeaseId, lease: Lease, now: Moment) -> Result<(), Box<Lease>> {
        if self.is_spent(&id, now) || self.leases.contains_key(&id) {
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

    /// Takes a lease out to end it, or says why there is none to end.
    pub(super) fn release(&mut self, release: &Release, now: Moment) -> (Released, Option<Lease>) {
        let (mut ttl, mut ended) = (release.unanswered, None);
        self.drop_lost(&release.id, now);
        let answer = match self.leases.get(&release.id).filter(|lease| lease.name == release.name) {
            None => Released::Gone(Gone::NotFound),
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
                ended = self.take(&release.id);
                Released::Done
            }
        };
        if let Some(ttl) = ttl {
            self.spend(release.id, ttl, now);
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
            && lease.repeated
        {
            self.spend(*id, lease.ttl, now);
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

    pub(super) fn is_spent(&self, id: &LeaseId, now: Moment) -> bool {
        self.spent.get(id).is_some_and(|until| *until > now)
    }

    fn spend(&mut self, id: LeaseId, ttl: Duration, now: Moment) {
        if self.spent.len() >= self.purge_at.max(PURGE_FROM) {
            self.spent.retain(|_, until| *until > now);
            self.purge_at = self.spent.len() * 2;
        }
        let until = now + ttl.max(SPENT_FOR);
        let spent = self.spent.entry(id).or_insert(until);
        *spent = (*spent).max(until);
    }

    fn tidy(&mut self, key: AdvisoryKey) {
        if self.keys.get(&key).is_some_and(|used| used.holders.is_empty() && used.attempt.is_none()) {
            self.keys.remove(&key);
        }
    }
}

impl Lease {
    pub(super) fn session(&self) -> &Arc<Session> {
        self.loan.session()
    }

    pub(super) fn matches(&self, fence: Option<Fence>, owner: Option<&str>) -> bool {
        fence.is_none_or(|fence| fence == self.grant.fence) && owner.is_none_or(|owner| owner == &*self.owner)
    }
}
