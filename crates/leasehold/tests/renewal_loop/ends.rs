//! Leases whose end is known in advance.

use leasehold::{ErrorKind, GuardState, LostReason, Mode};
use testkit::faulty::{Act, Verb};
use testkit::paused::{Paused, believed};

use crate::{HOUR, ms};

#[tokio::test(start_paused = true)]
async fn max_hold_ends_the_renewals_so_that_the_lease_is_lost_by_then() {
    for (ttl, hold) in
        [(30_000, 70_000), (30_000, 30_000), (30_000, 10_000), (30_000, 31_000), (3000, 50_000)]
    {
        let world = Paused::new();
        let mutex = world.locks.mutex("x").ttl(ms(ttl)).max_hold(ms(hold));
        let guard = mutex.lock().await.unwrap();
        let reason = guard.lost().await;
        let end = world.elapsed();
        assert_eq!(reason, LostReason::MaxHold, "{ttl} {hold}");
        assert!(end <= ms(hold) && end >= ms(hold) - ms(ttl) / 100 - ms(2), "{ttl} {hold}: {end:?}");
        // The store lets it go by then as well.
        world.until(hold).await;
        assert!(world.is_free("x").await);
        assert!(world.times(Verb::Renew).iter().all(|at| *at <= u128::from(hold)));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_reaches_past_max_hold() {
    // A renewal that was asked for.
    let world = Paused::new();
    let guard = world.locks.mutex("x").ttl(ms(3000)).max_hold(ms(10_000)).lock().await.unwrap();
    world.until(1500).await;
    guard.renew_for(ms(60_000)).await.unwrap();
    assert!(world.deadline(&guard) <= ms(10_000), "{:?}", world.deadline(&guard));
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    world.until(10_001).await;
    assert!(world.is_free("x").await);

    // A downgrade.
    let world = Paused::new();
    let guard = world.locks.rwlock("x").ttl(ms(9000)).max_hold(ms(10_000)).write().await.unwrap();
    world.until(8000).await;
    guard.downgrade().await.unwrap();
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    assert!(world.elapsed() <= ms(10_000), "{:?}", world.elapsed());

    // A lease that was adopted.
    let world = Paused::with(|_| {}, |builder| builder.max_hold(ms(10_000)));
    let lease = world.other().mutex("x").lock().await.unwrap().into_lease();
    let guard = world.locks.adopt(lease).await.unwrap();
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    assert!(world.elapsed() <= ms(10_000), "{:?}", world.elapsed());
}

#[tokio::test(start_paused = true)]
async fn max_hold_counts_from_the_grant_not_from_the_wait() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.end_after(ms(3000), holder);
    let guard = world.locks.mutex("x").ttl(ms(1000)).max_hold(ms(2000)).lock().await.unwrap();
    assert_eq!(guard.waited(), ms(3000));
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    assert!(world.elapsed() > ms(4900) && world.elapsed() <= ms(5000), "{:?}", world.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_before_max_hold_says_so() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").max_hold(ms(45_000)).lock().await.unwrap();
    world.store.plan(Verb::Renew, [Act::Pass]);
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    assert_eq!(guard.lost().await, LostReason::DeadlinePassed);
    assert_eq!(world.elapsed(), ms(10_000) + believed(30_000));
}

#[tokio::test(start_paused = true)]
async fn a_shortened_lease_is_still_renewed_when_max_hold_is_near() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").max_hold(ms(60_000)).lock().await.unwrap();
    world.until(35_000).await;
    guard.shorten_to(ms(3000)).await.unwrap();
    world.until(55_000).await;
    assert_eq!(guard.state(), GuardState::Held);
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    assert!(world.elapsed() > ms(59_900) && world.elapsed() <= ms(60_000), "{:?}", world.elapsed());
}
