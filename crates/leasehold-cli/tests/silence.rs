//! A silent store is a broken store: commands give up in time, and never take it for a held lock.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use leasehold::ErrorKind;
use support::{Running, each, ended, fallible_stores, leasehold, postgres, server, until};

#[test]
fn a_silent_store_exits_69_and_a_shorter_wait_exits_sooner() {
    // It accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let http = format!("http://{address}");
    let patient: &[&[&str]] = &[
        &["run", "x", "true"],
        &["run", "-n", "x", "true"],
        &["list"],
        &["show", "x"],
        &["acquire", "x"],
        &["wait", "x"],
    ];
    let limited: &[&[&str]] =
        &[&["run", "-w", "1", "x", "true"], &["acquire", "-w", "1", "x"], &["wait", "-w", "1", "x"]];
    let mut calls: Vec<(String, &[&str])> =
        patient.iter().chain(limited).map(|args| (http.clone(), *args)).collect();
    for scheme in ["redis", "postgres", "postgres+advisory"] {
        calls.push((format!("{scheme}://{address}"), patient[1]));
    }
    let took = each(&calls, |(url, args)| {
        let start = Instant::now();
        let outcome = ended(leasehold(&[&args[..1], &["--url", url], &args[1..]].concat()));
        outcome.says(69, url);
        assert!(outcome.err.contains("answer") || outcome.err.contains("in time"), "{outcome:?}");
        assert!(start.elapsed() < Duration::from_secs(20), "{url} {:?}", start.elapsed());
        start.elapsed()
    });
    let (patient, limited) = (&took[..patient.len()], &took[patient.len()..][..limited.len()]);
    // Half as long, and all began at once.
    let (patient, limited) = (patient.iter().min().unwrap(), limited.iter().max().unwrap());
    assert!(*limited + Duration::from_secs(1) < *patient, "{limited:?}, and without a limit {patient:?}");
}

/// With the command line, and with the library alone.
#[test]
fn a_store_that_falls_silent_during_a_wait_is_not_contention() {
    each(&fallible_stores(), |store| {
        let _holder = store.hold("x", &["--ttl", "60s"]);
        let locks = leasehold::blocking::Locks::connect(&store.url).unwrap();
        let _held = locks.mutex("y").ttl(Duration::from_secs(60)).lock().unwrap();
        let other = leasehold::blocking::Locks::connect(&store.url).unwrap();
        // A held lock would be success.
        let waiter = store.start(&["-w", "5", "--skip-ok", "x", "--", "touch", "ran"]);
        store.until_waited_for("x", &waiter);
        let one_waits = store.session_locks();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| other.mutex("y").try_lock_for(Duration::from_secs(4)));
            until("it is in the queue", || {
                if store.shows_waiters {
                    store.inspect("y").queue_length == 1
                } else {
                    store.session_locks() != one_waits
                }
            });
            let _away = store.away();
            let error = waiting.join().unwrap().expect_err("nobody has said that it is still held");
            let broken = [ErrorKind::Unavailable, ErrorKind::NetworkTimeout, ErrorKind::Overloaded];
            assert!(broken.contains(&error.kind()), "{}: {error:?}", store.url);
            let outcome = waiter.ended();
            assert_eq!(outcome.code(), 69, "{}: {outcome:?}", store.url);
            assert!(!store.path("ran").exists());
        });
    });
}

/// On the stores where an unanswered look lasts longest.
#[test]
fn a_bounded_wait_is_kept_when_the_store_falls_silent() {
    each(&[server(), postgres()], |store| {
        let holder = store.hold("x", &["--ttl", "60s"]);
        let wait = |args: &[&str]| Running::start(store.leasehold(&[&["wait", "x"], args].concat()));
        let mut endless = wait(&[]);
        store.until_opened_by(&endless);
        let bounded = wait(&["-w", "2.5"]);
        store.until_opened_by(&bounded);
        // Time for a first look, but less than the wait: opening the store has another limit.
        std::thread::sleep(Duration::from_secs(1));
        let away = store.away();
        let bounded = bounded.ended();
        assert_eq!(bounded.code(), 69, "{}: {bounded:?}", store.url);
        // The command without a limit reports it, and continues until the store is back.
        until("it says that nobody answers", || endless.said().contains("does not answer"));
        assert!(!endless.has_ended(), "{}: {}", store.url, endless.said());
        drop(away);
        drop(holder);
        let locks = leasehold::blocking::Locks::connect(&store.url).unwrap();
        let revoke = || locks.revoke("x", true).is_ok();
        until("the lock is free", revoke);
        let endless = endless.ended();
        assert_eq!(endless.code(), 0, "{}: {endless:?}", store.url);
    });
}
