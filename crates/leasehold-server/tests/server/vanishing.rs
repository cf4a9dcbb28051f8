//! Clients that go away: while they wait, before their answer, and those that come back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::backends::memory::Memory;
use leasehold::clock::SystemClock;
use leasehold_server::Settings;
use serde_json::json;
use testkit::faulty::{Act, Faulty, Verb};
use testkit::until::in_time;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Server, answered, asked, faulty, locks, request};

const ID: &str = "GGGGGGGGGGGGGGGGGGGGGG";

/// Within a second of the client's going: its connection's end and one call to the store. And four more for a machine
/// that is busy with something else; a place lapses after ten.
const AT_ONCE: Duration = Duration::from_secs(5);

fn acquire(name: &str, body: serde_json::Value) -> Vec<u8> {
    let headers = [("content-type", "application/json")];
    request("POST", &format!("/v1/locks/{name}/acquire"), &headers, &body.to_string())
}

/// A wait on a connection that stays open for further requests.
fn acquire_and_more(name: &str) -> Vec<u8> {
    let waits = acquire(name, json!({"owner_id": "w", "ttl_ms": 600_000, "wait_ms": 50_000}));
    String::from_utf8(waits).unwrap().replace("connection: close\r\n", "").into_bytes()
}

#[tokio::test]
async fn a_client_that_goes_while_it_waits_leaves_the_queue() {
    let server = Server::start().await;
    server.acquire("a").await;
    for own_id in [false, true] {
        let mut body = json!({"owner_id": "w", "ttl_ms": 30_000, "wait_ms": 50_000});
        if own_id {
            body["lease_id"] = json!(ID);
        }
        let waiting = server.raw(&acquire("a", body)).await;
        server.until("a", |lock| lock["queue_length"] == 1).await;
        let began = Instant::now();
        drop(waiting);
        server.until("a", |lock| lock["queue_length"] == 0).await;
        assert!(began.elapsed() < AT_ONCE, "it took {:?}", began.elapsed());
    }
}

/// Behind its request it has sent another, or an empty line as some old clients do; or more than anybody needs.
#[tokio::test]
async fn a_client_that_sent_more_and_goes_leaves_the_queue_too() {
    let server = Server::start().await;
    server.acquire("a").await;
    let second = request("GET", "/healthz", &[], "");
    for (more, resets) in
        [(&second[..], false), (b"\r\n", false), (&second[..], true), (&[b'x'; 1 << 20], false)]
    {
        let mut waiting = server.raw(&acquire_and_more("a")).await;
        server.until("a", |lock| lock["queue_length"] == 1).await;
        // As much of it as the server takes.
        let _ = tokio::time::timeout(Duration::from_secs(1), waiting.write_all(more)).await;
        if resets {
            waiting.set_zero_linger().unwrap();
        }
        let began = Instant::now();
        drop(waiting);
        server.until("a", |lock| lock["queue_length"] == 0).await;
        // Long before its wait is over.
        assert!(began.elapsed() < Duration::from_secs(30), "it took {:?}", began.elapsed());
    }
}

/// Sending ahead is allowed: both are answered, in order.
#[tokio::test]
async fn a_request_behind_one_that_waits_is_answered_after_it() {
    let server = Server::start().await;
    let held = server.acquire("a").await;
    let mut waiting = server.raw(&acquire_and_more("a")).await;
    server.until("a", |lock| lock["queue_length"] == 1).await;
    // In two parts, with a look at the server between them: it has read the first by then.
    let second = request("GET", "/v1/locks/b", &[], "");
    waiting.write_all(&second[..20]).await.unwrap();
    assert_eq!(server.get("/healthz").await.status, 200);
    waiting.write_all(&second[20..]).await.unwrap();
    assert_eq!(server.get("/healthz").await.status, 200);
    let lease_id = held.body["lease_id"].clone();
    assert_eq!(server.verb("a", "release", json!({"lease_id": lease_id})).await.status, 200);
    let mut answers = String::new();
    in_time("both are answered", waiting.read_to_string(&mut answers)).await.unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
    assert!(answers.find("\"acquired\":true") < answers.find("\"held\":false"), "{answers}");
}

