//! `leasehold elect NAME --http ADDRESS`: says which process leads.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use support::{PATIENCE, Running, Store, each, every_store, sqlite, ttl_stores, until};

/// A candidate that answers on a free port.
struct Candidate {
    process: Running,
    address: String,
}

impl Candidate {
    fn start(store: &Store, args: &[&str]) -> Self {
        let args = [&["elect", "--http", "127.0.0.1:0"], args].concat();
        let process = Running::start(store.leasehold(&args));
        let told = || {
            let said = process.said();
            let (_, rest) = said.split_once("http://127.0.0.1:")?;
            let (port, _) = rest.split_once([' ', '"'])?;
            Some(format!("127.0.0.1:{port}"))
        };
        until("it answers", || told().is_some());
        let address = told().unwrap();
        Candidate { process, address }
    }

    fn sends(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).unwrap();
        stream
    }

    fn asks(&self, request: &str) -> (u16, String) {
        answer(self.sends(request))
    }

    fn state(&self) -> (u16, Value) {
        let (status, body) = self.asks("GET /");
        (status, serde_json::from_str(&body).unwrap())
    }

    fn leads(&self) -> bool {
        self.state().0 == 200
    }
}

/// The status and the body of an answer.
fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn exactly_the_leader_says_200_and_others_name_it() {
    let all = every_store();
    each(&all, |store| {
        let owners = ["one", "two", "three"];
        let start = |owner: &&str| {
            let args = ["--ttl", "3s", "--owner", owner, "--metadata", &format!("at {owner}"), "x"];
            Candidate::start(store, &args)
        };
        let mut candidates: Vec<(&str, Candidate)> =
            owners.iter().map(|owner| (*owner, start(owner))).collect();
        let mut last = 0;
        for round in 0..3 {
            until("one leads", || candidates.iter().any(|(_, candidate)| candidate.leads()));
            // A candidate that has just started may not have its store open yet.
            let mut states: Vec<(u16, Value)> = Vec::new();
            until("the others name a leader", || {
                states = candidates.iter().map(|(_, candidate)| candidate.state()).collect();
                states.iter().all(|(status, body)| *status == 200 || body["leader"].is_object())
            });
            let leading = states.iter().position(|(status, _)| *status == 200).unwrap();
            let term = states[leading].1["term"].as_u64().unwrap();
            let own = serde_json::json!({ "leading": true, "name": "x", "term": term });
            assert_eq!(states[leading].1, own);
            assert!(term > last);
            last = term;
            for (_, state) in states.iter().enumerate().filter(|(which, _)| *which != leading) {
                let (status, body) = state;
                assert_eq!((*status, &body["leading"]), (503, &Value::Bool(false)), "{body}");
                let leader = &body["leader"];
                let owner = leader["owner"].as_str().unwrap();
                if store.shows_names {
                    assert_eq!((owner, leader["term"].as_u64()), (candidates[leading].0, Some(term)));
                    assert_eq!(leader["metadata"], format!("at {owner}"));
                } else {
                    assert!(owner.starts_with(store.owner("")), "{body}");
                }
            }
            let (_, leader) = candidates.remove(leading);
            leader.process.signal(if round == 0 { Signal::KILL } else { Signal::TERM });
            let mut process = leader.process;
            until("it has ended", || process.has_ended());
        }
    });
}

