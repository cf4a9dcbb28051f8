//! Converts between rows of the tables and rows of the state machine.

use std::sync::Arc;

use rusqlite::{CachedStatement, Connection, OptionalExtension, Row as SqlRow, params};

use super::fault::{Fault, foreign};
use super::keepers::{Keeper, Kept};
use super::sql;
use crate::backend::{Gone, Mode, Note};
use crate::bugs::{self, Bug};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::state::{LeaseRow, Now, Row, SpentRow, State, TicketRow};

/// The table that stores an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    Leases,
    Tickets,
    Spent,
}

impl Table {
    pub(super) fn of(row: &Row) -> Self {
        match row {
            Row::Lease(_) => Table::Leases,
            Row::Ticket(_) => Table::Tickets,
            Row::Spent(_) => Table::Spent,
        }
    }
}

/// SQLite's integers end at 2^63, and so do our times, some 292 000 years after a boot.
pub(super) fn time(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}

/// The bits of a number that is only compared for equality.
fn bits(number: u64) -> i64 {
    number.cast_signed()
}

fn mode_columns(mode: Mode) -> (&'static str, Option<u32>) {
    match mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Shared => ("shared", None),
        Mode::Permit { limit } => ("permit", Some(limit)),
    }
}

fn mode(row: &SqlRow<'_>, column: usize) -> Result<Mode, Fault> {
    match (row.get_ref(column)?.as_str()?, row.get(column + 1)?) {
        ("exclusive", None) => Ok(Mode::Exclusive),
        ("shared", None) => Ok(Mode::Shared),
        ("permit", Some(limit)) => Ok(Mode::Permit { limit }),
        _ => Err(foreign(column, "not a mode")),
    }
}

fn id(row: &SqlRow<'_>) -> Result<LeaseId, Fault> {
    LeaseId::parse(row.get_ref(0)?.as_str()?).map_err(|error| foreign(0, error))
}

fn text(row: &SqlRow<'_>, column: usize) -> Result<Arc<str>, Fault> {
    Ok(row.get_ref(column)?.as_str()?.into())
}

pub(super) fn number(row: &SqlRow<'_>, column: usize) -> Result<u64, Fault> {
    u64::try_from(row.get::<_, i64>(column)?).map_err(|error| foreign(column, error))
}

fn nonce(row: &SqlRow<'_>, column: usize) -> Result<u64, Fault> {
    Ok(row.get::<_, i64>(column)?.cast_unsigned())
}

fn lease(row: &SqlRow<'_>) -> Result<(LeaseId, Row), Fault> {
    let metadata = row.get_ref(5)?.as_str_or_null()?.map(Arc::from);
    let lease = LeaseRow {
        mode: mode(row, 1)?,
        fence: Fence::new(number(row, 3)?),
        granted: Fence::new(number(row, 13)?),
        owner: text(row, 4)?,
        metadata,
        ttl: number(row, 6)?,
        expires: number(row, 7)?,
        acquired_wall: number(row, 8)?,
        renewals: number(row, 9)?,
        nonce: nonce(row, 10)?,
        repeated: row.get(11)?,
        revoked: row.get(12)?,
    };
    Ok((id(row)?, Row::Lease(lease)))
}

fn ticket(row: &SqlRow<'_>) -> Result<(LeaseId, Row), Fault> {
    let ticket = TicketRow {
        mode: mode(row, 1)?,
        arrival: number(row, 3)?,
        owner: text(row, 4)?,
        ttl: number(row, 5)?,
        lapses: number(row, 6)?,
        joined: number(row, 7)?,
        nonce: nonce(row, 8)?,
        repeated: row.get(9)?,
        woken: row.get(10)?,
    };
    Ok((id(row)?, Row::Ticket(ticket)))
}

fn spent(row: &SqlRow<'_>) -> Result<(LeaseId, Row), Fault> {
    let why = match row.get_ref(2)?.as_str()? {
        "expired" => Gone::Expired,
        "not_found" => Gone::NotFound,
        "superseded" => Gone::Superseded,
        "revoked" => Gone::Revoked,
        _ => return Err(foreign(2, "not a reason")),
    };
    Ok((id(row)?, Row::Spent(SpentRow { until: number(row, 1)?, why })))
}

/// The counters of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counters {
    pub(super) fence: Fence,
    pub(super) version: u64,
    /// Increases whenever any row of the name is written.
    pub(super) changes: u64,
}