#[tokio::test]
async fn what_a_client_got_that_went_before_its_answer_goes_to_the_next() {
    for own_id in [false, true] {
        let (server, store) = faulty().await;
        store.plan(Verb::TryAcquire, [Act::Held]);
        let mut body = json!({"owner_id": "gone", "ttl_ms": 600_000});
        if own_id {
            body["lease_id"] = json!(ID);
        }
        let going = server.raw(&acquire("a", body)).await;
        asked(&store, Verb::TryAcquire, 1).await;
        server.hang_up(going).await;
        store.let_go();
        let went = Instant::now();
        let next = json!({"owner_id": "next", "ttl_ms": 30_000, "wait_ms": 50_000});
        let next = server.verb("a", "acquire", next).await;
        assert_eq!((next.status, &next.body["owner_id"]), (200, &json!("next")));
        assert!(went.elapsed() < AT_ONCE, "the next had it after {:?}", went.elapsed());
    }
}

/// At another server, which knows nothing of the first: only the number of the attempt tells them apart.
#[tokio::test]
async fn a_client_that_came_back_with_its_id_to_another_server_keeps_the_lease() {
    let (first, store) = faulty().await;
    let server = Server::on(locks(&store), Settings::default()).await;
    store.plan(Verb::TryAcquire, [Act::Held]);
    let body = json!({"owner_id": "me", "ttl_ms": 600_000, "lease_id": ID});
    let going = first.raw(&acquire("a", body.clone())).await;
    asked(&store, Verb::TryAcquire, 1).await;
    first.hang_up(going).await;
    let back = server.verb("a", "acquire", body).await;
    assert_eq!(back.status, 200, "{back:?}");
    store.let_go();
    // The give-back of the first request has come and gone.
    answered(&store, Verb::Release, 1).await;
    let seen = server.get("/v1/locks/a").await.body;
    assert_eq!((&seen["held"], &seen["fencing_token"]), (&json!(true), &back.body["fencing_token"]));
    let renew = json!({"lease_id": ID, "extend_by_ms": 1000});
    assert_eq!(server.verb("a", "renew", renew).await.status, 200);
}

#[tokio::test]
async fn a_repeat_that_breaks_off_does_not_take_away_what_was_answered_before() {
    let (server, store) = faulty().await;
    let body = json!({"owner_id": "me", "ttl_ms": 600_000, "lease_id": ID});
    let held = server.verb("a", "acquire", body.clone()).await;
    assert_eq!(held.status, 200);
    let before = store.log().len();
    store.plan(Verb::TryAcquire, [Act::Held]);
    let going = server.raw(&acquire("a", body)).await;
    asked(&store, Verb::TryAcquire, 2).await;
    server.hang_up(going).await;
    store.let_go();
    // The probe, then the repeat; and nothing after it.
    answered(&store, Verb::TryAcquire, 3).await;
    let server = server.replaced(&store).await;
    assert!(
        store.log()[before..].iter().all(|call| call.verb != Verb::Release),
        "a held lease was given back"
    );
    assert_eq!(server.get("/v1/locks/a").await.body["held"], true);
}

#[tokio::test]
async fn a_store_that_is_busy_is_409_and_one_that_is_down_503() {
    use leasehold::ErrorKind;
    let (server, store) = faulty().await;
    store.plan(Verb::TryAcquire, [Act::Fail(ErrorKind::Overloaded)]);
    let busy = server.acquire("a").await;
    assert_eq!((busy.status, &busy.body["reason"]), (409, &json!("BUSY_RETRY")));
    assert_eq!(busy.body["recommended_retry_ms"], 50);
    store.plan(Verb::TryAcquire, [Act::Fail(ErrorKind::Unavailable)]);
    let down = server.acquire("a").await;
    down.is_problem(503, "UNAVAILABLE");
    assert_eq!(down.header("retry-after"), Some("1"));
    // Who waits is spared a fault that passes.
    store.plan(Verb::TryAcquire, [Act::Fail(ErrorKind::Unavailable), Act::Fail(ErrorKind::Overloaded)]);
    let waits = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 50_000});
    assert_eq!(server.verb("a", "acquire", waits).await.status, 200);
}

/// The answer of the store got lost, and nobody but the server knows the id it made.
#[tokio::test]
async fn an_id_that_only_the_server_knows_holds_nothing_after_a_fault() {
    use leasehold::ErrorKind;
    let (server, store) = faulty().await;
    store.plan(Verb::TryAcquire, [Act::LostAfter(ErrorKind::NetworkTimeout)]);
    server.acquire("a").await.is_problem(503, "NETWORK_TIMEOUT");
    server.until("a", |lock| lock["held"] == false).await;
}

