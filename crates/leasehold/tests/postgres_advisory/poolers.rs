//! Poolers: the client refuses what they break, however they come in between, and what they do not break works.

use leasehold::{ErrorKind, Locks};
use testkit::postgres::{PgBouncer, PoolMode, Postgres};
use testkit::proxy::Proxy;

use crate::support::{advisory, advisory_locks, connect, in_time, refused, stranger, until, url};

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_transaction_mode_is_refused_whatever_its_size() {
    let server = Postgres::start();
    for connections in [1, 2, 20] {
        let pooler = PgBouncer::start(&server, PoolMode::Transaction, connections);
        for _ in 0..5 {
            // Even if the URL says that it is in session mode.
            for options in ["", "?pooler=session"] {
                let error = refused(&(advisory(&pooler.url()) + options)).await;
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
                assert!(error.message().contains("pool_mode"), "{error}");
            }
        }
        assert_eq!(advisory_locks(&stranger(&server).await).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_pooler_in_transaction_mode_is_refused_too() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server, PoolMode::Transaction, 8);
    let mut others = Vec::new();
    for _ in 0..6 {
        let (client, connection) =
            tokio_postgres::connect(&pooler.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        others.push(tokio::spawn(async move {
            loop {
                client.batch_execute("BEGIN; SELECT 1; COMMIT").await.unwrap();
            }
        }));
    }
    for _ in 0..20 {
        for options in ["", "?pooler=session"] {
            assert_eq!(refused(&(advisory(&pooler.url()) + options)).await.kind(), ErrorKind::Unsupported);
        }
    }
    others.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_pooler_in_session_mode_works_like_the_server() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server, PoolMode::Session, 20);
    let error = refused(&advisory(&pooler.url())).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.message().contains("pooler=session"), "{error}");
    let locks = Locks::connect(&(advisory(&pooler.url()) + "?pooler=session")).await.unwrap();
    let direct = Locks::connect(&url(&server, "")).await.unwrap();
    let held = locks.mutex("x").lock().await.unwrap();
    assert!(direct.mutex("x").try_lock().await.unwrap().is_none());
    let waiter = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.mutex("x").lock().await.unwrap() })
    };
    let look = stranger(&server).await;
    until("it waits", async || advisory_locks(&look).await == 2).await;
    held.release().await.unwrap();
    in_time("the waiter has it", waiter).await.unwrap().release().await.unwrap();
}

/// A client's second host is used only when the first is not there.
fn hosts(first: &Proxy, second: &PgBouncer, options: &str) -> String {
    format!(
        "postgres+advisory://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?{options}",
        first.address().port(),
        second.port()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_refused_also_by_connections_that_are_made_later() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server, PoolMode::Transaction, 5);
    let proxy = Proxy::before(([127, 0, 0, 1], server.port()).into()).unwrap();
    let locks = Locks::connect(&hosts(&proxy, &pooler, "")).await.unwrap();
    let held = connect(&server).await.mutex("x").lock().await.unwrap();
    proxy.refuse(true);
    // A waiter needs a connection of its own.
    let error = in_time("it does not wait", locks.mutex("x").lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.message().contains("pool_mode"), "{error}");
    held.release().await.unwrap();
    assert_eq!(advisory_locks(&stranger(&server).await).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_on_a_session_that_is_not_ours_is_none() {
    let server = Postgres::start();
    let session = PgBouncer::start(&server, PoolMode::Session, 20);
    let transaction = PgBouncer::start(&server, PoolMode::Transaction, 2);
    let proxy = Proxy::before(([127, 0, 0, 1], session.port()).into()).unwrap();
    let locks = Locks::connect(&hosts(&proxy, &transaction, "pooler=session")).await.unwrap();
    let (direct, look) = (connect(&server).await, stranger(&server).await);
    // From here on, what the URL says about the pooler is no longer true.
    proxy.refuse(true);
    let wait = async || {
        let held = direct.mutex("x").lock().await.unwrap();
        let locks = locks.clone();
        let waiter = tokio::spawn(async move { locks.mutex("x").lock().await });
        until("it waits", async || advisory_locks(&look).await == 2).await;
        held.release().await.unwrap();
        in_time("the waiter is answered", waiter).await.unwrap()
    };
    // The pooler has only one session, so the client gets the same one, as if it were its own.
    wait().await.unwrap().release().await.unwrap();
    // And now another client has it.
    let (other, connection) =
        tokio_postgres::connect(&transaction.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    other.batch_execute("BEGIN").await.unwrap();
    let error = wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.message().contains("pool_mode"), "{error}");
}
