//! A backend of your own: a shell around the state machine, and the suite that shows that it works.
//!
//! The store here is a table in memory that can do two things: read a record, and replace a record if
//! nobody else has replaced it since (compare-and-swap). Put a row in a database, an object in a bucket
//! or a document in its place, and the rest stays as it is. See `docs/adding-a-backend.md`.
//!
//! `cargo run -p leasehold --example own_backend --features conformance`

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use leasehold::backend::{
    Attempt, Backend, Claim, Info, Page, Query, Release, Released, Renewal, Renewed, Revoked, Swept,
    TimeAuthority, Wake,
};
use leasehold::clock::{Clock as _, SystemClock};
use leasehold::conformance::{Harness, Report, run_all};
use leasehold::state::{Answer, Now, Op, State};
use leasehold::{Error, ErrorKind, Fence, LeaseId, Locks, Name, Result};
use tokio::sync::Notify;

/// What the store can do by itself.
#[derive(Debug, Default)]
struct Table {
    rows: Mutex<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    by_name: BTreeMap<String, Row>,
    /// Counts all writes, so that no two records ever have the same revision.
    writes: u64,
}

/// The record of one name.
#[derive(Debug, Clone, Default)]
struct Row {
    /// What a swap compares; 0 for a record that is not there.
    revision: u64,
    state: State,
}

impl Table {
    fn load(&self, stored: &str) -> Row {
        lock(&self.rows).by_name.get(stored).cloned().unwrap_or_default()
    }

    /// Replaces a record that was loaded before; false if another client was quicker.
    fn swap(&self, stored: &str, mut row: Row) -> bool {
        let mut rows = lock(&self.rows);
        if rows.by_name.get(stored).map_or(0, |current| current.revision) != row.revision {
            return false;
        }
        rows.writes += 1;
        row.revision = rows.writes;
        rows.by_name.insert(stored.to_owned(), row);
        true
    }

    /// Removes a record that was loaded before; false if another client was quicker.
    fn remove(&self, stored: &str, revision: u64) -> bool {
        let mut rows = lock(&self.rows);
        let same = rows.by_name.get(stored).is_some_and(|current| current.revision == revision);
        same && rows.by_name.remove(stored).is_some()
    }

    /// The stored names that begin with this, in order, after a cursor.
    fn names(&self, prefix: &str, cursor: Option<&str>) -> Vec<String> {
        let from = cursor.map_or(Bound::Included(prefix), |cursor| Bound::Excluded(cursor.max(prefix)));
        let rows = lock(&self.rows);
        let found = rows.by_name.range::<str, _>((from, Bound::Unbounded)).map(|(stored, _)| stored);
        found.take_while(|stored| stored.starts_with(prefix)).cloned().collect()
    }
}

/// The backend. Clones are clients of the same table.
#[derive(Debug, Clone, Default)]
struct OwnStore {
    table: Arc<Table>,
    /// The waiters of this process. A real store would tell other processes too, by a channel of its own.
    bells: Arc<Mutex<HashMap<LeaseId, Bell>>>,
}

#[derive(Debug, Clone)]
struct Bell {
    name: Name,
    bell: Arc<Notify>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clock that decides. A store that has a clock of its own is asked for it instead.
fn now() -> Now {
    Now { expiry: SystemClock.now().as_micros(), wall: SystemClock.wall_micros() }
}

fn out_of_turn(answer: &Answer) -> Error {
    Error::new(ErrorKind::Internal, format!("the state machine answered out of turn: {answer:?}"))
}

impl OwnStore {
    /// One verb: load, let the state machine decide, swap, and wake whom it says.
    fn apply(&self, name: &Name, op: Op<'_>) -> Result<Answer> {
        loop {
            let mut row = self.table.load(name.stored());
            let mut woken = Vec::new();
            // An error is stored and heard like any other answer: settling has happened all the same.
            let answer = row.state.apply(now(), op, &mut woken);
            let untouched = row.revision == 0 && row.state.is_at_rest();
            if untouched || self.table.swap(name.stored(), row) {
                let bells = lock(&self.bells);
                woken.iter().filter_map(|id| bells.get(id)).for_each(|waiter| waiter.bell.notify_one());
                return answer;
            }
            // Another client was quicker. Nothing of this has happened; decide again on what is there now.
        }
    }

