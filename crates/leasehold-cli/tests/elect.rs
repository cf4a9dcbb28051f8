//! `leasehold elect NAME -- COMMAND`: one command runs at a time, on the leader, term after term.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::{
    Running, Store, appears, each, ended, every_store, line_in, lives, pid_in, stores, ttl_stores, until,
};

/// Writes its term, the process that leads and the time, every few milliseconds that it lives.
const BEATS: &str = "while :; do echo $LEASEHOLD_TERM $PPID $(date +%s%N) >>beats; sleep 0.02; done";

/// Starts `leasehold elect …` in the background.
fn elect(store: &Store, args: &[&str]) -> Running {
    Running::start(store.leasehold(&[&["elect"], args].concat()))
}

/// What the leaders of each term have written, in the order of the terms: the leader, and the first and last time.
fn terms(store: &Store) -> Vec<(u64, Pid, u128, u128)> {
    let text = std::fs::read_to_string(store.path("beats")).unwrap_or_default();
    let mut terms: BTreeMap<u64, (u32, u128, u128)> = BTreeMap::new();
    // The last line may be half written.
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [term, leader, at] = words[..] else { panic!("{line:?}") };
        let (term, leader, at) = (term.parse().unwrap(), leader.parse().unwrap(), at.parse().unwrap());
        let seen = terms.entry(term).or_insert((leader, at, at));
        assert_eq!(seen.0, leader, "two processes lead in term {term}");
        (seen.1, seen.2) = (seen.1.min(at), seen.2.max(at));
    }
    terms.into_iter().map(|(term, (leader, first, last))| (term, support::pid(leader), first, last)).collect()
}

/// Waits until this many terms were led; returns the leader of the last one.
#[track_caller]
fn leader_of(store: &Store, count: usize) -> Pid {
    until(&format!("term {count} is led on {}", store.url), || terms(store).len() >= count);
    terms(store)[count - 1].1
}

/// Whether the lock of this name is free now.
fn is_free(store: &Store, name: &str) -> bool {
    store.run(&["-n", name, "true"]).code() == 0
}

#[test]
fn of_three_candidates_one_runs_its_command_at_a_time() {
    let all = every_store();
    each(&all, |store| {
        let start = || elect(store, &["--ttl", "3s", "x", "--", "sh", "-c", BEATS]);
        let mut candidates: Vec<Running> = (0..3).map(|_| start()).collect();
        for round in 1..=4 {
            let leader = leader_of(store, round);
            let which = candidates.iter().position(|candidate| candidate.pid() == leader).unwrap();
            // Killed, it says nothing; asked to end, it resigns.
            let by = if round % 2 == 1 { Signal::KILL } else { Signal::TERM };
            candidates.remove(which).signal(by);
            candidates.push(start());
        }
        leader_of(store, 5);
        drop(candidates);
        let terms = terms(store);
        for pair in terms.windows(2) {
            let ((before, _, _, last), (after, _, first, _)) = (pair[0], pair[1]);
            assert!(last < first, "{}: term {before} until {last}, {after} from {first}", store.url);
        }
    });
}

#[test]
fn a_term_that_is_resigned_lets_the_next_lead_at_once() {
    let all = stores();
    each(&all, |store| {
        // No test waits for such a ttl to pass.
        let start = || elect(store, &["--ttl", "10m", "x", "--", "sh", "-c", BEATS]);
        let first = start();
        assert_eq!(leader_of(store, 1), first.pid());
        let second = start();
        store.until_waited_for("x", &second);
        first.signal(Signal::TERM);
        assert_eq!(leader_of(store, 2), second.pid());
        assert_eq!(first.ended().code(), 128 + 15);
        second.signal(Signal::INT);
        assert_eq!(second.ended().code(), 128 + 2);
        assert!(is_free(store, "x"), "{}", store.url);
    });
}

