//! Calls from runtimes that are blocked, gone, or do no I/O: their sessions live on.

use std::pin::pin;
use std::time::{Duration, Instant};

use leasehold::GuardState;
use testkit::blocked::{self, Blocked};
use testkit::postgres::Postgres;
use tokio::runtime::Builder;
use tokio_postgres::Client;

use crate::support::{advisory_locks, connect, in_time, quiet, runtime, session_of, stranger, until};

/// Ends the sessions that hold a key or wait for one.
async fn end_sessions(look: &Client) {
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory'";
    look.query_one(end, &[]).await.unwrap();
}

#[test]
fn a_lock_outlives_its_runtime_and_can_be_released() {
    let server = Postgres::start();
    let (first, second) = (runtime(), runtime());
    let locks = first.block_on(connect(&server));
    let guard = first.block_on(locks.mutex("x").lock()).unwrap();
    drop(first);
    second.block_on(async {
        let look = stranger(&server).await;
        assert_eq!(advisory_locks(&look).await, 1);
        assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
        guard.check().unwrap();
        assert_eq!(guard.release().await.unwrap(), GuardState::Released);
        locks.mutex("x").lock().await.unwrap().release().await.unwrap();
        assert_eq!(advisory_locks(&look).await, 0);
    });
}

#[test]
fn a_stuck_call_on_a_blocked_runtime_delays_and_hides_nothing() {
    let server = Postgres::start();
    let own = runtime();
    let locks = own.block_on(quiet(&server));
    // All of this is on one session.
    own.block_on(async { locks.mutex("warm").lock().await.unwrap().release().await.unwrap() });
    let stuck = locks.clone();
    // Its session may be gone when it continues.
    let blocked = Blocked::in_call(move || async move { drop(stuck.mutex("stuck").lock().await) });
    own.block_on(async {
        let began = Instant::now();
        locks.mutex("free").lock().await.unwrap().release().await.unwrap();
        // Before the client would repeat an unanswered attempt.
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        let guard = locks.mutex("held").lock().await.unwrap();
        let look = stranger(&server).await;
        until("what was sent is done", async || advisory_locks(&look).await == 2).await;
        end_sessions(&look).await;
        in_time("the loss is noticed", guard.lost()).await;
    });
    blocked.go_on();
}

#[test]
fn a_loss_is_noticed_although_the_only_call_is_stuck() {
    let server = Postgres::start();
    let own = runtime();
    let locks = own.block_on(quiet(&server));
    let guard = own.block_on(locks.mutex("held").lock()).unwrap();
    own.block_on(async {
        let look = stranger(&server).await;
        let mutex = locks.mutex("stuck");
        let mut call = pin!(mutex.lock());
        blocked::send(call.as_mut()).await;
        end_sessions(&look).await;
        // This runtime does nothing else meanwhile.
        testkit::until::until("the loss is noticed", || guard.state() != GuardState::Held);
    });
}

#[test]
fn a_call_whose_runtime_ends_under_it_leaves_nothing() {
    let server = Postgres::start();
    let (first, second) = (runtime(), runtime());
    let locks = first.block_on(connect(&server));
    let taken = locks.clone();
    first.spawn(async move { taken.mutex("x").lock().await });
    // One turn: the statement is sent.
    first.block_on(tokio::task::yield_now());
    drop(first);
    second.block_on(async {
        let look = stranger(&server).await;
        // On the same session, and so after what was sent before.
        in_time("it is free", locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
        until("nothing is left", async || advisory_locks(&look).await == 0).await;
    });
}

#[test]
fn a_runtime_that_ends_during_a_call_frees_no_other_lock() {
    let server = Postgres::start();
    let own = runtime();
    let locks = own.block_on(connect(&server));
    let guard = own.block_on(locks.mutex("held").lock()).unwrap();
    let look = own.block_on(stranger(&server));
    let session = |name: &str| own.block_on(session_of(&look, name));
    let before = session("held");
    for round in 0..20 {
        let ends = runtime();
        // On the session of the held lock; the call disappears with this runtime when that ends.
        let call = locks.mutex("x");
        ends.spawn(async move { call.lock().await });
        for _ in 0..1 + round % 3 {
            ends.block_on(tokio::task::yield_now());
        }
        drop(ends);
        own.block_on(async {
            in_time("it is free", locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
        });
        assert_eq!(session("held"), before, "round {round}");
        assert_eq!(guard.state(), GuardState::Held, "round {round}");
    }
    assert_eq!(own.block_on(guard.release()).unwrap(), GuardState::Released);
}

#[test]
fn a_runtime_that_does_no_io_can_lock() {
    let server = Postgres::start();
    let locks = runtime().block_on(connect(&server));
    let without = Builder::new_current_thread().enable_time().build().unwrap();
    for _ in 0..2 {
        without.block_on(async { locks.mutex("x").lock().await.unwrap().release().await.unwrap() });
    }
}
