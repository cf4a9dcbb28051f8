//! Servers and connections that fall silent, for callers that drop a call before the response timeout: renewals of
//! short leases, and anybody who changes their mind.

use std::net::Ipv4Addr;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::backend::{Backend as _, Renewal, Renewed};
use leasehold::backends::redis::Redis;
use leasehold::{ErrorKind, GuardState, Locks};
use testkit::proxy::{Direction, Proxy};
use testkit::redis::{Cluster, Sentinels, Server};
use testkit::until::{until, until_async};
use tokio::time::timeout;

use crate::support::{HOUR, LONG, claim, connections, granted, name};

/// Less than the response timeout, more than a call needs.
const IMPATIENT: Duration = Duration::from_millis(1000);

fn before(server: &Server) -> Proxy {
    Proxy::before((Ipv4Addr::LOCALHOST, server.port()).into()).unwrap()
}

/// A store through the proxy, whose answers must come this soon.
async fn through(proxy: &Proxy, patience: Duration) -> Redis {
    let store = Redis::builder(&format!("redis://{}", proxy.address())).unwrap();
    store.response_timeout(patience).connect().await.unwrap()
}

/// With answers that may take so long that no call here waits for the timeout, however slow this machine is.
fn patient(url: &str) -> String {
    format!("{url}?response_timeout_ms=10000")
}

/// A renewal whose caller drops it after a while. Returns whether it was answered.
async fn renewed(store: &Redis, renewal: &Renewal) -> bool {
    match timeout(IMPATIENT, store.renew(std::slice::from_ref(renewal))).await.map(|mut all| all.remove(0)) {
        Ok(Ok(answer)) => matches!(answer, Renewed::Held(_)) || panic!("{answer:?}"),
        _ => false,
    }
}

async fn renewed_at_last(store: &Redis, renewal: &Renewal) {
    until_async("it is renewed", async || renewed(store, renewal).await).await;
}

/// How many PINGs a server has answered.
fn pings(server: &Server) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_ping:calls="));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn a_silent_connection_costs_no_short_lease() {
    let server = Server::start();
    let proxy = before(&server);
    let locks = Locks::connect(&format!("redis://{}", proxy.address())).await.unwrap().with_namespace("");
    // Every renewal is dropped after a sixth of it, before the response timeout.
    let guard = locks.mutex("x").ttl(Duration::from_secs(9)).lock().await.unwrap();
    // Silence from the next renewal on, on its connection alone. Nothing else is sent.
    proxy.lose_answers(b"leasehold:{/x}");
    let before = proxy.counts();
    let mut last = guard.valid_for();
    until_async("it is renewed over another connection", async || {
        guard.check().unwrap();
        let now = guard.valid_for();
        now > std::mem::replace(&mut last, now) && proxy.counts().swallowed > before.swallowed
    })
    .await;
    assert_eq!(guard.state(), GuardState::Held);
    assert_eq!(proxy.counts().accepted, before.accepted + 1, "one connection replaces the silent one");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn dropped_calls_share_one_check_and_answered_ones_have_none() {
    let server = Server::start();
    let proxy = before(&server);
    // A check may take a quarter of this.
    let store = through(&proxy, LONG).await;
    let held = claim("x", HOUR);
    granted(&store, &held).await;
    let renewal = Renewal::new(name("x"), held.id, HOUR);
    let renew = || store.renew(std::slice::from_ref(&renewal));
    let (before, accepted) = (pings(&server), proxy.counts().accepted);
    for _ in 0..100 {
        assert!(renew().await.remove(0).is_ok());
    }
    assert_eq!(pings(&server), before, "calls that were answered");
    // The answers are late, so every call is dropped.
    proxy.delay(Direction::ToClient, Duration::from_secs(3));
    let calls = (0..100).map(|_| timeout(Duration::from_millis(20), renew()));
    assert!(join_all(calls).await.iter().all(Result::is_err));
    until_async("a check", async || pings(&server) > before).await;
    proxy.pass();
    assert!(renew().await.remove(0).is_ok());
    assert_eq!(pings(&server), before + 1, "calls that were dropped");
    assert_eq!(proxy.counts().accepted, accepted, "a slow connection is kept");
}

