//! The one thread that uses a database: takes what has arrived, runs it through the state machine in
//! one transaction, commits once, and only then answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::book::Book;
use super::fault::{self, Fault, Outcome};
use super::queue::Queue;
use super::waiters::{Slot, Waiters};
use super::wake::WakeFile;
use crate::backend::{Attempt, Claim, Grant, Page, Query, Release, Renewal, Swept};
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::state::{Answer, Now, Op};

/// Requests in one transaction at most: others wait for the lock meanwhile.
const MOST_REQUESTS: usize = 4096;

/// Names that one sweep settles, and counters that it forgets, at most: likewise.
const MOST_SWEPT: u32 = 10_000;

/// A verb, with what it is about.
pub(super) enum Job {
    Acquire(Claim),
    Renew(Vec<Renewal>),
    Release(Release),
    Revoke { name: Name, now: bool },
    Inspect(Query),
    Sweep,
}

/// The answer to a [`Job`].
pub(super) enum Reply {
    One(Result<Answer>),
    Many(Vec<Result<Answer>>),
    Page(Result<Page>),
}

/// A verb that has arrived, and who wants to know.
pub(super) struct Request {
    pub(super) job: Job,
    pub(super) reply: oneshot::Sender<Result<Reply>>,
}

/// The thread's own things.
pub(super) struct Writer {
    pub(super) db: Connection,
    pub(super) wake: WakeFile,
    pub(super) queue: Arc<Queue<Request>>,
    pub(super) waiters: Arc<Waiters>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) commits: Arc<AtomicU64>,
    pub(super) look_every: Duration,
    pub(super) book: Book,
    /// SQLite's count of what other connections wrote, when the book was good and when we last looked
    /// for wake-ups.
    pub(super) booked: Option<i64>,
    pub(super) looked: Option<i64>,
}

/// What a look around found to be done.
#[derive(Default)]
struct Found {
    /// Those who wait here and were woken by another process.
    woken: Vec<(Arc<str>, LeaseId)>,
    /// Names somebody waits for here, and of which something has ended.
    due: Vec<Arc<str>>,
}

impl Found {
    fn is_empty(&self) -> bool {
        self.woken.is_empty() && self.due.is_empty()
    }
}

/// What one transaction leaves to be done after it.
#[derive(Default)]
struct After {
    /// Waiters of this process, with what they got.
    ring: Vec<(Arc<Slot>, Option<Grant>)>,
    /// Somebody was woken who does not wait in this process.
    elsewhere: bool,
}

/// Requests are refused, not left hanging, should the thread ever end on its own.
struct Abandon(Arc<Queue<Request>>, Arc<Waiters>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.abandon();
        self.1.ring_all();
    }
}

