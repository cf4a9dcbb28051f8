//! The wait loop in paused time, against a store in which every step can fail, hang or lose its answer.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::time::Duration;

use leasehold::backend::{Attempt, Busy, Wake};
use leasehold::{Backoff, Cancel, ErrorKind, Gone, Jitter, Mode, Poll, State};
use testkit::faulty::{Act, Answer, Call, Verb};
use testkit::paused::{Paused, poll_at_most, settle, tasks};

const RETRYABLE: [ErrorKind; 4] =
    [ErrorKind::Unavailable, ErrorKind::Busy, ErrorKind::NetworkTimeout, ErrorKind::RateLimited];

const FINAL: [ErrorKind; 9] = [
    ErrorKind::InvalidArgument,
    ErrorKind::AuthFailed,
    ErrorKind::Timeout,
    ErrorKind::Aborted,
    ErrorKind::Lost,
    ErrorKind::Mismatch,
    ErrorKind::Deadlock,
    ErrorKind::Unsupported,
    ErrorKind::Internal,
];

/// A third of the time that a place in a queue is kept: how often a waiter comes back.
const REFRESH: Duration = Duration::from_millis(3334);

const HOUR: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// When each call was made, in milliseconds after the first.
fn times(calls: &[Call]) -> Vec<u128> {
    calls.iter().map(|call| call.at.since(calls[0].at).as_millis()).collect()
}

fn is_busy(call: &Call) -> bool {
    matches!(call.answer, Some((_, Answer::Attempt(Attempt::Busy(_)))))
}

fn is_gone(call: &Call) -> bool {
    matches!(call.answer, Some((_, Answer::Attempt(Attempt::Gone(_)))))
}

fn is_granted(call: &Call) -> bool {
    matches!(call.answer, Some((_, Answer::Attempt(Attempt::Granted(_)))))
}

fn failure(call: &Call) -> Option<ErrorKind> {
    match call.answer {
        Some((_, Answer::Failed(kind))) => Some(kind),
        None => Some(ErrorKind::NetworkTimeout),
        _ => None,
    }
}

// One attempt.

