//! The promises of the contract, directly and behind a pooler.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Backend, Info, Query};
use leasehold::backends::postgres::Postgres as Store;
use leasehold::conformance::{Harness, run_all};
use testkit::postgres::{PgBouncer, PoolMode};

use crate::support::{place, server, until};

async fn keeps_every_promise(url: &str, schema: &str) {
    let connect = || async { Ok(Arc::new(Store::connect(url).await?) as Arc<dyn Backend>) };
    let report = run_all(&Harness::connect(connect).await.unwrap()).await;
    println!("{report}");
    report.assert_passed();

    let store = Store::connect(url).await.unwrap();
    store.sweep().await.unwrap();
    let all = Query::Prefix { stored: String::new(), limit: 10, cursor: None };
    assert!(store.inspect(&all).await.unwrap().items.is_empty(), "at rest nothing is left but fences");
    let rows =
        format!("SELECT (SELECT count(*) FROM {schema}.leases) + (SELECT count(*) FROM {schema}.tickets)");
    assert_eq!(server().sql(&rows), "0");
    let off = format!(
        "SELECT count(*) FROM {schema}.names WHERE holders <> 0 OR waiters <> 0 OR next_lapse <> 'infinity'"
    );
    assert_eq!(server().sql(&off), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tables_keep_every_promise() {
    let place = place();
    keeps_every_promise(&format!("{}&application_name=direct", place.url), &place.schema).await;
    let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'direct'";
    until("no connection is left", async || server().sql(left) == "0").await;
    let locks = "SELECT count(*) FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation \
                 JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE nspname = ";
    until("no lock is left", async || server().sql(&format!("{locks}'{}'", place.schema)) == "0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tables_keep_every_promise_behind_a_transaction_pooler() {
    let pooler = PgBouncer::start(server(), PoolMode::Transaction, 10);
    let place = place();
    let url = format!("{}?schema={}", pooler.url(), place.schema);
    keeps_every_promise(&url, &place.schema).await;
}

/// Field by field, so that an ability cannot vanish together with its checks.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_claims_every_ability_but_push_through_a_pooler() {
    let place = place();
    let info = place.open().await.info();
    assert_eq!(info, Info::new("postgres"));
    assert!(info.fenced && info.fifo && info.push && info.shared && info.downgrade);
    assert!(info.find_by_id && info.revoke && info.detects_loss && info.namespaced && info.notes);
    assert_eq!((info.max_permits, info.max_ttl), (u32::MAX, Duration::from_secs(24 * 3600)));
    assert!(leasehold::stores().iter().any(|store| store.info == info));

    let pooler = PgBouncer::start(server(), PoolMode::Transaction, 3);
    let mut behind =
        Store::connect(&format!("{}?schema={}", pooler.url(), place.schema)).await.unwrap().info();
    assert!(!behind.push, "the pooler is noticed");
    behind.push = true;
    assert_eq!(behind, info);
}
