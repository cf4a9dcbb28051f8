//! The log: one line for each operation, with everything known about it except secrets.

use std::time::Duration;

use leasehold::{ErrorKind, Locks, digest_name};
use leasehold_server::{LogForm, Settings};
use serde_json::{Value, json};
use testkit::faulty::{Act, Verb};
use testkit::until::until_async;

use crate::support::{Lines, Server, faulty_with};

async fn logged(form: LogForm, names: bool) -> (Server, Lines) {
    let mut settings = Settings::default();
    let lines = Lines::of(&mut settings, form);
    settings.log_names = names;
    (Server::on(Locks::connect("memory:").await.unwrap(), settings).await, lines)
}

#[tokio::test]
async fn every_operation_is_one_line_without_secrets_or_names() {
    let (server, lines) = logged(LogForm::Json, false).await;
    let body = json!({"owner_id": "hush", "ttl_ms": 1000}).to_string();
    let headers = [("content-type", "application/json"), ("x-request-id", "r-1")];
    let lease = server.send("POST", "/v1/locks/private/acquire", &headers, &body).await.body;
    server.verb("private", "release", json!({"lease_id": lease["lease_id"]})).await;
    // Looking at a lock is not an operation.
    let lookup = json!({"lease_id": lease["lease_id"]}).to_string();
    assert_eq!(server.post("/v1/leases/lookup", &lookup).await.status, 200);
    assert_eq!(server.get("/v1/locks/private").await.status, 200);
    assert_eq!(server.send("HEAD", "/v1/locks/private", &[], "").await.status, 200);
    let (text, told) = (lines.text(), lines.json());
    assert_eq!(told.len(), 2, "{text}");
    let line = &told[0];
    assert_eq!(
        (&line["op"], &line["result"], &line["request_id"]),
        (&json!("acquire"), &json!("success"), &json!("r-1"))
    );
    assert_eq!((&line["fence"], &line["status"]), (&lease["fencing_token"], &json!(200)));
    assert_eq!(
        (&line["lock_hash"], &line["owner_hash"]),
        (&json!(digest_name("private")), &json!(digest_name("hush")))
    );
    assert!(line["ts"].is_u64() && line["latency_ms"].is_number() && line["level"] == "info");
    assert_eq!(line["lease_hash"], told[1]["lease_hash"]);
    assert_eq!(line["error"], Value::Null);
    for secret in ["private", "hush", lease["lease_id"].as_str().unwrap()] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
}

#[tokio::test]
async fn every_verb_logs_owner_and_fence_sent_or_from_the_grant() {
    let (server, lines) = logged(LogForm::Json, false).await;
    let lease = server.acquire("a").await.body;
    let (id, fence) = (&lease["lease_id"], &lease["fencing_token"]);
    server.verb("a", "renew", json!({"lease_id": id, "extend_by_ms": 1})).await;
    server.verb("a", "renew", json!({"lease_id": id, "extend_by_ms": 0})).await;
    server.verb("a", "release", json!({"lease_id": id})).await;
    for line in lines.json() {
        assert_eq!((&line["owner_hash"], &line["fence"]), (&json!(digest_name("me")), fence), "{line}");
    }
    // A lease that another server granted, or none did: the log shows what the client says about it.
    let other = json!({"lease_id": "AAAAAAAAAAAAAAAAAAAAAA", "owner_id": "you", "fencing_token": 7});
    let mut renew = other.clone();
    renew["extend_by_ms"] = json!(1);
    let before = lines.json().len();
    assert_eq!(before, 4);
    server.verb("a", "renew", renew.clone()).await;
    server.verb("a", "release", other).await;
    renew["lock_name"] = json!("a");
    server.post("/v1/renew", &json!({"leases": [renew]}).to_string()).await;
    let told = lines.json().split_off(before);
    assert_eq!(told.len(), 3);
    for line in told {
        assert_eq!((&line["owner_hash"], &line["fence"]), (&json!(digest_name("you")), &json!(7)), "{line}");
        assert_eq!((&line["result"], &line["error"]), (&json!("fail"), &json!("not_found")), "{line}");
    }
    // The history shows only what is known, not what the client said.
    let events = server.get("/v1/locks/a/history").await.body["events"].clone();
    assert_eq!((&events[0]["what"], &events[0]["owner_id"]), (&json!("renewal_refused"), &Value::Null));
}

