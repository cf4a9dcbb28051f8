//! When a lease is renewed.

use leasehold::{GuardState, Mode};
use testkit::faulty::{Act, Verb};
use testkit::paused::{Paused, believed};

use crate::{HOUR, ids, ms};

#[tokio::test(start_paused = true)]
async fn a_guard_is_renewed_every_third_of_its_ttl_and_not_at_once() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    let other = world.other();
    // For twenty ttls.
    for second in 0..600 {
        world.until(second * 1000 + 500).await;
        assert_eq!(guard.state(), GuardState::Held);
        assert_eq!(world.store.count(Verb::Renew) as u64, second / 10);
        guard.check().unwrap();
        assert!(other.mutex("x").try_lock().await.unwrap().is_none());
    }
    assert_eq!(world.times(Verb::Renew), (1..60).map(|n| n * 10_000).collect::<Vec<_>>());
    for call in world.store.calls(Verb::Renew) {
        let [renewal] = call.renewals() else { panic!("one lease, one renewal") };
        assert_eq!((renewal.id, renewal.ttl), (guard.lease_id(), ms(30_000)));
        assert_eq!(renewal.fence, Some(guard.fence()));
        assert!(renewal.shorten.is_none() && renewal.mode.is_none() && renewal.raise_fence.is_none());
    }
    assert_eq!(guard.release().await.unwrap(), GuardState::Released);
}

#[tokio::test(start_paused = true)]
async fn the_cadence_can_be_chosen() {
    let world = Paused::new();
    let _guard = world.locks.mutex("x").ttl(ms(9000)).renew_every(ms(1500)).lock().await.unwrap();
    world.until(7000).await;
    assert_eq!(world.times(Verb::Renew), [1500, 3000, 4500, 6000]);
}

#[tokio::test(start_paused = true)]
async fn the_first_renewal_after_a_wait_counts_from_the_grant() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.end_after(ms(3000), holder);
    let guard = world.locks.mutex("x").ttl(ms(3000)).lock().await.unwrap();
    assert_eq!((guard.waited(), guard.valid_for()), (ms(3000), Some(ms(6000) - ms(60) - ms(2) - ms(3000))));
    world.until(5500).await;
    assert_eq!(world.times(Verb::Renew), [4000, 5000]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_does_not_delay_the_next_renewal() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.store.always(Verb::Renew, Act::Slow(ms(4000)));
    world.until(45_000).await;
    assert_eq!(world.times(Verb::Renew), [10_000, 20_000, 30_000, 40_000]);
    assert_eq!(guard.state(), GuardState::Held);
    assert_eq!(world.deadline(&guard), ms(40_000) + believed(30_000));
}

#[tokio::test(start_paused = true)]
async fn a_lock_taken_while_the_loop_sleeps_is_renewed_on_time() {
    let world = Paused::new();
    let long = world.locks.mutex("long").lock().await.unwrap();
    world.until(1000).await;
    let short = world.locks.mutex("short").ttl(ms(300)).lock().await.unwrap();
    world.until(3050).await;
    assert_eq!((long.state(), short.state()), (GuardState::Held, GuardState::Held));
    let expected: Vec<_> = (1..=20).map(|n| 1000 + n * 100).collect();
    assert_eq!(world.times(Verb::Renew), expected);
}

#[tokio::test(start_paused = true)]
async fn two_thousand_guards_are_renewed_in_a_few_calls() {
    let world = Paused::new();
    let mut guards = Vec::new();
    for n in 0..2000 {
        guards.push(world.locks.mutex(format!("x{n}")).lock().await.unwrap());
    }
    world.until(35_000).await;
    let calls = world.store.calls(Verb::Renew);
    assert!(calls.len() <= 3 * 4, "{} calls", calls.len());
    for round in 1..=3 {
        let mut renewed: Vec<_> = calls
            .iter()
            .filter(|call| call.at.since(calls[0].at) == ms((round - 1) * 10_000))
            .flat_map(ids)
            .collect();
        renewed.sort_unstable();
        renewed.dedup();
        assert_eq!(renewed.len(), 2000, "every lease once, in each round");
    }
    assert_eq!(calls.iter().map(|call| call.renewals().len()).sum::<usize>(), 6000);
    assert!(guards.iter().all(|guard| guard.state() == GuardState::Held));
}

#[tokio::test(start_paused = true)]
async fn what_is_released_dropped_or_handed_over_is_no_longer_renewed() {
    let world = Paused::new();
    let kept = world.locks.mutex("kept").lock().await.unwrap();
    let released = world.locks.mutex("released").lock().await.unwrap();
    let dropped = world.locks.mutex("dropped").lock().await.unwrap();
    let handed = world.locks.mutex("handed").lock().await.unwrap();
    world.until(11_000).await;
    assert_eq!(world.store.calls(Verb::Renew).iter().flat_map(ids).count(), 4);
    released.release().await.unwrap();
    drop(dropped);
    let lease = handed.into_lease();
    assert_eq!((lease.ttl, lease.mode), (ms(30_000), Mode::Exclusive));
    world.until(95_000).await;
    let later: Vec<_> = world.store.calls(Verb::Renew).iter().skip(1).flat_map(ids).collect();
    assert_eq!(later.len(), 8);
    assert!(later.iter().all(|id| *id == kept.lease_id()));
    assert_eq!(world.store.count(Verb::Release), 2, "what was handed over is not released");
    assert!(world.is_free("handed").await, "and ends when its time is over");
}
