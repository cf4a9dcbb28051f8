//! The host scheduler of the example, alone and as a cluster of nodes whose clocks differ.

#![allow(clippy::unwrap_used)] // also in helpers of tests

mod cluster;
#[path = "../../examples/host_scheduler/scheduler/mod.rs"]
mod scheduler;

use std::sync::Arc;
use std::time::Duration;

use bext_plugin_api::locking;
use bext_plugin_api::locking::LockingPlugin;
use bext_plugin_api::scheduled::{
    self, LockingHint, MissedRunPolicy, Schedule, ScheduledPlugin, ScheduledRunCtx,
};
use leasehold::backends::memory::Memory;
use leasehold::clock::SystemClock;
use leasehold::{ErrorKind, Locks};
use leasehold_bext::{LeaseholdPlugin, PluginOptions};
use parking_lot::Mutex;
use scheduler::{Event, Scheduler, cron, fuel};
use testkit::faulty::{Act, Faulty, Verb};

const SECOND: u64 = 1000;

/// What a job does.
type Work = fn(&ScheduledRunCtx) -> Result<(), String>;

/// The name of a job, its tick, the number of the run, and whether it made up for a missed one.
type Run = (String, u64, u64, bool);

/// A plugin with one schedule, which writes down its runs and then does as the test wants.
struct Job<F = Work> {
    name: &'static str,
    priority: u32,
    schedule: Schedule,
    runs: Arc<Mutex<Vec<Run>>>,
    work: F,
}

fn schedule(cron: &str) -> Schedule {
    Schedule {
        id: "tick".into(),
        description: String::new(),
        cron: cron.into(),
        jitter_ms: 0,
        missed_run_policy: MissedRunPolicy::default(),
        locking: LockingHint::default(),
        config_json: String::new(),
    }
}

impl Job {
    fn new(schedule: Schedule) -> Self {
        Job { name: "job", priority: 1000, schedule, runs: Arc::default(), work: |_| Ok(()) }
    }
}

impl<F> Job<F> {
    fn doing<G>(self, work: G) -> Job<G> {
        Job { name: self.name, priority: self.priority, schedule: self.schedule, runs: self.runs, work }
    }
}

impl<F: Fn(&ScheduledRunCtx) -> Result<(), String> + Send + Sync> ScheduledPlugin for Job<F> {
    fn name(&self) -> &str {
        self.name
    }

    fn priority(&self) -> u32 {
        self.priority
    }

    fn schedules(&self) -> Result<Vec<Schedule>, String> {
        Ok(vec![self.schedule.clone()])
    }

    fn run(&self, ctx: &ScheduledRunCtx) -> Result<(), String> {
        self.runs.lock().push((self.name.into(), ctx.scheduled_at_ms, ctx.run_count, ctx.is_catchup));
        (self.work)(ctx)
    }
}

/// A locking plugin on a store whose calls the test can let fail.
fn locking() -> (Arc<dyn LockingPlugin>, Faulty) {
    let store = Faulty::new(Memory::new(), Arc::new(SystemClock));
    let plugin = LeaseholdPlugin::new(Locks::new(store.clone()), PluginOptions::default()).unwrap();
    (Arc::new(plugin), store)
}

fn scheduler(job: impl ScheduledPlugin + 'static, locking: Option<Arc<dyn LockingPlugin>>) -> Scheduler {
    Scheduler::new([Arc::new(job) as Arc<dyn ScheduledPlugin>], locking, 60_000, 0).unwrap()
}

/// The ticks that ran, and whether they made up for a missed one.
fn ran(events: &[Event]) -> Vec<(u64, bool)> {
    let ran = |event: &Event| match event {
        Event::Ran { due_ms, is_catchup, .. } => Some((due_ms / SECOND, *is_catchup)),
        _ => None,
    };
    events.iter().filter_map(ran).collect()
}

