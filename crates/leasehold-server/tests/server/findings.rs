//! Findings about the store's setup: which tokens may see them, and what they contain.

use leasehold::Locks;
use leasehold_server::{Examiner, Limits, NewToken, Scope, Settings, Tokens, Verb};

use crate::support::Server;

#[tokio::test]
async fn store_findings_need_the_right_to_read_every_name() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("locks.db").display());
    let token = |prefix: &str, allow: &[Verb]| {
        let scope = Scope { prefix: prefix.into(), allow: allow.into() };
        NewToken::create("t", vec![scope], Limits::default()).unwrap()
    };
    let made = [token("", &[Verb::Read]), token("blue/", &[Verb::Read]), token("", &[Verb::Acquire])];
    let lines: String = made.iter().map(|token| format!("{}\n", token.line)).collect();
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, lines).unwrap();
    let mut settings = Settings::default();
    settings.tokens = Some(Tokens::read(&tokens).unwrap());
    settings.examiner = Some(Examiner::new(&*url));
    assert!(!format!("{settings:?}").contains("locks.db"), "a URL may hold a password");
    let server = Server::on(Locks::connect(&url).await.unwrap(), settings).await;
    let ask = async |number: usize| {
        let bearer = format!("Bearer {}", made[number].secret);
        server.send("GET", "/v1/findings", &[("authorization", &bearer)], "").await
    };
    server.get("/v1/findings").await.is_problem(401, "AUTH_FAILED");
    ask(1).await.is_problem(403, "AUTH_FAILED");
    ask(2).await.is_problem(403, "AUTH_FAILED");
    let told = ask(0).await;
    assert_eq!(told.status, 200, "{}", told.body);
    let findings = told.body["findings"].as_array().unwrap();
    let on_disk = |finding: &serde_json::Value| {
        finding["level"] == "ok"
            && finding["what"].as_str().unwrap().contains("on disk before they are given")
    };
    assert!(findings.iter().any(on_disk), "{}", told.body);
    // One examination serves simultaneous requests.
    let (one, other) = tokio::join!(ask(0), ask(0));
    assert_eq!((one.status, &one.body), (200, &other.body));
}

#[tokio::test]
async fn a_server_without_its_stores_url_says_so() {
    let server = Server::start().await;
    server.get("/v1/findings").await.is_problem(404, "NOT_KNOWN");
}
