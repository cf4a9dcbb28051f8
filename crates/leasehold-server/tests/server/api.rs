//! Every route, status and field.

use std::time::Duration;

use leasehold::{ErrorKind, Locks};
use leasehold_server::Settings;
use serde_json::{Value, json};
use testkit::faulty::{Act, Verb};

use crate::support::{Server, answered, faulty, faulty_with};

fn fields(body: &Value) -> Vec<&str> {
    body.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn an_acquire_says_everything_about_the_lease() {
    let server = Server::start().await;
    let answer = server.verb("deploy", "acquire", json!({"owner_id": "me", "ttl_ms": 30_000})).await;
    assert_eq!(answer.status, 200);
    let body = &answer.body;
    for (field, value) in [
        ("acquired", json!(true)),
        ("lock_name", json!("deploy")),
        ("mode", json!("exclusive")),
        ("owner_id", json!("me")),
        ("ttl_ms", json!(30_000)),
        ("expires_in_ms", json!(30_000)),
    ] {
        assert_eq!(body[field], value, "{field}");
    }
    assert_eq!(body["lease_id"].as_str().unwrap().len(), 22);
    assert!(body["waited_ms"].as_u64().unwrap() < 10_000, "{body}");
    assert!(body["fencing_token"].as_u64().unwrap() > 0 && body["lease_expiry_ms"].as_u64().unwrap() > 0);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
}

#[tokio::test]
async fn a_held_lock_is_409_with_a_retry_hint_even_for_its_owner() {
    let server = Server::start().await;
    server.verb("deploy", "acquire", json!({"owner_id": "me", "ttl_ms": 4_000})).await;
    let answer = server.acquire("deploy").await;
    answer.is_problem(409, "HELD");
    assert_eq!((&answer.body["title"], &answer.body["reason"]), (&json!("Conflict"), &json!("HELD")));
    assert_eq!((&answer.body["acquired"], &answer.body["current_owner_id"]), (&json!(false), &json!("me")));
    assert_eq!((&answer.body["queue_length"], &answer.body["retryable"]), (&json!(0), &json!(true)));
    assert!(answer.body["error"].is_string() && answer.body["current_expiry_ms"].as_u64().unwrap() > 0);
    let left = answer.body["current_expires_in_ms"].as_u64().unwrap();
    assert_eq!(answer.body["recommended_retry_ms"], (left / 4).clamp(25, 1000));
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_renewal_never_shortens_and_a_lost_one_is_410() {
    let server = Server::start().await;
    let lease = server.acquire("deploy").await.body["lease_id"].clone();
    let renew = |by: u64| server.verb("deploy", "renew", json!({"lease_id": lease, "extend_by_ms": by}));
    let answer = renew(1).await;
    assert_eq!((answer.status, &answer.body["renewed"]), (200, &json!(true)));
    assert!(answer.body["expires_in_ms"].as_u64().unwrap() > 20_000);
    assert!(renew(60_000).await.body["expires_in_ms"].as_u64().unwrap() > 30_000);
    let stale = json!({"lease_id": lease, "extend_by_ms": 1, "fencing_token": 1, "owner_id": "me"});
    assert_eq!(server.verb("deploy", "renew", stale).await.status, 410);
    server.verb("deploy", "release", json!({"lease_id": lease})).await;
    let lost = renew(1).await;
    lost.is_problem(410, "LOST");
    assert_eq!((&lost.body["title"], &lost.body["renewed"]), (&json!("Gone"), &json!(false)));
    assert_eq!(
        (&lost.body["reason"], &lost.body["gone"]),
        (&json!("NOT_OWNER_OR_EXPIRED"), &json!("not_found"))
    );
    assert_eq!(lost.body["retryable"], false);
}

#[tokio::test]
async fn a_release_acts_once_and_only_on_its_own_lease() {
    let server = Server::start().await;
    let body = server.acquire("deploy").await.body;
    let lease = &body["lease_id"];
    for wrong in [
        json!({"lease_id": "AAAAAAAAAAAAAAAAAAAAAA"}),
        json!({"lease_id": lease, "owner_id": "you"}),
        json!({"lease_id": lease, "fencing_token": 1}),
    ] {
        let answer = server.verb("deploy", "release", wrong).await;
        assert_eq!((answer.status, &answer.body["released"]), (200, &json!(false)));
        assert_eq!(answer.body["reason"], "NOT_OWNER");
    }
    let right = json!({"lease_id": lease, "owner_id": "me", "fencing_token": body["fencing_token"]});
    assert_eq!(server.verb("deploy", "release", right.clone()).await.body["released"], true);
    let again = server.verb("deploy", "release", right).await;
    assert_eq!((again.status, &again.body["released"]), (200, &json!(false)));
    assert!(server.acquire("deploy").await.body["fencing_token"].as_u64() > body["fencing_token"].as_u64());
}

#[tokio::test]
async fn an_expired_lease_is_free_for_others_and_gone_for_its_holder() {
    let server = Server::start().await;
    let lease =
        server.verb("a", "acquire", json!({"owner_id": "me", "ttl_ms": 40})).await.body["lease_id"].clone();
    let next = json!({"owner_id": "you", "ttl_ms": 30_000, "wait_ms": 50_000});
    let next = server.verb("a", "acquire", next).await;
    assert_eq!(next.status, 200);
    assert_eq!(server.verb("a", "renew", json!({"lease_id": lease, "extend_by_ms": 50})).await.status, 410);
    assert_eq!(server.verb("a", "release", json!({"lease_id": lease})).await.body["released"], false);
    assert_eq!(server.get("/v1/locks/a").await.body["owner_id"], "you");
}

#[tokio::test]
async fn a_locks_history_is_newest_first_and_without_lease_ids() {
    let server = Server::start().await;
    let granted = server.acquire("deploy").await.body;
    let lease = granted["lease_id"].as_str().unwrap();
    server.acquire("deploy").await;
    let renew = json!({"lease_id": lease, "extend_by_ms": 30_000});
    server.verb("deploy", "renew", renew.clone()).await;
    server.verb("deploy", "revoke", json!({"now": true})).await;
    server.verb("deploy", "renew", renew).await;
    server.verb("deploy", "release", json!({"lease_id": lease})).await;
    let lease = server.acquire("deploy").await.body["lease_id"].clone();
    server.verb("deploy", "release", json!({"lease_id": lease})).await;
    let answer = server.get("/v1/locks/deploy/history").await;
    assert_eq!((answer.status, &answer.body["lock_name"]), (200, &json!("deploy")));
    let events = answer.body["events"].as_array().unwrap();
    let what: Vec<_> = events.iter().map(|event| event["what"].as_str().unwrap()).collect();
    let all = ["released", "granted", "release_refused", "renewal_refused", "revoked", "granted"];
    assert_eq!(what, all, "{}", answer.text);
    let first = &events[5];
    assert_eq!((&first["owner_id"], &first["fencing_token"]), (&json!("me"), &granted["fencing_token"]));
    let lost = &events[3];
    assert_eq!((&lost["owner_id"], &lost["lease_digest"]), (&json!("me"), &first["lease_digest"]));
    assert!(lost["reason"].is_string() && lost["at_ms"].as_u64() >= first["at_ms"].as_u64());
    let revoked = &events[4];
    for field in ["owner_id", "fencing_token", "lease_digest"] {
        assert_eq!(revoked[field], first[field], "whose lease was revoked");
    }
    assert!(!answer.text.contains(granted["lease_id"].as_str().unwrap()));
    assert_eq!(server.get("/v1/locks/other/history").await.body["events"], json!([]));
}

#[tokio::test]
async fn revoking_several_holders_is_one_event_for_each() {
    let server = Server::start().await;
    let acquire = |owner: &str| json!({"owner_id": owner, "ttl_ms": 30_000, "mode": "permit", "limit": 5});
    let mut fences = Vec::new();
    for owner in ["a", "b", "c"] {
        let granted = server.verb("pool", "acquire", acquire(owner)).await.body;
        fences.push((json!(owner), granted["fencing_token"].clone()));
    }
    // One of them has gone by itself, and is not among the revoked.
    let gone = server.verb("pool", "acquire", acquire("gone")).await.body["lease_id"].clone();
    server.verb("pool", "release", json!({"lease_id": gone})).await;
    assert_eq!(server.verb("pool", "revoke", json!({"now": true})).await.body["revoked"], 3);
    assert_eq!(server.get("/v1/locks/pool").await.body["held"], false);
    let events = server.get("/v1/locks/pool/history").await.body["events"].clone();
    let revoked = events.as_array().unwrap().iter().filter(|event| event["what"] == "revoked");
    let mut named: Vec<_> =
        revoked.map(|event| (event["owner_id"].clone(), event["fencing_token"].clone())).collect();
    named.reverse();
    assert_eq!(named, fences, "{events}");
    // Nobody is left, and nothing happens.
    assert_eq!(server.verb("pool", "revoke", json!({"now": true})).await.body["revoked"], 0);
    let after = server.get("/v1/locks/pool/history").await.body["events"].clone();
    assert_eq!(after, events);
}

/// The holders of a crowded name: more than one page of an inspection shows.
const CROWD: u64 = 103;

async fn crowd(server: &Server, body: &Value) {
    for _ in 0..CROWD {
        assert_eq!(server.verb("crowd", "acquire", body.clone()).await.status, 200);
    }
}

#[tokio::test]
async fn revoking_a_crowd_counts_each_holder_once() {
    let (server, store) = faulty().await;
    crowd(&server, &json!({"owner_id": "r", "ttl_ms": 30_000, "mode": "shared"})).await;
    let before = store.count(Verb::Other);
    assert_eq!(server.verb("crowd", "revoke", json!({})).await.body["revoked"], CROWD);
    // The calls are one look and one revocation, and sweeps meanwhile.
    let calls = store.count(Verb::Other) - before;
    assert!(calls < 20, "{calls} calls");
}

#[tokio::test]
async fn revoking_a_crowd_at_once_spares_newcomers() {
    let server = Server::start().await;
    let mut body = json!({"owner_id": "p", "ttl_ms": 30_000, "mode": "permit", "limit": CROWD});
    crowd(&server, &body).await;
    body["wait_ms"] = json!(50_000);
    let (newcomer, revoked) = tokio::join!(server.verb("crowd", "acquire", body), async {
        server.until("crowd", |lock| lock["queue_length"] == 1).await;
        server.verb("crowd", "revoke", json!({"now": true})).await
    });
    assert_eq!((newcomer.status, &revoked.body["revoked"]), (200, &json!(CROWD)), "{revoked:?}");
    let renew = json!({"lease_id": newcomer.body["lease_id"], "extend_by_ms": 30_000});
    let renewed = server.verb("crowd", "renew", renew).await;
    assert_eq!(renewed.status, 200, "{renewed:?}");
}

#[tokio::test]
async fn a_revoke_that_fails_half_way_is_in_the_history() {
    let mut settings = Settings::default();
    settings.sweep_every = Duration::from_secs(3600);
    let (server, store) = faulty_with(settings).await;
    // The only sweep.
    answered(&store, Verb::Other, 1).await;
    for owner in ["a", "b"] {
        let body = json!({"owner_id": owner, "ttl_ms": 30_000, "mode": "shared"});
        assert_eq!(server.verb("pair", "acquire", body).await.status, 200);
    }
    // A look, and two revocations.
    store.plan(Verb::Other, [Act::Pass, Act::Pass, Act::Fail(ErrorKind::Unavailable)]);
    assert_eq!(server.verb("pair", "revoke", json!({"now": true})).await.status, 503);
    let events = server.get("/v1/locks/pair/history").await.body["events"].clone();
    assert_eq!((&events[0]["what"], &events[0]["owner_id"]), (&json!("revoked"), &json!("a")), "{events}");
}

#[tokio::test]
async fn a_lock_is_shown_flat_and_whole_and_without_its_lease_id() {
    let server = Server::start().await;
    let unknown = server.get("/v1/locks/nobody").await;
    assert_eq!((unknown.status, &unknown.body["held"]), (200, &json!(false)));
    assert_eq!((&unknown.body["owner_id"], &unknown.body["version"]), (&json!(null), &json!(0)));
    let lease = server.acquire("deploy").await.body;
    let waiter =
        json!({"owner_id": "w", "ttl_ms": 1000, "lease_id": "BBBBBBBBBBBBBBBBBBBBBB", "queue": 60_000});
    let place = server.verb("deploy", "acquire", waiter).await;
    assert_eq!((place.status, &place.body["queue_place"]), (409, &json!(0)));
    let seen = server.get("/v1/locks/deploy").await;
    assert_eq!((&seen.body["held"], &seen.body["owner_id"]), (&json!(true), &json!("me")));
    assert_eq!(seen.body["fencing_token"], lease["fencing_token"]);
    assert_eq!(seen.body["holders"][0]["fencing_token"], lease["fencing_token"]);
    assert_eq!((&seen.body["queue_length"], &seen.body["waiters"][0]["owner_id"]), (&json!(1), &json!("w")));
    assert!(seen.body["lease_expiry_ms"].as_u64() >= lease["lease_expiry_ms"].as_u64().map(|at| at - 50));
    for secret in [lease["lease_id"].as_str().unwrap(), "BBBBBBBBBBBBBBBBBBBBBB"] {
        assert!(!seen.text.contains(secret), "{}", seen.text);
        assert!(!server.get("/v1/locks").await.text.contains(secret));
    }
}

#[tokio::test]
async fn a_look_is_bounded_however_many_hold_it() {
    let server = Server::start().await;
    let note = "n".repeat(4096);
    let mut last = String::new();
    for number in 0..300 {
        let claim = json!({"owner_id": format!("w{number}"), "ttl_ms": 600_000, "mode": "permit", "limit": 300,
            "metadata": note});
        let lease = server.verb("pool", "acquire", claim).await;
        assert_eq!(lease.status, 200, "{}", lease.text);
        last = lease.body["lease_id"].as_str().unwrap().to_owned();
    }
    let shown = |lock: &Value| -> Vec<String> {
        let holders = lock["holders"].as_array().unwrap().iter();
        holders.map(|holder| holder["owner_id"].as_str().unwrap().to_owned()).collect()
    };
    let oldest: Vec<String> = (0..100).map(|number| format!("w{number}")).collect();
    for path in ["/v1/locks/pool", "/v1/locks?prefix=pool"] {
        let seen = server.get(path).await;
        assert!(seen.text.len() < 500_000, "{path}: {} bytes", seen.text.len());
        let lock = if path.contains('?') { &seen.body["locks"][0] } else { &seen.body };
        assert_eq!((&lock["holder_count"], shown(lock)), (&json!(300), oldest.clone()));
    }
    let found = server.post("/v1/leases/lookup", &json!({ "lease_id": last }).to_string()).await;
    assert!(found.text.len() < 500_000, "{} bytes", found.text.len());
    assert_eq!((&found.body["state"], &found.body["lock"]["holder_count"]), (&json!("held"), &json!(300)));
    assert_eq!(shown(&found.body["lock"])[99], "w299");
}

#[tokio::test]
async fn locks_are_listed_in_pages() {
    let nodes = testkit::redis::servers(3);
    let quorum = nodes.iter().map(testkit::redis::Server::url).collect::<Vec<_>>().join(",");
    // A cursor of the first store is a name, one of the second is not.
    for url in ["memory:".to_owned(), format!("quorum:{quorum}")] {
        let server = Server::on(Locks::connect(&url).await.unwrap(), Settings::default()).await;
        for name in ["a/1", "a/2", "a/3", "b"] {
            assert_eq!(server.acquire(name).await.status, 200);
        }
        let mut pages = Vec::new();
        let mut path = "/v1/locks?prefix=a%2F&limit=2".to_owned();
        loop {
            let page = server.get(&path).await.body;
            let names = page["locks"].as_array().unwrap().iter().map(|lock| lock["lock_name"].to_string());
            pages.push(names.collect::<Vec<_>>().join(" "));
            let Some(cursor) = page["next_cursor"].as_str() else { break };
            path = format!("/v1/locks?prefix=a%2F&limit=2&cursor={}", leasehold::wire::segment(cursor));
        }
        assert_eq!(pages, [r#""a/1" "a/2""#, r#""a/3""#]);
        for bad in ["limit=0", "limit=x", "limit=1001", "other=1", "prefix=%zz", "cursor=a%2F2"] {
            server.get(&format!("/v1/locks?{bad}")).await.is_problem(400, "INVALID_ARGUMENT");
        }
    }
}

#[tokio::test]
async fn readers_share_permits_are_counted_and_kinds_do_not_mix() {
    let server = Server::start().await;
    let take = |name: &'static str, more: Value| {
        let mut body = json!({"owner_id": "me", "ttl_ms": 30_000});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.verb(name, "acquire", body)
    };
    for _ in 0..2 {
        let reader = take("rw", json!({"mode": "shared"})).await;
        assert_eq!((reader.status, &reader.body["mode"]), (200, &json!("shared")));
        let permit = take("pool", json!({"mode": "permit", "limit": 2})).await;
        assert_eq!((permit.status, &permit.body["limit"]), (200, &json!(2)));
    }
    assert_eq!(take("rw", json!({})).await.status, 409);
    assert_eq!(take("pool", json!({"mode": "permit", "limit": 2})).await.status, 409);
    take("pool", json!({"mode": "permit", "limit": 3})).await.is_problem(422, "MISMATCH");
    take("rw", json!({"mode": "permit", "limit": 3})).await.is_problem(422, "MISMATCH");
}

#[tokio::test]
async fn a_revoked_lease_is_not_renewed_and_now_frees_it_at_once() {
    let server = Server::start().await;
    let lease = server.acquire("a").await.body["lease_id"].clone();
    assert_eq!(server.verb("a", "revoke", json!({})).await.body["revoked"], 1);
    let renew = server.verb("a", "renew", json!({"lease_id": lease, "extend_by_ms": 1000})).await;
    assert_eq!((renew.status, &renew.body["gone"]), (410, &json!("revoked")));
    assert_eq!(server.acquire("a").await.status, 409);
    assert_eq!(server.verb("a", "revoke", json!({"now": true})).await.status, 200);
    assert_eq!(server.acquire("a").await.status, 200);
}

#[tokio::test]
async fn a_revocation_with_a_fence_meets_that_holder_only() {
    let server = Server::start().await;
    let old = server.acquire("a").await.body;
    server.verb("a", "release", json!({"lease_id": old["lease_id"]})).await;
    let revoke = |fence: &Value| json!({"now": true, "fencing_token": fence});
    server.verb("a", "revoke", revoke(&old["fencing_token"])).await.is_problem(409, "HOLDER_CHANGED");
    let new = server.acquire("a").await.body;
    server.verb("a", "revoke", revoke(&old["fencing_token"])).await.is_problem(409, "HOLDER_CHANGED");
    let renew = json!({"lease_id": new["lease_id"], "extend_by_ms": 30_000});
    assert_eq!(server.verb("a", "renew", renew).await.status, 200);
    let revoked = server.verb("a", "revoke", revoke(&new["fencing_token"])).await;
    assert_eq!((revoked.status, &revoked.body["revoked"]), (200, &json!(1)));
    assert_eq!(server.get("/v1/locks/a").await.body["held"], false);
    // Its history names the owner, and shows nothing of the refused attempts.
    let events = server.get("/v1/locks/a/history").await.body["events"].clone();
    let what: Vec<_> = events.as_array().unwrap().iter().map(|event| &event["what"]).collect();
    assert_eq!(what, ["revoked", "granted", "released", "granted"]);
    for field in ["owner_id", "fencing_token", "lease_digest"] {
        assert!(!events[0][field].is_null() && events[0][field] == events[1][field], "{field}: {events}");
    }
}

#[tokio::test]
async fn a_lease_is_found_by_its_id() {
    let server = Server::start().await;
    let lease = server.acquire("a/b").await.body["lease_id"].clone();
    let found = server.post("/v1/leases/lookup", &json!({"lease_id": lease}).to_string()).await.body;
    assert_eq!((&found["found"], &found["state"]), (&json!(true), &json!("held")));
    assert_eq!(found["lock"]["lock_name"], "a/b");
    let none = json!({"lease_id": "AAAAAAAAAAAAAAAAAAAAAA"}).to_string();
    assert_eq!(server.post("/v1/leases/lookup", &none).await.body["found"], false);
}

#[tokio::test]
async fn a_repeat_with_the_same_lease_id_is_the_same_grant() {
    let server = Server::start().await;
    let body = json!({"owner_id": "me", "ttl_ms": 30_000, "lease_id": "CCCCCCCCCCCCCCCCCCCCCC"});
    let (one, other) =
        (server.verb("a", "acquire", body.clone()).await, server.verb("a", "acquire", body).await);
    assert_eq!((one.status, other.status), (200, 200));
    assert_eq!(one.body["fencing_token"], other.body["fencing_token"]);
    assert!(other.body["expires_in_ms"].as_u64() <= one.body["expires_in_ms"].as_u64());
    let release = json!({"lease_id": "CCCCCCCCCCCCCCCCCCCCCC", "unanswered": 1000});
    assert_eq!(server.verb("a", "release", release).await.body["released"], true);
    let spent = server.verb(
        "a",
        "acquire",
        json!({"owner_id": "me", "ttl_ms": 1, "lease_id": "CCCCCCCCCCCCCCCCCCCCCC"}),
    );
    let spent = spent.await;
    spent.is_problem(410, "SUPERSEDED");
    assert_eq!((&spent.body["acquired"], &spent.body["gone"]), (&json!(false), &json!("superseded")));
}

#[tokio::test]
async fn waiters_are_served_in_order_and_learn_how_long_they_waited() {
    let server = Server::start().await;
    let lease = server.acquire("a").await.body["lease_id"].clone();
    let wait = |owner: &'static str| {
        server.verb("a", "acquire", json!({"owner_id": owner, "ttl_ms": 30_000, "wait_ms": 50_000}))
    };
    let release = |lease: Value| server.verb("a", "release", json!({"lease_id": lease}));
    let turns = async {
        server.until("a", |lock| lock["queue_length"] == 1).await;
        let second = wait("second");
        let then = async {
            server.until("a", |lock| lock["queue_length"] == 2).await;
            // Makes the first request wait for some milliseconds.
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            release(lease.clone()).await;
        };
        tokio::join!(second, then).0
    };
    let first = async {
        let first = wait("first").await;
        assert_eq!((first.status, &first.body["owner_id"]), (200, &json!("first")));
        assert!(first.body["waited_ms"].as_u64().unwrap() > 0);
        assert_eq!(server.get("/v1/locks/a").await.body["queue_length"], 1);
        release(first.body["lease_id"].clone()).await;
        first
    };
    let (first, second) = tokio::join!(first, turns);
    assert_eq!(second.status, 200);
    assert!(second.body["fencing_token"].as_u64() > first.body["fencing_token"].as_u64());
}

#[tokio::test]
async fn a_wait_that_times_out_keeps_its_place_for_a_repeat() {
    let server = Server::start().await;
    let lease = server.acquire("a").await.body["lease_id"].clone();
    let mine = |wait: u64| json!({"owner_id": "w", "ttl_ms": 30_000, "wait_ms": wait, "lease_id": "DDDDDDDDDDDDDDDDDDDDDD"});
    let answer = server.verb("a", "acquire", mine(50)).await;
    answer.is_problem(409, "WAIT_TIMEOUT");
    assert_eq!(answer.body["reason"], "WAIT_TIMEOUT");
    assert_eq!(answer.body["queue_place"], 0);
    // A later waiter stays behind it.
    let late =
        json!({"owner_id": "late", "ttl_ms": 30_000, "lease_id": "EEEEEEEEEEEEEEEEEEEEEE", "queue": 30_000});
    assert_eq!(server.verb("a", "acquire", late).await.body["queue_place"], 1);
    let (again, _) = tokio::join!(server.verb("a", "acquire", mine(50_000)), async {
        server.figure_becomes("lock_waiting_requests", 1.0).await;
        server.verb("a", "release", json!({"lease_id": lease})).await
    });
    assert_eq!((again.status, &again.body["owner_id"]), (200, &json!("w")));
    // Without its own id a client cannot come back, so no place is kept.
    let answer = server.verb("b", "acquire", json!({"owner_id": "x", "ttl_ms": 30_000})).await;
    assert_eq!(answer.status, 200);
    let answer = server.verb("b", "acquire", json!({"owner_id": "y", "ttl_ms": 30_000, "wait_ms": 30})).await;
    assert_eq!((answer.status, &answer.body["reason"]), (409, &json!("WAIT_TIMEOUT")));
    assert_eq!(server.get("/v1/locks/b").await.body["queue_length"], 0);
}

#[tokio::test]
async fn the_small_routes_answer() {
    let server = Server::start().await;
    assert_eq!(server.get("/healthz").await.text, r#"{"status":"ok"}"#);
    assert_eq!(server.get("/readyz").await.status, 200);
    let able = server.get("/v1/capabilities").await.body;
    assert_eq!((&able["store"], &able["max_ttl_ms"]), (&json!("memory"), &json!(600_000)));
    assert!(fields(&able).len() > 10);
    let page = server.get("/").await;
    assert!(page.status == 200 && page.text.contains("<!doctype html>"));
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
    assert_eq!(server.post("/v1/sweep", "{}").await.body["held"], 0);
}

#[tokio::test]
async fn a_request_id_is_echoed_or_made() {
    let server = Server::start().await;
    let answer = server.send("GET", "/healthz", &[("x-request-id", "abc-1")], "").await;
    assert_eq!(answer.header("x-request-id"), Some("abc-1"));
    let made = server.send("GET", "/healthz", &[("x-request-id", "has space")], "").await;
    let (one, other) = (made.header("x-request-id").unwrap(), server.get("/healthz").await);
    assert!(one.len() > 11 && !one.contains(' '), "{one}");
    assert_ne!(Some(one), other.header("x-request-id"), "each has its own");
}