#[test]
fn schedules_are_read_as_bext_writes_them() {
    let minute = 60 * SECOND;
    for (text, interval) in [
        ("30s", 30 * SECOND),
        ("5m", 5 * minute),
        ("2h", 120 * minute),
        ("*/5 * * * *", 5 * minute),
        ("* * * * *", minute),
        ("0 */3 * * *", 180 * minute),
        ("@hourly", 60 * minute),
        ("@daily", 24 * 60 * minute),
    ] {
        assert_eq!(cron::interval_ms(text), Ok(interval), "{text}");
    }
    let wrong = [
        "",
        "s",
        "0s",
        "-1s",
        "5",
        "5d",
        "🔒",
        "*/0 * * * *",
        "*/7 * * * *",
        "1 2 3 4 5",
        "0 */5 * * *",
        "@never",
    ];
    for text in wrong {
        assert!(cron::interval_ms(text).is_err(), "{text}");
        let job: Arc<dyn ScheduledPlugin> = Arc::new(Job::new(schedule(text)));
        let error = Scheduler::new([job], Some(locking().0), 60_000, 0).err().unwrap();
        assert!(error.contains("job/tick"), "{error}");
    }
}

#[test]
fn a_due_schedule_runs_once_under_its_lock() {
    let (plugin, _) = locking();
    let held = Arc::clone(&plugin);
    let job =
        Job::new(schedule("10s")).doing(move |_: &ScheduledRunCtx| match held.try_lock("job/tick", 1000) {
            Ok(None) => Ok(()),
            other => Err(format!("the key is not held: {other:?}")),
        });
    let mut scheduler = scheduler(job, Some(Arc::clone(&plugin)));
    assert!(scheduler.tick(9_999).is_empty());
    let events = scheduler.tick(10_000);
    let first = Event::Ran { key: "job/tick".into(), due_ms: 10_000, is_catchup: false, result: Ok(()) };
    assert_eq!(events, [first]);
    assert!(scheduler.tick(19_999).is_empty());
    assert!(plugin.try_lock("job/tick", 1000).unwrap().is_some(), "released after the run");
}

#[test]
fn each_locking_hint_is_honoured() {
    let with = |locking: LockingHint| Job::new(Schedule { locking, ..schedule("10s") });
    // Another node holds the key.
    let (plugin, _) = locking();
    let _held = plugin.try_lock("job/tick", 60_000).unwrap().unwrap();
    let contended = [Event::Contended { key: "job/tick".into() }];
    for hint in [LockingHint::RequireGlobal, LockingHint::PreferGlobal] {
        assert_eq!(scheduler(with(hint), Some(Arc::clone(&plugin))).tick(10_000), contended);
    }
    let local = || with(LockingHint::NodeLocal);
    assert_eq!(ran(&scheduler(local(), Some(plugin)).tick(10_000)), [(10, false)]);
    // There is no locking plugin.
    for hint in [LockingHint::NodeLocal, LockingHint::PreferGlobal] {
        assert_eq!(ran(&scheduler(with(hint), None).tick(10_000)), [(10, false)]);
    }
    let global: Arc<dyn ScheduledPlugin> = Arc::new(with(LockingHint::RequireGlobal));
    assert!(Scheduler::new([global], None, 60_000, 0).is_err());
}

#[test]
fn a_broken_store_skips_the_tick_and_says_so() {
    let (plugin, store) = locking();
    let job = Job::new(schedule("10s"));
    let runs = Arc::clone(&job.runs);
    let mut scheduler = scheduler(job, Some(plugin));
    store.plan(Verb::TryAcquire, [Act::Fail(ErrorKind::Unavailable), Act::Fail(ErrorKind::Overloaded)]);
    for now in [10_000, 20_000] {
        assert!(matches!(scheduler.tick(now).as_slice(), [Event::LockFailed { .. }]));
    }
    assert!(runs.lock().is_empty());
    assert_eq!(ran(&scheduler.tick(30_000)), [(30, false)]);
}

