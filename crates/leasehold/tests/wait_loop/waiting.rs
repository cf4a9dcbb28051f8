//! When a waiter tries again.

use std::time::Duration;

use leasehold::{Backoff, ErrorKind, Gone, Jitter, Mode, PollPolicy};
use testkit::faulty::{Act, Verb};
use testkit::paused::{Paused, settle};

use crate::{HOUR, ms, times};

/// A third of the time that a place in a queue is kept: how often a waiter comes back.
const REFRESH: Duration = Duration::from_millis(3334);

#[tokio::test(start_paused = true)]
async fn a_store_without_push_is_polled_in_range_and_never_in_bursts() {
    let world = Paused::with_info(|info| info.push = false);
    let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
    assert!(world.locks.mutex("x").try_lock_for(ms(10_000)).await.unwrap().is_none());
    assert_eq!(world.store.count(Verb::Wait), 0);
    let found = times(&world.store.calls(Verb::TryAcquire));
    assert_eq!(found[0], 0, "the first attempt is made at once");
    for (n, pair) in found.windows(2).enumerate() {
        let (gap, full) = (pair[1] - pair[0], (10 << n.min(10)).min(200));
        assert!(gap >= full / 2 && gap <= full + 1, "{n}: {gap} ms");
    }
    assert!(
        found.windows(2).any(|pair| pair[1] - pair[0] != found[found.len() - 1] - found[found.len() - 2])
    );

    for (poll, expected) in [
        (PollPolicy::new(ms(10), ms(50)).jitter(Jitter::None), vec![0, 10, 30, 70, 120, 170]),
        (
            PollPolicy::new(ms(30), ms(50)).jitter(Jitter::None).backoff(Backoff::Fixed),
            vec![0, 30, 60, 90, 120, 150],
        ),
    ] {
        let world = Paused::with_info(|info| info.push = false);
        let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
        assert!(world.locks.mutex("x").poll(poll).try_lock_for(ms(175)).await.unwrap().is_none());
        assert_eq!(times(&world.store.calls(Verb::TryAcquire)), expected);
    }

    // A full pause follows a slow answer; polls that were missed are not made up for.
    let world = Paused::with_info(|info| info.push = false);
    let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.store.plan(Verb::TryAcquire, [Act::Pass, Act::Slow(ms(1000))]);
    let poll = PollPolicy::new(ms(100), ms(100)).jitter(Jitter::None);
    assert!(world.locks.mutex("x").poll(poll).try_lock_for(ms(1450)).await.unwrap().is_none());
    assert_eq!(times(&world.store.calls(Verb::TryAcquire)), [0, 100, 1200, 1300, 1400]);
}

