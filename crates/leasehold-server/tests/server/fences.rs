//! Checking fences at the server: the answers, which token may, what is kept, and what it cannot prevent.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::{Checked, ErrorKind, Fence, Locks, WriteFence, digest_name};
use leasehold_server::{Limits, LogForm, Settings};
use serde_json::{Value, json};
use testkit::process::{Child, hear, role, say};
use testkit::until::in_time;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::gates::Tenants;
use crate::support::{Answer, Lines, Server, request};

async fn check(server: &Server, resource: &str, fence: impl Into<Value>) -> Answer {
    let path = format!("/v1/fences/{}/check", leasehold::wire::segment(resource));
    server.post(&path, &json!({"fencing_token": fence.into()}).to_string()).await
}

#[tokio::test]
async fn lower_fence_is_409_with_the_highest_and_changes_nothing() {
    let server = Server::start().await;
    for (fence, status) in [(7, 200), (7, 200), (6, 409), (8, 200), (7, 409)] {
        let answer = check(&server, "report/1", fence).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(
            (&answer.body["resource"], &answer.body["fencing_token"]),
            (&json!("report/1"), &json!(fence))
        );
        assert_eq!(answer.body["current"], status == 200);
    }
    let stale = check(&server, "report/1", 7).await;
    stale.is_problem(409, "STALE_FENCE");
    assert_eq!((&stale.body["highest_fencing_token"], &stale.body["retryable"]), (&json!(8), &json!(false)));
    assert_eq!(check(&server, "report/2", 1).await.status, 200, "each resource has a mark of its own");
}

#[tokio::test]
async fn impossible_fence_is_400_and_raises_no_mark() {
    let server = Server::start().await;
    for bad in [
        json!(0),
        json!(-1),
        json!("7"),
        json!(7.5),
        json!(null),
        json!(u64::MAX),
        json!(900_000_000_000_001_u64),
    ] {
        check(&server, "a", bad).await.is_problem(400, "INVALID_ARGUMENT");
    }
    // More than a day ahead: it would lock every writer out for decades.
    let ahead = check(&server, "a", Fence::MAX.get()).await;
    ahead.is_problem(400, "INVALID_ARGUMENT");
    assert!(ahead.body["error"].as_str().unwrap().contains("a day ahead"), "{ahead:?}");
    assert_eq!(check(&server, "a", 1).await.status, 200);
    for (path, body) in [
        ("/v1/fences//check", "{\"fencing_token\":1}"),
        ("/v1/fences/a/check", "{}"),
        ("/v1/fences/a/check", "{\"fencing_token\":1,\"force\":true}"),
        ("/v1/fences/a%/check", "{\"fencing_token\":1}"),
    ] {
        server.post(path, body).await.is_problem(400, "INVALID_ARGUMENT");
    }
    server.post("/v1/fences/a/b/check", "{}").await.is_problem(404, "NO_ROUTE");
    server.get("/v1/fences/a/check").await.is_problem(405, "WRONG_METHOD");
}

#[tokio::test]
async fn token_needs_acquire_on_the_name_of_the_resource() {
    let tenants = Tenants::on(Locks::connect("memory:").await.unwrap(), Limits::default()).await;
    let check = async |token: usize, resource: &str| {
        let bearer = format!("Bearer {}", tenants.secrets[token]);
        let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        let path = format!("/v1/fences/{}/check", leasehold::wire::segment(resource));
        tenants.server.send("POST", &path, &headers, "{\"fencing_token\":7}").await
    };
    assert_eq!(check(0, "blue/report").await.status, 200);
    // Another prefix; and read and admin, which may not acquire.
    for (token, resource) in
        [(1, "blue/report"), (0, "red/report"), (0, "report"), (2, "blue/report"), (3, "cafe")]
    {
        check(token, resource).await.is_problem(403, "AUTH_FAILED");
    }
    check_without_token(&tenants.server).await.is_problem(401, "AUTH_FAILED");
}

async fn check_without_token(server: &Server) -> Answer {
    check(server, "blue/report", 7).await
}

#[tokio::test]
async fn every_check_is_a_line_of_the_log() {
    let mut settings = Settings::default();
    let lines = Lines::of(&mut settings, LogForm::Json);
    let server = Server::on(Locks::connect("memory:").await.unwrap(), settings).await;
    check(&server, "private", 7).await;
    check(&server, "private", 6).await;
    let told = lines.json();
    assert_eq!(told.len(), 2, "{told:?}");
    for (line, fence, result) in [(&told[0], 7, "success"), (&told[1], 6, "fail")] {
        assert_eq!((&line["op"], &line["result"]), (&json!("check_fence"), &json!(result)));
        assert_eq!((&line["fence"], &line["lock_hash"]), (&json!(fence), &json!(digest_name("private"))));
    }
    assert!(told[1]["error"].as_str().unwrap().contains("stale"), "{told:?}");
    assert!(!lines.text().contains("private"));
}

