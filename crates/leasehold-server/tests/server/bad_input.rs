//! Whatever input arrives, the server touches only the named lock and never answers 500.

use serde_json::json;

use crate::support::Server;

#[tokio::test]
async fn wrong_requests_are_refused_before_anything_is_done() {
    let server = Server::start().await;
    let cases = [
        ("acquire", json!({"ttl_ms": 1000}), "owner_id required"),
        ("acquire", json!({"owner_id": "", "ttl_ms": 1000}), "owner_id required"),
        (
            "acquire",
            json!({"owner_id": "me"}),
            "ttl_ms must be in (0, 600000], in milliseconds; it is 0 or missing",
        ),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 0}), "ttl_ms must be in (0, 600000]"),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 600_001}), "600000], in milliseconds; it is 600001"),
        ("acquire", json!({"owner_id": "me", "ttl_ms": -1}), ""),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1.5}), ""),
        ("acquire", json!({"owner_id": "me", "ttl_ms": "1"}), ""),
        ("acquire", json!({"owner_id": 7, "ttl_ms": 1000}), ""),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "color": "red"}), ""),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "mode": "odd"}), ""),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "mode": "permit"}), ""),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "mode": "permit", "limit": 0}), ""),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "limit": 2}), ""),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "lease_id": "short"}), ""),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "repeat": true}), ""),
        (
            "acquire",
            json!({"owner_id": "me", "ttl_ms": 1000, "wait_ms": 50_001}),
            "wait_ms must be at most 50000",
        ),
        ("acquire", json!({"owner_id": "o".repeat(257), "ttl_ms": 1000}), ""),
        ("acquire", json!({"owner_id": "me", "ttl_ms": 1000, "metadata": "m".repeat(4097)}), ""),
        ("renew", json!({"extend_by_ms": 1000}), "lease_id required"),
        ("renew", json!({"lease_id": "AAAAAAAAAAAAAAAAAAAAAA"}), "extend_by_ms must be in (0, 600000]"),
        ("renew", json!({"lease_id": "AAAAAAAAAAAAAAAAAAAAAA", "extend_by_ms": 600_001}), ""),
        ("renew", json!({"lock_name": "a", "lease_id": "AAAAAAAAAAAAAAAAAAAAAA", "extend_by_ms": 1}), ""),
        ("release", json!({}), "lease_id required"),
        ("release", json!({"lease_id": ""}), "lease_id required"),
        ("release", json!({"lease_id": "AAAAAAAAAAAAAAAAAAAAAA", "more": 1}), ""),
        ("revoke", json!({"now": 1}), ""),
        ("acquire", json!([]), "expected an object"),
        ("acquire", json!(["me", 1000]), "expected an object"),
        ("release", json!(["AAAAAAAAAAAAAAAAAAAAAA"]), "expected an object"),
        ("revoke", json!([true]), "expected an object"),
        ("acquire", json!(null), ""),
    ];
    for (verb, body, says) in cases {
        let answer = server.verb("a", verb, body.clone()).await;
        answer.is_problem(400, "INVALID_ARGUMENT");
        assert!(answer.body["error"].as_str().unwrap().contains(says), "{body}: {answer:?}");
    }
    for body in ["", "{", "nonsense", "{\"owner_id\":\"\\ud800\",\"ttl_ms\":1}"] {
        server.post("/v1/locks/a/acquire", body).await.is_problem(400, "INVALID_ARGUMENT");
    }
    for body in [
        r#"{"leases":[]}"#,
        "{}",
        r#"{"leases":{}}"#,
        r#"{"leases":[],"more":1}"#,
        r#"[[{"lock_name":"a"}]]"#,
    ] {
        server.post("/v1/renew", body).await.is_problem(400, "INVALID_ARGUMENT");
    }
    server.post("/v1/sweep", "[]").await.is_problem(400, "INVALID_ARGUMENT");
    assert_eq!(server.get("/v1/locks/a").await.body["version"], 0);
}

#[tokio::test]
async fn wrong_routes_methods_and_types_have_their_own_answers() {
    let server = Server::start().await;
    let good = json!({"owner_id": "me", "ttl_ms": 1000}).to_string();
    for path in ["/v1/locks//acquire", "/v1/locks/"] {
        server.post(path, &good).await.is_problem(400, "INVALID_ARGUMENT");
    }
    for path in ["/v1/locks/a/steal", "/v1/locks/a/acquire/more", "/v2", "/v1/locks/a//acquire", "//v1/locks"]
    {
        server.post(path, &good).await.is_problem(404, "NO_ROUTE");
    }
    server.get("/v1/locks/a/acquire").await.is_problem(405, "WRONG_METHOD");
    server.send("DELETE", "/v1/locks/a", &[], "").await.is_problem(405, "WRONG_METHOD");
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let answer = server.send("POST", "/v1/locks/a/acquire", &[("content-type", kind)], &good).await;
        answer.is_problem(400, "INVALID_ARGUMENT");
    }
    let charset = [("content-type", "application/json; charset=utf-8")];
    assert_eq!(server.send("POST", "/v1/locks/a/acquire", &charset, &good).await.status, 200);
    let huge = format!("{{\"owner_id\":\"{}\"}}", "x".repeat(70_000));
    server.post("/v1/locks/a/acquire", &huge).await.is_problem(413, "INVALID_ARGUMENT");
}

