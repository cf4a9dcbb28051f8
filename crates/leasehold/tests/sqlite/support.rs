//! What these tests share.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Grant, Mode, NameInfo, Query};
use leasehold::backends::sqlite::Sqlite;
use leasehold::clock::{Clock, Moment};
use leasehold::{Fence, Name};
use testkit::blocked::send;

/// A directory of its own, and a path of a database in it.
pub(crate) struct Place {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

/// In memory where possible: no test here is about a disk, and a busy one would hold them all up.
pub(crate) fn place() -> Place {
    let memory = Path::new("/dev/shm");
    let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let path = directory.path().join("locks.db");
    Place { directory, path }
}

/// A clock that the test moves by hand.
#[derive(Debug)]
pub(crate) struct HandClock {
    micros: AtomicU64,
    wall: AtomicU64,
}

impl HandClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(HandClock { micros: 3_600_000_000.into(), wall: 1_793_000_000_000_000.into() })
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.micros.fetch_add(by.as_micros() as u64, Ordering::SeqCst);
        self.wall.fetch_add(by.as_micros() as u64, Ordering::SeqCst);
    }

    pub(crate) fn jump_wall(&self, by: i64) {
        self.wall.fetch_add(by as u64, Ordering::SeqCst);
    }

    pub(crate) fn set(&self, micros: u64, wall: u64) {
        self.micros.store(micros, Ordering::SeqCst);
        self.wall.store(wall, Ordering::SeqCst);
    }

    pub(crate) fn restart(&self) {
        self.micros.store(1_000_000, Ordering::SeqCst);
    }

    pub(crate) fn micros(&self) -> u64 {
        self.micros.load(Ordering::SeqCst)
    }
}

impl Clock for HandClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.micros() * 1000)
    }

    fn wall_micros(&self) -> u64 {
        self.wall.load(Ordering::SeqCst)
    }
}

pub(crate) fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

pub(crate) fn claim(on: &str, ttl: Duration) -> Claim {
    Claim::new(name(on), Mode::Exclusive, ttl, "test")
}

pub(crate) const LONG: Duration = Duration::from_secs(30);
/// So long that nothing with this duration ends during a test.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const TICKET: Duration = Duration::from_secs(10);

pub(crate) async fn granted(store: &Sqlite, claim: &Claim) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// Runs calls that are all sent while the database is locked, so that all but the first wait together.
pub(crate) async fn gathered<T>(path: &Path, calls: impl Future<Output = T>) -> T {
    let db = rusqlite::Connection::open(path).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut calls = pin!(calls);
    send(calls.as_mut()).await;
    db.execute_batch("ROLLBACK").unwrap();
    calls.await
}

pub(crate) async fn look(store: &Sqlite, on: &str) -> NameInfo {
    store.inspect(&Query::Name(name(on))).await.unwrap().items.remove(0)
}

pub(crate) async fn last_fence(store: &Sqlite, on: &str) -> Fence {
    look(store, on).await.last_fence
}
