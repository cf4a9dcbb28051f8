//! The scheduler in paused time: which node runs which tick, and what happens to those that nobody ran.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::clock::{Clock, Moment};
use leasehold::{
    Error, ErrorKind, LockingHint, Locks, Missed, Schedule, ScheduledJob, Tick, TickPolicy, TickResult,
};
use parking_lot::Mutex;
use testkit::faulty::{Act, Faulty, Verb};
use testkit::paused::{Paused, settle};
use tokio::runtime::Handle;

const ALL: [Missed; 3] = [Missed::RunOnce, Missed::Skip, Missed::RunAll];

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// When every test begins by the right wall clock, in milliseconds: at second 0 of a day.
const START: u64 = 1_763_596_800_000;

/// The right time of a world, and how far this clock is off, in milliseconds.
#[derive(Debug)]
struct Shifted(Paused, AtomicI64);

impl Clock for Shifted {
    fn now(&self) -> Moment {
        self.0.clock.now()
    }

    fn wall_micros(&self) -> u64 {
        let right = START * 1000 + u64::try_from(self.0.elapsed().as_micros()).unwrap();
        right.saturating_add_signed(self.1.load(Ordering::SeqCst) * 1000)
    }
}

/// A node of the cluster: a client of its own, with a clock of its own, on the store of the world.
struct Node {
    locks: Locks,
    clock: Arc<Shifted>,
    store: Faulty,
}

impl Node {
    fn new(world: &Paused, off: i64) -> Self {
        let clock = Arc::new(Shifted(world.clone(), AtomicI64::new(off)));
        let store = Faulty::new(world.memory.clone(), Arc::clone(&world.clock));
        let builder = Locks::builder(Arc::new(store.clone())).clock(Arc::clone(&clock) as Arc<dyn Clock>);
        Node { locks: builder.runtime(Handle::current()).build(), clock, store }
    }

    fn set(&self, off: i64) {
        self.clock.1.store(off, Ordering::SeqCst);
    }

    /// All calls, but not those of renewals.
    fn calls(&self) -> usize {
        self.store.log().len()
    }
}

/// What has run: tick and start, in milliseconds since the beginning of the test.
#[derive(Default, Clone)]
struct Ran(Arc<Mutex<Vec<(u64, u64)>>>);

impl Ran {
    /// Runs a job on a node for this long, and then kills that node without a word: its lease stays.
    async fn on(&self, node: &Node, world: &Paused, job: &ScheduledJob, takes: Duration, lives: Duration) {
        let began = |world: &Paused| u64::try_from(world.elapsed().as_millis()).unwrap();
        let work = async {
            let mut ticks = job.ticks(&node.locks).unwrap();
            loop {
                let tick = ticks.next().await.unwrap();
                self.0.lock().push((tick.tick().as_u64() - START, began(world)));
                let life = lives.saturating_sub(world.elapsed());
                if takes > life {
                    // The node dies during the job. Nothing renews its lease any more.
                    node.store.always(Verb::Renew, Act::Never);
                    std::mem::forget(tick);
                    return;
                }
                tokio::time::sleep(takes).await;
                tick.finish(TickResult::Done).await.unwrap();
            }
        };
        let _ = tokio::time::timeout_at(world.start + lives, work).await;
    }

    fn ticks(&self) -> Vec<u64> {
        self.0.lock().iter().map(|(tick, _)| *tick).collect()
    }

