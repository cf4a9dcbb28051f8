//! A cluster whose slots move, or in which a node is gone or replaced by its replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::backend::{Backend as _, Query, Release, Renewal, Renewed};
use leasehold::backends::redis::Redis;
use leasehold::{ErrorKind, Locks};
use testkit::redis::{Cluster, Server};
use testkit::until::{in_time, until, until_async};
use tokio::runtime::Builder;

use crate::support::{
    HOUR, LONG, TICKET, a_release_is_pushed, busy, claim, connections, granted, granted_at_last, name, served,
};

/// Whether a node has ever put off a call because some of its keys were elsewhere.
fn put_off(node: &Server) -> bool {
    node.cli(&["INFO", "errorstats"]).contains("errorstat_TRYAGAIN")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_under_load_costs_no_lock_and_no_error() {
    let cluster = Cluster::start();
    let locks = Locks::connect(&cluster.url()).await.unwrap().with_namespace("");
    let key = "leasehold:{/moving}";
    let slot = cluster.nodes[0].cli(&["CLUSTER", "KEYSLOT", key]);
    let from = cluster.serving(slot.parse().unwrap());
    let to = cluster.nodes.iter().find(|node| node.port() != from.port()).unwrap();
    let (stop, inside, rounds) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (mutex, stop, inside, rounds) =
                (locks.mutex("moving"), stop.clone(), inside.clone(), rounds.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = mutex.lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let progress = async || {
        let at = rounds.load(Ordering::SeqCst);
        until_async("progress", async || rounds.load(Ordering::SeqCst) >= at + 20).await;
    };
    progress().await;
    let id = |node: &Server| node.cli(&["CLUSTER", "MYID"]);
    to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
    from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    // Key by key, with keys coming and going: calls are sent on (ASK), and put off while keys are missing (TRYAGAIN).
    until_async("all keys have moved", async || {
        let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]);
        let Some(key) = keys.lines().find(|key| !key.is_empty()) else { return true };
        from.cli(&["MIGRATE", "127.0.0.1", &to.port().to_string(), key, "0", "5000"]);
        tokio::time::sleep(Duration::from_millis(30)).await;
        false
    })
    .await;
    // Keys that do not exist are missing at the slot's new node, until the move is announced.
    until_async("a call is put off", async || put_off(from) || put_off(to)).await;
    for node in [to, from].into_iter().chain(&cluster.nodes) {
        node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
    }
    progress().await;
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        in_time("a worker ends", worker).await.unwrap();
    }
    let stats = format!("{}{}", from.cli(&["INFO", "errorstats"]), to.cli(&["INFO", "errorstats"]));
    assert!(stats.contains("errorstat_MOVED") || stats.contains("errorstat_ASK"), "{stats}");
}

#[tokio::test]
async fn a_name_whose_slot_is_half_moved_is_retried_until_it_moved() {
    let cluster = Cluster::start();
    let store = Redis::connect(&format!("{}?response_timeout_ms=20000", cluster.url())).await.unwrap();
    let held = claim("half", LONG);
    granted(&store, &held).await;
    busy(&store, &claim("half", LONG).queued(TICKET)).await;
    let key = "leasehold:{/half}";
    let slot = cluster.nodes[0].cli(&["CLUSTER", "KEYSLOT", key]);
    let from = cluster.serving(slot.parse().unwrap());
    let to = cluster.nodes.iter().find(|node| node.port() != from.port()).unwrap();
    let id = |node: &Server| node.cli(&["CLUSTER", "MYID"]);
    to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
    from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    from.cli(&["MIGRATE", "127.0.0.1", &to.port().to_string(), key, "0", "5000"]);
    let call =
        tokio::spawn(
            async move { store.renew(&[Renewal::new(name("half"), held.id, LONG)]).await.remove(0) },
        );
    until_async("the call is put off", async || put_off(from) || put_off(to)).await;
    for suffix in [":queue", ":places"] {
        from.cli(&["MIGRATE", "127.0.0.1", &to.port().to_string(), &format!("{key}{suffix}"), "0", "5000"]);
    }
    assert!(!call.is_finished());
    for node in [to, from].into_iter().chain(&cluster.nodes) {
        node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
    }
    assert!(matches!(in_time("the call", call).await.unwrap().unwrap(), Renewed::Held(_)));
}

#[tokio::test]
async fn every_node_is_reached_over_tls() {
    let cluster = Cluster::with_tls();
    let store = Redis::connect(&cluster.url()).await.unwrap();
    let mut on_nodes = Vec::new();
    for i in 0..12 {
        let on = format!("n{i}");
        let held = claim(&on, LONG);
        granted(&store, &held).await;
        let slot = cluster.nodes[0].cli(&["CLUSTER", "KEYSLOT", &format!("leasehold:{{/{on}}}")]);
        on_nodes.push(cluster.serving(slot.parse().unwrap()).port());
        let waiting = claim(&on, HOUR).queued(HOUR);
        busy(&store, &waiting).await;
        store.release(&Release::new(name(&on), held.id)).await.unwrap();
        served(&store, &waiting).await;
    }
    a_release_is_pushed(&store, "pushed").await;
    on_nodes.sort_unstable();
    on_nodes.dedup();
    assert_eq!(on_nodes.len(), 3);
    let strangers = Redis::connect(cluster.url().split('&').next().unwrap()).await.unwrap_err();
    assert_eq!(strangers.kind(), ErrorKind::Unavailable, "an unknown authority is not trusted");
}

