//! `sqlite:path` — the state machine over a SQLite file: durable, shared between the processes of a host.
//!
#![doc = include_str!("../../../docs/sqlite.md")]

// What belongs here: everything about the database file; the rules are in `state`. Before changing anything here:
// `cargo test -p leasehold --all-features --test 'sqlite*'`, then `make torture` with STORES=sqlite.

mod book;
mod fault;
pub(crate) mod findings;
mod keepers;
mod marks;
mod open;
mod queue;
mod rows;
mod turn;
mod waiters;
mod wake;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use self::queue::Queue;
use self::waiters::Waiters;
use self::writer::{Job, Reply, Request, Writer};
use crate::backend::{
    Attempt, Backend, Claim, Grant, Info, Page, Query, Release, Released, Renewal, Renewed, Revoked, Swept,
    Wake,
};
use crate::backends::queries;
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::state::Answer;

/// The statement of this name in `queries.sql`.
const fn sql(name: &str) -> &'static str {
    queries::named(include_str!("queries.sql"), name)
}

pub(crate) const INFO: Info = Info { keeps_places: true, ..Info::new("sqlite") };

/// Half of what a takeover may take after an expiry, so that the limit holds on a busy machine.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A store in a SQLite file. Clones are the same store; the file may be open in any number of
/// processes of one host.
///
/// Each open store has one thread that does all its work. Requests that arrive while the disk is busy are committed
/// together, and answered when they are on disk. The thread ends when the last clone is gone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("locks.db");
/// use leasehold::backends::sqlite::Sqlite;
///
/// let locks = leasehold::Locks::new(Sqlite::open(&path).await?);
/// let guard = locks.mutex("nightly-report").lock().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Sqlite {
    inner: Arc<Inner>,
}

struct Inner {
    queue: Arc<Queue<Request>>,
    waiters: Arc<Waiters>,
    clock: Arc<dyn Clock>,
    commits: Arc<AtomicU64>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Sets up a [`Sqlite`].
#[derive(Debug, Clone)]
pub struct SqliteBuilder {
    path: PathBuf,
    allow_network_fs: bool,
    look_every: Duration,
    clock: Arc<dyn Clock>,
    boot_id: Option<String>,
    max_pages: Option<u32>,
}

impl SqliteBuilder {
    /// Opens the file even if `statfs` reports a network file system. You must then know that SQLite's locks and
    /// shared memory reach all processes that use it, and these must all run on one machine.
    #[must_use]
    pub fn allow_network_fs(mut self, allow: bool) -> Self {
        self.allow_network_fs = allow;
        self
    }

    /// Sets how often a process with waiters looks by itself for an unannounced wake-up from another process, and for
    /// a lease or a place that has ended. Default 500 ms; `Duration::MAX` means never, not even when it knows of one,
    /// for tests.
    #[must_use]
    pub fn look_every(mut self, every: Duration) -> Self {
        self.look_every = every;
        self
    }

    /// Sets the clock, for tests. All processes that use the file must use the same clock.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the identity of the machine's current boot, for tests.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn boot_id(mut self, boot_id: impl Into<String>) -> Self {
        self.boot_id = Some(boot_id.into());
        self
    }

    /// Sets how many pages the file may have, for tests of a full disk.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn max_pages(mut self, pages: u32) -> Self {
        self.max_pages = Some(pages);
        self
    }

    /// Opens the file. If it does not exist, creates it, readable only by its owner.
    ///
    /// # Cancel safety
    /// If dropped, the file may have been created; nothing stays open.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid path, and for a file with hard links, or mounted without its directory;
    /// `Unsupported` on a network file system or in a time namespace of its own; `Internal` if the file is something
    /// else, damaged, or written by a newer version; `AuthFailed`, `Unavailable` or `Overloaded` if it cannot be
    /// opened.
    pub async fn open(self) -> Result<Sqlite> {
        match self.path.to_str() {
            Some("") => {
                return Err(Error::invalid(
                    "sqlite: needs the path of a file; for a store in memory use memory:",
                ));
            }
            Some(path) if path == ":memory:" || path.starts_with("file:") => {
                return Err(Error::invalid(
                    "sqlite: takes the plain path of a file; for a store in memory use memory:",
                ));
            }
            _ => {}
        }
        let queue = Queue::new()
            .map_err(|error| fault::system("cannot create the writer's wake-up handle", error))?;
        let inner = Inner {
            queue: Arc::new(queue),
            waiters: Arc::default(),
            clock: Arc::clone(&self.clock),
            commits: Arc::default(),
        };
        let (queue, waiters) = (Arc::clone(&inner.queue), Arc::clone(&inner.waiters));
        let commits = Arc::clone(&inner.commits);
        let (tell, told) = oneshot::channel();
        // Opening blocks, so the thread does that too.
        let work = move || {
            let opened = match open::open(&self) {
                Ok(opened) => opened,
                Err(error) => {
                    let _ = tell.send(Err(error));
                    return;
                }
            };
            let mut writer = Writer {
                db: opened.db,
                wake: opened.wake,
                queue,
                waiters,
                clock: self.clock,
                commits,
                look_every: self.look_every,
                book: book::Book::default(),
                booked: None,
                looked: None,
                beat_at: u64::MAX,
                due_at: u64::MAX,
            };
            writer.tidy();
            // If the caller is gone, the queue is closed already.
            let _ = tell.send(Ok(()));
            writer.run();
        };
        std::thread::Builder::new()
            .name("leasehold-sqlite".into())
            .spawn(work)
            .map_err(|error| fault::system("the writer's thread could not be started", error))?;
        told.await.map_err(|_| ended())??;
        Ok(Sqlite { inner: Arc::new(inner) })
    }
}

