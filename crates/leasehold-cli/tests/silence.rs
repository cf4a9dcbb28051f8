//! A store that does not answer is a broken store: given up in time, and never taken for a lock that is held.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use leasehold::ErrorKind;
use support::{each, ended, fallible_stores, leasehold};

#[test]
fn who_is_never_answered_gives_up_and_exits_69() {
    // It takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let mut calls = Vec::new();
    for scheme in ["http", "redis", "postgres", "postgres+advisory"] {
        for args in [&["run", "-n", "x", "true"][..], &["list"], &["show", "x"], &["acquire", "x"]] {
            if scheme == "http" || args[0] == "run" {
                calls.push((format!("{scheme}://{address}"), args));
            }
        }
    }
    each(&calls, |(url, args)| {
        let start = Instant::now();
        let outcome = ended(leasehold(&[&args[..1], &["--url", url], &args[1..]].concat()));
        outcome.says(69, url);
        assert!(outcome.err.contains("answer") || outcome.err.contains("in time"), "{outcome:?}");
        assert!(start.elapsed() < Duration::from_secs(20), "{url} {:?}", start.elapsed());
    });
}

#[test]
fn a_store_that_falls_silent_while_one_waits_is_not_taken_for_contention() {
    each(&fallible_stores(), |store| {
        let _holder = store.hold("x", &["--ttl", "60s"]);
        // A lock that is held would be success.
        let waiter = store.start(&["-w", "4", "--skip-ok", "x", "--", "touch", "ran"]);
        store.until_waited_for("x", &waiter);
        let _away = store.away();
        let outcome = waiter.ended();
        assert_eq!(outcome.code(), 69, "{}: {outcome:?}", store.url);
        assert!(!store.path("ran").exists());
    });
}

/// The same without the command line between.
#[test]
fn the_library_too_tells_a_store_that_fell_silent_from_a_lock_that_is_held() {
    each(&fallible_stores(), |store| {
        let locks = leasehold::blocking::Locks::connect(&store.url).unwrap();
        let _held = locks.mutex("x").ttl(Duration::from_secs(60)).lock().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let other = leasehold::blocking::Locks::connect(&store.url).unwrap();
                other.mutex("x").try_lock_for(Duration::from_secs(4))
            });
            if store.shows_waiters {
                support::until("it is in the queue", || store.inspect("x").queue_length == 1);
            } else {
                support::until("it is in the queue", || {
                    store.session_locks().is_some_and(|locks| locks.lines().count() == 2)
                });
            }
            let _away = store.away();
            let error = waiting.join().unwrap().expect_err("nobody has said that it is still held");
            let broken = [ErrorKind::Unavailable, ErrorKind::NetworkTimeout, ErrorKind::Busy];
            assert!(broken.contains(&error.kind()), "{}: {error:?}", store.url);
        });
    });
}
