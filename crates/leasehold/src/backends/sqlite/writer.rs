//! The only thread that uses a database: takes the requests that have arrived, runs them through the state machine in
//! one transaction, commits once, and only then answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::book::Book;
use super::fault::{self, Fault, Outcome};
use super::queue::Queue;
use super::sql;
use super::turn::{After, Turn};
use super::waiters::Waiters;
use super::wake::WakeFile;
use crate::backend::{Claim, Page, Query, Release, Renewal};
use crate::bugs::{self, Bug};
use crate::clock::{Clock, Moment};
use crate::engine::reporter;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::marks::{Checked, WriteFence};
use crate::name::Name;
use crate::state::{Answer, Now, Op};

/// The most requests in one transaction: other processes wait for the lock meanwhile.
const MOST_REQUESTS: usize = 4096;

/// How often the processes that share a file sweep it, so that unused names do not pile up.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);

/// A verb and its data.
pub(super) enum Job {
    Acquire(Claim),
    Renew(Vec<Renewal>),
    Release(Release),
    Revoke { name: Name, now: bool, only: Option<Fence> },
    Inspect(Query),
    Sweep,
    Check(Name, WriteFence),
}

/// The answer to a [`Job`].
pub(super) enum Reply {
    One(Result<Answer>),
    Many(Vec<Result<Answer>>),
    Page(Result<Page>),
    Checked(Checked),
}

/// A verb that has arrived, and where to send the answer.
pub(super) struct Request {
    pub(super) job: Job,
    pub(super) reply: oneshot::Sender<Result<Reply>>,
}

/// The state of the thread.
pub(super) struct Writer {
    pub(super) db: Connection,
    pub(super) wake: WakeFile,
    pub(super) queue: Arc<Queue<Request>>,
    pub(super) waiters: Arc<Waiters>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) commits: Arc<AtomicU64>,
    pub(super) look_every: Duration,
    pub(super) book: Book,
    /// SQLite's count of other connections' writes: when the book was up to date, and when we last looked for
    /// wake-ups.
    pub(super) booked: Option<i64>,
    pub(super) looked: Option<i64>,
    /// When to keep the places of the waiters here next, and when something of a name they wait for ends, as far as
    /// the cached names show; by the expiry clock.
    pub(super) beat_at: u64,
    pub(super) due_at: u64,
}

/// The work that a look at the file found.
#[derive(Default)]
struct Found {
    /// Waiters here that another process has woken.
    woken: Vec<(Arc<str>, LeaseId)>,
    /// Names with waiters here that have something expired.
    due: Vec<Arc<str>>,
    /// It is time to sweep.
    sweep: bool,
    /// It is time to keep the places of the waiters here.
    beat: bool,
}

impl Found {
    fn is_empty(&self) -> bool {
        self.woken.is_empty() && self.due.is_empty() && !self.sweep && !self.beat
    }
}

/// Makes requests fail instead of hanging, if the thread should ever end on its own.
struct Abandon(Arc<Queue<Request>>, Arc<Waiters>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.abandon();
        self.1.ring_all();
    }
}

impl Writer {
    /// Serves requests until the queue is closed and empty.
    pub(super) fn run(mut self) {
        // A log that blocks must not hold up the leases of all clients.
        reporter::keep_off_this_thread();
        let _abandon = Abandon(Arc::clone(&self.queue), Arc::clone(&self.waiters));
        let (mut last_look, mut last_tidy) = (Instant::now(), Instant::now());
        while let Some(requests) = self.queue.take(MOST_REQUESTS) {
            let now = self.clock.now().as_micros();
            let waited_for = !self.waiters.is_empty();
            let timed = waited_for && last_look.elapsed() >= self.look_every;
            if self.look_every == Duration::MAX {
                self.due_at = u64::MAX;
            }
            let due = waited_for && now >= self.due_at;
            let mut found = Found { beat: waited_for && now >= self.beat_at, ..Found::default() };
            if self.wake.was_touched() || timed || due {
                if timed {
                    last_look = Instant::now();
                }
                if let Err(fault) = self.look(now, timed, &mut found) {
                    let error = fault::error(fault, Outcome::Undone);
                    reporter::log(
                        move || tracing::debug!(%error, "cannot look for waiters; will look again"),
                    );
                }
            }
            if requests.is_empty() && found.is_empty() {
                let until = Duration::from_micros(self.due_at.min(self.beat_at).saturating_sub(now));
                self.queue.wait(&self.wake, waited_for.then(|| self.look_every.min(until)));
            } else {
                self.serve(requests, &found);
                self.book.trim();
            }
            if last_tidy.elapsed() >= SWEEP_EVERY {
                last_tidy = Instant::now();
                self.tidy();
            }
        }
        // Dropping the connection writes the log back into the file if no other process has it open.
    }

