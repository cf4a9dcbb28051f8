//! A server that falls silent, as the Rust client sees it: nothing comes back, and no connection ends.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks};
use testkit::proxy::Proxy;

use crate::support::{PATIENCE, Server};

/// What `docs/server.md` promises, and some room for a slow machine.
const NOTICED: Duration = Duration::from_secs(5);
const ROOM: Duration = Duration::from_secs(5);

async fn behind_a_proxy() -> (Server, Proxy, Locks) {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).unwrap();
    let locks = Locks::connect(&format!("http://{}", proxy.address())).await.unwrap();
    (server, proxy, locks)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_is_lost_before_its_lease_can_have_passed_on() {
    let (server, proxy, locks) = behind_a_proxy().await;
    let guard = locks.mutex("a").ttl(Duration::from_secs(2)).lock().await.unwrap();
    proxy.blackhole();
    let lost = async {
        guard.lost().await;
        Instant::now()
    };
    let passed_on = async {
        server.until("a", |lock| lock["held"] == false).await;
        Instant::now()
    };
    let both = async { tokio::join!(lost, passed_on) };
    let (lost, passed_on) = tokio::time::timeout(PATIENCE, both).await.expect("both happen");
    assert!(lost <= passed_on, "told {:?} too late", lost - passed_on);
    assert!(guard.check().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_is_sent_again_within_seconds_and_keeps_its_place() {
    let (server, proxy, locks) = behind_a_proxy().await;
    let first = server.acquire("a").await.body;
    let waiting = tokio::spawn(async move { locks.mutex("a").lock().await.map(|guard| guard.fence()) });
    server.until("a", |lock| lock["queue_length"] == 1).await;
    proxy.blackhole();
    // Released while nothing gets through: the server's answer is held back on a connection that says nothing.
    let release = serde_json::json!({"lease_id": first["lease_id"]});
    server.verb("a", "release", release).await;
    let connections = proxy.counts().accepted;
    let began = Instant::now();
    while proxy.counts().accepted == connections {
        assert!(began.elapsed() < NOTICED + ROOM, "nothing was noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Gone is what was held back; what is sent from now on arrives.
    proxy.discard();
    let got = tokio::time::timeout(PATIENCE, waiting).await.expect("it moves on").unwrap();
    assert!(got.unwrap().get() > first["fencing_token"].as_u64().unwrap());
    assert!(began.elapsed() < 2 * NOTICED + ROOM, "it took {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_server_that_stays_silent_ends_with_an_error() {
    let (server, proxy, locks) = behind_a_proxy().await;
    server.acquire("a").await;
    let waiting = tokio::spawn(async move { locks.mutex("a").lock().await.map(drop) });
    server.until("a", |lock| lock["queue_length"] == 1).await;
    proxy.blackhole();
    let began = Instant::now();
    let error = tokio::time::timeout(PATIENCE, waiting).await.expect("it ends").unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NetworkTimeout), "{error}");
    // Noticed, and then tried for ten seconds in calls of five.
    assert!(began.elapsed() < NOTICED + Duration::from_secs(15) + ROOM, "it took {:?}", began.elapsed());
}

/// Connections that were idle while the server fell silent are not trusted when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn calls_after_a_silence_do_not_wait_for_each_connection_that_died_in_it() {
    let (_server, proxy, locks) = behind_a_proxy().await;
    let mutex = |n: usize| locks.mutex(format!("a{n}")).request_timeout(Duration::from_millis(1500));
    let calls = (0..8).map(|n| {
        let mutex = mutex(n);
        tokio::spawn(async move { mutex.lock().await.map(drop) })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    proxy.blackhole();
    assert!(mutex(9).try_lock().await.is_err(), "nothing gets through");
    proxy.discard();
    let began = Instant::now();
    mutex(10).lock().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(4), "it took {:?}", began.elapsed());
}