#[test]
fn a_stopped_leader_is_dead_as_soon_as_it_goes_on() {
    let all = ttl_stores();
    each(&all, |store| {
        let start = || elect(store, &["--ttl", "2s", "x", "--", "sh", "-c", BEATS]);
        let (first, second) = (start(), start());
        let (stopped, other) =
            if leader_of(store, 1) == first.pid() { (first, second) } else { (second, first) };
        let command = command_of(stopped.pid());
        // As when its machine is suspended: all that it runs stands still.
        stopped.signal(Signal::STOP);
        kill_process(command, Signal::STOP).unwrap();
        assert_eq!(leader_of(store, 2), other.pid());
        assert!(lives(command) && !stopped.said().contains("lost"));
        stopped.signal(Signal::CONT);
        until("the command is dead", || !lives(command));
        until("it says so", || stopped.said().contains("the lock was lost"));
        // It is a candidate again.
        other.signal(Signal::TERM);
        assert_eq!(leader_of(store, 3), stopped.pid());
        let terms = terms(store);
        assert!(terms[0].3 < terms[1].2, "it wrote after another led: {terms:?}");
    });
}

/// The command of a leader: its only child.
fn command_of(leader: Pid) -> Pid {
    let path = format!("/proc/{0}/task/{0}/children", leader.as_raw_nonzero());
    let children = std::fs::read_to_string(path).unwrap();
    support::pid(children.trim().parse().unwrap())
}

#[test]
fn with_once_the_exit_code_is_that_of_run() {
    for store in stores() {
        for (script, code) in [("exit 3", 3), ("exit 0", 0), ("kill -9 $$", 137)] {
            let once = ended(store.leasehold(&["elect", "--once", "x", "-c", script]));
            assert_eq!(once.code(), code, "{} {once:?}", store.url);
            assert!(once.err.starts_with("leasehold: leading: term "), "{once:?}");
            assert_eq!(once.err.lines().count(), 1, "{once:?}");
        }
        assert!(is_free(&store, "x"), "{}", store.url);
    }
}

#[test]
fn a_lost_term_ends_its_command_and_the_next_is_led() {
    for store in ttl_stores() {
        for once in [false, true] {
            let _ = std::fs::remove_file(store.path("beats"));
            let args = ["--ttl", "3s", "x", "--", "sh", "-c", BEATS];
            let options: &[&str] = if once { &["--once"] } else { &[] };
            let candidate = elect(&store, &[options, &args].concat());
            leader_of(&store, 1);
            let command = command_of(candidate.pid());
            let revoke = ended(store.leasehold(&["revoke", "--now", "--yes", "x"]));
            assert_eq!(revoke.code(), 0, "{revoke:?}");
            until("the command is dead", || !lives(command));
            if once {
                let ended = candidate.ended();
                assert_eq!(ended.code(), 79, "{ended:?}");
                assert!(ended.err.contains("it was revoked; the command is dead"), "{ended:?}");
            } else {
                leader_of(&store, 2);
                assert!(terms(&store)[0].3 < terms(&store)[1].2);
            }
        }
    }
}

#[test]
fn a_command_that_ends_is_started_again_after_a_pause() {
    for store in stores() {
        let crashing = elect(&store, &["x", "-c", "date +%s%N >>runs; exit 3"]);
        let runs = || std::fs::read_to_string(store.path("runs")).unwrap_or_default();
        until("it runs three times", || runs().lines().count() >= 3);
        let at: Vec<u64> = runs().lines().map(|line| line.parse().unwrap()).collect();
        let pauses = [Duration::from_nanos(at[1] - at[0]), Duration::from_nanos(at[2] - at[1])];
        assert!(pauses[0] >= Duration::from_secs(1) && pauses[1] >= Duration::from_secs(2), "{pauses:?}");
        for pause in ["1.0 s", "2.0 s"] {
            let says =
                format!("the command ended with exit code 3; standing for election again in {pause}\n");
            assert!(crashing.said().contains(&says), "{}", crashing.said());
        }
        // Meanwhile others can lead, and then it waits.
        let other = elect(&store, &["x", "--", "sh", "-c", "echo $$ >other; exec sleep 600"]);
        pid_in(&store.path("other"));
        until("it waits", || crashing.said().contains("waiting for \"x\""));
        let count = runs().lines().count();
        other.signal(Signal::TERM);
        assert_eq!(other.ended().code(), 143);
        until("it leads again", || runs().lines().count() > count);
        crashing.signal(Signal::TERM);
        let ended = crashing.ended();
        assert!([3, 143].contains(&ended.code()), "{ended:?}");
    }
}

