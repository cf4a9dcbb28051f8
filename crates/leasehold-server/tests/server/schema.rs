//! The server's OpenAPI document is true: real answers are checked against it.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold::backends::memory::Memory;
use leasehold::clock::SystemClock;
use leasehold::{ErrorKind, Locks};
use leasehold_server::{Examiner, Limits, NewToken, Scope, Settings, Tokens, Verb};
use serde_json::{Map, Value, json};
use testkit::faulty::{self, Act, Faulty};
use testkit::until::until_async;

use crate::support::{Answer, Server, faulty};

/// Checks a value against as much of JSON Schema as the document uses.
fn check(api: &Value, schema: &Value, value: &Value, at: &str) {
    let schema = &whole(api, schema);
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = |choice: &&Value| std::panic::catch_unwind(|| check(api, choice, value, at)).is_ok();
        return assert!(choices.iter().any(|choice| fits(&choice)), "{at}: {value} is none of {choices:?}");
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => vec![kind],
    };
    assert!(kinds.contains(&kind), "{at}: {value} is not {kinds:?}");
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{at}: {value} is not one of {allowed:?}");
    }
    if let Some(object) = value.as_object() {
        for field in schema["required"].as_array().into_iter().flatten() {
            assert!(object.contains_key(field.as_str().unwrap()), "{at}: {field} is missing");
        }
        for (field, value) in object {
            let inner = &schema["properties"][field];
            assert!(!inner.is_null(), "{at}.{field} is not in the document");
            check(api, inner, value, &format!("{at}.{field}"));
        }
    }
    for (number, item) in value.as_array().into_iter().flatten().enumerate() {
        check(api, &schema["items"], item, &format!("{at}[{number}]"));
    }
}

/// A schema with its references resolved and its parts merged.
fn whole(api: &Value, schema: &Value) -> Value {
    if let Some(reference) = schema["$ref"].as_str() {
        let pointer = reference.strip_prefix('#').unwrap();
        return whole(api, api.pointer(pointer).unwrap_or_else(|| panic!("{reference} is nowhere")));
    }
    let Some(parts) = schema["allOf"].as_array() else { return schema.clone() };
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for part in parts.iter().map(|part| whole(api, part)) {
        properties.extend(part["properties"].as_object().unwrap().clone());
        required.extend(part["required"].as_array().into_iter().flatten().cloned());
    }
    json!({"type": "object", "properties": properties, "required": required})
}

/// The document, and which of its answers were seen.
struct Document {
    api: Value,
    seen: BTreeSet<[String; 3]>,
}

impl Document {
    async fn of(server: &Server) -> Self {
        let api = server.get("/openapi.json").await.body;
        assert!(api["openapi"].as_str().unwrap().starts_with("3.1"), "{}", api["openapi"]);
        Document { api, seen: BTreeSet::new() }
    }

    /// Checks that an answer has the type and form that are promised for its status.
    #[track_caller]
    fn fits(&mut self, method: &str, path: &str, status: u16, answer: &Answer) {
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        let responses = &self.api["paths"][path][method]["responses"];
        let (exact, class) = (status.to_string(), format!("{}XX", status / 100));
        let key = if responses[&exact].is_null() { class } else { exact };
        let response = &responses[&key];
        assert!(!response.is_null(), "{method} {path}: status {status} is not in the document");
        let kind = answer.header("content-type").unwrap().split(';').next().unwrap();
        let schema = &response["content"][kind]["schema"];
        assert!(!schema.is_null(), "{method} {path} {status}: {kind} is not in the document");
        let text = Value::from(&*answer.text);
        check(&self.api, schema, if kind.ends_with("json") { &answer.body } else { &text }, path);
        if status >= 400 {
            answer.is_problem(status, answer.body["code"].as_str().unwrap());
        }
        self.seen.insert([method.into(), path.into(), key]);
    }

    /// Every answer in the document.
    fn listed(&self) -> BTreeSet<[String; 3]> {
        let mut all = BTreeSet::new();
        for (path, methods) in self.api["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let statuses = operation["responses"].as_object().unwrap().keys();
                all.extend(statuses.map(|status| [method.clone(), path.clone(), status.clone()]));
            }
        }
        all
    }
}

