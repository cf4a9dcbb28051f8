//! Waits that have a limit.

use std::time::Duration;

use leasehold::{ErrorKind, Jitter, Mode, Poll, State};
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
        assert_eq!(guard.release().await.unwrap(), State::Released);
        let guard = mutex.clone().max_wait(long).max_hold(long).lock().await.unwrap();
        assert_eq!(guard.state(), State::Held);
        tokio::time::sleep(ms(60_000)).await;
        assert_eq!(guard.state(), State::Held);
        drop(guard);

        // Polls that never come are not attempts at once.
        let world = Paused::with_info(|info| info.push = false);
        let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
        for jitter in [Jitter::None, Jitter::Equal, Jitter::Full] {
            let before = world.store.count(Verb::TryAcquire);
            let mutex = world.locks.mutex("x").poll(Poll::new(long, long).jitter(jitter));
            assert!(mutex.try_lock_for(ms(5)).await.unwrap().is_none());
            assert!(world.store.count(Verb::TryAcquire) <= before + 2);
        }
    }
    // More milliseconds than fit 32 bits, and exactly as long as asked.
    let world = Paused::with_info(|info| (info.push, info.fifo) = (false, false));
    let _holder = world.hold("x", Mode::Exclusive, Duration::from_secs(10_000 * 24 * 3600)).await;
    let days = |days: u64| Duration::from_secs(days * 24 * 3600);
    let mutex = world.locks.mutex("x").poll(Poll::new(days(1), days(1)).jitter(Jitter::None));
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
    world.store.plan(Verb::TryAcquire, [Act::Fail(ErrorKind::Busy), Act::Fail(ErrorKind::Busy)]);
    let guard = world.locks.mutex("x").max_attempts(3).lock().await.unwrap();
    assert_eq!(guard.attempts(), 3);
}
