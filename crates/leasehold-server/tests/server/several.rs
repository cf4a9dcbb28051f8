//! Several servers in front of one store behave as one.

use std::time::{Duration, Instant};

use leasehold::Locks;
use leasehold_server::Settings;
use serde_json::{Value, json};

use crate::support::Server;

/// A wake-up through another server takes less than a second; the rest is for a busy machine. Without a wake-up, a
/// server looks again after a third of the ten seconds for which it keeps a place.
const SOON: Duration = Duration::from_millis(2500);

fn waits(owner: &str) -> Value {
    json!({"owner_id": owner, "ttl_ms": 60_000, "wait_ms": 50_000})
}

async fn behave_as_one(store: &str) {
    let start = || async { Server::on(Locks::connect(store).await.unwrap(), Settings::default()).await };
    let (one, other, third) = (start().await, start().await, start().await);

    // One mutex across all servers, with rising fences.
    let held = one.acquire("a").await;
    assert_eq!(held.status, 200, "{held:?}");
    for server in [&one, &other, &third] {
        let busy = server.acquire("a").await;
        assert_eq!((busy.status, &busy.body["current_owner_id"]), (409, &json!("me")));
    }
    let fence = |body: &Value| body["fencing_token"].as_u64().unwrap();

    // First come, first served, at whichever server; released through another server than the one it was taken
    // through; and the wake-up soon arrives through a third.
    let order = std::sync::Mutex::new(Vec::new());
    let wait = async |server: &Server, owner: &'static str| {
        let granted = server.verb("a", "acquire", waits(owner)).await;
        assert_eq!(granted.status, 200, "{granted:?}");
        order.lock().unwrap().push((owner, fence(&granted.body), Instant::now()));
        granted.body["lease_id"].clone()
    };
    let queued = async |length: u64| {
        for server in [&one, &other, &third] {
            server.until("a", |lock| lock["queue_length"] == length).await;
        }
    };
    let second = async {
        let id = wait(&other, "second").await;
        let began = Instant::now();
        assert_eq!(third.verb("a", "release", json!({"lease_id": id})).await.body["released"], true);
        began
    };
    let next = async {
        queued(1).await;
        wait(&third, "third").await
    };
    let release = async {
        queued(2).await;
        let began = Instant::now();
        let id = &held.body["lease_id"];
        assert_eq!(other.verb("a", "release", json!({"lease_id": id})).await.body["released"], true);
        began
    };
    let (second_released, id, first_released) = tokio::join!(second, next, release);
    let order = order.into_inner().unwrap();
    assert_eq!(order.iter().map(|(owner, ..)| *owner).collect::<Vec<_>>(), ["second", "third"]);
    assert!(fence(&held.body) < order[0].1 && order[0].1 < order[1].1, "fences rise: {order:?}");
    for ((_, _, granted), released) in order.iter().zip([first_released, second_released]) {
        let took = granted.saturating_duration_since(released);
        assert!(took < SOON, "a wake-up through another server took {took:?}");
    }

    // Renewed through any server; listed by all; revoked through any.
    let renew = json!({"lease_id": id, "extend_by_ms": 60_000});
    assert_eq!(one.verb("a", "renew", renew.clone()).await.status, 200);
    for server in [&one, &other, &third] {
        let listed = server.get("/v1/locks").await.body;
        assert_eq!(listed["locks"][0]["owner_id"], "third");
    }
    assert_eq!(other.verb("a", "revoke", json!({"now": true})).await.body["revoked"], 1);
    assert_eq!(one.verb("a", "renew", renew).await.status, 410);
}

#[tokio::test]
async fn several_servers_before_one_redis_behave_as_one() {
    let redis = testkit::redis::Server::start();
    behave_as_one(&redis.url()).await;
}

#[tokio::test]
async fn several_servers_before_one_postgres_behave_as_one() {
    let postgres = testkit::postgres::Postgres::start();
    behave_as_one(&postgres.url()).await;
}
