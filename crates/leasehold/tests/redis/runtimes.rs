//! Connections on the runtimes that call: each has its own, none is left behind, and work that must go on does so at
//! home.

use std::sync::mpsc;
use std::time::Duration;

use leasehold::{ErrorKind, Locks};
use testkit::redis::{Cluster, Server, with_replica};
use testkit::until::{PATIENCE, in_time, until, until_async};
use tokio::runtime::{Builder, Runtime};

use crate::support::connections;

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

#[test]
fn a_busy_runtime_keeps_its_own_connection_until_either_ends() {
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
    until("the first has one", || connections(&server) == 2);
    second.block_on(pairs(&locks, "b"));
    until("the second has one", || connections(&server) == 3);
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
fn a_runtime_blocked_or_ended_during_a_call_disturbs_no_other() {
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
                let guard = locks.mutex("held").ttl(Duration::from_millis(4500)).lock().await.unwrap();
                // Nothing on this runtime runs while it waits here.
                blocked.send(()).unwrap();
                wait.recv_timeout(PATIENCE).unwrap();
                assert!(guard.check().is_ok(), "it was lost though it was renewed");
                guard.release().await.unwrap();
                // And it ends while a client waits on it.
                let mutex = locks.mutex("ours");
                tokio::spawn(async move { mutex.lock().await });
                let waits = async || locks.inspect("ours").await.unwrap().queue_length > 0;
                until_async("a client waits", waits).await;
            });
        }
    });
    is_blocked.recv_timeout(PATIENCE).unwrap();
    let held = ours.block_on(in_time("our calls", async {
        pairs(&locks, "theirs").await;
        pairs(&locks, "own").await;
        let renewals = async || locks.inspect("held").await.unwrap().holders[0].grant.renewals;
        until_async("it is renewed at home", async || renewals().await >= 1).await;
        locks.mutex("ours").lock().await.unwrap()
    }));
    go_on.send(()).unwrap();
    theirs.join().unwrap();
    ours.block_on(async {
        held.release().await.unwrap();
        // The waiter there is gone, and so is its place.
        let next = locks.mutex("ours").try_lock_for(PATIENCE).await.unwrap().unwrap();
        next.release().await.unwrap();
        locks.close().await;
        let seen = locks.is_locked("ours").await.unwrap();
        assert!(!seen);
    });
}

#[test]
fn a_runtime_that_does_no_io_can_lock() {
    let server = Server::start();
    let locks = runtime().block_on(Locks::connect(&server.url())).unwrap();
    let without = Builder::new_current_thread().enable_time().build().unwrap();
    without.block_on(pairs(&locks, "x"));
    assert_eq!(connections(&server), 1, "home serves it");
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
        let within = |millis: u32| format!("{}?wait_replicas=1&wait_timeout_ms={millis}", servers[0].url());
        let locks = Locks::connect(&within(30_000)).await.unwrap().with_namespace("");
        pairs(&locks, "x").await;
        let held = locks.mutex("x").lock().await.unwrap();
        assert!(servers[1].cli(&["GET", "leasehold:{/x}"]).contains(held.lease_id().expose()));
        let hasty = Locks::connect(&within(500)).await.unwrap();
        servers[1].freeze();
        let error = hasty.mutex("y").try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("replicas"), "{error}");
        servers[1].go_on();
        held.release().await.unwrap();
    });
}