/// Every route with a well-formed body: method, path, the document's name for the path, body.
fn routes(lease: &str) -> Vec<(&'static str, &'static str, &'static str, String)> {
    let take = json!({"owner_id": "me", "ttl_ms": 30_000, "metadata": "m", "mode": "permit", "limit": 1});
    let renew = json!({"lease_id": lease, "extend_by_ms": 1000, "note": "n", "note_revision": 1});
    let one = |name: &str| json!({"lock_name": name, "lease_id": lease, "extend_by_ms": 1000});
    vec![
        ("post", "/v1/locks/a/acquire", "/v1/locks/{name}/acquire", take.to_string()),
        ("post", "/v1/locks/a/renew", "/v1/locks/{name}/renew", renew.to_string()),
        ("get", "/v1/locks/a", "/v1/locks/{name}", String::new()),
        ("get", "/v1/locks", "/v1/locks", String::new()),
        ("get", "/v1/locks/a/history", "/v1/locks/{name}/history", String::new()),
        ("post", "/v1/renew", "/v1/renew", json!({"leases": [one("a"), one("b"), one("")]}).to_string()),
        ("post", "/v1/leases/lookup", "/v1/leases/lookup", json!({ "lease_id": lease }).to_string()),
        ("post", "/v1/locks/a/revoke", "/v1/locks/{name}/revoke", "{}".into()),
        ("post", "/v1/locks/a/release", "/v1/locks/{name}/release", json!({ "lease_id": lease }).to_string()),
        ("post", "/v1/sweep", "/v1/sweep", "{}".into()),
        ("get", "/v1/capabilities", "/v1/capabilities", String::new()),
        ("get", "/v1/findings", "/v1/findings", String::new()),
        ("get", "/metrics", "/metrics", String::new()),
        ("get", "/healthz", "/healthz", String::new()),
        ("get", "/readyz", "/readyz", String::new()),
    ]
}

const JSON: (&str, &str) = ("content-type", "application/json");

async fn send(server: &Server, method: &str, path: &str, body: &str) -> Answer {
    server.send(&method.to_uppercase(), path, &[JSON], body).await
}

#[tokio::test]
async fn every_documented_answer_has_the_documented_type_and_form() {
    let mut settings = Settings::default();
    settings.examiner = Some(Examiner::new("memory:"));
    let server = Server::on(Locks::connect("memory:").await.unwrap(), settings).await;
    let document = &mut Document::of(&server).await;
    well(document, &server).await;
    refused(document, &server).await;
    without_a_token(document).await;
    with_a_store_that_fails(document).await;
    let missed: Vec<_> = document.listed().difference(&document.seen).cloned().collect();
    assert!(missed.is_empty(), "listed, and never seen: {missed:?}");
}

/// Calls each route correctly.
async fn well(document: &mut Document, server: &Server) {
    let waiter = json!({"owner_id": "w", "ttl_ms": 1000, "mode": "permit", "limit": 1, "lease_id": "FFFFFFFFFFFFFFFFFFFFFF", "queue": 30_000});
    let mut lease = String::new();
    for (method, path, template, body) in routes("AAAAAAAAAAAAAAAAAAAAAA") {
        let body = body.replace("AAAAAAAAAAAAAAAAAAAAAA", &lease);
        let answer = send(server, method, path, &body).await;
        document.fits(method, template, 200, &answer);
        if template.ends_with("/acquire") {
            lease = answer.body["lease_id"].as_str().unwrap().to_owned();
            let busy = server.verb("a", "acquire", waiter.clone()).await;
            document.fits("post", template, 409, &busy);
            assert_eq!(busy.body["queue_place"], 0);
        }
        if template == "/v1/renew" {
            let statuses: Vec<_> =
                [0, 1, 2].map(|item| answer.body["results"][item]["status"].clone()).into();
            assert_eq!(statuses, [200, 410, 400]);
        }
    }
    let release = "/v1/locks/{name}/release";
    let nothing = server.verb("a", "release", json!({ "lease_id": lease })).await;
    assert_eq!(nothing.body["released"], false);
    document.fits("post", release, 200, &nothing);
    let history = server.get("/v1/locks/a/history").await;
    assert!(history.body["events"].as_array().unwrap().len() > 2);
    document.fits("get", "/v1/locks/{name}/history", 200, &history);
    let lost = server.verb("b", "renew", json!({"lease_id": lease, "extend_by_ms": 1000})).await;
    document.fits("post", "/v1/locks/{name}/renew", 410, &lost);
    let spent = json!({"lease_id": "GGGGGGGGGGGGGGGGGGGGGG", "unanswered": 60_000});
    document.fits("post", release, 200, &server.verb("c", "release", spent).await);
    let spent = json!({"owner_id": "me", "ttl_ms": 1, "lease_id": "GGGGGGGGGGGGGGGGGGGGGG"});
    document.fits("post", "/v1/locks/{name}/acquire", 410, &server.verb("c", "acquire", spent).await);
}

