//! A small host: it finds out which schedules are due, takes the lock of each where the plugin asks for it, and runs
//! them.
//!
//! The host that embeds it gives the time of its own clock, so that tests can have clocks that differ.

pub(crate) mod cron;
pub(crate) mod fuel;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use bext_plugin_api::locking::{self, LockHandle, LockingPlugin};
use bext_plugin_api::scheduled::{
    self, LockingHint, MissedRunPolicy, Schedule, ScheduledPlugin, ScheduledRunCtx,
};

/// A tick that is found this late, beyond its jitter, was missed.
pub(crate) const LATE_MS: u64 = 1000;

/// What happened to the schedule with this locking key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The job ran, for the tick of this time.
    Ran { key: String, due_ms: u64, is_catchup: bool, result: Result<(), String> },
    /// Another node has the lock: it runs this tick.
    Contended { key: String },
    /// The locking plugin failed, so that the job did not run, or its lock ends only with its ttl.
    LockFailed { key: String, error: String },
}

/// One node's scheduler.
pub(crate) struct Scheduler {
    locking: Option<Arc<dyn LockingPlugin>>,
    lock_ttl_ms: u64,
    tasks: Vec<Task>,
}

/// One schedule of one plugin.
struct Task {
    plugin: Arc<dyn ScheduledPlugin>,
    schedule: Schedule,
    key: String,
    interval_ms: u64,
    /// The tick that was dealt with last.
    handled_ms: u64,
    /// The delay of the next tick.
    jitter_ms: u64,
    run_count: u64,
}

/// One run that is due.
struct Due {
    due_ms: u64,
    is_catchup: bool,
}

impl Scheduler {
    /// A scheduler for the ticks after `now_ms`. It refuses schedules that it cannot read, and those that need a lock
    /// of the cluster if there is no plugin for it: without one, every node would run them.
    pub(crate) fn new(
        plugins: impl IntoIterator<Item = Arc<dyn ScheduledPlugin>>,
        locking: Option<Arc<dyn LockingPlugin>>,
        lock_ttl_ms: u64,
        now_ms: u64,
    ) -> Result<Self, String> {
        let mut tasks: Vec<Task> = Vec::new();
        for plugin in plugins {
            for schedule in fuel::with(scheduled::fuel::SCHEDULES, || plugin.schedules())? {
                let key = format!("{}/{}", plugin.name(), schedule.id);
                if tasks.iter().any(|task| task.key == key) {
                    return Err(format!("two schedules are named {key}"));
                }
                if locking.is_none() && schedule.locking == LockingHint::RequireGlobal {
                    return Err(format!("{key} needs a locking plugin, and none is configured"));
                }
                let interval_ms =
                    cron::interval_ms(&schedule.cron).map_err(|error| format!("{key}: {error}"))?;
                let handled_ms = now_ms / interval_ms * interval_ms;
                let jitter_ms = random_up_to(schedule.jitter_ms);
                let plugin = Arc::clone(&plugin);
                tasks.push(Task { plugin, schedule, key, interval_ms, handled_ms, jitter_ms, run_count: 0 });
            }
        }
        tasks.sort_by_key(|task| task.plugin.priority());
        Ok(Scheduler { locking, lock_ttl_ms, tasks })
    }

    /// When something is due next, by this node's clock.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.tasks.iter().map(Task::next_ms).min()
    }

    /// Runs what is due, one job after the other: so no schedule runs twice at a time on this node.
    pub(crate) fn tick(&mut self, now_ms: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for task in &mut self.tasks {
            let due = task.take_due(now_ms);
            if !due.is_empty() {
                task.run_locked(due, self.locking.as_deref(), self.lock_ttl_ms, &mut events);
            }
        }
        events
    }

    /// Lets the plugins go. Errors are of no use any more.
    pub(crate) fn stop(self) {
        for task in &self.tasks {
            let _ = fuel::with(scheduled::fuel::CLEANUP, || task.plugin.cleanup());
        }
        if let Some(locking) = &self.locking {
            let _ = fuel::with(locking::fuel::CLEANUP, || locking.cleanup());
        }
    }
}