/// Reads the stored counters of a name.
pub(super) fn counters(db: &Connection, name: &str) -> Result<Counters, Fault> {
    let found = db.prepare_cached(const { sql("load_name") })?.query_row([name], read_counters).optional()?;
    Ok(found.unwrap_or_default())
}

fn read_counters(row: &SqlRow<'_>) -> Result<Counters, Fault> {
    let fence = Fence::new(number(row, 0)?);
    Ok(Counters { fence, version: number(row, 1)?, changes: number(row, 2)? })
}

fn read_note(row: &SqlRow<'_>) -> Result<Option<Note>, Fault> {
    let Some(text) = row.get_ref(3)?.as_str_or_null()? else { return Ok(None) };
    Ok(Some(Note::new(text, Fence::new(number(row, 4)?), number(row, 5)?)))
}

/// Reads everything stored of a name, and which keeper keeps which of its places. It does not read until when.
pub(super) fn load(db: &Connection, name: &str) -> Result<(State, Counters, Kept), Fault> {
    let read = |row: &SqlRow<'_>| Ok((read_counters(row)?, read_note(row)?));
    let found = db.prepare_cached(const { sql("load_name") })?.query_row([name], read).optional()?;
    let (counters, note) = found.unwrap_or_default();
    let (mut rows, mut kept) = (Vec::new(), Kept::new());
    let mut all = |sql, read: fn(&SqlRow<'_>) -> Result<(LeaseId, Row), Fault>| {
        let mut statement: CachedStatement<'_> = db.prepare_cached(sql)?;
        for row in statement.query_map([name], read)? {
            rows.push(row?);
        }
        Ok::<_, Fault>(())
    };
    all(const { sql("load_leases") }, lease)?;
    all(const { sql("load_spent") }, spent)?;
    let mut statement = db.prepare_cached(const { sql("load_tickets") })?;
    let mut tickets = statement.query([name])?;
    while let Some(row) = tickets.next()? {
        let (id, ticket) = ticket(row)?;
        rows.push((id, ticket));
        if let Some(keeper) = row.get(11)? {
            kept.insert(id, keeper);
        }
    }
    let state = State::from_rows(counters.fence, counters.version, rows).with_note(note);
    Ok((state, counters, kept))
}

/// Stores the counters of a name.
pub(super) fn put_counters(db: &Connection, name: &str, counters: Counters) -> Result<(), Fault> {
    let Counters { fence, version, changes } = counters;
    let fence = if bugs::on(Bug::SqliteFenceInMemory) { Fence::UNFENCED } else { fence };
    let columns = params![name, time(fence.get()), time(version), time(changes)];
    db.prepare_cached(const { sql("put_name") })?.execute(columns)?;
    Ok(())
}

/// Stores the note of a name, whose counters are stored.
pub(super) fn put_note(db: &Connection, name: &str, note: &Note) -> Result<(), Fault> {
    let columns = params![name, &*note.text, time(note.fence.get()), time(note.revision)];
    db.prepare_cached(const { sql("put_note") })?.execute(columns)?;
    Ok(())
}

/// Stores the row of an id, new or changed. The keeper matters only if the id has a place.
pub(super) fn put(
    db: &Connection,
    name: &str,
    id: &LeaseId,
    row: &Row,
    keeper: Option<Keeper>,
    now: Now,
) -> Result<(), Fault> {
    match row {
        Row::Lease(lease) => {
            let (mode, permits) = mode_columns(lease.mode);
            let left = lease.expires.saturating_sub(now.expiry);
            db.prepare_cached(const { sql("put_lease") })?.execute(params![
                name,
                id.expose(),
                mode,
                permits,
                time(lease.fence.get()),
                lease.owner,
                lease.metadata,
                time(lease.ttl),
                time(lease.expires),
                time(lease.acquired_wall),
                time(lease.renewals),
                bits(lease.nonce),
                lease.repeated,
                lease.revoked,
                time(lease.granted.get()),
                time(now.wall.saturating_add(left) / 1000),
            ])?;
        }
        Row::Ticket(ticket) => {
            let (mode, permits) = mode_columns(ticket.mode);
            db.prepare_cached(const { sql("put_ticket") })?.execute(params![
                name,
                id.expose(),
                mode,
                permits,
                time(ticket.arrival),
                ticket.owner,
                time(ticket.ttl),
                time(ticket.lapses),
                time(ticket.joined),
                bits(ticket.nonce),
                ticket.repeated,
                ticket.woken,
                keeper,
            ])?;
        }
        Row::Spent(spent) => {
            let columns = params![name, id.expose(), time(spent.until), spent.why.as_str()];
            db.prepare_cached(const { sql("put_spent") })?.execute(columns)?;
        }
    }
    Ok(())
}

