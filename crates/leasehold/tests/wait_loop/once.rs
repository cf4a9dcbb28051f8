//! One attempt, and no more.

use std::time::Duration;

use leasehold::{ErrorKind, Gone, Mode};
use testkit::faulty::{Act, FINAL, RETRYABLE, Verb};
use testkit::paused::{Paused, settle};

use crate::{HOUR, ms};

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
                Act::Gone(_) => (Some(ErrorKind::Overloaded), Duration::ZERO),
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
            // The client takes back what may have taken effect, and says that the attempt may still arrive.
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
