//! A server that falls silent, as the Rust client sees it: no answer comes, and no connection closes.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks};
use serde_json::json;
use testkit::proxy::Proxy;
use testkit::until::{in_time, until_async};

use crate::support::Server;

/// The promise in `docs/http.md`, and some room for a slow machine.
const NOTICED: Duration = Duration::from_secs(5);
const ROOM: Duration = Duration::from_secs(5);
/// How long after its limit a wait still checks whether the server is there.
const LAST_LOOK: Duration = Duration::from_secs(2);

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
    let (lost, passed_on) = in_time("both happen", both).await;
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
    // Released while nothing gets through: the server's answer is held back on a silent connection.
    let release = json!({"lease_id": first["lease_id"]});
    server.verb("a", "release", release).await;
    tokio::time::sleep(NOTICED).await;
    let began = Instant::now();
    // Drop what was held back; what is sent from now on arrives.
    proxy.discard();
    let got = in_time("it moves on", waiting).await.unwrap();
    assert!(got.unwrap().get() > first["fencing_token"].as_u64().unwrap());
    // Requests sent into the silence time out after `request_timeout`, and are sent again.
    assert!(began.elapsed() < Duration::from_secs(5) + ROOM, "it took {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_server_that_stays_silent_ends_with_an_error() {
    let (server, proxy, locks) = behind_a_proxy().await;
    server.acquire("a").await;
    let waiting = tokio::spawn(async move { locks.mutex("a").lock().await.map(drop) });
    server.until("a", |lock| lock["queue_length"] == 1).await;
    proxy.blackhole();
    let began = Instant::now();
    let error = in_time("it ends", waiting).await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NetworkTimeout), "{error}");
    // The silence is noticed, then the call is retried for ten seconds in calls of five. The long poll would end after
    // fifteen.
    assert!(began.elapsed() < NOTICED + Duration::from_secs(10) + ROOM, "it took {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bounded_wait_on_a_silent_server_is_an_error_not_busy() {
    let limited = |limit: Duration| async move {
        let (server, proxy, locks) = behind_a_proxy().await;
        server.acquire("a").await;
        let waiting = tokio::spawn(async move { locks.mutex("a").try_lock_for(limit).await });
        server.until("a", |lock| lock["queue_length"] == 1).await;
        let began = Instant::now();
        proxy.blackhole();
        let ended = in_time("it ends", waiting).await.unwrap();
        let error = ended.expect_err("nobody has said that it is still held");
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NetworkTimeout), "{error}");
        assert!(began.elapsed() < limit + LAST_LOOK + ROOM, "it took {:?}", began.elapsed());
    };
    // Before the silence is noticed, and during the call that follows.
    tokio::join!(limited(Duration::from_secs(2)), limited(Duration::from_secs(6)));
}

/// A later waiter queues behind it meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_sent_again_stays_ahead_of_later_waiters() {
    let (server, proxy, locks) = behind_a_proxy().await;
    let first = server.acquire("a").await.body;
    let waiting = tokio::spawn(async move { locks.mutex("a").lock().await.map(|guard| guard.fence()) });
    server.until("a", |lock| lock["queue_length"] == 1).await;
    let later = json!({"owner_id": "later", "ttl_ms": 30_000, "wait_ms": 50_000});
    let later = async { server.verb("a", "acquire", later).await };
    let rest = async {
        server.until("a", |lock| lock["queue_length"] == 2).await;
        proxy.blackhole();
        tokio::time::sleep(NOTICED).await;
        // Requests sent into the silence time out after `request_timeout`, and are sent again: first as an attempt.
        let refused = async || server.figure("lock_acquire_total{result=\"fail\"}").await;
        let before = refused().await;
        proxy.discard();
        until_async("it is sent again", async || refused().await > before).await;
        let seen = server.get("/v1/locks/a").await.body;
        assert_eq!(
            (&seen["queue_length"], &seen["waiters"][1]["owner_id"]),
            (&json!(2), &json!("later")),
            "{seen}"
        );
        server.verb("a", "release", json!({"lease_id": first["lease_id"]})).await;
    };
    let (later, ()) = tokio::join!(later, rest);
    let got = in_time("it moves on", waiting).await.unwrap();
    assert!(got.unwrap().get() < later.body["fencing_token"].as_u64().unwrap(), "it lost its place");
}