    /// Sweeps, if no process has for a while.
    pub(super) fn tidy(&mut self) {
        let now = Duration::from_micros(self.clock.wall_micros());
        let swept = self.db.query_row(const { sql("swept") }, [], |row| row.get::<_, i64>(0));
        // A clock that was set back counts too.
        let since = swept.map(|swept| Duration::from_millis(swept.unsigned_abs()).abs_diff(now));
        if since.is_ok_and(|since| since >= SWEEP_EVERY) {
            self.serve(Vec::new(), &Found { sweep: true, ..Found::default() });
        }
    }

    /// Looks for waiters here that another process has woken, and for names they wait for on which something has
    /// ended: a waiter behind the front knows neither when it becomes the front nor that the holder is dead. When it
    /// is time, looks at names that are not cached too.
    fn look(&mut self, now: u64, timed: bool, found: &mut Found) -> Result<(), Fault> {
        // Until the cached names have shown more.
        self.due_at = u64::MAX;
        let version = data_version(&self.db)?;
        if !self.waiters.is_empty() && self.looked != Some(version) {
            let mut statement = self.db.prepare_cached(const { sql("woken") })?;
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
        if self.look_every == Duration::MAX {
            return Ok(());
        }
        let current = self.booked == Some(version);
        let mut statement = self.db.prepare_cached(const { sql("is_due") })?;
        for name in self.waiters.names() {
            let is_due = match self.book.due(&name).filter(|_| current) {
                Some(due) if due > now => {
                    self.due_at = self.due_at.min(due);
                    false
                }
                Some(_) => true,
                None => timed && statement.query_row((&name, now.cast_signed()), |row| row.get(0))?,
            };
            if is_due {
                found.due.push(name);
            }
        }
        Ok(())
    }

    /// Schedules the next heartbeat in time for a ticket of this ttl: after a third of it, like the wait loop where it
    /// keeps its place itself.
    pub(super) fn beat_before(&mut self, ticket_ttl: Option<Duration>, now: u64) {
        if let Some(ticket_ttl) = ticket_ttl {
            let third = u64::try_from((ticket_ttl / 3).as_micros()).unwrap_or(u64::MAX);
            self.beat_at = self.beat_at.min(now.saturating_add(third));
        }
    }

    /// Runs the requests that have arrived, and answers them.
    fn serve(&mut self, requests: Vec<Request>, found: &Found) {
        let mut done = self.transact(&requests, found);
        // After it is written back, the log starts anew in the room it already has. To live processes, work that could
        // not be written is undone, so running it again does not do it twice.
        if let Err((fault, _)) = &done
            && fault::is_full(fault)
            && self.write_back()
        {
            done = self.transact(&requests, &Found::default());
        }
        let (fault, outcome) = match done {
            Ok(replies) => {
                for (request, reply) in requests.into_iter().zip(replies) {
                    // A caller that no longer listens settles it with a release that says so (promise 8).
                    let _ = request.reply.send(Ok(reply));
                }
                return;
            }
            Err(failed) => failed,
        };
        // Without the requests that take room, those that free room may still be written.
        let (mut failed, mut rest) = (requests, Vec::new());
        if fault::is_full(&fault) {
            (failed, rest) = failed.into_iter().partition(|request| matches!(request.job, Job::Acquire(_)));
            if failed.is_empty() {
                std::mem::swap(&mut failed, &mut rest);
            }
        }
        let error = fault::error(fault, outcome);
        let (told, requests) = (error.duplicate(), failed.len());
        reporter::log(move || tracing::debug!(error = %told, requests, "a transaction failed"));
        for request in failed {
            let _ = request.reply.send(Err(error.duplicate()));
        }
        if !rest.is_empty() {
            self.serve(rest, &Found::default());
        }
    }

    /// Writes the log back into the file. Returns whether all of it is there, so that the log starts anew.
    fn write_back(&self) -> bool {
        match checkpoint(&self.db) {
            Ok((pages, written)) => pages > 0 && pages == written,
            Err(fault) => {
                let error = fault::error(fault, Outcome::Undone);
                reporter::log(move || tracing::debug!(%error, "the log cannot be written back"));
                false
            }
        }
    }

    /// Runs one transaction: all or nothing, and on disk when it returns.
    fn transact(&mut self, requests: &[Request], found: &Found) -> Result<Vec<Reply>, (Fault, Outcome)> {
        let only_looks =
            found.is_empty() && requests.iter().all(|request| matches!(request.job, Job::Inspect(_)));
        let begin = if only_looks { "BEGIN" } else { "BEGIN IMMEDIATE" };
        execute(&self.db, begin).map_err(|fault| (fault, Outcome::Undone))?;
        let (mut after, expired) = (After::default(), self.book.expired);
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
                if after.elsewhere && !bugs::on(Bug::SqliteTellsNobody) {
                    self.wake.touch();
                }
                Ok(replies)
            }
            Err(failed) => {
                if !self.db.is_autocommit()
                    && let Err(fault) = execute(&self.db, "ROLLBACK")
                {
                    let error = fault::error(fault, Outcome::Undone);
                    reporter::log(move || tracing::debug!(%error, "cannot roll back"));
                }
                // The cache cannot be trusted any more, and the waiters may wait in vain.
                self.book.clear();
                self.book.expired = expired;
                after.ring.iter().for_each(|(slot, _)| slot.ring(None));
                self.waiters.ring_all();
                Err(failed)
            }
        }
    }

    /// The inside of a transaction. Returns whether there is anything to commit, and when it ran.
    fn run_all(
        &mut self,
        requests: &[Request],
        found: &Found,
        after: &mut After,
    ) -> Result<(Vec<Reply>, bool, Moment), Fault> {
        let version = data_version(&self.db)?;
        if self.booked != Some(version) && !bugs::on(Bug::SqliteBelievesItsBook) {
            self.book.doubt();
            self.booked = Some(version);
        }
        // Read while no other connection can write, so that time never goes back for a name.
        let at = self.clock.now();
        let wall = self.clock.wall_micros();
        let expiry = if bugs::on(Bug::SqliteExpiresByWallClock) { wall } else { at.as_micros() };
        let now = Now { expiry, wall };
        let mut turn = Turn { writer: self, now, after, changed: false };
        if found.beat {
            // First, so that nothing below finds that a waiter of this process has lapsed.
            turn.beat()?;
        }
        for (name, id) in &found.woken {
            turn.attempt(name, &mut vec![*id])?;
        }
        for name in &found.due {
            // Settles the name, and lets in the waiters that can now enter.
            let _ = turn.apply(name, Op::Sweep)?;
        }
        if found.sweep {
            turn.sweep()?;
            let done = [(now.wall / 1000).cast_signed()];
            turn.writer.db.execute(const { sql("put_swept") }, done)?;
            turn.changed = true;
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

/// Writes the log back into the file, as far as no reader is in the way. Returns how many pages it has, and how many
/// of them are now in the file.
fn checkpoint(db: &Connection) -> Result<(i64, i64), Fault> {
    db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?)))
}

/// A number that changes whenever another connection, here or in another process, has committed.
fn data_version(db: &Connection) -> Result<i64, Fault> {
    db.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}