#[tokio::test(start_paused = true)]
async fn a_push_store_that_gives_no_time_is_polled_now_and_then() {
    let world = Paused::new();
    let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.store.on_busy(|busy| busy.retry_in = None);
    assert!(world.locks.mutex("x").try_lock_for(ms(2000)).await.unwrap().is_none());
    let attempts = world.store.count(Verb::TryAcquire);
    assert!((10..=21).contains(&attempts), "{attempts}");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_at_once_and_makes_no_other_calls_meanwhile() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.end_after(ms(3000), holder);
    let guard = world.locks.mutex("x").lock().await.unwrap();
    assert_eq!((world.elapsed(), guard.waited()), (ms(3000), ms(3000)));
    assert_eq!((world.store.count(Verb::TryAcquire), world.store.count(Verb::Wait)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_place_is_refreshed_at_a_third_of_its_time_and_kept() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    // The store cannot be reached for two thirds of the time that a place is kept.
    let (from, to) = (world.clock.now() + ms(14_000), world.clock.now() + ms(20_000));
    world.store.script(Verb::TryAcquire, move |call| {
        if call.at >= from && call.at < to { Act::Fail(ErrorKind::Unavailable) } else { Act::Pass }
    });
    let mut waiting = Vec::new();
    for owner in ["a", "b", "c"] {
        let mutex = world.locks.mutex("x").owner(owner);
        waiting.push(tokio::spawn(async move { mutex.lock().await }));
        settle().await;
    }
    for _ in 0..60 {
        tokio::time::sleep(ms(1000)).await;
        let info = world.look("x").await;
        let owners: Vec<&str> = info.waiters.iter().map(|waiter| &*waiter.owner).collect();
        assert_eq!(owners, ["a", "b", "c"]);
    }
    for owner in ["a", "b", "c"] {
        let calls: Vec<_> = world
            .store
            .calls(Verb::TryAcquire)
            .into_iter()
            .filter(|call| &*call.claim().owner == owner)
            .collect();
        assert!(calls.iter().all(|call| call.claim().queue == Some(ms(10_000))));
        for pair in calls.windows(2) {
            assert!(pair[1].at.since(pair[0].at) <= REFRESH, "{owner}");
        }
        let quiet = calls.iter().filter(|call| call.at < from || call.at >= to).count();
        assert!(quiet <= 2 + 60_000 / 3333, "{owner}: {quiet} calls");
    }
    world.end(&holder).await;
    for (waiting, owner) in waiting.into_iter().zip(["a", "b", "c"]) {
        let guard = waiting.await.unwrap().unwrap();
        assert_eq!(guard.owner(), owner);
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_wake_up_costs_a_bounded_delay_and_never_a_hang() {
    for released in [1, 500, 3000, 3333, 3334, 5000, 9999] {
        let world = Paused::new();
        let holder = world.hold("x", Mode::Exclusive, HOUR).await;
        world.store.always(Verb::Wait, Act::Never);
        world.end_after(ms(released), holder);
        let guard = world.locks.mutex("x").lock().await.unwrap();
        assert!(guard.waited() <= ms(released) + REFRESH, "{:?}", guard.waited());
    }
    // A wait that fails is as good as none, and is not repeated in a burst.
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.store.always(Verb::Wait, Act::Fail(ErrorKind::Unavailable));
    world.end_after(ms(2000), holder);
    let guard = world.locks.mutex("x").lock().await.unwrap();
    assert!(guard.waited() <= ms(2201), "{:?}", guard.waited());
    assert!(world.store.count(Verb::Wait) < 40, "{}", world.store.count(Verb::Wait));
}

#[tokio::test(start_paused = true)]
async fn a_dead_holder_is_replaced_at_its_expiry_without_a_wake_up() {
    for ttl in [50, 333, 2000, 5000] {
        let world = Paused::new();
        let _holder = world.hold("x", Mode::Exclusive, ms(ttl)).await;
        world.store.always(Verb::Wait, Act::Never);
        let guard = world.locks.mutex("x").lock().await.unwrap();
        assert!(guard.waited() >= ms(ttl) && guard.waited() <= ms(ttl + 1), "{:?}", guard.waited());
    }
}

#[tokio::test(start_paused = true)]
async fn wake_ups_that_mean_nothing_do_not_become_a_storm() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.store.always(Verb::Wait, Act::Gone(Gone::NotFound));
    world.store.script(Verb::TryAcquire, |call| {
        assert!(call.number < 1000, "a storm");
        Act::Pass
    });
    assert!(world.locks.mutex("x").try_lock_for(ms(1000)).await.unwrap().is_none());
    assert!(world.store.count(Verb::TryAcquire) < 150, "{}", world.store.count(Verb::TryAcquire));
    // A meaningful wake-up after a meaningless one is not delayed.
    world.store.always(Verb::Wait, Act::Pass);
    world.store.plan(Verb::Wait, [Act::Gone(Gone::NotFound)]);
    world.end_after(ms(1000), holder);
    let guard = world.locks.mutex("x").lock().await.unwrap();
    assert_eq!(guard.waited(), ms(1000));
}
