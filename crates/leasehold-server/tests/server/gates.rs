//! Which requests are admitted, and what they may do.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;
use leasehold::backends::memory::Memory;
use leasehold::clock::SystemClock;
use leasehold_server::{Limits, NewToken, Scope, Settings, Tokens, Verb};
use serde_json::{Value, json};
use testkit::faulty::Faulty;
use testkit::until::{in_time, until_async};
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;

use crate::support::{Answer, Server, locks, request};

#[tokio::test]
async fn a_web_page_cannot_drive_a_loopback_server() {
    let server = Server::start().await;
    let body = json!({"owner_id": "me", "ttl_ms": 1000}).to_string();
    let json = ("content-type", "application/json");
    let post = |headers: Vec<(&'static str, &'static str)>| {
        let (server, body) = (&server, body.clone());
        async move { server.send("POST", "/v1/locks/a/acquire", &headers, &body).await }
    };
    for host in ["evil.example", "evil.example:7420", "localhost.evil.example", "127.0.0.1.evil.example"] {
        post(vec![("host", host), json]).await.is_problem(403, "AUTH_FAILED");
    }
    for origin in ["http://evil.example", "null", "http://localhost:1", "https://evil"] {
        post(vec![("host", "localhost"), ("origin", origin), json]).await.is_problem(403, "AUTH_FAILED");
    }
    // What a form can send without a preflight request.
    post(vec![("content-type", "text/plain")]).await.is_problem(400, "INVALID_ARGUMENT");
    assert_eq!(server.get("/v1/locks/a").await.body["version"], 0);
    for host in ["localhost", "LOCALHOST:7420", "127.0.0.1:7420", "[::1]:7420"] {
        assert_eq!(server.send("GET", "/v1/locks/a", &[("host", host)], "").await.status, 200, "{host}");
    }
    let same = vec![("host", "localhost:7420"), ("origin", "http://localhost:7420"), json];
    assert_eq!(post(same).await.status, 200);
}

pub(crate) struct Tenants {
    pub(crate) server: Server,
    pub(crate) secrets: Vec<String>,
    pub(crate) lines: Vec<String>,
    file: tempfile::NamedTempFile,
}

impl Tenants {
    async fn new(limits: Limits) -> Self {
        Tenants::on(Locks::connect("memory:").await.unwrap(), limits).await
    }

    pub(crate) async fn on(locks: Locks, limits: Limits) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        let token = |prefix: &str, allow: &[Verb]| {
            let scope = Scope { prefix: prefix.into(), allow: allow.into() };
            NewToken::create("t", vec![scope], limits).unwrap()
        };
        let made = [
            token("blue/", &[Verb::Read, Verb::Acquire]),
            token("red/", &[Verb::Read, Verb::Acquire]),
            token("", &[Verb::Read, Verb::Admin]),
            token("cafe", &[Verb::Read]),
            token("café", &[Verb::Acquire]),
        ];
        let lines = made.each_ref().map(|token| token.line.clone());
        std::fs::write(file.path(), lines.join("\n")).unwrap();
        let mut settings = Settings::default();
        settings.tokens = Some(Tokens::read(file.path()).unwrap());
        let server = Server::on(locks, settings).await;
        Tenants { server, secrets: made.map(|token| token.secret).into(), lines: lines.into(), file }
    }

    /// On a store whose calls can be observed, delayed and made to fail.
    pub(crate) async fn on_faulty(limits: Limits) -> (Self, Faulty) {
        let store = Faulty::new(Memory::new(), Arc::new(SystemClock));
        (Tenants::on(locks(&store), limits).await, store)
    }

    /// Looks at a lock until the condition holds.
    pub(crate) async fn until(&self, who: usize, name: &str, is_so: impl Fn(&Value) -> bool) {
        let path = format!("/v1/locks/{}", leasehold::wire::segment(name));
        let look = async || is_so(&self.call(who, "GET", &path, "").await.body);
        until_async(&format!("{name:?} is as the test expects"), look).await;
    }

    /// Replaces the lines of the token file and reloads it.
    pub(crate) fn reload(&self, lines: &[&str]) {
        std::fs::write(self.file.path(), lines.join("\n")).unwrap();
        self.server.app.reload_tokens().unwrap();
    }

    pub(crate) async fn call(&self, who: usize, method: &str, path: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {}", self.secrets[who]);
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        self.server.send(method, path, &headers, body).await
    }

    pub(crate) async fn acquire(&self, who: usize, name: &str) -> Answer {
        let body = json!({"owner_id": "me", "ttl_ms": 60_000}).to_string();
        self.call(who, "POST", &format!("/v1/locks/{}/acquire", leasehold::wire::segment(name)), &body).await
    }
}