/// Calls each route with a faulty request.
async fn refused(document: &mut Document, server: &Server) {
    let acquire = "/v1/locks/{name}/acquire";
    document.fits("post", acquire, 400, &server.verb("a", "acquire", json!({})).await);
    let huge = json!({"owner_id": "x".repeat(70_000)});
    document.fits("post", acquire, 413, &server.verb("a", "acquire", huge).await);
    let take = json!({"owner_id": "me", "ttl_ms": 30_000});
    assert_eq!(server.verb("kind", "acquire", take.clone()).await.status, 200);
    let mut other = take;
    (other["mode"], other["limit"]) = (json!("permit"), json!(2));
    document.fits("post", acquire, 422, &server.verb("kind", "acquire", other).await);
    for (method, path, template, body) in routes("AAAAAAAAAAAAAAAAAAAAAA") {
        let foreign = [JSON, ("host", "evil.example")];
        let answer = server.send(&method.to_uppercase(), path, &foreign, &body).await;
        document.fits(method, template, 403, &answer);
    }
    // Missing routes are not listed; their errors have the same form as all others.
    for (method, path, status) in [("GET", "/v1/locks/a/acquire", 405), ("POST", "/v1/none", 404)] {
        let answer = server.send(method, path, &[JSON], "{}").await;
        answer.is_problem(status, answer.body["code"].as_str().unwrap());
        check(&document.api, &document.api["components"]["schemas"]["Problem"], &answer.body, path);
    }
    let unaware = Server::start().await;
    document.fits("get", "/v1/findings", 404, &unaware.get("/v1/findings").await);
}

async fn without_a_token(document: &mut Document) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let limits = Limits { requests_per_second: Some(1), ..Limits::default() };
    let scope = Scope { prefix: "mine/".into(), allow: vec![Verb::Acquire] };
    let token = NewToken::create("t", vec![scope], limits).unwrap();
    std::fs::write(file.path(), format!("{}\n", token.line)).unwrap();
    let mut settings = Settings::default();
    settings.tokens = Some(Tokens::read(file.path()).unwrap());
    let server = Server::on(Locks::connect("memory:").await.unwrap(), settings).await;
    for (method, path, template, body) in routes("AAAAAAAAAAAAAAAAAAAAAA") {
        let open = matches!(path, "/healthz" | "/readyz");
        let answer = send(&server, method, path, &body).await;
        document.fits(method, template, if open { 200 } else { 401 }, &answer);
    }
    let bearer = format!("Bearer {}", token.secret);
    let mut statuses = BTreeSet::new();
    while statuses != BTreeSet::from([403, 429]) {
        let answer = server.send("GET", "/v1/locks/a", &[("authorization", &bearer)], "").await;
        document.fits("get", "/v1/locks/{name}", answer.status, &answer);
        statuses.insert(answer.status);
    }
}