#[tokio::test]
async fn names_and_owners_are_logged_raw_on_request_lease_ids_never() {
    let (server, lines) = logged(LogForm::Json, true).await;
    let body = json!({"owner_id": "me \"too\"", "ttl_ms": 60_000});
    let lease = server.verb("jobs/nightly", "acquire", body).await.body["lease_id"].clone();
    server.verb("jobs/nightly", "renew", json!({"lease_id": lease, "extend_by_ms": 1})).await;
    server.verb("jobs/nightly", "release", json!({"lease_id": lease})).await;
    let told = lines.json();
    assert_eq!(told.len(), 3);
    for line in told {
        assert_eq!((&line["lock"], &line["owner"]), (&json!("jobs/nightly"), &json!("me \"too\"")), "{line}");
        assert_eq!(line["lock_hash"], digest_name("jobs/nightly"));
    }
    assert!(!lines.text().contains(lease.as_str().unwrap()));
}

#[tokio::test]
async fn lines_for_people_are_one_line_each_whatever_is_in_them() {
    let (server, lines) = logged(LogForm::Text, true).await;
    let body = json!({"owner_id": "two\nlines level=error", "ttl_ms": 60_000});
    let lease = server.verb("plain", "acquire", body).await.body;
    server.verb("plain", "acquire", json!({"owner_id": "me", "ttl_ms": 0})).await;
    let text = lines.text();
    let told: Vec<&str> = text.lines().filter(|line| !line.contains("op=sweep")).collect();
    assert_eq!(told.len(), 2, "{text}");
    for part in [
        " level=info ",
        " op=acquire ",
        " lock=plain ",
        " owner=\"two\\nlines level=error\" ",
        " result=success ",
        " status=200 ",
        &format!(" fence={} ", lease["fencing_token"]),
        &format!(" lock_hash={} ", digest_name("plain")),
        " latency_ms=",
        " lease_hash=",
    ] {
        assert!(told[0].contains(part), "{part:?} is not in {:?}", told[0]);
    }
    assert!(told[0].starts_with("ts=") && !told[0].contains(" error="), "{:?}", told[0]);
    let why = " error=\"ttl_ms must be in (0, 600000], in milliseconds; it is 0 or missing\" ";
    assert!(told[1].contains(" result=fail ") && told[1].contains(why), "{:?}", told[1]);
}

#[tokio::test]
async fn failures_are_logged_and_store_faults_are_warnings() {
    let mut settings = Settings::default();
    let lines = Lines::of(&mut settings, LogForm::Json);
    let (server, store) = faulty_with(settings).await;
    server.acquire("a").await;
    server.acquire("a").await;
    store.plan(Verb::Renew, [Act::Fail(ErrorKind::Unavailable)]);
    let renew = json!({"lease_id": "AAAAAAAAAAAAAAAAAAAAAA", "extend_by_ms": 1});
    let failed = server.verb("a", "renew", renew).await;
    failed.is_problem(503, "UNAVAILABLE");
    let told = lines.json();
    let seen = |line: &Value| (line["level"].clone(), line["result"].clone(), line["error"].clone());
    assert_eq!(seen(&told[1]), (json!("info"), json!("fail"), json!("held")));
    assert_eq!(seen(&told[2]), (json!("warn"), json!("fail"), failed.body["error"].clone()));
}

