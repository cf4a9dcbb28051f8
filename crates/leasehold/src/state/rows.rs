//! A name as plain rows, for stores that keep it that way.

use std::sync::Arc;

use super::{Lease, Spent, State, Ticket};
use crate::backend::{Gone, Mode, Note};
use crate::fence::Fence;
use crate::lease_id::LeaseId;

/// What a store keeps for one id, for stores that keep a name as plain rows.
///
/// An id has at most one row. Times are microseconds on the expiry clock, unless a field says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Row {
    /// It holds a lease.
    Lease(LeaseRow),
    /// It waits.
    Ticket(TicketRow),
    /// It is refused (promise 8).
    Spent(SpentRow),
}

/// A lease, as a row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the words of docs/contract.md, "What is kept"
pub struct LeaseRow {
    pub mode: Mode,
    pub fence: Fence,
    /// The fence at the time of the grant.
    pub granted: Fence,
    pub owner: Arc<str>,
    pub metadata: Option<Arc<str>>,
    pub ttl: u64,
    pub expires: u64,
    /// Microseconds since 1970.
    pub acquired_wall: u64,
    pub renewals: u64,
    pub nonce: u64,
    pub repeated: bool,
    pub revoked: bool,
}

/// A place in the queue, as a row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // likewise
pub struct TicketRow {
    /// Orders the tickets of a name; the number itself means nothing.
    pub arrival: u64,
    pub mode: Mode,
    pub owner: Arc<str>,
    /// The ttl of the claim.
    pub ttl: u64,
    pub lapses: u64,
    pub joined: u64,
    pub nonce: u64,
    pub repeated: bool,
    pub woken: bool,
}

/// A spent id, as a row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // likewise
pub struct SpentRow {
    pub until: u64,
    pub why: Gone,
}

impl State {
    /// Counts the changes of the name, as `docs/contract.md` says.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Nothing expires, lapses or is forgotten before this moment of the expiry clock. A verb before it changes at
    /// most the rows of its own id and of the waiters it wakes (a revocation: of all leases).
    pub fn due(&self) -> u64 {
        self.due
    }

    /// The row to keep for this id.
    pub fn row(&self, id: &LeaseId) -> Option<Row> {
        if let Some(lease) = self.leases.get(id) {
            return Some(Row::Lease(lease.row()));
        }
        if let Some((arrival, ticket)) = self.ticket(id) {
            return Some(Row::Ticket(ticket.row(arrival)));
        }
        self.spent(id).map(|spent| Row::Spent(SpentRow { until: spent.until, why: spent.why }))
    }

    /// Keeps many places at once, as [`Op::Keep`](super::Op::Keep) does for one: `until` gives the moment until which
    /// the place of an id is kept in any case. Nothing is settled, and a place that has lapsed is not revived.
    pub fn keep_places(&mut self, until: impl Fn(&LeaseId) -> Option<u64>) {
        let Some(crowd) = &mut self.crowd else { return };
        for ticket in crowd.queue.values_mut() {
            ticket.lapses = ticket.lapses.max(until(&ticket.id).unwrap_or(0));
        }
        self.find_due();
    }

    /// Every id that has a row.
    pub fn ids(&self) -> impl Iterator<Item = LeaseId> {
        let crowd = self.crowd.iter().flat_map(|crowd| crowd.places.keys().chain(crowd.spent.keys()));
        self.leases.keys().chain(crowd).copied()
    }

    /// Rebuilds a name from its rows. It answers like the original, except that a hint when to try again may be more
    /// exact.
    pub fn from_rows(fence: Fence, version: u64, rows: impl IntoIterator<Item = (LeaseId, Row)>) -> State {
        let mut state = State { fence, version, due: u64::MAX, ..State::default() };
        for (id, row) in rows {
            let end = match row {
                Row::Lease(row) => {
                    let end = row.expires;
                    state.leases.insert(id, Box::new(Lease::from_row(row)));
                    end
                }
                Row::Ticket(row) => {
                    let (arrival, end) = (row.arrival, row.lapses);
                    let crowd = state.crowd.get_or_insert_default();
                    crowd.lapse = if crowd.queue.is_empty() { end } else { crowd.lapse.min(end) };
                    crowd.arrivals = crowd.arrivals.max(arrival);
                    crowd.places.insert(id, arrival);
                    crowd.queue.insert(arrival, Ticket::from_row(id, row));
                    end
                }
                Row::Spent(SpentRow { until, why }) => {
                    state.crowd.get_or_insert_default().spent.insert(id, Spent { until, why });
                    until
                }
            };
            state.due = state.due.min(end);
        }
        state
    }

    /// The same name with this note, for [`from_rows`](State::from_rows).
    #[must_use]
    pub fn with_note(mut self, note: Option<Note>) -> State {
        self.note = note.map(Box::new);
        self
    }
}

impl Lease {
    fn row(&self) -> LeaseRow {
        let Lease { mode, fence, granted, ttl, expires, acquired_wall, .. } = *self;
        let Lease { renewals, nonce, repeated, revoked, .. } = *self;
        let (owner, metadata) = (self.owner.clone(), self.metadata.clone());
        LeaseRow {
            mode,
            fence,
            granted,
            owner,
            metadata,
            ttl,
            expires,
            acquired_wall,
            renewals,
            nonce,
            repeated,
            revoked,
        }
    }

    fn from_row(row: LeaseRow) -> Self {
        let LeaseRow { mode, fence, granted, owner, metadata, ttl, expires, acquired_wall, .. } = row;
        let LeaseRow { renewals, nonce, repeated, revoked, .. } = row;
        Lease {
            mode,
            fence,
            granted,
            owner,
            metadata,
            ttl,
            expires,
            acquired_wall,
            renewals,
            nonce,
            repeated,
            revoked,
        }
    }
}

impl Ticket {
    fn row(&self, arrival: u64) -> TicketRow {
        let Ticket { mode, ttl, lapses, joined, nonce, repeated, woken, .. } = *self;
        TicketRow { arrival, mode, owner: self.owner.clone(), ttl, lapses, joined, nonce, repeated, woken }
    }

    fn from_row(id: LeaseId, row: TicketRow) -> Self {
        let TicketRow { mode, owner, ttl, lapses, joined, nonce, repeated, woken, .. } = row;
        Ticket { id, mode, owner, ttl, lapses, joined, nonce, repeated, woken }
    }
}