/// Where the places of clients that went away are looked at: what runs in the server's process, and what does not.
struct Stores {
    directory: tempfile::TempDir,
    redis: testkit::redis::Server,
}

impl Stores {
    fn start() -> Self {
        Stores { directory: tempfile::tempdir().unwrap(), redis: testkit::redis::Server::start() }
    }

    /// A server on each of them, with the store so that its calls can be seen and slowed down.
    async fn all(&self) -> [(Server, Faulty, &'static str); 3] {
        use leasehold::backends::{redis::Redis, sqlite::Sqlite};
        let sqlite = Sqlite::builder(self.directory.path().join("locks.db")).open().await.unwrap();
        let redis = Redis::connect(&self.redis.url()).await.unwrap();
        let clock = || Arc::new(SystemClock);
        let stores =
            [Faulty::new(Memory::new(), clock()), Faulty::new(sqlite, clock()), Faulty::new(redis, clock())];
        let mut servers = Vec::new();
        for store in &stores {
            servers.push(Server::on(locks(store), Settings::default()).await);
        }
        let mut servers = servers.into_iter();
        let mut names = ["memory", "sqlite", "redis"].into_iter();
        stores.map(|store| (servers.next().unwrap(), store, names.next().unwrap()))
    }
}

/// A place behind a holder, whose client got WAIT_TIMEOUT and may come back; then the holder releases.
async fn kept_place(server: &Server, queue_ms: u64) -> serde_json::Value {
    let holder = server.acquire("a").await.body;
    let body =
        json!({"owner_id": "back", "ttl_ms": 600_000, "wait_ms": 1, "lease_id": ID, "queue": queue_ms});
    let timeout = server.verb("a", "acquire", body.clone()).await;
    assert_eq!((timeout.status, &timeout.body["reason"]), (409, &json!("WAIT_TIMEOUT")));
    server.verb("a", "release", json!({"lease_id": holder["lease_id"]})).await;
    body
}

/// Nobody called for it, so nobody would know that it is held: for all of its ttl nobody could have it.
#[tokio::test]
async fn a_place_that_nobody_waits_at_never_becomes_a_lease_by_itself() {
    let stores = Stores::start();
    for (server, _, store) in stores.all().await {
        // Long enough to be seen on a slow machine.
        let body = kept_place(&server, 20_000).await;
        let seen = server.get("/v1/locks/a").await.body;
        assert_eq!(
            (&seen["held"], &seen["queue_length"]),
            (&json!(false), &json!(1)),
            "{store}: its place is kept"
        );
        // Whoever comes in time has it, and before others.
        let other = server.acquire("a").await;
        assert_eq!(other.status, 409, "{store}: {other:?}");
        assert_eq!(server.verb("a", "acquire", body).await.status, 200, "{store}");
    }
}

#[tokio::test]
async fn a_place_whose_client_stays_away_costs_the_next_no_more_than_its_ticket() {
    let stores = Stores::start();
    for (server, _, store) in stores.all().await {
        kept_place(&server, 1000).await;
        let next = json!({"owner_id": "next", "ttl_ms": 1000, "wait_ms": 50_000});
        let next = server.verb("a", "acquire", next).await;
        assert_eq!((next.status, &next.body["owner_id"]), (200, &json!("next")), "{store}");
    }
}

/// The repeat finds the place that an earlier request of the same client had, and gets the lease through it; then the
/// client is gone.
#[tokio::test]
async fn what_a_repeat_got_from_its_old_place_is_given_back_when_its_client_has_gone() {
    let stores = Stores::start();
    for (server, store, which) in stores.all().await {
        let body = kept_place(&server, 60_000).await;
        let (tried, released) = (store.calls(Verb::TryAcquire).len(), store.calls(Verb::Release).len());
        store.plan(Verb::TryAcquire, [Act::Held]);
        let going = server.raw(&acquire("a", body)).await;
        asked(&store, Verb::TryAcquire, tried + 1).await;
        server.hang_up(going).await;
        store.let_go();
        // The question whether there is something, the attempt itself, and then what it got is given back.
        asked(&store, Verb::Release, released + 1).await;
        let next = json!({"owner_id": "next", "ttl_ms": 1000, "wait_ms": 50_000});
        let next = server.verb("a", "acquire", next).await;
        assert_eq!((next.status, &next.body["owner_id"]), (200, &json!("next")), "{which}");
    }
}
