//! The names at hand: their state, and which of their rows are not written yet.
//!
//! A cache. It is good as long as no other connection has written: the writer asks SQLite. When one has, each
//! name's own count of changes says whether it was that name, when it is next needed. When a transaction failed,
//! nothing is good any more.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use super::fault::Fault;
use super::keepers::{Keeper, Keepers, Kept};
use super::rows::{self, Counters, Table};
use super::waiters::Pending;
use crate::error::Result;
use crate::lease_id::LeaseId;
use crate::state::{Answer, Now, Op, Row, State};

/// Names kept at hand: some tens of megabytes.
const MOST_NAMES: usize = 65_536;

/// The names at hand.
#[derive(Default)]
pub(super) struct Book {
    names: HashMap<Arc<str>, Entry>,
    /// Those with something to write.
    unwritten: Vec<Arc<str>>,
    /// Counts the times when others have written.
    round: u64,
    /// Leases that expired and that no sweep has told of.
    pub(super) expired: u64,
    keepers: Keepers,
}

struct Entry {
    state: State,
    /// As stored.
    stored: Counters,
    /// The round in which it was last known to be as stored.
    round: u64,
    /// Ids whose rows differ from what is stored, and in which table they are stored now.
    changed: HashMap<LeaseId, Option<Table>>,
    listed: bool,
    /// Who keeps which places, and the keepers' round in which the state was last told until when.
    kept: Kept,
    told: Option<u64>,
}

impl Entry {
    fn load(db: &Connection, name: &str, round: u64) -> Result<Self, Fault> {
        let (state, stored, kept) = rows::load(db, name)?;
        Ok(Entry { state, stored, round, changed: HashMap::new(), listed: false, kept, told: None })
    }

    /// Sets who keeps a place that is in the queue.
    fn set_keeper(&mut self, id: LeaseId, keeper: Option<Keeper>) {
        let before = match keeper {
            Some(keeper) => self.kept.insert(id, keeper),
            None => self.kept.remove(&id),
        };
        if before != keeper {
            self.changed.entry(id).or_insert(Some(Table::Tickets));
        }
    }

    /// Applies a verb and notes which rows it changed.
    fn apply(&mut self, now: Now, op: Op<'_>, wake: &mut Vec<LeaseId>) -> Result<Answer> {
        let id = match op {
            Op::Acquire(claim) => Some(claim.id),
            Op::Renew(renewal) => Some(renewal.id),
            Op::Release(release) => Some(release.id),
            _ => None,
        };
        // Settling and revoking may change any row: then all are compared. That costs as much as
        // they do themselves.
        let Some(id) = id.filter(|_| self.state.due() > now.expiry) else {
            let before = self.state.clone();
            let answer = self.state.apply(now, op, wake);
            for id in before.ids().chain(self.state.ids()) {
                let was = before.row(&id);
                if was != self.state.row(&id) {
                    self.changed.entry(id).or_insert(was.as_ref().map(Table::of));
                }
            }
            return answer;
        };
        let before = self.state.row(&id);
        let woken = wake.len();
        let answer = self.state.apply(now, op, wake);
        if before != self.state.row(&id) {
            self.changed.entry(id).or_insert(before.as_ref().map(Table::of));
        }
        for id in &wake[woken..] {
            // It was a ticket before, unless the verb made it one, and is now marked as woken.
            self.changed.entry(*id).or_insert(Some(Table::Tickets));
        }
        answer
    }

    /// Whether it now has something to write and had nothing before.
    fn lists_itself(&mut self) -> bool {
        let new = !self.listed && !self.is_written();
        self.listed |= new;
        new
    }

    fn is_written(&self) -> bool {
        let counted = (self.state.last_fence(), self.state.version());
        self.changed.is_empty() && (self.stored.fence, self.stored.version) == counted
    }

    fn write(&mut self, db: &Connection, name: &str, now: Now) -> Result<(), Fault> {
        if !self.is_written() {
            let (fence, version) = (self.state.last_fence(), self.state.version());
            // Also for what is no lease: others must see that this name is not what it was.
            self.stored = Counters { fence, version, changes: self.stored.changes + 1 };
            rows::put_counters(db, name, self.stored)?;
        }
        for (id, stored_in) in self.changed.drain() {
            let row = self.state.row(&id);
            if let Some(table) = stored_in.filter(|table| row.as_ref().map(Table::of) != Some(*table)) {
                rows::remove(db, name, &id, table)?;
            }
            if !matches!(row, Some(Row::Ticket(_))) {
                self.kept.remove(&id);
            }
            if let Some(row) = row {
                rows::put(db, name, &id, &row, self.kept.get(&id).copied(), now)?;
            }
        }
        Ok(())
    }
}

