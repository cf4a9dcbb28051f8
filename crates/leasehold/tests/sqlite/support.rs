//! What these tests share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Grant, Mode, NameInfo, Query};
use leasehold::backends::sqlite::Sqlite;
use leasehold::clock::{Clock, Moment};
use leasehold::{Fence, Name};

/// A directory of its own, and a path of a database in it.
pub(crate) struct Place {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

pub(crate) fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    Place { directory, path }
}

/// A clock that moves by hand.
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
pub(crate) const TICKET: Duration = Duration::from_secs(10);

pub(crate) async fn granted(store: &Sqlite, claim: &Claim) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn look(store: &Sqlite, on: &str) -> NameInfo {
    store.inspect(&Query::Name(name(on))).await.unwrap().items.remove(0)
}

pub(crate) async fn last_fence(store: &Sqlite, on: &str) -> Fence {
    look(store, on).await.last_fence
}