#[test]
fn missed_runs_are_treated_as_the_schedule_says() {
    let with = |missed_run_policy| {
        let schedule = Schedule { missed_run_policy, ..schedule("10s") };
        scheduler(Job::new(schedule), Some(locking().0))
    };
    // The host slept through ticks 10 to 40, and woke up a little after tick 50, or long after it.
    for (policy, on_time, late) in [
        (MissedRunPolicy::RunOnce, vec![(50, true)], vec![(50, true)]),
        (MissedRunPolicy::Skip, vec![(50, false)], vec![]),
        (
            MissedRunPolicy::RunAll,
            vec![(10, true), (20, true), (30, true), (40, true), (50, false)],
            vec![(10, true), (20, true), (30, true), (40, true), (50, true)],
        ),
    ] {
        assert_eq!(ran(&with(policy).tick(50_500)), on_time, "{policy:?}");
        let mut late_one = with(policy);
        assert_eq!(ran(&late_one.tick(57_000)), late, "{policy:?}");
        assert_eq!(ran(&late_one.tick(60_000)), [(60, false)], "{policy:?}: then as usual");
    }
}

#[test]
fn catching_up_ends_when_the_lock_is_lost() {
    let (plugin, store) = locking();
    let schedule = Schedule { missed_run_policy: MissedRunPolicy::RunAll, ..schedule("10s") };
    let mut scheduler = scheduler(Job::new(schedule), Some(plugin));
    store.plan(Verb::Renew, [Act::Pass, Act::Fail(ErrorKind::Unavailable)]);
    let events = scheduler.tick(50_000);
    assert_eq!(ran(&events), [(10, true), (20, true)]);
    assert!(matches!(events.last(), Some(Event::LockFailed { .. })));
    assert_eq!(ran(&scheduler.tick(60_000)), [(60, false)], "the lock was released");
}

#[test]
fn jitter_delays_a_tick_by_at_most_so_much() {
    let delays: Vec<_> = (0..64)
        .map(|_| {
            let jittered = Schedule { jitter_ms: 2_000, ..schedule("10s") };
            // A node that comes late leaves a tick alone whose delay is not over.
            let mut late = scheduler(Job::new(jittered.clone()), Some(locking().0));
            let is_over = late.next_ms().unwrap() - 10_000 <= 500;
            assert_eq!(ran(&late.tick(20_500))[0].0, if is_over { 20 } else { 10 });

            let mut scheduler = scheduler(Job::new(jittered), Some(locking().0));
            let next = scheduler.next_ms().unwrap();
            assert!(scheduler.tick(next - 1).is_empty());
            assert_eq!(ran(&scheduler.tick(next)), [(10, false)], "it belongs to the tick that it delays");
            next - 10_000
        })
        .collect();
    assert!(delays.iter().all(|delay| *delay <= 2_000), "{delays:?}");
    assert!(delays.iter().any(|delay| *delay != delays[0]), "{delays:?}");
}

#[test]
fn jobs_of_one_tick_run_by_priority() {
    let runs = Arc::default();
    let job = |name, priority| Job { name, priority, runs: Arc::clone(&runs), ..Job::new(schedule("10s")) };
    let jobs = [job("last", 2000), job("first", 1), job("middle", 1000)];
    let jobs = jobs.map(|job| Arc::new(job) as Arc<dyn ScheduledPlugin>);
    let mut scheduler = Scheduler::new(jobs, Some(locking().0), 60_000, 0).unwrap();
    scheduler.tick(10_000);
    scheduler.tick(20_000);
    let order: Vec<_> = runs.lock().iter().map(|(name, _, count, _)| (name.clone(), *count)).collect();
    let expected = [("first", 1), ("middle", 1), ("last", 1), ("first", 2), ("middle", 2), ("last", 2)];
    assert_eq!(order, expected.map(|(name, count)| (name.to_owned(), count)));
}

#[test]
fn the_budgets_of_fuel_are_those_of_bext() {
    use locking::fuel as locks;
    assert_eq!((locks::TRY_LOCK, locks::RENEW, locks::RELEASE), (50_000_000, 50_000_000, 50_000_000));
    assert_eq!((locks::CLEANUP, scheduled::fuel::CLEANUP), (100_000_000, 100_000_000));
    assert_eq!((scheduled::fuel::RUN, scheduled::fuel::SCHEDULES), (1_000_000_000, 10_000_000));
}

/// A locking plugin that uses fuel.
struct Thirsty(Arc<dyn LockingPlugin>, Mutex<[u64; 3]>);

