//! A server that is reachable and refuses: each reason gives the right kind of error, never contention, and nothing is
//! granted; when the reason is gone everything works again.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::backend::{Attempt, Backend as _, Release, Released, Renewal, Renewed};
use leasehold::backends::redis::Redis;
use leasehold::{Error, ErrorKind, Locks};
use testkit::blocked::send;
use testkit::redis::{Cluster, Server};
use testkit::until::{in_time, until, until_async};

use crate::support::{HOUR, LONG, TICKET, claim, granted, granted_at_last, look, name};

/// Waits until an attempt is refused with these words, and checks that no other error comes meanwhile.
async fn refused(store: &Redis, on: &str, kind: ErrorKind, words: &str) {
    until_async(words, async || {
        let error = match store.try_acquire(&claim(on, LONG)).await {
            Err(error) => error,
            Ok(attempt) => panic!("{attempt:?}"),
        };
        assert!(error.is_retryable(), "{error:?}");
        let said = error.message().contains(words);
        assert!(!said || error.kind() == kind, "{error:?}");
        said
    })
    .await;
}

/// Checks that all verbs that change something are refused alike.
async fn all_refused(store: &Redis, held: &leasehold::backend::Claim, words: &str) {
    let said = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.message().contains(words), "{error:?}");
    };
    said(store.try_acquire(&claim("new", LONG)).await.unwrap_err());
    said(store.try_acquire(&claim(held.name.as_str(), LONG).queued(TICKET)).await.unwrap_err());
    said(store.renew(&[Renewal::new(held.name.clone(), held.id, LONG)]).await.remove(0).unwrap_err());
    said(store.release(&Release::new(held.name.clone(), held.id)).await.unwrap_err());
    // The lock says the same, at once.
    let locks = Locks::new(store.clone()).with_namespace("");
    said(locks.mutex("new").try_lock().await.unwrap_err());
}

/// Checks that what was held before still is, and everything works again.
async fn works_again(store: &Redis, held: &leasehold::backend::Claim) {
    let renewal = Renewal::new(held.name.clone(), held.id, LONG);
    assert!(matches!(store.renew(&[renewal]).await.remove(0).unwrap(), Renewed::Held(_)));
    let seen = look(store, held.name.as_str()).await;
    assert_eq!((seen.holders.len(), seen.queue_length), (1, 0));
    assert!(look(store, "new").await.holders.is_empty(), "nothing was granted");
    granted(store, &claim("new", LONG)).await;
    let release = Release::new(held.name.clone(), held.id);
    assert_eq!(store.release(&release).await.unwrap(), Released::Done);
}

#[tokio::test]
async fn a_server_that_loads_its_data_is_busy_and_then_has_it() {
    // Loading takes very long until the test speeds it up, and the server looks up often enough to refuse.
    let mut server =
        Server::with(&["--key-load-delay", "3000", "--loading-process-events-interval-bytes", "1024"]);
    let port = server.port().to_string();
    let store = Redis::connect(&server.url()).await.unwrap();
    let held = claim("x", HOUR);
    let before = granted(&store, &held).await;
    server.cli(&["DEBUG", "POPULATE", "10000"]);
    assert_eq!(server.cli(&["SAVE"]), "OK");
    let restarted = tokio::task::spawn_blocking(move || {
        server.restart();
        server
    });
    let mut again = held.clone();
    (again.repeat, again.first) = (true, false);
    until_async("it says that it loads", async || match store.try_acquire(&again).await {
        // Before it was killed.
        Ok(attempt) => {
            assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
            false
        }
        Err(error) if error.kind() == ErrorKind::Overloaded => {
            assert!(error.message().contains("loading"), "{error:?}");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            false
        }
    })
    .await;
    let hurry = ["-p", &port, "CONFIG", "SET", "key-load-delay", "0"];
    assert_eq!(Command::new("redis-cli").args(hurry).output().unwrap().stdout, b"OK\n");
    let grant = granted_at_last(&store, &again).await;
    assert_eq!(grant.fence, before.fence);
    drop(in_time("the restart", restarted).await.unwrap());
}