impl Book {
    /// Forgets everything that is at hand. Our keepers too, as one that was made in the transaction that failed is not
    /// there: those that are keep no longer what they kept, and who comes back gets a new one.
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.unwritten.clear();
        self.keepers = Keepers::default();
    }

    /// Others have written, between transactions: what is at hand is looked at again before it is used.
    pub(super) fn doubt(&mut self) {
        self.round += 1;
    }

    /// Forgets one name.
    pub(super) fn forget(&mut self, name: &str) {
        self.names.remove(name);
    }

    /// Makes room, between transactions.
    pub(super) fn trim(&mut self) {
        if self.names.len() > MOST_NAMES {
            self.names.clear();
        }
    }

    fn entry(&mut self, db: &Connection, name: &Arc<str>) -> Result<&mut Entry, Fault> {
        let good = match self.names.get_mut(name) {
            Some(entry) if entry.round == self.round => true,
            Some(entry) if rows::counters(db, name)? == entry.stored => {
                entry.round = self.round;
                true
            }
            _ => false,
        };
        if !good {
            let entry = Entry::load(db, name, self.round)?;
            self.names.insert(Arc::clone(name), entry);
        }
        // It was just put there; asking twice is how the borrow ends before the insert.
        let entry = self.names.get_mut(name).ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        if !entry.kept.is_empty() {
            let round = Some(self.keepers.round(db, self.round)?);
            if entry.told != round {
                let Entry { state, kept, .. } = entry;
                state.keep_places(|id| self.keepers.until(*kept.get(id)?));
                entry.told = round;
            }
        }
        Ok(entry)
    }

    /// When something of a name ends next, if the name is at hand; never too late.
    pub(super) fn due(&self, name: &str) -> Option<u64> {
        self.names.get(name).filter(|entry| entry.round == self.round).map(|entry| entry.state.due())
    }

    /// The state of a name.
    pub(super) fn state(&mut self, db: &Connection, name: &Arc<str>) -> Result<&State, Fault> {
        Ok(&self.entry(db, name)?.state)
    }

    /// One verb on one name; nothing is written yet.
    pub(super) fn apply(
        &mut self,
        db: &Connection,
        name: &Arc<str>,
        now: Now,
        op: Op<'_>,
        wake: &mut Vec<LeaseId>,
    ) -> Result<Result<Answer>, Fault> {
        let entry = self.entry(db, name)?;
        let expired = entry.state.expired(now);
        let answer = entry.apply(now, op, wake);
        if entry.lists_itself() {
            self.unwritten.push(Arc::clone(name));
        }
        self.expired += expired;
        Ok(answer)
    }

    /// After a claim was told to wait: with a ticket ttl it does so here, and its place is ours to keep. Without one
    /// the place it may have is nobody's, until a heartbeat finds somebody who waits there.
    pub(super) fn hold_place(
        &mut self,
        db: &Connection,
        name: &Arc<str>,
        id: LeaseId,
        ticket_ttl: Option<Duration>,
        now: Now,
    ) -> Result<(), Fault> {
        let keeper = match ticket_ttl {
            Some(ticket_ttl) => Some(self.keepers.ours(db, ticket_ttl, now.expiry)?),
            None => None,
        };
        if keeper.is_some() {
            self.keepers.names.insert(Arc::clone(name));
        }
        let entry = self.entry(db, name)?;
        entry.set_keeper(id, keeper);
        if entry.lists_itself() {
            self.unwritten.push(Arc::clone(name));
        }
        Ok(())
    }

    /// The names of which a place may be ours to keep.
    pub(super) fn kept_names(&self) -> HashSet<Arc<str>> {
        self.keepers.names.clone()
    }

    /// Before a heartbeat: of this name, keeps the places of those who wait at this moment, and no others. Adds the
    /// keepers that keep any of them to `busy`. Who of them has no place any more.
    pub(super) fn hold_places(
        &mut self,
        db: &Connection,
        name: &Arc<str>,
        pending: &[Pending],
        busy: &mut HashSet<Keeper>,
        now: Now,
    ) -> Result<Vec<LeaseId>, Fault> {
        // Up to date with what others have written; from here on it is at hand.
        self.entry(db, name)?;
        let Book { names, keepers, unwritten, .. } = self;
        let Some(entry) = names.get_mut(name) else { return Ok(Vec::new()) };
        let (mut held, mut gone) = (Vec::with_capacity(pending.len()), Vec::new());
        for waits in pending {
            let keeper = keepers.ours(db, waits.ticket_ttl, now.expiry)?;
            if entry.kept.get(&waits.id) != Some(&keeper) {
                match entry.state.row(&waits.id) {
                    Some(Row::Ticket(ticket)) if ticket.nonce == waits.nonce => {
                        entry.set_keeper(waits.id, Some(keeper));
                    }
                    // A newer attempt with this id waits elsewhere.
                    Some(Row::Ticket(_)) => continue,
                    _ => {
                        gone.push(waits.id);
                        continue;
                    }
                }
            }
            held.push(waits.id);
            busy.insert(keeper);
        }
        // Mostly these are all that we keep.
        if entry.kept.values().filter(|keeper| keepers.is_ours(**keeper)).count() > held.len() {
            let held: HashSet<&LeaseId> = held.iter().collect();
            let left =
                entry.kept.iter().filter(|(id, keeper)| keepers.is_ours(**keeper) && !held.contains(id));
            let left: Vec<LeaseId> = left.map(|(id, _)| *id).collect();
            left.into_iter().for_each(|id| entry.set_keeper(id, None));
        }
        if held.is_empty() {
            keepers.names.remove(name);
        } else {
            keepers.names.insert(Arc::clone(name));
        }
        if entry.lists_itself() {
            unwritten.push(Arc::clone(name));
        }
        Ok(gone)
    }

    /// The heartbeat itself: places that these keep are kept for another ticket ttl.
    pub(super) fn beat(&mut self, db: &Connection, busy: &HashSet<Keeper>, now: Now) -> Result<(), Fault> {
        self.keepers.beat(db, busy, now.expiry)
    }

    /// Writes what has changed; whether there was anything.
    pub(super) fn write(&mut self, db: &Connection, now: Now) -> Result<bool, Fault> {
        let any = !self.unwritten.is_empty();
        for name in self.unwritten.drain(..) {
            if let Some(entry) = self.names.get_mut(&name) {
                entry.listed = false;
                entry.write(db, &name, now)?;
            }
        }
        Ok(any)
    }
}