impl Task {
    fn next_ms(&self) -> u64 {
        self.handled_ms + self.interval_ms + self.jitter_ms
    }

    /// The runs that are due by now, as the schedule wants missed ones to be treated.
    fn take_due(&mut self, now_ms: u64) -> Vec<Due> {
        if now_ms < self.next_ms() {
            return Vec::new();
        }
        let first = self.handled_ms + self.interval_ms;
        // A tick whose jitter is not over yet is left for later.
        let last = (now_ms - self.jitter_ms) / self.interval_ms * self.interval_ms;
        let is_late = now_ms - last > LATE_MS + self.jitter_ms;
        self.handled_ms = last;
        self.jitter_ms = random_up_to(self.schedule.jitter_ms);
        let missed = |due_ms| due_ms < last || is_late;
        match self.schedule.missed_run_policy {
            MissedRunPolicy::RunAll => (first..=last)
                .step_by(usize::try_from(self.interval_ms).unwrap_or(usize::MAX))
                .map(|due_ms| Due { due_ms, is_catchup: missed(due_ms) })
                .collect(),
            MissedRunPolicy::RunOnce => vec![Due { due_ms: last, is_catchup: missed(first) }],
            MissedRunPolicy::Skip if is_late => Vec::new(),
            MissedRunPolicy::Skip => vec![Due { due_ms: last, is_catchup: false }],
        }
    }

    /// Runs under the lock that the schedule asks for.
    fn run_locked(
        &mut self,
        due: Vec<Due>,
        locking: Option<&dyn LockingPlugin>,
        ttl_ms: u64,
        events: &mut Vec<Event>,
    ) {
        let failed = |key: &str, error| Event::LockFailed { key: key.to_owned(), error };
        let locking = match (self.schedule.locking, locking) {
            (LockingHint::RequireGlobal | LockingHint::PreferGlobal, Some(locking)) => locking,
            _ => return due.into_iter().for_each(|due| events.push(self.run(due))),
        };
        let handle = match fuel::with(locking::fuel::TRY_LOCK, || locking.try_lock(&self.key, ttl_ms)) {
            Ok(Some(handle)) => handle,
            Ok(None) => return events.push(Event::Contended { key: self.key.clone() }),
            Err(error) => return events.push(failed(&self.key, error)),
        };
        for (n, due) in due.into_iter().enumerate() {
            // Each of several runs has the whole ttl, or does not begin.
            if let Err(error) = renew_before(n, locking, &handle) {
                events.push(failed(&self.key, error));
                break;
            }
            events.push(self.run(due));
        }
        if let Err(error) = fuel::with(locking::fuel::RELEASE, || locking.release(handle)) {
            events.push(failed(&self.key, error));
        }
    }

    fn run(&mut self, Due { due_ms, is_catchup }: Due) -> Event {
        self.run_count += 1;
        let context = ScheduledRunCtx {
            schedule_id: self.schedule.id.clone(),
            scheduled_at_ms: due_ms,
            run_count: self.run_count,
            is_catchup,
            tenant_id: None,
            site_id: None,
        };
        let result = fuel::with(scheduled::fuel::RUN, || self.plugin.run(&context));
        Event::Ran { key: self.key.clone(), due_ms, is_catchup, result }
    }
}

fn renew_before(n: usize, locking: &dyn LockingPlugin, handle: &LockHandle) -> Result<(), String> {
    if n == 0 { Ok(()) } else { fuel::with(locking::fuel::RENEW, || locking.renew(handle)) }
}

/// A random number; nothing secret is made from it.
fn random_up_to(most: u64) -> u64 {
    if most == 0 { 0 } else { RandomState::new().hash_one(most) % (most.saturating_add(1)) }
}
