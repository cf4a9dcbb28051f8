//! Findings about the store's setup: which tokens may see them, and what they contain.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::Locks;
use leasehold_server::{Examiner, Limits, NewToken, Scope, Settings, Tokens, Verb};
use testkit::until::{in_time, until_async};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::support::{Answer, Server, request};

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

/// A store that counts connections and closes each when allowed to.
async fn broken_store() -> (String, Arc<AtomicUsize>, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let (count, closes) = (Arc::new(AtomicUsize::new(0)), watch::Sender::new(false));
    let (counted, may_close) = (Arc::clone(&count), closes.subscribe());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            let mut may_close = may_close.clone();
            tokio::spawn(async move {
                let _ = may_close.wait_for(|may| *may).await;
                drop(stream);
            });
        }
    });
    (url, count, closes)
}

async fn server_before(url: &str) -> Server {
    let mut settings = Settings::default();
    settings.examiner = Some(Examiner::new(url));
    Server::on(Locks::connect("memory:").await.unwrap(), settings).await
}

#[tokio::test]
async fn a_failed_examination_is_reused_like_any_other() {
    let (url, count, closes) = broken_store().await;
    closes.send_replace(true);
    let server = server_before(&url).await;
    let first = server.get("/v1/findings").await;
    first.is_problem(503, "UNAVAILABLE");
    let (connections, since) = (count.load(Ordering::Relaxed), Instant::now());
    assert!(connections > 0);
    assert_eq!(server.get("/v1/findings").await.body, first.body);
    // On a machine that is too slow for this, another examination is right.
    let reused = count.load(Ordering::Relaxed) == connections;
    assert!(reused || since.elapsed() > Duration::from_secs(1));
}

#[tokio::test]
async fn a_client_that_goes_leaves_the_examination_to_others() {
    let (url, count, closes) = broken_store().await;
    let server = server_before(&url).await;
    let going = server.raw(&request("GET", "/v1/findings", &[], "")).await;
    until_async("the store is examined", async || count.load(Ordering::Relaxed) > 0).await;
    let connections = count.load(Ordering::Relaxed);
    server.hang_up(going).await;
    let mut waits = server.raw(&request("GET", "/v1/findings", &[], "")).await;
    // The server shares this thread: it has begun the second request before it answers these.
    for _ in 0..20 {
        assert_eq!(server.get("/healthz").await.status, 200);
    }
    assert_eq!(count.load(Ordering::Relaxed), connections);
    closes.send_replace(true);
    let mut answer = Vec::new();
    in_time("an answer", waits.read_to_end(&mut answer)).await.unwrap();
    Answer::parse(&answer).is_problem(503, "UNAVAILABLE");
}
