//! Attempts and waits that fail.

use std::time::Duration;

use leasehold::backend::{Attempt, Wake};
use leasehold::{ErrorKind, Gone, GuardState, Mode};
use testkit::faulty::{Act, Answer, Call, FINAL, RETRYABLE, Verb};
use testkit::paused::{Paused, settle, tasks};

use crate::{HOUR, ms, times};

fn failure(call: &Call) -> Option<ErrorKind> {
    match call.answer {
        Some((_, Answer::Failed(kind))) => Some(kind),
        None => Some(ErrorKind::NetworkTimeout),
        _ => None,
    }
}

fn is_granted(call: &Call) -> bool {
    matches!(call.answer, Some((_, Answer::Attempt(Attempt::Granted(_)))))
}

fn is_gone(call: &Call) -> bool {
    matches!(call.answer, Some((_, Answer::Attempt(Attempt::Gone(_)))))
}

fn is_busy(call: &Call) -> bool {
    matches!(call.answer, Some((_, Answer::Attempt(Attempt::Busy(_)))))
}

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

    // The reported error is the store's own.
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
            assert_eq!((guard.waited(), guard.state()), (took, GuardState::Held), "{what}");
        }
        Ok(None) => {
            // An answer that the limit cut off does not count as the store's last one.
            let cut = last.answer.is_none() && took == limit && attempts.len() > 1;
            let word = if cut { &attempts[attempts.len() - 2] } else { last };
            assert!(is_busy(word), "{what}: contention was reported, and the store said {word:?}");
        }
        Err(error) if is_gone(last) => assert_eq!(error.kind(), ErrorKind::Overloaded, "{what}"),
        Err(error) => assert_eq!(Some(error.kind()), failure(last), "{what}"),
    }

    // Nothing is left, not even of requests in transit.
    tokio::time::sleep(ms(1000)).await;
    match result {
        Ok(Some(guard)) => assert_eq!(guard.release().await.unwrap(), GuardState::Released, "{what}"),
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
async fn whatever_two_attempts_meet_answers_are_true_and_none_is_left() {
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
async fn after_a_lost_answer_the_attempt_repeats_with_the_same_id() {
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
            // It may have a place, which is given up. Unless the store itself does not know, no request is in transit.
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
async fn a_hang_is_reported_in_time_and_the_attempt_marked_unanswered() {
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
        // A request in transit arrives in the end, and its id is refused.
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
    // The first call was not answered; the repeat was; then the acquire ended. At last the first arrives.
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
    world.store.plan(Verb::TryAcquire, [Act::LostAfter(ErrorKind::Overloaded), Act::Gone(Gone::Superseded)]);
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
    assert_eq!(result.expect("it is not tried for ever").unwrap_err().kind(), ErrorKind::Overloaded);
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
