//! Making the tables, the rights that are needed, and servers that are refused.

use std::sync::Arc;

use leasehold::backend::{Backend, Release, Released};
use leasehold::backends::postgres::{Lent, Postgres as Store};
use leasehold::{ErrorKind, Locks};
use testkit::postgres::{PgBouncer, PoolMode, Postgres};
use tokio::task::JoinSet;

use crate::support::{LONG, claim, granted, name, place, server};

/// Takes and gives back a lease.
async fn works(store: &Store) {
    let held = claim("works", LONG);
    granted(store, &held).await;
    assert_eq!(store.release(&Release::new(name("works"), held.id)).await.unwrap(), Released::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_come_first_one_makes_the_tables_and_all_go_on() {
    let place = place();
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let url = place.url.clone();
        tasks.spawn(async move { works_or_waits(&Store::connect(&url).await.unwrap()).await });
    }
    tasks.join_all().await;
    assert_eq!(place.sql("SELECT count(*) FROM leasehold.about"), "1");
}

async fn works_or_waits(store: &Store) {
    store.try_acquire(&claim("first", LONG)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_may_have_any_name() {
    let odd = "it's \"mine\"";
    let store = Store::builder(&server().url()).unwrap().schema(odd).open().await.unwrap();
    works(&store).await;
    let error = Store::builder(&server().url()).unwrap().schema("a$$b").open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_another_version_are_left_alone() {
    let place = place();
    works(&place.open().await).await;
    for (version, word) in [("99", "newer"), ("0", "version 0")] {
        place.sql(&format!("UPDATE leasehold.about SET version = {version}"));
        let error = Store::connect(&place.url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

/// The rights that docs/postgres.md lists, and no others.
pub(crate) const GRANTS: &str = "GRANT USAGE ON SCHEMA granted TO app;
    GRANT SELECT ON granted.about TO app;
    GRANT SELECT, INSERT, UPDATE, DELETE ON granted.names, granted.leases, granted.tickets, granted.spent TO app;";

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_the_least_rights_can_use_tables_that_an_administrator_made() {
    let server = Postgres::start();
    server.sql("CREATE ROLE app LOGIN; REVOKE ALL ON SCHEMA public FROM PUBLIC");
    let url = format!("{}?schema=granted", server.url_of("app", "postgres"));
    let error = Store::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "it may not make them: {error}");

    server.sql(&Store::script("granted").unwrap());
    let error = Store::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "it may not use them: {error}");

    server.sql(GRANTS);
    let store = Store::connect(&url).await.unwrap();
    works(&store).await;
    store.revoke(&name("works"), true).await.unwrap();
    store.sweep().await.unwrap();
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.mutex("works").lock().await.unwrap();
    let second = locks.clone();
    let waiter = tokio::spawn(async move { second.mutex("works").lock().await.unwrap() });
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_read_only_is_unavailable() {
    let place = place();
    works(&place.open().await).await;
    let url = format!("{}&options=-c%20default_transaction_read_only%3Don", place.url);
    let error = Store::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("primary"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_isolation_level_is_put_right_where_the_session_is_ours_and_refused_behind_a_pooler() {
    let server = Postgres::builder().setting("default_transaction_isolation", "serializable").start();
    works(&Store::connect(&server.url()).await.unwrap()).await;
    let pooler = PgBouncer::start(&server, PoolMode::Transaction, 2);
    let error = Store::connect(&pooler.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("read committed"), "{error}");
    // And the functions themselves refuse it.
    server.sql(
        "DO $$ BEGIN PERFORM * FROM leasehold.release('n', 'i', NULL, NULL, NULL, NULL); RAISE 'not refused';
         EXCEPTION WHEN SQLSTATE 'LH001' THEN NULL; END $$",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_gives_sessions_away_is_told_from_one_that_does_not() {
    let place = place();
    let pooler = PgBouncer::start(server(), PoolMode::Session, 10);
    let url = format!("{}?schema={}", pooler.url(), place.schema);
    // To be on the safe side, unless told otherwise.
    assert!(!Store::connect(&url).await.unwrap().info().push);
    let store = Store::connect(&format!("{url}&pooler=session")).await.unwrap();
    assert!(store.info().push);
    works(&store).await;
    let store = Store::connect(&format!("{}&pooler=transaction", place.url)).await.unwrap();
    assert!(!store.info().push, "as was said, though there is none");
    works(&store).await;
    let error = Store::connect(&format!("{url}&pooler=none")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(Store::connect(&format!("{}&pooler=none", place.url)).await.unwrap().info().push);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_refused_by_both_stores_and_passed_over_for_the_primary() {
    let primary = Postgres::start();
    works(&Store::connect(&primary.url()).await.unwrap()).await;
    let standby = primary.standby();
    for url in [standby.url(), standby.url().replacen(':', "+advisory:", 1)] {
        let error = Locks::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("primary"), "{error}");
    }
    let both =
        format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", standby.port(), primary.port());
    for url in [both.clone(), both.replacen(':', "+advisory:", 1)] {
        let locks = Locks::connect(&url).await.unwrap();
        locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_can_be_lent() {
    let place = place();
    let url = server().url();
    let lend = move || {
        let url = url.clone();
        let lent = async move {
            let made = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
            let (client, connection) =
                made.map_err(|_| leasehold::Error::new(ErrorKind::Unavailable, "none"))?;
            tokio::spawn(connection);
            Ok(Box::new(Arc::new(client)) as Lent)
        };
        Box::pin(lent) as futures_util::future::BoxFuture<'static, _>
    };
    let alone = Store::lent(lend.clone()).schema(&place.schema);
    let error = alone.clone().open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "there are no tables yet: {error}");
    // With an address of its own it makes them, and can push.
    let store = Store::builder(&place.url).unwrap().clients(lend).open().await.unwrap();
    assert!(store.info().push);
    works(&store).await;
    let store = alone.open().await.unwrap();
    assert!(!store.info().push);
    works(&store).await;
}
