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
use crate::name::Name;
use crate::state::{Answer, Now, Op};

/// Requests in one transaction at most: others wait for the lock meanwhile.
const MOST_REQUESTS: usize = 4096;

/// How often the processes on a file together sweep it, so that names nobody uses do not pile up.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);

/// A verb, with what it is about.
pub(super) enum Job {
    Acquire(Claim),
    Renew(Vec<Renewal>),
    Release(Release),
    Revoke { name: Name, now: bool, only: Option<Fence> },
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
    /// When the places of those who wait here are next to be kept, and when something of a name they wait for
    /// ends, as far as the names at hand tell; by the expiry clock.
    pub(super) beat_at: u64,
    pub(super) due_at: u64,
}

/// What a look around found to be done.
#[derive(Default)]
struct Found {
    /// Those who wait here and were woken by another process.
    woken: Vec<(Arc<str>, LeaseId)>,
    /// Names somebody waits for here, and of which something has ended.
    due: Vec<Arc<str>>,
    /// It is time to sweep.
    sweep: bool,
    /// It is time to keep the places of those who wait here.
    beat: bool,
}

impl Found {
    fn is_empty(&self) -> bool {
        self.woken.is_empty() && self.due.is_empty() && !self.sweep && !self.beat
    }
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
        // A log that blocks must not hold up everybody's leases.
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
                        move || tracing::debug!(%error, "cannot look for those who wait; will look again"),
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
        // Dropping the connection writes the log back into the file if nobody else has it open.
    }

    /// Sweeps, if nobody has for a while.
    pub(super) fn tidy(&mut self) {
        let now = Duration::from_micros(self.clock.wall_micros());
        let swept = self.db.query_row(const { sql("swept") }, [], |row| row.get::<_, i64>(0));
        // A clock that was set back counts too.
        let since = swept.map(|swept| Duration::from_millis(swept.unsigned_abs()).abs_diff(now));
        if since.is_ok_and(|since| since >= SWEEP_EVERY) {
            self.serve(Vec::new(), &Found { sweep: true, ..Found::default() });
        }
    }

    /// Looks for those who wait here and were woken by another process, and for names they wait for of which
    /// something has ended: those behind the front do not know when they become it, nor that its holder is
    /// dead. When it is time, also names that are not at hand are looked at.
    fn look(&mut self, now: u64, timed: bool, found: &mut Found) -> Result<(), Fault> {
        // Until the names at hand have told.
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

    /// Sees to it that the places of those who wait here are kept in time for a ticket of this ttl: a third of
    /// it, as the wait loop does where it keeps its place itself.
    pub(super) fn beat_before(&mut self, ticket_ttl: Option<Duration>, now: u64) {
        if let Some(ticket_ttl) = ticket_ttl {
            let third = u64::try_from((ticket_ttl / 3).as_micros()).unwrap_or(u64::MAX);
            self.beat_at = self.beat_at.min(now.saturating_add(third));
        }
    }

    /// Runs what has arrived, and answers.
    fn serve(&mut self, requests: Vec<Request>, found: &Found) {
        let mut done = self.transact(&requests, found);
        // A log that is written back begins anew, in the room it has already. To those who live, what could not
        // be written is undone, so running it again is no second time.
        if let Err((fault, _)) = &done
            && fault::is_full(fault)
            && self.write_back()
        {
            done = self.transact(&requests, &Found::default());
        }
        let (fault, outcome) = match done {
            Ok(replies) => {
                for (request, reply) in requests.into_iter().zip(replies) {
                    // Whoever no longer listens settles it with a release that says so (promise 8).
                    let _ = request.reply.send(Ok(reply));
                }
                return;
            }
            Err(failed) => failed,
        };
        // Without what takes room, what makes room may still be written.
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

    /// Writes the log back into the file; whether all of it is there, so that the log begins anew.
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

    /// One transaction: everything or nothing, and on disk when it returns.
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
                // Nothing at hand can be relied on, and whoever waits may wait in vain.
                self.book.clear();
                self.book.expired = expired;
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
        if self.booked != Some(version) && !bugs::on(Bug::SqliteBelievesItsBook) {
            self.book.doubt();
            self.booked = Some(version);
        }
        // Read when nobody else can write, so that time never goes back for a name.
        let at = self.clock.now();
        let wall = self.clock.wall_micros();
        let expiry = if bugs::on(Bug::SqliteExpiresByWallClock) { wall } else { at.as_micros() };
        let now = Now { expiry, wall };
        let mut turn = Turn { writer: self, now, after, changed: false };
        if found.beat {
            // First, so that nobody who waits here is found to have lapsed by what follows.
            turn.beat()?;
        }
        for (name, id) in &found.woken {
            turn.attempt(name, &mut vec![*id])?;
        }
        for name in &found.due {
            // Settles it, and lets in whoever can now go in.
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

/// Writes the log back into the file, as far as nobody is in the way. How many pages it has, and how many of
/// them are now in the file.
fn checkpoint(db: &Connection) -> Result<(i64, i64), Fault> {
    db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?)))
}

/// Changes whenever another connection, here or in another process, has committed.
fn data_version(db: &Connection) -> Result<i64, Fault> {
    db.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}
