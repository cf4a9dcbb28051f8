//! Starting and stopping the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::backends::memory::Memory;
use leasehold::clock::SystemClock;
use leasehold::{ErrorKind, Locks};
use leasehold_server::{App, Settings, SoleServer, serve_figures};
use serde_json::json;
use testkit::faulty::{Act, Faulty, Verb};
use testkit::until::{PATIENCE, in_time, until_async};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Answer, Server, asked, faulty, request};

#[tokio::test]
async fn a_stopping_server_answers_every_waiter() {
    let mut server = Server::start().await;
    server.acquire("a").await;
    let mut waiting = Vec::new();
    for number in 0..20 {
        let body = json!({"owner_id": format!("w{number}"), "ttl_ms": 1000, "wait_ms": 50_000}).to_string();
        let bytes = request("POST", "/v1/locks/a/acquire", &[("content-type", "application/json")], &body);
        waiting.push(server.raw(&bytes).await);
    }
    server.until("a", |lock| lock["queue_length"] == 20).await;
    // A silent client must not delay the shutdown beyond the five seconds.
    let _silent = server.raw(b"").await;
    let began = Instant::now();
    server.stop();
    for mut stream in waiting {
        let mut bytes = Vec::new();
        in_time("all are answered", stream.read_to_end(&mut bytes)).await.unwrap();
        let answer = Answer::parse(&bytes);
        answer.is_problem(503, "DRAINING");
        assert_eq!(answer.body["retryable"], true);
    }
    server.ended().await;
    // The promise is five seconds, far more than this takes; three more are for a busy machine.
    assert!(began.elapsed() < Duration::from_secs(8), "it took {:?} to end", began.elapsed());
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_stopping_server_finishes_and_answers_open_requests() {
    let (mut server, store) = faulty().await;
    store.plan(Verb::TryAcquire, [Act::Held]);
    let body = json!({"owner_id": "me", "ttl_ms": 60_000}).to_string();
    let bytes = request("POST", "/v1/locks/a/acquire", &[("content-type", "application/json")], &body);
    let mut stream = server.raw(&bytes).await;
    asked(&store, Verb::TryAcquire, 1).await;
    server.stop();
    // The server is stopping: it accepts no more connections.
    let ends = async || TcpStream::connect(server.address).await.is_err();
    until_async("the server ends", ends).await;
    store.let_go();
    let mut answer = Vec::new();
    in_time("it is answered", stream.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(Answer::parse(&answer).status, 200);
    server.ended().await;
}

#[tokio::test]
async fn readiness_follows_the_store_and_health_the_process() {
    let (server, store) = faulty().await;
    assert_eq!(server.get("/readyz").await.status, 200);
    store.always(Verb::Other, Act::Fail(ErrorKind::Unavailable));
    let says = async |status| server.get("/readyz").await.status == status;
    until_async("it is not ready", async || says(503).await).await;
    server.get("/readyz").await.is_problem(503, "UNAVAILABLE");
    assert_eq!(server.get("/healthz").await.body, json!({"status": "ok"}));
    store.always(Verb::Other, Act::Pass);
    until_async("it is ready again", async || says(200).await).await;
}

/// Anybody may ask for readiness, so it must not burden the store.
#[tokio::test]
async fn one_store_check_answers_concurrent_readiness_requests() {
    let (server, store) = faulty().await;
    store.plan(Verb::Other, [Act::Held]);
    let crowd = futures_util::future::join_all((0..100).map(|_| server.get("/readyz")));
    let let_go = async {
        asked(&store, Verb::Other, 1).await;
        store.let_go();
    };
    let (answers, ()) = tokio::join!(crowd, let_go);
    assert!(answers.iter().all(|answer| answer.status == 200));
    // One store call a second, on however slow a machine.
    let looks = store.calls(Verb::Other).len();
    assert!(looks < 50, "{looks} looks for 100 questions");
}

#[tokio::test]
async fn a_readiness_request_given_up_does_not_end_the_look() {
    let store = Faulty::new(Memory::new(), Arc::new(SystemClock));
    store.always(Verb::Other, Act::Held);
    let locks = Locks::builder(Arc::new(store.clone())).request_timeout(PATIENCE).build();
    let server = Server::on(locks, Settings::default()).await;
    until_async("the server sweeps", async || store.under_way() == 1).await;
    let given_up = server.raw(&request("GET", "/readyz", &[], "")).await;
    until_async("the server looks at the store", async || store.under_way() == 2).await;
    drop(given_up);
    // The server handles other requests meanwhile, and sees that the client is gone.
    for _ in 0..20 {
        assert_eq!(server.get("/healthz").await.status, 200);
    }
    assert_eq!(store.under_way(), 2, "the look ended with its request");
    store.always(Verb::Other, Act::Pass);
    let let_go = async { store.let_go() };
    let (answer, ()) = tokio::join!(server.get("/readyz"), let_go);
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn stores_that_a_server_cannot_stand_before_are_refused() {
    let store = testkit::faulty::Faulty::new(
        leasehold::backends::memory::Memory::new(),
        Arc::new(leasehold::clock::SystemClock),
    )
    .with_info(|info| info.liveness = leasehold::backend::Liveness::Session);
    let error = App::new(Locks::new(store), Settings::default()).unwrap_err();
    assert_eq!(error.kind(), leasehold::ErrorKind::Unsupported);
}

#[test]
fn a_second_server_on_one_file_learns_which_is_the_first() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let first = SoleServer::of(&path, "http://127.0.0.1:7420").unwrap();
    let error = SoleServer::of(&path, "x").unwrap_err();
    assert!(error.message().contains("http://127.0.0.1:7420"), "{error}");
    // Also by another path, whether or not the database exists yet.
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(to, directory.path().join(name)).unwrap();
        directory.path().join(name)
    };
    let there = link(".", "there").join("locks.db");
    assert_eq!(SoleServer::of(&there, "x").unwrap_err().kind(), ErrorKind::Unavailable);
    let linked = link("locks.db", "b.db");
    let nowhere = SoleServer::of(&linked, "x").unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::InvalidArgument, "what it will lead to is not known");
    std::fs::write(&path, "").unwrap();
    assert_eq!(SoleServer::of(&there, "x").unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(SoleServer::of(&linked, "x").unwrap_err().kind(), ErrorKind::Unavailable);
    drop(first);
    SoleServer::of(&path, "x").unwrap();
}

/// Without free descriptors the server neither dies nor spins; it answers again when some are free.
#[tokio::test]
async fn a_server_out_of_connections_serves_again_when_some_close() {
    let mut settings = Settings::default();
    settings.max_connections = 4;
    settings.read_timeout = Duration::from_secs(30);
    let server = Server::on(Locks::connect("memory:").await.unwrap(), settings).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(server.raw(b"GET /hea").await);
    }
    let body = json!({"owner_id": "me", "ttl_ms": 1000}).to_string();
    let bytes = request("POST", "/v1/locks/a/acquire", &[("content-type", "application/json")], &body);
    let mut stream = server.raw(&bytes).await;
    let mut answer = Vec::new();
    let early = tokio::time::timeout(Duration::from_millis(200), stream.read_to_end(&mut answer)).await;
    assert!(early.is_err(), "there was room after all");
    held.clear();
    in_time("it is answered", stream.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(Answer::parse(&answer).status, 200);
}

/// An operator removed the lock file of a running server, and then started another one.
#[test]
fn a_server_leaves_the_lock_file_of_another_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let first = SoleServer::of(&path, "first").unwrap();
    std::fs::remove_file(directory.path().join("locks.db.server")).unwrap();
    let _second = SoleServer::of(&path, "second").unwrap();
    drop(first);
    let error = SoleServer::of(&path, "third").unwrap_err();
    assert!(error.message().contains("second"), "{error}");
}

