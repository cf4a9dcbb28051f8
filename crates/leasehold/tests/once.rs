//! Once per tick: one node runs a tick, late ones see that it is done, and what a death leaves behind.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::cell::Cell;
use std::time::Duration;

use leasehold::{
    Begun, Error, ErrorKind, GuardState, Locks, Once, Ran, Tick, TickPolicy, TickRecord, TickResult,
};
use testkit::faulty::{Act, Verb};
use testkit::paused::{Paused, poll_at_most, settle};

const BOTH: [TickPolicy; 2] = [TickPolicy::AtMostOnce, TickPolicy::AtLeastOnce];

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Runs a job of no time at all.
async fn run(once: &Once) -> Ran<()> {
    once.run(async |_| Ok::<_, Error>(())).await.unwrap()
}

/// The ticks that the record has, and whether they have ended.
async fn runs(locks: &Locks, name: &str) -> Vec<(u64, bool)> {
    let record: TickRecord = locks.tick_record(name).await.unwrap();
    record.runs.iter().map(|run| (run.tick.as_u64(), run.end.is_some())).collect()
}

/// The calls of each kind that the store has seen: looks, attempts, renewals (which write notes), releases.
fn calls(world: &Paused) -> [usize; 4] {
    [Verb::Other, Verb::TryAcquire, Verb::Renew, Verb::Release].map(|verb| world.store.count(verb))
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_after_the_job_sees_that_it_is_done() {
    for policy in BOTH {
        let world = Paused::new();
        let early = world.other().once("job", 7).policy(policy).owner("early");
        assert_eq!(run(&early).await, Ran::Now(()));
        // A millisecond later or days later, and any number of times.
        for late in [ms(1), ms(2000), Duration::from_secs(5 * 86_400)] {
            tokio::time::sleep(late).await;
            let before = calls(&world);
            match run(&world.locks.once("job", 7).policy(policy)).await {
                Ran::Before(Some(run)) => {
                    assert_eq!((run.tick, &*run.owner), (Tick::from(7), "early"));
                    assert_eq!(run.end.unwrap().result, TickResult::Done);
                }
                other => panic!("{other:?}"),
            }
            // One call, which changes nothing.
            assert_eq!(calls(&world), [before[0] + 1, before[1], before[2], before[3]]);
        }
        assert!(world.is_free("job").await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_during_the_job_makes_one_call() {
    for policy in BOTH {
        let world = Paused::new();
        let Begun::Mine(tick) = world.other().once("job", 7).policy(policy).begin().await.unwrap() else {
            panic!("it is free")
        };
        assert!(world.locks.tick_record("job").await.unwrap().is_running);
        let before = calls(&world);
        let ran = run(&world.locks.once("job", 7).policy(policy)).await;
        match policy {
            TickPolicy::AtMostOnce => assert!(matches!(ran, Ran::Before(Some(run)) if run.end.is_none())),
            _ => assert_eq!(ran, Ran::Busy),
        }
        assert_eq!(calls(&world), [before[0] + 1, before[1], before[2], before[3]]);
        // Another tick has to wait with either policy.
        assert_eq!(run(&world.locks.once("job", 8).policy(policy)).await, Ran::Busy);
        assert_eq!(tick.finish(TickResult::Done).await.unwrap(), GuardState::Released);
        assert!(!world.locks.tick_record("job").await.unwrap().is_running);
        assert_eq!(run(&world.locks.once("job", 8).policy(policy)).await, Ran::Now(()));
        assert_eq!(runs(&world.locks, "job").await, [(7, true), (8, true)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tick_whose_node_dies_runs_again_only_at_least_once() {
    for policy in BOTH {
        let world = Paused::new();
        let once = world.locks.once("job", 7).policy(policy);
        // A death leaves the record and the lease; a drop gives the lease back, and is otherwise the same.
        for death in ["killed", "dropped"] {
            let Begun::Mine(tick) = world.other().once("job", 7).policy(policy).begin().await.unwrap() else {
                panic!("{death}: it is free")
            };
            match death {
                "killed" => std::mem::forget(tick),
                _ => drop(tick),
            }
            settle().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            if policy == TickPolicy::AtMostOnce {
                assert!(matches!(run(&once).await, Ran::Before(Some(run)) if run.end.is_none()));
                break;
            }
            if death == "killed" {
                assert_eq!(run(&once).await, Ran::Busy);
                // A killed process renews nothing; a forgotten guard does.
                world.locks.revoke("job", true).await.unwrap();
            }
        }
        let ran = run(&once).await;
        match policy {
            TickPolicy::AtMostOnce => assert!(matches!(ran, Ran::Before(_))),
            _ => assert_eq!(ran, Ran::Now(())),
        }
        assert_eq!(runs(&world.locks, "job").await, [(7, policy == TickPolicy::AtLeastOnce)]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_start_is_recorded_before_the_job_and_the_end_after_it() {
    for policy in BOTH {
        let world = Paused::new();
        let looks = Cell::new(0);
        let once = world.locks.once("job", 7).policy(policy);
        let ran = once.run(async |tick| {
            assert_eq!((tick.tick(), tick.record().runs.len()), (Tick::from(7), 1));
            assert_eq!(runs(&world.other(), "job").await, [(7, false)]);
            looks.set(looks.get() + 1);
            tokio::time::sleep(ms(1500)).await;
            Err::<(), _>(Error::new(ErrorKind::Internal, "secret text"))
        });
        assert_eq!(ran.await.unwrap_err().message(), "secret text");
        let record = world.locks.tick_record("job").await.unwrap();
        let end = record.runs[0].end.as_ref().unwrap();
        // A job that failed has run; why is nobody's business.
        assert_eq!((end.took, &end.result), (ms(1500), &TickResult::Failed("failed".into())));
        assert!(matches!(run(&once).await, Ran::Before(_)));
        assert_eq!(looks.get(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn no_job_starts_before_the_store_confirms_the_record() {
    let world = Paused::new();
    let started = Cell::new(false);
    let once = world.locks.once("job", 7).ttl(Duration::from_secs(10));
    // The store takes the note, and its answers are lost until the lease has ended.
    world.store.always(Verb::Renew, Act::Never);
    let ran = once.run(async |_| {
        started.set(true);
        Ok::<_, Error>(())
    });
    assert_eq!(ran.await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!started.get());
    // For a while only: it is written again, and the job runs.
    world.store.always(Verb::Renew, Act::Pass);
    tokio::time::sleep(Duration::from_secs(60)).await;
    world
        .store
        .plan(Verb::Renew, [Act::Fail(ErrorKind::Unavailable), Act::LostAfter(ErrorKind::NetworkTimeout)]);
    assert_eq!(run(&world.locks.once("job", 8)).await, Ran::Now(()));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_written_is_an_error_at_least_once() {
    for policy in BOTH {
        let world = Paused::new();
        let once = world.locks.once("job", 7).policy(policy).ttl(Duration::from_secs(10));
        let ran = once.run(async |_| {
            world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
            Ok::<_, Error>(5)
        });
        let ran = ran.await;
        world.store.always(Verb::Renew, Act::Pass);
        match policy {
            TickPolicy::AtMostOnce => assert_eq!(ran.unwrap(), Ran::Now(5)),
            _ => assert_eq!(ran.unwrap_err().kind(), ErrorKind::Lost),
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        let again = run(&once).await;
        assert_eq!(matches!(again, Ran::Now(())), policy == TickPolicy::AtLeastOnce, "{again:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_is_stopped_when_its_lock_is_lost() {
    let world = Paused::new();
    let once = world.locks.once("job", 7).ttl(Duration::from_secs(10));
    let ran = once.run(async |_| {
        world.other().revoke("job", true).await.unwrap();
        std::future::pending::<Result<(), Error>>().await
    });
    assert_eq!(ran.await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(runs(&world.locks, "job").await, [(7, false)]);
}

#[tokio::test(start_paused = true)]
async fn dropped_anywhere_it_leaves_no_lock_behind() {
    for policy in BOTH {
        for polls in 0..60 {
            let world = Paused::new();
            let once = world.locks.once("job", 7).policy(policy);
            let ended = poll_at_most(
                polls,
                once.run(async |_| {
                    tokio::task::yield_now().await;
                    Ok::<_, Error>(())
                }),
            )
            .await
            .is_some();
            settle().await;
            tokio::time::sleep(ms(100)).await;
            assert!(world.is_free("job").await, "{polls}");
            let again = run(&once).await;
            let has_run = matches!(again, Ran::Before(_));
            assert!(has_run || !ended, "{polls}: it has ended, and {again:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ticks_can_come_late_and_old_ones_count_as_done() {
    let world = Paused::new();
    assert_eq!(run(&world.locks.once("job", 9)).await, Ran::Now(()));
    assert_eq!(run(&world.locks.once("job", 8)).await, Ran::Now(()));
    assert!(matches!(run(&world.locks.once("job", 9)).await, Ran::Before(Some(_))));
    for tick in 10..100 {
        assert_eq!(run(&world.locks.once("job", tick)).await, Ran::Now(()));
    }
    for old in [0, 7, 8, 9, 60] {
        assert!(matches!(run(&world.locks.once("job", old)).await, Ran::Before(None)));
    }
    assert!(runs(&world.locks, "job").await.len() >= 8);
}

#[tokio::test(start_paused = true)]
async fn two_that_look_at_one_moment_do_not_both_run() {
    let world = Paused::new();
    // Both have looked, and found the name free, before either takes it.
    let [first, second] = [&world.locks, &world.other()].map(|locks| locks.once("job", 7));
    world.store.plan(Verb::TryAcquire, [Act::SlowBefore(ms(500))]);
    let (first, second) = tokio::join!(run(&first), run(&second));
    assert_eq!(second, Ran::Now(()));
    assert!(matches!(first, Ran::Before(Some(_))), "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_without_notes_says_which_stores_work() {
    let world = Paused::with_info(|info| info.notes = false);
    let once = world.locks.once("job", 7);
    for error in [once.begin().await.map(drop), world.locks.tick_record("job").await.map(drop)] {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("use sqlite:, redis:, postgres:"), "{error}");
    }
    assert_eq!(calls(&world), [0; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_note_is_refused_and_kept() {
    let world = Paused::new();
    let guard = world.locks.mutex("job").lock().await.unwrap();
    guard.release_with_note("10.0.0.7:9000").await.unwrap();
    let error = world.locks.once("job", 7).begin().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert_eq!(&*world.locks.note("job").await.unwrap().unwrap().text, "10.0.0.7:9000");
}

#[test]
fn a_blocking_job_runs_once_too() {
    let locks = leasehold::blocking::Locks::connect("memory:").unwrap();
    for policy in BOTH {
        let name = format!("{policy:?}");
        let once = locks.once(&name, 7).policy(policy).ttl(Duration::from_secs(60));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            once.run(|_| -> Result<(), Error> { panic!("on purpose") })
        }));
        assert!(panicked.is_err());
        testkit::until::until("the lock is given back", || !locks.is_locked(&name).unwrap());
        let ran = once.run(|tick| Ok::<_, Error>((tick.tick(), tick.check().is_ok()))).unwrap();
        match policy {
            TickPolicy::AtMostOnce => assert!(matches!(ran, Ran::Before(Some(_)))),
            _ => assert_eq!(ran, Ran::Now((Tick::from(7), true))),
        }
        let begun = locks.once(&name, 8).policy(policy).begin().unwrap();
        let leasehold::blocking::Begun::Mine(tick) = begun else { panic!("{begun:?}") };
        assert_eq!(tick.finish(TickResult::Failed("why".into())).unwrap(), GuardState::Released);
        let last = locks.tick_record(&name).unwrap().runs.pop().unwrap();
        assert_eq!(last.end.unwrap().result, TickResult::Failed("why".into()));
    }
}
