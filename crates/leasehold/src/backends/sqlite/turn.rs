//! The inside of one transaction: runs requests through the state machine, and the attempts of the waiters that they
//! let in.

use std::collections::HashSet;
use std::sync::Arc;

use super::fault::Fault;
use super::sql;
use super::writer::{Job, Reply, Writer};
use crate::backend::{Attempt, Grant, Page, PageBuilder, Query, Swept};
use crate::backends::waiting::Slot;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::state::{Answer, Now, Op};

/// The most names that one sweep settles, and counters that it forgets: other processes wait for the lock meanwhile.
const MOST_SWEPT: u32 = 10_000;

/// One transaction's work.
pub(super) struct Turn<'a> {
    pub(super) writer: &'a mut Writer,
    pub(super) now: Now,
    pub(super) after: &'a mut After,
    /// Something was written.
    pub(super) changed: bool,
}

/// What remains to be done after a transaction.
#[derive(Default)]
pub(super) struct After {
    /// Waiters of this process to wake, with their grants.
    pub(super) ring: Vec<(Arc<Slot>, Option<Grant>)>,
    /// A waiter of another process was woken.
    pub(super) elsewhere: bool,
}

impl Turn<'_> {
    /// Runs one request.
    pub(super) fn run(&mut self, job: &Job) -> Result<Reply, Fault> {
        Ok(match job {
            Job::Acquire(claim) => Reply::One(self.apply(claim.name.stored_arc(), Op::Acquire(claim))?),
            Job::Release(release) => Reply::One(self.apply(release.name.stored_arc(), Op::Release(release))?),
            Job::Revoke { name, now, only } => {
                Reply::One(self.apply(name.stored_arc(), Op::Revoke { now: *now, only: *only })?)
            }
            Job::Renew(renewals) => Reply::Many(
                renewals
                    .iter()
                    .map(|renewal| self.apply(renewal.name.stored_arc(), Op::Renew(renewal)))
                    .collect::<Result<_, Fault>>()?,
            ),
            Job::Sweep => {
                let swept = self.sweep()?;
                let expired = std::mem::take(&mut self.writer.book.expired);
                Reply::One(Ok(Answer::Swept(Swept { expired, ..swept })))
            }
            Job::Inspect(query) => Reply::Page(self.inspect(query)?),
            Job::Check(resource, fence) => Reply::Checked(self.check(resource, *fence)?),
        })
    }

    /// Applies a verb, and at once the attempts of the waiters that it lets in, and of those that these let in.
    pub(super) fn apply(&mut self, name: &Arc<str>, op: Op<'_>) -> Result<Result<Answer>, Fault> {
        let Writer { db, book, waiters, .. } = &mut *self.writer;
        let mut wake = Vec::new();
        let answer = book.apply(db, name, self.now, op, &mut wake)?;
        if let (Op::Acquire(claim), Ok(Answer::Acquired(Attempt::Busy(_)))) = (op, &answer) {
            book.hold_place(db, name, claim.id, claim.queue, self.now)?;
        }
        let mut vain = Vec::new();
        let state = book.state(db, name)?;
        if waiters.keep_in_step(name, state, &op, &answer, &mut vain) {
            let due = state.due();
            self.writer.due_at = self.writer.due_at.min(due);
            if let Op::Acquire(claim) = op {
                self.writer.beat_before(claim.queue, self.now.expiry);
            }
        }
        self.after.ring.extend(vain.into_iter().map(|slot| (slot, None)));
        self.attempt(name, &mut wake)?;
        Ok(answer)
    }

    /// Makes the attempts of the woken waiters that wait in this process.
    pub(super) fn attempt(&mut self, name: &Arc<str>, wake: &mut Vec<LeaseId>) -> Result<(), Fault> {
        let mut next = 0;
        while let Some(id) = wake.get(next).copied() {
            next += 1;
            let Some(waiter) = self.writer.waiters.take(name, &id) else {
                self.after.elsewhere = true;
                continue;
            };
            // A place with no waiter must not become a lease with no holder. Its waiter may be in another process.
            if !waiter.slot.is_waited_on() {
                self.after.elsewhere = true;
                self.after.ring.push((waiter.slot, None));
                continue;
            }
            let Writer { db, book, .. } = &mut *self.writer;
            let grant = match book.apply(db, name, self.now, Op::Acquire(&waiter.claim), wake)? {
                Ok(Answer::Acquired(Attempt::Granted(grant))) => Some(grant),
                // The waiter learns of an error from its own attempt. And if the claim goes on in another process,
                // that one is to be woken.
                _ => {
                    self.after.elsewhere = true;
                    None
                }
            };
            self.after.ring.push((waiter.slot, grant));
        }
        Ok(())
    }

    /// Makes the heartbeat: keeps the places of all claims whose `wait` is pending in this process.
    pub(super) fn beat(&mut self) -> Result<(), Fault> {
        let mut names = self.writer.book.kept_names();
        names.extend(self.writer.waiters.names());
        let mut busy = HashSet::new();
        for name in &names {
            let mut pending = self.writer.waiters.pending(name);
            let due = self.writer.book.state(&self.writer.db, name)?.due();
            if due <= self.now.expiry && !pending.is_empty() {
                // A lapsed place stays lapsed and is not kept.
                let _ = self.apply(name, Op::Sweep)?;
                pending = self.writer.waiters.pending(name);
            }
            let Writer { db, book, waiters, .. } = &mut *self.writer;
            // A waiter whose place is gone learns of it, and joins again.
            for id in book.hold_places(db, name, &pending, &mut busy, self.now)? {
                let gone = waiters.take(name, &id);
                self.after.ring.extend(gone.map(|waiter| (waiter.slot, None)));
            }
        }
        if !busy.is_empty() {
            let Writer { db, book, .. } = &mut *self.writer;
            book.beat(db, &busy, self.now)?;
            self.changed = true;
            // So that the writer knows when something of these names really ends.
            for name in &names {
                book.state(db, name)?;
            }
        }
        self.writer.beat_at = u64::MAX;
        self.writer.beat_before(self.writer.waiters.shortest_ticket(), self.now.expiry);
        Ok(())
    }

    /// Writes pending changes, so that queries see them.
    pub(super) fn write(&mut self) -> Result<(), Fault> {
        self.changed |= self.writer.book.write(&self.writer.db, self.now)?;
        Ok(())
    }

    fn names(&self, sql: &str, values: impl rusqlite::Params) -> Result<Vec<Arc<str>>, Fault> {
        let mut statement = self.writer.db.prepare_cached(sql)?;
        let names = statement.query_map(values, |row| Ok(Arc::from(row.get_ref(0)?.as_str()?)))?;
        names.collect()
    }

    fn inspect(&mut self, query: &Query) -> Result<Result<Page>, Fault> {
        let now = self.now.expiry.cast_signed();
        let asked = if let Query::LeaseId(id) = query { Some(id) } else { None };
        let limit = if let Query::Prefix { limit, .. } = query { *limit } else { usize::MAX };
        let mut page = match PageBuilder::new(limit) {
            Ok(page) => page,
            Err(error) => return Ok(Err(error)),
        };
        let names = match query {
            Query::Name(name) => vec![Arc::clone(name.stored_arc())],
            Query::LeaseId(id) => {
                self.write()?;
                self.names(const { sql("find_id") }, (id.expose(), now))?
            }
            Query::Prefix { stored: prefix, cursor, .. } => {
                self.write()?;
                let most = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
                let values = (prefix, cursor, now, most);
                let mut found = self.names(const { sql("find_in_use") }, values)?;
                found.retain(|name| name.starts_with(prefix.as_str()));
                found
            }
        };
        for stored in names {
            let name = match Name::from_stored(&stored) {
                Ok(name) => name,
                Err(error) => return Ok(Err(error)),
            };
            let info = self.writer.book.state(&self.writer.db, &stored)?.view(&name, self.now, asked);
            if !page.take(info) {
                break;
            }
        }
        Ok(Ok(page.finish()))
    }

    /// Drops what has ended, and counters that are no longer needed. The book counts expired leases, together with
    /// those that other verbs dropped.
    pub(super) fn sweep(&mut self) -> Result<Swept, Fault> {
        self.write()?;
        let mut total = Swept::default();
        let due = (self.now.expiry.cast_signed(), MOST_SWEPT);
        for name in self.names(const { sql("find_due") }, due)? {
            if let Ok(Answer::Swept(swept)) = self.apply(&name, Op::Sweep)? {
                total.tickets += swept.tickets;
            }
        }
        self.write()?;
        let passed = Fence::at(self.now.wall.saturating_sub(Fence::RETENTION.as_micros() as u64));
        let passed = (passed.get().cast_signed(), MOST_SWEPT);
        for name in self.names(const { sql("forget") }, passed)? {
            self.writer.book.forget(&name);
            total.counters += 1;
            self.changed = true;
        }
        let counts = |row: &rusqlite::Row<'_>| Ok((row.get::<_, u32>(0)?, row.get::<_, u32>(1)?));
        let mut statement = self.writer.db.prepare_cached(const { sql("counts") })?;
        let (held, waiting) = statement.query_row([], counts)?;
        (total.held, total.waiting) = (held.into(), waiting.into());
        Ok(total)
    }
}
