//! One process of a trial: takes, keeps and gives back one lock in every way there is, through the public API
//! alone, and writes down what it sees.

use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use leasehold::{Guard, Locks, LostReason, Result, State};

use super::record::{Kind, Log, Record, SESSION};

/// What a process is told.
#[derive(Debug, Clone)]
pub struct Task {
    /// The store.
    pub url: String,
    /// The lock.
    pub name: String,
    /// How long its leases last.
    pub ttl: Duration,
    /// The number of this process; none has it a second time.
    pub worker: u32,
    /// Where to write.
    pub log: PathBuf,
    /// How many take turns in this process. One alone keeps the lock for longer, to be met with it.
    pub tasks: u32,
}

impl Task {
    /// As one line.
    pub fn to_line(&self) -> String {
        let Task { url, name, ttl, worker, log, tasks } = self;
        format!("{url}\t{name}\t{}\t{worker}\t{}\t{tasks}", ttl.as_millis(), log.display())
    }

    /// From one line.
    pub fn from_line(line: &str) -> Option<Self> {
        let parts: Vec<&str> = line.split('\t').collect();
        let [url, name, ttl, worker, log, tasks] = parts[..] else { return None };
        Some(Task {
            url: url.into(),
            name: name.into(),
            ttl: Duration::from_millis(ttl.parse().ok()?),
            worker: worker.parse().ok()?,
            log: log.into(),
            tasks: tasks.parse().ok()?,
        })
    }

    /// Takes turns until the process is killed.
    ///
    /// # Errors
    /// If the store cannot be opened.
    ///
    /// # Panics
    /// If the history cannot be written.
    pub async fn run(self) -> Result<()> {
        let log = Arc::new(Log::append(&self.log).expect("the history can be written"));
        let locks = Locks::connect(&self.url).await?;
        let claims = Arc::new(AtomicU64::new(0));
        let mut turns = tokio::task::JoinSet::new();
        for _ in 0..self.tasks {
            let (task, log, locks) = (self.clone(), Arc::clone(&log), locks.clone());
            let claims = Arc::clone(&claims);
            turns.spawn(async move {
                loop {
                    let claim = claims.fetch_add(1, Ordering::Relaxed);
                    let turn = Turn { log: &log, worker: task.worker, claim, shared: random(3) == 0 };
                    turn.take(&locks, &task).await;
                }
            });
        }
        // None ends by itself.
        if let Some(Err(error)) = turns.join_next().await {
            std::panic::resume_unwind(error.into_panic());
        }
        Ok(())
    }
}

fn random(below: u64) -> u64 {
    RandomState::new().hash_one(()) % below
}

fn now() -> u64 {
    SystemClock.now().as_nanos()
}

/// One acquire and what comes of it.
struct Turn<'a> {
    log: &'a Log,
    worker: u32,
    claim: u64,
    shared: bool,
}

impl Turn<'_> {
    fn write(&self, kind: Kind, at: u64, guard: Option<&Guard>, deadline: u64) {
        let lease = guard.map_or(0, |guard| hash(guard.lease_id().expose()));
        let fence = guard.map_or(0, |guard| guard.fence().get());
        let Turn { worker, claim, shared, .. } = *self;
        self.log.write(Record { kind, shared, worker, claim, at, lease, fence, deadline });
    }

    async fn take(&self, locks: &Locks, task: &Task) {
        self.write(Kind::AcquireCall, now(), None, 0);
        let taken = self.acquire(locks, task).await;
        let at = now();
        match taken {
            Ok(Some(guard)) => {
                self.write(Kind::Granted, at, Some(&guard), deadline(&guard, at));
                self.hold(guard, task).await;
            }
            Ok(None) => self.write(Kind::Busy, at, None, 0),
            Err(_) => self.write(Kind::Failed, at, None, 0),
        }
        tokio::time::sleep(Duration::from_micros(random(8_000))).await;
    }

    /// Waiting, trying, or waiting with a limit.
    async fn acquire(&self, locks: &Locks, task: &Task) -> Result<Option<Guard>> {
        let limit = Duration::from_millis(random(500));
        let lock = locks.rwlock(&task.name).ttl(task.ttl);
        match (random(4), self.shared) {
            (0, true) => lock.try_read().await,
            (0, false) => lock.try_write().await,
            (1, true) => lock.try_read_for(limit).await,
            (1, false) => locks.mutex(&task.name).ttl(task.ttl).try_lock_for(limit).await,
            (_, true) => lock.read().await.map(Some),
            (_, false) => lock.write().await.map(Some),
        }
    }

    /// Looks; whether it still may.
    fn look(&self, guard: &Guard) -> bool {
        // Read before looking: what is seen is true of this moment and a little later.
        let at = now();
        let deadline = deadline(guard, at);
        let lost = guard.lost().now();
        match lost {
            None if deadline > at => self.write(Kind::Held, at, Some(guard), deadline),
            // Between the two it was lost; the next look tells why.
            None => {}
            Some(LostReason::Refused(_)) => self.write(Kind::LostByRefusal, now(), Some(guard), 0),
            Some(_) => self.write(Kind::LostByDeadline, now(), Some(guard), 0),
        }
        lost.is_none()
    }

    async fn hold(&self, guard: Guard, task: &Task) {
        let longer = random(40) == 0;
        let most = if task.tasks == 1 { 40_000 } else { 5_000 };
        let hold = if longer { task.ttl * 5 / 4 } else { Duration::from_micros(random(most)) };
        let end = now() + hold.as_nanos() as u64;
        let mut may = true;
        while may && now() < end {
            may = self.look(&guard);
            if random(50) == 0 {
                let _ = guard.renew_for(task.ttl).await;
            }
            tokio::time::sleep(Duration::from_micros(200 + random(1_500))).await;
        }
        self.look(&guard);
        self.write(Kind::ReleaseCall, now(), Some(&guard), 0);
        if random(4) == 0 {
            return drop(guard);
        }
        let answer = guard.release().await;
        let kind = match answer {
            Ok(State::Released) => Kind::Released,
            Ok(_) => Kind::ReleasedNothing,
            Err(_) => Kind::ReleaseFailed,
        };
        self.write(kind, now(), None, 0);
    }
}

/// Until when it may be relied on.
fn deadline(guard: &Guard, now: u64) -> u64 {
    guard.valid_for().map_or(SESSION, |valid| now + valid.as_nanos() as u64)
}

/// A lease id is a secret: only this is written.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