/// Deletes the row of an id.
pub(super) fn remove(db: &Connection, name: &str, id: &LeaseId, from: Table) -> Result<(), Fault> {
    let sql = match from {
        Table::Leases => const { sql("drop_lease") },
        Table::Tickets => const { sql("drop_ticket") },
        Table::Spent => const { sql("drop_spent") },
    };
    db.prepare_cached(sql)?.execute([name, id.expose()])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::open::migrate;
    use super::*;
    use crate::backend::Gone;
    use crate::state::{LeaseRow, SpentRow, TicketRow};

    fn now() -> Now {
        Now { expiry: 7, wall: 1_700_000_000_000_000 }
    }

    /// Reads numbers and text from bytes, one after the other; zeros after the end.
    struct Bytes<'a>(&'a [u8]);

    impl Bytes<'_> {
        fn number(&mut self) -> u64 {
            let (first, rest) = self.0.split_at(self.0.len().min(8));
            self.0 = rest;
            let mut bytes = [0; 8];
            bytes[..first.len()].copy_from_slice(first);
            // As in the store: below 2^63.
            u64::from_le_bytes(bytes) >> 1
        }

        fn is_even(&mut self) -> bool {
            self.number().is_multiple_of(2)
        }

        fn text(&mut self) -> String {
            let (first, rest) = self.0.split_at(self.0.len().min(12));
            self.0 = rest;
            String::from_utf8_lossy(first).into_owned()
        }

        fn mode(&mut self) -> Mode {
            match self.number() % 3 {
                0 => Mode::Exclusive,
                1 => Mode::Shared,
                _ => Mode::Permit { limit: self.number() as u32 },
            }
        }

        fn row(&mut self) -> Row {
            let (kind, mode, owner) = (self.number() % 3, self.mode(), self.text().into());
            match kind {
                0 => Row::Lease(LeaseRow {
                    mode,
                    owner,
                    fence: Fence::new(self.number()),
                    granted: Fence::new(self.number()),
                    metadata: self.is_even().then(|| self.text().into()),
                    ttl: self.number(),
                    expires: self.number(),
                    acquired_wall: self.number(),
                    renewals: self.number(),
                    nonce: self.number() << 1,
                    repeated: self.is_even(),
                    revoked: self.is_even(),
                }),
                1 => Row::Ticket(TicketRow {
                    arrival: self.number(),
                    mode,
                    owner,
                    ttl: self.number(),
                    lapses: self.number(),
                    joined: self.number(),
                    nonce: self.number() << 1,
                    repeated: self.is_even(),
                    woken: self.is_even(),
                }),
                _ => {
                    let all = [Gone::Expired, Gone::NotFound, Gone::Superseded, Gone::Revoked];
                    Row::Spent(SpentRow {
                        until: self.number(),
                        why: all[self.number() as usize % all.len()],
                    })
                }
            }
        }
    }

    #[test]
    fn fuzz_sqlite_rows() {
        let mut db = Connection::open_in_memory().expect("memory");
        migrate(&mut db).expect("tables");
        testkit::fuzz::fuzz(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/sqlite_rows.txt"), |input| {
            db.execute_batch("DELETE FROM leases; DELETE FROM tickets; DELETE FROM spent")
                .expect("it is empty");
            let mut bytes = Bytes(input);
            let (id, row) = (LeaseId::random(), bytes.row());
            put(&db, "/name", &id, &row, None, now()).expect("it is stored");
            let (state, ..) = load(&db, "/name").expect("it is read");
            assert_eq!(state.row(&id), Some(row), "what is stored is read back");
            // Whatever another program has written into the file is read or refused.
            let text = String::from_utf8_lossy(input);
            let texts = [
                ("leases", "mode"),
                ("leases", "owner"),
                ("leases", "id"),
                ("leases", "metadata"),
                ("tickets", "id"),
            ];
            for (table, column) in texts {
                let _ = db.execute(&format!("UPDATE {table} SET {column} = ?1"), [&*text]);
            }
            let numbers =
                [("leases", "permits"), ("leases", "fence"), ("leases", "ttl_us"), ("spent", "until_us")];
            for (table, column) in numbers {
                let number = bytes.number().cast_signed().wrapping_neg();
                let _ = db.execute(&format!("UPDATE {table} SET {column} = ?1"), [number]);
            }
            let _ = load(&db, "/name");
        });
    }
}