#[tokio::test]
async fn sentinels_are_asked_after_dropped_renewals() {
    let group = Sentinels::start();
    let (primary, replica) = group.roles().unwrap();
    let store = Redis::connect(&patient(&group.url())).await.unwrap();
    let held = claim("x", HOUR);
    granted(&store, &held).await;
    let renewal = Renewal::new(name("x"), held.id, HOUR);
    renewed_at_last(&store, &renewal).await;
    until("the replica has the lease", || group.servers[replica].cli(&["EXISTS", "leasehold:{/x}"]) == "1");
    group.servers[primary].freeze();
    // Nobody has taken over yet.
    for _ in 0..3 {
        assert!(!renewed(&store, &renewal).await);
    }
    group.wait_for_promotion(replica).unwrap();
    renewed_at_last(&store, &renewal).await;
}

#[tokio::test]
async fn a_cluster_is_asked_after_dropped_renewals() {
    let cluster = Cluster::try_with_replicas().unwrap();
    let key = |on: &str| format!("leasehold:{{/{on}}}");
    let on = (0..).map(|i| format!("n{i}")).find(|on| cluster.part_of(&key(on)) == 0).unwrap();
    let (primary, replica) = cluster.roles(0).unwrap();
    let store = Redis::connect(&patient(&cluster.url())).await.unwrap();
    let held = claim(&on, HOUR);
    granted(&store, &held).await;
    let renewal = Renewal::new(name(&on), held.id, HOUR);
    renewed_at_last(&store, &renewal).await;
    cluster.wait_for_copy(replica).unwrap();
    cluster.nodes[primary].freeze();
    // Nobody has taken over yet.
    for _ in 0..3 {
        assert!(!renewed(&store, &renewal).await);
    }
    cluster.wait_for_promotion(replica).unwrap();
    renewed_at_last(&store, &renewal).await;
}

#[tokio::test]
async fn a_check_under_way_does_not_outlive_its_store() {
    let server = Server::start();
    let proxy = before(&server);
    let store = through(&proxy, HOUR).await;
    let held = claim("x", LONG);
    granted(&store, &held).await;
    let renewal = Renewal::new(name("x"), held.id, LONG);
    renewed_at_last(&store, &renewal).await;
    assert!(connections(&server) > 0);
    let before = pings(&server);
    proxy.blackhole_one_way(Direction::ToClient);
    assert!(!renewed(&store, &renewal).await);
    until_async("a check", async || pings(&server) > before).await;
    drop(store);
    until_async("its connection is closed", async || connections(&server) == 0).await;
}

#[tokio::test]
async fn impatient_callers_share_one_new_connection() {
    let server = Server::start();
    let proxy = before(&server);
    let store = Redis::builder(&format!("redis://{}", proxy.address())).unwrap();
    // No try to connect ends while this test looks on.
    let store = store.connect_timeout(HOUR).connect().await.unwrap();
    let held = claim("x", HOUR);
    granted(&store, &held).await;
    let renewal = Renewal::new(name("x"), held.id, HOUR);
    let dropped = async || {
        let renewal = std::slice::from_ref(&renewal);
        timeout(Duration::from_millis(50), store.renew(renewal)).await.is_err()
    };
    let before = proxy.counts().accepted;
    proxy.blackhole();
    proxy.reset();
    until_async("a new connection is under way", async || {
        dropped().await && proxy.counts().accepted > before
    })
    .await;
    assert!(join_all((0..50).map(|_| dropped())).await.iter().all(|dropped| *dropped));
    for _ in 0..5 {
        assert!(dropped().await);
    }
    proxy.pass();
    renewed_at_last(&store, &renewal).await;
    assert_eq!(proxy.counts().accepted, before + 1);
    assert_eq!(connections(&server), 1);
}

/// Lets the nodes go on although one of them serves nothing.
fn independent(cluster: &Cluster) {
    for node in &cluster.nodes {
        assert_eq!(node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]), "OK");
    }
}

