//! The metric of hand-overs: what counts as one, and what does not.

use std::time::Duration;

use serde_json::json;

use crate::support::{Server, request};

#[tokio::test]
async fn waits_and_hand_overs_are_measured() {
    let server = Server::start().await;
    let lease = server.acquire("a").await.body["lease_id"].clone();
    let waits = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 50_000});
    let (granted, _) = tokio::join!(server.verb("a", "acquire", waits), async {
        server.until("a", |lock| lock["queue_length"] == 1).await;
        server.figure_becomes("lock_waiting_requests", 1.0).await;
        server.verb("a", "release", json!({"lease_id": lease})).await
    });
    assert_eq!(granted.status, 200);
    let text = server.get("/metrics").await.text;
    for line in ["lock_waiting_requests 0", "lock_wait_seconds_count 1", "lock_handover_seconds_count 1"] {
        assert!(text.contains(&format!("\n{line}\n")), "{line} is not in\n{text}");
    }
}

/// Another name has a waiter meanwhile, and the next client is ready to wait.
#[tokio::test]
async fn a_lock_that_lay_idle_is_no_hand_over() {
    let server = Server::start().await;
    server.take("other", 60_000).await;
    let waits = |owner: &str, ttl_ms: u64| json!({"owner_id": owner, "ttl_ms": ttl_ms, "wait_ms": 50_000});
    let body = waits("w", 1000).to_string();
    let json_body = [("content-type", "application/json")];
    let _waiting = server.raw(&request("POST", "/v1/locks/other/acquire", &json_body, &body)).await;
    server.figure_becomes("lock_waiting_requests", 1.0).await;
    let id = server.take("a", 60_000).await;
    assert_eq!(server.verb("a", "release", json!({"lease_id": id})).await.body["released"], true);
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(server.verb("a", "acquire", waits("next", 1000)).await.status, 200);
    assert_eq!(server.figure("lock_wait_seconds_count").await, 1.0);
    assert_eq!(server.figure("lock_handover_seconds_count").await, 0.0);
}

/// The holder's lease expires after another client has given up its place.
#[tokio::test]
async fn a_place_given_up_begins_no_hand_over() {
    let server = Server::start().await;
    server.take("a", 400).await;
    let waits = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 50_000});
    let (granted, _) = tokio::join!(server.verb("a", "acquire", waits), async {
        server.until("a", |lock| lock["queue_length"] == 1).await;
        let id = "GGGGGGGGGGGGGGGGGGGGGG";
        let place = json!({"owner_id": "p", "ttl_ms": 1000, "wait_ms": 1, "lease_id": id});
        server.verb("a", "acquire", place).await;
        let given_up = server.verb("a", "release", json!({"lease_id": id})).await;
        assert_eq!(given_up.body["released"], true, "{given_up:?}");
    });
    assert_eq!(granted.status, 200);
    assert_eq!(server.figure("lock_handover_seconds_count").await, 0.0);
}
