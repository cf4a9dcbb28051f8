//! The contract's promises over HTTP: the `http:` backend against a server on each store.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;
use leasehold::backend::{Backend, Info};
use leasehold::backends::http::Http;
use leasehold::backends::redis::Redis;
use leasehold::backends::sqlite::Sqlite;
use leasehold::conformance::{Harness, run_all};
use leasehold::layers::quorum::{Node, Quorum};
use leasehold_server::{App, Settings, serve};
use tokio::net::TcpListener;

/// Starts a server on a store, on its own port; returns its URL.
async fn start(store: &str) -> String {
    let locks = Locks::connect(store).await.unwrap();
    let app = App::new(locks, Settings::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(serve(app, listener, None, std::future::pending()));
    url
}

async fn keeps_every_promise(store: &str) {
    let url = start(store).await;
    let connect = || async { Ok(Arc::new(Http::connect(&url).await?) as Arc<dyn Backend>) };
    let report = run_all(&Harness::connect(connect).await.unwrap()).await;
    println!("{report}");
    report.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_memory_keeps_every_promise() {
    keeps_every_promise("memory:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_sqlite_keeps_every_promise() {
    let directory = tempfile::tempdir().unwrap();
    keeps_every_promise(&format!("sqlite:{}", directory.path().join("locks.db").display())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_redis_keeps_every_promise() {
    let redis = testkit::redis::Server::start();
    keeps_every_promise(&redis.url()).await;
}

async fn quorum_keeps_every_promise(urls: &[String]) {
    let quorum = async || {
        let mut nodes: Vec<Node> = Vec::new();
        for url in urls {
            nodes.push(Node::new(match url.split_once(':') {
                Some(("http", _)) => Arc::new(Http::connect(url).await.unwrap()),
                Some(("redis", _)) => Arc::new(Redis::connect(url).await.unwrap()),
                Some(("sqlite", path)) => Arc::new(Sqlite::open(path).await.unwrap()),
                _ => panic!("{url} is no node"),
            }));
        }
        // An attempt is two round trips to servers that share this machine, so run few at a time with a long timeout.
        Arc::new(Quorum::new(nodes).unwrap().node_timeout(Duration::from_secs(10)))
    };
    let (one, two) = (quorum().await, quorum().await);
    let report = run_all(&Harness::new(one).second(two).slower(8).at_once(4)).await;
    println!("{report}");
    report.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_of_three_servers_keeps_every_promise() {
    let urls = [start("memory:").await, start("memory:").await, start("memory:").await];
    quorum_keeps_every_promise(&urls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_of_mixed_stores_keeps_every_promise() {
    let directory = tempfile::tempdir().unwrap();
    let redis = testkit::redis::Server::start();
    let sqlite = format!("sqlite:{}", directory.path().join("locks.db").display());
    quorum_keeps_every_promise(&[sqlite, redis.url(), start("memory:").await]).await;
}

/// Two servers in front of one store behave as one.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_before_one_store_keep_every_promise() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("locks.db").display());
    let (one, other) = (start(&store).await, start(&store).await);
    let first = Arc::new(Http::connect(&one).await.unwrap());
    let second = Arc::new(Http::connect(&other).await.unwrap());
    let report = run_all(&Harness::new(first).second(second)).await;
    println!("{report}");
    report.assert_passed();
}

/// Compares field by field, so that an ability cannot vanish together with its checks.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_a_store_that_can_do_everything_can_too() {
    let info = Http::connect(&start("memory:").await).await.unwrap().info();
    let mut right = Info::new("http");
    right.namespaced = false;
    right.keeps_places = true;
    right.shows_ids = false;
    right.max_ttl = std::time::Duration::from_secs(600);
    assert_eq!(info, right);
    assert!(leasehold::stores().iter().any(|store| store.info.scheme == "http"));
}
