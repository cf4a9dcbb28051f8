//! Loss: ended sessions, restarted and frozen servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::backends::postgres::AdvisoryKey;
use leasehold::{ErrorKind, Locks, State};
use testkit::postgres::{Postgres, Stop};
use testkit::proxy::{Direction, Proxy};

use crate::support::{PATIENCE, advisory_locks, connect, stranger, until, url};

const TERMINATE_HOLDERS: &str =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted";
const TERMINATE_WAITERS: &str =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_session_was_ended_knows_within_a_second() {
    let server = Postgres::start();
    let (locks, look) = (connect(&server).await, stranger(&server).await);
    for waited in [false, true] {
        let guard = if waited {
            // One that was waited for is on a session of its own.
            let first = locks.mutex("x").lock().await.unwrap();
            let second = {
                let locks = locks.clone();
                tokio::spawn(async move { locks.mutex("x").lock().await.unwrap() })
            };
            until("it waits", || async { advisory_locks(&look).await == 2 }).await;
            first.release().await.unwrap();
            second.await.unwrap()
        } else {
            locks.mutex("x").lock().await.unwrap()
        };
        let lost = guard.lost();
        let began = Instant::now();
        look.query_one(TERMINATE_HOLDERS, &[]).await.unwrap();
        tokio::time::timeout(PATIENCE, lost).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert_eq!(guard.state(), State::Lost);
        // The client goes on with a new session.
        let again = locks.mutex("x").lock().await.unwrap();
        assert!(again.fence() > guard.fence());
        drop(guard);
        again.release().await.unwrap();
    }
    until("nothing is left", || async { advisory_locks(&look).await == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_session_was_ended_waits_on() {
    let server = Postgres::start();
    let (one, other, look) = (connect(&server).await, connect(&server).await, stranger(&server).await);
    let held = one.mutex("x").lock().await.unwrap();
    let waiter = tokio::spawn(async move { other.mutex("x").lock().await.unwrap() });
    for _ in 0..3 {
        until("it waits", || async { advisory_locks(&look).await == 2 }).await;
        look.query_one(TERMINATE_WAITERS, &[]).await.unwrap();
    }
    until("it waits again", || async { advisory_locks(&look).await == 2 }).await;
    assert!(!waiter.is_finished());
    held.release().await.unwrap();
    tokio::time::timeout(PATIENCE, waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_storm_of_ended_sessions_fences_keep_their_order_and_nothing_is_left() {
    let server = Postgres::builder().without_fsync().start();
    let look = stranger(&server).await;
    let highest = Arc::new(AtomicU64::new(0));
    let end = Instant::now() + Duration::from_secs(4);
    let mut all = Vec::new();
    for _ in 0..6 {
        let (locks, highest) = (connect(&server).await, Arc::clone(&highest));
        all.push(tokio::spawn(async move {
            let mut held = 0;
            while Instant::now() < end {
                let before = highest.load(Ordering::SeqCst);
                let Ok(guard) = locks.mutex("x").max_wait(Duration::from_secs(20)).lock().await else {
                    continue;
                };
                assert!(guard.fence().get() > before, "{} after {before}", guard.fence());
                highest.fetch_max(guard.fence().get(), Ordering::SeqCst);
                held += 1;
                tokio::time::sleep(Duration::from_millis(2)).await;
                let _ = guard.release().await;
            }
            held
        }));
    }
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
        look.query_one(TERMINATE_HOLDERS, &[]).await.unwrap();
        look.query_one(TERMINATE_WAITERS, &[]).await.unwrap();
    }
    let mut held = 0;
    for one in all {
        held += one.await.unwrap();
    }
    assert!(held > 20, "{held}");
    until("nothing is left", || async { advisory_locks(&look).await == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_has_freed_everything_and_is_used_again() {
    let mut server = Postgres::start();
    let locks = connect(&server).await;
    for how in [Stop::Immediate, Stop::Kill, Stop::Fast] {
        let guard = locks.mutex("x").lock().await.unwrap();
        let lost = guard.lost();
        server.stop(how);
        tokio::time::timeout(PATIENCE, lost).await.unwrap();
        let error = locks.mutex("y").try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "a broken store is not contention");
        server.start_again();
        let again = locks.mutex("x").lock().await.unwrap();
        assert!(again.fence() > guard.fence());
        again.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_is_noticed_within_fifteen_seconds() {
    let server = Postgres::start();
    let locks = Locks::connect(&url(&server, "")).await.unwrap();
    let guard = locks.mutex("x").lock().await.unwrap();
    let lost = guard.lost();
    let began = Instant::now();
    server.freeze();
    tokio::time::timeout(PATIENCE, lost).await.unwrap();
    let noticed = began.elapsed();
    assert!(noticed < Duration::from_secs(15), "{noticed:?}");
    assert!(noticed > Duration::from_secs(4), "one late answer is no loss: {noticed:?}");
    server.thaw();
    let again = locks.mutex("x").lock().await.unwrap();
    assert!(again.fence() > guard.fence());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_a_server_that_hangs_knows_before_another_has_the_lock() {
    let server = Postgres::start();
    let builder = leasehold::backends::postgres::Advisory::parse(&url(&server, "")).unwrap();
    let impatient = Locks::new(builder.keepalive(Duration::from_millis(100)).connect().await.unwrap());
    let (patient, look) = (connect(&server).await, stranger(&server).await);
    let mut given_up = 0;
    for round in 0..8 {
        let guard = impatient.mutex("x").lock().await.unwrap();
        let next = patient.mutex("x");
        let mut waiter = tokio::spawn(async move { next.lock().await.unwrap() });
        until("it waits", || async { advisory_locks(&look).await == 2 }).await;
        server.freeze();
        // It is given up after a tenth of a second or two, and looked at four times a second.
        tokio::time::sleep(Duration::from_millis(210 + 20 * round)).await;
        server.thaw();
        let next = match tokio::time::timeout(Duration::from_secs(2), &mut waiter).await {
            Ok(next) => {
                assert_eq!(guard.state(), State::Lost, "round {round}");
                given_up += 1;
                next
            }
            Err(_) => {
                guard.release().await.unwrap();
                waiter.await
            }
        };
        next.unwrap().release().await.unwrap();
    }
    assert!(given_up > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keepalive_of_an_idle_holder_is_no_loss() {
    let server = Postgres::start();
    let builder = leasehold::backends::postgres::Advisory::parse(&url(&server, "")).unwrap();
    let store = builder.keepalive(Duration::from_millis(200)).connect().await.unwrap();
    let locks = Locks::new(store);
    let guard = locks.mutex("x").lock().await.unwrap();
    let waiter = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.mutex("x").lock().await.unwrap() })
    };
    tokio::time::sleep(Duration::from_secs(2)).await; // ten times the keepalive
    guard.check().unwrap();
    guard.release().await.unwrap();
    assert_eq!(waiter.await.unwrap().attempts(), 2, "the waiter stood in the queue all the time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_noticed_by_holders_and_waiters_within_fifteen_seconds() {
    let server = Postgres::start();
    let proxy = Proxy::before(([127, 0, 0, 1], server.port()).into()).unwrap();
    let through = format!("postgres+advisory://postgres@{}/postgres", proxy.address());
    let (locks, direct) = (Locks::connect(&through).await.unwrap(), connect(&server).await);
    let look = stranger(&server).await;
    let mine = locks.mutex("mine").lock().await.unwrap();
    let other = direct.mutex("other").lock().await.unwrap();
    let waiter = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.mutex("other").lock().await })
    };
    until("it waits", || async { advisory_locks(&look).await == 3 }).await;
    let (lost, began) = (mine.lost(), Instant::now());
    proxy.blackhole();
    tokio::time::timeout(PATIENCE, lost).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    // A waiter that can do nothing says so, and does not wait for ever.
    let error = tokio::time::timeout(PATIENCE, waiter).await.unwrap().unwrap().unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    proxy.discard();
    proxy.pass();
    other.release().await.unwrap();
    locks.mutex("other").lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_notices_that_the_server_hangs_also_if_somebody_ended_the_session_that_would_have_told() {
    let server = Postgres::start();
    let builder = leasehold::backends::postgres::Advisory::parse(&url(&server, "")).unwrap();
    let store = builder.keepalive(Duration::from_millis(500)).connect().await.unwrap();
    let (locks, direct, look) = (Locks::new(store), connect(&server).await, stranger(&server).await);
    let other = direct.mutex("other").lock().await.unwrap();
    let waiter = tokio::spawn(async move { locks.mutex("other").lock().await });
    until("it waits", || async { advisory_locks(&look).await == 2 }).await;
    let ended = look
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' \
             AND pid <> pg_backend_pid() AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(ended, 1);
    let clients = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";
    until("there is another", async || look.query_one(clients, &[]).await.unwrap().get::<_, i64>(0) == 4)
        .await;
    server.freeze();
    let error = tokio::time::timeout(PATIENCE, waiter).await.unwrap().unwrap().unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    server.thaw();
    other.release().await.unwrap();
}

/// A proxy before a server, and a store with a quick keepalive behind it.
async fn through_a_proxy(server: &Postgres) -> (Proxy, Locks) {
    let proxy = Proxy::before(([127, 0, 0, 1], server.port()).into()).unwrap();
    let url = format!("postgres+advisory://postgres@{}/postgres", proxy.address());
    let builder = leasehold::backends::postgres::Advisory::parse(&url).unwrap();
    let store = builder.keepalive(Duration::from_secs(1)).connect().await.unwrap();
    (proxy, Locks::new(store))
}

/// A key that can be found among the bytes of a request.
const KEY: i64 = 0x0123_4567_89AB_CDEF;

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_grant_was_never_answered_is_freed_with_its_session_and_can_be_had_again() {
    let server = Postgres::start();
    let (proxy, locks) = through_a_proxy(&server).await;
    let look = stranger(&server).await;
    let name = AdvisoryKey::Bigint(KEY).to_string();
    for _ in 0..3 {
        // A session to ask on: one cannot be made while no answers come.
        locks.mutex(&name).lock().await.unwrap().release().await.unwrap();
        proxy.blackhole_one_way(Direction::ToClient);
        let lock = {
            let (locks, name) = (locks.clone(), name.clone());
            tokio::spawn(async move { locks.mutex(&name).lock().await })
        };
        until("it is granted", || async { advisory_locks(&look).await == 1 }).await;
        proxy.reset();
        proxy.pass();
        // Told or made again: but never twice, and never nobody's.
        match tokio::time::timeout(PATIENCE, lock).await.unwrap().unwrap() {
            Ok(guard) if advisory_locks(&look).await == 1 => {
                guard.release().await.unwrap();
            }
            // The answer came, and then its session was reset: that is a loss, and told.
            Ok(guard) => {
                tokio::time::timeout(PATIENCE, guard.lost()).await.unwrap();
            }
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        until("it is free", || async { advisory_locks(&look).await == 0 }).await;
    }
    locks.mutex(&name).lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_delivered_after_its_session_was_given_up_leaves_no_lock() {
    let server = Postgres::start();
    let (proxy, locks) = through_a_proxy(&server).await;
    let (direct, look) = (connect(&server).await, stranger(&server).await);
    let name = AdvisoryKey::Bigint(KEY).to_string();
    locks.mutex(&name).lock().await.unwrap().release().await.unwrap();
    let mut held = proxy.hold_request(&KEY.to_be_bytes());
    let began = Instant::now();
    let error = locks.mutex(&name).try_lock().await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "twice the keepalive: {:?}", began.elapsed());
    held.caught().await;
    let passed = proxy.counts().to_server;
    held.deliver();
    until("it arrives", || async { proxy.counts().to_server > passed }).await;
    let guard = tokio::time::timeout(PATIENCE, direct.mutex(&name).lock()).await.unwrap().unwrap();
    until("nobody else has it", || async { advisory_locks(&look).await == 1 }).await;
    guard.release().await.unwrap();
    locks.mutex(&name).lock().await.unwrap().release().await.unwrap();
    until("nothing is left", || async { advisory_locks(&look).await == 0 }).await;
}
