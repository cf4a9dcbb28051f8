//! Clients that disconnect: while they wait, before their answer, and those that come back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::backends::memory::Memory;
use leasehold::clock::SystemClock;
use leasehold::digest_name;
use leasehold_server::{LogForm, Settings};
use serde_json::{Value, json};
use testkit::faulty::{Act, Faulty, Verb};
use testkit::until::{in_time, until_async};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Lines, Server, answered, asked, faulty, faulty_with, locks, request};

const ID: &str = "GGGGGGGGGGGGGGGGGGGGGG";

/// Within a second of the disconnect: the server notices it and calls the store once. Four more are for a busy
/// machine; a place lapses after ten.
const AT_ONCE: Duration = Duration::from_secs(5);

fn acquire(name: &str, body: serde_json::Value) -> Vec<u8> {
    let headers = [("content-type", "application/json")];
    request("POST", &format!("/v1/locks/{name}/acquire"), &headers, &body.to_string())
}

/// A waiting request on a connection that stays open for further requests.
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

/// After its request the client has sent another one, or an empty line as some old clients do, or more than the server
/// accepts.
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
        // Long before its wait would end.
        assert!(began.elapsed() < Duration::from_secs(30), "it took {:?}", began.elapsed());
    }
}

/// Sending ahead is allowed: both requests are answered, in order.
#[tokio::test]
async fn a_request_behind_one_that_waits_is_answered_after_it() {
    let server = Server::start().await;
    let held = server.acquire("a").await;
    let mut waiting = server.raw(&acquire_and_more("a")).await;
    server.until("a", |lock| lock["queue_length"] == 1).await;
    // In two parts, with a call to the server between them, so that it has read the first by then.
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
async fn a_lease_of_a_client_gone_before_its_answer_goes_to_the_next() {
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

/// At another server, which does not know the first request: only the attempt number tells them apart.
#[tokio::test]
async fn a_client_that_repeats_its_id_at_another_server_keeps_it() {
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
    // The give-back of the first request is over.
    answered(&store, Verb::Release, 1).await;
    let seen = server.get("/v1/locks/a").await.body;
    assert_eq!((&seen["held"], &seen["fencing_token"]), (&json!(true), &back.body["fencing_token"]));
    let renew = json!({"lease_id": ID, "extend_by_ms": 1000});
    assert_eq!(server.verb("a", "renew", renew).await.status, 200);
}

#[tokio::test]
async fn an_aborted_repeat_does_not_take_away_an_answered_lease() {
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
    // The probe, then the repeat; nothing after it.
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
    // A waiting request does not see a passing fault.
    store.plan(Verb::TryAcquire, [Act::Fail(ErrorKind::Unavailable), Act::Fail(ErrorKind::Overloaded)]);
    let waits = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 50_000});
    assert_eq!(server.verb("a", "acquire", waits).await.status, 200);
}

/// The store's answer was lost, and only the server knows the id it made.
#[tokio::test]
async fn an_id_made_by_the_server_holds_nothing_after_a_fault() {
    use leasehold::ErrorKind;
    let (server, store) = faulty().await;
    store.plan(Verb::TryAcquire, [Act::LostAfter(ErrorKind::NetworkTimeout)]);
    server.acquire("a").await.is_problem(503, "NETWORK_TIMEOUT");
    server.until("a", |lock| lock["held"] == false).await;
}

/// Stores inside and outside the server's process, on which the places of disconnected clients are checked.
struct Stores {
    directory: tempfile::TempDir,
    redis: testkit::redis::Server,
}

impl Stores {
    fn start() -> Self {
        Stores { directory: tempfile::tempdir().unwrap(), redis: testkit::redis::Server::start() }
    }

    /// A server on each store, with the store's calls observable and delayable.
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

/// No client asked again, so none would know that it holds the lock, and nobody could take it for the whole ttl.
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
        // A client that comes back in time gets the lock, ahead of others.
        let other = server.acquire("a").await;
        assert_eq!(other.status, 409, "{store}: {other:?}");
        assert_eq!(server.verb("a", "acquire", body).await.status, 200, "{store}");
    }
}

#[tokio::test]
async fn an_abandoned_place_costs_the_next_at_most_its_ticket() {
    let stores = Stores::start();
    for (server, _, store) in stores.all().await {
        kept_place(&server, 1000).await;
        let next = json!({"owner_id": "next", "ttl_ms": 1000, "wait_ms": 50_000});
        let next = server.verb("a", "acquire", next).await;
        assert_eq!((next.status, &next.body["owner_id"]), (200, &json!("next")), "{store}");
    }
}