async fn with_a_store_that_fails(document: &mut Document) {
    let (server, store) = faulty().await;
    for verb in [faulty::Verb::TryAcquire, faulty::Verb::Renew, faulty::Verb::Release, faulty::Verb::Other] {
        store.always(verb, Act::Fail(ErrorKind::Unavailable));
    }
    for (method, path, template, body) in routes("AAAAAAAAAAAAAAAAAAAAAA") {
        let answer = send(&server, method, path, &body).await;
        if template == "/v1/renew" {
            document.fits(method, template, 200, &answer);
            assert_eq!(answer.body["results"][0]["status"], 503);
        } else if !document.api["paths"][template][method]["responses"]["5XX"].is_null()
            && answer.status != 404
        {
            document.fits(method, template, 503, &answer);
        }
    }
    until_async("it is not ready", async || server.get("/readyz").await.status == 503).await;
    document.fits("get", "/readyz", 503, &server.get("/readyz").await);
    store.always(faulty::Verb::TryAcquire, Act::Fail(ErrorKind::Overloaded));
    document.fits("post", "/v1/locks/{name}/acquire", 409, &server.acquire("a").await);
    let blind = Faulty::new(Memory::new(), Arc::new(SystemClock)).with_info(|info| info.find_by_id = false);
    let blind = Server::on(Locks::new(blind), Settings::default()).await;
    let lookup = send(&blind, "post", "/v1/leases/lookup", r#"{"lease_id":"AAAAAAAAAAAAAAAAAAAAAA"}"#).await;
    document.fits("post", "/v1/leases/lookup", 501, &lookup);
    let mut settings = Settings::default();
    // No server listens on this port.
    settings.examiner = Some(Examiner::new("redis://127.0.0.1:1"));
    let server = Server::on(Locks::connect("memory:").await.unwrap(), settings).await;
    document.fits("get", "/v1/findings", 503, &server.get("/v1/findings").await);
}

#[tokio::test]
async fn the_examples_of_the_document_are_accepted() {
    let server = Server::start().await;
    let api = server.get("/openapi.json").await.body;
    for verb in ["acquire", "renew", "release", "revoke"] {
        let schema = match verb {
            "acquire" => "Acquire",
            "renew" => "Renew",
            "release" => "Release",
            _ => "Revoke",
        };
        let example = &api["components"]["schemas"][schema]["example"];
        assert!(example.is_object(), "{schema} has no example");
        let mut example = example.clone();
        example.as_object_mut().unwrap().remove("wait_ms");
        let status = server.verb("a", verb, example).await.status;
        assert!(matches!(status, 200 | 410), "{verb}: {status}");
    }
}

/// What a client generator needs: required fields, how to authenticate, and examples that fit the schema.
#[tokio::test]
async fn the_document_says_what_must_be_sent_and_its_examples_fit() {
    let server = Server::start().await;
    let api = server.get("/openapi.json").await.body;
    let schemas = &api["components"]["schemas"];
    for (schema, fields) in [
        ("Acquire", json!(["owner_id", "ttl_ms"])),
        ("Renew", json!(["lease_id", "extend_by_ms"])),
        ("RenewMany", json!(["leases"])),
        ("Release", json!(["lease_id"])),
        ("Lookup", json!(["lease_id"])),
    ] {
        assert_eq!(schemas[schema]["required"], fields, "{schema}");
    }
    for (name, schema) in schemas.as_object().unwrap() {
        if !schema["example"].is_null() {
            check(&api, schema, &schema["example"], name);
        }
    }
    assert_eq!(api["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    for (path, methods) in api["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let answers = operation["responses"].as_object().unwrap();
            let open = operation["security"] == json!([{}]);
            assert_eq!(open, matches!(path.as_str(), "/healthz" | "/readyz"), "{method} {path}");
            assert!(
                answers.contains_key("4XX"),
                "{method} {path} is refused without a token or from elsewhere"
            );
            let bodies = answers
                .values()
                .map(|answer| &answer["content"])
                .chain([&operation["requestBody"]["content"]]);
            for (number, body) in bodies.enumerate() {
                if body.is_null() && number == answers.len() {
                    continue;
                }
                let (kind, body) = body
                    .as_object()
                    .and_then(|kinds| kinds.iter().next())
                    .unwrap_or_else(|| panic!("{method} {path}: what it answers is not in the document"));
                let reference = body["schema"]["$ref"].as_str().unwrap_or_default();
                let example = &api.pointer(reference.trim_start_matches('#')).unwrap()["example"];
                let exempt = !kind.ends_with("json");
                assert!(exempt || example.is_object(), "{method} {path}: {reference} has no example");
            }
        }
    }
}