#[test]
fn past_the_deadline_no_answer_is_200() {
    let ttl = Duration::from_secs(3);
    let all = ttl_stores();
    each(&all, |store| {
        let candidate = Candidate::start(store, &["--ttl", "3s", "x"]);
        until("it leads", || candidate.leads());
        let away = store.away();
        // Every lease was confirmed before this.
        let since = Instant::now();
        loop {
            let asked = since.elapsed();
            let (status, body) = candidate.state();
            if status == 503 {
                assert_eq!(body["leading"], Value::Bool(false), "{body}");
                break;
            }
            assert!(asked < ttl, "{}: still 200 {asked:?} after the last confirmation", store.url);
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(away);
        until("it leads again", || candidate.leads());
        candidate.process.signal(Signal::TERM);
        assert_eq!(candidate.process.ended().code(), 143);
    });
}

#[test]
fn a_leader_that_was_stopped_answers_by_its_deadline() {
    let all = ttl_stores();
    each(&all, |store| {
        let candidate = Candidate::start(store, &["--ttl", "2s", "x"]);
        until("it leads", || candidate.leads());
        let term = candidate.state().1["term"].as_u64();
        candidate.process.signal(Signal::STOP);
        // The system accepts it; the answer comes when the process goes on.
        let question = candidate.sends("GET /");
        assert_eq!(store.run(&["-w", "100", "x", "true"]).code(), 0);
        candidate.process.signal(Signal::CONT);
        let (status, body) = answer(question);
        let body: Value = serde_json::from_str(&body).unwrap();
        // It stands again at once, and may have won a new term before it answers.
        assert!(status == 503 || body["term"].as_u64() > term, "{}: {body}", store.url);
    });
}

#[test]
fn a_command_that_has_ended_leads_no_more() {
    let store = sqlite();
    let candidate = Candidate::start(&store, &["x", "-c", "while ! [ -e enough ]; do sleep 0.02; done"]);
    until("it leads", || candidate.leads());
    std::fs::write(store.path("enough"), "").unwrap();
    until("it pauses", || candidate.process.said().contains("standing for election again"));
    let (status, body) = candidate.state();
    // It may have led again by now, for a moment.
    if status == 503 {
        assert_eq!(body["leader"], Value::Null, "{body}");
    }
    until("it does not lead", || !candidate.leads());
}

#[test]
fn a_store_that_was_never_there_is_a_503_too() {
    let store = support::redis();
    let _away = store.away();
    let candidate = Candidate::start(&store, &["x"]);
    let (status, body) = candidate.state();
    assert_eq!((status, body["error"].as_str()), (503, Some("the store does not answer")), "{body}");
    candidate.process.signal(Signal::TERM);
    assert_eq!(candidate.process.ended().code(), 143);
}

#[test]
fn without_a_command_once_ends_with_the_term() {
    for store in ttl_stores() {
        let candidate = Candidate::start(&store, &["--once", "--ttl", "3s", "x"]);
        until("it leads", || candidate.leads());
        let revoke = support::ended(store.leasehold(&["revoke", "--now", "--yes", "x"]));
        assert_eq!(revoke.code(), 0, "{revoke:?}");
        let ended = candidate.process.ended();
        assert_eq!(ended.code(), 79, "{ended:?}");
        assert!(ended.err.contains("the lock was lost: it was revoked"), "{ended:?}");
        // Not with a signal: then the term is resigned.
        let candidate = Candidate::start(&store, &["--json", "--ttl", "10m", "x"]);
        until("it leads", || candidate.leads());
        candidate.process.signal(Signal::TERM);
        let ended = candidate.process.ended();
        assert_eq!(ended.code(), 143);
        assert!(ended.err.contains(r#"{"event":"released"}"#), "{ended:?}");
        assert_eq!(store.run(&["-n", "x", "true"]).code(), 0);
    }
}

#[test]
fn other_requests_are_refused_and_slow_ones_cut_off() {
    let store = sqlite();
    let candidate = Candidate::start(&store, &["x"]);
    until("it leads", || candidate.leads());
    assert_eq!(candidate.asks("GET /health").0, 404);
    for method in ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"] {
        assert_eq!(candidate.asks(&format!("{method} /")).0, 405, "{method}");
    }
    assert_eq!(candidate.asks("GET /?why").0, 200);
    // A hundred clients that say nothing keep nobody out for long.
    let mut silent: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(&candidate.address).unwrap()).collect();
    assert_eq!(candidate.state().0, 200);
    let closed = &mut silent[0];
    closed.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(closed.read(&mut [0]).unwrap(), 0, "it is closed without a word");
    let mut odd = TcpStream::connect(&candidate.address).unwrap();
    odd.write_all(b"\x16\x03\x01 nonsense\r\n\r\n").unwrap();
    assert!(candidate.leads());
}

#[test]
fn an_address_in_use_is_an_error_before_anything_else() {
    let store = sqlite();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = support::ended(store.leasehold(&["elect", "--http", &address, "x", "touch", "ran"]));
    refused.says(69, "cannot listen on");
    assert!(!store.path("locks.db").exists() && !store.path("ran").exists());
}
