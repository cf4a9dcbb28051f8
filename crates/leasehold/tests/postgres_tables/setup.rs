//! Making the tables, the rights that are needed, and servers that are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::backend::{Backend, Claim, Mode, Query, Release, Released, Renewal, Renewed};
use leasehold::backends::postgres::Postgres as Store;
use leasehold::{ErrorKind, Locks};
use testkit::postgres::{PgBouncer, PoolMode, Postgres};
use tokio::task::JoinSet;

use crate::support::{LONG, claim, granted, in_time, lender, name, place, server, told, until};

/// Takes and gives back a lease, with its fence as guards do, and without it.
async fn works(store: &Store) {
    for with_fence in [true, false] {
        let held = claim("works", LONG);
        let fence = granted(store, &held).await.fence;
        let release = if with_fence { told(&held, fence) } else { Release::new(name("works"), held.id) };
        assert_eq!(store.release(&release).await.unwrap(), Released::Done);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_first_clients_creates_the_tables_and_all_work() {
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
    GRANT SELECT ON granted.about, granted.leases TO app;
    GRANT SELECT, INSERT, UPDATE, DELETE ON granted.names, granted.shares, granted.tickets, granted.spent TO app;";

/// An exclusive lease becomes a shared one, another joins it, and both are looked at and end.
async fn uses_every_table(store: &Store) {
    let (first, second) = (claim("all", LONG), Claim::new(name("all"), Mode::Shared, LONG, "test"));
    let fence = granted(store, &first).await.fence;
    let mut share = Renewal::new(name("all"), first.id, LONG);
    share.mode = Some(Mode::Shared);
    assert!(matches!(store.renew(&[share]).await.remove(0).unwrap(), Renewed::Held(_)));
    let next = granted(store, &second).await.fence;
    let all = Query::Prefix { stored: "/all".into(), limit: 10, cursor: None };
    for query in [Query::Name(name("all")), Query::LeaseId(first.id), all] {
        assert_eq!(store.inspect(&query).await.unwrap().items[0].holders.len(), 2);
    }
    for (claim, fence) in [(first, fence), (second, next)] {
        assert_eq!(store.release(&told(&claim, fence)).await.unwrap(), Released::Done);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_least_rights_can_use_an_administrators_tables() {
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
    uses_every_table(&store).await;
    store.revoke(&name("works"), true, None).await.unwrap();
    store.sweep().await.unwrap();
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.mutex("works").lock().await.unwrap();
    let second = locks.clone();
    let waiter = tokio::spawn(async move { second.mutex("works").lock().await.unwrap() });
    until("it waits", async || server.sql("SELECT count(*) FROM granted.tickets") == "1").await;
    guard.release().await.unwrap();
    in_time("the waiter has it", waiter).await.unwrap().release().await.unwrap();
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
async fn isolation_is_corrected_directly_and_refused_behind_a_pooler() {
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
async fn every_verb_refuses_lent_connections_of_another_isolation() {
    let place = place();
    works(&place.open().await).await;
    let strict = Arc::new(AtomicBool::new(false));
    let lend = {
        let (plain, other) = (lender(""), lender("-c%20default_transaction_isolation%3Dserializable"));
        let strict = Arc::clone(&strict);
        move || if strict.load(Ordering::SeqCst) { other() } else { plain() }
    };
    let store = Store::lent(lend).schema(&place.schema).open().await.unwrap();
    let (held, other) = (claim("x", LONG), claim("known", LONG));
    granted(&store, &other).await;
    store.release(&Release::new(name("known"), other.id)).await.unwrap();
    let fence = granted(&store, &held).await.fence;
    strict.store(true, Ordering::SeqCst);
    let refused = [
        ("acquire", store.try_acquire(&claim("known", LONG)).await.err()),
        ("acquire, busy", store.try_acquire(&claim("x", LONG)).await.err()),
        ("renew", store.renew(&[Renewal::new(name("x"), held.id, LONG)]).await.remove(0).err()),
        ("release", store.release(&Release::new(name("x"), held.id)).await.err()),
        ("release, told", store.release(&told(&held, fence)).await.err()),
        ("revoke", store.revoke(&name("x"), true, None).await.err()),
        ("sweep", store.sweep().await.err()),
    ];
    for (verb, error) in refused {
        let error = error.unwrap_or_else(|| panic!("{verb} was not refused"));
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{verb}: {error}");
    }
    strict.store(false, Ordering::SeqCst);
    assert_eq!(store.release(&Release::new(name("x"), held.id)).await.unwrap(), Released::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_lent_connections_too_no_verb_scans_a_table() {
    let place = place();
    works(&place.open().await).await;
    let scans = || {
        let sql = "SELECT coalesce(sum(seq_scan), 0), coalesce(sum(idx_scan), 0) FROM pg_stat_user_tables
             WHERE schemaname || '.' = 'leasehold.' AND relname <> 'about'";
        let counts = place.sql(sql);
        let (whole, by_key) = counts.split_once('|').unwrap();
        (whole.parse::<u64>().unwrap(), by_key.parse::<u64>().unwrap())
    };
    // For a planner that knows how small the table is, a scan is best.
    place.sql("ANALYZE leasehold.names");
    let store = Store::lent(lender("")).schema(&place.schema).open().await.unwrap();
    // Sessions report their scans when they end, which a lent one does with its call.
    place.is_left_alone().await;
    let (whole, by_key) = scans();
    for _ in 0..10 {
        works(&store).await;
    }
    place.is_left_alone().await;
    until("they have told", async || scans().1 >= by_key + 40).await;
    assert_eq!(scans().0, whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pooler_option_decides_whether_the_store_pushes() {
    let place = place();
    let pooler = PgBouncer::start(server(), PoolMode::Session, 10);
    let url = format!("{}?schema={}", pooler.url(), place.schema);
    // The safe choice, unless set otherwise.
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
async fn both_stores_refuse_a_standby_and_skip_it_for_the_primary() {
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
    let lend = lender("");
    let alone = Store::lent(lend.clone()).schema(&place.schema);
    let error = alone.clone().open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "there are no tables yet: {error}");
    // With its own address it makes the tables, and can push.
    let store = Store::builder(&place.url).unwrap().clients(lend).open().await.unwrap();
    assert!(store.info().push);
    works(&store).await;
    let store = alone.open().await.unwrap();
    assert!(!store.info().push);
    works(&store).await;
}