#[tokio::test]
async fn marks_outlive_a_restart_of_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("x.db").display());
    let on_file = async || Server::on(Locks::connect(&url).await.unwrap(), Settings::default()).await;
    let mut server = on_file().await;
    assert_eq!(check(&server, "report", 7).await.status, 200);
    server.stop();
    server.ended().await;
    let again = on_file().await;
    assert_eq!(check(&again, "report", 6).await.body["highest_fencing_token"], 7);
}

#[tokio::test]
async fn servers_on_one_store_share_marks_within_a_namespace() {
    let redis = testkit::redis::Server::start();
    let server = async |namespace: &str| {
        let mut settings = Settings::default();
        settings.namespace = namespace.into();
        Server::on(Locks::connect(&redis.url()).await.unwrap(), settings).await
    };
    let (one, two, other) = (server("team").await, server("team").await, server("other").await);
    assert_eq!(check(&one, "report", 7).await.status, 200);
    assert_eq!(check(&two, "report", 6).await.status, 409);
    assert_eq!(check(&other, "report", 6).await.status, 200);
}

#[tokio::test]
async fn store_that_keeps_no_marks_is_501() {
    let (server, _) = crate::support::faulty().await;
    let answer = check(&server, "report", 7).await;
    answer.is_problem(501, "UNSUPPORTED");
}

#[tokio::test]
async fn rust_client_checks_at_the_server() {
    let server = Server::start().await;
    let locks = Locks::connect(&format!("http://{}", server.address)).await.unwrap();
    let fence = |number| WriteFence::received(Fence::new(number)).unwrap();
    assert_eq!(locks.check_fence("r/1", fence(7)).await.unwrap(), Checked::Current);
    let Checked::Stale(stale) = locks.check_fence("r/1", fence(6)).await.unwrap() else {
        panic!("not stale")
    };
    assert_eq!((stale.fence, stale.highest), (Fence::new(6), Fence::new(7)));
    let error = locks.check_fence("r/1", fence(Fence::MAX.get())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// Not a test: a writer in a process of its own, and nothing without a role. It checks its fence at the server, if told
/// to, and writes to a file, which cannot compare fences.
#[test]
fn play() {
    let Some(role) = role() else { return };
    let parts: Vec<&str> = role.split('\t').collect();
    let [address, file, checks] = parts[..] else { panic!("{role}") };
    let address: SocketAddr = address.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let acquire = json!({"owner_id": "paused", "ttl_ms": 2000}).to_string();
        let lease = post(address, "/v1/locks/report/acquire", &acquire).await.body;
        let fence = &lease["fencing_token"];
        say(&fence.to_string());
        hear();
        let body = json!({ "fencing_token": fence }).to_string();
        if checks == "yes" && post(address, "/v1/fences/report/check", &body).await.status != 200 {
            return say("refused");
        }
        std::fs::write(file, "100").unwrap();
        say("written");
    });
}

async fn post(address: SocketAddr, path: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&request("POST", path, &[("content-type", "application/json")], body)).await.unwrap();
    let mut answer = Vec::new();
    in_time("the answer", stream.read_to_end(&mut answer)).await.unwrap();
    Answer::parse(&answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_writer_that_checks_is_stopped_and_another_is_not() {
    for (checks, said, stored) in [("yes", "refused", "200"), ("no", "written", "100")] {
        let server = Server::start().await;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("report");
        let role = format!("{}\t{}\t{checks}", server.address, file.display());
        let mut child = Child::spawn("fences::play", &role);
        let old: u64 = child.line().parse().unwrap();
        child.stop();
        // The next holder comes after the lease of the stopped process has expired.
        let wait = Duration::from_secs(50).as_millis();
        let acquire = json!({"owner_id": "next", "ttl_ms": 30_000, "wait_ms": wait});
        let fence = server.verb("report", "acquire", acquire).await.body["fencing_token"].as_u64().unwrap();
        assert!(fence > old);
        assert_eq!(check(&server, "report", fence).await.status, 200);
        std::fs::write(&file, "200").unwrap();
        child.go_on();
        child.tell("go on");
        assert_eq!(tokio::task::spawn_blocking(move || child.line()).await.unwrap(), said);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), stored, "checks: {checks}");
    }
}