/// The repeat finds the place of an earlier request of the same client, and gets the lease through it; then the client
/// disconnects.
#[tokio::test]
async fn a_repeats_grant_is_given_back_when_its_client_has_gone() {
    let stores = Stores::start();
    for (server, store, which) in stores.all().await {
        let body = kept_place(&server, 60_000).await;
        let (tried, released) = (store.calls(Verb::TryAcquire).len(), store.calls(Verb::Release).len());
        store.plan(Verb::TryAcquire, [Act::Held]);
        let going = server.raw(&acquire("a", body)).await;
        asked(&store, Verb::TryAcquire, tried + 1).await;
        server.hang_up(going).await;
        store.let_go();
        // The probe, the attempt itself, and then the give-back of what it got.
        asked(&store, Verb::Release, released + 1).await;
        let next = json!({"owner_id": "next", "ttl_ms": 1000, "wait_ms": 50_000});
        let next = server.verb("a", "acquire", next).await;
        assert_eq!((next.status, &next.body["owner_id"]), (200, &json!("next")), "{which}");
    }
}

/// A log line about an operation whose client has gone.
async fn line_of(lines: &Lines, op: &str) -> Value {
    let mut found = None;
    until_async(&format!("the log has a line of {op}"), async || {
        found = lines.json().into_iter().find(|line| line["op"] == op);
        found.is_some()
    })
    .await;
    found.unwrap()
}

/// A request with an id of its own that the server's log repeats.
fn traced(path: &str, id: &str, body: &Value) -> Vec<u8> {
    let headers = [("content-type", "application/json"), ("x-request-id", id)];
    request("POST", path, &headers, &body.to_string())
}

#[tokio::test]
async fn a_revoke_whose_client_goes_leaves_its_traces() {
    let mut settings = Settings::default();
    let lines = Lines::of(&mut settings, LogForm::Json);
    settings.sweep_every = Duration::from_secs(3600);
    let (server, store) = faulty_with(settings).await;
    answered(&store, Verb::Other, 1).await;
    let fence = server.acquire("a").await.body["fencing_token"].clone();
    store.plan(Verb::Other, [Act::Held]);
    let body = json!({"now": true, "fencing_token": fence});
    let going = server.raw(&traced("/v1/locks/a/revoke", "r-7", &body)).await;
    asked(&store, Verb::Other, 2).await;
    server.hang_up(going).await;
    store.let_go();
    let line = line_of(&lines, "revoke").await;
    assert_eq!(
        (&line["result"], &line["status"], &line["request_id"], &line["fence"]),
        (&json!("success"), &json!(200), &json!("r-7"), &fence)
    );
    let events = server.get("/v1/locks/a/history").await.body["events"].clone();
    assert_eq!((&events[0]["what"], &events[0]["owner_id"]), (&json!("revoked"), &json!("me")), "{events}");
    assert_eq!(lines.json().iter().filter(|line| line["op"] == "revoke").count(), 1);
}

#[tokio::test]
async fn an_operation_whose_client_goes_is_logged() {
    let mut settings = Settings::default();
    let lines = Lines::of(&mut settings, LogForm::Json);
    let (server, store) = faulty_with(settings).await;
    let id = server.acquire("a").await.body["lease_id"].clone();
    let waits = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 50_000});
    let renew = json!({"lease_id": id, "extend_by_ms": 1000});
    let mut many = renew.clone();
    many["lock_name"] = json!("a");
    let release = json!({"lease_id": id});
    for (path, verb, act, body) in [
        ("/v1/locks/a/acquire", Verb::TryAcquire, Act::Pass, waits),
        ("/v1/locks/a/renew", Verb::Renew, Act::Held, renew),
        ("/v1/renew", Verb::Renew, Act::Held, json!({"leases": [many]})),
        ("/v1/locks/a/release", Verb::Release, Act::Held, release),
    ] {
        let (before, done) = (lines.json().len(), store.count(verb));
        store.plan(verb, [act]);
        let going = server.raw(&traced(path, path, &body)).await;
        asked(&store, verb, done + 1).await;
        server.hang_up(going).await;
        until_async(&format!("{path} is logged"), async || lines.json().len() > before).await;
        let logged = lines.json();
        assert_eq!(logged.len(), before + 1, "{logged:?}");
        let line = &logged[before];
        let op = path.rsplit_once('/').unwrap().1;
        let lock = if path == "/v1/renew" { Value::Null } else { json!(digest_name("a")) };
        assert_eq!(
            (&line["op"], &line["result"], &line["error"]),
            (&json!(op), &json!("fail"), &json!("the client left before the answer"))
        );
        assert_eq!((&line["request_id"], &line["lock_hash"]), (&json!(path), &lock), "{line}");
        // There was no answer, so there is no status, and no metric counts one.
        assert_eq!((&line["status"], &line["level"]), (&Value::Null, &json!("info")), "{line}");
    }
    assert_eq!(server.figure("lock_release_total{result=\"fail\"}").await, 0.0);
    store.let_go();
}
