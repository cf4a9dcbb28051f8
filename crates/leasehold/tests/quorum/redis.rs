//! A quorum of five real Redis servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::backend::Backend as _;
use leasehold::backends::redis::Redis;
use leasehold::conformance::{Harness, run_all};
use leasehold::layers::quorum::{Node, Quorum};
use leasehold::{ErrorKind, Fence, Locks};
use testkit::proxy::Proxy;
use testkit::redis::{Server, servers};
use testkit::until::in_time;

fn url(servers: &[Server]) -> String {
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    format!("quorum:{}", urls.join(","))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_of_five_redis_servers_keeps_every_promise() {
    let servers = servers(5);
    let quorum = async || {
        let mut nodes = Vec::new();
        for server in &servers {
            nodes.push(Node::new(Arc::new(Redis::connect(&server.url()).await.unwrap())));
        }
        // An attempt is two round trips to five servers that share the machine: few at a time, and no haste.
        Arc::new(Quorum::new(nodes).unwrap().node_timeout(Duration::from_secs(10)))
    };
    let (one, two) = (quorum().await, quorum().await);
    let harness = Harness::new(one.clone()).second(two);
    let harness = harness.slower(8).at_once(4);
    let report = run_all(&harness).await;
    println!("{report}");
    report.assert_passed();
    assert_eq!(one.info().scheme, "quorum");
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_on_every_majority_while_servers_die_in_turn() {
    let mut servers: Vec<Server> = (0..5).map(|_| Server::durable()).collect();
    let locks = Locks::connect(&url(&servers)).await.unwrap();
    let mutex = locks.mutex("x").ttl(Duration::from_secs(5));
    let mut last = Fence::UNFENCED;
    for round in 0..5 {
        // Two are away: in each round one comes back and another goes.
        servers[round].kill();
        for _ in 0..3 {
            let guard = in_time("the lock", mutex.lock()).await.unwrap();
            assert!(guard.fence() > last, "{} came after {last}", guard.fence());
            last = guard.fence();
            guard.release().await.unwrap();
        }
        let back = (round + 4) % 5;
        if round > 0 {
            servers[back].restart();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blackholed_server_is_not_waited_for() {
    let servers = servers(5);
    let proxies: Vec<Proxy> =
        servers.iter().map(|server| Proxy::before(([127, 0, 0, 1], server.port()).into()).unwrap()).collect();
    let urls: Vec<_> = proxies.iter().map(|proxy| format!("redis://{}", proxy.address())).collect();
    let locks = Locks::connect(&format!("quorum:{}", urls.join(","))).await.unwrap();
    let mutex = locks.mutex("x");
    mutex.lock().await.unwrap().release().await.unwrap();
    proxies[1].blackhole();
    let started = Instant::now();
    for _ in 0..200 {
        mutex.lock().await.unwrap().release().await.unwrap();
    }
    // To wait for its timeout of a second in each would take ten times as long. How little it costs is shown in paused time.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    // It comes back, and another goes.
    proxies[1].pass();
    proxies[2].blackhole();
    let guard = in_time("the lock", mutex.lock()).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connecting_needs_a_majority_and_missing_servers_join_later() {
    let mut servers = servers(3);
    let url = url(&servers);
    servers[2].kill();
    let locks = Locks::connect(&url).await.unwrap();
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    servers[2].restart();
    servers[0].kill();
    let guard = in_time("the lock", locks.mutex("x").lock()).await.unwrap();
    guard.release().await.unwrap();
    servers[1].kill();
    let error = Locks::connect(&url).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(!error.to_string().contains("127.0.0.1"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_under_two_addresses_is_refused() {
    let servers = servers(2);
    let proxy = Proxy::before(([127, 0, 0, 1], servers[0].port()).into()).unwrap();
    let url = format!("quorum:{},{},redis://{}", servers[0].url(), servers[1].url(), proxy.address());
    let error = Locks::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}
