//! Tokens that are removed, or restricted, while their requests are running.

use std::time::{Duration, Instant};

use leasehold_server::Limits;
use serde_json::{Value, json};
use testkit::faulty::{Act, Verb};
use testkit::until::in_time;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::gates::Tenants;
use crate::support::{Answer, asked, request};

const ID: &str = "GGGGGGGGGGGGGGGGGGGGGG";

/// The tenant that may see everything.
const ADMIN: usize = 2;

/// At once, with room for a busy machine; otherwise they would wait 50 s.
const AT_ONCE: Duration = Duration::from_secs(10);

async fn blue(t: &Tenants, mut body: Value) -> TcpStream {
    (body["owner_id"], body["ttl_ms"]) = (json!("w"), json!(600_000));
    let bearer = format!("Bearer {}", t.secrets[0]);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    t.server.raw(&request("POST", "/v1/locks/blue%2Fa/acquire", &headers, &body.to_string())).await
}

async fn answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    in_time("the request is answered", stream.read_to_end(&mut bytes)).await.unwrap();
    Answer::parse(&bytes)
}

#[tokio::test]
async fn waiters_of_a_removed_token_are_refused_and_leave_nothing() {
    let (t, _) = Tenants::on_faulty(Limits::default()).await;
    assert_eq!(t.acquire(0, "blue/a").await.status, 200);
    let mut waiting = vec![
        blue(&t, json!({"wait_ms": 50_000})).await,
        blue(&t, json!({"wait_ms": 50_000, "lease_id": ID})).await,
        blue(&t, json!({"wait_ms": 50_000, "lease_id": "HHHHHHHHHHHHHHHHHHHHHA", "attempt": 1})).await,
    ];
    t.until(ADMIN, "blue/a", |lock| lock["queue_length"] == 3).await;
    // Changes to other tokens, and unchanged lines, do not affect them.
    t.reload(&[&t.lines[0], &t.lines[2]]);
    let began = Instant::now();
    t.reload(&[&t.lines[2]]);
    for stream in &mut waiting {
        answer(stream).await.is_problem(401, "AUTH_FAILED");
    }
    assert!(began.elapsed() < AT_ONCE, "it took {:?}", began.elapsed());
    t.until(ADMIN, "blue/a", |lock| lock["queue_length"] == 0).await;
    // Leases granted before end with their ttl; nobody takes them away.
    t.until(ADMIN, "blue/a", |lock| lock["held"] == true).await;
}

#[tokio::test]
async fn a_waiter_whose_token_lost_the_name_is_refused() {
    let (t, _) = Tenants::on_faulty(Limits::default()).await;
    assert_eq!(t.acquire(0, "blue/a").await.status, 200);
    let mut waiting = blue(&t, json!({"wait_ms": 50_000})).await;
    t.until(ADMIN, "blue/a", |lock| lock["queue_length"] == 1).await;
    let narrower = t.lines[0].replace("blue/", "blue/b");
    assert_ne!(narrower, t.lines[0]);
    let began = Instant::now();
    t.reload(&[&narrower, &t.lines[2]]);
    answer(&mut waiting).await.is_problem(403, "AUTH_FAILED");
    assert!(began.elapsed() < AT_ONCE, "it took {:?}", began.elapsed());
    assert_eq!(t.acquire(0, "blue/b").await.status, 200);
}

/// The store has granted the lease, and the answer is in flight when the token is removed.
#[tokio::test]
async fn a_grant_after_its_token_was_removed_is_given_back() {
    let more = [json!({}), json!({"lease_id": ID}), json!({"lease_id": ID, "attempt": 1})];
    for body in more {
        let (t, store) = Tenants::on_faulty(Limits::default()).await;
        store.plan(Verb::TryAcquire, [Act::Held]);
        let mut stream = blue(&t, body.clone()).await;
        asked(&store, Verb::TryAcquire, 1).await;
        t.reload(&[&t.lines[2]]);
        store.let_go();
        answer(&mut stream).await.is_problem(401, "AUTH_FAILED");
        t.until(ADMIN, "blue/a", |lock| lock["held"] == false).await;
    }
}

/// The client learned of the lease before, so it keeps it until its time has passed.
#[tokio::test]
async fn a_repeat_with_a_removed_token_takes_nothing_away() {
    for body in [json!({"lease_id": ID}), json!({"lease_id": ID, "attempt": 1})] {
        let (t, store) = Tenants::on_faulty(Limits::default()).await;
        assert_eq!(answer(&mut blue(&t, body.clone()).await).await.status, 200);
        store.plan(Verb::TryAcquire, [Act::Held]);
        let tried = store.count(Verb::TryAcquire);
        let mut stream = blue(&t, body).await;
        asked(&store, Verb::TryAcquire, tried + 1).await;
        t.reload(&[&t.lines[2]]);
        store.let_go();
        answer(&mut stream).await.is_problem(401, "AUTH_FAILED");
        let server = t.server.replaced(&store).await;
        assert_eq!(store.count(Verb::Release), 0);
        assert_eq!(server.get("/v1/locks/blue%2Fa").await.body["held"], true);
    }
}
