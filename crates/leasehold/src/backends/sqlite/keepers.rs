//! Keeps the places of waiters: one row for all waiters of a process, which its heartbeat extends.
//!
//! A place lapses when its own time and that of its keeper have passed. So before our keeper is extended, it must have
//! let go of every place that has no waiter any more: `names` says where to look for them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use super::fault::Fault;
use super::{rows, sql};
use crate::lease_id::LeaseId;
use crate::state::micros;

/// The number of a keeper.
pub(super) type Keeper = i64;

/// Which keeper keeps which places of a name. A place that is not here has only its own time.
pub(super) type Kept = HashMap<LeaseId, Keeper>;

/// The cached keepers.
#[derive(Default)]
pub(super) struct Keepers {
    /// Until when each keeper keeps its places, as stored.
    until: HashMap<Keeper, u64>,
    /// The keepers of this process, with the time for which they keep a place without a sign of life; hardly ever more
    /// than one.
    ours: Vec<(Duration, Keeper)>,
    /// Every name on which one of our keepers may keep a place.
    pub(super) names: HashSet<Arc<str>>,
    /// Counts the changes of `until`.
    round: u64,
    /// The book's round in which they were last read.
    read_in: Option<u64>,
}

impl Keepers {
    /// Reads what other processes have written, once in each round of the book. The returned number changes whenever
    /// any process extends its places.
    pub(super) fn round(&mut self, db: &Connection, book_round: u64) -> Result<u64, Fault> {
        if self.read_in != Some(book_round) {
            let mut statement = db.prepare_cached(const { sql("load_keepers") })?;
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, rows::number(row, 1)?));
            let until = statement.query_map([], read)?.collect::<Result<_, Fault>>()?;
            if self.until != until {
                self.until = until;
                self.round += 1;
            }
            self.read_in = Some(book_round);
        }
        Ok(self.round)
    }

    /// Until when this keeper keeps its places.
    pub(super) fn until(&self, keeper: Keeper) -> Option<u64> {
        self.until.get(&keeper).copied()
    }

    /// Whether the keeper belongs to this process.
    pub(super) fn is_ours(&self, keeper: Keeper) -> bool {
        self.ours.iter().any(|(_, ours)| *ours == keeper)
    }

    /// Our keeper for tickets of this ttl.
    pub(super) fn ours(&mut self, db: &Connection, ticket_ttl: Duration, now: u64) -> Result<Keeper, Fault> {
        if let Some((_, keeper)) = self.ours.iter().find(|(ours, _)| *ours == ticket_ttl) {
            return Ok(*keeper);
        }
        // A process that makes a keeper removes the dead ones, so there are never many more than processes.
        db.prepare_cached(const { sql("drop_keepers") })?.execute([rows::time(now)])?;
        let until = now.saturating_add(micros(ticket_ttl));
        let mut statement = db.prepare_cached(const { sql("new_keeper") })?;
        let keeper = statement.query_row([rows::time(until)], |row| row.get(0))?;
        self.ours.push((ticket_ttl, keeper));
        self.until.insert(keeper, until);
        Ok(keeper)
    }

    /// Extends those of our keepers that keep any place by another ticket ttl.
    pub(super) fn beat(&mut self, db: &Connection, busy: &HashSet<Keeper>, now: u64) -> Result<(), Fault> {
        for (ticket_ttl, keeper) in &self.ours {
            if busy.contains(keeper) {
                let until = now.saturating_add(micros(*ticket_ttl));
                db.prepare_cached(const { sql("put_keeper") })?.execute([*keeper, rows::time(until)])?;
                self.until.insert(*keeper, until);
            }
        }
        self.round += 1;
        Ok(())
    }
}
