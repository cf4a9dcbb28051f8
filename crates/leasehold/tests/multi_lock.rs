//! Several names at once: all or nothing, in one order, lost and released together.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::backends::memory::Memory;
use leasehold::{Error, ErrorKind, Gone, GuardState, Locks, LostReason, Mode, MultiGuard, MultiLock};
use testkit::faulty::{Act, Faulty, Verb};
use testkit::hand::Hand;
use testkit::paused::{Paused, poll_at_most, settle, tasks};

const HOUR: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A store whose clock, and the client's, moves by 500 ms during these attempts, as when the process is stopped.
fn with_slow_calls(ttl: u64, slow: std::ops::RangeInclusive<usize>) -> (Faulty, Locks) {
    let clock = Hand::default();
    let store = Faulty::new(Memory::with_clock(Arc::new(clock.clone())), Arc::new(clock.clone()));
    let builder = Locks::builder(Arc::new(store.clone())).clock(Arc::new(clock.clone()));
    let locks = builder.runtime(tokio::runtime::Handle::current()).ttl(ms(ttl)).build();
    let mut calls = 0;
    store.script(Verb::TryAcquire, move |_| {
        calls += 1;
        if slow.contains(&calls) {
            clock.advance(ms(500));
        }
        Act::Pass
    });
    (store, locks)
}

/// Whether no client holds or waits for any of the names.
async fn all_free(world: &Paused, names: &[&str]) -> bool {
    settle().await;
    for name in names {
        if !world.is_free(name).await {
            return false;
        }
    }
    true
}

