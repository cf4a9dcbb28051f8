//! `POST /v1/renew`: each renewal of a batch is checked, answered, counted and logged as if it had come alone.

use std::time::Duration;

use leasehold::backend::{Attempt, Backend as _, Claim, Gone, Mode, Renewal, Renewed};
use leasehold::backends::http::Http;
use leasehold::{ErrorKind, LeaseId, Locks, Name};
use leasehold_server::{Limits, LogForm, NewToken, Scope, Settings, Tokens, Verb};
use serde_json::{Value, json};
use testkit::faulty;

use crate::support::{Answer, Lines, Server};

/// A server with one token, whose prefixes can be changed.
struct Tenant {
    server: Server,
    token: NewToken,
    file: tempfile::NamedTempFile,
}

fn token(prefixes: &[&str]) -> NewToken {
    let allow = || [Verb::Read, Verb::Acquire].into();
    let scopes = prefixes.iter().map(|prefix| Scope { prefix: (*prefix).into(), allow: allow() });
    NewToken::create("t", scopes.collect(), Limits::default()).unwrap()
}

impl Tenant {
    async fn new(prefixes: &[&str]) -> Self {
        let (token, file) = (token(prefixes), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(file.path(), format!("{}\n", token.line)).unwrap();
        let mut settings = Settings::default();
        settings.tokens = Some(Tokens::read(file.path()).unwrap());
        let server = Server::on(Locks::connect("memory:").await.unwrap(), settings).await;
        Tenant { server, token, file }
    }

    /// Limits the token to these prefixes from now on.
    fn narrow(&self, prefixes: &[&str]) {
        let (mut line, other): (Value, Value) = (
            serde_json::from_str(&self.token.line).unwrap(),
            serde_json::from_str(&token(prefixes).line).unwrap(),
        );
        line["scopes"] = other["scopes"].clone();
        std::fs::write(self.file.path(), format!("{line}\n")).unwrap();
        self.server.app.reload_tokens().unwrap();
    }

    async fn post(&self, path: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {}", self.token.secret);
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        self.server.send("POST", path, &headers, body).await
    }
}

/// An error without its position in the text, which differs in a batch.
fn said(answer: &Value) -> Value {
    let mut said = answer.clone();
    for field in ["error", "detail"] {
        let text = said[field].as_str().unwrap_or_default();
        said[field] = text.split(" at line").next().unwrap().into();
    }
    said
}

#[tokio::test]
async fn a_bad_batch_item_gets_the_answer_it_would_get_alone() {
    let t = Tenant::new(&["mine/"]).await;
    let take = json!({"owner_id": "me", "ttl_ms": 60_000}).to_string();
    let id = t.post("/v1/locks/mine%2Fa/acquire", &take).await.body["lease_id"].clone();
    let id = id.as_str().unwrap();
    let good = format!(r#""lease_id":"{id}","extend_by_ms":60000"#);
    let cases = [
        ("mine/a", good.clone(), 200),
        ("yours/a", good.clone(), 403),
        ("mine/a", format!(r#""lease_id":"{id}","extend_by_ms":600001"#), 400),
        ("mine/a", format!(r#""lease_id":"{id}""#), 400),
        ("mine/a", r#""lease_id":"short","extend_by_ms":1"#.into(), 400),
        ("mine/a", format!(r#"{good},"mode":"permit""#), 400),
        ("mine/a", format!(r#"{good},"mode":"odd""#), 400),
        ("mine/a", format!(r#"{good},"limit":2"#), 400),
        ("mine/a", format!(r#"{good},"colour":"red""#), 400),
        ("mine/a", format!(r#"{good},"extend_by_ms":60000"#), 400),
        ("mine/a", format!(r#"{good},"fencing_token":"7""#), 400),
        ("mine/b", good.clone(), 410),
        ("mine/a", format!(r#"{good},"owner_id":"you""#), 410),
        ("mine/a", good.clone(), 200),
    ];
    let items: Vec<String> =
        cases.iter().map(|(name, body, _)| format!(r#"{{{body},"lock_name":"{name}"}}"#)).collect();
    let answer = t.post("/v1/renew", &format!(r#"{{"leases":[{}]}}"#, items.join(","))).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{answer:?}");
    let results = answer.body["results"].as_array().unwrap();
    assert_eq!(results.len(), cases.len());
    for ((name, body, status), result) in cases.iter().zip(results) {
        assert_eq!(result["status"], *status, "{name} {body}: {result}");
        let path = format!("/v1/locks/{}/renew", leasehold::wire::segment(name));
        let alone = t.post(&path, &format!("{{{body}}}")).await;
        assert_eq!(alone.status, *status, "{name} {body}: {alone:?}");
        if *status == 200 {
            assert_eq!((&result["renewed"], &result["lock_name"]), (&json!(true), &json!(name)));
        } else {
            assert_eq!(said(result), said(&alone.body));
        }
    }
    // Elements that could not even be a request on their own.
    let odd = r#"{"leases":[["mine/a"],{"lock_name":""},{"lease_id":"x"},7]}"#;
    let answer = t.post("/v1/renew", odd).await;
    let results = answer.body["results"].as_array().unwrap();
    assert!(results.len() == 4 && results.iter().all(|result| result["status"] == 400), "{answer:?}");
    assert_eq!(results[2]["error"], "lock_name required");
}

#[tokio::test]
async fn bad_sized_batches_are_refused_and_bad_items_reach_no_store() {
    let (server, store) = crate::support::faulty().await;
    let item = json!({"lock_name": "a", "lease_id": "AAAAAAAAAAAAAAAAAAAAAA", "extend_by_ms": 1});
    let many: Vec<_> = (0..513).map(|_| &item).collect();
    for bad in [json!({"leases": []}), json!({}), json!({"leases": many})] {
        server.post("/v1/renew", &bad.to_string()).await.is_problem(400, "INVALID_ARGUMENT");
    }
    let answer = server.post("/v1/renew", r#"{"leases":[{"lock_name":"a"}]}"#).await;
    assert_eq!((answer.status, &answer.body["results"][0]["status"]), (200, &json!(400)));
    assert_eq!(store.count(faulty::Verb::Renew), 0);
    assert_eq!(server.post("/v1/renew", &json!({"leases": many[1..]}).to_string()).await.status, 200);
}

/// The server's token has lost one of its two prefixes, or the server now allows only shorter leases.
#[tokio::test]
async fn a_rust_client_keeps_the_leases_its_token_may_renew() {
    let t = Tenant::new(&["red/", "blue/"]).await;
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), &t.token.secret).unwrap();
    let url = format!("http://{}?token_file={}", t.server.address, secret.path().display());
    let client = Http::connect(&url).await.unwrap();
    let minute = Duration::from_secs(60);
    let mut leases = Vec::new();
    for name in ["red/a", "blue/a", "red/b", "red/never"] {
        let name = Name::new(name).unwrap();
        let claim = Claim::new(name.clone(), Mode::Exclusive, minute, "me");
        if !name.as_str().ends_with("never") {
            assert!(matches!(client.try_acquire(&claim).await, Ok(Attempt::Granted(_))));
        }
        leases.push(Renewal::new(name, claim.id, minute));
    }
    leases[2].ttl = Duration::from_secs(601);
    leases.push(leases[0].clone());
    t.narrow(&["red/"]);
    let answers = client.renew(&leases).await;
    let kinds: Vec<_> =
        answers.iter().map(|answer| answer.as_ref().map_err(leasehold::Error::kind)).collect();
    assert!(
        matches!(
            kinds[..],
            [
                Ok(Renewed::Held(_)),
                Err(ErrorKind::AuthFailed),
                Err(ErrorKind::InvalidArgument),
                Ok(Renewed::Gone(Gone::NotFound)),
                Ok(Renewed::Held(_))
            ]
        ),
        "{answers:?}"
    );
}

#[tokio::test]
async fn each_batch_item_has_its_log_line_timing_and_history() {
    let mut settings = Settings::default();
    let lines = Lines::of(&mut settings, LogForm::Json);
    let server = Server::on(Locks::connect("memory:").await.unwrap(), settings).await;
    let held = server.acquire("held").await.body;
    let lost = server.acquire("lost").await.body;
    server.verb("lost", "revoke", json!({"now": true})).await;
    let before = lines.json().len();
    let one = |name: &str, id: &Value, by| json!({"lock_name": name, "lease_id": id, "extend_by_ms": by});
    let (held_id, lost_id) = (&held["lease_id"], &lost["lease_id"]);
    let leases =
        [one("held", held_id, 60_000), one("lost", lost_id, 60_000), one("held", held_id, 0), json!({})];
    let headers = [("content-type", "application/json"), ("x-request-id", "batch-1")];
    let answer = server.send("POST", "/v1/renew", &headers, &json!({ "leases": leases }).to_string()).await;
    assert_eq!(answer.status, 200);
    let told = lines.json().split_off(before);
    let digest = |id: &Value| {
        let id = LeaseId::parse(id.as_str().unwrap()).unwrap();
        json!(id.digest().expose())
    };
    let hash = |name: &str| json!(leasehold::digest_name(name));
    let expected = [
        ("success", 200, hash("held"), digest(held_id), held["fencing_token"].clone()),
        ("fail", 410, hash("lost"), digest(lost_id), lost["fencing_token"].clone()),
        ("fail", 400, hash("held"), digest(held_id), held["fencing_token"].clone()),
        ("fail", 400, Value::Null, Value::Null, Value::Null),
    ];
    assert_eq!(told.len(), expected.len(), "{told:?}");
    for (line, (result, status, lock, lease, fence)) in told.iter().zip(expected) {
        assert_eq!((&line["op"], &line["request_id"]), (&json!("renew"), &json!("batch-1")), "{line}");
        assert_eq!((&line["result"], &line["status"]), (&json!(result), &json!(status)), "{line}");
        assert_eq!(
            (&line["lock_hash"], &line["lease_hash"], &line["fence"]),
            (&lock, &lease, &fence),
            "{line}"
        );
        assert!(line["latency_ms"].is_number() && line["error"].is_string() == (status != 200), "{line}");
    }
    assert_eq!(server.figure("lock_op_latency_ms_count{op=\"renew\"}").await, 4.0);
    assert_eq!(server.figure("lock_renew_total{result=\"success\"}").await, 1.0);
    assert_eq!(server.figure("lock_renew_total{result=\"fail\"}").await, 3.0);
    let events = server.get("/v1/locks/lost/history").await.body["events"].clone();
    assert_eq!(
        (&events[0]["what"], &events[0]["owner_id"], &events[0]["fencing_token"]),
        (&json!("renewal_refused"), &json!("me"), &lost["fencing_token"])
    );
    assert_eq!(server.get("/v1/locks/held/history").await.body["events"].as_array().unwrap().len(), 1);
    // A batch that is rejected as a whole counts as one operation.
    server.post("/v1/renew", "{}").await;
    assert_eq!(lines.json().len(), before + 5);
}
