//! Shutdown, and the end of a wait, when the store does not answer any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Locks;
use leasehold_server::Settings;
use serde_json::{Value, json};
use testkit::faulty::{Act, Verb};
use testkit::until::{in_time, until_async};
use tokio::io::AsyncReadExt as _;

use crate::support::{Answer, Server, asked, faulty, request};

/// The promised five seconds, and two for a busy machine. A wait that missed the shutdown would put up with a silent
/// store for ten.
const END: Duration = Duration::from_secs(7);

fn acquire(body: &Value) -> Vec<u8> {
    request("POST", "/v1/locks/a/acquire", &[("content-type", "application/json")], &body.to_string())
}

/// However long the store has been silent when the shutdown begins: the server waits for a wake-up, or for an answer.
#[tokio::test(flavor = "multi_thread")]
async fn stopping_with_a_silent_store_answers_every_waiter() {
    let ends = async |silent: u64| {
        let redis = testkit::redis::Server::start();
        let mut server = Server::on(Locks::connect(&redis.url()).await.unwrap(), Settings::default()).await;
        server.acquire("a").await;
        let id = |last: char| format!("GGGGGGGGGGGGGGGGGGGGG{last}");
        let mut waiting = Vec::new();
        for body in [
            json!({}),
            json!({}),
            json!({"lease_id": id('G')}),
            json!({"lease_id": id('Q'), "queue": 0}),
            json!({"lease_id": id('w'), "attempt": 1}),
        ] {
            let mut body = body;
            (body["owner_id"], body["ttl_ms"], body["wait_ms"]) = (json!("w"), json!(1000), json!(50_000));
            waiting.push(server.raw(&acquire(&body)).await);
        }
        server.until("a", |lock| lock["queue_length"] == 5).await;
        redis.freeze();
        tokio::time::sleep(Duration::from_secs(silent)).await;
        let began = Instant::now();
        server.stop();
        for (number, mut stream) in waiting.into_iter().enumerate() {
            let mut bytes = Vec::new();
            let _ = in_time("all are answered", stream.read_to_end(&mut bytes)).await;
            let answer = Answer::parse(&bytes);
            assert_eq!(answer.status, 503, "{number} after {:?}: {answer:?}", began.elapsed());
            assert_eq!(answer.body["retryable"], true);
            assert!(began.elapsed() < END, "{number} was answered after {:?}", began.elapsed());
        }
        server.ended().await;
        assert!(began.elapsed() < END, "it took {:?} to end", began.elapsed());
    };
    tokio::join!(ends(0), ends(1), ends(4));
}

/// Two requests with one id: the second waits for the first, and both wait for the store.
#[tokio::test]
async fn stopping_also_answers_requests_queued_behind_their_own_id() {
    let (mut server, store) = faulty().await;
    store.always(Verb::TryAcquire, Act::Never);
    let body =
        json!({"owner_id": "me", "ttl_ms": 1000, "wait_ms": 50_000, "lease_id": "GGGGGGGGGGGGGGGGGGGGGG"});
    let mut streams = vec![server.raw(&acquire(&body)).await];
    asked(&store, Verb::TryAcquire, 1).await;
    streams.push(server.raw(&acquire(&body)).await);
    streams.push(server.raw(&acquire(&json!({"owner_id": "me", "ttl_ms": 1000}))).await);
    asked(&store, Verb::TryAcquire, 2).await;
    let began = Instant::now();
    server.stop();
    for mut stream in streams {
        let mut bytes = Vec::new();
        let _ = in_time("all are answered", stream.read_to_end(&mut bytes)).await;
        let status = Answer::parse(&bytes).status;
        // The older request may first get the answer that the newer one took over.
        assert!(matches!(status, 503 | 410), "{status} after {:?}", began.elapsed());
        assert!(began.elapsed() < END, "it took {:?}", began.elapsed());
    }
}

/// The places of waiters that were answered are given up before the server is gone, if the store answers.
#[tokio::test]
async fn what_waiters_got_is_given_back_before_the_server_stops() {
    let (mut server, store) = faulty().await;
    server.acquire("a").await;
    // Longer than an answer waits for the give-back.
    store.always(Verb::Release, Act::SlowBefore(Duration::from_millis(500)));
    let mut waiting = Vec::new();
    for number in 0..5 {
        let body = json!({"owner_id": format!("w{number}"), "ttl_ms": 1000, "wait_ms": 50_000});
        waiting.push(server.raw(&acquire(&body)).await);
    }
    server.until("a", |lock| lock["queue_length"] == 5).await;
    server.stop();
    server.ended().await;
    let released = store.calls(Verb::Release);
    assert_eq!(released.len(), 5);
    assert!(released.iter().all(|call| call.answer.is_some()), "it did not wait for them: {released:?}");
}

/// No give-back outlives the server.
#[tokio::test]
async fn a_stopped_server_sends_a_silent_store_nothing_more() {
    let (mut server, store) = faulty().await;
    server.acquire("a").await;
    store.always(Verb::Release, Act::Never);
    let _waiting = server.raw(&acquire(&json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 50_000}))).await;
    server.until("a", |lock| lock["queue_length"] == 1).await;
    server.stop();
    server.ended().await;
    let (calls, app) = (store.log().len(), &server.app);
    // Everything that calls the store holds a reference to the app. Allow tasks a moment to notice the shutdown.
    until_async("nothing of the server is left", async || Arc::strong_count(app) == 1).await;
    assert_eq!((store.log().len(), store.under_way()), (calls, 0), "{:?}", store.log());
    assert_eq!(store.count(Verb::Release), 1);
}

#[tokio::test]
async fn a_wait_ends_in_time_even_if_the_store_fails_releases() {
    let (server, store) = faulty().await;
    server.acquire("a").await;
    store.always(Verb::Release, Act::Never);
    let began = Instant::now();
    let body = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 500});
    let answer = server.verb("a", "acquire", body).await;
    assert_eq!(answer.body["reason"], "WAIT_TIMEOUT", "{answer:?}");
    // It waits a quarter of a second for the give-back, and a busy machine may take longer; a call to the store takes
    // five seconds.
    assert!(began.elapsed() < Duration::from_secs(5), "it took {:?}", began.elapsed());
}

#[tokio::test]
async fn a_wait_ends_within_two_seconds_if_the_store_falls_silent() {
    let (server, store) = faulty().await;
    server.acquire("a").await;
    store.plan(Verb::TryAcquire, [Act::Pass, Act::Never]);
    let began = Instant::now();
    let body = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 500});
    let answer = server.verb("a", "acquire", body).await;
    // No store answer says that the lock is still held.
    answer.is_problem(503, "NETWORK_TIMEOUT");
    // Two and a half seconds, doubled for a busy machine; without the limit it would take five and a half.
    assert!(began.elapsed() < Duration::from_secs(5), "it took {:?}", began.elapsed());
}
