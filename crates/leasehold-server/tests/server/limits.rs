//! Token limits hold whatever is sent at once, repeated, refused or broken off.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Backend, Release};
use leasehold::backends::memory::Memory;
use leasehold::{ErrorKind, LeaseId, Locks, Name};
use leasehold_server::Limits;
use serde_json::{Value, json};
use testkit::faulty::{Act, Verb};
use testkit::until::{in_time, until_async};
use tokio::task::JoinSet;

use crate::gates::Tenants;
use crate::support::{Answer, answered, asked, request};

const ID: &str = "GGGGGGGGGGGGGGGGGGGGGG";
/// The tenant of these tests.
const BLUE: usize = 0;

fn leases(most: u64) -> Limits {
    Limits { leases: Some(most), ..Limits::default() }
}

fn waiters(most: u64) -> Limits {
    Limits { waiters: Some(most), ..Limits::default() }
}

fn path(name: &str, verb: &str) -> String {
    format!("/v1/locks/blue%2F{name}/{verb}")
}

fn once() -> Value {
    json!({"owner_id": "me", "ttl_ms": 600_000})
}

fn with_id(id: &str) -> Value {
    json!({"owner_id": "me", "ttl_ms": 600_000, "lease_id": id})
}

fn bytes(t: &Tenants, name: &str, body: &Value) -> Vec<u8> {
    let bearer = format!("Bearer {}", t.secrets[BLUE]);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    request("POST", &path(name, "acquire"), &headers, &body.to_string())
}

impl Tenants {
    async fn blue(&self, name: &str, verb: &str, body: Value) -> Answer {
        self.call(BLUE, "POST", &path(name, verb), &body.to_string()).await
    }

    /// Retries until there is room.
    async fn has_room_in_the_end(&self, body: impl Fn() -> Value) {
        until_async("there is room again", async || {
            let answer = self.blue("free", "acquire", body()).await;
            assert!(matches!(answer.status, 200 | 429), "{answer:?}");
            answer.status == 200
        })
        .await;
    }
}

#[tokio::test]
async fn concurrent_acquires_never_exceed_the_tokens_lease_limit() {
    for body in [once(), json!({"owner_id": "me", "ttl_ms": 600_000, "wait_ms": 20_000})] {
        let (t, store) = Tenants::on_faulty(leases(3)).await;
        // All requests are running before the first is answered.
        store.always(Verb::TryAcquire, Act::Held);
        let t = Arc::new(t);
        let mut all = JoinSet::new();
        for number in 0..30 {
            let (t, body) = (Arc::clone(&t), body.clone());
            all.spawn(async move { t.blue(&number.to_string(), "acquire", body).await });
        }
        for _ in 0..27 {
            let refused = in_time("all but three are refused", all.join_next()).await;
            refused.unwrap().unwrap().is_problem(429, "RATE_LIMITED");
        }
        asked(&store, Verb::TryAcquire, 3).await;
        store.let_go();
        let granted = in_time("the others are answered", all.join_all()).await;
        assert!(granted.iter().all(|answer| answer.status == 200), "{granted:?}");
        // What is given back makes room for others.
        store.always(Verb::TryAcquire, Act::Pass);
        let lease = &granted[0].body;
        let name = lease["lock_name"].as_str().unwrap().strip_prefix("blue/").unwrap();
        assert_eq!(t.blue("free", "acquire", once()).await.status, 429);
        t.blue(name, "release", json!({"lease_id": lease["lease_id"]})).await;
        assert_eq!(t.blue("free", "acquire", once()).await.status, 200);
    }
}

#[tokio::test]
async fn waiters_have_reserved_their_room() {
    let (t, _) = Tenants::on_faulty(leases(2)).await;
    assert_eq!(t.acquire(BLUE, "blue/a").await.status, 200);
    let waits = json!({"owner_id": "w", "ttl_ms": 600_000, "wait_ms": 50_000});
    let waiting = t.server.raw(&bytes(&t, "a", &waits)).await;
    t.until(BLUE, "blue/a", |lock| lock["queue_length"] == 1).await;
    t.blue("b", "acquire", waits).await.is_problem(429, "RATE_LIMITED");
    drop(waiting);
    t.has_room_in_the_end(once).await;
}