#[tokio::test(start_paused = true)]
async fn all_names_are_held_and_released_together() {
    let world = Paused::new();
    let guard = world.locks.all(["b", "a"]).also("c").lock().await.unwrap();
    let names: Vec<_> = guard.guards().iter().map(|guard| guard.name().as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    for name in ["a", "b", "c"] {
        assert!(world.other().mutex(name).try_lock().await.unwrap().is_none());
        let fence = world.look(name).await.holders[0].grant.fence;
        assert_eq!(guard.fence(name), Some(fence));
    }
    assert_eq!((guard.fence("d"), guard.state()), (None, GuardState::Held));
    tokio::time::sleep(HOUR).await;
    guard.check().unwrap();
    assert_eq!(guard.release().await.unwrap(), GuardState::Released);
    assert!(all_free(&world, &["a", "b", "c"]).await);

    drop(world.locks.all(["a", "b"]).lock().await.unwrap());
    assert!(all_free(&world, &["a", "b"]).await);
    let guards = world.locks.all(["a", "b"]).lock().await.unwrap().into_guards();
    assert_eq!(guards.len(), 2);
    assert!(guards.iter().all(|guard| guard.state() == GuardState::Held));
}

#[tokio::test(start_paused = true)]
async fn one_name_that_is_held_means_none_is_held() {
    let world = Paused::new();
    let held = world.hold("b", Mode::Exclusive, HOUR).await;
    let lock = world.locks.all(["a", "b", "c"]);
    assert!(lock.try_lock().await.unwrap().is_none());
    assert_eq!(world.store.count(Verb::TryAcquire), 2, "it does not ask for c");
    assert!(all_free(&world, &["a", "c"]).await);
    assert!(lock.try_lock_for(ms(500)).await.unwrap().is_none());
    assert_eq!(world.elapsed(), ms(500));
    assert!(all_free(&world, &["a", "c"]).await);
    let error = lock.clone().max_wait(ms(700)).lock().await.unwrap_err();
    assert_eq!((error.kind(), error.waited()), (ErrorKind::Timeout, Some(ms(700))));
    assert_eq!(error.name().unwrap().as_str(), "b", "the name that was missing");
    assert!(all_free(&world, &["a", "c"]).await);
    world.end(&held).await;
    assert!(lock.try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn time_limit_counts_for_all_names_together() {
    let world = Paused::new();
    let first = world.hold("a", Mode::Exclusive, HOUR).await;
    world.end_after(ms(300), first);
    let held = world.hold("b", Mode::Exclusive, HOUR).await;
    let lock = world.locks.all(["a", "b"]);
    assert!(lock.try_lock_for(ms(500)).await.unwrap().is_none());
    assert_eq!(world.elapsed(), ms(500));
    let error = lock.clone().max_wait(ms(500)).lock().await.unwrap_err();
    assert_eq!((error.waited(), world.elapsed()), (Some(ms(500)), ms(1_000)));
    world.end(&held).await;
    assert!(all_free(&world, &["a", "b"]).await);
}

#[tokio::test(start_paused = true)]
async fn no_name_is_asked_for_when_the_time_is_over() {
    let (store, locks) = with_slow_calls(10_000, 1..=1);
    assert!(locks.all(["a", "b"]).try_lock_for(ms(500)).await.unwrap().is_none());
    assert_eq!(store.count(Verb::TryAcquire), 1);
    settle().await;
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some(), "it was given back");
}

#[tokio::test(start_paused = true)]
async fn three_names_cost_three_calls() {
    let world = Paused::new();
    let guard = world.locks.all(["a", "b", "c"]).lock().await.unwrap();
    assert_eq!(world.store.log().len(), 3);
    guard.release().await.unwrap();
    assert_eq!(world.store.log().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn what_is_held_is_renewed_while_the_rest_is_waited_for() {
    let world = Paused::new();
    let held = world.hold("b", Mode::Exclusive, HOUR).await;
    world.end_after(ms(20_000), held);
    let waiting = tokio::spawn({
        let lock = world.locks.all(["a", "b"]).ttl(ms(3_000));
        async move { lock.lock().await }
    });
    while !waiting.is_finished() {
        settle().await;
        assert_eq!(world.look("a").await.holders.len(), 1);
        tokio::time::sleep(ms(200)).await;
    }
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.waited() >= ms(20_000) && guard.waited() < ms(21_000), "{:?}", guard.waited());
    assert_eq!(guard.guard("a").unwrap().attempts(), 1, "it was not given back meanwhile");
    guard.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_lost_while_waiting_is_taken_anew() {
    let world = Paused::new();
    let held = world.hold("b", Mode::Exclusive, HOUR).await;
    let waiting = tokio::spawn({
        let lock = world.locks.all(["a", "b"]).ttl(ms(3_000));
        async move { lock.lock().await }
    });
    world.until(500).await;
    let first = world.look("a").await.holders[0].grant.fence;
    let other = world.other();
    other.revoke("a", true).await.unwrap();
    let between = other.mutex("a").try_lock().await.unwrap().unwrap();
    // The next renewal says that it is gone.
    world.until(1_500).await;
    assert_eq!(world.look("b").await.queue_length, 0, "it has left the queue of b");
    world.end(&held).await;
    world.until(5_000).await;
    assert!(!waiting.is_finished(), "b alone is not enough");
    assert_eq!(world.look("b").await.holders.len(), 0, "b is not held without a");
    between.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.fence("a").unwrap() > first);
    guard.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_lost_in_the_last_step_is_taken_anew() {
    let (store, locks) = with_slow_calls(1_000, 2..=3);
    let guard = locks.all(["a", "b", "c"]).lock().await.unwrap();
    guard.check().unwrap();
    assert_eq!(store.count(Verb::TryAcquire), 6);
}

#[tokio::test(start_paused = true)]
async fn one_lost_lease_loses_all() {
    let world = Paused::new();
    let guard = world.locks.all(["a", "b"]).ttl(ms(3_000)).lock().await.unwrap();
    let (lost, ended) = (guard.lost(), Arc::new(AtomicUsize::new(0)));
    assert_eq!(lost.now(), None);
    world.other().revoke("b", true).await.unwrap();
    let work = {
        let ended = Arc::clone(&ended);
        async move {
            tokio::time::sleep(HOUR).await;
            ended.fetch_add(1, Ordering::SeqCst);
        }
    };
    let error = guard.run(work).await.unwrap_err();
    assert_eq!((error.kind(), error.name().unwrap().as_str()), (ErrorKind::Lost, "b"));
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    assert!(world.elapsed() <= ms(3_000));
    assert!(matches!(lost.now(), Some(LostReason::Refused(_))));
    assert!(matches!(lost.await, LostReason::Refused(_)));
    assert_eq!((guard.state(), guard.valid_for()), (GuardState::Lost, Some(Duration::ZERO)));
    guard.check().unwrap_err();
    guard.guard("a").unwrap().check().unwrap();
    assert_eq!(guard.release().await.unwrap(), GuardState::Lost);
    assert!(all_free(&world, &["a", "b"]).await);
}

#[tokio::test(start_paused = true)]
async fn its_deadline_is_the_earliest() {
    let world = Paused::new();
    let held = world.hold("b", Mode::Exclusive, HOUR).await;
    world.end_after(ms(300), held);
    let guard = world.locks.all(["a", "b"]).ttl(ms(3_000)).lock().await.unwrap();
    let (a, b) = (guard.guard("a").unwrap().valid_for(), guard.guard("b").unwrap().valid_for());
    assert!(a < b, "{a:?} {b:?}");
    assert_eq!(guard.valid_for(), a);
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    tokio::time::sleep(ms(2_000)).await;
    assert_eq!(guard.state(), GuardState::AtRisk);
    guard.lost().await;
    assert!(world.elapsed() < ms(3_000), "{:?}", world.elapsed());
}

#[tokio::test(start_paused = true)]
async fn max_hold_counts_from_the_moment_all_are_held() {
    let world = Paused::new();
    let held = world.hold("b", Mode::Exclusive, HOUR).await;
    world.end_after(ms(20_000), held);
    let guard = world.locks.all(["a", "b"]).ttl(ms(3_000)).max_hold(ms(8_000)).lock().await.unwrap();
    let began = world.elapsed();
    assert!(began >= ms(20_000), "{began:?}");
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    // The last renewal asks for what is left, less the margin for clocks.
    let held = world.elapsed() - began;
    assert!(held > ms(7_900) && held <= ms(8_000), "{held:?}");
    // Nothing renews it any more.
    tokio::time::sleep(ms(3_100)).await;
    assert!(all_free(&world, &["a", "b"]).await);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_falls_silent_is_not_contention() {
    let silent = |world: &Paused| {
        for verb in [Verb::TryAcquire, Verb::Wait, Verb::Renew, Verb::Other] {
            world.store.always(verb, Act::Never);
        }
    };
    // The lease on a ends before the attempt for b is given up.
    let world = Paused::new();
    world.store.plan(Verb::TryAcquire, [Act::Pass]);
    silent(&world);
    let error = world.locks.all(["a", "b"]).ttl(ms(3_000)).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{error}");

    // It ends during the last look, which is made at the limit.
    let world = Paused::new();
    let _held = world.hold("b", Mode::Exclusive, HOUR).await;
    let waiting = tokio::spawn({
        let lock = world.locks.all(["a", "b"]).ttl(ms(3_000));
        async move { lock.try_lock_for(ms(2_000)).await }
    });
    world.until(100).await;
    silent(&world);
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_is_not_a_fault() {
    // The limit comes in the middle of the attempt for c, or just before it.
    for slow in [40, 50] {
        let world = Paused::new();
        world.store.always(Verb::TryAcquire, Act::Slow(ms(slow)));
        assert!(world.locks.all(["a", "b", "c"]).try_lock_for(ms(100)).await.unwrap().is_none());
        assert_eq!(world.elapsed(), ms(100));
        world.until(200).await;
        assert!(all_free(&world, &["a", "b", "c"]).await);
    }
}

#[tokio::test(start_paused = true)]
async fn leases_last_no_longer_than_max_hold() {
    let world = Paused::new();
    let lock = world.locks.all(["a", "b"]).ttl(HOUR).max_hold(ms(8_000));
    let _guard = lock.lock().await.unwrap();
    let attempts = world.store.calls(Verb::TryAcquire);
    assert!(attempts.iter().all(|call| call.claim().ttl == ms(8_000)), "{attempts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fault_does_not_hide_a_loss_at_the_release() {
    let world = Paused::new();
    let guard = world.locks.all(["a", "b"]).lock().await.unwrap();
    world.store.script(Verb::Release, |call| match call.release().name.as_str() {
        "a" => Act::Fail(ErrorKind::Unavailable),
        _ => Act::Gone(Gone::NotFound),
    });
    assert_eq!(guard.release().await.unwrap(), GuardState::Lost);
}

#[test]
fn close_waits_for_what_an_aborted_list_gives_back() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Memory::new();
        let looking = Locks::new(store.clone());
        let _held = looking.mutex("z").lock().await.unwrap();
        for _ in 0..500 {
            let locks = Locks::new(store.clone());
            let waiting = tokio::spawn({
                let lock = locks.all(["a", "b", "c", "d", "e", "z"]);
                async move { lock.lock().await }
            });
            let queued = async || looking.inspect("z").await.unwrap().queue_length > 0;
            while !queued().await {
                tokio::task::yield_now().await;
            }
            locks.close().await;
            for name in ["a", "b", "c", "d", "e"] {
                assert!(looking.inspect(name).await.unwrap().holders.is_empty(), "{name} is left");
            }
            waiting.await.unwrap().unwrap_err();
        }
    });
}

#[tokio::test(start_paused = true)]
async fn readers_and_permits_take_part() {
    let world = Paused::new();
    let lock = world.locks.all(["x"]).also_read("rates").also_permit("slots", 2);
    let first = lock.lock().await.unwrap();
    let second = world.other().all(["y"]).also_read("rates").also_permit("slots", 2);
    let second = second.try_lock().await.unwrap().unwrap();
    let third = world.locks.all(["z"]).also_permit("slots", 2);
    assert!(third.try_lock().await.unwrap().is_none());
    drop(first);
    assert!(all_free(&world, &["x", "z"]).await);
    assert!(third.try_lock().await.unwrap().is_some());
    assert_eq!(second.guard("rates").unwrap().mode(), Mode::Shared);
}

#[tokio::test(start_paused = true)]
async fn a_bad_list_is_refused_before_any_call() {
    let world = Paused::new();
    let none = world.locks.all(Vec::<String>::new());
    let cases: [(MultiLock, &str); 6] = [
        (none, "is empty"),
        (world.locks.all(["a", ""]), "must not be empty"),
        (world.locks.all(["a"]).also_permit("b", 0), "at least 1"),
        (world.locks.all(["a"]).also_read("a"), "one name in two modes"),
        (world.locks.all(["a"]).also_permit("b", 2).also_permit("b", 2), "two permits of one semaphore"),
        (world.locks.all(["a"]).max_hold(ms(1)), "max_hold"),
    ];
    for (lock, says) in cases {
        for result in [lock.try_lock().await, lock.lock().await.map(Some)] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
    assert!(world.store.log().is_empty());
    // The same name twice is one name, in either of its spellings.
    let twice = world.locks.all(["\u{e9}", "e\u{301}", "\u{e9}"]).also_read("r").also_read("r");
    assert_eq!(twice.try_lock().await.unwrap().unwrap().guards().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn with_lock_releases_and_tells_of_a_loss_in_the_last_step() {
    let clock = Hand::default();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let builder = Locks::builder(Arc::new(memory)).clock(Arc::new(clock.clone()));
    let locks = builder.runtime(tokio::runtime::Handle::current()).ttl(ms(1_000)).build();
    let lock = locks.all(["a", "b"]);
    let held = lock.with_lock(async |guard| Ok::<_, Error>(guard.guards().len())).await.unwrap();
    assert_eq!(held, 2);
    // The work blocks its thread for a whole ttl, as a stopped process would, and then ends well.
    let late = async |_: &MultiGuard| {
        clock.advance(ms(1_000));
        Ok::<_, Error>(())
    };
    assert_eq!(lock.with_lock(late).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(lock.try_lock().await.unwrap().is_some(), "all names were released");
}

/// Drops an acquire of three names at each of its polls, in several situations.
#[tokio::test(start_paused = true)]
async fn dropped_anywhere_it_leaves_nothing() {
    let lost = Act::LostAfter(ErrorKind::NetworkTimeout);
    let scenes: [(&str, Vec<Act>); 4] = [
        ("", vec![]),
        ("", vec![Act::Pass, Act::Slow(ms(30)), lost]),
        ("b", vec![Act::Pass, Act::Slow(ms(30))]),
        ("c", vec![Act::SlowBefore(ms(30)), lost, Act::Pass, Act::Slow(ms(30))]),
    ];
    for (busy, attempts) in scenes {
        for polls in 0.. {
            assert!(polls < 200, "it does not end");
            let base = tasks();
            let world = Paused::with(|_| {}, |builder| builder.request_timeout(ms(80)));
            if !busy.is_empty() {
                let holder = world.hold(busy, Mode::Exclusive, HOUR).await;
                world.end_after(ms(250), holder);
            }
            world.store.plan(Verb::TryAcquire, attempts.clone());
            let acquire = async {
                drop(world.locks.all(["a", "b", "c"]).lock().await.unwrap());
            };
            let done = poll_at_most(polls, acquire).await.is_some();
            tokio::time::sleep(ms(1_000)).await;
            assert!(all_free(&world, &["a", "b", "c"]).await, "{busy} {attempts:?} after {polls} polls");
            drop(world);
            settle().await;
            assert_eq!(tasks(), base, "a task is left after {polls} polls");
            if done {
                break;
            }
        }
    }
}

/// Every pair of these lists shares a name, and they list their names in different orders.
#[test]
fn lists_in_any_order_never_wait_in_a_circle() {
    let lists = [["a", "b", "c"], ["c", "b", "a"], ["b", "d", "a"], ["d", "c", "b"]];
    let locks = Locks::new(Memory::new());
    let inside: Arc<[AtomicUsize; 4]> = Arc::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let rounds = lists.map(|names| {
        let (locks, inside) = (locks.clone(), Arc::clone(&inside));
        runtime.spawn(async move {
            for _ in 0..300 {
                let guard = locks.all(names).lock().await.unwrap();
                for name in names {
                    let place = &inside[usize::from(name.as_bytes()[0] - b'a')];
                    assert_eq!(place.fetch_add(1, Ordering::SeqCst), 0, "two hold {name}");
                }
                tokio::task::yield_now().await;
                for name in names {
                    inside[usize::from(name.as_bytes()[0] - b'a')].fetch_sub(1, Ordering::SeqCst);
                }
                guard.release().await.unwrap();
            }
        })
    });
    runtime.block_on(testkit::until::in_time("all lists had their turns", async {
        for round in rounds {
            round.await.unwrap();
        }
    }));
}

#[test]
fn blocking_callers_have_the_same() {
    let locks = leasehold::blocking::Locks::from(Locks::new(Memory::new()));
    let guard = locks.all(["b", "a"]).also_read("r").also_permit("p", 2).lock().unwrap();
    assert_eq!(guard.state(), GuardState::Held);
    assert!(guard.fence("a").is_some() && guard.valid_for().is_some() && guard.lost().now().is_none());
    guard.check().unwrap();
    assert!(locks.all(["a", "z"]).try_lock().unwrap().is_none());
    assert!(locks.all(["a", "z"]).try_lock_for(ms(20)).unwrap().is_none());
    assert_eq!(guard.release().unwrap(), GuardState::Released);
    let count = locks.all(["a", "z"]).with_lock(|guard| Ok::<_, Error>(guard.waited().as_secs())).unwrap();
    assert_eq!(count, 0);
    assert_eq!(locks.all(["a"]).lock().unwrap().into_guards().len(), 1);
}
