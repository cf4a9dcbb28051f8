//! The scheduler: waits for the ticks of a schedule, and takes those that this node is to run.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::plan::{Plan, ahead};
use super::record::{TickRecord, TickResult};
use super::take::{self, Taken, Taker, TickGuard};
use super::tick::Tick;
use super::{LockingHint, Missed, Schedule, TickPolicy};
use crate::client::lock::Lock;
use crate::client::locks::Locks;
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Result};

/// The wall clock is read at least this often, so that a step of it is noticed.
const NAP: Duration = Duration::from_secs(1);

/// The first pause after a fault of the store, unless a tick comes before; it doubles up to half a minute.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long after the end of a holder's lease to look whether it has died.
const AFTER_LEASE: Duration = Duration::from_millis(100);

/// Clocks may be this far apart, unless [`ScheduledJob::clock_bound`] says otherwise.
const CLOCK_BOUND: Duration = Duration::from_secs(2);

/// A job that runs at each tick of a schedule, on one of the nodes that have started it.
///
/// Start the same job on every node. When a tick is due, one node takes the lock of the name, records the start in the
/// name's note, runs the job, and records the end. The others make one call and see that it runs, or has run.
///
/// - A job never overlaps itself: while it runs, the lock is held.
/// - If it takes longer than until its next tick, that tick is missed, and [`Missed`] says what happens to it.
/// - While the store cannot be reached, a warning is logged and nobody runs the job; the tick is missed.
/// - If the clock is set forward, the ticks in between are missed. If it is set back, none of them runs again: the next
///   one is later than the last that was run.
/// - Missed ticks are looked for six days back, and no further than the start of this node if the record has none of
///   this schedule.
///
/// ```no_run
/// # async fn example(locks: leasehold::Locks) -> leasehold::Result<()> {
/// use leasehold::{Missed, Schedule, ScheduledJob};
///
/// let schedule = Schedule::cron("0 2 * * *")?.in_zone("Europe/Berlin")?;
/// let job = ScheduledJob::new("nightly-report", schedule).missed(Missed::Skip);
/// job.run(&locks, async |tick| {
///     println!("tick {}, fence {}", tick.tick(), tick.fence());
///     Ok::<_, std::io::Error>(())
/// }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ScheduledJob {
    plan: Plan,
    hint: LockingHint,
}

impl ScheduledJob {
    /// A job with the name of its lock, and when it is due. Give it a name of its own.
    pub fn new(name: impl Into<String>, schedule: Schedule) -> Self {
        let plan = Plan {
            schedule,
            policy: TickPolicy::default(),
            missed: Missed::default(),
            jitter: Duration::ZERO,
            clock_bound: CLOCK_BOUND,
            name: name.into(),
        };
        ScheduledJob { plan, hint: LockingHint::default() }
    }

    /// Sets what happens to a tick whose node dies. All nodes must set the same.
    #[must_use]
    pub fn policy(mut self, policy: TickPolicy) -> Self {
        self.plan.policy = policy;
        self
    }

    /// Sets what happens to ticks that no node has run.
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> Self {
        self.plan.missed = missed;
        self
    }

    /// Delays each tick by up to this time, so that the jobs that are due at full hours do not all start at once. The
    /// delay follows from the name and the tick: it is the same on all nodes, if they set the same.
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.plan.jitter = jitter;
        self
    }

    /// Sets how far the clocks of the nodes may be apart; 2 s unless set. By so much may a tick be late that
    /// [`Missed::Skip`] still runs, and a node that sees that another's clock is further ahead logs a warning.
    #[must_use]
    pub fn clock_bound(mut self, bound: Duration) -> Self {
        self.plan.clock_bound = bound;
        self
    }

    /// Sets whether the job needs a store.
    #[must_use]
    pub fn locking(mut self, hint: LockingHint) -> Self {
        self.hint = hint;
        self
    }

    /// Runs the job at each tick that this node takes, until this is dropped. The job is stopped if its lock is lost.
    ///
    /// A job that fails, or is stopped, is logged, and the next tick is waited for.
    ///
    /// # Cancel safety
    /// If dropped, a job that runs is dropped too, and its tick stays open, as if the node had died.
    ///
    /// # Errors
    /// As [`Ticks::next`].
    pub async fn run<'a, E, W>(&self, locks: impl Into<Option<&'a Locks>>, mut job: W) -> Result<Infallible>
    where
        E: fmt::Display,
        W: AsyncFnMut(&TickGuard) -> Result<(), E>,
    {
        let mut ticks = self.ticks(locks)?;
        loop {
            let tick = ticks.next().await?;
            match tick.run(job(&tick)).await {
                Ok(result) => {
                    if let Err(error) = &result {
                        tracing::warn!(%error, "a scheduled job failed");
                    }
                    if let Err(error) = tick.finish(TickResult::of(&result)).await {
                        tracing::warn!(%error, "the end of a scheduled job could not be recorded");
                    }
                }
                Err(error) => tracing::warn!(%error, "a scheduled job was stopped"),
            }
        }
    }

    /// The ticks that this node takes, for callers that run the job themselves.
    ///
    /// # Errors
    /// `InvalidArgument` if the job needs a store, and there is none; `Unsupported` where the store keeps no notes.
    pub fn ticks<'a>(&self, locks: impl Into<Option<&'a Locks>>) -> Result<Ticks> {
        let locks = locks.into().filter(|_| self.hint != LockingHint::NodeLocal);
        let (place, clock): (Place, Arc<dyn Clock>) = match locks {
            Some(locks) => {
                take::check_store(locks)?;
                locks.name(&self.plan.name)?;
                let lock = Lock::new(locks, &self.plan.name);
                let taker = Taker { lock, schedule: Some(self.plan.schedule.clone()) };
                (Place::Store(Box::new(taker)), Arc::clone(locks.clock()))
            }
            None if self.hint == LockingHint::RequireGlobal => {
                return Err(Error::invalid(
                    "the scheduled job requires a store, and there is none: pass locks, or choose `PreferGlobal` or \
                     `NodeLocal`",
                ));
            }
            None => (Place::Node(TickRecord::default(), Arc::default()), Arc::new(SystemClock)),
        };
        Ok(Ticks {
            plan: self.plan.clone(),
            place,
            clock,
            since: None,
            read: Tick::from(0),
            wake: Tick::from(0),
            pause: PAUSE,
            warned: false,
        })
    }
}

