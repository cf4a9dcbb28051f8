//! A server that is healthy but slow: no held lock is lost, and nothing waits for ever.

use std::time::Duration;

use leasehold::Locks;
use testkit::postgres::{PgBouncer, PoolMode, Postgres};
use testkit::proxy::Proxy;
use testkit::until::PATIENCE;

use crate::support::{advisory_locks, connect, in_time, refused, session_of, stranger, until, url};

/// Longer than it takes to notice a server that hangs.
const LONG: Duration = Duration::from_secs(12);

/// Whether this session holds a name's lock the whole time.
async fn stays_held(server: &Postgres, guard: &leasehold::Guard, name: &str) {
    let look = stranger(server).await;
    let session = session_of(&look, name).await;
    assert!(session.is_some());
    tokio::time::sleep(LONG).await;
    guard.check().unwrap();
    assert_eq!(session_of(&look, name).await, session);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_of_fences_costs_no_lock_that_is_held() {
    let server = Postgres::start();
    let (locks, other) = (connect(&server).await, stranger(&server).await);
    let guard = locks.mutex("held").lock().await.unwrap();
    other.batch_execute("BEGIN; LOCK TABLE leasehold.advisory_fences_live").await.unwrap();
    // More of them than one session could answer in time, one after the other.
    let tries = ["b", "c", "d", "e"].map(|name| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.mutex(name).try_lock().await.map(drop) })
    });
    stays_held(&server, &guard, "held").await;
    for tried in tries {
        let error = in_time("the attempt is answered", tried).await.unwrap().unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
    }
    other.batch_execute("ROLLBACK").await.unwrap();
    in_time("it is released", guard.release()).await.unwrap();
    in_time("other locks are free", locks.mutex("b").lock()).await.unwrap().release().await.unwrap();
    until("nothing is left", async || advisory_locks(&other).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_is_down_costs_no_lock_that_is_held() {
    let server = Postgres::start();
    let (locks, look) = (connect(&server).await, stranger(&server).await);
    let guard = locks.mutex("held").lock().await.unwrap();
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    server.sql("SELECT pg_reload_conf()");
    until("it counts", async || server.sql("SHOW synchronous_standby_names") == "nobody").await;
    // Its fence is committed here, and waits for the standby.
    let attempt = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.mutex("b").request_timeout(2 * PATIENCE).try_lock().await })
    };
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until("it waits for the standby", async || {
        look.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
    stays_held(&server, &guard, "held").await;
    assert!(!attempt.is_finished());
    server.sql("ALTER SYSTEM RESET synchronous_standby_names");
    server.sql("SELECT pg_reload_conf()");
    in_time("the attempt is answered", attempt).await.unwrap().unwrap().unwrap().release().await.unwrap();
    in_time("it is released", guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_during_a_call_is_noticed_in_time() {
    let server = Postgres::start();
    let (locks, other, look) = (connect(&server).await, stranger(&server).await, stranger(&server).await);
    let guard = locks.mutex("held").lock().await.unwrap();
    other.batch_execute("BEGIN; LOCK TABLE leasehold.advisory_fences_live").await.unwrap();
    let attempt = tokio::spawn(async move { locks.mutex("b").try_lock().await.map(drop) });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    until("it waits", async || look.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0).await;
    let (lost, began) = (guard.lost(), std::time::Instant::now());
    server.freeze();
    in_time("the guard reports its loss", lost).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert!(attempt.await.unwrap().is_err());
    server.thaw();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_of_many_counters_holds_up_no_lock() {
    let server = Postgres::builder().without_fsync().start();
    let locks = connect(&server).await;
    let guard = locks.mutex("held").lock().await.unwrap();
    for (table, rest) in [("advisory_fences", ""), ("advisory_fences_live", ", 0")] {
        server.sql(&format!(
            "INSERT INTO leasehold.{table} SELECT 1, n, 1{rest} FROM generate_series(1, 10001) AS n"
        ));
    }
    // Another session is at work on one counter: the sweep waits for it, and no client waits for the sweep.
    let (other, look) = (stranger(&server).await, stranger(&server).await);
    other
        .batch_execute("BEGIN; SELECT FROM leasehold.advisory_fences_live WHERE key = 1 FOR UPDATE")
        .await
        .unwrap();
    let sweep = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.sweep().await })
    };
    let waits =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%DELETE%'";
    until("it waits", async || look.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 1).await;
    let shared = server.sql("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted");
    let sweeper = server
        .sql("SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%DELETE%'");
    assert_ne!(shared, sweeper, "the sweep is on the session of the locks");
    other.batch_execute("ROLLBACK").await.unwrap();
    let swept = in_time("the sweep is answered", sweep).await.unwrap();
    // Whether or not it was released before its limit, the next sweeps reach the last counter.
    let mut counters = swept.map_or(0, |swept| swept.counters);
    until("all are gone", async || {
        counters += locks.sweep().await.unwrap().counters;
        server.sql("SELECT count(*) FROM leasehold.advisory_fences WHERE fence = 1") == "0"
    })
    .await;
    assert!(counters <= 10_001, "{counters}");
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_with_too_few_connections_holds_up_nobody_for_long() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server, PoolMode::Session, 2);
    let proxy = Proxy::before(([127, 0, 0, 1], pooler.port()).into()).unwrap();
    let through = format!(
        "postgres+advisory://postgres@{}/postgres?pooler=session&connections=8&connect_timeout=1",
        proxy.address()
    );
    let locks = Locks::connect(&through).await.unwrap();
    let held = locks.mutex("x").lock().await.unwrap();
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.mutex("x").lock().await?.release().await })
        })
        .collect();
    let look = stranger(&server).await;
    until("one waits", async || advisory_locks(&look).await == 2).await;
    // Claims without a connection give up in time, and try again.
    let before = proxy.counts().accepted;
    until("others have tried several times", async || proxy.counts().accepted >= before + 9).await;
    // A claim that needs no connection of its own goes on.
    in_time("it is free", locks.mutex("y").lock()).await.unwrap().release().await.unwrap();
    held.release().await.unwrap();
    for waiter in waiters {
        if let Err(error) = in_time("the waiter is answered", waiter).await.unwrap() {
            assert!(error.is_retryable(), "{error:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_ends_in_time_at_whatever_step_the_server_hangs() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server, PoolMode::Session, 8);
    for (port, options, held_up_at) in [
        (server.port(), "", &b"set_config"[..]),
        (server.port(), "", b"to_regclass"),
        (server.port(), "", b"CREATE UNLOGGED"),
        (pooler.port(), "&pooler=session", b"leasehold.probe"),
        (pooler.port(), "&pooler=session", b"BEGIN"),
        (pooler.port(), "&pooler=session", b"ROLLBACK"),
    ] {
        let proxy = Proxy::before(([127, 0, 0, 1], port).into()).unwrap();
        let url = format!(
            "postgres+advisory://postgres@{}/postgres?keepalive=3600&connect_timeout=1{options}",
            proxy.address()
        );
        let _held = proxy.hold_request(held_up_at);
        let error = in_time("it is refused", refused(&url)).await;
        assert!(error.is_retryable(), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_dead_client_check_does_not_refuse_the_server() {
    let server = Postgres::start();
    // As on a system that cannot do it: the setting exists, and any value but 0 is refused.
    server.sql(
        "CREATE SCHEMA other; CREATE FUNCTION other.set_config(name text, value text, local boolean) RETURNS text
         LANGUAGE plpgsql AS $$ BEGIN
             IF name = 'client_connection_check_interval' THEN
                 RAISE 'client_connection_check_interval must be set to 0 on this platform' USING ERRCODE = '22023';
             END IF;
             RETURN pg_catalog.set_config(name, value, local);
         END $$;
         ALTER ROLE postgres SET search_path = other, pg_catalog",
    );
    let locks = Locks::connect(&url(&server, "")).await.unwrap();
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
}
