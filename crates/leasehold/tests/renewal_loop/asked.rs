//! Renewals that a caller asked for.

use std::task::{Context, Waker};
use std::time::Duration;

use leasehold::{ErrorKind, Gone, GuardState, LostReason, Mode};
use testkit::faulty::{Act, Verb};
use testkit::paused::{Paused, believed, settle};

use crate::{HOUR, ms};

#[tokio::test(start_paused = true)]
async fn renew_for_moves_the_deadline_only_once_confirmed() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.until(1000).await;
    world.store.plan(Verb::Renew, [Act::Slow(ms(500))]);
    let mut renewing = Box::pin(guard.renew_for(ms(60_000)));
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(renewing.as_mut().poll(cx).is_pending());
    assert_eq!(world.deadline(&guard), believed(30_000));
    renewing.await.unwrap();
    assert_eq!(world.deadline(&guard), ms(1000) + believed(60_000));
    // It never shortens, and automatic renewal goes on.
    guard.renew_for(ms(1000)).await.unwrap();
    assert!(world.deadline(&guard) >= ms(60_000));
    world.until(200_000).await;
    assert_eq!(guard.state(), GuardState::Held);
    for ttl in [Duration::ZERO, ms(49), HOUR * 24 + ms(1), Duration::MAX] {
        let calls = world.store.log().len();
        assert_eq!(guard.renew_for(ttl).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(guard.shorten_to(ttl).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(world.store.log().len(), calls);
    }
    world.store.plan(Verb::Renew, [Act::Gone(Gone::Revoked)]);
    assert_eq!(guard.renew_for(ms(60_000)).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.lost().now(), Some(LostReason::Refused(Gone::Revoked)));
}

#[tokio::test(start_paused = true)]
async fn a_failed_renew_for_is_a_risk_only_until_the_loop_retries() {
    for act in [Act::Fail(ErrorKind::Unavailable), Act::LostAfter(ErrorKind::NetworkTimeout), Act::Never] {
        let world = Paused::new();
        let guard = world.locks.mutex("x").request_timeout(ms(500)).lock().await.unwrap();
        world.until(1000).await;
        world.store.plan(Verb::Renew, [act]);
        assert!(guard.renew_for(ms(40_000)).await.unwrap_err().is_retryable());
        assert_eq!(guard.state(), GuardState::AtRisk);
        assert_eq!(world.deadline(&guard), believed(30_000));
        tokio::time::sleep(ms(1000)).await;
        settle().await;
        assert_eq!(guard.state(), GuardState::Held, "{act:?}");
        assert!(world.deadline(&guard) >= ms(2000) + believed(30_000));
    }
}

#[tokio::test(start_paused = true)]
async fn shorten_to_drops_the_deadline_before_it_is_sent() {
    for act in [Act::Never, Act::Pass, Act::Fail(ErrorKind::Unavailable)] {
        let world = Paused::new();
        let guard = world.locks.mutex("x").lock().await.unwrap();
        world.until(1000).await;
        world.store.plan(Verb::Renew, [act]);
        world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
        let mut shortening = Box::pin(guard.shorten_to(ms(3000)));
        let ready = shortening.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(ready.is_pending(), act == Act::Never);
        drop(shortening);
        assert_eq!(world.deadline(&guard), ms(1000) + believed(3000));
        let call = world.store.calls(Verb::Renew).pop().unwrap();
        assert_eq!((call.renewals()[0].shorten, call.renewals()[0].ttl), (Some(0), ms(3000)));
        let left = world.look("x").await.holders[0].grant.left.unwrap();
        assert_eq!(left, if act == Act::Pass { ms(3000) } else { ms(29_000) });
        assert_eq!(guard.lost().await, LostReason::DeadlinePassed);
        assert_eq!(world.elapsed(), ms(1000) + believed(3000));
    }
}

#[tokio::test(start_paused = true)]
async fn a_shortened_lease_is_renewed_for_no_longer_from_there_on() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.until(11_000).await;
    guard.shorten_to(ms(3000)).await.unwrap();
    assert_eq!(world.look("x").await.holders[0].grant.left, Some(ms(3000)));
    world.until(15_500).await;
    assert_eq!(world.times(Verb::Renew), [10_000, 11_000, 12_000, 13_000, 14_000, 15_000]);
    assert!(world.store.calls(Verb::Renew)[2..].iter().all(|call| call.renewals()[0].ttl == ms(3000)));
    assert_eq!(guard.state(), GuardState::Held);
    assert_eq!(world.deadline(&guard), ms(15_000) + believed(3000));
}

