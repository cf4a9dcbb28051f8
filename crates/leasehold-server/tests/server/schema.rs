//! What the server says about itself is true: real answers against its own OpenAPI document.

use leasehold::Locks;
use leasehold_server::{Examiner, Settings};
use serde_json::{Value, json};

use crate::support::Server;

/// As much of JSON Schema as the document uses.
fn check(api: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let pointer = reference.strip_prefix('#').unwrap();
        return check(
            api,
            api.pointer(pointer).unwrap_or_else(|| panic!("{reference} is nowhere")),
            value,
            at,
        );
    }
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

fn fits(api: &Value, method: &str, path: &str, status: u16, body: &Value) {
    let responses = &api["paths"][path][method]["responses"];
    let exact = status.to_string();
    let class = format!("{}XX", status / 100);
    let response = if responses[&exact].is_null() { &responses[&class] } else { &responses[&exact] };
    assert!(!response.is_null(), "{method} {path}: status {status} is not in the document");
    let (_, content) = response["content"].as_object().and_then(|kinds| kinds.iter().next()).unwrap();
    check(api, &content["schema"], body, path);
}

#[tokio::test]
async fn real_answers_are_as_the_document_says() {
    let mut settings = Settings::default();
    settings.examiner = Some(Examiner::new("memory:"));
    let server = Server::on(Locks::connect("memory:").await.unwrap(), settings).await;
    let api = server.get("/openapi.json").await.body;
    assert!(api["openapi"].as_str().unwrap().starts_with("3.1"), "{}", api["openapi"]);
    let take = json!({"owner_id": "me", "ttl_ms": 30_000, "metadata": "m", "mode": "permit", "limit": 1});
    let held = server.verb("a", "acquire", take.clone()).await;
    fits(&api, "post", "/v1/locks/{name}/acquire", held.status, &held.body);
    let mut queued = take.clone();
    queued["lease_id"] = json!("FFFFFFFFFFFFFFFFFFFFFF");
    queued["queue"] = json!(30_000);
    let busy = server.verb("a", "acquire", queued).await;
    assert_eq!(busy.status, 409);
    fits(&api, "post", "/v1/locks/{name}/acquire", 409, &busy.body);
    let bad = server.verb("a", "acquire", json!({})).await;
    fits(&api, "post", "/v1/locks/{name}/acquire", bad.status, &bad.body);
    let lease = held.body["lease_id"].clone();
    let renew = server.verb("a", "renew", json!({"lease_id": lease, "extend_by_ms": 1000})).await;
    fits(&api, "post", "/v1/locks/{name}/renew", renew.status, &renew.body);
    let lost = server.verb("b", "renew", json!({"lease_id": lease, "extend_by_ms": 1000})).await;
    assert_eq!(lost.status, 410);
    fits(&api, "post", "/v1/locks/{name}/renew", 410, &lost.body);
    for (path, template) in [
        ("/v1/locks/a", "/v1/locks/{name}"),
        ("/v1/locks", "/v1/locks"),
        ("/v1/capabilities", "/v1/capabilities"),
        ("/v1/findings", "/v1/findings"),
    ] {
        let answer = server.get(path).await;
        fits(&api, "get", template, answer.status, &answer.body);
    }
    let found = server.post("/v1/leases/lookup", &json!({"lease_id": lease}).to_string()).await;
    fits(&api, "post", "/v1/leases/lookup", found.status, &found.body);
    let revoked = server.verb("a", "revoke", json!({})).await;
    fits(&api, "post", "/v1/locks/{name}/revoke", revoked.status, &revoked.body);
    let released = server.verb("a", "release", json!({"lease_id": lease})).await;
    fits(&api, "post", "/v1/locks/{name}/release", released.status, &released.body);
    let one = |name: &str| json!({"lock_name": name, "lease_id": lease, "extend_by_ms": 1000});
    server.verb("c", "acquire", json!({"owner_id": "me", "ttl_ms": 60_000, "lease_id": lease})).await;
    let batch = server.post("/v1/renew", &json!({"leases": [one("c"), one("b")]}).to_string()).await;
    assert_eq!(
        (&batch.body["results"][0]["status"], &batch.body["results"][1]["status"]),
        (&json!(200), &json!(410))
    );
    fits(&api, "post", "/v1/renew", batch.status, &batch.body);
    let swept = server.post("/v1/sweep", "{}").await;
    fits(&api, "post", "/v1/sweep", swept.status, &swept.body);
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

/// What a client is made from: what it must send, how it shows who it is, and examples that are as the schema says.
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
            let answers = &operation["responses"];
            let open = operation["security"] == json!([{}]);
            assert_eq!(open, matches!(path.as_str(), "/healthz" | "/readyz"), "{method} {path}");
            assert!(open || !answers["4XX"].is_null(), "{method} {path} is refused without a token");
            let body = &answers["200"]["content"];
            assert!(open || body.is_object(), "{method} {path}: what it answers is not in the document");
        }
    }
}