    fn taken(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// A world, and a job that is due every 10 s.
fn world() -> (Paused, ScheduledJob) {
    (Paused::new(), ScheduledJob::new("job", Schedule::cron("*/10 * * * * *").unwrap()))
}

const EACH: [TickPolicy; 2] = [TickPolicy::AtMostOnce, TickPolicy::AtLeastOnce];

#[tokio::test(start_paused = true)]
async fn of_three_nodes_one_runs_each_tick_and_others_make_one_call() {
    for policy in EACH {
        let (world, job) = world();
        let job = job.policy(policy);
        let nodes = [0, 500, 1000].map(|off| Node::new(&world, off));
        let ran = Ran::default();
        let lives = secs(2005);
        join_all(nodes.iter().map(|node| ran.on(node, &world, &job, ms(1), lives))).await;
        // The fastest clock is first, a second before the right time.
        let expected: Vec<u64> = (1..=200).map(|n| n * 10_000).collect();
        assert_eq!(ran.ticks(), expected);
        assert!(ran.taken().iter().all(|(tick, at)| at + 1000 == *tick));
        // Each node has looked once at its start.
        for loser in &nodes[..2] {
            assert_eq!(loser.calls(), 201, "{policy:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_during_a_long_job_makes_one_call_too() {
    let (world, job) = world();
    let nodes = [0, 500].map(|off| Node::new(&world, off));
    let ran = Ran::default();
    join_all(nodes.iter().map(|node| ran.on(node, &world, &job, secs(3), secs(205)))).await;
    assert_eq!(ran.ticks(), (1..=20).map(|n| n * 10_000).collect::<Vec<_>>());
    assert_eq!(nodes[0].calls(), 21);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_overruns_never_overlaps_itself() {
    for (missed, expected) in [
        // Due at 10; it ends at 35, and the tick at 30 stands for both; then at 60, and so on.
        (Missed::RunOnce, vec![(10, 10), (30, 35), (60, 60), (80, 85)]),
        // 20 and 30 are left out, because they are late at 35.
        (Missed::Skip, vec![(10, 10), (40, 40), (70, 70), (100, 100)]),
        // Each has its turn, later and later.
        (Missed::RunAll, vec![(10, 10), (20, 35), (30, 60), (40, 85)]),
    ] {
        let (world, job) = world();
        let job = job.missed(missed);
        let nodes = [20, 0].map(|off| Node::new(&world, off));
        let ran = Ran::default();
        join_all(nodes.iter().map(|node| ran.on(node, &world, &job, secs(25), secs(109)))).await;
        let taken = ran.taken();
        let seconds: Vec<_> =
            taken.iter().map(|(tick, at)| (tick / 1000, (at + 500) / 1000)).take(4).collect();
        assert_eq!(seconds, expected, "{missed:?}");
        for pair in taken.windows(2) {
            assert!(pair[1].1 >= pair[0].1 + 25_000, "{missed:?}: {taken:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_nodes_tick_runs_again_only_at_least_once() {
    for (policy, again) in [(TickPolicy::AtMostOnce, false), (TickPolicy::AtLeastOnce, true)] {
        for missed in ALL {
            let (world, job) = world();
            let job = job.policy(policy).missed(missed);
            let nodes = [500, 0].map(|off| Node::new(&world, off));
            let ran = Ran::default();
            // The first node dies in the job of tick 20; its lease lasts for 30 s.
            let dies = ran.on(&nodes[0], &world, &job, secs(2), secs(20));
            let lives = ran.on(&nodes[1], &world, &job, secs(2), secs(95));
            tokio::join!(dies, lives);
            let taken = ran.taken();
            let runs = |tick: u64| taken.iter().filter(|(ran, _)| *ran == tick * 1000).count();
            assert_eq!(
                (runs(10), runs(20)),
                (1, if again { 2 } else { 1 }),
                "{policy:?} {missed:?}: {taken:?}"
            );
            // As soon as the lease has ended, and not only at the next tick.
            if let Some((_, at)) = taken.iter().find(|(tick, at)| *tick == 20_000 && *at > 20_000) {
                assert!((49_400..49_900).contains(at), "{missed:?}: {at}");
            }
            for tick in [60, 70, 80, 90] {
                assert_eq!(runs(tick), 1, "{policy:?} {missed:?}: {taken:?}");
            }
            if missed == Missed::RunAll {
                assert_eq!((runs(30), runs(40), runs(50)), (1, 1, 1), "{taken:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_all_were_down_missed_ticks_are_made_up_for() {
    for (missed, expected) in [
        (Missed::RunOnce, vec![10, 60, 70]),
        (Missed::Skip, vec![10, 70]),
        (Missed::RunAll, vec![10, 20, 30, 40, 50, 60, 70]),
    ] {
        let (world, job) = world();
        let job = job.missed(missed);
        let ran = Ran::default();
        ran.on(&Node::new(&world, 0), &world, &job, ms(1), secs(15)).await;
        tokio::time::sleep(secs(50)).await;
        ran.on(&Node::new(&world, 0), &world, &job, ms(1), secs(75)).await;
        let seconds: Vec<u64> = ran.ticks().iter().map(|tick| tick / 1000).collect();
        assert_eq!(seconds, expected, "{missed:?}");
        // With another schedule, nothing was missed.
        let other = ScheduledJob::new("job", Schedule::every(secs(5)).unwrap()).missed(missed);
        ran.taken();
        tokio::time::sleep(secs(20)).await;
        ran.on(&Node::new(&world, 0), &world, &other, ms(1), secs(104)).await;
        assert_eq!(ran.ticks(), [100_000], "{missed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_broken_nobody_runs_the_job() {
    for (missed, expected) in [
        // As soon as the store is asked again: at least once in half a minute.
        (Missed::RunOnce, vec![10, 50, 60]),
        (Missed::Skip, vec![10, 60]),
        (Missed::RunAll, vec![10, 20, 30, 40, 50, 60]),
    ] {
        for kind in [ErrorKind::Unavailable, ErrorKind::AuthFailed] {
            let (world, job) = world();
            let job = job.missed(missed);
            let node = Node::new(&world, 0);
            let ran = Ran::default();
            let breaks = async {
                world.until(15_000).await;
                node.store.always(Verb::Other, Act::Fail(kind));
                world.until(55_000).await;
                assert_eq!(ran.ticks(), [10_000]);
                node.store.always(Verb::Other, Act::Pass);
            };
            tokio::join!(ran.on(&node, &world, &job, ms(1), secs(65)), breaks);
            let seconds: Vec<u64> = ran.ticks().iter().map(|tick| tick / 1000).collect();
            // The store may be asked only when the next tick is due; then that one stands for both.
            let expected: Vec<u64> = match missed {
                Missed::RunOnce if !seconds.contains(&50) => vec![10, 60],
                _ => expected.clone(),
            };
            assert_eq!(seconds, expected, "{missed:?} {kind:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_forward_misses_ticks() {
    for (missed, expected) in [
        (Missed::RunOnce, vec![10, 3610, 3620]),
        (Missed::Skip, vec![10, 3620]),
        (Missed::RunAll, (1..=362).map(|n| n * 10).collect()),
    ] {
        let (world, job) = world();
        let job = job.missed(missed);
        let node = Node::new(&world, 0);
        let ran = Ran::default();
        let steps = async {
            world.until(15_000).await;
            node.set(3_600_000);
        };
        tokio::join!(ran.on(&node, &world, &job, ms(1), secs(24)), steps);
        let seconds: Vec<u64> = ran.ticks().iter().map(|tick| tick / 1000).collect();
        assert_eq!(seconds, expected, "{missed:?}");
        // The step was noticed within a second.
        assert!(ran.taken()[1].1 <= 20_000);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_clock_is_set_back_no_tick_runs_twice() {
    for missed in ALL {
        for policy in EACH {
            let (world, job) = world();
            let job = job.missed(missed).policy(policy);
            let node = Node::new(&world, 0);
            let ran = Ran::default();
            let steps = async {
                world.until(35_000).await;
                node.set(-25_000);
            };
            tokio::join!(ran.on(&node, &world, &job, ms(1), secs(85)), steps);
            // It is 10 again at 35; the tick 40 comes at 65.
            let expected = [(10, 10), (20, 20), (30, 30), (40, 65), (50, 75), (60, 85)];
            let seconds: Vec<_> = ran.taken().iter().map(|(tick, at)| (tick / 1000, at / 1000)).collect();
            assert_eq!(seconds, expected[..seconds.len()], "{missed:?}");
            assert!(seconds.len() >= 5, "{seconds:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_that_is_mended_does_not_sleep_through_ticks() {
    let (world, job) = world();
    // A day ahead, it waits for a tick of tomorrow.
    let node = Node::new(&world, 86_400_000 + 3_000);
    let ran = Ran::default();
    let mends = async {
        world.until(2_000).await;
        node.set(0);
    };
    tokio::join!(ran.on(&node, &world, &job, ms(1), secs(25)), mends);
    assert_eq!(ran.ticks(), [10_000, 20_000]);
}

#[tokio::test(start_paused = true)]
async fn jitter_delays_all_nodes_by_the_same_time() {
    let (world, job) = world();
    let job = job.jitter(secs(8));
    let nodes = [0, 0, 0].map(|off| Node::new(&world, off));
    let ran = Ran::default();
    join_all(nodes.iter().map(|node| ran.on(node, &world, &job, ms(1), secs(209)))).await;
    let taken = ran.taken();
    assert_eq!(
        taken.iter().map(|(tick, _)| *tick).collect::<Vec<_>>(),
        (1..=20).map(|n| n * 10_000).collect::<Vec<_>>()
    );
    let delays: Vec<u64> = taken.iter().map(|(tick, at)| at - tick).collect();
    assert!(delays.iter().all(|delay| *delay <= 8_000), "{delays:?}");
    let spread = delays.iter().max().unwrap() - delays.iter().min().unwrap();
    assert!(spread > 2_000, "{delays:?}");
}

#[tokio::test]
async fn hints_say_whether_a_job_needs_a_store() {
    let schedule = || Schedule::every(ms(20)).unwrap();
    let locks = Locks::connect("memory:").await.unwrap();
    let refused = ScheduledJob::new("job", schedule()).ticks(None::<&Locks>).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(refused.message().contains("`PreferGlobal` or `NodeLocal`"), "{refused}");
    for (hint, store, is_global) in [
        (LockingHint::NodeLocal, None, false),
        (LockingHint::NodeLocal, Some(&locks), false),
        (LockingHint::PreferGlobal, None, false),
        (LockingHint::PreferGlobal, Some(&locks), true),
        (LockingHint::RequireGlobal, Some(&locks), true),
    ] {
        let job = ScheduledJob::new(format!("{hint:?}"), schedule()).locking(hint).missed(Missed::RunAll);
        let mut ticks = job.ticks(store).unwrap();
        let mut last = Tick::from(0);
        for round in 0..3 {
            let tick = ticks.next().await.unwrap();
            assert_eq!((tick.guard().is_some(), tick.check().is_ok()), (is_global, true), "{hint:?}");
            if round > 0 {
                assert_eq!(tick.tick().as_u64(), last.as_u64() + 20, "{hint:?}");
            }
            last = tick.tick();
            tick.finish(TickResult::Done).await.unwrap();
        }
        let used = !locks.tick_record(format!("{hint:?}")).await.unwrap().runs.is_empty();
        assert_eq!(used, is_global, "{hint:?}");
    }
    // If the store is broken, the nodes do not fall back to running the job on each of them.
    let world = Paused::with_info(|info| info.notes = false);
    let job = ScheduledJob::new("job", schedule()).locking(LockingHint::PreferGlobal);
    assert_eq!(job.ticks(&world.locks).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn a_failing_job_goes_on_at_the_next_tick() {
    let (world, job) = world();
    let node = Node::new(&world, 0);
    let mut results: BTreeMap<u64, u32> = BTreeMap::new();
    let runs = job.run(&node.locks, async |tick| {
        *results.entry((tick.tick().as_u64() - START) / 1000).or_default() += 1;
        if tick.tick().as_u64().is_multiple_of(20_000) { Err("it failed") } else { Ok(()) }
    });
    assert!(tokio::time::timeout(secs(45), runs).await.is_err());
    assert_eq!(results, BTreeMap::from([(10, 1), (20, 1), (30, 1), (40, 1)]));
    let record = world.locks.tick_record("job").await.unwrap();
    let failed = record.runs.iter().filter(|run| run.end.as_ref().unwrap().result != TickResult::Done);
    assert_eq!(failed.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_pass_by_itself_ends_the_scheduler() {
    let (world, job) = world();
    let node = Node::new(&world, 0);
    let mut ticks = job.ticks(&node.locks).unwrap();
    let closes = async {
        world.until(5_000).await;
        node.locks.close().await;
    };
    let (error, ()) = tokio::join!(tokio::time::timeout(secs(7), ticks.next()), closes);
    assert_eq!(error.unwrap().unwrap_err().kind(), ErrorKind::Aborted);
    let guard = world.locks.mutex("job").lock().await.unwrap();
    guard.release_with_note("not a record").await.unwrap();
    settle().await;
    let error: Error = job.run(&world.locks, async |_| Ok::<_, Error>(())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
}
