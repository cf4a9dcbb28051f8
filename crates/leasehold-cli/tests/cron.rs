//! `leasehold cron EXPR NAME -- COMMAND`: each tick runs on one of the nodes that have started it.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde_json::Value;
use support::{Running, Store, appears, each, ended, lives, pid_in, ttl_stores, until};

/// Writes its tick and its `leasehold`, in one line.
const RAN: &str = "echo $LEASEHOLD_TICK_MS $PPID >>ran";

/// Starts `leasehold cron …` in the background.
fn cron(store: &Store, args: &[&str]) -> Running {
    Running::start(store.leasehold(&[&["cron"], args].concat()))
}

/// How often each tick has run, and on which nodes.
fn ran(store: &Store) -> BTreeMap<u64, Vec<u32>> {
    let mut ran: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for line in std::fs::read_to_string(store.path("ran")).unwrap_or_default().lines() {
        let (tick, node) = line.split_once(' ').unwrap();
        ran.entry(tick.parse().unwrap()).or_default().push(node.parse().unwrap());
    }
    ran
}

/// What `--status` says, as JSON.
fn status(store: &Store, name: &str) -> Value {
    let status = ended(store.leasehold(&["cron", "--status", name, "--output", "json"]));
    assert_eq!(status.code(), 0, "{status:?}");
    serde_json::from_str(&status.out).unwrap()
}

#[test]
fn of_three_nodes_one_runs_each_tick() {
    let all = ttl_stores();
    each(&all, |store| {
        let start = || cron(store, &["--ttl", "5s", "@every 500ms", "x", "-c", RAN]);
        let mut nodes: Vec<Running> = (0..3).map(|_| start()).collect();
        until("ten ticks have run", || ran(store).len() >= 10);
        // The node that ran last is killed; the others go on.
        let last = *ran(store).values().next_back().unwrap().last().unwrap();
        let which = nodes.iter().position(|node| node.pid() == support::pid(last)).unwrap();
        nodes.remove(which).signal(Signal::KILL);
        let count = ran(store).len();
        until("five more ticks have run", || ran(store).len() >= count + 5);
        for node in nodes {
            node.signal(Signal::TERM);
            assert!([0, 143].contains(&node.ended().code()));
        }
        let ran = ran(store);
        assert!(ran.values().all(|nodes| nodes.len() == 1), "{}: {ran:?}", store.url);
        assert!(ran.keys().all(|tick| tick.is_multiple_of(500)), "{ran:?}");
    });
}

#[test]
fn a_killed_nodes_tick_runs_again_only_at_least_once() {
    let all = [support::sqlite(), support::server()];
    each(&all, |store| {
        for policy in ["at-most-once", "at-least-once"] {
            let script = format!("{RAN}; echo $$ >>pids; [ -e quick ] || exec sleep 600");
            let args = ["--ttl", "4s", "--policy", policy, "@every 1s", policy, "-c", &script];
            for file in ["ran", "pids", "quick"] {
                let _ = std::fs::remove_file(store.path(file));
            }
            let first = cron(store, &args);
            let command = pid_in(&store.path("pids"));
            std::fs::write(store.path("quick"), "").unwrap();
            let second = cron(store, &args);
            first.signal(Signal::KILL);
            until("the command dies with its leasehold", || !lives(command));
            until("the other node runs ticks", || ran(store).len() >= 3);
            second.signal(Signal::TERM);
            second.ended();
            let counts: Vec<usize> = ran(store).values().map(Vec::len).collect();
            let expected = if policy == "at-least-once" { 2 } else { 1 };
            assert_eq!((counts[0], counts[1]), (expected, 1), "{policy} {}: {counts:?}", store.url);
        }
    });
}