/// Ends what it started.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_server_running_a_foreign_script_is_overloaded_meanwhile() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let held = claim("x", LONG);
    granted(&store, &held).await;
    server.cli(&["CONFIG", "SET", "busy-reply-threshold", "20"]);
    let endless = Command::new("redis-cli")
        .args(["-p", &server.port().to_string(), "EVAL", "while true do end", "0"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let endless = Running(endless);
    until_async("the script has begun", async || match store.try_acquire(&claim("x", LONG)).await {
        Ok(attempt) => {
            assert!(matches!(attempt, Attempt::Busy(_)), "{attempt:?}");
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Overloaded, "{error:?}");
            assert!(error.message().contains("script"), "{error:?}");
            true
        }
    })
    .await;
    let mutex = Locks::new(store.clone()).with_namespace("").mutex("free");
    let mut lock = std::pin::pin!(mutex.lock());
    send(lock.as_mut()).await;
    // Refused after the attempt of the lock, on the same connection.
    refused(&store, "new", ErrorKind::Overloaded, "script").await;
    let waiting = tokio::time::timeout(Duration::from_millis(100), lock.as_mut()).await;
    assert!(waiting.is_err(), "a lock waits until the store is back");
    assert_eq!(server.cli(&["SCRIPT", "KILL"]), "OK");
    in_time("the lock", lock).await.unwrap().release().await.unwrap();
    works_again(&store, &held).await;
    drop(endless);
}

#[tokio::test]
async fn a_server_that_cannot_save_is_unavailable_until_it_can() {
    let server = Server::with(&["--enable-protected-configs", "yes"]);
    let store = Redis::connect(&server.url()).await.unwrap();
    let held = claim("x", LONG);
    granted(&store, &held).await;
    // Nobody can write there, not even root.
    let dir = server.cli(&["CONFIG", "GET", "dir"]).lines().nth(1).unwrap().to_owned();
    assert_eq!(server.cli(&["CONFIG", "SET", "dir", "/proc"]), "OK");
    assert_eq!(server.cli(&["CONFIG", "SET", "save", "3600 1"]), "OK");
    let saves = |status: &str| {
        server.cli(&["BGSAVE"]);
        let status = format!("rdb_last_bgsave_status:{status}");
        until(&status, || server.cli(&["INFO", "persistence"]).contains(&status));
    };
    saves("err");
    all_refused(&store, &held, "cannot save to disk").await;
    server.cli(&["CONFIG", "SET", "dir", &dir]);
    saves("ok");
    works_again(&store, &held).await;
}

#[tokio::test]
async fn a_server_without_its_replicas_is_unavailable_until_they_join() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let held = claim("x", LONG);
    granted(&store, &held).await;
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    all_refused(&store, &held, "too few replicas").await;
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    works_again(&store, &held).await;
}

#[tokio::test]
async fn an_orphaned_replica_is_unavailable_until_it_is_primary_again() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let held = claim("x", LONG);
    granted(&store, &held).await;
    server.cli(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    // No process listens there.
    assert_eq!(server.cli(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    let error = store.try_acquire(&claim("new", LONG)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.message().contains("lost its primary"), "{error:?}");
    // The connection is made anew, in case that the primary is elsewhere.
    refused(&store, "new", ErrorKind::Unavailable, "is a replica").await;
    assert_eq!(server.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    works_again(&store, &held).await;
}

#[tokio::test]
async fn a_cluster_that_misses_a_node_is_unavailable_until_it_is_back() {
    let mut cluster = Cluster::start();
    let store = Redis::connect(&cluster.url()).await.unwrap();
    let last = cluster.nodes[2].port();
    let mut there = None;
    for i in 0.. {
        let slot = cluster.nodes[0].cli(&["CLUSTER", "KEYSLOT", &format!("leasehold:{{/n{i}}}")]);
        if cluster.serving(slot.parse().unwrap()).port() != last {
            there = Some(format!("n{i}"));
            break;
        }
    }
    let on = there.unwrap();
    let held = claim(&on, LONG * 10);
    granted(&store, &held).await;
    cluster.nodes[2].kill();
    let knows = |node: &Server| node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:fail");
    until("the others know that it is gone", || cluster.nodes[..2].iter().all(knows));
    refused(&store, &on, ErrorKind::Unavailable, "the cluster is down").await;
    let error = store.renew(&[Renewal::new(name(&on), held.id, LONG)]).await.remove(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    cluster.nodes[2].restart();
    let mut again = held.clone();
    (again.repeat, again.first) = (true, false);
    granted_at_last(&store, &again).await;
    for i in 0..20 {
        granted_at_last(&store, &claim(&format!("after{i}"), LONG)).await;
    }
}