/// Wherever the secret stands in the body, and whatever surrounds it.
#[tokio::test]
async fn request_bodies_never_reach_the_log_or_an_answer() {
    let (server, lines) = logged(LogForm::Json, false).await;
    let secret = "yh0Cm8bDT0GgEJQmEQbM2A";
    let tricky = format!("x, expected {secret}");
    let mut bodies = Vec::new();
    for text in [secret, &tricky, &format!("{tricky}`, there are no fields")] {
        let all = [
            "owner_id",
            "ttl_ms",
            "mode",
            "limit",
            "wait_ms",
            "queue",
            "metadata",
            "repeat",
            "attempt",
            "first",
            "lease_id",
            "extend_by_ms",
            "fencing_token",
            "shorten",
            "raise_fencing_token",
            "unanswered",
            "note",
            "note_revision",
            "now",
            "leases",
            "lock_name",
        ];
        // As text where a number or flag belongs, inside a list, and as a field name.
        for field in all {
            bodies.extend([json!({ field: text }), json!({ field: [text] }), json!({ field: { text: 1 } })]);
        }
        bodies.extend([json!({ text: 1 }), json!(text), json!([text]), json!({"leases": [{ text: 1 }]})]);
        bodies.push(json!({"leases": [{"lock_name": "a", "lease_id": secret, "fencing_token": text}]}));
        bodies.push(json!({"lease_id": secret, "extend_by_ms": 1, "fencing_token": text}));
    }
    let mut refused = 0;
    for path in [
        "/v1/locks/a/acquire",
        "/v1/locks/a/renew",
        "/v1/locks/a/release",
        "/v1/locks/a/revoke",
        "/v1/renew",
        "/v1/leases/lookup",
        "/v1/sweep",
    ] {
        for body in &bodies {
            for text in [body.to_string(), format!("{body}{secret}")] {
                let answer = server.post(path, &text).await;
                refused += usize::from(answer.status == 400);
                assert!(!answer.text.contains(secret), "{path} {text}: {answer:?}");
            }
        }
    }
    assert!(refused > 1000, "{refused}");
    let text = lines.text();
    assert!(!text.contains(secret), "{}", text.lines().find(|line| line.contains(secret)).unwrap());
    assert!(text.lines().all(|line| line.len() < 1000));
}

#[tokio::test]
async fn an_answer_says_which_field_is_wrong_and_what_belongs_there() {
    let server = Server::start().await;
    for (body, says) in [
        (json!({"owner_id": "me", "ttl_ms": "30s"}), "ttl_ms: expected a whole number at line 1 column "),
        (
            json!({"owner_id": 7, "ttl_ms": 1, "colour": 1}),
            "a field that is not known, expected one of `owner_id`",
        ),
        (json!({"owner_id": 7, "ttl_ms": 1}), "owner_id: expected a string"),
        (json!({"owner_id": "me", "ttl_ms": -1}), "ttl_ms: expected a whole number"),
        (json!({"mode": "odd"}), "mode: expected one of `exclusive`, `shared`, `permit`"),
        (json!(["me"]), "expected an object"),
    ] {
        let answer = server.verb("a", "acquire", body).await;
        assert!(answer.body["error"].as_str().unwrap().contains(says), "{answer:?}");
    }
    let twice = server.post("/v1/locks/a/acquire", r#"{"ttl_ms":1,"ttl_ms":2}"#).await;
    assert!(twice.body["error"].as_str().unwrap().contains("duplicate field `ttl_ms`"), "{twice:?}");
    let missing = server.post("/v1/renew", "{}").await;
    assert!(missing.body["error"].as_str().unwrap().contains("missing field `leases`"), "{missing:?}");
    let more = server.post("/v1/sweep", r#"{"a":1}"#).await;
    assert!(more.body["error"].as_str().unwrap().contains("a field that is not known"), "{more:?}");
    let broken = server.post("/v1/sweep", "{").await;
    assert!(broken.body["error"].as_str().unwrap().contains("it is not JSON from line 1"), "{broken:?}");
}

#[tokio::test]
async fn a_sweep_with_results_or_a_failure_is_logged_with_its_time() {
    let mut settings = Settings::default();
    let lines = Lines::of(&mut settings, LogForm::Json);
    settings.sweep_every = Duration::from_millis(10);
    let (server, store) = faulty_with(settings).await;
    let sweep = async |is_it: &dyn Fn(&Value) -> bool| {
        let mut found = None;
        until_async("there is such a line", async || {
            let text = lines.text();
            let mut told = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            found = told.find(|line| is_it(line));
            found.is_some()
        })
        .await;
        found.unwrap()
    };
    server.acquire("b").await;
    server.verb("a", "acquire", json!({"owner_id": "me", "ttl_ms": 1})).await;
    let line = sweep(&|line| line["op"] == "sweep" && line["result"] == "success").await;
    assert_eq!(
        (&line["expired"], &line["held"], &line["level"]),
        (&json!(1), &json!(1), &json!("info")),
        "{line}"
    );
    assert!(line["latency_ms"].is_number() && line["ts"].is_u64() && line["tickets"] == 0, "{line}");
    store.always(Verb::Other, Act::Fail(ErrorKind::Unavailable));
    let line = sweep(&|line| line["op"] == "sweep" && line["result"] == "fail").await;
    assert_eq!(line["level"], "warn");
    assert!(line["error"].is_string() && line["latency_ms"].is_number(), "{line}");
}