impl Sqlite {
    /// Opens the file, and creates it if it does not exist: [`builder`](Sqlite::builder) without options.
    ///
    /// # Cancel safety
    /// As [`SqliteBuilder::open`].
    ///
    /// # Errors
    /// As [`SqliteBuilder::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        Sqlite::builder(path).open().await
    }

    /// Opens the file that a URL names after `sqlite:`.
    pub(crate) async fn connect(rest: &str) -> Result<Self> {
        Sqlite::open(Sqlite::path_of_url(rest)?).await
    }

    /// Returns a builder for a store in this file.
    pub fn builder(path: impl AsRef<Path>) -> SqliteBuilder {
        SqliteBuilder {
            path: path.as_ref().to_owned(),
            allow_network_fs: false,
            look_every: LOOK_EVERY,
            clock: Arc::new(SystemClock),
            boot_id: None,
            max_pages: None,
        }
    }

    /// The path in the part of a URL after `sqlite:`: as it stands, or `///` and an absolute path.
    ///
    /// # Errors
    /// `InvalidArgument` for a URL with options or a host.
    pub fn path_of_url(rest: &str) -> Result<&str> {
        if rest.contains(['?', '#']) {
            return Err(Error::invalid(
                "sqlite: takes a path and no options; a path with ? or # in it is opened with Sqlite::open",
            ));
        }
        match rest.strip_prefix("//") {
            None => Ok(rest),
            Some(absolute) if absolute.starts_with('/') => Ok(absolute),
            Some(_) => Err(Error::invalid(
                "sqlite:// takes no host; write sqlite:path, or sqlite:///path for an absolute path",
            )),
        }
    }

    /// How many transactions of this store have changed something; each waits once for the disk. For tests.
    #[cfg(feature = "test-util")]
    pub fn commits(&self) -> u64 {
        self.inner.commits.load(std::sync::atomic::Ordering::Relaxed)
    }

    async fn ask(&self, job: Job) -> Result<Reply> {
        let (reply, answer) = oneshot::channel();
        if !self.inner.queue.push(Request { job, reply }) {
            return Err(ended());
        }
        answer.await.map_err(|_| ended())?
    }

    async fn ask_one(&self, job: Job) -> Result<Answer> {
        match self.ask(job).await? {
            Reply::One(answer) => answer,
            _ => Err(out_of_turn()),
        }
    }
}

/// The error when the writer ended without an answer, which only a bug can cause.
fn ended() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the writer of the database has ended; whether the change took effect is unknown",
    )
}

/// The error for an answer of the wrong kind, which the writer never gives.
fn out_of_turn() -> Error {
    Error::new(ErrorKind::Internal, "the database writer gave the wrong answer")
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("clock", &self.inner.clock).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Sqlite {
    fn info(&self) -> Info {
        INFO
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        match self.ask_one(Job::Acquire(claim.clone())).await? {
            Answer::Acquired(attempt) => Ok(attempt),
            _ => Err(out_of_turn()),
        }
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let started = self.inner.clock.now();
        // It is no longer a waiter: granted, or its place has lapsed. A new attempt will tell.
        let Some(slot) = self.inner.waiters.slot(claim) else { return Ok(Wake::Retry) };
        match slot.wait().await {
            None => Ok(Wake::Retry),
            Some((grant, at)) => Ok(Wake::Granted(Grant { waited: at.since(started), ..grant })),
        }
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        let renewed = |answer: Result<Answer>| match answer? {
            Answer::Renewed(renewed) => Ok(renewed),
            _ => Err(out_of_turn()),
        };
        let error = match self.ask(Job::Renew(leases.to_vec())).await {
            Ok(Reply::Many(answers)) => return answers.into_iter().map(renewed).collect(),
            Ok(_) => out_of_turn(),
            Err(error) => error,
        };
        leases.iter().map(|_| Err(error.duplicate())).collect()
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        match self.ask_one(Job::Release(lease.clone())).await? {
            Answer::Released(released) => Ok(released),
            _ => Err(out_of_turn()),
        }
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        match self.ask_one(Job::Revoke { name: name.clone(), now, only }).await? {
            Answer::Revoked(revoked) => Ok(revoked),
            _ => Err(out_of_turn()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        match self.ask(Job::Inspect(query.clone())).await? {
            Reply::Page(page) => page,
            _ => Err(out_of_turn()),
        }
    }

    async fn sweep(&self) -> Result<Swept> {
        match self.ask_one(Job::Sweep).await? {
            Answer::Swept(swept) => Ok(swept),
            _ => Err(out_of_turn()),
        }
    }
}
