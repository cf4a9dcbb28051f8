//! `leasehold run` on stores with a ttl: the command is dead before the lease can be another's.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::time::{Duration, Instant};

use support::{line_in, lives, pid_in, sqlite, ttl_stores, until};

/// Ignores TERM, starts a daemon that ignores it too, and both write down that they live, every few
/// milliseconds.
const STUBBORN: &str = "trap '' TERM
    setsid sh -c 'trap \"\" TERM; echo $$ >daemon; while :; do date +%s%N >>alive; sleep 0.01; done' &
    echo $$ >pid; while :; do date +%s%N >>alive; sleep 0.01; done";

/// The last moment at which one of them lived.
fn last_sign_of_life(store: &support::Store) -> u128 {
    let text = std::fs::read_to_string(store.path("alive")).unwrap();
    text.lines().filter_map(|line| line.parse().ok()).max().unwrap()
}

#[test]
fn if_the_store_goes_away_the_command_is_dead_before_another_can_start() {
    let store = sqlite();
    let run = store.start(&["--ttl", "3s", "--kill-after", "1s", "x", "--", "sh", "-c", STUBBORN]);
    let (pid, daemon) = (pid_in(&store.path("pid")), pid_in(&store.path("daemon")));
    let away = store.cut_off();
    let waiter = store.start(&["--ttl", "30s", "x", "--", "sh", "-c", "date +%s%N >began"]);
    until("the command is dead", || !lives(pid) && !lives(daemon));
    // Nobody could have started before this either.
    drop(away);
    let ended = run.ended();
    assert_eq!(ended.code(), 79, "{ended:?}");
    let told: Vec<&str> = ended.err.lines().collect();
    assert!(
        told[0].contains("could not be renewed and is about to end; asked to end, killed in"),
        "{told:?}"
    );
    assert!(told[1].contains("killing the command"), "{told:?}");
    assert!(told[2].contains("the lock was lost"), "{told:?}");
    let waited = waiter.ended();
    let began: u128 = match waited.code() {
        0 => line_in(&store.path("began")).parse().unwrap(),
        // The store was away for longer than a waiter puts up with.
        69 => u128::MAX,
        _ => panic!("{waited:?}"),
    };
    let last = last_sign_of_life(&store);
    assert!(last < began, "alive at {last}, another began at {began}");
}

#[test]
fn the_command_is_asked_before_it_is_killed_and_may_end_by_itself() {
    let store = sqlite();
    let script = "trap 'echo bye >bye; exit 0' TERM; echo $$ >pid; while :; do sleep 0.02; done";
    let run = store.start(&["--ttl", "3s", "--kill-after", "1s", "x", "--", "sh", "-c", script]);
    pid_in(&store.path("pid"));
    let _away = store.cut_off();
    let ended = run.ended();
    assert_eq!(ended.code(), 79, "{ended:?}");
    assert!(!ended.err.contains("killing"), "{ended:?}");
    assert_eq!(line_in(&store.path("bye")), "bye");
}

#[test]
fn a_store_that_comes_back_in_time_costs_nothing() {
    let store = sqlite();
    let script = "echo $$ >pid; while ! [ -e enough ]; do sleep 0.02; done; exit 3";
    let run = store.start(&["--ttl", "6s", "--kill-after", "1s", "x", "--", "sh", "-c", script]);
    pid_in(&store.path("pid"));
    let away = store.cut_off();
    std::thread::sleep(Duration::from_millis(2500));
    drop(away);
    std::fs::write(store.path("enough"), "").unwrap();
    let ended = run.ended();
    assert_eq!((ended.code(), ended.err.as_str()), (3, ""));
}

#[test]
fn a_revoked_lease_ends_the_command() {
    for store in ttl_stores() {
        let run = store.start(&["--ttl", "1500ms", "--lost-code", "42", "x", "--", "sh", "-c", STUBBORN]);
        let (pid, daemon) = (pid_in(&store.path("pid")), pid_in(&store.path("daemon")));
        let start = Instant::now();
        leasehold::blocking::Locks::connect(&store.url).unwrap().revoke("x", true).unwrap();
        let ended = run.ended();
        assert_eq!(ended.code(), 42, "{ended:?}");
        assert!(ended.err.contains("revoked"), "{ended:?}");
        assert!(!lives(pid) && !lives(daemon));
        assert!(start.elapsed() < support::PATIENCE);
    }
}

#[test]
fn a_lock_file_that_a_stranger_removes_ends_the_command() {
    let store = support::file();
    let run = store.start(&["x", "--", "sh", "-c", STUBBORN]);
    let pid = pid_in(&store.path("pid"));
    for entry in std::fs::read_dir(store.path("locks")).unwrap().flatten() {
        if entry.path().extension().is_some_and(|end| end == "lock") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    let ended = run.ended();
    assert_eq!(ended.code(), 79, "{ended:?}");
    assert!(!lives(pid));
}

#[test]
fn a_lock_that_cannot_be_released_is_told_of_and_the_code_is_that_of_the_command() {
    let store = sqlite();
    let script = "echo $$ >pid; while ! [ -e enough ]; do sleep 0.02; done; exit 3";
    let run = store.start(&["--ttl", "60s", "x", "--", "sh", "-c", script]);
    pid_in(&store.path("pid"));
    let _away = store.cut_off();
    std::fs::write(store.path("enough"), "").unwrap();
    run.ended().says(3, "could not be released");
}
