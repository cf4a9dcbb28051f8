//! Connections on the runtimes that call: each for itself, none left behind, and what has to go on does so at home.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks};
use testkit::redis::{Cluster, Server, until, with_replica};
use tokio::runtime::{Builder, Runtime};

const PATIENCE: Duration = Duration::from_secs(30);

/// More calls than a runtime makes before it is worth a connection.
const MANY: usize = 10;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn pairs(locks: &Locks, on: &str) {
    for _ in 0..MANY {
        locks.mutex(on).lock().await.unwrap().release().await.unwrap();
    }
}

/// How many connections a server has for calls; the one that asks is not among them.
fn connections(server: &Server) -> usize {
    let list = server.cli(&["CLIENT", "LIST", "TYPE", "normal"]);
    list.lines().filter(|line| !line.contains("cmd=client")).count()
}

#[test]
fn a_runtime_that_calls_often_has_a_connection_of_its_own_until_it_ends_or_the_store_does() {
    let server = Server::start();
    let (first, second) = (runtime(), runtime());
    let locks = first.block_on(Locks::connect(&server.url())).unwrap();
    assert_eq!(connections(&server), 1);
    // A runtime for a call or two is not worth one.
    for _ in 0..5 {
        runtime().block_on(async { locks.mutex("once").lock().await.unwrap().release().await.unwrap() });
    }
    assert_eq!(connections(&server), 1);
    first.block_on(pairs(&locks, "a"));
    assert_eq!(connections(&server), 2);
    second.block_on(pairs(&locks, "b"));
    assert_eq!(connections(&server), 3);
    drop(second);
    until("the connection of a runtime that ended is closed", || connections(&server) == 2);
    first.block_on(pairs(&locks, "a"));
    assert_eq!(connections(&server), 2);
    drop(locks);
    // Its tasks end when they are next looked at.
    until("all are closed with the store", || {
        first.block_on(tokio::task::yield_now());
        connections(&server) == 0
    });
}

#[test]
fn a_runtime_that_is_blocked_or_ends_in_the_middle_of_a_call_disturbs_nobody() {
    let server = Server::start();
    let ours = runtime();
    let locks = ours.block_on(Locks::connect(&server.url())).unwrap();
    let (blocked, is_blocked) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let theirs = std::thread::spawn({
        let locks = locks.clone();
        move || {
            let runtime = runtime();
            runtime.block_on(async {
                pairs(&locks, "theirs").await;
                let guard = locks.mutex("held").ttl(Duration::from_millis(600)).lock().await.unwrap();
                // Nothing on this runtime runs while it waits here.
                blocked.send(()).unwrap();
                wait.recv_timeout(PATIENCE).unwrap();
                assert!(guard.check().is_ok(), "it was renewed at home");
                guard.release().await.unwrap();
                // And it ends with somebody waiting on it.
                let mutex = locks.mutex("ours");
                tokio::spawn(async move { mutex.lock().await });
                tokio::time::sleep(Duration::from_millis(100)).await;
            });
        }
    });
    is_blocked.recv_timeout(PATIENCE).unwrap();
    let started = Instant::now();
    let held = ours.block_on(async {
        pairs(&locks, "theirs").await;
        pairs(&locks, "own").await;
        tokio::time::sleep(Duration::from_millis(1300)).await;
        locks.mutex("ours").lock().await.unwrap()
    });
    assert!(started.elapsed() < PATIENCE);
    go_on.send(()).unwrap();
    theirs.join().unwrap();
    ours.block_on(async {
        held.release().await.unwrap();
        // Whoever waited there is gone, and so is its place.
        let next = locks.mutex("ours").try_lock_for(PATIENCE).await.unwrap().unwrap();
        next.release().await.unwrap();
        locks.close().await;
        let seen = locks.is_locked("ours").await.unwrap();
        assert!(!seen);
    });
}

#[test]
fn in_a_cluster_and_with_replicas_too() {
    let cluster = Cluster::start();
    let ours = runtime();
    ours.block_on(async {
        let locks = Locks::connect(&cluster.url()).await.unwrap();
        for on in ["a", "b", "c", "d", "e"] {
            pairs(&locks, on).await;
        }
    });
    assert!(cluster.nodes.iter().all(|node| connections(node) <= 4), "one per runtime and node");

    let servers = with_replica();
    ours.block_on(async {
        let url = format!("{}?wait_replicas=1&wait_timeout_ms=1500", servers[0].url());
        let locks = Locks::connect(&url).await.unwrap().with_namespace("");
        pairs(&locks, "x").await;
        let held = locks.mutex("x").lock().await.unwrap();
        assert!(servers[1].cli(&["GET", "leasehold:{/x}"]).contains(held.lease_id().expose()));
        servers[1].freeze();
        let error = locks.mutex("y").try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("replicas"), "{error}");
        servers[1].go_on();
        held.release().await.unwrap();
    });
}
