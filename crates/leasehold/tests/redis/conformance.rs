//! The promises of the contract, shown on the Redis store.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Backend, Info, Query};
use leasehold::backends::redis::Redis;
use leasehold::conformance::{Harness, run_all};
use testkit::redis::{Cluster, Server};

async fn keeps_every_promise(url: &str) {
    let connect = || async { Ok(Arc::new(Redis::connect(url).await?) as Arc<dyn Backend>) };
    let report = run_all(&Harness::connect(connect).await.unwrap()).await;
    println!("{report}");
    report.assert_passed();
    let store = Redis::connect(url).await.unwrap();
    store.sweep().await.unwrap();
    let all = Query::Prefix { stored: String::new(), limit: 10, cursor: None };
    assert!(store.inspect(&all).await.unwrap().items.is_empty(), "at rest nothing is left but fences");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_keeps_every_promise() {
    let server = Server::start();
    keeps_every_promise(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_keeps_every_promise() {
    let cluster = Cluster::start();
    keeps_every_promise(&cluster.url()).await;
}

/// Field by field, so that an ability cannot vanish together with its checks.
#[tokio::test]
async fn redis_claims_every_ability_and_a_cluster_all_but_finding_ids() {
    let server = Server::start();
    let info = Redis::connect(&server.url()).await.unwrap().info();
    assert_eq!(info, Info::new("redis"));
    assert!(info.fenced && info.fifo && info.push && info.shared && info.downgrade);
    assert!(info.find_by_id && info.revoke && info.detects_loss && info.namespaced && info.notes);
    assert_eq!((info.max_permits, info.max_ttl), (u32::MAX, Duration::from_secs(24 * 3600)));
    assert!(leasehold::stores().iter().any(|store| store.info == info));
    let mut cluster = Info::new("redis-cluster");
    cluster.find_by_id = false;
    assert!(leasehold::stores().iter().any(|store| store.info == cluster));
}
