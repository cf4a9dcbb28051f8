//! Ending, and the end of a wait, when the store says nothing any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Locks;
use leasehold_server::Settings;
use serde_json::{Value, json};
use testkit::faulty::{Act, Verb};
use testkit::until::{in_time, until_async};
use tokio::io::AsyncReadExt as _;

use crate::support::{Answer, Server, asked, faulty, request};

/// The five seconds that are promised, and two for a machine that is busy with something else. A wait that is not told
/// of the end would put up with a silent store for ten.
const END: Duration = Duration::from_secs(7);

fn acquire(body: &Value) -> Vec<u8> {
    request("POST", "/v1/locks/a/acquire", &[("content-type", "application/json")], &body.to_string())
}

/// However long it has said nothing when the server is told to end: waiting for a wake-up, or for an answer to a call.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_before_a_store_that_is_silent_answers_everybody_who_waits() {
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

/// Two with one id: the second waits for the first, and both for the store.
#[tokio::test]
async fn those_behind_another_with_their_id_are_answered_too_when_the_server_ends() {
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
        // The older of the two is told that the newer took over, if that comes first.
        assert!(matches!(status, 503 | 410), "{status} after {:?}", began.elapsed());
        assert!(began.elapsed() < END, "it took {:?}", began.elapsed());
    }
}

/// The places of those who were answered are given up before the server is gone, if the store lets it.
#[tokio::test]
async fn what_was_waited_for_is_given_back_before_the_server_has_ended() {
    let (mut server, store) = faulty().await;
    server.acquire("a").await;
    // Longer than an answer waits for it.
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

/// Nothing that gives back outlives the server.
#[tokio::test]
async fn a_store_that_stays_silent_is_not_asked_any_more_when_the_server_has_ended() {
    let (mut server, store) = faulty().await;
    server.acquire("a").await;
    store.always(Verb::Release, Act::Never);
    let _waiting = server.raw(&acquire(&json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 50_000}))).await;
    server.until("a", |lock| lock["queue_length"] == 1).await;
    server.stop();
    server.ended().await;
    let (calls, app) = (store.log().len(), &server.app);
    // Whatever asks the store has a part in the app; a moment for tasks to see that they are to end.
    until_async("nothing of the server is left", async || Arc::strong_count(app) == 1).await;
    assert_eq!((store.log().len(), store.under_way()), (calls, 0), "{:?}", store.log());
    assert_eq!(store.count(Verb::Release), 1);
}

#[tokio::test]
async fn the_end_of_a_wait_is_told_in_time_by_a_store_that_takes_nothing_back() {
    let (server, store) = faulty().await;
    server.acquire("a").await;
    store.always(Verb::Release, Act::Never);
    let began = Instant::now();
    let body = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 500});
    let answer = server.verb("a", "acquire", body).await;
    assert_eq!(answer.body["reason"], "WAIT_TIMEOUT", "{answer:?}");
    // It waits a quarter of a second for that, and a busy machine may take a while; a call to the store takes five.
    assert!(began.elapsed() < Duration::from_secs(5), "it took {:?}", began.elapsed());
}

#[tokio::test]
async fn the_end_of_a_wait_is_told_within_two_seconds_by_a_store_that_fell_silent() {
    let (server, store) = faulty().await;
    server.acquire("a").await;
    store.plan(Verb::TryAcquire, [Act::Pass, Act::Never]);
    let began = Instant::now();
    let body = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 500});
    let answer = server.verb("a", "acquire", body).await;
    // Nobody has said that it is still held.
    answer.is_problem(503, "NETWORK_TIMEOUT");
    // Two and a half, and as much again for a busy machine; without that bound it would take five and a half.
    assert!(began.elapsed() < Duration::from_secs(5), "it took {:?}", began.elapsed());
}
