//! Grants that come too late.

use std::time::Duration;

use leasehold::{ErrorKind, Mode};
use testkit::faulty::{Act, Verb};
use testkit::paused::{Paused, poll_at_most, settle};

use crate::{HOUR, ms};

#[tokio::test(start_paused = true)]
async fn a_grant_that_arrives_past_its_deadline_is_given_back() {
    for delay in [98, 100, 150] {
        for act in [Act::Slow(ms(delay))] {
            let world = Paused::new();
            let mutex = world.locks.mutex("x").ttl(ms(100));
            world.store.plan(Verb::TryAcquire, [act]);
            let error = mutex.try_lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkTimeout);
            settle().await;
            let releases = world.store.calls(Verb::Release);
            assert_eq!(releases.len(), 1);
            assert_eq!(releases[0].release().unanswered, None, "it was answered");
            assert!(world.is_free("x").await);

            // An acquire that waits measures it again, once, with the same id.
            let world = Paused::new();
            let mutex = world.locks.mutex("x").ttl(ms(100));
            world.store.plan(Verb::TryAcquire, [act]);
            let guard = mutex.lock().await.unwrap();
            if delay < 100 {
                // The lease is still there, with too little left: a new id.
                assert_eq!(guard.attempts(), 3);
            } else {
                assert_eq!(guard.attempts(), 2);
            }
            assert!(guard.valid_for().unwrap() > ms(90));
            let info = world.look("x").await;
            assert_eq!(info.holders.len(), 1);
            assert_eq!(info.holders[0].id, guard.lease_id());
        }
    }
    // A grant that is just in time is in time.
    let world = Paused::new();
    world.store.plan(Verb::TryAcquire, [Act::Slow(ms(96))]);
    let guard = world.locks.mutex("x").ttl(ms(100)).try_lock().await.unwrap().unwrap();
    assert_eq!(guard.valid_for(), Some(ms(1)));
}

#[tokio::test(start_paused = true)]
async fn a_store_always_too_slow_for_the_ttl_is_reported_in_the_end() {
    let world = Paused::new();
    world.store.always(Verb::TryAcquire, Act::Slow(ms(150)));
    let lock = world.locks.mutex("x").ttl(ms(100));
    let result = tokio::time::timeout(ms(60_000), lock.lock()).await;
    assert_eq!(result.expect("it is not tried for ever").unwrap_err().kind(), ErrorKind::NetworkTimeout);
    settle().await;
    assert!(world.is_free("x").await);
}

#[tokio::test(start_paused = true)]
async fn a_grant_below_minimum_validity_is_repeated_then_given_back() {
    // The store's own minimum, and one that was asked for.
    for asked in [None, Some(90)] {
        let world = Paused::with_info(|info| {
            if asked.is_none() {
                info.min_validity_percent = 90;
            }
        });
        let mut mutex = world.locks.mutex("x").ttl(ms(1000));
        if let Some(percent) = asked {
            mutex = mutex.min_validity_percent(percent);
        }
        world.store.plan(Verb::TryAcquire, [Act::Slow(ms(150))]);
        let guard = mutex.lock().await.unwrap();
        let attempts = world.store.calls(Verb::TryAcquire);
        let ids: Vec<_> = attempts.iter().map(|call| call.claim().id).collect();
        assert_eq!((ids.len(), ids[0]), (3, ids[1]));
        assert_ne!(ids[1], ids[2]);
        assert!(attempts.iter().all(|call| !call.claim().repeat), "every one was answered");
        assert_eq!((guard.lease_id(), guard.attempts()), (ids[2], 3));
        let releases = world.store.calls(Verb::Release);
        assert_eq!((releases.len(), releases[0].release().id), (1, ids[0]));

        // A single attempt is not measured again.
        let other = world.locks.mutex("y").ttl(ms(1000)).min_validity_percent(90);
        world.store.plan(Verb::TryAcquire, [Act::Slow(ms(150))]);
        assert_eq!(other.try_lock().await.unwrap_err().kind(), ErrorKind::NetworkTimeout);
        assert_eq!(world.store.count(Verb::TryAcquire), 4);
        settle().await;
        assert!(world.is_free("y").await);
    }
    // 89 ms of 1000 are not 90.
    let world = Paused::new();
    world.store.plan(Verb::TryAcquire, [Act::Slow(ms(88))]);
    let mutex = world.locks.mutex("x").ttl(ms(1000)).min_validity_percent(90);
    assert_eq!(mutex.lock().await.unwrap().attempts(), 1);
}

#[tokio::test(start_paused = true)]
async fn waiting_that_ate_the_minimum_validity_repeats_the_claim_once() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    // A store that waits itself and does not say for how long.
    world.store.on_grant(|grant| grant.waited = Duration::ZERO);
    world.end_after(ms(3000), holder);
    let mutex = world.locks.mutex("x").ttl(ms(10_000)).min_validity_percent(90);
    let guard = mutex.lock().await.unwrap();
    let attempts = world.store.calls(Verb::TryAcquire);
    assert_eq!(attempts.len(), 2);
    assert_eq!(attempts[0].claim().id, attempts[1].claim().id);
    assert_eq!(guard.waited(), ms(3000));
    assert_eq!(guard.attempts(), 3);
    assert_eq!(guard.valid_for(), Some(ms(9898)));
    assert_eq!(world.store.count(Verb::Release), 0);
}

#[tokio::test(start_paused = true)]
async fn no_claim_is_repeated_after_the_limit() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.store.on_grant(|grant| grant.waited = Duration::ZERO);
    let mutex = world.locks.mutex("x").ttl(ms(10_000)).min_validity_percent(90);
    let mut acquire = Box::pin(mutex.try_lock_for(ms(3000)));
    assert!(poll_at_most(1, acquire.as_mut()).await.is_none());
    // It is woken with a grant at the very moment at which its time is over.
    tokio::time::advance(ms(3000)).await;
    world.end(&holder).await;
    let result = acquire.await;
    assert_eq!(world.store.count(Verb::TryAcquire), 1);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::NetworkTimeout);
    settle().await;
    assert!(world.is_free("x").await);
}

#[tokio::test(start_paused = true)]
async fn a_late_waiter_never_trusts_a_grant_longer_than_the_store() {
    for slow in [0, 10, 250, 290, 350] {
        let world = Paused::new();
        let holder = world.hold("x", Mode::Exclusive, HOUR).await;
        // It is in the queue, but does not know it yet; meanwhile its turn comes.
        world.store.plan(Verb::TryAcquire, [Act::Slow(ms(slow))]);
        world.end_after(Duration::ZERO, holder);
        let guard = world.locks.mutex("x").ttl(ms(300)).lock().await.unwrap();
        let info = world.look("x").await;
        assert_eq!(info.holders[0].id, guard.lease_id());
        let (left, believed) = (info.holders[0].grant.left.unwrap(), guard.valid_for().unwrap());
        assert!(believed < left, "{slow}: the store keeps it for {left:?}, the guard believes {believed:?}");
    }
}
