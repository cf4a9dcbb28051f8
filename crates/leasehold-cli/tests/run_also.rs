//! `leasehold run NAME --also NAME`: several locks at once, all of them or none.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::path::Path;

use rustix::process::Signal;
use support::{Store, appears, each, line_in, stores, ttl_stores};

/// Whether the lock is free now.
#[track_caller]
fn is_free(store: &Store, name: &str) -> bool {
    match store.run(&["-n", name, "true"]).code() {
        0 => true,
        75 => false,
        code => panic!("{name}: {code}"),
    }
}

#[test]
fn the_command_holds_all_names_until_it_ends() {
    for store in stores() {
        let script =
            "echo $LEASEHOLD_NAME; echo $LEASEHOLD_FENCE; echo $LEASEHOLD_FENCES; touch held; read line";
        let mut command =
            store.leasehold(&["run", "b", "--also", "c", "--also", "a", "--", "sh", "-c", script]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut run = command.spawn().unwrap();
        appears(&store.path("held"));
        for name in ["a", "b", "c"] {
            assert!(!is_free(&store, name), "{name} on {}", store.url);
        }
        drop(run.stdin.take());
        let output = run.wait_with_output().unwrap();
        for name in ["a", "b", "c"] {
            assert!(is_free(&store, name), "{name} on {}", store.url);
        }
        let lines: Vec<String> =
            String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect();
        let fences: serde_json::Value = serde_json::from_str(&lines[2]).unwrap();
        let names: Vec<&str> = fences.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!((lines[0].as_str(), names), ("b", vec!["a", "b", "c"]));
        assert_eq!(lines[1].parse::<u64>().unwrap(), fences["b"].as_u64().unwrap());
    }
}

#[test]
fn if_one_name_is_held_the_others_are_left_free() {
    for store in stores() {
        let _holder = store.hold("b", &["--owner", "the night job"]);
        for wait in [&["-n"][..], &["-w", "0.3"]] {
            let ended =
                store.run(&[wait, &["c", "--also", "a", "--also", "b", "--", "touch", "ran"]].concat());
            assert_eq!(ended.code(), 75, "{ended:?}");
            let says = format!("\"b\" on {} is held by {}", store.shown(), store.owner("the night job"));
            assert!(ended.err.contains(&says), "{ended:?}");
            assert!(is_free(&store, "a") && is_free(&store, "c"), "{}", store.url);
        }
        assert!(!store.path("ran").exists());
    }
}

#[test]
fn a_waiter_says_which_of_the_names_is_held() {
    for store in stores() {
        let holder = store.hold("b", &["--owner", "the night job"]);
        let waiter = store.start(&["a", "--also", "b", "--", "echo", "both"]);
        let says = format!(
            "leasehold: waiting for \"a\" and \"b\" on {}; {}",
            store.shown(),
            store.owner("the night job")
        );
        support::until("it says that it waits", || waiter.said().contains("holds \"b\""));
        assert!(waiter.said().starts_with(&says), "{}", waiter.said());
        holder.signal(Signal::TERM);
        let ended = waiter.ended();
        assert_eq!((ended.code(), ended.out.as_str()), (0, "both\n"), "{ended:?}");
    }
}

#[test]
fn a_waiter_names_only_a_holder_that_keeps_it_out() {
    for store in stores() {
        let _reader = store.hold("a", &["-s", "--owner", "a reader"]);
        let _holder = store.hold("b", &["--owner", "the night job"]);
        let waiter = store.start(&["-s", "a", "--also", "b", "--", "true"]);
        support::until("it says that it waits", || waiter.said().contains("waiting for"));
        assert!(waiter.said().contains("holds \"b\""), "{}: {}", store.url, waiter.said());
    }
}

#[test]
fn if_a_later_name_fails_the_earlier_ones_are_given_back() {
    for store in ttl_stores().into_iter().filter(|store| store.permits) {
        let _permit = store.hold("gpu", &["--limit", "2"]);
        for _ in 0..5 {
            let refused = ["-n", "--no-warnings", "a", "--also", "gpu", "--", "touch", "ran"];
            store.run(&refused).says(64, "\"gpu\": mismatch");
            assert!(is_free(&store, "a"), "{}", store.url);
        }
        assert!(!store.path("ran").exists());
    }
}

#[test]
fn runs_that_list_the_names_in_another_order_never_block() {
    // One of them would wait for the other for ever.
    const WORK: &str = "mkdir inside || echo overlap >>log; echo ran >>log; rmdir inside";
    each(&stores(), |store| {
        let orders = [["a", "b"], ["b", "a"]];
        each(&orders.repeat(4), |[one, other]| {
            for _ in 0..3 {
                let ended = store.run(&["-w", "100", one, "--also", other, "--", "sh", "-c", WORK]);
                assert_eq!(ended.code(), 0, "{ended:?}");
            }
        });
        let log = std::fs::read_to_string(store.path("log")).unwrap();
        assert_eq!(log.lines().collect::<Vec<_>>(), ["ran"; 24]);
    });
}

#[test]
fn readers_and_permits_can_be_among_the_names() {
    for store in stores() {
        let _reader = store.hold("rates", &["-s"]);
        let both = store.run(&["-n", "account", "--also-shared", "rates", "--", "true"]);
        assert_eq!(both.code(), 0, "{both:?}");
        assert_eq!(store.run(&["-n", "account", "--also", "rates", "--", "true"]).code(), 75);
        if store.permits {
            let _permit = store.hold("gpu", &["--limit", "2"]);
            let second = store.run(&["-n", "--limit", "2", "gpu", "--also", "x", "--", "true"]);
            assert_eq!(second.code(), 0, "{second:?}");
        }
    }
}

#[test]
fn a_name_in_two_modes_is_refused_before_anything_is_run() {
    for store in stores() {
        for args in [&["a", "--also-shared", "a"][..], &["-s", "a", "--also", "a"]] {
            store.run(&[args, &["--", "touch", "ran"]].concat()).says(64, "one name in two modes");
        }
        store.run(&["a", "--also", "", "--", "touch", "ran"]).says(64, "name");
        // The same name in the same mode is one lock.
        assert_eq!(store.run(&["a", "--also", "a", "--", "true"]).code(), 0);
        assert!(!store.path("ran").exists());
    }
}

#[test]
fn if_one_lock_is_revoked_the_command_ends() {
    for store in ttl_stores() {
        let args = ["--ttl", "9s", "a", "--also", "b", "--", "sh", "-c", "touch held; exec sleep 600"];
        let run = store.start(&args);
        appears(&store.path("held"));
        let revoke = support::ended(store.leasehold(&["revoke", "--now", "--yes", "b"]));
        assert_eq!(revoke.code(), 0, "{revoke:?}");
        let ended = run.ended();
        assert_eq!(ended.code(), 79, "{ended:?}");
        assert!(ended.err.contains("revoked"), "{ended:?}");
        assert!(is_free(&store, "a") && is_free(&store, "b"), "{}", store.url);
    }
}

#[test]
fn if_one_lock_is_revoked_the_command_has_time_to_end() {
    for store in ttl_stores() {
        let script = "trap 'echo bye >bye; exit 0' TERM; touch held; while :; do sleep 0.02; done";
        let run = store.start(&["--ttl", "9s", "a", "--also", "b", "--", "sh", "-c", script]);
        appears(&store.path("held"));
        let revoke = support::ended(store.leasehold(&["revoke", "--yes", "b"]));
        assert_eq!(revoke.code(), 0, "{revoke:?}");
        let ended = run.ended();
        assert_eq!(ended.code(), 79, "{ended:?}");
        assert!(!ended.err.contains("killing"), "{ended:?}");
        assert_eq!(line_in(&store.path("bye")), "bye");
    }
}

#[test]
fn the_end_of_leasehold_itself_frees_all_names_on_files() {
    let store = support::file();
    let script = "echo $$ >leader; exec sleep 600";
    let run = store.start(&["a", "--also", "b", "--", "sh", "-c", script]);
    let leader = line_in(Path::new(&store.path("leader"))).parse().unwrap();
    run.signal(Signal::KILL);
    support::until("the command is dead", || !support::lives(support::pid(leader)));
    support::until("both are free", || is_free(&store, "a") && is_free(&store, "b"));
}