#[tokio::test]
async fn one_lease_id_on_two_names_is_two_leases_and_a_repeat_is_none() {
    let (t, _) = Tenants::on_faulty(leases(1)).await;
    assert_eq!(t.blue("a", "acquire", with_id(ID)).await.status, 200);
    t.blue("b", "acquire", with_id(ID)).await.is_problem(429, "RATE_LIMITED");
    let mut repeat = with_id(ID);
    // The ttl of the repeat does not change how long the lease lasts.
    repeat["ttl_ms"] = json!(1);
    assert_eq!(t.blue("a", "acquire", repeat).await.status, 200);
    tokio::time::sleep(Duration::from_millis(20)).await;
    t.blue("b", "acquire", once()).await.is_problem(429, "RATE_LIMITED");
}

#[tokio::test]
async fn a_refused_renewal_frees_its_room_only_if_the_lease_is_gone() {
    let store = Memory::new();
    let backend: Arc<dyn Backend> = Arc::new(store);
    let t = Tenants::on(Locks::builder(Arc::clone(&backend)).build(), leases(1)).await;
    let fence = t.blue("a", "acquire", with_id(ID)).await.body["fencing_token"].as_u64().unwrap();
    let renew = json!({"lease_id": ID, "extend_by_ms": 600_000});
    let with = |field: &str, value: Value| {
        let mut renew = renew.clone();
        renew[field] = value;
        renew
    };
    for (name, body) in [
        ("b", renew.clone()),
        ("a", with("fencing_token", json!(fence + 1))),
        ("a", with("owner_id", json!("another"))),
        ("a", with("raise_fencing_token", json!(1))),
    ] {
        assert_eq!(t.blue(name, "renew", body.clone()).await.status, 410, "{body}");
        let mut one = body.clone();
        one["lock_name"] = json!(format!("blue/{name}"));
        let batch = json!({"leases": [one]}).to_string();
        assert_eq!(t.call(BLUE, "POST", "/v1/renew", &batch).await.body["results"][0]["status"], 410);
        t.blue("free", "acquire", once()).await.is_problem(429, "RATE_LIMITED");
    }
    // A revoked lease still holds the lock until its time has passed.
    assert_eq!(t.call(2, "POST", &path("a", "revoke"), "{}").await.body["revoked"], 1);
    assert_eq!(t.blue("a", "renew", renew.clone()).await.status, 410);
    t.blue("free", "acquire", once()).await.is_problem(429, "RATE_LIMITED");
    // Another client ended it without this server.
    let name = Name::within("leasehold", "blue/a").unwrap();
    backend.release(&Release::new(name, LeaseId::parse(ID).unwrap())).await.unwrap();
    t.blue("free", "acquire", once()).await.is_problem(429, "RATE_LIMITED");
    assert_eq!(t.blue("a", "renew", renew).await.status, 410);
    assert_eq!(t.blue("free", "acquire", once()).await.status, 200);
}

#[tokio::test]
async fn a_request_that_gets_nothing_gives_its_room_back() {
    let (t, store) = Tenants::on_faulty(leases(1)).await;
    t.blue("a", "acquire", json!({"owner_id": "me", "ttl_ms": 1})).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    store.plan(Verb::TryAcquire, [Act::Fail(ErrorKind::Unavailable)]);
    t.blue("a", "acquire", with_id(ID)).await.is_problem(503, "UNAVAILABLE");
    let red = json!({"owner_id": "me", "ttl_ms": 600_000, "mode": "permit", "limit": 1});
    assert_eq!(t.blue("held", "acquire", red).await.status, 200);
    let (t, store) = Tenants::on_faulty(leases(1)).await;
    let backend: &dyn Backend = &store;
    let claim = leasehold::backend::Claim::new(
        Name::within("leasehold", "blue/held").unwrap(),
        leasehold::backend::Mode::Exclusive,
        Duration::from_secs(600),
        "other",
    );
    backend.try_acquire(&claim).await.unwrap();
    assert_eq!(t.blue("held", "acquire", once()).await.status, 409);
    let waits = json!({"owner_id": "w", "ttl_ms": 600_000, "wait_ms": 10});
    assert_eq!(t.blue("held", "acquire", waits).await.status, 409);
    t.blue("held", "acquire", json!({"owner_id": "w", "ttl_ms": 1, "mode": "permit", "limit": 2}))
        .await
        .is_problem(422, "MISMATCH");
    // One client disconnects before its answer, and one while it waits.
    store.plan(Verb::TryAcquire, [Act::Held]);
    let (tried, released) = (store.count(Verb::TryAcquire), store.count(Verb::Release));
    let going = t.server.raw(&bytes(&t, "a", &once())).await;
    asked(&store, Verb::TryAcquire, tried + 1).await;
    t.server.hang_up(going).await;
    store.let_go();
    // Once the first is given back, there is room for the other.
    answered(&store, Verb::Release, released + 1).await;
    let waits = json!({"owner_id": "w", "ttl_ms": 600_000, "wait_ms": 50_000});
    let going = t.server.raw(&bytes(&t, "held", &waits)).await;
    t.until(BLUE, "blue/held", |lock| lock["queue_length"] == 1).await;
    drop(going);
    t.has_room_in_the_end(once).await;
}