#[test]
fn the_command_sees_its_term() {
    for store in stores() {
        let script = "for v in NAME TERM FENCE LEASE_ID URL; do eval echo \\$LEASEHOLD_$v; done; exit 0";
        let ended = ended(store.leasehold(&["elect", "--once", "--owner", "me", "x", "-c", script]));
        assert_eq!(ended.code(), 0, "{ended:?}");
        let lines: Vec<&str> = ended.out.lines().collect();
        assert_eq!((lines[0], lines[1]), ("x", lines[2]), "{lines:?}");
        assert!(lines[1].parse::<u64>().unwrap() > 0 && lines[3].len() == 22, "{lines:?}");
        assert_eq!(lines[4], store.url);
        let says = format!("leasehold: leading: term {} of \"x\" on {}\n", lines[1], store.shown());
        assert_eq!(ended.err, says);
    }
}

#[test]
fn events_of_a_term_are_printed_as_json() {
    let store = support::sqlite();
    let events = |text: &str| -> Vec<serde_json::Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let names = |events: &[serde_json::Value]| -> Vec<String> {
        events.iter().map(|event| event["event"].as_str().unwrap().to_owned()).collect()
    };
    let ended = ended(store.leasehold(&["elect", "--once", "--json", "--no-warnings", "x", "true"]));
    let once = events(&ended.err);
    assert_eq!(names(&once), ["leading", "started", "exited", "released"], "{ended:?}");
    assert!(once[0]["term"].as_u64().unwrap() > 0);
    let candidate = elect(&store, &["--json", "--no-warnings", "x", "-c", "exit 3"]);
    until("it leads again", || candidate.said().matches("\"leading\"").count() >= 2);
    let said = events(&candidate.said());
    // While it pauses, others can lead.
    assert_eq!(names(&said[..6]), ["leading", "started", "exited", "released", "pausing", "leading"]);
    let pausing = serde_json::json!({
        "event": "pausing", "why": "the command ended with exit code 3", "pause_ms": 1000
    });
    assert_eq!(said[4], pausing);
}

#[test]
fn a_leader_can_publish_text_and_run_can_too() {
    for store in stores().into_iter().filter(|store| store.shows_names) {
        let args = ["--owner", "me", "--metadata", "10.0.0.7:9000"];
        for verb in ["elect", "run"] {
            let _ = std::fs::remove_file(store.path("held"));
            let script = ["x", "--", "sh", "-c", "touch held; exec sleep 600"];
            let running = Running::start(store.leasehold(&[&[verb], &args[..], &script].concat()));
            appears(&store.path("held"));
            let info = store.inspect("x");
            assert_eq!(info.holders[0].metadata.as_deref(), Some("10.0.0.7:9000"), "{verb} {}", store.url);
            running.signal(Signal::TERM);
            assert_eq!(running.ended().code(), 143);
        }
    }
}

#[test]
fn a_hangup_that_the_command_handles_ends_no_term() {
    let store = support::sqlite();
    let script = "trap 'echo again >again' HUP; echo $$ >>pids; while ! [ -e enough ]; do sleep 0.02; done";
    let candidate = elect(&store, &["x", "--", "sh", "-c", script]);
    let command = pid_in(&store.path("pids"));
    candidate.signal(Signal::HUP);
    assert_eq!(line_in(&store.path("again")), "again");
    let told = candidate.said();
    assert!(
        lives(command) && told.lines().filter(|line| line.starts_with("leasehold:")).count() == 1,
        "{told}"
    );
    // Nor does it end the election when the command ends later.
    std::fs::write(store.path("enough"), "").unwrap();
    until("it stands again", || candidate.said().contains("standing for election again"));
    std::fs::remove_file(store.path("enough")).unwrap();
    until("it leads again", || std::fs::read_to_string(store.path("pids")).unwrap().lines().count() >= 2);
    candidate.signal(Signal::QUIT);
    assert_eq!(candidate.ended().code(), 128 + 3);
    // One that it does not handle ends both.
    let candidate = elect(&store, &["x", "--", "sh", "-c", "echo $$ >again; exec sleep 600"]);
    until("it runs", || line_in(&store.path("again")) != "again");
    candidate.signal(Signal::HUP);
    assert_eq!(candidate.ended().code(), 128 + 1);
}

