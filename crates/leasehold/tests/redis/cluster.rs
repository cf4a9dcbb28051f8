//! A cluster whose slots move, and one of whose nodes is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::backend::{Backend as _, Release, Renewal, Renewed};
use leasehold::backends::redis::Redis;
use leasehold::{ErrorKind, Locks};
use testkit::redis::Cluster;

use crate::support::{LONG, TICKET, busy, claim, granted, name};

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
        let (at, started) = (rounds.load(Ordering::SeqCst), Instant::now());
        while rounds.load(Ordering::SeqCst) < at + 20 {
            assert!(started.elapsed() < Duration::from_secs(30), "no progress");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    progress().await;
    let id = |node: &testkit::redis::Server| node.cli(&["CLUSTER", "MYID"]);
    to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
    from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    // Key by key, with keys coming and going: calls are sent on (ASK), and put off while keys are missing (TRYAGAIN).
    let started = Instant::now();
    loop {
        let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]);
        let Some(key) = keys.lines().find(|key| !key.is_empty()) else { break };
        from.cli(&["MIGRATE", "127.0.0.1", &to.port().to_string(), key, "0", "5000"]);
        assert!(started.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    for node in [to, from].into_iter().chain(&cluster.nodes) {
        node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
    }
    progress().await;
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await.unwrap();
    }
    let stats = format!("{}{}", from.cli(&["INFO", "errorstats"]), to.cli(&["INFO", "errorstats"]));
    assert!(stats.contains("errorstat_TRYAGAIN"), "the move was noticed: {stats}");
    assert!(stats.contains("errorstat_MOVED") || stats.contains("errorstat_ASK"), "{stats}");
}

#[tokio::test]
async fn a_name_that_is_half_here_and_half_there_is_tried_again_until_it_has_moved() {
    let cluster = Cluster::start();
    let store = Redis::connect(&format!("{}?response_timeout_ms=20000", cluster.url())).await.unwrap();
    let held = claim("half", LONG);
    granted(&store, &held).await;
    busy(&store, &claim("half", LONG).queued(TICKET)).await;
    let key = "leasehold:{/half}";
    let slot = cluster.nodes[0].cli(&["CLUSTER", "KEYSLOT", key]);
    let from = cluster.serving(slot.parse().unwrap());
    let to = cluster.nodes.iter().find(|node| node.port() != from.port()).unwrap();
    let id = |node: &testkit::redis::Server| node.cli(&["CLUSTER", "MYID"]);
    to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
    from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    from.cli(&["MIGRATE", "127.0.0.1", &to.port().to_string(), key, "0", "5000"]);
    let call =
        tokio::spawn(
            async move { store.renew(&[Renewal::new(name("half"), held.id, LONG)]).await.remove(0) },
        );
    let put_off =
        |node: &testkit::redis::Server| node.cli(&["INFO", "errorstats"]).contains("errorstat_TRYAGAIN");
    while !put_off(from) && !put_off(to) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for suffix in [":queue", ":places"] {
        from.cli(&["MIGRATE", "127.0.0.1", &to.port().to_string(), &format!("{key}{suffix}"), "0", "5000"]);
    }
    assert!(!call.is_finished());
    for node in [to, from].into_iter().chain(&cluster.nodes) {
        node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
    }
    assert!(matches!(call.await.unwrap().unwrap(), Renewed::Held(_)));
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
        // The channel comes up, and then a release is pushed.
        let waiting = claim(&on, LONG).queued(TICKET);
        busy(&store, &waiting).await;
        if i == 0 {
            store.wait(&waiting).await.unwrap();
            busy(&store, &waiting).await;
        }
        store.release(&Release::new(name(&on), held.id)).await.unwrap();
        tokio::time::timeout(LONG, store.wait(&waiting)).await.unwrap().unwrap();
        granted(&store, &waiting).await;
    }
    on_nodes.sort_unstable();
    on_nodes.dedup();
    assert_eq!(on_nodes.len(), 3);
    let strangers = Redis::connect(cluster.url().split('&').next().unwrap()).await.unwrap_err();
    assert_eq!(strangers.kind(), ErrorKind::Unavailable, "an unknown authority is not trusted");
}

#[tokio::test]
async fn when_one_node_is_gone_the_others_leases_are_renewed() {
    let mut cluster = Cluster::start();
    // The others go on although a part of the slots has nobody.
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
