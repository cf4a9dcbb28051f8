//! Waits that have a limit.

use std::time::Duration;

use leasehold::{ErrorKind, GuardState, Info, Jitter, Mode, PollPolicy};
use testkit::faulty::{Act, Verb};
use testkit::paused::{Paused, settle};

use crate::{HOUR, ms, times};

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_ends_at_its_limit_with_no_attempt_after_it() {
    for push in [true, false] {
        for limit in [1, 7, 100, 999, 3333, 3334, 3335, 10_000, 25_000].map(ms) {
            let world = Paused::with_info(|info| info.push = push);
            let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
            assert!(world.locks.mutex("x").try_lock_for(limit).await.unwrap().is_none());
            assert_eq!(world.elapsed(), limit);
            let error = world.locks.mutex("x").max_wait(limit).lock().await.unwrap_err();
            assert_eq!((error.kind(), error.waited()), (ErrorKind::Timeout, Some(limit)));
            assert_eq!(world.elapsed(), 2 * limit);
            let attempts = world.store.calls(Verb::TryAcquire);
            let second = attempts.iter().position(|call| call.claim().id != attempts[0].claim().id).unwrap();
            for calls in [&attempts[..second], &attempts[second..]] {
                assert!(times(calls).iter().all(|at| *at < limit.as_millis()), "{:?}", times(calls));
            }
            settle().await;
            assert!(world.look("x").await.waiters.is_empty());
        }
    }
}