/// The ticks of a [`ScheduledJob`] that this node takes.
#[derive(Debug)]
pub struct Ticks {
    plan: Plan,
    place: Place,
    clock: Arc<dyn Clock>,
    /// When this node began to look.
    since: Option<Tick>,
    /// What the clock said last.
    read: Tick,
    /// When to look next.
    wake: Tick,
    pause: Duration,
    /// Whether it has said that another clock is ahead.
    warned: bool,
}

/// Where ticks are taken.
#[derive(Debug)]
enum Place {
    Store(Box<Taker>),
    /// On this node alone; the job that runs has the lock.
    Node(TickRecord, Arc<tokio::sync::Mutex<()>>),
}

impl Ticks {
    /// Waits for the next tick that this node is to run, and takes it. Run the job, then call
    /// [`finish`](TickGuard::finish), before you call this again.
    ///
    /// # Cancel safety
    /// If dropped, it gives back what it may have got; no tick is lost.
    ///
    /// # Errors
    /// Only what cannot pass by itself: `InvalidArgument`, `Unsupported`, `Mismatch` if the note of the name is not a
    /// record of ticks, and `Aborted` after [`close`](Locks::close). All else is logged, and tried again.
    pub async fn next(&mut self) -> Result<TickGuard> {
        loop {
            self.sleep().await?;
            let since = *self.since.get_or_insert(self.read);
            let taken = match &mut self.place {
                Place::Node(record, turn) => {
                    let turn = Arc::clone(turn).lock_owned().await;
                    let now = now(&*self.clock);
                    match self.plan.due(record, since, now) {
                        None => Ok(Taken::Nothing(record.clone())),
                        Some(tick) => {
                            *record = TickRecord::done(tick, &self.plan.schedule);
                            Ok(Taken::Mine(TickGuard::local(tick, turn, Arc::clone(&self.clock))))
                        }
                    }
                }
                Place::Store(taker) => {
                    let (plan, clock) = (&self.plan, &self.clock);
                    taker.take(|record| plan.due(record, since, now(&**clock))).await
                }
            };
            let now = now(&*self.clock);
            match taken {
                Ok(Taken::Mine(tick)) => {
                    self.pause = PAUSE;
                    let done = TickRecord::done(tick.tick(), &self.plan.schedule);
                    let more = self.plan.due(&done, since, now).map(|_| now);
                    self.wake = more.or_else(|| self.plan.next(&done, now)).unwrap_or(NEVER);
                    return Ok(tick);
                }
                Ok(Taken::Nothing(record)) => {
                    self.pause = PAUSE;
                    self.compare_clocks(&record, now);
                    self.wake = self.plan.next(&record, now).unwrap_or(NEVER);
                }
                Ok(Taken::Busy(record, left)) => {
                    self.pause = PAUSE;
                    self.again(&record, now, left + AFTER_LEASE);
                }
                Err(error) if take::is_final(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "a scheduled job is not run for now: the store cannot be asked");
                    let pause = self.pause;
                    self.pause = (pause * 2).min(LONGEST_PAUSE);
                    self.again(&TickRecord::default(), now, pause);
                }
            }
        }
    }

    /// Looks again at the next tick, or after this time if that comes first and missed ticks are not left out.
    fn again(&mut self, record: &TickRecord, now: Tick, after: Duration) {
        let next = self.plan.next(record, now).unwrap_or(NEVER);
        let skips = self.plan.missed == Missed::Skip && self.plan.policy == TickPolicy::AtMostOnce;
        self.wake = if skips { next } else { next.min(ahead(now, after)) };
    }

    /// Sleeps until it is time to look, by the wall clock.
    async fn sleep(&mut self) -> Result<()> {
        loop {
            if let Place::Store(taker) = &self.place {
                taker.lock.client().check_open()?;
            }
            let now = now(&*self.clock);
            if ahead(now, NAP) < self.read {
                // It was set back: what comes next follows from the record and the new time.
                (self.wake, self.since) = (now, self.since.map(|since| since.min(now)));
            }
            self.read = now;
            let left = Duration::from_millis(self.wake.as_u64().saturating_sub(now.as_u64()));
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(left.min(NAP)).await;
        }
    }

    /// Warns once if another node is ahead of its time.
    fn compare_clocks(&mut self, record: &TickRecord, now: Tick) {
        let is_ahead = record.last() > Some(ahead(now, self.plan.clock_bound));
        if is_ahead && !std::mem::replace(&mut self.warned, true) {
            let bound = self.plan.clock_bound;
            tracing::warn!(
                ?bound,
                "another node has run a tick that is not due here yet: the clocks are further apart than the bound"
            );
        }
    }
}

/// Later than every tick.
const NEVER: Tick = Tick::MAX;

fn now(clock: &dyn Clock) -> Tick {
    Tick::from(clock.wall_micros() / 1000)
}