#[test]
fn a_candidate_that_waits_or_pauses_ends_at_once() {
    for store in stores() {
        let _holder = store.hold("x", &[]);
        let waiter = elect(&store, &["x", "--", "true"]);
        store.until_waited_for("x", &waiter);
        waiter.signal(Signal::TERM);
        assert_eq!(waiter.ended().code(), 143);
        if store.shows_waiters {
            assert_eq!(store.inspect("x").queue_length, 0);
        }
        let pausing = elect(&store, &["y", "--", "true"]);
        until("it pauses", || pausing.said().contains("standing for election again"));
        pausing.signal(Signal::INT);
        assert_eq!(pausing.ended().code(), 130);
    }
}

#[test]
fn a_store_that_is_away_is_tried_again() {
    let all = [support::sqlite(), support::redis(), support::server()];
    each(&all, |store| {
        let away = store.away();
        let candidate = elect(store, &["--ttl", "3s", "x", "--", "sh", "-c", BEATS]);
        until("it says so", || candidate.said().contains("; trying again\n"));
        assert!(terms(store).is_empty());
        drop(away);
        assert_eq!(leader_of(store, 1), candidate.pid());
        // The same while it leads: the command is dead before the lease ends, and then it stands again.
        let command = command_of(candidate.pid());
        let away = store.away();
        until("the command is dead", || !lives(command));
        until("it says so", || candidate.said().contains("the lock was lost"));
        until("it says that it tries", || candidate.said().matches("; trying again\n").count() >= 2);
        drop(away);
        leader_of(store, 2);
        assert!(terms(store)[0].3 < terms(store)[1].2);
        candidate.signal(Signal::TERM);
        assert_eq!(candidate.ended().code(), 143, "{}", store.url);
    });
}

#[test]
fn what_cannot_work_ends_it_at_once() {
    let store = support::sqlite();
    std::fs::write(store.path("plain"), "").unwrap();
    let run = |args: &[&str]| ended(store.leasehold(&[&["elect"], args].concat()));
    run(&["x"]).says(64, "neither a command to run nor an address");
    run(&["x", "--", "./is-not-there"]).says(127, "cannot run ./is-not-there: there is no such file");
    run(&["x", "--", "is-not-there"]).says(127, "cannot run is-not-there: there is no such file");
    run(&["x", "--", "./plain"]).says(126, "cannot run ./plain");
    run(&["--http", "nonsense", "x", "true"]).says(64, "`--http` takes an address and a port");
    run(&["--http", "127.0.0.1", "x"]).says(64, "`--http` takes an address and a port");
    // Nothing has been opened yet.
    assert!(!store.path("locks.db").exists());
    run(&["--url", "nosuch:x", "x", "true"]).says(64, "nosuch");
    run(&["--url", "memory:", "x", "true"]).says(64, "private to one process");
    run(&["--ttl", "0", "x", "true"]).says(64, "ttl");
    run(&["--kill-after", "20s", "x", "true"]).says(64, "--kill-after must be at most a third of the ttl");
    run(&["--metadata", &"x".repeat(5000), "x", "true"]).says(64, "metadata has 5000 bytes");
    run(&["", "true"]).says(64, "name");
    let permits = store.start(&["--limit", "2", "gpu", "--", "sh", "-c", "touch held; exec sleep 600"]);
    appears(&store.path("held"));
    run(&["gpu", "true"]).says(64, "in use as a semaphore");
    drop(permits);
}

#[test]
fn a_missing_permission_ends_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let tokens: PathBuf = dir.path().join("tokens");
    let path = tokens.to_str().unwrap();
    let created = ended(support::leasehold(&["token", "create", "--tokens", path, "--allow", "read"]));
    assert_eq!(created.code(), 0, "{created:?}");
    let token = created.out.trim();
    let served = support::Served::start(dir.path(), &["--tokens", path]);
    let elect = |token: Option<&str>| {
        let mut command: Command = support::leasehold(&["elect", "x", "true"]);
        command.env("LEASEHOLD_URL", &served.url).env("LEASEHOLD_NO_WARNINGS", "true");
        if let Some(token) = token {
            command.env("LEASEHOLD_TOKEN", token);
        }
        ended(command)
    };
    for ended in [elect(None), elect(Some(token))] {
        assert_eq!(ended.code(), 77, "{ended:?}");
        assert!(!ended.err.contains("trying again"), "{ended:?}");
    }
}
