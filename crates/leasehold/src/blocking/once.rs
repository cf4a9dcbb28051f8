//! Once per tick, for blocking callers.

use crate::coordination::schedule::TickPolicy;
use crate::coordination::schedule::once::{self, Ran};
use crate::coordination::schedule::record::{TickResult, TickRun};
use crate::coordination::schedule::tick::Tick;
use crate::engine::held::GuardState;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::options::{Options, option_setters};

/// One tick of a name, which is run once among all nodes, as [`leasehold::Once`](crate::Once). Made by
/// [`Locks::once`](super::Locks::once).
///
/// ```
/// # let locks = leasehold::blocking::Locks::connect("memory:")?;
/// use leasehold::Ran;
///
/// let ran = locks.once("report", 7).run(|tick| Ok::<_, leasehold::Error>(tick.fence()))?;
/// assert!(matches!(ran, Ran::Now(_)));
/// let ran = locks.once("report", 7).run(|_| Ok::<_, leasehold::Error>(()))?;
/// assert!(matches!(ran, Ran::Before(Some(_))));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Once(pub(super) crate::Once);

/// What became of a tick, as [`leasehold::Begun`](crate::Begun).
#[derive(Debug)]
pub enum Begun {
    /// This node has taken it, and has to run it now.
    Mine(TickGuard),
    /// It is done; the run, if the record still has it.
    Done(Option<TickRun>),
    /// Another node holds the name.
    Busy,
}

impl Once {
    /// As [`leasehold::Once::policy`](crate::Once::policy).
    #[must_use]
    pub fn policy(self, policy: TickPolicy) -> Self {
        Once(self.0.policy(policy))
    }

    /// Runs the job if this node is the first, as [`leasehold::Once::run`](crate::Once::run). If the job panics, the
    /// tick stays open.
    ///
    /// A job that blocks cannot be stopped: call [`TickGuard::check`] in it before each step that matters.
    ///
    /// # Errors
    /// As [`leasehold::Once::run`](crate::Once::run).
    pub fn run<T, E>(&self, job: impl FnOnce(&TickGuard) -> Result<T, E>) -> Result<Ran<T>, E>
    where
        E: From<Error>,
    {
        let tick = match self.begin()? {
            Begun::Mine(tick) => tick,
            Begun::Done(run) => return Ok(Ran::Before(run)),
            Begun::Busy => return Ok(Ran::Busy),
        };
        let result = job(&tick);
        let held = tick.check();
        let finished = tick.finish(TickResult::of(&result));
        let output = result?;
        held?;
        self.0.settle(finished.map(drop))?;
        Ok(Ran::Now(output))
    }

    /// As [`leasehold::Once::begin`](crate::Once::begin), blocking.
    pub fn begin(&self) -> Result<Begun> {
        Ok(match self.0.client().block_on(self.0.begin())? {
            once::Begun::Mine(tick) => Begun::Mine(TickGuard(tick)),
            once::Begun::Done(run) => Begun::Done(run),
            once::Begun::Busy => Begun::Busy,
        })
    }

    option_setters!();

    fn options_mut(&mut self) -> &mut Options {
        self.0.options_mut()
    }
}

/// A tick that this node has taken, as [`leasehold::TickGuard`](crate::TickGuard).
#[must_use = "the tick stays open, and the lock is released, as soon as this is dropped"]
#[derive(Debug)]
pub struct TickGuard(crate::TickGuard);

impl TickGuard {
    /// As [`leasehold::TickGuard::tick`](crate::TickGuard::tick).
    pub fn tick(&self) -> Tick {
        self.0.tick()
    }

    /// As [`leasehold::TickGuard::fence`](crate::TickGuard::fence).
    pub fn fence(&self) -> Fence {
        self.0.fence()
    }

    /// As [`leasehold::TickGuard::check`](crate::TickGuard::check).
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// The same tick for async callers.
    pub fn as_async(&self) -> &crate::TickGuard {
        &self.0
    }

    /// As [`leasehold::TickGuard::finish`](crate::TickGuard::finish), blocking.
    pub fn finish(self, result: TickResult) -> Result<GuardState> {
        self.0.block_on(async |tick| tick.finish(result).await)
    }

    /// As [`leasehold::TickGuard::leave_open`](crate::TickGuard::leave_open), blocking.
    pub fn leave_open(self) -> Result<GuardState> {
        self.0.block_on(async |tick| tick.leave_open().await)
    }
}

impl crate::TickGuard {
    fn block_on(self, end: impl AsyncFnOnce(Self) -> Result<GuardState>) -> Result<GuardState> {
        match self.guard().map(|guard| guard.client().clone()) {
            Some(client) => client.block_on(end(self)),
            None => Ok(GuardState::Released),
        }
    }
}