#[test]
fn a_stopped_node_leaves_its_tick_to_another_at_once() {
    let store = support::sqlite();
    let script = format!("{RAN}; [ -e quick ] || {{ echo $$ >pids; exec sleep 600; }}");
    // No test waits for such a ttl to pass.
    let args = ["--ttl", "10m", "--policy", "at-least-once", "@every 1s", "x", "-c", &script];
    let first = cron(&store, &args);
    pid_in(&store.path("pids"));
    let running = status(&store, "x");
    assert_eq!(running["runs"][0]["state"], "running", "{running}");
    std::fs::write(store.path("quick"), "").unwrap();
    first.signal(Signal::TERM);
    assert_eq!(first.ended().code(), 143);
    let open = status(&store, "x");
    assert_eq!(open["runs"][0]["state"], "unfinished", "{open}");
    let second = cron(&store, &args);
    until("the tick runs again", || ran(&store).values().next().unwrap().len() == 2);
    until("it is recorded", || status(&store, "x")["runs"][0]["state"] == "done");
    drop(second);
}

#[test]
fn a_command_that_overruns_does_not_overlap_itself() {
    let store = support::sqlite();
    let script = "mkdir here || echo overlap >>ran; echo $LEASEHOLD_TICK_MS >>began; sleep 1.2; rmdir here";
    let nodes = [(); 2].map(|()| cron(&store, &["@every 500ms", "x", "-c", script]));
    let began = || std::fs::read_to_string(store.path("began")).unwrap_or_default();
    until("it runs four times", || began().lines().count() >= 4);
    drop(nodes);
    assert!(!store.path("ran").exists(), "it has overlapped itself");
    let ticks: Vec<u64> = began().lines().map(|tick| tick.parse().unwrap()).collect();
    assert!(ticks.windows(2).all(|pair| pair[1] >= pair[0] + 1000), "{ticks:?}");
}

#[test]
fn status_shows_the_last_runs_and_the_next() {
    let all = [support::sqlite(), support::server()];
    each(&all, |store| {
        let none = ended(store.leasehold(&["cron", "--status", "x"]));
        assert_eq!((none.code(), none.out), (0, format!("x on {}: no tick has run\n", store.shown())));
        let script = "[ -e ok ] && exit 0; touch ok; exit 3";
        let options = ["--owner", "node-a", "--time-zone", "Europe/Berlin"];
        let node = cron(store, &[&options[..], &["* * * * * *", "x", "-c", script]].concat());
        until("two ticks have run", || status(store, "x")["runs"][1]["state"] == "failed");
        until("the second has ended", || status(store, "x")["runs"][0]["state"] == "done");
        node.signal(Signal::TERM);
        node.ended();
        let status = status(store, "x");
        assert_eq!(
            (&status["schedule"], &status["time_zone"]),
            (&"* * * * * *".into(), &"Europe/Berlin".into())
        );
        let runs = status["runs"].as_array().unwrap();
        let first = runs.last().unwrap();
        assert_eq!((&first["why"], &first["owner"]), (&"exit 3".into(), &"node-a".into()), "{status}");
        assert!(first["tick"].as_str().unwrap().contains("+0"), "Berlin is ahead of UTC: {status}");
        assert!(status["next_ms"].as_u64() > runs[0]["tick_ms"].as_u64(), "{status}");
        let table = ended(store.leasehold(&["cron", "--status", "x"])).out;
        let lines: Vec<&str> = table.lines().collect();
        assert!(
            lines[0].starts_with(&format!("x on {}: * * * * * * (Europe/Berlin), next at 20", store.shown())),
            "{table}"
        );
        assert!(lines[1].starts_with("TICK"), "{table}");
        assert!(lines.last().unwrap().contains("exit 3") && lines[2].contains("done"), "{table}");
    });
}

