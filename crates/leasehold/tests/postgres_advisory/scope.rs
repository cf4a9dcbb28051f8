//! Locks on the caller's own connections.

use std::pin::pin;
use std::time::Duration;

use leasehold::backends::postgres::AdvisoryKey;
use leasehold::backends::postgres::advisory::scope::{InTransaction, OnClient};
use leasehold::{ErrorKind, Mode};
use testkit::postgres::{PgBouncer, PoolMode, Postgres};

use crate::support::{advisory_locks, connect, grant_as_time_ends, in_time, stranger, until};

const SOON: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_lock_excludes_the_store_until_it_ends() {
    let server = Postgres::start();
    let (locks, look) = (connect(&server).await, stranger(&server).await);
    let mut client = stranger(&server).await;
    for name in ["MyLock", "a name that is hashed", "ffffffffffffffff"] {
        let key = AdvisoryKey::from_name(name, true).unwrap();
        for commit in [true, false] {
            let transaction = client.transaction().await.unwrap();
            InTransaction::new(&transaction).lock(key, Mode::Exclusive).await.unwrap();
            assert!(locks.mutex(name).try_lock().await.unwrap().is_none());
            if commit {
                transaction.commit().await.unwrap()
            } else {
                transaction.rollback().await.unwrap()
            }
            until("it is free", async || advisory_locks(&look).await == 0).await;
            locks.mutex(name).try_lock().await.unwrap().unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_survives_a_failed_wait_with_its_settings() {
    let server = Postgres::start();
    let locks = connect(&server).await;
    let mut client = stranger(&server).await;
    client.batch_execute("SET lock_timeout = '7s'").await.unwrap();
    let key = AdvisoryKey::from_name("x", false).unwrap();
    let held = locks.mutex("x").lock().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute("SET LOCAL lock_timeout = '9s'; CREATE TABLE kept ()").await.unwrap();
    let scope = InTransaction::new(&transaction);
    assert!(!scope.try_lock(key, Mode::Exclusive).await.unwrap());
    assert!(!scope.try_lock(key, Mode::Shared).await.unwrap());
    assert!(!scope.lock_within(key, Mode::Exclusive, SOON).await.unwrap());
    let setting = |row: tokio_postgres::Row| row.get::<_, String>(0);
    assert_eq!(setting(transaction.query_one("SHOW lock_timeout", &[]).await.unwrap()), "9s");
    held.release().await.unwrap();
    assert!(scope.lock_within(key, Mode::Exclusive, Duration::from_secs(60)).await.unwrap());
    assert_eq!(setting(transaction.query_one("SHOW lock_timeout", &[]).await.unwrap()), "9s");
    let again = scope.try_lock(key, Mode::Exclusive).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Deadlock, "never a silent second grant");
    assert_eq!(scope.lock_within(key, Mode::Shared, SOON).await.unwrap_err().kind(), ErrorKind::Deadlock);
    let permits = scope.try_lock(key, Mode::Permit { limit: 2 }).await.unwrap_err();
    assert_eq!(permits.kind(), ErrorKind::Unsupported);
    transaction.commit().await.unwrap();
    assert_eq!(setting(client.query_one("SHOW lock_timeout", &[]).await.unwrap()), "7s");
    client.execute("SELECT FROM kept", &[]).await.unwrap();
    assert!(locks.mutex("x").try_lock().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_wait_for_each_other_get_a_deadlock_error() {
    let server = Postgres::start();
    let (mut one, mut two) = (stranger(&server).await, stranger(&server).await);
    let (a, b) = (AdvisoryKey::Bigint(1), AdvisoryKey::Bigint(2));
    let (one, two) = (one.transaction().await.unwrap(), two.transaction().await.unwrap());
    InTransaction::new(&one).lock(a, Mode::Exclusive).await.unwrap();
    InTransaction::new(&two).lock(b, Mode::Exclusive).await.unwrap();
    let first = async {
        let answer = InTransaction::new(&one).lock(b, Mode::Exclusive).await;
        one.rollback().await.unwrap();
        answer
    };
    let second = async {
        let answer = InTransaction::new(&two).lock(a, Mode::Exclusive).await;
        two.rollback().await.unwrap();
        answer
    };
    let (first, second) = tokio::join!(first, second);
    let kinds: Vec<_> = [first, second].into_iter().filter_map(Result::err).map(|e| e.kind()).collect();
    assert_eq!(kinds, [ErrorKind::Deadlock]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_on_the_callers_session_lasts_until_freed_or_its_end() {
    let server = Postgres::start();
    let locks = connect(&server).await;
    let mut client = stranger(&server).await;
    let key = AdvisoryKey::from_name("x", false).unwrap();
    let held = locks.mutex("x").lock().await.unwrap();
    let mut scope = OnClient::new(&mut client);
    assert!(!scope.try_lock(key, Mode::Exclusive).await.unwrap());
    assert!(!scope.lock_within(key, Mode::Exclusive, SOON).await.unwrap());
    assert!(!scope.unlock(key, Mode::Exclusive).await.unwrap());
    held.release().await.unwrap();
    assert!(scope.lock_within(key, Mode::Exclusive, Duration::from_secs(60)).await.unwrap());
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    assert_eq!(scope.try_lock(key, Mode::Exclusive).await.unwrap_err().kind(), ErrorKind::Deadlock);
    assert!(scope.unlock(key, Mode::Exclusive).await.unwrap());
    scope.lock(key, Mode::Shared).await.unwrap();
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    assert!(locks.rwlock("x").try_read().await.unwrap().is_some());
    let row = client.query_one("SHOW lock_timeout", &[]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "0");
    drop(client);
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_wait_on_the_callers_session_restores_its_settings() {
    let server = Postgres::start();
    let (locks, look) = (connect(&server).await, stranger(&server).await);
    let mut client = stranger(&server).await;
    client.batch_execute("SET lock_timeout = '7s'").await.unwrap();
    let key = AdvisoryKey::from_name("x", false).unwrap();
    let held = locks.mutex("x").lock().await.unwrap();
    {
        let mut scope = OnClient::new(&mut client);
        let mut wait = pin!(scope.lock_within(key, Mode::Exclusive, Duration::from_secs(3)));
        let stands = until("it waits", async || advisory_locks(&look).await == 2);
        tokio::select! {
            biased;
            answer = &mut wait => panic!("{answer:?}"),
            () = stands => {}
        }
    }
    // Asked after the dropped call.
    let row = client.query_one("SHOW lock_timeout", &[]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "7s");
    assert_eq!(advisory_locks(&look).await, 1, "nobody waits any more");
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_locks_work_behind_a_transaction_mode_pooler() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server, PoolMode::Transaction, 4);
    let (mut client, connection) =
        tokio_postgres::connect(&pooler.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let (locks, look) = (connect(&server).await, stranger(&server).await);
    let key = AdvisoryKey::from_name("x", false).unwrap();
    let transaction = client.transaction().await.unwrap();
    let scope = InTransaction::new(&transaction);
    assert!(scope.lock_within(key, Mode::Exclusive, Duration::from_secs(60)).await.unwrap());
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    transaction.commit().await.unwrap();
    until("it is free", async || advisory_locks(&look).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_comes_as_the_time_ends_is_granted() {
    let server = Postgres::start();
    let (locks, look) = (connect(&server).await, stranger(&server).await);
    let mut client = stranger(&server).await;
    let key = AdvisoryKey::from_name("x", false).unwrap();
    let held = locks.mutex("x").lock().await.unwrap();
    let waiter = tokio::spawn(async move {
        let mut own = OnClient::new(&mut client);
        let granted = own.lock_within(key, Mode::Exclusive, Duration::from_secs(4)).await.unwrap();
        let had = own.unlock(key, Mode::Exclusive).await.unwrap();
        (granted, had, own.unlock(key, Mode::Exclusive).await.unwrap())
    });
    let time = Duration::from_millis(4100);
    grant_as_time_ends(&look, held, time).await;
    assert_eq!(in_time("it ends", waiter).await.unwrap(), (true, true, false));
}
