//! `leasehold run` and signals: while it waits, while the command runs, and signals that cannot be caught.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::time::{Duration, Instant};

use rustix::process::{Signal, getpgid};
use support::{Running, each, every_store, fallible_stores, line_in, lives, pid_in, stores, until};

/// Leaving a queue is tried for a second; a run that missed the signal would go on for ever.
const AT_ONCE: Duration = Duration::from_secs(10);

/// A script that prints the signals it gets, and ends when the file `enough` exists.
const LISTENER: &str = "for s in TERM INT HUP QUIT USR1 USR2 WINCH; do trap \"echo $s >>heard\" $s; done
    echo $$ >pid; while ! [ -e enough ]; do sleep 0.02; done; exit 4";

#[test]
fn a_signal_while_waiting_ends_it_and_leaves_no_queue_place() {
    for store in every_store() {
        let _holder = store.hold("x", &[]);
        let held = store.session_locks();
        for (signal, code) in
            [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)]
        {
            let waiter = store.start(&["--json", "x", "--", "touch", "ran"]);
            store.until_waited_for("x", &waiter);
            let start = Instant::now();
            waiter.signal(signal);
            let ended = waiter.ended();
            assert_eq!(ended.code(), code, "{ended:?}");
            assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
            assert_eq!(store.session_locks(), held, "{}", store.url);
            let info = store.inspect("x");
            assert_eq!((info.holders.len(), info.queue_length), (1, 0), "{}", store.url);
        }
        assert!(!store.path("ran").exists());
    }
}

#[test]
fn a_signal_ends_a_wait_even_if_the_store_does_not_answer() {
    for store in fallible_stores().into_iter().chain([support::quorum()]) {
        let _holder = store.hold("x", &[]);
        let in_line = store.start(&["x", "--", "touch", "ran"]);
        store.until_waited_for("x", &in_line);
        let away = store.away();
        let at_the_door = store.start(&["x", "--", "touch", "ran"]);
        store.until_opened_by(&at_the_door);
        for (waiter, signal, code) in [(in_line, Signal::INT, 130), (at_the_door, Signal::TERM, 143)] {
            let start = Instant::now();
            waiter.signal(signal);
            let ended = waiter.ended();
            assert_eq!(ended.code(), code, "{}: {ended:?}", store.url);
            assert!(start.elapsed() < AT_ONCE, "{}: {:?}", store.url, start.elapsed());
        }
        drop(away);
        assert!(!store.path("ran").exists());
    }
}

#[test]
fn while_running_signals_go_to_all_that_the_command_has_started() {
    for store in stores() {
        let script = format!(
            "sh -c 'trap \"echo child >>heard-too\" USR1; echo $$ >child; while ! [ -e enough ]; do sleep 0.02; done' & {LISTENER}"
        );
        let run = store.start(&["x", "--", "sh", "-c", &script]);
        pid_in(&store.path("pid"));
        pid_in(&store.path("child"));
        let mut heard = String::new();
        for (signal, name) in [
            (Signal::USR1, "USR1"),
            (Signal::INT, "INT"),
            (Signal::HUP, "HUP"),
            (Signal::QUIT, "QUIT"),
            (Signal::USR2, "USR2"),
            (Signal::WINCH, "WINCH"),
            (Signal::TERM, "TERM"),
        ] {
            run.signal(signal);
            heard = format!("{heard}{name}\n");
            until(&format!("{name} is heard"), || {
                std::fs::read_to_string(store.path("heard")).is_ok_and(|text| text == heard)
            });
            // From now on the next signals end it.
            assert_eq!(line_in(&store.path("heard-too")), "child");
        }
        std::fs::write(store.path("enough"), "").unwrap();
        let ended = run.ended();
        // The shell reports its children's ends; leasehold does not.
        assert_eq!(ended.code(), 4, "a signal that it survives changes nothing");
        assert!(!ended.err.contains("leasehold"), "{ended:?}");
    }
}

#[test]
fn a_second_term_kills_but_not_one_that_came_with_the_first() {
    for store in stores() {
        let script = "trap 'echo heard >>heard' TERM; trap 'echo heard >>winch' WINCH
            echo $$ >pid; while :; do sleep 0.02; done";
        let run = store.start(&["x", "--", "sh", "-c", script]);
        let pid = pid_in(&store.path("pid"));
        // As `timeout` does it.
        run.signal(Signal::TERM);
        run.signal(Signal::TERM);
        line_in(&store.path("heard"));
        // A signal sent after them and passed on: when it arrives, both have been handled.
        run.signal(Signal::WINCH);
        line_in(&store.path("winch"));
        assert!(lives(pid));
        // Too late to count as one with the first.
        std::thread::sleep(Duration::from_millis(200));
        run.signal(Signal::TERM);
        let ended = run.ended();
        assert_eq!(ended.code(), 137, "{ended:?}");
        assert!(ended.err.contains("told to end a second time; killing the command"), "{ended:?}");
        assert!(!lives(pid));
        assert_eq!(store.run(&["-n", "x", "true"]).code(), 0);
    }
}

