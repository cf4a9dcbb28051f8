//! The bodies of errors, compared with `snapshots/errors.txt`.

use std::path::PathBuf;

use leasehold::ErrorKind;
use leasehold_server::{Limits, Settings};
use serde_json::json;
use testkit::faulty::{Act, Verb};

use crate::gates::Tenants;
use crate::support::{Answer, Server, faulty, faulty_with};

/// The parts of an error that a client reads.
fn line(what: &str, answer: &Answer) -> String {
    let body = &answer.body;
    format!(
        "{what}\n  {} {} retryable {}: {}\n",
        answer.status, body["code"], body["retryable"], body["error"]
    )
}

#[tokio::test]
async fn error_bodies_are_as_kept() {
    let mut seen = String::new();
    let server = Server::start().await;
    let id = "AAAAAAAAAAAAAAAAAAAAAA";
    for (verb, body) in [
        ("acquire", json!({"ttl_ms": 1000})),
        ("acquire", json!({"owner_id": "me"})),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 600_001})),
        ("acquire", json!({"owner_id": "me", "ttl_ms": -1})),
        ("acquire", json!({"owner_id": 7, "ttl_ms": 1000})),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "color": "red"})),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "mode": "odd"})),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "mode": "permit"})),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "mode": "permit", "limit": 0})),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "limit": 2})),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "lease_id": "short"})),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "repeat": true})),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "wait_ms": 50_001})),
        ("acquire", json!([])),
        ("renew", json!({"extend_by_ms": 1000})),
        ("renew", json!({"lease_id": id})),
        ("renew", json!({"lock_name": "a", "lease_id": id, "extend_by_ms": 1})),
        ("renew", json!({"lease_id": id, "extend_by_ms": 1000})),
        ("release", json!({})),
        ("release", json!({"lease_id": id})),
        ("revoke", json!({"now": 1})),
        ("steal", json!({})),
    ] {
        seen += &line(&format!("{verb} {body}"), &server.verb("a", verb, body.clone()).await);
    }
    for (path, body) in [
        ("/v1/locks/a/acquire", "{"),
        ("/v1/locks//acquire", "{}"),
        ("/v1/locks/a%/acquire", "{}"),
        ("/v1/locks/a/b/acquire", "{}"),
        ("/v1/renew", "{}"),
        ("/v1/renew", r#"{"leases":[]}"#),
        ("/v2", "{}"),
    ] {
        seen += &line(&format!("POST {path} {body}"), &server.post(path, body).await);
    }
    let huge = format!("{{\"owner_id\":\"{}\"}}", "x".repeat(70_000));
    seen += &line("a huge body", &server.post("/v1/locks/a/acquire", &huge).await);
    for path in ["/v1/locks/a/acquire", "/v1/locks?limit=0", "/v1/locks?cursor=x", "/v1/locks?color=red"] {
        seen += &line(&format!("GET {path}"), &server.get(path).await);
    }
    let plain = [("content-type", "text/plain")];
    seen += &line("text/plain", &server.send("POST", "/v1/locks/a/acquire", &plain, "{}").await);
    for header in [("host", "evil.example"), ("origin", "http://evil.example")] {
        let answer = server.send("GET", "/v1/locks/a", &[header], "").await;
        seen += &line(&format!("{}: {}", header.0, header.1), &answer);
    }
    assert_eq!(server.acquire("a").await.status, 200);
    seen += &line("held", &server.acquire("a").await);
    let wait = json!({"owner_id": "you", "ttl_ms": 1000, "wait_ms": 1});
    seen += &line("held, with wait_ms", &server.verb("a", "acquire", wait).await);
    let other = json!({"now": true, "fencing_token": 1});
    seen += &line("revoke of another's fence", &server.verb("a", "revoke", other).await);
    let permit = |limit| json!({"owner_id": "me", "ttl_ms": 60_000, "mode": "permit", "limit": limit});
    assert_eq!(server.verb("p", "acquire", permit(2)).await.status, 200);
    seen += &line("another limit", &server.verb("p", "acquire", permit(3)).await);

    let tenants = Tenants::on(leasehold::Locks::connect("memory:").await.unwrap(), Limits::default()).await;
    seen += &line("no token", &tenants.server.acquire("blue/a").await);
    seen += &line("a token of others", &tenants.acquire(0, "red/a").await);

    use ErrorKind::*;
    for kind in [InvalidArgument, Mismatch, Lost, Deadlock, RateLimited, Unsupported, AuthFailed, Internal] {
        let (server, store) = faulty().await;
        store.always(Verb::TryAcquire, Act::Fail(kind));
        seen += &line(&format!("the store fails with {kind:?}"), &server.acquire("a").await);
    }
    let (server, _store) = faulty_with(Settings::default()).await;
    seen += &line("findings", &server.get("/v1/findings").await);
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    testkit::snapshot::check(folder.join("errors.txt"), &seen);
}

#[test]
fn texts_in_the_sources() {
    testkit::messages::check(env!("CARGO_MANIFEST_DIR"), &[]);
}
