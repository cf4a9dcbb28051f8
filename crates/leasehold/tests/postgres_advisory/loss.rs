//! Loss: ended sessions, restarted and frozen servers.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::backend::{Backend as _, Claim, Mode};
use leasehold::backends::postgres::{Advisory, AdvisoryKey};
use leasehold::{ErrorKind, Guard, GuardState, Locks};
use testkit::postgres::{Postgres, Stop};
use testkit::proxy::{Direction, Proxy};
use testkit::until::PATIENCE;
use tokio::task::JoinSet;

use crate::support::{advisory_locks, connect, in_time, quiet, session_of, stranger, until, url};

const TERMINATE_HOLDERS: &str =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted";
const TERMINATE_WAITERS: &str =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_session_was_ended_knows_at_once() {
    let server = Postgres::start();
    let (locks, look) = (quiet(&server).await, stranger(&server).await);
    for waited in [false, true] {
        let guard = if waited {
            // A lock that was waited for is on its own session.
            let first = locks.mutex("x").lock().await.unwrap();
            let second = {
                let locks = locks.clone();
                tokio::spawn(async move { locks.mutex("x").lock().await.unwrap() })
            };
            until("it waits", async || advisory_locks(&look).await == 2).await;
            first.release().await.unwrap();
            in_time("the waiter has it", second).await.unwrap()
        } else {
            locks.mutex("x").lock().await.unwrap()
        };
        let lost = guard.lost();
        look.query_one(TERMINATE_HOLDERS, &[]).await.unwrap();
        in_time("the guard reports its loss", lost).await;
        assert_eq!(guard.state(), GuardState::Lost);
        // The client goes on with a new session.
        let again = locks.mutex("x").lock().await.unwrap();
        assert!(again.fence() > guard.fence());
        drop(guard);
        again.release().await.unwrap();
    }
    until("nothing is left", async || advisory_locks(&look).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_session_was_ended_waits_on() {
    let server = Postgres::start();
    let (one, other, look) = (connect(&server).await, connect(&server).await, stranger(&server).await);
    let held = one.mutex("x").lock().await.unwrap();
    let waiter = tokio::spawn(async move { other.mutex("x").lock().await.unwrap() });
    for _ in 0..3 {
        until("it waits", async || advisory_locks(&look).await == 2).await;
        look.query_one(TERMINATE_WAITERS, &[]).await.unwrap();
    }
    until("it waits again", async || advisory_locks(&look).await == 2).await;
    assert!(!waiter.is_finished());
    held.release().await.unwrap();
    in_time("the waiter has it", waiter).await.unwrap().release().await.unwrap();
}

/// Clients that take a lock while sessions are being ended.
#[derive(Default)]
struct Storm {
    over: AtomicBool,
    held: AtomicU64,
    last: Mutex<LastHolder>,
}

#[derive(Default)]
struct LastHolder {
    /// The fence of the last holder that came in, unless it has gone out.
    fence: Option<u64>,
    highest: u64,
}

impl Storm {
    /// Whether this holder came in after all others; one that did not has lost its session before it could say so.
    fn comes_last(&self, fence: u64) -> bool {
        let mut last = self.last.lock().unwrap();
        let is_highest = fence > last.highest;
        if is_highest {
            *last = LastHolder { fence: Some(fence), highest: fence };
        }
        is_highest
    }

    /// Goes in and out with a lock that was asked for when this was the highest fence.
    async fn go_in(&self, guard: Guard, before: u64) {
        let fence = guard.fence().get();
        assert!(fence > before, "{fence} after {before}");
        if self.comes_last(fence) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let alone = self.last.lock().unwrap().fence.take_if(|held| *held == fence).is_some();
        if !alone {
            in_time("a later holder has come in, so this guard reports its loss", guard.lost()).await;
        }
        self.held.fetch_add(1, Ordering::SeqCst);
        let _ = guard.release().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_ended_sessions_breaks_no_promise() {
    let server = Postgres::builder().without_fsync().start();
    let look = stranger(&server).await;
    let storm = Arc::new(Storm::default());
    let mut all = JoinSet::new();
    for _ in 0..6 {
        // A late sign of life is no loss here: only the storm ends sessions.
        let (locks, storm) = (quiet(&server).await, Arc::clone(&storm));
        all.spawn(async move {
            while !storm.over.load(Ordering::SeqCst) {
                let before = storm.last.lock().unwrap().highest;
                match locks.mutex("x").lock().await {
                    Ok(guard) => storm.go_in(guard, before).await,
                    Err(error) => assert!(error.is_retryable(), "{error:?}"),
                }
            }
        });
    }
    let mut ended = 0;
    while ended < 100 || storm.held.load(Ordering::SeqCst) < 100 {
        let before = storm.held.load(Ordering::SeqCst);
        for sessions in [TERMINATE_HOLDERS, TERMINATE_WAITERS] {
            ended += look.query_one(sessions, &[]).await.unwrap().get::<_, i64>(0);
        }
        // The next gust waits for it: a slow machine needs longer for a new session than to end one.
        until("a client holds it after a gust", async || storm.held.load(Ordering::SeqCst) > before).await;
    }
    storm.over.store(true, Ordering::SeqCst);
    in_time("all have ended", all.join_all()).await;
    until("nothing is left", async || advisory_locks(&look).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_has_freed_everything_and_is_used_again() {
    let mut server = Postgres::start();
    let locks = connect(&server).await;
    for how in [Stop::Immediate, Stop::Kill, Stop::Fast] {
        let guard = locks.mutex("x").lock().await.unwrap();
        let lost = guard.lost();
        server.stop(how);
        in_time("the guard reports its loss", lost).await;
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
    in_time("the guard reports its loss", lost).await;
    let noticed = began.elapsed();
    assert!(noticed < Duration::from_secs(15), "{noticed:?}");
    assert!(noticed > Duration::from_secs(4), "one late answer is no loss: {noticed:?}");
    server.thaw();
    let again = locks.mutex("x").lock().await.unwrap();
    assert!(again.fence() > guard.fence());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_on_a_hanging_server_knows_before_the_next_one_holds() {
    let server = Postgres::start();
    let builder = Advisory::parse(&url(&server, "")).unwrap();
    let impatient = Locks::new(builder.keepalive(Duration::from_millis(100)).connect().await.unwrap());
    let (patient, look) = (connect(&server).await, stranger(&server).await);
    let mut given_up = 0;
    for round in 0..8 {
        let guard = impatient.mutex("x").lock().await.unwrap();
        let next = patient.mutex("x");
        let mut waiter = tokio::spawn(async move { next.lock().await.unwrap() });
        until("it waits", async || advisory_locks(&look).await == 2).await;
        server.freeze();
        // The session is given up after a tenth of a second or two, and checked four times a second.
        tokio::time::sleep(Duration::from_millis(210 + 20 * round)).await;
        server.thaw();
        let next = match tokio::time::timeout(Duration::from_secs(2), &mut waiter).await {
            Ok(next) => {
                assert_eq!(guard.state(), GuardState::Lost, "round {round}");
                given_up += 1;
                next
            }
            Err(_) => {
                let _ = guard.release().await;
                in_time("the next one has it", waiter).await
            }
        };
        next.unwrap().release().await.unwrap();
    }
    assert!(given_up > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keepalive_of_an_idle_holder_is_no_loss() {
    let server = Postgres::start();
    let locks = Locks::connect(&url(&server, "keepalive=2")).await.unwrap();
    let look = stranger(&server).await;
    let guard = locks.mutex("x").lock().await.unwrap();
    let waiter = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.mutex("x").lock().await.unwrap() })
    };
    until("it waits", async || advisory_locks(&look).await == 2).await;
    // A sign of life is an empty query.
    let session = session_of(&look, "x").await;
    let asked =
        "SELECT query_start::text FROM pg_stat_activity WHERE pid = $1 AND query = '' AND state = 'idle'";
    let mut signs = HashSet::new();
    until("two signs of life were given", async || {
        let sign = look.query_opt(asked, &[&session]).await.unwrap();
        signs.extend(sign.map(|row| row.get::<_, String>(0)));
        signs.len() == 2
    })
    .await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    let guard = in_time("the waiter has it", waiter).await.unwrap();
    assert_eq!(guard.attempts(), 2, "the waiter stood in the queue all the time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_noticed_within_fifteen_seconds() {
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
    until("it waits", async || advisory_locks(&look).await == 3).await;
    let (lost, began) = (mine.lost(), Instant::now());
    proxy.blackhole();
    in_time("the guard reports its loss", lost).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    // A waiter that can do nothing says so, and does not wait for ever.
    let error = in_time("the waiter gets its answer", waiter).await.unwrap().unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    proxy.discard();
    proxy.pass();
    other.release().await.unwrap();
    locks.mutex("other").lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_with_a_replaced_witness_notices_a_hanging_server() {
    let server = Postgres::start();
    let builder = Advisory::parse(&url(&server, "")).unwrap();
    let store = builder.keepalive(Duration::from_millis(500)).connect().await.unwrap();
    let (locks, direct, look) = (Locks::new(store), connect(&server).await, stranger(&server).await);
    let other = direct.mutex("other").lock().await.unwrap();
    let waiter = tokio::spawn(async move { locks.mutex("other").lock().await });
    until("it waits", async || advisory_locks(&look).await == 2).await;
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
    assert_eq!(advisory_locks(&look).await, 2, "the waiter has kept its place");
    server.freeze();
    let error = in_time("the waiter gets its answer", waiter).await.unwrap().unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    server.thaw();
    other.release().await.unwrap();
}

/// Waits for a lock, and ends the session that would tell the waiter of a silent server, its witness. When the next
/// witness sends these bytes, the network goes silent.
async fn learns_of_silence(server: &Postgres, name: &str, held_up_at: Option<&[u8]>) {
    let proxy = Proxy::before(([127, 0, 0, 1], server.port()).into()).unwrap();
    let options = format!("application_name={name}&keepalive=2");
    let through = format!("postgres+advisory://postgres@{}/postgres?{options}", proxy.address());
    let (store, look) = (Advisory::connect(&through).await.unwrap(), stranger(server).await);
    let held = connect(server).await.mutex(name).lock().await.unwrap();
    let claim = Claim::new(held.name().clone(), Mode::Exclusive, PATIENCE, "me");
    let waiter = tokio::spawn(async move { store.wait(&claim).await });
    let sessions = "SELECT count(*), coalesce(count(pid) FILTER (WHERE wait_event = 'advisory'), 0) \
                    FROM pg_stat_activity WHERE application_name = $1";
    until("it waits", async || {
        let row = look.query_one(sessions, &[&name]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1)) == (2, 1)
    })
    .await;
    let trap = held_up_at.map(|bytes| proxy.hold_request(bytes));
    proxy.refuse(trap.is_none());
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 \
               AND wait_event IS DISTINCT FROM 'advisory'";
    assert_eq!(look.execute(end, &[&name]).await.unwrap(), 1);
    match trap {
        Some(mut trap) => in_time("the next one is being opened", trap.caught()).await,
        None => until("the old one is closed", async || proxy.counts().open == 1).await,
    }
    assert!(!waiter.is_finished());
    proxy.blackhole();
    let error = in_time("the waiter gets its answer", waiter).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{held_up_at:?}: {error:?}");
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_witness_cannot_be_replaced_gets_an_error() {
    let server = Postgres::start();
    // The server refuses it, or does not answer its first byte, its login, or its first statement.
    let tls = 80_877_103_u32.to_be_bytes();
    tokio::join!(
        learns_of_silence(&server, "refused", None),
        learns_of_silence(&server, "tls", Some(&tls)),
        learns_of_silence(&server, "login", Some(b"application_name")),
        learns_of_silence(&server, "statement", Some(b"set_config")),
    );
}

/// A proxy before a server, and a store with a quick keepalive behind it.
async fn through_a_proxy(server: &Postgres) -> (Proxy, Locks) {
    let proxy = Proxy::before(([127, 0, 0, 1], server.port()).into()).unwrap();
    let url = format!("postgres+advisory://postgres@{}/postgres", proxy.address());
    let builder = Advisory::parse(&url).unwrap();
    let store = builder.keepalive(Duration::from_secs(1)).connect().await.unwrap();
    (proxy, Locks::new(store))
}

/// A key that can be recognised among the bytes of a request.
const KEY: i64 = 0x0123_4567_89AB_CDEF;

#[tokio::test(flavor = "multi_thread")]
async fn an_unanswered_grant_is_freed_with_its_session() {
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
        until("it is granted", async || advisory_locks(&look).await == 1).await;
        proxy.reset();
        proxy.pass();
        // Answered or repeated, but never granted twice, and never to no client.
        match in_time("it is answered", lock).await.unwrap() {
            Ok(guard) if advisory_locks(&look).await == 1 => {
                guard.release().await.unwrap();
            }
            // The answer came, and then its session was reset: that is a loss, and the guard says so.
            Ok(guard) => {
                in_time("the guard reports its loss", guard.lost()).await;
            }
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        until("it is free", async || advisory_locks(&look).await == 0).await;
    }
    locks.mutex(&name).lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_delivered_after_its_session_ended_leaves_no_lock() {
    let server = Postgres::start();
    let (proxy, locks) = through_a_proxy(&server).await;
    let (direct, look) = (connect(&server).await, stranger(&server).await);
    let name = AdvisoryKey::Bigint(KEY).to_string();
    locks.mutex(&name).lock().await.unwrap().release().await.unwrap();
    let mut held = proxy.hold_request(&KEY.to_be_bytes());
    let attempt = locks.mutex(&name).request_timeout(2 * PATIENCE);
    let error = in_time("the keepalive ends it", attempt.try_lock()).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    held.caught().await;
    let passed = proxy.counts().to_server;
    held.deliver();
    until("it arrives", async || proxy.counts().to_server > passed).await;
    let guard = in_time("another has it", direct.mutex(&name).lock()).await.unwrap();
    until("nobody else has it", async || advisory_locks(&look).await == 1).await;
    guard.release().await.unwrap();
    locks.mutex(&name).lock().await.unwrap().release().await.unwrap();
    until("nothing is left", async || advisory_locks(&look).await == 0).await;
}
