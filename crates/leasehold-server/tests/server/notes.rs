//! Notes over HTTP: fields of renewals and releases, what a look shows, and servers whose store keeps none.

use std::sync::Arc;

use leasehold::backend::{NewNote, Renewal};
use leasehold::backends::memory::Memory;
use leasehold::clock::SystemClock;
use leasehold::{ErrorKind, Locks};
use leasehold_server::Settings;
use serde_json::{Value, json};
use testkit::faulty::{Faulty, Verb};

use crate::support::Server;

async fn note(server: &Server, name: &str) -> Value {
    server.get(&format!("/v1/locks/{name}")).await.body["note"].clone()
}

#[tokio::test]
async fn a_note_comes_with_a_renewal_or_a_release_and_stays() {
    let server = Server::start().await;
    assert_eq!(server.get("/v1/capabilities").await.body["notes"], true);
    let lease = server.acquire("a").await.body;
    assert_eq!(note(&server, "a").await, Value::Null);
    let (id, fence) = (&lease["lease_id"], &lease["fencing_token"]);
    let renew = json!({"lease_id": id, "extend_by_ms": 1000, "note": "step 1"});
    assert_eq!(server.verb("a", "renew", renew).await.status, 200);
    let expected =
        |text: &str, revision: u64| json!({"text": text, "fencing_token": fence, "revision": revision});
    assert_eq!(note(&server, "a").await, expected("step 1", 0));
    let one = |text: &str, revision: u64| json!({"lock_name": "a", "lease_id": id, "extend_by_ms": 1000, "note": text, "note_revision": revision});
    // In a batch, in which one has no note to write.
    let batch = json!({"leases": [one("step 3", 3), one("step 2", 2), {"lock_name": "a", "lease_id": id, "extend_by_ms": 1}]});
    let answer = server.post("/v1/renew", &batch.to_string()).await;
    assert_eq!([0, 1, 2].map(|item| answer.body["results"][item]["status"].clone()), [200, 200, 200]);
    assert_eq!(note(&server, "a").await, expected("step 3", 3));
    assert_eq!(server.get("/v1/locks").await.body["locks"][0]["note"], expected("step 3", 3));
    let release = json!({"lease_id": id, "note": "over", "note_revision": 4});
    assert_eq!(server.verb("a", "release", release.clone()).await.body["released"], true);
    assert_eq!(note(&server, "a").await, expected("over", 4));
    assert_eq!(server.verb("a", "release", release).await.body["released"], false);
    assert_eq!(note(&server, "a").await, expected("over", 4));
}

#[tokio::test]
async fn a_bad_note_is_refused_and_nothing_is_done() {
    let server = Server::start().await;
    let lease = server.acquire("a").await.body;
    let id = &lease["lease_id"];
    let version = server.get("/v1/locks/a").await.body["version"].clone();
    for (bad, says) in [
        (json!({"note": "n".repeat(1025)}), "write at most 1024 bytes"),
        (json!({"note": "a\0b"}), "NUL"),
        (json!({"note": "a", "note_revision": 1u64 << 53}), "must be at most 9007199254740991"),
        (json!({"note_revision": 1}), "note_revision goes with note only"),
        (json!({"note": 7}), ""),
    ] {
        for (verb, field, value) in
            [("renew", "extend_by_ms", json!(1000)), ("release", "lease_id", id.clone())]
        {
            let mut body = bad.clone();
            (body["lease_id"], body[field]) = (id.clone(), value);
            let answer = server.verb("a", verb, body).await;
            answer.is_problem(400, "INVALID_ARGUMENT");
            assert!(answer.body["error"].as_str().unwrap().contains(says), "{answer:?}");
        }
    }
    let seen = server.get("/v1/locks/a").await.body;
    assert_eq!((&seen["version"], &seen["note"]), (&version, &Value::Null));
}

#[tokio::test]
async fn a_client_of_a_server_without_notes_refuses_them() {
    let store = Faulty::new(Memory::new(), Arc::new(SystemClock)).with_info(|info| info.notes = false);
    let server = Server::on(Locks::new(store.clone()), Settings::default()).await;
    assert_eq!(server.get("/v1/capabilities").await.body["notes"], false);
    let locks = Locks::connect(&format!("http://{}", server.address)).await.unwrap();
    assert!(!locks.info().notes);
    let guard = locks.mutex("a").lock().await.unwrap();
    for error in [guard.write_note("n").await.unwrap_err(), locks.note("a").await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("http: keeps no notes"), "{error}");
    }
    // The store of the client refuses by itself too: an older server would refuse the whole batch.
    let mut renewal = Renewal::new(guard.name().clone(), guard.lease_id(), guard.valid_for().unwrap());
    renewal.note = Some(NewNote::new("n", 1).unwrap());
    let mut plain = renewal.clone();
    plain.note = None;
    let answers = locks.backend().renew(&[renewal, plain]).await;
    assert_eq!(answers[0].as_ref().unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(answers[1].is_ok(), "{answers:?}");
    assert_eq!(store.calls(Verb::Renew).iter().map(|call| call.renewals().len()).sum::<usize>(), 1);
    guard.release().await.unwrap();
}