#[tokio::test]
async fn every_path_is_the_lock_it_names_and_no_other() {
    let server = Server::start().await;
    let slash = server.post("/v1/locks/a/b/acquire", "{}").await;
    slash.is_problem(404, "NO_ROUTE");
    assert!(slash.body["error"].as_str().unwrap().contains("%2F"), "{slash:?}");
    // Each path with the name it decodes to, or `None` if it names nothing.
    let paths = [
        ("a", Some("a")),
        ("a%2Fb", Some("a/b")),
        ("a%2fb", Some("a/b")),
        ("a%252Fb", Some("a%2Fb")),
        ("%2e%2e", Some("..")),
        ("..", Some("..")),
        (".", Some(".")),
        ("%2E%2E%2Fa", Some("../a")),
        ("a%00b", Some("a\0b")),
        ("a+b", Some("a+b")),
        ("a%20b", Some("a b")),
        ("caf%C3%A9", Some("café")),
        ("cafe%CC%81", Some("café")),
        ("a%3Fb", Some("a?b")),
        ("a%23b", Some("a#b")),
        ("a;b=c", Some("a;b=c")),
        ("%FF", None),
        ("a%", None),
        ("a%2", None),
        ("a%zz", None),
        ("%C3", None),
    ];
    for (segment, named) in paths {
        let body = json!({"owner_id": "me", "ttl_ms": 60_000}).to_string();
        let answer = server.post(&format!("/v1/locks/{segment}/acquire"), &body).await;
        match named {
            None => answer.is_problem(400, "INVALID_ARGUMENT"),
            Some(name) => {
                assert!(matches!(answer.status, 200 | 409), "{segment}: {answer:?}");
                assert_eq!(answer.body["lock_name"], name, "{segment}");
                server.verb(name, "revoke", json!({"now": true})).await;
                let listed = server.get("/v1/locks").await.body;
                assert_eq!(listed["locks"], json!([]), "{segment} reached another lock too");
            }
        }
    }
    let long = |bytes: usize| format!("/v1/locks/{}/acquire", "x".repeat(bytes));
    let body = json!({"owner_id": "me", "ttl_ms": 1000}).to_string();
    assert_eq!(server.post(&long(512), &body).await.status, 200);
    server.post(&long(513), &body).await.is_problem(400, "INVALID_ARGUMENT");
    server.post(&long(8192), &body).await.is_problem(400, "INVALID_ARGUMENT");
}

/// A random generator with the same sequence in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}

#[tokio::test]
async fn no_mangled_request_is_a_500_or_touches_the_lock_of_another() {
    let server = Server::start().await;
    let held = server.verb("victim", "acquire", json!({"owner_id": "v", "ttl_ms": 600_000})).await.body;
    let parts = [
        "{",
        "}",
        "[",
        "]",
        "\"",
        ":",
        ",",
        "owner_id",
        "ttl_ms",
        "lease_id",
        "null",
        "1e999",
        "-1",
        "true",
        "\\u0000",
        "\"lease_id\":",
        "\"AAAAAAAAAAAAAAAAAAAAAA\"",
        "99999999999999999999",
        "mode",
        "\"permit\"",
        "\u{feff}",
        "é",
    ];
    let segments =
        ["a", "%2F", "..", "%00", "%25", "%", "//", "victim", "%76ictim", "{", "\u{7f}", "~", "?", "acquire"];
    let mut dice = Dice(0x5eed_1e45_e401_d001);
    for _ in 0..600 {
        let body: String = (0..dice.roll(14)).map(|_| parts[dice.roll(parts.len())]).collect();
        let name: String = (0..dice.roll(5)).map(|_| segments[dice.roll(segments.len())]).collect();
        let verb = ["acquire", "renew", "release", "revoke", "", "x"][dice.roll(6)];
        let path = format!("/v1/locks/{name}/{verb}");
        if name.contains("victim") && verb == "revoke" {
            continue;
        }
        let answer = server.post(&path, &body).await;
        assert!(answer.status < 500, "{path} {body}: {answer:?}");
    }
    let seen = server.get("/v1/locks/victim").await.body;
    assert_eq!((&seen["held"], &seen["fencing_token"]), (&json!(true), &held["fencing_token"]));
}

/// The longest name, all of it escaped, and more headers than a proxy adds fit into 32 KiB; twice as much is refused.
#[tokio::test]
async fn the_head_of_a_request_has_a_limit() {
    let server = Server::start().await;
    let name = "%c3%a4".repeat(256);
    let id = "i".repeat(128);
    let ask = async |cookie: usize| {
        let cookie = "c".repeat(cookie);
        let headers = [("x-request-id", &*id), ("cookie", &*cookie)];
        server.send("GET", &format!("/v1/locks/{name}"), &headers, "").await
    };
    let legal = ask(29 << 10).await;
    assert_eq!((legal.status, legal.header("x-request-id")), (200, Some(&*id)), "{legal:?}");
    assert_eq!(ask(64 << 10).await.status, 431);
    // The body is bounded apart from the head: the largest allowed is read.
    let body = format!("{{\"leases\":[]}}{}", " ".repeat((64 << 10) - 13));
    let empty = server.post("/v1/renew", &body).await;
    assert!(empty.status == 400 && empty.text.contains("1 to 512"), "{empty:?}");
}

#[tokio::test]
async fn an_error_in_the_query_names_the_parameter() {
    let server = Server::start().await;
    for (query, says) in [
        ("prefix=%zz", "prefix must be percent-encoded UTF-8"),
        ("limit=1&cursor=%ff", "cursor must be percent-encoded UTF-8"),
        ("%zz=1", "the query must be percent-encoded UTF-8"),
    ] {
        let answer = server.get(&format!("/v1/locks?{query}")).await;
        answer.is_problem(400, "INVALID_ARGUMENT");
        assert_eq!(answer.body["error"], says, "{query}");
    }
    let answer = server.get("/v1/locks/%zz").await;
    assert_eq!(answer.body["error"], "the name in the path must be percent-encoded UTF-8");
}