#[tokio::test]
async fn when_one_node_is_gone_the_others_leases_are_renewed() {
    let mut cluster = Cluster::start();
    // The others go on although no node serves a part of the slots.
    for node in &cluster.nodes {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let store = Redis::connect(&cluster.url()).await.unwrap();
    let mut renewals = Vec::new();
    let mut gone = Vec::new();
    let last = cluster.nodes[2].port();
    for i in 0..30 {
        let on = format!("n{i}");
        let one = claim(&on, LONG);
        granted(&store, &one).await;
        let slot = cluster.nodes[0].cli(&["CLUSTER", "KEYSLOT", &format!("leasehold:{{/{on}}}")]);
        gone.push(cluster.serving(slot.parse().unwrap()).port() == last);
        renewals.push(Renewal::new(name(&on), one.id, LONG));
    }
    assert!(gone.contains(&true) && gone.contains(&false));
    cluster.nodes[2].kill();
    let answers = store.renew(&renewals).await;
    for (answer, gone) in answers.into_iter().zip(gone) {
        match answer {
            Ok(answer) => assert!(!gone && matches!(answer, Renewed::Held(_))),
            Err(error) => assert!(gone && error.kind() == ErrorKind::Unavailable, "{error}"),
        }
    }
}

/// Names that this node serves.
fn names_on(cluster: &Cluster, node: usize) -> impl Iterator<Item = String> {
    let port = cluster.nodes[node].port();
    (0..).map(|i| format!("n{i}")).filter(move |on| {
        let slot = cluster.nodes[1].cli(&["CLUSTER", "KEYSLOT", &format!("leasehold:{{/{on}}}")]);
        cluster.serving(slot.parse().unwrap()).port() == port
    })
}

/// A field of a node's `INFO`.
fn said(node: &Server, section: &str, field: &str) -> String {
    let info = node.cli(&["INFO", section]);
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_default().trim().to_owned()
}

#[test]
fn the_failover_of_a_dead_primary_is_followed() {
    let mut cluster = Cluster::with_replica_of(0);
    let home = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let other = Builder::new_current_thread().enable_all().build().unwrap();
    // The one host that is configured is the one that dies.
    let store = home.block_on(Redis::connect(&cluster.url())).unwrap();
    let names: Vec<String> = names_on(&cluster, 0).take(3).collect();
    let held = claim(&names[0], HOUR);
    let renewal = [Renewal::new(held.name.clone(), held.id, HOUR)];
    home.block_on(granted(&store, &held));
    let before = connections(&cluster.nodes[0]);
    until("the other runtime has a connection of its own", || {
        let answer = other.block_on(store.renew(&renewal)).remove(0);
        assert!(matches!(answer.unwrap(), Renewed::Held(_)));
        connections(&cluster.nodes[0]) > before
    });
    until("the replica has the lease", || {
        let [primary, replica] = [0, 3].map(|i| said(&cluster.nodes[i], "replication", "master_repl_offset"));
        primary == replica
    });
    cluster.nodes[0].kill();
    home.block_on(until_async("it is renewed by the next primary", async || {
        match store.renew(&renewal).await.remove(0) {
            Ok(answer) => matches!(answer, Renewed::Held(_)) || panic!("{answer:?}"),
            Err(_) => false,
        }
    }));
    // What one runtime has learned, the other knows.
    other.block_on(granted(&store, &claim(&names[1], LONG)));
    home.block_on(a_release_is_pushed(&store, &names[2]));
}

#[tokio::test]
async fn a_node_that_serves_nothing_any_more_is_forgotten() {
    let cluster = Cluster::with_replica_of(0);
    let url = format!("redis-cluster://127.0.0.1:{}", cluster.nodes[1].port());
    let store = Redis::connect(&url).await.unwrap();
    let names: Vec<String> = names_on(&cluster, 0).take(2).collect();
    granted(&store, &claim(&names[0], LONG)).await;
    assert!(connections(&cluster.nodes[0]) > 0);
    assert_eq!(cluster.nodes[3].cli(&["CLUSTER", "FAILOVER"]), "OK");
    until("the replica takes over", || {
        [0, 3].map(|i| said(&cluster.nodes[i], "replication", "role")) == ["slave", "master"]
    });
    granted_at_last(&store, &claim(&names[1], LONG)).await;
    let all = Query::Prefix { stored: String::new(), limit: 1, cursor: None };
    until_async("the old node is forgotten", async || {
        store.inspect(&all).await.unwrap();
        connections(&cluster.nodes[0]) == 0
    })
    .await;
}