/// How much longer than its limit a wait may take to find out whether the store is there.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// A world in which another client holds the name, and only the first attempt is answered.
async fn silent_after_one_answer(change: impl FnOnce(&mut Info)) -> Paused {
    let world = Paused::with_info(change);
    world.hold("x", Mode::Exclusive, HOUR).await;
    world.store.always(Verb::TryAcquire, Act::Never);
    world.store.plan(Verb::TryAcquire, [Act::Pass]);
    for verb in [Verb::Wait, Verb::Release, Verb::Other] {
        world.store.always(verb, Act::Never);
    }
    world
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_a_silent_store_is_an_error_and_not_contention() {
    for keeps_places in [true, false] {
        for limit in [1000, 1001, 4000, 9000, 50_000].map(ms) {
            let silent = || silent_after_one_answer(|info| info.keeps_places = keeps_places);
            let world = silent().await;
            let error = world.locks.mutex("x").try_lock_for(limit).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{limit:?}");
            assert!(world.elapsed() <= limit + LAST_LOOK, "{:?}", world.elapsed());
            let world = silent().await;
            let error = world.locks.mutex("x").max_wait(limit).lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{limit:?}");
            assert!(world.elapsed() <= limit + LAST_LOOK, "{:?}", world.elapsed());
        }
    }
    // A call with a shorter limit gets less.
    let world = silent_after_one_answer(|info| info.keeps_places = true).await;
    let mutex = world.locks.mutex("x").request_timeout(ms(300));
    assert_eq!(mutex.try_lock_for(ms(4000)).await.unwrap_err().kind(), ErrorKind::NetworkTimeout);
    assert_eq!(world.elapsed(), ms(4300));
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_any_answer_but_a_store_fault_is_contention() {
    use ErrorKind::{AuthFailed, NetworkTimeout, Overloaded, RateLimited, Unavailable, Unsupported};
    for (act, late, fault) in [
        (Act::Pass, 0, None),
        (Act::Slow(ms(1900)), 1900, None),
        // A token may let its owner take locks and not look at them.
        (Act::Fail(AuthFailed), 0, None),
        (Act::Fail(Unsupported), 0, None),
        (Act::Fail(RateLimited), 0, None),
        (Act::Fail(Unavailable), 0, Some(Unavailable)),
        (Act::Fail(Overloaded), 0, Some(Overloaded)),
        (Act::Fail(NetworkTimeout), 0, Some(NetworkTimeout)),
    ] {
        let world = Paused::with_info(|info| info.keeps_places = true);
        let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
        world.store.always(Verb::Other, act);
        let outcome = world.locks.mutex("x").try_lock_for(ms(3000)).await;
        assert_eq!(outcome.as_ref().err().map(leasehold::Error::kind), fault, "{act:?}");
        assert!(!matches!(outcome, Ok(Some(_))));
        assert_eq!(world.elapsed(), ms(3000 + late), "{act:?}");
        assert_eq!(world.store.count(Verb::Other), 1);
        settle().await;
        assert!(world.look("x").await.waiters.is_empty(), "{act:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_has_just_spoken_is_not_asked_again() {
    for (push, limit) in [(true, 999), (false, 999), (false, 20_000)] {
        let world = Paused::with_info(|info| (info.push, info.keeps_places) = (push, push));
        let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
        world.store.always(Verb::Other, Act::Never);
        assert!(world.locks.mutex("x").try_lock_for(ms(limit)).await.unwrap().is_none());
        assert_eq!((world.store.count(Verb::Other), world.elapsed()), (0, ms(limit)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_without_a_queue_tells_the_store_that_it_leaves() {
    // A server in front of such a store goes on polling for the waiter, and may be granted the lock.
    let world = Paused::with_info(|info| (info.keeps_places, info.fifo) = (true, false));
    let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
    assert!(world.locks.mutex("x").try_lock_for(ms(500)).await.unwrap().is_none());
    settle().await;
    assert_eq!(world.store.count(Verb::Release), 1);
    // One that never waited has nothing to take back.
    assert!(world.locks.mutex("x").try_lock().await.unwrap().is_none());
    settle().await;
    assert_eq!(world.store.count(Verb::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_gets_the_lock_in_the_last_moment() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.end_after(ms(999), holder);
    let guard = world.locks.mutex("x").try_lock_for(ms(1000)).await.unwrap().unwrap();
    assert_eq!((guard.waited(), guard.attempts()), (ms(999), 2));
}

#[tokio::test(start_paused = true)]
async fn no_duration_panics_or_overflows_or_means_something_else() {
    let endless = [
        Duration::MAX,
        Duration::from_secs(u64::MAX),
        Duration::from_nanos(u64::MAX),
        Duration::from_secs(u64::from(u32::MAX) * 1000),
        ms(i32::MAX as u64 + 1),
    ];
    for long in endless {
        let world = Paused::new();
        let holder = world.hold("x", Mode::Exclusive, HOUR).await;
        world.end_after(ms(20_000), holder);
        let mutex = world.locks.mutex("x").request_timeout(long).release_timeout(long);
        let guard = mutex.try_lock_for(long).await.unwrap().unwrap();
        assert_eq!(guard.waited(), ms(20_000));
        assert_eq!(guard.release().await.unwrap(), GuardState::Released);
        let guard = mutex.clone().max_wait(long).max_hold(long).lock().await.unwrap();
        assert_eq!(guard.state(), GuardState::Held);
        tokio::time::sleep(ms(60_000)).await;
        assert_eq!(guard.state(), GuardState::Held);
        drop(guard);

        // Polls that never come are not made at once.
        let world = Paused::with_info(|info| info.push = false);
        let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
        for jitter in [Jitter::None, Jitter::Equal, Jitter::Full] {
            let before = world.store.count(Verb::TryAcquire);
            let mutex = world.locks.mutex("x").poll(PollPolicy::new(long, long).jitter(jitter));
            assert!(mutex.try_lock_for(ms(5)).await.unwrap().is_none());
            assert!(world.store.count(Verb::TryAcquire) <= before + 2);
        }
    }
    // More milliseconds than fit 32 bits, and exactly as long as asked.
    let world = Paused::with_info(|info| (info.push, info.fifo) = (false, false));
    let _holder = world.hold("x", Mode::Exclusive, Duration::from_secs(10_000 * 24 * 3600)).await;
    let days = |days: u64| Duration::from_secs(days * 24 * 3600);
    let mutex = world.locks.mutex("x").poll(PollPolicy::new(days(1), days(1)).jitter(Jitter::None));
    assert!(mutex.try_lock_for(days(60)).await.unwrap().is_none());
    assert_eq!(world.elapsed(), days(60));
    assert_eq!(world.store.count(Verb::TryAcquire), 60);
}

#[tokio::test(start_paused = true)]
async fn n_retries_are_n_plus_1_attempts() {
    for push in [true, false] {
        for retries in [0, 1, 4] {
            let world = Paused::with_info(|info| info.push = push);
            let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
            let mutex = world.locks.mutex("x").max_attempts(retries + 1);
            let error = mutex.lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "contention to the end");
            assert_eq!(world.store.count(Verb::TryAcquire) as u32, retries + 1);
            assert!(mutex.try_lock_for(HOUR).await.unwrap().is_none());
            assert_eq!(world.store.count(Verb::TryAcquire) as u32, 2 * (retries + 1));
            settle().await;
            assert!(world.look("x").await.waiters.is_empty());

            let world = Paused::with_info(|info| info.push = push);
            world.store.always(Verb::TryAcquire, Act::Fail(ErrorKind::RateLimited));
            let error = world.locks.mutex("x").max_attempts(retries + 1).lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::RateLimited, "a fault to the end");
            assert_eq!(world.store.count(Verb::TryAcquire) as u32, retries + 1);
        }
    }
    // The last one counts.
    let world = Paused::new();
    world.store.plan(Verb::TryAcquire, [Act::Fail(ErrorKind::Overloaded), Act::Fail(ErrorKind::Overloaded)]);
    let guard = world.locks.mutex("x").max_attempts(3).lock().await.unwrap();
    assert_eq!(guard.attempts(), 3);
}
