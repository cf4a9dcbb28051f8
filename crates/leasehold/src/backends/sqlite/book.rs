//! The names at hand: their state, and which of their rows are not written yet.
//!
//! A cache. It is good as long as no other connection has written: the writer asks SQLite. When one has, each
//! name's own count of changes says whether it was that name, when it is next needed. When a transaction failed,
//! nothing is good any more.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::Connection;

use super::fault::Fault;
use super::rows::{self, Counters, Table};
use crate::error::Result;
use crate::lease_id::LeaseId;
use crate::state::{Answer, Now, Op, State};

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
}

impl Entry {
    fn load(db: &Connection, name: &str, round: u64) -> Result<Self, Fault> {
        let (state, stored) = rows::load(db, name)?;
        Ok(Entry { state, stored, round, changed: HashMap::new(), listed: false })
    }

    /// Applies a verb and notes which rows it changed.
    fn apply(&mut self, now: Now, op: Op<'_>, wake: &mut Vec<LeaseId>) -> Result<Answer> {
        let id = match op {
            Op::Acquire(claim) | Op::Keep(claim) => Some(claim.id),
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
        // A place that is kept has a later end, and nothing else of it is new: there may be thousands.
        let before = if matches!(op, Op::Keep(_)) { None } else { self.state.row(&id) };
        let woken = wake.len();
        let answer = self.state.apply(now, op, wake);
        let changed = match answer {
            Ok(Answer::Kept(kept)) => kept.then_some(Some(Table::Tickets)),
            _ => (before != self.state.row(&id)).then(|| before.as_ref().map(Table::of)),
        };
        if let Some(stored_in) = changed {
            self.changed.entry(id).or_insert(stored_in);
        }
        for id in &wake[woken..] {
            // It was a ticket before, unless the verb made it one, and is now marked as woken.
            self.changed.entry(*id).or_insert(Some(Table::Tickets));
        }
        answer
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
            if let Some(row) = row {
                rows::put(db, name, &id, &row, now)?;
            }
        }
        Ok(())
    }
}

impl Book {
    /// Forgets everything that is at hand.
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.unwritten.clear();
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
            self.clear();
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
        self.names.get_mut(name).ok_or(rusqlite::Error::QueryReturnedNoRows)
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
        if !entry.listed && !entry.is_written() {
            entry.listed = true;
            self.unwritten.push(Arc::clone(name));
        }
        self.expired += expired;
        Ok(answer)
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
