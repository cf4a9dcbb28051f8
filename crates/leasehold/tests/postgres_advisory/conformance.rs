//! The promises of the contract, shown on a real server; with fences and without.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Backend, Info, Liveness, TimeAuthority};
use leasehold::backends::postgres::Advisory;
use leasehold::conformance::{Harness, run_all};
use testkit::postgres::{PgBouncer, PoolMode, Postgres};

use crate::support::{advisory, advisory_locks, stranger, until, url};

async fn run(server: &Postgres, url: &str) {
    let connect = async || Ok(Arc::new(Advisory::connect(url).await?) as Arc<dyn Backend>);
    let report = run_all(&Harness::connect(connect).await.unwrap()).await;
    println!("{report}");
    report.assert_passed();
    let stranger = stranger(server).await;
    until("no advisory lock is left", async || advisory_locks(&stranger).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn advisory_locks_keep_every_promise_they_make() {
    let server = Postgres::start();
    run(&server, &url(&server, "")).await;
    run(&server, &url(&server, "fences=off")).await;
    let others = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    until("no connection is left", async || server.sql(others) == "0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_promise_holds_behind_a_pooler_in_session_mode() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server, PoolMode::Session, 80);
    run(&server, &(advisory(&pooler.url()) + "?pooler=session")).await;
}

#[tokio::test]
async fn it_can_do_what_it_says_and_nothing_else() {
    let server = Postgres::start();
    let claimed = Info::new("postgres+advisory");
    let info = Advisory::connect(&url(&server, "")).await.unwrap().info();
    let Info { scheme, liveness, time, fenced, fifo, push, shared, max_permits, .. } = info;
    assert_eq!((scheme, liveness, time), ("postgres+advisory", Liveness::Session, TimeAuthority::None));
    assert_eq!((fenced, fifo, push, shared, max_permits), (true, false, true, true, 0));
    let Info { downgrade, find_by_id, revoke, detects_loss, check_every, namespaced, .. } = info;
    assert_eq!((downgrade, find_by_id, revoke, detects_loss), (true, false, false, true));
    assert!(!info.notes);
    assert_eq!((check_every, namespaced), (Some(Duration::from_millis(250)), false));
    assert_eq!((info.max_ttl, info.min_validity_percent), (claimed.max_ttl, claimed.min_validity_percent));
    assert!(!Advisory::connect(&url(&server, "fences=off")).await.unwrap().info().fenced);
}
