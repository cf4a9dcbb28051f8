//! The separate address for metrics and the dashboard: what it serves and what not, and how it ends.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;

use leasehold::blocking::Locks;
use rustix::process::Signal;
use support::{PATIENCE, Served, ended, leasehold, until};

/// A server with a separate address, and that address.
fn served(options: &[&str]) -> (tempfile::TempDir, Served, String) {
    let directory = tempfile::tempdir().unwrap();
    let metrics =
        if options.contains(&"--metrics-listen") { &[][..] } else { &["--metrics-listen", "127.0.0.1:0"] };
    let served = Served::start(directory.path(), &[&["--store", "memory:"], metrics, options].concat());
    let page = served.told("dashboard").trim_end_matches('/').to_owned();
    assert_ne!(page, served.url);
    (directory, served, page)
}

fn status(arguments: &[&str]) -> u16 {
    let command = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "content-type: application/json"];
    let answer = Command::new("curl").args(command).args(arguments).output().unwrap();
    String::from_utf8(answer.stdout).unwrap().parse().unwrap()
}

fn get(at: &str, path: &str) -> u16 {
    status(&[&format!("{at}{path}")])
}

fn post(at: &str, path: &str, body: &str) -> u16 {
    status(&[&format!("{at}{path}"), "-d", body])
}

const LEASE: &str = r#"{"owner_id":"me","ttl_ms":30000}"#;

#[test]
fn the_metrics_port_serves_the_dashboard_but_no_lock_routes() {
    let (_directory, served, page) = served(&[]);
    assert_eq!(post(&served.url, "/v1/locks/a/acquire", LEASE), 200);
    for path in ["/", "/metrics"] {
        assert_eq!((get(&page, path), get(&served.url, path)), (200, 404), "{path}");
    }
    for path in ["/healthz", "/readyz", "/v1/locks", "/v1/locks/a", "/v1/locks/a/history", "/v1/capabilities"]
    {
        assert_eq!((get(&page, path), get(&served.url, path)), (200, 200), "{path}");
    }
    for path in ["/v1/findings", "/openapi.json"] {
        assert_eq!((get(&page, path), get(&served.url, path)), (404, 200), "{path}");
    }
    for path in [
        "/v1/locks/b/acquire",
        "/v1/locks/a/renew",
        "/v1/locks/a/release",
        "/v1/renew",
        "/v1/sweep",
        "/v1/leases/lookup",
    ] {
        assert_eq!(post(&page, path, LEASE), 404, "{path}");
        assert_ne!(post(&served.url, path, LEASE), 404, "{path}");
    }
    let held = |name: &str| !Locks::connect(&served.url).unwrap().inspect(name).unwrap().holders.is_empty();
    assert!(held("a"));
    // The dashboard of this machine can revoke, as it can without a separate address.
    assert_eq!(post(&page, "/v1/locks/a/revoke", r#"{"now":true}"#), 200);
    assert!(!held("a"));
}

#[test]
fn where_others_reach_it_revoking_needs_a_token() {
    let (_directory, open, page) = served(&["--metrics-listen", "0.0.0.0:0", "--insecure-no-auth"]);
    assert_eq!(post(&open.url, "/v1/locks/a/acquire", LEASE), 200);
    assert_eq!(get(&page, "/v1/locks/a"), 200);
    assert_eq!(post(&page, "/v1/locks/a/revoke", "{}"), 403);
    assert_eq!(post(&open.url, "/v1/locks/a/revoke", "{}"), 200, "only from there");

    let files = tempfile::tempdir().unwrap();
    let tokens = files.path().join("tokens").to_str().unwrap().to_owned();
    let token = |allow: &str| {
        let made = ended(leasehold(&["token", "create", "--tokens", &tokens, "--allow", allow]));
        format!("authorization: Bearer {}", made.out.trim())
    };
    let (read, admin) = (token("read"), token("admin"));
    let (_directory, _served, page) = served(&["--metrics-listen", "0.0.0.0:0", "--tokens", &tokens]);
    let revoke =
        |more: &[&str]| status(&[&[&format!("{page}/v1/locks/a/revoke"), "-d", "{}"], more].concat());
    assert_eq!([revoke(&[]), revoke(&["-H", &read]), revoke(&["-H", &admin])], [401, 403, 200]);
    assert_eq!(status(&[&format!("{page}/metrics")]), 401);
    assert_eq!(status(&[&format!("{page}/metrics"), "-H", &read]), 200);
}

#[test]
fn stopping_answers_open_requests_on_the_metrics_port_too() {
    let (_directory, served, page) = served(&[]);
    let address = page.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "POST /v1/locks/a/revoke HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 2\r\nexpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    // It sends this when it has begun to answer and wants the body.
    assert_eq!(lines.next().unwrap().unwrap(), "HTTP/1.1 100 Continue");
    assert_eq!(lines.next().unwrap().unwrap(), "");
    served.signal(Signal::TERM);
    let listens = |url: &str| TcpStream::connect(url.strip_prefix("http://").unwrap()).is_ok();
    until("it accepts nobody any more", || !listens(&served.url) && !listens(&page));
    stream.write_all(b"{}").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "HTTP/1.1 200 OK");
    assert_eq!(served.ended().code(), Some(0));
}