    fn forget(&self, id: &LeaseId) {
        if let Some(waiter) = lock(&self.bells).remove(id) {
            waiter.bell.notify_one(); // should anybody still wait: trying again tells
        }
    }
}

#[async_trait]
impl Backend for OwnStore {
    fn info(&self) -> Info {
        let mut info = Info::new("own");
        info.time = TimeAuthority::Client;
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        if claim.queue.is_some() {
            // Before the attempt: a wake-up that comes right after it finds its bell (promise 6).
            let waiter = || Bell { name: claim.name.clone(), bell: Arc::default() };
            lock(&self.bells).entry(claim.id).or_insert_with(waiter);
        }
        let answer = self.apply(&claim.name, Op::Acquire(claim));
        if !matches!(answer, Ok(Answer::Acquired(Attempt::Busy(_)))) {
            self.forget(&claim.id);
        }
        match answer? {
            Answer::Acquired(attempt) => Ok(attempt),
            other => Err(out_of_turn(&other)),
        }
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let waiter = lock(&self.bells).get(&claim.id).cloned();
        if let Some(waiter) = waiter {
            // Rung before this is called, it resolves at once: the bell keeps one ring.
            waiter.bell.notified().await;
        }
        Ok(Wake::Retry)
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        let renew = |renewal: &Renewal| match self.apply(&renewal.name, Op::Renew(renewal))? {
            Answer::Renewed(renewed) => Ok(renewed),
            other => Err(out_of_turn(&other)),
        };
        leases.iter().map(renew).collect()
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        match self.apply(&lease.name, Op::Release(lease))? {
            Answer::Released(released) => {
                if released == Released::Done {
                    self.forget(&lease.id);
                }
                Ok(released)
            }
            other => Err(out_of_turn(&other)),
        }
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        match self.apply(name, Op::Revoke { now, only })? {
            Answer::Revoked(revoked) => Ok(revoked),
            other => Err(out_of_turn(&other)),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let (now, mut page) = (now(), Page::default());
        match query {
            Query::Name(name) => page.items.push(self.table.load(name.stored()).state.view(name, now, None)),
            Query::LeaseId(id) => {
                for stored in self.table.names("", None) {
                    let Row { state, .. } = self.table.load(&stored);
                    if state.knows(id, now) {
                        page.items.push(state.view(&Name::from_stored(&stored)?, now, Some(id)));
                    }
                }
            }
            Query::Prefix { limit: 0, .. } => return Err(Error::invalid("a page must have room for a name")),
            Query::Prefix { stored, limit, cursor } => {
                let mut last = None;
                for stored in self.table.names(stored, cursor.as_deref()) {
                    let Row { state, .. } = self.table.load(&stored);
                    if !state.is_in_use(now) {
                        continue;
                    }
                    if page.items.len() == *limit {
                        page.next = last;
                        break;
                    }
                    page.items.push(state.view(&Name::from_stored(&stored)?, now, None));
                    last = Some(stored);
                }
            }
            _ => return Err(Error::new(ErrorKind::Unsupported, "own: does not know this query")),
        }
        Ok(page)
    }

    async fn sweep(&self) -> Result<Swept> {
        let mut total = Swept::default();
        for stored in self.table.names("", None) {
            if let Answer::Swept(swept) = self.apply(&Name::from_stored(&stored)?, Op::Sweep)? {
                total += swept;
            }
            // A fence counter is forgotten when the clock alone would give a higher one, and has for long.
            let Row { state, revision } = self.table.load(&stored);
            let old = state.last_fence().is_forgettable(now().wall, Fence::RETENTION);
            total.counters += u64::from(state.is_at_rest() && old && self.table.remove(&stored, revision));
        }
        let waits = |id: &LeaseId, name: &Name| self.table.load(name.stored()).state.is_queued(id);
        lock(&self.bells).retain(|id, waiter| waits(id, &waiter.name));
        Ok(total)
    }
}

/// The suite, on two clients of one table.
pub(crate) async fn suite() -> Result<Report> {
    let store = OwnStore::default();
    let connect = || async { Ok(Arc::new(store.clone()) as Arc<dyn Backend>) };
    Ok(run_all(&Harness::connect(connect).await?).await)
}

#[tokio::main]
async fn main() -> Result<()> {
    let locks = Locks::new(OwnStore::default());
    let guard = locks.mutex("nightly-report").lock().await?;
    println!("held with fence {}", guard.fence());
    guard.release().await?;

    let report = suite().await?;
    println!("{report}");
    report.assert_passed();
    Ok(())
}