#[tokio::test(start_paused = true)]
async fn try_lock_is_exactly_one_call_and_no_sleep() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").try_lock().await.unwrap().unwrap();
    assert!(world.locks.mutex("x").try_lock().await.unwrap().is_none());
    settle().await;
    let log = world.store.log();
    assert_eq!(log.len(), 2, "{log:?}");
    for call in &log {
        assert_eq!(call.verb, Verb::TryAcquire);
        let claim = call.claim();
        assert!(claim.queue.is_none() && !claim.repeat && claim.first);
    }
    assert_ne!(log[0].claim().id, log[1].claim().id, "a new id for every acquisition");
    assert_eq!(world.elapsed(), Duration::ZERO);
    assert_eq!((guard.attempts(), guard.waited()), (1, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn try_lock_meets_every_fault_with_one_call_and_leaves_nothing() {
    let late = ms(40);
    let mut acts = vec![
        Act::Pass,
        Act::Slow(late),
        Act::SlowBefore(late),
        Act::Never,
        Act::NeverAfter,
        Act::Late(ms(9000)),
        Act::Gone(Gone::Superseded),
    ];
    acts.extend(RETRYABLE.iter().chain(&FINAL).map(|kind| Act::Fail(*kind)));
    acts.extend(RETRYABLE.iter().map(|kind| Act::LostAfter(*kind)));
    acts.push(Act::LostAfter(ErrorKind::Internal));
    for act in acts {
        for held in [false, true] {
            let world = Paused::new();
            let holder = if held { Some(world.hold("x", Mode::Exclusive, HOUR).await) } else { None };
            world.store.plan(Verb::TryAcquire, [act]);
            let mutex = world.locks.mutex("x").request_timeout(ms(500));
            let result = mutex.try_lock().await;
            let (kind, took) = match act {
                Act::Fail(kind) | Act::LostAfter(kind) => (Some(kind), Duration::ZERO),
                Act::Never | Act::NeverAfter | Act::Late(_) => (Some(ErrorKind::NetworkTimeout), ms(500)),
                Act::Gone(_) => (Some(ErrorKind::Busy), Duration::ZERO),
                Act::Slow(_) | Act::SlowBefore(_) => (None, late),
                _ => (None, Duration::ZERO),
            };
            assert_eq!(world.elapsed(), took, "{act:?} {held}");
            match (&result, kind) {
                (Ok(guard), None) => assert_eq!(guard.is_none(), held, "{act:?}"),
                (Err(error), Some(kind)) => assert_eq!(error.kind(), kind, "{act:?} {held}"),
                other => panic!("{act:?} {held}: {other:?}"),
            }
            settle().await;
            let (attempts, releases) =
                (world.store.calls(Verb::TryAcquire), world.store.calls(Verb::Release));
            assert_eq!(attempts.len(), 1, "{act:?} {held}");
            assert_eq!(world.store.count(Verb::Wait), 0);
            // What may have taken effect is taken back, and the store is told that it may still arrive.
            let unknown = match act {
                Act::Fail(kind) | Act::LostAfter(kind) => {
                    RETRYABLE.contains(&kind) || matches!(kind, ErrorKind::Internal | ErrorKind::Aborted)
                }
                Act::Never | Act::NeverAfter | Act::Late(_) => true,
                _ => false,
            };
            assert_eq!(releases.len(), usize::from(unknown), "{act:?} {held}");
            for call in &releases {
                assert_eq!(call.release().id, attempts[0].claim().id);
                assert_eq!(call.release().unanswered, Some(attempts[0].claim().ttl));
            }
            drop(result);
            tokio::time::sleep(ms(10_000)).await;
            if let Some(holder) = holder {
                world.end(&holder).await;
            }
            assert!(world.is_free("x").await, "{act:?} {held}");
            assert!(world.other().mutex("x").try_lock().await.unwrap().is_some());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_zero_timeout_is_one_attempt() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    assert!(world.locks.mutex("x").try_lock_for(Duration::ZERO).await.unwrap().is_none());
    let error = world.locks.mutex("x").max_wait(Duration::ZERO).lock().await.unwrap_err();
    assert_eq!((error.kind(), error.waited()), (ErrorKind::Timeout, Some(Duration::ZERO)));
    assert!(world.locks.leasing("x").try_acquire_for(Duration::ZERO).await.unwrap().is_none());
    assert_eq!(world.store.log().len(), 3);
    world.end(&holder).await;
    assert!(world.locks.mutex("x").try_lock_for(Duration::ZERO).await.unwrap().is_some());
    assert_eq!(world.elapsed(), Duration::ZERO);
}

// Limits.

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

// Faults.

/// Runs one acquire against one script and checks everything that must hold whatever the script says.
async fn check(first: Act, second: Act, wait: Act, held: Option<u64>, limit: Option<u64>) {
    let base = tasks();
    let world = Paused::new();
    let what = format!("{first:?}, {second:?}, wait {wait:?}, held {held:?}, limit {limit:?}");
    if let Some(time) = held {
        let holder = world.hold("x", Mode::Exclusive, HOUR).await;
        world.end_after(ms(time), holder);
    }
    world.store.plan(Verb::TryAcquire, [first, second]);
    world.store.plan(Verb::Wait, [wait, wait]);
    let mutex = world.locks.mutex("x").request_timeout(ms(80));
    let result = match limit {
        Some(limit) => mutex.try_lock_for(ms(limit)).await,
        None => mutex.lock().await.map(Some),
    };
    let took = world.elapsed();
    settle().await;

    let attempts = world.store.calls(Verb::TryAcquire);
    let waits = world.store.calls(Verb::Wait);
    let last = attempts.last().unwrap();
    let limit = limit.map_or(Duration::MAX, ms);
    assert!(took <= limit && took < ms(15_000), "{what}: took {took:?}");
    for call in attempts.iter().chain(&waits) {
        assert!(call.at.since(attempts[0].at) < limit, "{what}: a call after the limit");
    }

    // One id, until the store says that it is spent; and a repeat says that it is one.
    let mut unanswered = false;
    for pair in attempts.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        let same = before.claim().id == after.claim().id;
        assert_eq!(same, !is_gone(before), "{what}");
        unanswered = same && (unanswered || failure(before).is_some());
        assert_eq!(after.claim().repeat, unanswered, "{what}");
        assert!(after.at >= before.answer.as_ref().map_or(before.at, |(at, _)| *at), "{what}");
    }
    assert!(!attempts[0].claim().repeat);

    // What is reported is what the store said.
    let granted = is_granted(last)
        || waits.iter().any(|call| matches!(call.answer, Some((_, Answer::Wake(Wake::Granted(_))))));
    match &result {
        Ok(Some(guard)) => {
            assert!(granted, "{what}");
            let info = world.look("x").await;
            assert_eq!(info.holders.len(), 1, "{what}");
            assert_eq!(info.holders[0].id, guard.lease_id(), "{what}");
            assert_eq!(info.holders[0].grant.fence, guard.fence(), "{what}");
            assert_eq!(last.claim().id, guard.lease_id(), "{what}");
            assert_eq!(guard.attempts() as usize, attempts.len() + usize::from(!is_granted(last)), "{what}");
            assert_eq!((guard.waited(), guard.state()), (took, State::Held), "{what}");
        }
        Ok(None) => {
            // A last word of the store that was cut off by the limit is no word.
            let cut = last.answer.is_none() && took == limit && attempts.len() > 1;
            let word = if cut { &attempts[attempts.len() - 2] } else { last };
            assert!(is_busy(word), "{what}: contention was reported, and the store said {word:?}");
        }
        Err(error) if is_gone(last) => assert_eq!(error.kind(), ErrorKind::Busy, "{what}"),
        Err(error) => assert_eq!(Some(error.kind()), failure(last), "{what}"),
    }

    // Nothing is left, also of what was on its way.
    tokio::time::sleep(ms(1000)).await;
    match result {
        Ok(Some(guard)) => assert_eq!(guard.release().await.unwrap(), State::Released, "{what}"),
        _ if held.is_none_or(|time| took + ms(1000) > ms(time)) => {}
        _ => assert_eq!(world.look("x").await.waiters.len(), 0, "{what}"),
    }
    tokio::time::sleep(ms(2000)).await;
    assert!(world.is_free("x").await, "{what}");
    assert_eq!(world.store.under_way(), 0, "{what}");
    drop((world, mutex));
    settle().await;
    assert_eq!(tasks(), base, "{what}");
}

#[tokio::test(start_paused = true)]
async fn whatever_two_attempts_and_waits_meet_the_answer_is_true_and_nothing_is_left() {
    let acts = [
        Act::Pass,
        Act::Fail(ErrorKind::Unavailable),
        Act::Fail(ErrorKind::AuthFailed),
        Act::Fail(ErrorKind::Internal),
        Act::Slow(ms(40)),
        Act::SlowBefore(ms(40)),
        Act::Never,
        Act::NeverAfter,
        Act::LostAfter(ErrorKind::NetworkTimeout),
        Act::LostAfter(ErrorKind::Internal),
        Act::Late(ms(300)),
        Act::Gone(Gone::Superseded),
    ];
    let waits = [
        Act::Pass,
        Act::Fail(ErrorKind::Unavailable),
        Act::Never,
        Act::Slow(ms(40)),
        Act::SlowBefore(ms(40)),
        Act::Gone(Gone::Superseded),
    ];
    for first in acts {
        for second in acts {
            for wait in waits {
                for (held, limit) in [
                    (None, None),
                    (None, Some(100)),
                    (Some(250), None),
                    (Some(250), Some(100)),
                    (Some(250), Some(250)),
                    (Some(250), Some(1000)),
                ] {
                    check(first, second, wait, held, limit).await;
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_at_the_limit_is_that_fault_and_never_contention() {
    for kind in RETRYABLE {
        for first in [Act::Pass, Act::Fail(kind)] {
            let world = Paused::new();
            let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
            world.store.plan(Verb::TryAcquire, [first]);
            // Wakes it before the limit, so that its last word comes from a broken store.
            world.store.plan(Verb::Wait, [Act::Fail(ErrorKind::Unavailable)]);
            world.store.always(Verb::TryAcquire, Act::Fail(kind));
            let error = world.locks.mutex("x").max_wait(ms(1000)).lock().await.unwrap_err();
            assert_eq!(error.kind(), kind);
            let error = world.locks.mutex("x").try_lock_for(ms(1000)).await.unwrap_err();
            assert_eq!(error.kind(), kind);
            assert_eq!(world.elapsed(), ms(2000), "neither earlier nor later");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_passes_does_not_hide_later_contention() {
    let world = Paused::new();
    let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.store.plan(Verb::TryAcquire, [Act::Fail(ErrorKind::Unavailable)]);
    assert!(world.locks.mutex("x").try_lock_for(ms(1000)).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_answer_lost_after_the_effect_is_asked_for_again_with_the_same_id() {
    let lost = RETRYABLE.map(Act::LostAfter);
    for act in [Act::NeverAfter].into_iter().chain(lost) {
        let world = Paused::new();
        world.store.plan(Verb::TryAcquire, [act]);
        let guard = world.locks.mutex("x").request_timeout(ms(100)).lock().await.unwrap();
        let attempts = world.store.calls(Verb::TryAcquire);
        assert_eq!(attempts.len(), 2, "{act:?}");
        assert_eq!(attempts[0].claim().id, attempts[1].claim().id);
        assert!(!attempts[0].claim().repeat && attempts[1].claim().repeat);
        let info = world.look("x").await;
        assert_eq!(info.version, 1, "one grant, not two");
        assert_eq!((info.holders[0].id, info.last_fence), (guard.lease_id(), guard.fence()));
        assert_eq!(guard.attempts(), 2);
        // The repeat did not arm it again, and the guard does not believe that it did.
        let left = info.holders[0].grant.left.unwrap();
        assert!(left < ms(30_000) && guard.valid_for().unwrap() < left);
        assert_eq!(world.store.count(Verb::Release), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_in_the_queue_survives_a_lost_answer() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.store.plan(Verb::TryAcquire, [Act::LostAfter(ErrorKind::Unavailable)]);
    let first = tokio::spawn({
        let mutex = world.locks.mutex("x").owner("first");
        async move { mutex.lock().await }
    });
    settle().await;
    let second = tokio::spawn({
        let mutex = world.locks.mutex("x").owner("second");
        async move { mutex.lock().await }
    });
    tokio::time::sleep(ms(500)).await;
    let owners: Vec<_> =
        world.look("x").await.waiters.iter().map(|waiter| waiter.owner.to_string()).collect();
    assert_eq!(owners, ["first", "second"]);
    world.end(&holder).await;
    drop(first.await.unwrap().unwrap());
    drop(second.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn errors_that_waiting_cannot_heal_come_at_once() {
    for kind in FINAL {
        for held in [false, true] {
            let world = Paused::new();
            if held {
                let _ = world.hold("x", Mode::Exclusive, HOUR).await;
            }
            world.store.plan(Verb::TryAcquire, [Act::Fail(kind)]);
            let error = world.locks.mutex("x").lock().await.unwrap_err();
            assert_eq!(error.kind(), kind);
            assert_eq!(error.name().unwrap().as_str(), "x");
            assert_eq!(world.store.count(Verb::TryAcquire), 1);
            assert_eq!(world.elapsed(), Duration::ZERO);
            settle().await;
            // It may have a place: that is given up. Unless the store itself does not know, nothing is on its way.
            let releases = world.store.calls(Verb::Release);
            assert_eq!(releases.len(), 1);
            let unknown = matches!(kind, ErrorKind::Internal | ErrorKind::Aborted);
            assert_eq!(releases[0].release().unanswered.is_some(), unknown, "{kind:?}");
        }
    }
    // Also when they come from the wait.
    let world = Paused::new();
    let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.store.plan(Verb::Wait, [Act::Fail(ErrorKind::AuthFailed)]);
    assert_eq!(world.locks.mutex("x").lock().await.unwrap_err().kind(), ErrorKind::AuthFailed);
    settle().await;
    assert!(world.look("x").await.waiters.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_name_in_use_as_another_kind_is_a_mismatch_at_once() {
    let world = Paused::new();
    let _holder = world.hold("x", Mode::Permit { limit: 2 }, HOUR).await;
    for error in [
        world.locks.mutex("x").lock().await.unwrap_err(),
        world.locks.mutex("x").try_lock().await.unwrap_err(),
        world.locks.semaphore("x", 3).acquire().await.unwrap_err(),
        world.locks.rwlock("x").read().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Mismatch);
    }
    assert_eq!(world.store.count(Verb::TryAcquire), 4);
    assert_eq!(world.elapsed(), Duration::ZERO);
    settle().await;
    assert_eq!(world.look("x").await.queue_length, 0);
    assert!(world.locks.semaphore("x", 2).try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_reported_within_bounds_and_told_that_an_attempt_is_unanswered() {
    for act in [Act::Never, Act::NeverAfter, Act::Late(ms(60_000))] {
        let world = Paused::new();
        world.store.always(Verb::TryAcquire, act);
        let mutex = world.locks.mutex("x").ttl(ms(90_000)).request_timeout(ms(2000));
        let error = mutex.lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkTimeout);
        assert!(world.elapsed() >= ms(10_000) && world.elapsed() <= ms(12_500), "{:?}", world.elapsed());
        let attempts = world.store.calls(Verb::TryAcquire);
        assert!(attempts.iter().all(|call| call.claim().id == attempts[0].claim().id));
        settle().await;
        let releases = world.store.calls(Verb::Release);
        assert_eq!(releases.len(), 1);
        assert_eq!(releases[0].release().id, attempts[0].claim().id);
        assert_eq!(releases[0].release().unanswered, Some(ms(90_000)));
        // What was on its way arrives in the end, and finds a door that stays shut.
        tokio::time::sleep(ms(61_000)).await;
        assert!(world.is_free("x").await, "{act:?}");

        let world = Paused::new();
        world.store.always(Verb::TryAcquire, act);
        let error = world.locks.mutex("x").try_lock_for(ms(3000)).await.unwrap_err();
        assert_eq!((error.kind(), world.elapsed()), (ErrorKind::NetworkTimeout, ms(3000)));
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_still_on_its_way_never_becomes_a_ghost() {
    // It was not answered; then the repeat was; then the acquire ended. At last the first arrives.
    let ends = [
        Act::Pass,                           // granted, or busy until the limit
        Act::Fail(ErrorKind::AuthFailed),    // refused
        Act::Fail(ErrorKind::Unavailable),   // unknown
        Act::LostAfter(ErrorKind::Internal), // unknown
        Act::Gone(Gone::Superseded),
    ];
    for fifo in [true, false] {
        for end in ends {
            for held in [true, false] {
                for dropped in [false, true] {
                    let what = format!("fifo {fifo}, {end:?}, held {held}, dropped {dropped}");
                    let world = Paused::with_info(|info| info.fifo = fifo);
                    if held {
                        let holder = world.hold("x", Mode::Exclusive, HOUR).await;
                        world.end_after(ms(1000), holder);
                    }
                    world.store.plan(Verb::TryAcquire, [Act::Late(ms(2000)), end]);
                    let mutex = world.locks.mutex("x").request_timeout(ms(100)).max_attempts(2);
                    if dropped {
                        let _ = tokio::time::timeout(ms(300), mutex.lock()).await;
                    } else {
                        let _ = mutex.try_lock_for(ms(500)).await;
                    }
                    tokio::time::sleep(ms(5000)).await;
                    assert!(world.is_free("x").await, "{what}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_spent_id_is_replaced_by_a_new_one() {
    let world = Paused::new();
    world.store.plan(Verb::TryAcquire, [Act::LostAfter(ErrorKind::Busy), Act::Gone(Gone::Superseded)]);
    // The lease of the lost answer is in the way until it ends.
    let guard = world.locks.mutex("x").ttl(ms(500)).lock().await.unwrap();
    let attempts = world.store.calls(Verb::TryAcquire);
    assert_eq!(attempts[0].claim().id, attempts[1].claim().id);
    assert_ne!(attempts[1].claim().id, attempts[2].claim().id);
    assert!(!attempts[2].claim().repeat, "a new id has no past");
    assert_eq!(guard.lease_id(), attempts[2].claim().id);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_every_id_is_reported_in_the_end() {
    let world = Paused::new();
    world.store.always(Verb::TryAcquire, Act::Gone(Gone::Superseded));
    let result = tokio::time::timeout(ms(60_000), world.locks.mutex("x").lock()).await;
    assert_eq!(result.expect("it is not tried for ever").unwrap_err().kind(), ErrorKind::Busy);
    // And it was not asked more often than any broken store.
    assert!(world.store.count(Verb::TryAcquire) < 50, "{}", world.store.count(Verb::TryAcquire));
}

#[tokio::test(start_paused = true)]
async fn pauses_after_faults_grow_and_are_within_range() {
    let world = Paused::new();
    world.store.always(Verb::TryAcquire, Act::Fail(ErrorKind::Unavailable));
    world.locks.mutex("x").lock().await.unwrap_err();
    assert!(world.elapsed() >= ms(10_000) && world.elapsed() <= ms(11_100), "{:?}", world.elapsed());
    let times = times(&world.store.calls(Verb::TryAcquire));
    for (n, pair) in times.windows(2).enumerate() {
        let (gap, full) = (pair[1] - pair[0], (20 << n.min(10)).min(1000));
        assert!(gap >= full / 2 && gap <= full + 1, "{n}: {gap} ms");
    }
}

// Waiting.

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
        (Poll::new(ms(10), ms(50)).jitter(Jitter::None), vec![0, 10, 30, 70, 120, 170]),
        (
            Poll::new(ms(30), ms(50)).jitter(Jitter::None).backoff(Backoff::Fixed),
            vec![0, 30, 60, 90, 120, 150],
        ),
    ] {
        let world = Paused::with_info(|info| info.push = false);
        let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
        assert!(world.locks.mutex("x").poll(poll).try_lock_for(ms(175)).await.unwrap().is_none());
        assert_eq!(times(&world.store.calls(Verb::TryAcquire)), expected);
    }

    // A slow answer is followed by a whole pause, not by what was missed.
    let world = Paused::with_info(|info| info.push = false);
    let _holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.store.plan(Verb::TryAcquire, [Act::Pass, Act::Slow(ms(1000))]);
    let poll = Poll::new(ms(100), ms(100)).jitter(Jitter::None);
    assert!(world.locks.mutex("x").poll(poll).try_lock_for(ms(1450)).await.unwrap().is_none());
    assert_eq!(times(&world.store.calls(Verb::TryAcquire)), [0, 100, 1200, 1300, 1400]);
}

#[tokio::test(start_paused = true)]
async fn a_store_with_push_that_cannot_say_when_is_looked_at_now_and_then() {
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
    // A wait that fails is as good as none, and is not asked in a burst.
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.store.always(Verb::Wait, Act::Fail(ErrorKind::Unavailable));
    world.end_after(ms(2000), holder);
    let guard = world.locks.mutex("x").lock().await.unwrap();
    assert!(guard.waited() <= ms(2201), "{:?}", guard.waited());
    assert!(world.store.count(Verb::Wait) < 40, "{}", world.store.count(Verb::Wait));
}

#[tokio::test(start_paused = true)]
async fn a_dead_holder_is_replaced_when_its_time_ends_without_any_wake_up() {
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
    // One that means something after one that did not is not held up.
    world.store.always(Verb::Wait, Act::Pass);
    world.store.plan(Verb::Wait, [Act::Gone(Gone::NotFound)]);
    world.end_after(ms(1000), holder);
    let guard = world.locks.mutex("x").lock().await.unwrap();
    assert_eq!(guard.waited(), ms(1000));
}

// Grants that come too late.

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

            // One that waits measures it again, once, with the same id.
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
    // In time is in time.
    let world = Paused::new();
    world.store.plan(Verb::TryAcquire, [Act::Slow(ms(96))]);
    let guard = world.locks.mutex("x").ttl(ms(100)).try_lock().await.unwrap().unwrap();
    assert_eq!(guard.valid_for(), Some(ms(1)));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_always_too_slow_for_the_ttl_is_reported_in_the_end() {
    let world = Paused::new();
    world.store.always(Verb::TryAcquire, Act::Slow(ms(150)));
    let lock = world.locks.mutex("x").ttl(ms(100));
    let result = tokio::time::timeout(ms(60_000), lock.lock()).await;
    assert_eq!(result.expect("it is not tried for ever").unwrap_err().kind(), ErrorKind::NetworkTimeout);
    settle().await;
    assert!(world.is_free("x").await);
}

#[tokio::test(start_paused = true)]
async fn a_grant_below_the_minimum_validity_is_measured_once_and_then_given_back() {
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
    // A store that waits by itself and does not say for how long.
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
async fn a_grant_is_never_believed_longer_than_the_store_keeps_it_however_late_its_waiter_looks() {
    for slow in [0, 10, 250, 290, 350] {
        let world = Paused::new();
        let holder = world.hold("x", Mode::Exclusive, HOUR).await;
        // It stands in the queue, but does not know yet; meanwhile its turn comes.
        world.store.plan(Verb::TryAcquire, [Act::Slow(ms(slow))]);
        world.end_after(Duration::ZERO, holder);
        let guard = world.locks.mutex("x").ttl(ms(300)).lock().await.unwrap();
        let info = world.look("x").await;
        assert_eq!(info.holders[0].id, guard.lease_id());
        let (left, believed) = (info.holders[0].grant.left.unwrap(), guard.valid_for().unwrap());
        assert!(believed < left, "{slow}: the store keeps it for {left:?}, the guard believes {believed:?}");
    }
}

// Told to stop.

#[tokio::test(start_paused = true)]
async fn a_cancelled_acquire_is_aborted_before_anything_is_sent() {
    let world = Paused::new();
    let cancel = Cancel::new();
    cancel.cancel();
    let mutex = world.locks.mutex("x").cancel_on(&cancel);
    for error in [
        mutex.lock().await.unwrap_err(),
        mutex.try_lock().await.unwrap_err(),
        mutex.try_lock_for(ms(100)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Aborted);
    }
    settle().await;
    assert!(world.store.log().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_a_wait_at_once_and_leaves_nothing() {
    let waits = [
        (Act::Pass, Act::Pass),                         // in the queue
        (Act::Pass, Act::Never),                        // in the queue, with no wake-up to come
        (Act::Never, Act::Pass),                        // while an attempt hangs
        (Act::NeverAfter, Act::Pass),                   // while the answer does not come
        (Act::Fail(ErrorKind::Unavailable), Act::Pass), // between two tries
    ];
    for closes in [false, true] {
        for (attempt, wait) in waits {
            let world = Paused::new();
            let holder = world.hold("x", Mode::Exclusive, HOUR).await;
            world.store.always(Verb::TryAcquire, attempt);
            world.store.always(Verb::Wait, wait);
            let cancel = Cancel::new();
            let mutex = world.locks.mutex("x").cancel_on(&cancel);
            let waiting = tokio::spawn(async move { mutex.lock().await });
            tokio::time::sleep(ms(4000)).await;
            assert!(!waiting.is_finished());
            if closes {
                world.locks.close().await;
            } else {
                cancel.cancel();
            }
            let error = waiting.await.unwrap().unwrap_err();
            assert_eq!((error.kind(), world.elapsed()), (ErrorKind::Aborted, ms(4000)));
            settle().await;
            let releases = world.store.calls(Verb::Release);
            assert_eq!(releases.len(), 1);
            let unanswered = attempt != Act::Pass;
            assert_eq!(releases[0].release().unanswered.is_some(), unanswered, "{attempt:?}");
            assert!(world.look("x").await.waiters.is_empty());
            world.end(&holder).await;
            assert!(world.is_free("x").await);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_sends_nothing_more_and_keeps_what_it_holds() {
    let world = Paused::new();
    let guard = world.locks.mutex("held").lock().await.unwrap();
    world.locks.close().await;
    let calls = world.store.log().len();
    for error in [
        world.locks.mutex("x").lock().await.unwrap_err(),
        world.locks.mutex("x").try_lock().await.unwrap_err(),
        world.locks.clone().semaphore("y", 2).acquire().await.unwrap_err(),
        world.locks.leasing("z").acquire().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Aborted);
    }
    assert_eq!(world.store.log().len(), calls);
    tokio::time::sleep(ms(120_000)).await;
    assert_eq!(guard.state(), State::Held, "it is still renewed");
    assert_eq!(guard.release().await.unwrap(), State::Released);
}

// Stores of other kinds.

#[tokio::test(start_paused = true)]
async fn a_store_without_queues_is_asked_without_a_place() {
    let world = Paused::with_info(|info| (info.fifo, info.push) = (false, false));
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.end_after(ms(1000), holder);
    let guard = world.locks.mutex("x").lock().await.unwrap();
    assert!(guard.waited() >= ms(1000) && guard.waited() <= ms(1201));
    assert!(world.store.calls(Verb::TryAcquire).iter().all(|call| call.claim().queue.is_none()));
    // Contention was its last word: there is nothing to give back.
    let _ = world.locks.mutex("x").try_lock_for(ms(500)).await.unwrap();
    settle().await;
    assert_eq!(world.store.count(Verb::Release), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_without_fences_needs_to_be_allowed() {
    let world = Paused::with_info(|info| info.fenced = false);
    assert_eq!(world.locks.mutex("x").lock().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(world.store.log().is_empty());
    let guard = world.locks.mutex("x").allow_unfenced(true).lock().await.unwrap();
    assert!(guard.fence().is_unfenced());
    tokio::time::sleep(ms(90_000)).await;
    assert_eq!(guard.state(), State::Held);
    assert_eq!(guard.release().await.unwrap(), State::Released);
}

#[tokio::test(start_paused = true)]
async fn the_helper_gives_up_by_itself_where_it_would_have_to_poll() {
    for push in [false, true] {
        let world = Paused::with_info(|info| info.push = push);
        let holder = world.hold("x", Mode::Exclusive, HOUR).await;
        world.end_after(ms(60_000), holder);
        let result = world.locks.mutex("x").with_lock(async |_| Ok::<_, leasehold::Error>(())).await;
        if push {
            result.unwrap();
            assert_eq!(world.elapsed(), ms(60_000));
        } else {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Timeout);
            assert!(world.elapsed() <= ms(5000) && world.store.count(Verb::TryAcquire) <= 11);
        }
    }
}

#[test]
fn busy_can_say_that_nothing_is_known() {
    let busy = Busy::unknown();
    assert!(busy.retry_in.is_none() && busy.place.is_none() && busy.owner.is_none());
}