#[test]
fn the_command_sees_its_tick_and_events_are_json() {
    let store = support::sqlite();
    let script = "for v in NAME TICK TICK_MS FENCE LEASE_ID URL; do eval echo \\$LEASEHOLD_$v; done >seen; \
                  mv seen all; exit 3";
    let node = cron(&store, &["--json", "--no-warnings", "@every 1s", "x", "-c", script]);
    appears(&store.path("all"));
    until("it says how the tick ended", || node.said().contains("tick_failed"));
    node.signal(Signal::TERM);
    assert!([3, 143].contains(&node.ended().code()));
    let seen = std::fs::read_to_string(store.path("all")).unwrap();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!((lines[0], lines[5]), ("x", &*store.url));
    assert!(lines[1].ends_with("+00:00") && lines[2].ends_with("000") && lines[4].len() == 22, "{seen}");

    let node = cron(&store, &["--json", "--no-warnings", "@every 1s", "y", "-c", "exit 3"]);
    until("two ticks have run", || node.said().matches("tick_failed").count() >= 2);
    let said: Vec<Value> = node.said().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = said.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names[..6], ["scheduled", "tick", "started", "exited", "released", "tick_failed"], "{said:?}");
    assert_eq!(said[5]["why"], "the command ended with exit code 3");
    assert!(said[1]["fence"].as_u64().unwrap() > 0);
}

#[test]
fn a_node_that_waits_ends_at_once() {
    for store in [support::sqlite(), support::server()] {
        let node = cron(&store, &["0 0 1 1 *", "x", "--", "true"]);
        until("it says when it is due", || node.said().contains("is due next at 20"));
        node.signal(Signal::TERM);
        assert_eq!(node.ended().code(), 143, "{}", store.url);
    }
}

#[test]
fn a_store_that_is_away_is_tried_again() {
    let all = [support::sqlite(), support::redis(), support::server()];
    each(&all, |store| {
        let mut command = store.leasehold(&["cron", "--ttl", "5s", "@every 1s", "x", "-c", RAN]);
        command.env_remove("LEASEHOLD_NO_WARNINGS");
        let node = Running::start(command);
        until("it runs", || !ran(store).is_empty());
        let away = store.away();
        until("it says so", || node.said().contains("a scheduled job is not run for now"));
        let before = ran(store).len();
        drop(away);
        until("it runs again", || ran(store).len() > before + 1);
        assert!(ran(store).values().all(|nodes| nodes.len() == 1));
    });
}

#[test]
fn what_cannot_work_ends_it_at_once() {
    let store = support::sqlite();
    let run = |args: &[&str]| ended(store.leasehold(&[&["cron"], args].concat()));
    run(&["* * * * *", "x"]).says(64, "there is no command to run");
    run(&["* * * *", "x", "--", "true"]).says(64, "is not a cron expression such as `0 2 * * *`");
    run(&["0 0 30 2 *", "x", "--", "true"]).says(64, "is never due");
    run(&["--time-zone", "Mars/Base", "* * * * *", "x", "--", "true"]).says(64, "no such time zone");
    run(&["* * * * *", "x", "--", "./is-not-there"]).says(127, "there is no such file");
    assert_eq!(run(&["* * * * *"]).code(), 64);
    assert_eq!(run(&["--status", "x", "* * * * *", "y", "true"]).code(), 64);
    // A store without notes is refused, and says which ones work.
    let without = |args: &[&str]| {
        let mut command = store.leasehold(&[&["cron"], args].concat());
        command.env("LEASEHOLD_URL", format!("file:{}", store.path("locks").display()));
        ended(command)
    };
    without(&["* * * * *", "x", "--", "true"]).says(64, "use sqlite:, redis:, postgres:");
    without(&["--status", "x"]).says(64, "use sqlite:, redis:, postgres:");
    // Nor does it replace a note of another kind.
    let guard = leasehold::blocking::Locks::connect(&store.url).unwrap().mutex("x").lock().unwrap();
    guard.release_with_note("of another kind").unwrap();
    let refused = run(&["--no-warnings", "@every 1s", "x", "-c", RAN]);
    assert_eq!(refused.code(), 64, "{refused:?}");
    assert!(refused.err.contains("give the schedule a name of its own"), "{refused:?}");
    assert!(ran(&store).is_empty());
}