/// This many names that one node of a cluster serves.
fn names_on(cluster: &Cluster, node: usize, count: usize) -> Vec<String> {
    let is_there = |on: &String| cluster.part_of(&format!("leasehold:{{/{on}}}")) == node;
    (0..).map(|i| format!("n{i}")).filter(is_there).take(count).collect()
}

#[tokio::test]
async fn a_silent_node_costs_no_lease_on_the_others() {
    let cluster = Cluster::start();
    independent(&cluster);
    let locks = Locks::connect(&cluster.url()).await.unwrap().with_namespace("");
    let lock = async |on: &String| {
        locks.mutex(on).ttl(Duration::from_secs(9)).try_lock().await.unwrap().expect("nobody else has it")
    };
    // All are due at the same time, so they are renewed in one batch.
    let [well, silent] = [names_on(&cluster, 1, 8), names_on(&cluster, 2, 8)];
    let (well, silent) = tokio::join!(join_all(well.iter().map(&lock)), join_all(silent.iter().map(&lock)));
    cluster.nodes[2].freeze();
    until_async("the leases on the silent node are lost", async || {
        let states: Vec<_> = well.iter().map(|guard| guard.state()).collect();
        assert_eq!(states, [GuardState::Held; 8]);
        silent.iter().all(|guard| guard.state() == GuardState::Lost)
    })
    .await;
    cluster.nodes[2].go_on();
}

#[tokio::test]
async fn a_silent_node_delays_answers_for_a_part_of_the_ttl() {
    let cluster = Cluster::start();
    independent(&cluster);
    // Nothing but the ttl ends the wait for the silent node.
    let store = Redis::connect(&format!("{}?response_timeout_ms=3600000", cluster.url())).await.unwrap();
    let [well, silent] = [names_on(&cluster, 1, 1).remove(0), names_on(&cluster, 2, 1).remove(0)];
    let mut renewals = Vec::new();
    for (on, ttl) in [(&well, Duration::from_secs(9)), (&silent, HOUR)] {
        let held = claim(on, ttl);
        granted(&store, &held).await;
        renewals.push(Renewal::new(name(on), held.id, ttl));
    }
    cluster.nodes[2].freeze();
    // How long the renewal loop waits for the first.
    let answers = timeout(Duration::from_millis(1500), store.renew(&renewals)).await;
    cluster.nodes[2].go_on();
    let mut answers = answers.expect("an answer for each").into_iter();
    assert!(matches!(answers.next().unwrap().unwrap(), Renewed::Held(_)));
    let error = answers.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{error:?}");
}

#[tokio::test]
async fn names_that_no_node_serves_are_looked_up_once_together() {
    let cluster = Cluster::start();
    independent(&cluster);
    let store = Redis::connect(&cluster.url()).await.unwrap();
    let [well, unserved] = [names_on(&cluster, 0, 1), names_on(&cluster, 2, 20)];
    let mut renewals = Vec::new();
    for on in well.iter().chain(&unserved) {
        let held = claim(on, LONG);
        granted(&store, &held).await;
        renewals.push(Renewal::new(name(on), held.id, LONG));
    }
    let taken = ["CLUSTER", "DELSLOTSRANGE", "10923", "16383"];
    cluster.nodes.iter().for_each(|node| assert_eq!(node.cli(&taken), "OK"));
    let looks = || {
        let of = |node: &Server| {
            let stats = node.cli(&["INFO", "commandstats"]);
            let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_cluster|slots:calls="));
            calls.and_then(|calls| calls.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        cluster.nodes.iter().map(of).sum::<u64>()
    };
    until_async("the client knows that no node serves them", async || {
        let error = store.renew(&renewals[1..2]).await.remove(0).unwrap_err();
        error.message().contains("serves this name")
    })
    .await;
    let before = looks();
    let mut answers = store.renew(&renewals).await.into_iter();
    assert_eq!(looks() - before, 1);
    assert!(matches!(answers.next().unwrap().unwrap(), Renewed::Held(_)));
    assert!(answers.all(|answer| answer.is_err_and(|error| error.kind() == ErrorKind::Unavailable)));
}
