//! Once per tick, for callers that have their own scheduler.

use std::sync::Arc;

use super::TickPolicy;
use super::record::{Standing, TickRecord, TickResult, TickRun};
use super::take::{self, Taken, Taker, TickGuard};
use super::tick::Tick;
use crate::client::home::Client;
use crate::client::lock::Lock;
use crate::client::locks::Locks;
use crate::error::{Error, Result};
use crate::options::{Options, option_setters};

/// One tick of a name, which is run once among all nodes. Cheap to clone; made by
/// [`Locks::once`](crate::Locks::once).
///
/// Every node calls this at its due time, with the same tick. One of them runs the job; the others learn that it runs,
/// or that it is done, also if they come much later. A later tick can run before an earlier one. The record has the
/// last eight runs or more; what is older than all of them counts as done.
///
/// The record is the note of the name, so the name must not be used for other notes. Its lock is a mutex of that name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::Ran;
/// # let locks = leasehold::Locks::connect("memory:").await?;
///
/// for node in 1..=3 {
///     let once = locks.once("report", 1_763_000_000_000);
///     let ran = once.run(async |tick| {
///         println!("node {node} runs it, with fence {}", tick.fence());
///         Ok::<_, leasehold::Error>(node)
///     });
///     match ran.await? {
///         Ran::Now(output) => assert_eq!(output, 1),
///         Ran::Before(_) => println!("node {node}: it is done"),
///         Ran::Busy => println!("node {node}: another node runs it"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Once {
    lock: Lock,
    tick: Tick,
    policy: TickPolicy,
}

/// What became of a tick.
#[derive(Debug)]
pub enum Begun {
    /// This node has taken it, and has to run it now.
    Mine(TickGuard),
    /// It is done; the run, if the record still has it. With [`TickPolicy::AtMostOnce`] it may still be running, or its
    /// node may have died: then the run has no end.
    Done(Option<TickRun>),
    /// Another node holds the name: it runs this tick, or another one. It may die before this tick is done, so with
    /// [`TickPolicy::AtLeastOnce`] ask again later.
    Busy,
}

/// What became of a tick and its job.
#[derive(Debug, PartialEq, Eq)]
pub enum Ran<T> {
    /// This node has run the job, which returned this.
    Now(T),
    /// It was done before, as [`Begun::Done`].
    Before(Option<TickRun>),
    /// Another node holds the name, as [`Begun::Busy`].
    Busy,
}

impl Once {
    pub(crate) fn new(locks: &Locks, name: &str, tick: Tick) -> Self {
        Once { lock: Lock::new(locks, name), tick, policy: TickPolicy::default() }
    }

    /// Sets what happens to a tick whose node dies. The default is [`TickPolicy::AtMostOnce`]; all nodes must set the
    /// same.
    #[must_use]
    pub fn policy(mut self, policy: TickPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Runs the job if this node is the first: records the start of the tick, runs the job under the lock, stops it if
    /// the lock is lost, and records the end. A job that fails has run all the same.
    ///
    /// # Cancel safety
    /// If dropped, the job is dropped and the lock is released in the background. The tick stays open, as if the node
    /// had died.
    ///
    /// # Errors
    /// The job's own error, or this crate's error converted to it: those of [`begin`](Once::begin), `Lost` if the lock
    /// was lost before the job ended, and with [`TickPolicy::AtLeastOnce`] faults of the store by which the end was not
    /// recorded.
    pub async fn run<T, E, W>(&self, job: W) -> Result<Ran<T>, E>
    where
        E: From<Error>,
        W: AsyncFnOnce(&TickGuard) -> Result<T, E>,
    {
        let tick = match self.begin().await? {
            Begun::Mine(tick) => tick,
            Begun::Done(run) => return Ok(Ran::Before(run)),
            Begun::Busy => return Ok(Ran::Busy),
        };
        let result = tick.run(job(&tick)).await?;
        let held = tick.check();
        let finished = tick.finish(TickResult::of(&result)).await;
        let output = result?;
        held?;
        self.settle(finished.map(drop))?;
        Ok(Ran::Now(output))
    }

    /// Whether it matters that the end of the job could not be recorded.
    pub(crate) fn settle(&self, finished: Result<()>) -> Result<()> {
        match finished {
            Err(error) if self.policy == TickPolicy::AtMostOnce => {
                tracing::warn!(%error, "a job has ended, but this could not be recorded; its tick counts as done");
                Ok(())
            }
            finished => finished,
        }
    }

    /// Takes the tick if this node is the first, and records its start. The caller runs the job.
    ///
    /// # Cancel safety
    /// If dropped, it gives back what it may have got. The start may or may not be recorded.
    ///
    /// # Errors
    /// `Unsupported` where the store keeps no notes; `Mismatch` if the note of the name is not a record of ticks;
    /// `Lost` if the store did not confirm the record while the lease lasted: with [`TickPolicy::AtMostOnce`] the tick
    /// may then be recorded and never run; otherwise as [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn begin(&self) -> Result<Begun> {
        let taker = Taker { lock: self.lock.clone(), schedule: None };
        let choose =
            |record: &TickRecord| Some(self.tick).filter(|tick| take::is_wanted(record, *tick, self.policy));
        Ok(match taker.take(choose).await? {
            Taken::Mine(tick) => Begun::Mine(tick),
            Taken::Busy(..) => Begun::Busy,
            Taken::Nothing(record) => Begun::Done(match record.standing(self.tick, self.policy) {
                Standing::Done(run) => run.cloned(),
                Standing::New | Standing::Open => None,
            }),
        })
    }

    option_setters!();

    pub(crate) fn options_mut(&mut self) -> &mut Options {
        self.lock.options_mut()
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.lock.client()
    }
}

impl TickResult {
    /// The result of a job. An error's text stays out of the record: it may contain what should not be shown.
    pub(crate) fn of<T, E>(result: &std::result::Result<T, E>) -> Self {
        match result {
            Ok(_) => TickResult::Done,
            Err(_) => TickResult::Failed("failed".into()),
        }
    }
}

impl Locks {
    /// One tick of a name, to be run once among all nodes that call this: a due time, or a number of the caller's.
    pub fn once(&self, name: impl AsRef<str>, tick: impl Into<Tick>) -> Once {
        Once::new(self, name.as_ref(), tick.into())
    }

    /// The last ticks of a name: which have run, where, and how they ended. Read only.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    ///
    /// # Errors
    /// `Unsupported` where the store keeps no notes; `Mismatch` if the note of the name is not a record of ticks;
    /// otherwise as [`inspect`](Locks::inspect).
    pub async fn tick_record(&self, name: impl AsRef<str>) -> Result<TickRecord> {
        take::look(self, name.as_ref()).await.map(|seen| seen.record)
    }
}