#[test]
fn a_daemon_gets_the_signal_too_when_it_is_all_that_is_left() {
    for store in stores() {
        let script = "echo $$ >pid; setsid sh -c 'echo $$ >daemon; exec sleep 600' & while ! [ -s daemon ]; do sleep 0.01; done; exit 5";
        let run = store.start(&["x", "--", "sh", "-c", script]);
        let (leader, daemon) = (pid_in(&store.path("pid")), pid_in(&store.path("daemon")));
        until("the command itself has ended", || !lives(leader));
        run.signal(Signal::TERM);
        assert_eq!(run.ended().code(), 5);
        assert!(!lives(daemon));
    }
}

#[test]
fn the_command_dies_with_leasehold_and_the_lock_expires_in_time() {
    for store in stores() {
        let run = store.start(&["--ttl", "1s", "x", "--", "sh", "-c", "echo $$ >pid; exec sleep 600"]);
        let pid = pid_in(&store.path("pid"));
        run.signal(Signal::KILL);
        until("the command is dead", || !lives(pid));
        let ended = store.run(&["-w", "30", "x", "true"]);
        assert_eq!(ended.code(), 0, "{ended:?}");
    }
}

#[test]
fn if_leasehold_dies_during_the_start_the_command_never_runs() {
    let store = support::file();
    // This process is given a wrong parent.
    let stranger = std::process::id() + 1;
    let ended = support::ended(store.leasehold(&["__become", &stranger.to_string(), "touch", "ran"]));
    assert_eq!(ended.code(), 79, "{ended:?}");
    assert!(!store.path("ran").exists());
}

#[test]
fn on_file_what_outlives_a_killed_leasehold_keeps_the_lock() {
    let store = support::file();
    // The child of the command is not killed with leasehold; it keeps the lock instead.
    let script = "sh -c 'echo $$ >child; exec sleep 60' & wait";
    let mut run = store.start(&["x", "--", "sh", "-c", script]);
    let child = pid_in(&store.path("child"));
    run.signal(Signal::KILL);
    until("leasehold is dead", || run.has_ended());
    assert!(lives(child));
    store.run(&["-n", "x", "true"]).says(75, "is held");
    rustix::process::kill_process(child, Signal::KILL).unwrap();
    assert_eq!(store.run(&["-w", "30", "x", "true"]).code(), 0);
}

#[test]
fn killing_the_process_group_kills_leasehold_and_the_command() {
    let store = support::file();
    let run = store.start(&["x", "--", "sh", "-c", "echo $$ >pid; exec sleep 600"]);
    let pid = pid_in(&store.path("pid"));
    assert_eq!(getpgid(Some(pid)).unwrap(), getpgid(Some(run.pid())).unwrap());
}

#[test]
fn stopped_for_less_than_the_ttl_it_continues_undisturbed() {
    for store in stores() {
        let run = store.start(&["--ttl", "20s", "x", "--", "sh", "-c", LISTENER]);
        pid_in(&store.path("pid"));
        run.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(store.run(&["-n", "x", "true"]).code(), 75);
        run.signal(Signal::CONT);
        std::fs::write(store.path("enough"), "").unwrap();
        assert_eq!(run.ended().code(), 4);
    }
}

#[test]
fn stopped_past_the_ttl_the_command_is_killed_on_continue() {
    each(&support::ttl_stores(), |store| {
        let run = store.start(&[
            "--ttl",
            "3s",
            "x",
            "--",
            "sh",
            "-c",
            "trap '' TERM; echo $$ >pid; while :; do sleep 0.02; done",
        ]);
        let pid = pid_in(&store.path("pid"));
        run.signal(Signal::STOP);
        // Another client has the lock, with a higher fence: what the lock protects can tell them apart.
        assert_eq!(store.run(&["-w", "30", "x", "true"]).code(), 0);
        assert!(lives(pid));
        let start = Instant::now();
        run.signal(Signal::CONT);
        let ended = run.ended();
        assert_eq!(ended.code(), 79, "{ended:?}");
        assert!(
            ended.err.contains("killing the command") && !ended.err.contains("asked to end"),
            "{ended:?}"
        );
        assert!(!lives(pid) && start.elapsed() < AT_ONCE);
    });
}

#[test]
fn a_command_that_is_stopped_can_still_be_ended() {
    for store in stores() {
        let run: Running = store.start(&["x", "--", "sh", "-c", "echo $$ >pid; kill -STOP $$; sleep 600"]);
        pid_in(&store.path("pid"));
        run.signal(Signal::TERM);
        assert_eq!(run.ended().code(), 143);
    }
}