#[tokio::test]
async fn a_token_reaches_its_own_names_and_sees_no_others() {
    let t = Tenants::new(Limits::default()).await;
    t.server.acquire("blue/a").await.is_problem(401, "AUTH_FAILED");
    let wrong = [("authorization", "Bearer lh_0000")];
    t.server.send("GET", "/v1/locks", &wrong, "").await.is_problem(401, "AUTH_FAILED");
    let lease = t.acquire(0, "blue/a").await;
    assert_eq!(lease.status, 200);
    // Held or free, existing or not: out of scope is always the same 403.
    for name in ["blue/a", "blue/free", "blu", ""] {
        assert!(matches!(t.acquire(1, name).await.status, 403 | 400), "{name:?}");
        let path = format!("/v1/locks/{}", leasehold::wire::segment(name));
        if !name.is_empty() {
            t.call(1, "GET", &path, "").await.is_problem(403, "AUTH_FAILED");
            t.call(1, "GET", &format!("{path}/history"), "").await.is_problem(403, "AUTH_FAILED");
        }
    }
    // Identical to the last letter: held by another tenant, never used, and outside every scope.
    let seen = async |name: &str| {
        let path = format!("/v1/locks/{}", leasehold::wire::segment(name));
        (t.call(1, "GET", &path, "").await.text, t.call(1, "GET", &format!("{path}/history"), "").await.text)
    };
    let held = seen("blue/a").await;
    assert!(held == seen("blue/never").await && held == seen("green").await, "{held:?}");
    assert_eq!(t.acquire(1, "red/a").await.status, 200);
    let listed = t.call(1, "GET", "/v1/locks", "").await.body;
    assert_eq!(listed["locks"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed["locks"][0]["lock_name"], "red/a");
    t.call(1, "GET", "/v1/locks?prefix=blue", "").await.is_problem(403, "AUTH_FAILED");
    let id = json!({"lease_id": lease.body["lease_id"]}).to_string();
    assert_eq!(t.call(1, "POST", "/v1/leases/lookup", &id).await.body["found"], false);
    assert_eq!(t.call(0, "POST", "/v1/leases/lookup", &id).await.body["found"], true);
    // Verbs: a token that reads and administers may not acquire, and the reverse.
    t.acquire(2, "red/b").await.is_problem(403, "AUTH_FAILED");
    t.call(0, "POST", "/v1/locks/blue%2Fa/revoke", "{}").await.is_problem(403, "AUTH_FAILED");
    assert_eq!(t.call(2, "POST", "/v1/locks/blue%2Fa/revoke", r#"{"now":true}"#).await.status, 200);
    t.call(1, "POST", "/v1/sweep", "{}").await.is_problem(403, "AUTH_FAILED");
    t.call(1, "GET", "/metrics", "").await.text.contains(&t.secrets[1]).then(|| panic!("a secret is shown"));
    // Probes need no token.
    assert_eq!(t.server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_scope_is_not_left_by_another_way_to_write_a_name() {
    let t = Tenants::new(Limits::default()).await;
    assert_eq!(t.acquire(4, "café").await.status, 200);
    assert_eq!(
        t.call(2, "GET", "/v1/locks?prefix=cafe%CC%81", "").await.body["locks"][0]["lock_name"],
        "café"
    );
    // It starts with the letters of the scope, but the accent that follows makes the last one another letter.
    for path in ["/v1/locks?prefix=cafe%CC%81", "/v1/locks/cafe%CC%81", "/v1/locks?prefix=caf%C3%A9"] {
        t.call(3, "GET", path, "").await.is_problem(403, "AUTH_FAILED");
    }
    let listed = t.call(3, "GET", "/v1/locks?prefix=cafe", "").await.body;
    assert_eq!(listed["locks"].as_array().unwrap().len(), 0, "{listed}");
}

#[tokio::test]
async fn a_token_without_read_rights_still_finds_its_own_lease() {
    let t = Tenants::new(Limits::default()).await;
    let lease = t.acquire(4, "café").await.body;
    let id = json!({"lease_id": lease["lease_id"]}).to_string();
    let found = t.call(4, "POST", "/v1/leases/lookup", &id).await.body;
    assert_eq!(
        (&found["found"], &found["state"], &found["lock"]),
        (&json!(true), &json!("held"), &json!(null))
    );
    // Other tenants may not, even with the id.
    for who in [0, 3] {
        assert_eq!(t.call(who, "POST", "/v1/leases/lookup", &id).await.body["found"], false, "{who}");
    }
    assert_eq!(t.call(2, "POST", "/v1/leases/lookup", &id).await.body["lock"]["lock_name"], "café");
}

#[tokio::test]
async fn a_removed_token_is_refused_after_a_reload() {
    let t = Tenants::new(Limits::default()).await;
    assert_eq!(t.acquire(0, "blue/a").await.status, 200);
    t.reload(&["# nobody"]);
    t.acquire(0, "blue/b").await.is_problem(401, "AUTH_FAILED");
}

#[tokio::test]
async fn limits_of_a_token_are_429_with_a_time_to_come_back() {
    let limits = Limits { leases: Some(2), waiters: Some(1), requests_per_second: None };
    let t = Tenants::new(limits).await;
    let first = t.acquire(0, "blue/1").await;
    assert_eq!((first.status, t.acquire(0, "blue/2").await.status), (200, 200));
    let third = t.acquire(0, "blue/3").await;
    third.is_problem(429, "RATE_LIMITED");
    assert!(third.header("retry-after").is_some());
    assert_eq!(t.acquire(1, "red/1").await.status, 200, "one tenant's limit is not another's");
    let release = json!({"lease_id": first.body["lease_id"]}).to_string();
    t.call(0, "POST", "/v1/locks/blue%2F1/release", &release).await;
    assert_eq!(t.acquire(0, "blue/3").await.status, 200);
    let wait = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 50_000}).to_string();
    let bearer = format!("Bearer {}", t.secrets[1]);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let waiting = t.server.raw(&request("POST", "/v1/locks/red%2F1/acquire", &headers, &wait)).await;
    t.until(1, "red/1", |lock| lock["queue_length"] == 1).await;
    t.call(1, "POST", "/v1/locks/red%2F1/acquire", &wait).await.is_problem(429, "RATE_LIMITED");
    drop(waiting);
}

#[tokio::test]
async fn too_many_requests_a_second_are_429() {
    let limits = Limits { requests_per_second: Some(5), ..Limits::default() };
    let t = Arc::new(Tenants::new(limits).await);
    let mut all = JoinSet::new();
    // All at once: one by one, a slow machine would stay below the rate limit.
    for _ in 0..100 {
        let t = Arc::clone(&t);
        all.spawn(async move { t.call(0, "GET", "/v1/locks/blue%2Fa", "").await.status });
    }
    let answers = all.join_all().await;
    let count = |status: u16| answers.iter().filter(|answer| **answer == status).count();
    assert!(count(429) > 0 && count(200) >= 5, "{answers:?}");
    assert_eq!(count(200) + count(429), 100, "{answers:?}");
    assert_eq!(t.call(1, "GET", "/v1/locks/red%2Fa", "").await.status, 200, "others are not refused");
}

#[tokio::test]
async fn slow_connections_do_not_disturb_and_are_closed() {
    let mut settings = Settings::default();
    settings.read_timeout = Duration::from_secs(2);
    let server = Server::on(Locks::connect("memory:").await.unwrap(), settings).await;
    let mut slow = Vec::new();
    for _ in 0..150 {
        slow.push(server.raw(b"POST /v1/locks/a/acquire HTTP/1.1\r\nhost: localhost\r\n").await);
        let body = b"POST /v1/locks/a/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{";
        slow.push(server.raw(body).await);
    }
    assert_eq!(server.acquire("a").await.status, 200);
    for mut stream in slow {
        let closed = async {
            let mut byte = [0; 256];
            use tokio::io::AsyncReadExt as _;
            while stream.read(&mut byte).await.is_ok_and(|read| read > 0) {}
        };
        in_time("a slow connection is closed", closed).await;
        let _ = stream.shutdown().await;
    }
}

/// All on one connection: a request answered after longer than a client may be silent, another request, then silence.
#[tokio::test]
async fn a_long_wait_is_no_silence_and_after_it_silence_is_noticed() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut settings = Settings::default();
    settings.read_timeout = Duration::from_secs(2);
    let server = Server::on(Locks::connect("memory:").await.unwrap(), settings).await;
    server.acquire("a").await;
    let request = |wait_ms: u64| {
        let body = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": wait_ms}).to_string();
        format!(
            "POST /v1/locks/a/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let mut stream = server.raw(request(2500).as_bytes()).await;
    let talk = async {
        for round in 0..2 {
            let mut answer = String::new();
            while !answer.contains("WAIT_TIMEOUT") {
                let mut some = [0; 2048];
                let read = stream.read(&mut some).await.unwrap();
                assert!(read > 0, "closed in round {round}: {answer}");
                answer.push_str(&String::from_utf8_lossy(&some[..read]));
            }
            if round == 0 {
                stream.write_all(request(1).as_bytes()).await.unwrap();
            }
        }
        // Nothing more is sent.
        assert_eq!(stream.read(&mut [0; 2048]).await.unwrap_or(0), 0);
    };
    in_time("it is closed in the end", talk).await;
}
