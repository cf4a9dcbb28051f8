//! Takes a tick: looks at the record, takes the lock of the name, and records the start.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use super::record::{TickRecord, TickResult};
use super::tick::Tick;
use super::{Schedule, TickPolicy};
use crate::backend::Mode;
use crate::client::guard::Guard;
use crate::client::lock::Lock;
use crate::client::locks::Locks;
use crate::clock::{Clock, Moment};
use crate::engine::held::GuardState;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;

/// The first pause before a record is written again that the store did not confirm; it doubles up to a second.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes ticks of one name.
#[derive(Debug, Clone)]
pub(super) struct Taker {
    pub(super) lock: Lock,
    /// Goes into the record, for people who look at it.
    pub(super) schedule: Option<Schedule>,
}

/// What became of an attempt to take a tick.
#[derive(Debug)]
pub(super) enum Taken {
    Mine(TickGuard),
    /// By this record there is nothing to run.
    Nothing(TickRecord),
    /// Another client holds the name, for this long unless it renews.
    Busy(TickRecord, Duration),
}

impl Taker {
    /// Takes the tick that `choose` finds in the record, if it finds one and the name is free.
    ///
    /// A node that comes too late makes one call. One that looks while the name is free, and still comes second, makes
    /// two.
    pub(super) async fn take(&self, choose: impl Fn(&TickRecord) -> Option<Tick>) -> Result<Taken> {
        let seen = self.look().await?;
        if choose(&seen.record).is_none() {
            return Ok(Taken::Nothing(seen.record));
        }
        if let Some(left) = seen.held {
            return Ok(Taken::Busy(seen.record, left));
        }
        let Some(guard) = self.lock.once(Mode::Exclusive).await? else {
            return Ok(Taken::Busy(seen.record, self.lock.options().ttl));
        };
        // Again, now that nobody else can write it: another node may have run the tick in between.
        let mut record = self.look().await?.record;
        let Some(tick) = choose(&record) else {
            guard.release_after_work().await;
            return Ok(Taken::Nothing(record));
        };
        let clock = Arc::clone(&self.lock.client().clock);
        if let Some(schedule) = &self.schedule {
            record.schedule = Some(schedule.into());
        }
        record.begin(tick, guard.owner(), clock.wall_micros() / 1000);
        write(&guard, record.text()?).await?;
        let started = clock.now();
        Ok(Taken::Mine(TickGuard { tick, record, started, clock, keeps: Keeps::Lease(guard) }))
    }

    async fn look(&self) -> Result<Seen> {
        look(self.lock.locks(), self.lock.name()).await
    }
}

/// A record, and how long the lease of the name's holder lasts.
pub(super) struct Seen {
    pub(super) record: TickRecord,
    held: Option<Duration>,
}

/// Refuses a store that cannot keep a record of ticks.
pub(super) fn check_store(locks: &Locks) -> Result<()> {
    let info = locks.info();
    if info.notes {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "{}: keeps no notes, and so no record of ticks; use sqlite:, redis:, postgres:, quorum:, or a leasehold \
             server on one of these",
            info.scheme
        ),
    ))
}

/// Looks at the record of a name: one call.
pub(super) async fn look(locks: &Locks, name: &str) -> Result<Seen> {
    check_store(locks)?;
    let info = locks.inspect(name).await?;
    let note = info.note.as_ref();
    let mut record = TickRecord::parse(note.map(|note| &*note.text))
        .map_err(|error| error.with_name(info.name.clone()))?;
    let writer = note.map(|note| note.fence);
    let last_is_open = record.runs.last().is_some_and(|run| run.end.is_none());
    record.is_running = last_is_open && info.holders.iter().any(|holder| Some(holder.grant.fence) == writer);
    let held = info.holders.iter().map(|holder| holder.grant.left.unwrap_or(locks.options().ttl)).max();
    Ok(Seen { record, held })
}