/// A client that numbers its attempts gives up by itself. One that does not number them keeps the lease, so it is
/// counted.
#[tokio::test]
async fn a_lease_of_a_client_gone_before_its_answer_is_counted() {
    let (t, store) = Tenants::on_faulty(leases(1)).await;
    store.plan(Verb::TryAcquire, [Act::Held]);
    let mut numbered = with_id(ID);
    numbered["attempt"] = json!(1);
    let going = t.server.raw(&bytes(&t, "a", &numbered)).await;
    asked(&store, Verb::TryAcquire, 1).await;
    t.server.hang_up(going).await;
    store.let_go();
    answered(&store, Verb::TryAcquire, 1).await;
    t.until(BLUE, "blue/a", |lock| lock["held"] == true).await;
    t.blue("b", "acquire", once()).await.is_problem(429, "RATE_LIMITED");
    t.blue("a", "release", json!({"lease_id": ID, "attempt": 1, "unanswered": 600_000})).await;
    assert_eq!(t.blue("b", "acquire", once()).await.status, 200);
    // The server gives nothing back, later either.
    let _server = t.server.replaced(&store).await;
    assert_eq!(store.count(Verb::Release), 1, "besides the client's release");
}

#[tokio::test]
async fn a_token_whose_line_was_changed_keeps_what_it_has_used() {
    let (t, _) = Tenants::on_faulty(Limits { requests_per_second: Some(1000), ..leases(2) }).await;
    assert_eq!(t.acquire(BLUE, "blue/a").await.status, 200);
    let fewer = t.lines[BLUE].replace(r#""leases":2"#, r#""leases":1"#);
    assert_ne!(fewer, t.lines[BLUE]);
    t.reload(&[&t.lines[1], &fewer]);
    t.acquire(BLUE, "blue/b").await.is_problem(429, "RATE_LIMITED");
    t.reload(&[&t.lines[BLUE]]);
    assert_eq!(t.acquire(BLUE, "blue/b").await.status, 200);
    t.acquire(BLUE, "blue/c").await.is_problem(429, "RATE_LIMITED");
}

/// A place kept without a request blocks others just as a waiter does.
#[tokio::test]
async fn a_place_that_is_kept_counts_as_one_that_waits() {
    let (t, store) = Tenants::on_faulty(waiters(1)).await;
    let holder = t.acquire(BLUE, "blue/a").await.body;
    let place = |id: &str, queue: u64| {
        let mut body = with_id(id);
        body["queue"] = json!(queue);
        body
    };
    let other = || LeaseId::random().expose().to_owned();
    assert_eq!(t.blue("a", "acquire", place(ID, 600_000)).await.status, 409);
    for _ in 0..3 {
        t.blue("a", "acquire", place(&other(), 600_000)).await.is_problem(429, "RATE_LIMITED");
    }
    let waits = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 10});
    t.blue("a", "acquire", waits.clone()).await.is_problem(429, "RATE_LIMITED");
    // A client that comes back to its place has it already; and neither blocks an attempt that does not queue.
    assert_eq!(t.blue("a", "acquire", place(ID, 600_000)).await.status, 409);
    assert_eq!(t.blue("a", "acquire", once()).await.status, 409);
    // Given up.
    t.blue("a", "release", json!({"lease_id": ID})).await;
    let id = other();
    assert_eq!(t.blue("a", "acquire", place(&id, 600_000)).await.status, 409);
    t.blue("a", "acquire", waits.clone()).await.is_problem(429, "RATE_LIMITED");
    // Granted.
    t.blue("a", "release", json!({"lease_id": holder["lease_id"]})).await;
    assert_eq!(t.blue("a", "acquire", place(&id, 600_000)).await.status, 200);
    assert_eq!(t.blue("a", "acquire", place(&other(), 1)).await.status, 409);
    // Lapsed.
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(t.blue("a", "acquire", waits).await.body["reason"], "WAIT_TIMEOUT");
    // The place of a client that numbers its attempts and disconnected is kept as well.
    let mut numbered = place(ID, 600_000);
    (numbered["attempt"], numbered["wait_ms"]) = (json!(1), json!(50_000));
    let released = store.count(Verb::Release);
    let going = t.server.raw(&bytes(&t, "a", &numbered)).await;
    t.until(BLUE, "blue/a", |lock| lock["queue_length"] == 1).await;
    t.server.hang_up(going).await;
    t.blue("a", "acquire", place(&other(), 1)).await.is_problem(429, "RATE_LIMITED");
    let server = t.server.replaced(&store).await;
    assert_eq!(store.count(Verb::Release), released);
    assert_eq!(server.get("/v1/locks/blue%2Fa").await.body["queue_length"], 1);
}

