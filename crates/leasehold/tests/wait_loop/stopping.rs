//! Acquires that are cancelled or closed.

use leasehold::{Cancel, ErrorKind, GuardState, Mode};
use testkit::faulty::{Act, Verb};
use testkit::paused::{Paused, poll_at_most, settle};
use tokio_util::sync::CancellationToken;

use crate::{HOUR, ms};

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
                // If the process ended now, it would leave nothing behind, though its task was not polled since.
                assert_eq!(world.store.count(Verb::Release), 1, "{attempt:?}");
                assert!(world.look("x").await.waiters.is_empty());
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
async fn cancellation_token_of_the_program_ends_a_wait() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    let shutdown = CancellationToken::new();
    // The parent of a token cancels it too.
    let mutex = world.locks.mutex("x").cancel_on(shutdown.child_token());
    let waiting = tokio::spawn(async move { mutex.lock().await });
    tokio::time::sleep(ms(4000)).await;
    assert!(!waiting.is_finished());
    shutdown.cancel();
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Aborted);
    settle().await;
    assert!(world.look("x").await.waiters.is_empty());
    world.end(&holder).await;
    assert!(world.is_free("x").await);
    // A switch made from a token cancels that token.
    let token = CancellationToken::new();
    Cancel::from(&token).cancel();
    assert!(token.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_makes_no_new_attempts_and_keeps_its_guards() {
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
    assert_eq!(guard.state(), GuardState::Held, "it is still renewed");
    assert_eq!(guard.release().await.unwrap(), GuardState::Released);
}

#[tokio::test(start_paused = true)]
async fn close_does_not_wait_for_ever_for_an_acquire_put_aside() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    let mutex = world.locks.mutex("x");
    let mut aside = Box::pin(mutex.lock());
    assert!(poll_at_most(1, aside.as_mut()).await.is_none());
    assert_eq!(world.look("x").await.waiters.len(), 1);
    world.locks.close().await;
    assert_eq!(world.elapsed(), ms(5000));
    drop(aside);
    world.locks.close().await;
    assert_eq!(world.elapsed(), ms(5000));
    assert!(world.look("x").await.waiters.is_empty());
    world.end(&holder).await;
    assert!(world.is_free("x").await);
}