#[tokio::test(start_paused = true)]
async fn an_earlier_renewal_never_raises_a_shortened_deadline() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    // Sent at 10 s, but it reaches the store only at 12 s.
    world.store.plan(Verb::Renew, [Act::SlowBefore(ms(2000)), Act::Pass]);
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    world.until(11_000).await;
    guard.shorten_to(ms(3000)).await.unwrap();
    assert_eq!(world.deadline(&guard), ms(11_000) + believed(3000));
    world.until(12_100).await;
    assert_eq!(world.store.calls(Verb::Renew)[0].grants().len(), 1, "it was answered");
    assert_eq!(world.deadline(&guard), ms(11_000) + believed(3000));
    assert_eq!(guard.lost().await, LostReason::DeadlinePassed);
    assert_eq!(world.elapsed(), ms(11_000) + believed(3000));
}

#[tokio::test(start_paused = true)]
async fn answers_out_of_order_do_not_make_a_shortening_miss() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.until(9500).await;
    // The first renewal's answer comes after the second's.
    world.store.plan(Verb::Renew, [Act::Slow(ms(1000))]);
    guard.renew_for(ms(30_000)).await.unwrap();
    assert_eq!(world.times(Verb::Renew), [9500, 10_000]);
    guard.shorten_to(ms(3000)).await.unwrap();
    assert_eq!(world.look("x").await.holders[0].grant.left, Some(ms(3000)), "the store has followed");
    assert_eq!(world.deadline(&guard), ms(10_500) + believed(3000));
}

#[tokio::test(start_paused = true)]
async fn downgrade_makes_it_shared_at_once_whatever_the_store_says() {
    for act in
        [Act::Pass, Act::Never, Act::Fail(ErrorKind::Unavailable), Act::LostAfter(ErrorKind::Unavailable)]
    {
        let world = Paused::new();
        let lock = world.locks.rwlock("x");
        let guard = lock.write().await.unwrap();
        world.store.plan(Verb::Renew, [act]);
        let mut downgrading = Box::pin(guard.downgrade());
        let _ = downgrading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(guard.mode(), Mode::Shared);
        drop(downgrading);
        assert_eq!(guard.mode(), Mode::Shared);
        world.until(60_000).await;
        assert_eq!((guard.mode(), guard.state()), (Mode::Shared, GuardState::Held), "{act:?}");
        guard.downgrade().await.unwrap();
        assert!(lock.try_read().await.unwrap().is_some(), "{act:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_that_failed_can_be_asked_for_again() {
    let world = Paused::new();
    let guard = world.locks.rwlock("x").write().await.unwrap();
    world.store.plan(Verb::Renew, [Act::Fail(ErrorKind::Unavailable)]);
    assert_eq!(guard.downgrade().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(world.look("x").await.holders[0].grant.mode, Mode::Exclusive);
    guard.downgrade().await.unwrap();
    assert_eq!(world.look("x").await.holders[0].grant.mode, Mode::Shared, "if it says so, it is so");
    let calls = world.store.count(Verb::Renew);
    guard.downgrade().await.unwrap();
    assert_eq!(world.store.count(Verb::Renew), calls, "a shared guard has nothing to ask");
    assert_eq!(guard.release().await.unwrap(), GuardState::Released);

    let permit = world.locks.semaphore("y", 2).acquire().await.unwrap();
    assert_eq!(permit.downgrade().await.unwrap_err().kind(), ErrorKind::Mismatch);
    let world = Paused::with_info(|info| info.downgrade = false);
    let guard = world.locks.rwlock("x").write().await.unwrap();
    assert_eq!(guard.downgrade().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(guard.mode(), Mode::Exclusive);
}