/// No answer says how long the lease lasts now: the client disconnected, or the store was silent.
#[tokio::test]
async fn a_lease_whose_renewal_was_unanswered_is_still_counted() {
    let renewed = async |hang_up: bool| {
        let (t, store) = Tenants::on_faulty(leases(1)).await;
        let mut brief = with_id(ID);
        // Long enough to be renewed on a slow machine.
        brief["ttl_ms"] = json!(5_000);
        assert_eq!(t.blue("a", "acquire", brief).await.status, 200);
        let renew = json!({"lease_id": ID, "extend_by_ms": 600_000}).to_string();
        let act = if hang_up { Act::NeverAfter } else { Act::LostAfter(ErrorKind::NetworkTimeout) };
        store.plan(Verb::Renew, [act]);
        if hang_up {
            let bearer = format!("Bearer {}", t.secrets[BLUE]);
            let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
            let going = t.server.raw(&request("POST", &path("a", "renew"), &headers, &renew)).await;
            asked(&store, Verb::Renew, 1).await;
            t.server.hang_up(going).await;
        } else {
            t.call(BLUE, "POST", &path("a", "renew"), &renew).await.is_problem(503, "NETWORK_TIMEOUT");
        }
        tokio::time::sleep(Duration::from_millis(5_100)).await;
        t.until(BLUE, "blue/a", |lock| lock["held"] == true).await;
        t.blue("b", "acquire", once()).await.is_problem(429, "RATE_LIMITED");
    };
    tokio::join!(renewed(true), renewed(false));
}

#[tokio::test]
async fn an_acquire_token_cannot_use_up_the_fences_of_a_name() {
    let (t, _store) = Tenants::on_faulty(leases(5)).await;
    let answer = t.blue("a", "acquire", with_id(ID)).await;
    let fence = answer.body["fencing_token"].as_u64().unwrap();
    for far in [fence + 25 * 3600 * 256_000, 899_999_999_999_999, 900_000_000_000_000] {
        let renew = json!({"lease_id": ID, "extend_by_ms": 1000, "raise_fencing_token": far});
        let refused = t.blue("a", "renew", renew.clone()).await;
        refused.is_problem(400, "INVALID_ARGUMENT");
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains("a day ahead of the store's clock"), "{detail}");
        let mut one = renew;
        one["lock_name"] = json!("blue/a");
        let batch = json!({"leases": [one]}).to_string();
        assert_eq!(t.call(BLUE, "POST", "/v1/renew", &batch).await.body["results"][0]["status"], 400);
    }
    assert_eq!(t.blue("a", "release", json!({"lease_id": ID})).await.status, 200);
    let next = t.blue("a", "acquire", once()).await;
    assert_eq!(next.status, 200, "{next:?}");
}