/// The address for metrics cannot take the connections that the locks need.
#[tokio::test]
async fn figures_have_few_of_the_connections() {
    let mut settings = Settings::default();
    (settings.max_connections, settings.figures_elsewhere) = (32, true);
    let server = Server::on(Locks::connect("memory:").await.unwrap(), settings).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let figures = listener.local_addr().unwrap();
    tokio::spawn(serve_figures(Arc::clone(&server.app), listener, None));
    let ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let connect = async |address| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(ask).await.unwrap();
        stream
    };
    let answered = async |stream: &mut TcpStream| {
        let mut bytes = [0; 12];
        in_time("an answer", stream.read_exact(&mut bytes)).await.unwrap();
        assert_eq!(&bytes, b"HTTP/1.1 200");
    };
    // With 32 in all, each address has 16; beyond 256, the figures have a sixteenth.
    for address in [figures, server.address] {
        let mut open = Vec::new();
        for _ in 0..16 {
            let mut stream = connect(address).await;
            answered(&mut stream).await;
            open.push(stream);
        }
        let mut more = connect(address).await;
        // The server shares this thread, and has had every chance to answer once the other address has answered.
        let other = if address == figures { server.address } else { figures };
        for _ in 0..20 {
            answered(&mut connect(other).await).await;
        }
        let early = more.try_read(&mut [0; 12]);
        assert!(early.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "{address}");
        open.pop();
        answered(&mut more).await;
    }
}