impl Writer {
    /// Serves until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let _abandon = Abandon(Arc::clone(&self.queue), Arc::clone(&self.waiters));
        let mut last_look = Instant::now();
        while let Some(requests) = self.queue.take(MOST_REQUESTS) {
            let waited_for = !self.waiters.is_empty();
            let timed = waited_for && last_look.elapsed() >= self.look_every;
            let mut found = Found::default();
            if self.wake.was_touched() || timed {
                if timed {
                    last_look = Instant::now();
                }
                if let Err(fault) = self.look(timed, &mut found) {
                    let error = fault::error(fault, Outcome::Undone);
                    tracing::debug!(%error, "cannot look for those who wait; will look again");
                }
            }
            if requests.is_empty() && found.is_empty() {
                self.queue.wait(&self.wake, waited_for.then_some(self.look_every));
            } else {
                self.serve(requests, &found);
                self.book.trim();
            }
        }
        // Dropping the connection writes the log back into the file if nobody else has it open.
    }

    /// Looks for those who wait here and were woken by another process; when it is time, also for names
    /// they wait for of which something has ended. Those behind the front do not know when they become
    /// it, nor that its holder is dead.
    fn look(&mut self, timed: bool, found: &mut Found) -> Result<(), Fault> {
        let version = data_version(&self.db)?;
        if !self.waiters.is_empty() && self.looked != Some(version) {
            let mut statement = self.db.prepare_cached(include_str!("sql/woken.sql"))?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let name = row.get_ref(0)?.as_str()?;
                let id =
                    LeaseId::parse(row.get_ref(1)?.as_str()?).map_err(|error| fault::foreign(1, error))?;
                if self.waiters.has(name, &id) {
                    found.woken.push((name.into(), id));
                }
            }
            self.looked = Some(version);
        }
        if timed {
            let now = self.clock.now().as_micros().cast_signed();
            let mut statement = self.db.prepare_cached(include_str!("sql/is_due.sql"))?;
            for name in self.waiters.names() {
                if statement.query_row((&name, now), |row| row.get(0))? {
                    found.due.push(name);
                }
            }
        }
        Ok(())
    }

    /// Runs what has arrived, and answers.
    fn serve(&mut self, requests: Vec<Request>, found: &Found) {
        let (fault, outcome) = match self.transact(&requests, found) {
            Ok(replies) => {
                for (request, reply) in requests.into_iter().zip(replies) {
                    // Whoever no longer listens settles it with a release that says so (promise 8).
                    let _ = request.reply.send(Ok(reply));
                }
                return;
            }
            Err(failed) => failed,
        };
        // Without what takes room, what makes room may still be written. To those who live, what could
        // not be written is undone, so running it again is no second time.
        let (mut failed, mut rest) = (requests, Vec::new());
        if fault::is_full(&fault) {
            // A log that is written back begins anew, in the room it has already.
            if let Err(fault) = checkpoint(&self.db) {
                tracing::debug!(error = %fault::error(fault, Outcome::Undone), "the log cannot be written back");
            }
            (failed, rest) = failed.into_iter().partition(|request| matches!(request.job, Job::Acquire(_)));
            if failed.is_empty() {
                std::mem::swap(&mut failed, &mut rest);
            }
        }
        let error = fault::error(fault, outcome);
        tracing::debug!(%error, requests = failed.len(), "a transaction failed");
        for request in failed {
            let _ = request.reply.send(Err(error.duplicate()));
        }
        if !rest.is_empty() {
            self.serve(rest, &Found::default());
        }
    }

    /// One transaction: everything or nothing, and on disk when it returns.
    fn transact(&mut self, requests: &[Request], found: &Found) -> Result<Vec<Reply>, (Fault, Outcome)> {
        let only_looks =
            found.is_empty() && requests.iter().all(|request| matches!(request.job, Job::Inspect(_)));
        let begin = if only_looks { "BEGIN" } else { "BEGIN IMMEDIATE" };
        execute(&self.db, begin).map_err(|fault| (fault, Outcome::Undone))?;
        let mut after = After::default();
        let done = self.run_all(requests, found, &mut after);
        let done = done.map_err(|fault| (fault, Outcome::Undone)).and_then(|(replies, changed, at)| {
            execute(&self.db, "COMMIT").map_err(|fault| (fault, Outcome::Unknown))?;
            self.commits.fetch_add(u64::from(changed), Ordering::Relaxed);
            Ok((replies, at))
        });
        match done {
            Ok((replies, at)) => {
                for (slot, grant) in after.ring {
                    slot.ring(grant.map(|grant| (grant, at)));
                }
                if after.elsewhere {
                    self.wake.touch();
                }
                Ok(replies)
            }
            Err(failed) => {
                if !self.db.is_autocommit()
                    && let Err(fault) = execute(&self.db, "ROLLBACK")
                {
                    tracing::debug!(error = %fault::error(fault, Outcome::Undone), "cannot roll back");
                }
                // Nothing at hand can be relied on, and whoever waits may wait in vain.
                self.book.clear();
                after.ring.iter().for_each(|(slot, _)| slot.ring(None));
                self.waiters.ring_all();
                Err(failed)
            }
        }
    }

    /// The inside of a transaction; whether there is anything to commit, and when it ran.
    fn run_all(
        &mut self,
        requests: &[Request],
        found: &Found,
        after: &mut After,
    ) -> Result<(Vec<Reply>, bool, Moment), Fault> {
        let version = data_version(&self.db)?;
        if self.booked != Some(version) {
            self.book.clear();
            self.booked = Some(version);
        }
        // Read when nobody else can write, so that time never goes back for a name.
        let at = self.clock.now();
        let now = Now { expiry: at.as_micros(), wall: self.clock.wall_micros() };
        let mut turn = Turn { writer: self, now, after, changed: false };
        for (name, id) in &found.woken {
            turn.attempt(name, &mut vec![*id])?;
        }
        for name in &found.due {
            // Settles it, and lets in whoever can now go in.
            let _ = turn.apply(name, Op::Sweep)?;
        }
        let mut replies = Vec::with_capacity(requests.len());
        for request in requests {
            replies.push(turn.run(&request.job)?);
        }
        turn.write()?;
        Ok((replies, turn.changed, at))
    }
}

fn execute(db: &Connection, sql: &str) -> Result<(), Fault> {
    db.prepare_cached(sql)?.execute([]).map(drop)
}

/// Writes the log back into the file, as far as nobody is in the way.
fn checkpoint(db: &Connection) -> Result<(), Fault> {
    db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// Changes whenever another connection, here or in another process, has committed.
fn data_version(db: &Connection) -> Result<i64, Fault> {
    db.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}

/// One transaction's work.
struct Turn<'a> {
    writer: &'a mut Writer,
    now: Now,
    after: &'a mut After,
    /// Something was written.
    changed: bool,
}

