//! A cache of names: their state, and which of their rows are not written yet.
//!
//! An entry is valid as long as no other connection has written, which the writer learns from SQLite. After another
//! connection has written, each name's own count of changes shows whether that name changed, when it is next needed.
//! After a failed transaction no entry is valid.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use super::fault::Fault;
use super::keepers::{Keeper, Keepers, Kept};
use super::rows::{self, Counters, Table};
use super::waiters::Pending;
use crate::backend::Note;
use crate::error::Result;
use crate::lease_id::LeaseId;
use crate::state::{Answer, Now, Op, Row, State};

/// The most cached names: some tens of megabytes.
const MOST_NAMES: usize = 65_536;

/// The cached names.
#[derive(Default)]
pub(super) struct Book {
    names: HashMap<Arc<str>, Entry>,
    /// Names with something to write.
    unwritten: Vec<Arc<str>>,
    /// Counts how often other connections have written.
    round: u64,
    /// Expired leases that no sweep has reported yet.
    pub(super) expired: u64,
    keepers: Keepers,
}

struct Entry {
    state: State,
    /// The counters as stored.
    stored: Counters,
    /// The note as stored.
    stored_note: Option<Note>,
    /// The round in which this entry was last known to match the file.
    round: u64,
    /// Ids whose rows differ from the stored ones, and the table that stores them now.
    changed: HashMap<LeaseId, Option<Table>>,
    listed: bool,
    /// Which keeper keeps which places, and the keepers' round that the state last saw.
    kept: Kept,
    told: Option<u64>,
}

impl Entry {
    fn load(db: &Connection, name: &str, round: u64) -> Result<Self, Fault> {
        let (state, stored, kept) = rows::load(db, name)?;
        let (stored_note, changed) = (state.note().cloned(), HashMap::new());
        Ok(Entry { state, stored, stored_note, round, changed, listed: false, kept, told: None })
    }

    /// Sets the keeper of a place in the queue.
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
        // Settling and revoking may change any row, so compare all. That costs as much as they do themselves.
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
            // It was a ticket before, unless the verb just made it one, and is now marked as woken.
            self.changed.entry(*id).or_insert(Some(Table::Tickets));
        }
        answer
    }

    /// Whether it has something to write now and had nothing before.
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
            // Also for changes that are not about a lease: other processes must see that the name has changed.
            self.stored = Counters { fence, version, changes: self.stored.changes + 1 };
            rows::put_counters(db, name, self.stored)?;
        }
        if let Some(note) = self.state.note().filter(|note| self.stored_note.as_ref() != Some(note)) {
            rows::put_note(db, name, note)?;
            self.stored_note = Some(note.clone());
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
    /// Forgets everything. Our keepers too: one made in the failed transaction does not exist. Those that do exist
    /// stop keeping their places, and a waiter that comes back gets a new keeper.
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.unwritten.clear();
        self.keepers = Keepers::default();
    }

    /// Other connections have written between transactions: check each entry again before it is used.
    pub(super) fn doubt(&mut self) {
        self.round += 1;
    }

    /// Forgets one name.
    pub(super) fn forget(&mut self, name: &str) {
        self.names.remove(name);
    }

    /// Makes room. Called between transactions.
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
        // Just inserted; the second lookup lets the borrow end before the insert.
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

    /// When something of a name next ends, if the name is cached; never too late.
    pub(super) fn due(&self, name: &str) -> Option<u64> {
        self.names.get(name).filter(|entry| entry.round == self.round).map(|entry| entry.state.due())
    }

    /// The state of a name.
    pub(super) fn state(&mut self, db: &Connection, name: &Arc<str>) -> Result<&State, Fault> {
        Ok(&self.entry(db, name)?.state)
    }

    /// Applies one verb to one name; nothing is written yet.
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

    /// Called after a claim got the answer to wait. With a ticket ttl the claim waits here, and this process keeps its
    /// place. Without one, no process keeps its place, until a heartbeat finds a waiter there.
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

    /// The names on which this process may keep a place.
    pub(super) fn kept_names(&self) -> HashSet<Arc<str>> {
        self.keepers.names.clone()
    }

    /// Prepares a heartbeat: for this name, keeps the places of the present waiters, and no others. Adds the keepers
    /// of these places to `busy`. Returns the waiters that no longer have a place.
    pub(super) fn hold_places(
        &mut self,
        db: &Connection,
        name: &Arc<str>,
        pending: &[Pending],
        busy: &mut HashSet<Keeper>,
        now: Now,
    ) -> Result<Vec<LeaseId>, Fault> {
        // Brings the entry up to date with what other connections have written.
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
        // Usually we keep no others.
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

    /// Makes the heartbeat: these keepers keep their places for another ticket ttl.
    pub(super) fn beat(&mut self, db: &Connection, busy: &HashSet<Keeper>, now: Now) -> Result<(), Fault> {
        self.keepers.beat(db, busy, now.expiry)
    }

    /// Writes what has changed. Returns whether there was anything.
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