/// Writes the record, again while the store does not confirm it and the lease lasts: a job must not start before the
/// start of its tick is recorded, and one that has run should not run again because a connection broke.
async fn write(guard: &Guard, text: String) -> Result<()> {
    let text: Arc<str> = text.into();
    let mut pause = PAUSE;
    loop {
        match guard.write_note(Arc::clone(&text)).await {
            Err(error) if error.is_retryable() => {
                guard.check().map_err(|lost| lost.with_source(error))?;
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            answer => return answer,
        }
    }
}

/// A tick that this node has taken: the lock of the name is held, and the start of the tick is recorded.
///
/// Run the job, then call [`finish`](TickGuard::finish), which records the end. If this is dropped instead, the tick
/// stays open: with [`TickPolicy::AtLeastOnce`] it is run again.
#[must_use = "the tick stays open, and the lock is released, as soon as this is dropped"]
pub struct TickGuard {
    tick: Tick,
    record: TickRecord,
    started: Moment,
    clock: Arc<dyn Clock>,
    keeps: Keeps,
}

/// What keeps others out while the job runs.
enum Keeps {
    Lease(Guard),
    /// A job that needs no store: only the next tick of this node waits.
    Node {
        _turn: OwnedMutexGuard<()>,
    },
}

impl TickGuard {
    /// A tick that only this node runs.
    pub(super) fn local(tick: Tick, turn: OwnedMutexGuard<()>, clock: Arc<dyn Clock>) -> Self {
        let started = clock.now();
        TickGuard { tick, record: TickRecord::default(), started, clock, keeps: Keeps::Node { _turn: turn } }
    }

    /// The tick.
    pub fn tick(&self) -> Tick {
        self.tick
    }

    /// The guard of the name's lock; `None` for a job that runs on every node.
    pub fn guard(&self) -> Option<&Guard> {
        match &self.keeps {
            Keeps::Lease(guard) => Some(guard),
            Keeps::Node { .. } => None,
        }
    }

    /// The fencing token: pass it along with every write of the job. [`Fence::UNFENCED`] for a job that runs on every
    /// node.
    pub fn fence(&self) -> Fence {
        self.guard().map_or(Fence::UNFENCED, Guard::fence)
    }

    /// The record as this node has written it.
    pub fn record(&self) -> &TickRecord {
        &self.record
    }

    /// Checks that the lock is held at this moment, without asking the store.
    ///
    /// # Errors
    /// `Lost` if not.
    pub fn check(&self) -> Result<()> {
        self.guard().map_or(Ok(()), Guard::check)
    }

    /// Runs a future while the lock is held, and drops it when the lock is lost. See [`Guard::run`].
    ///
    /// # Cancel safety
    /// Dropping it drops the work.
    ///
    /// # Errors
    /// `Lost`; the work was dropped wherever it was.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        match self.guard() {
            Some(guard) => guard.run(work).await,
            None => Ok(work.await),
        }
    }

    /// Releases the lock and leaves the tick open, as if this node had died: its job was not started, or was stopped.
    /// With [`TickPolicy::AtLeastOnce`] another node runs it again.
    ///
    /// # Cancel safety
    /// If dropped, the lock is released in the background.
    ///
    /// # Errors
    /// Faults of the store. The lock is then free when its ttl passes.
    pub async fn leave_open(self) -> Result<GuardState> {
        match self.keeps {
            Keeps::Node { .. } => Ok(GuardState::Released),
            Keeps::Lease(guard) => guard.release().await,
        }
    }

    /// Records the end of the job, and releases the lock. If the store does not answer, it tries again for as long as
    /// the lease lasts.
    ///
    /// # Cancel safety
    /// If dropped, the lock is released in the background, and the end of the job may or may not be recorded.
    ///
    /// # Errors
    /// `Lost` if the lease is gone, and faults of the store: the tick then stays open. With
    /// [`TickPolicy::AtLeastOnce`] it is run again.
    pub async fn finish(mut self, result: TickResult) -> Result<GuardState> {
        self.record.end(self.clock.now().since(self.started), &result);
        match self.keeps {
            Keeps::Node { .. } => Ok(GuardState::Released),
            Keeps::Lease(guard) => {
                let written = write(&guard, self.record.text()?).await;
                // The end is recorded or not: whether the release is confirmed changes nothing about that.
                guard.release_after_work().await;
                written.map(|()| GuardState::Released)
            }
        }
    }
}

impl fmt::Debug for TickGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TickGuard")
            .field("tick", &self.tick)
            .field("guard", &self.guard())
            .finish_non_exhaustive()
    }
}

/// Whether an error cannot pass by itself: the call is wrong, the store cannot do it, or the client is closed.
pub(super) fn is_final(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidArgument
            | ErrorKind::Unsupported
            | ErrorKind::Mismatch
            | ErrorKind::Deadlock
            | ErrorKind::Aborted
    )
}

/// What `Standing` and the plan have in common: the policy decides whether a tick is to be run.
pub(super) fn is_wanted(record: &TickRecord, tick: Tick, policy: TickPolicy) -> bool {
    !matches!(record.standing(tick, policy), super::record::Standing::Done(_))
}