impl Turn<'_> {
    fn run(&mut self, job: &Job) -> Result<Reply, Fault> {
        Ok(match job {
            Job::Acquire(claim) => Reply::One(self.apply(claim.name.stored_arc(), Op::Acquire(claim))?),
            Job::Release(release) => Reply::One(self.apply(release.name.stored_arc(), Op::Release(release))?),
            Job::Revoke { name, now } => Reply::One(self.apply(name.stored_arc(), Op::Revoke { now: *now })?),
            Job::Renew(renewals) => Reply::Many(
                renewals
                    .iter()
                    .map(|renewal| self.apply(renewal.name.stored_arc(), Op::Renew(renewal)))
                    .collect::<Result<_, Fault>>()?,
            ),
            Job::Sweep => Reply::One(Ok(Answer::Swept(self.sweep()?))),
            Job::Inspect(query) => Reply::Page(self.inspect(query)?),
        })
    }

    /// A verb, and then at once the attempts of those it lets in, and of those that these let in.
    fn apply(&mut self, name: &Arc<str>, op: Op<'_>) -> Result<Result<Answer>, Fault> {
        let Writer { db, book, waiters, .. } = &mut *self.writer;
        let mut wake = Vec::new();
        let answer = book.apply(db, name, self.now, op, &mut wake)?;
        let mut vain = Vec::new();
        waiters.keep_in_step(name, book.state(db, name)?, &op, &answer, &mut vain);
        self.after.ring.extend(vain.into_iter().map(|slot| (slot, None)));
        self.attempt(name, &mut wake)?;
        Ok(answer)
    }

    /// Makes the attempts of those among the woken who wait in this process.
    fn attempt(&mut self, name: &Arc<str>, wake: &mut Vec<LeaseId>) -> Result<(), Fault> {
        let mut next = 0;
        while let Some(id) = wake.get(next).copied() {
            next += 1;
            let Some(waiter) = self.writer.waiters.take(name, &id) else {
                self.after.elsewhere = true;
                continue;
            };
            let Writer { db, book, .. } = &mut *self.writer;
            let grant = match book.apply(db, name, self.now, Op::Acquire(&waiter.claim), wake)? {
                Ok(Answer::Acquired(Attempt::Granted(grant))) => Some(grant),
                // An error is the waiter's to hear, from its own attempt. And if the claim goes on in
                // another process, that one is to be woken.
                _ => {
                    self.after.elsewhere = true;
                    None
                }
            };
            self.after.ring.push((waiter.slot, grant));
        }
        Ok(())
    }

    /// Writes what is not written yet, so that queries see it.
    fn write(&mut self) -> Result<(), Fault> {
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
        let (names, next) = match query {
            Query::Name(name) => (vec![Arc::clone(name.stored_arc())], None),
            Query::LeaseId(id) => {
                self.write()?;
                let found = self.names(include_str!("sql/find_id.sql"), (id.expose(), now))?;
                (found, None)
            }
            Query::Prefix { stored: prefix, limit, cursor } => {
                self.write()?;
                let most = i64::try_from(*limit).unwrap_or(i64::MAX).saturating_add(1);
                let values = (prefix, cursor, now, most);
                let mut found = self.names(include_str!("sql/find_in_use.sql"), values)?;
                found.retain(|name| name.starts_with(prefix.as_str()));
                let more = found.len() > *limit;
                found.truncate(*limit);
                let next = found.last().filter(|_| more).map(|name| name.to_string());
                (found, next)
            }
        };
        let mut items = Vec::with_capacity(names.len());
        for stored in names {
            let name = match Name::from_stored(&stored) {
                Ok(name) => name,
                Err(error) => return Ok(Err(error)),
            };
            items.push(self.writer.book.state(&self.writer.db, &stored)?.view(&name, self.now));
        }
        Ok(Ok(Page { items, next }))
    }

    fn sweep(&mut self) -> Result<Swept, Fault> {
        self.write()?;
        let mut total = Swept::default();
        let due = (self.now.expiry.cast_signed(), MOST_SWEPT);
        for name in self.names(include_str!("sql/find_due.sql"), due)? {
            if let Ok(Answer::Swept(swept)) = self.apply(&name, Op::Sweep)? {
                total.expired += swept.expired;
                total.tickets += swept.tickets;
            }
        }
        self.write()?;
        let passed = Fence::at(self.now.wall.saturating_sub(Fence::RETENTION.as_micros() as u64));
        let passed = (passed.get().cast_signed(), MOST_SWEPT);
        for name in self.names(include_str!("sql/forget.sql"), passed)? {
            self.writer.book.forget(&name);
            total.counters += 1;
            self.changed = true;
        }
        let counts = |row: &rusqlite::Row<'_>| Ok((row.get::<_, u32>(0)?, row.get::<_, u32>(1)?));
        let mut statement = self.writer.db.prepare_cached(include_str!("sql/counts.sql"))?;
        let (held, waiting) = statement.query_row([], counts)?;
        (total.held, total.waiting) = (held.into(), waiting.into());
        Ok(total)
    }
}