impl LockingPlugin for Thirsty {
    fn name(&self) -> &str {
        "thirsty"
    }

    fn try_lock(&self, key: &str, ttl_ms: u64) -> Result<Option<locking::LockHandle>, String> {
        fuel::burn(self.1.lock()[0])?;
        self.0.try_lock(key, ttl_ms)
    }

    fn renew(&self, handle: &locking::LockHandle) -> Result<(), String> {
        fuel::burn(self.1.lock()[1])?;
        self.0.renew(handle)
    }

    fn release(&self, handle: locking::LockHandle) -> Result<(), String> {
        fuel::burn(self.1.lock()[2])?;
        self.0.release(handle)
    }
}

#[test]
fn every_call_of_a_plugin_has_its_budget_of_fuel() {
    const ALMOST: [u64; 3] =
        [locking::fuel::TRY_LOCK - 1, locking::fuel::RENEW - 1, locking::fuel::RELEASE - 1];
    let plugin = Arc::new(Thirsty(locking().0, Mutex::new(ALMOST)));
    let schedule = Schedule { missed_run_policy: MissedRunPolicy::RunAll, ..schedule("10s") };
    // Each run has a budget of its own, whatever the calls before it used.
    let job = Job::new(schedule).doing(|_: &ScheduledRunCtx| fuel::burn(scheduled::fuel::RUN - 1));
    let mut scheduler = scheduler(job, Some(plugin.clone()));
    let events = scheduler.tick(30_000);
    assert_eq!(ran(&events).len(), 3, "{events:?}");
    assert_eq!(events.len(), 3, "{events:?}");

    for (call, runs) in [(0, 0), (1, 1)] {
        plugin.1.lock()[call] += 1;
        let events = scheduler.tick(60_000 + 30_000 * call as u64);
        assert_eq!(ran(&events).len(), runs, "{events:?}");
        assert!(
            matches!(events.last(), Some(Event::LockFailed { error, .. }) if error.contains("fuel")),
            "{events:?}"
        );
        *plugin.1.lock() = ALMOST;
    }
    plugin.1.lock()[2] += 1;
    let events = scheduler.tick(120_000);
    assert_eq!(ran(&events).len(), 3, "{events:?}");
    assert!(
        matches!(events.last(), Some(Event::LockFailed { error, .. }) if error.contains("fuel")),
        "{events:?}"
    );
}

#[test]
fn a_job_that_fails_frees_its_lock() {
    let jobs: [Work; 3] = [
        |_| Err("no paper".into()),
        |_| panic!("out of paper"),
        // It does not look at the answer.
        |_| fuel::burn(scheduled::fuel::RUN).or(Ok(())),
    ];
    for work in jobs {
        let mut scheduler = scheduler(Job::new(schedule("10s")).doing(work), Some(locking().0));
        for now in [10_000, 20_000] {
            let events = scheduler.tick(now);
            assert!(matches!(events.as_slice(), [Event::Ran { result: Err(_), .. }]), "{events:?}");
        }
        scheduler.stop();
    }
}

#[test]
fn with_min_hold_every_tick_runs_once() {
    let counts = cluster::runs_of_each_tick(PluginOptions::default().min_hold(Duration::from_secs(2)), 0);
    assert_eq!(counts.len(), cluster::TICKS);
    assert!(counts.iter().all(|runs| *runs == 1), "{counts:?}");
}

#[test]
fn with_min_hold_jitter_makes_no_second_run() {
    let options =
        PluginOptions::default().keep_alive(Duration::from_secs(60)).min_hold(Duration::from_secs(4));
    let counts = cluster::runs_of_each_tick(options, 1_500);
    assert_eq!(counts.len(), cluster::TICKS);
    assert!(counts.iter().all(|runs| *runs == 1), "{counts:?}");
}

#[test]
fn without_min_hold_late_clocks_run_it_again() {
    let counts = cluster::runs_of_each_tick(PluginOptions::default(), 0);
    assert_eq!(counts.len(), cluster::TICKS);
    assert!(counts.iter().all(|runs| *runs == 3), "each node runs it: {counts:?}");
}
