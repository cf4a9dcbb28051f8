//! `leasehold run` on stores with a ttl: the command is dead before another client can take the lock.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use support::{each, fallible_stores, line_in, lives, pid_in, sqlite, ttl_stores, until};

/// Ignores TERM and starts a daemon that does too; both write every few milliseconds that they live. The daemon also
/// ends when the test's directory is gone.
const STUBBORN: &str = "trap '' TERM
    setsid sh -c 'trap \"\" TERM; echo $$ >daemon; while [ -e daemon ]; do date +%s%N >>alive; sleep 0.02; done' &
    echo $$ >pid; while :; do date +%s%N >>alive; sleep 0.02; done";

/// Notices when the machine stands still: a thread that sleeps for milliseconds then wakes late.
struct Stalls(Arc<AtomicU64>);

impl Stalls {
    fn watch() -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let watched = Arc::downgrade(&longest);
        std::thread::spawn(move || {
            let mut last = Instant::now();
            while let Some(longest) = watched.upgrade() {
                std::thread::sleep(Duration::from_millis(5));
                let now = Instant::now();
                longest.fetch_max((now - last).as_nanos() as u64, Ordering::SeqCst);
                last = now;
            }
        });
        Stalls(longest)
    }

    fn longest(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// The last moment at which one of them lived.
fn last_sign_of_life(store: &support::Store) -> u128 {
    let text = std::fs::read_to_string(store.path("alive")).unwrap();
    text.lines().filter_map(|line| line.parse().ok()).max().unwrap()
}

#[test]
fn if_the_store_dies_the_command_is_dead_before_another_starts() {
    for store in fallible_stores() {
        let run = store.start(&["--ttl", "3s", "--kill-after", "1s", "x", "--", "sh", "-c", STUBBORN]);
        let (pid, daemon) = (pid_in(&store.path("pid")), pid_in(&store.path("daemon")));
        let waiter = store.start(&["--ttl", "30s", "x", "--", "sh", "-c", "date +%s%N >began"]);
        store.until_waited_for("x", &waiter);
        let stalls = Stalls::watch();
        let away = store.away();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
        until("the command is dead", || !lives(pid) && !lives(daemon));
        // Before the store, or a replacement for it, could pass the lock on.
        if store.ttl {
            let lived = Duration::from_nanos(last_sign_of_life(&store).saturating_sub(since) as u64);
            // While the machine stands still, so does `leasehold`; the fence protects the rest.
            let stalled = stalls.longest();
            let most = Duration::from_secs(3) + stalled;
            assert!(lived < most, "{}: longer than the ttl: {lived:?}, stalled {stalled:?}", store.url);
        }
        // No waiter can have started before this.
        assert!(!store.path("began").exists(), "{}", store.url);
        drop(away);
        let ended = run.ended();
        assert_eq!(ended.code(), 79, "{} {ended:?}", store.url);
        let told: Vec<&str> = ended.err.lines().collect();
        if store.ttl {
            let asked = "could not be renewed and is about to end; the command was asked to end, and will be killed in";
            assert!(told[0].contains(asked), "{told:?}");
        }
        assert!(ended.err.contains("killing the command"), "{told:?}");
        assert!(told.last().unwrap().contains("the lock was lost"), "{told:?}");
        let waited = waiter.ended();
        // The store may have been unavailable for longer than a waiter accepts.
        assert!([0, 69].contains(&waited.code()), "{} {waited:?}", store.url);
        if waited.code() == 69 {
            let next = store.run(&["-w", "30", "x", "--", "sh", "-c", "date +%s%N >began"]);
            assert_eq!(next.code(), 0, "{} {next:?}", store.url);
        }
        let began: u128 = line_in(&store.path("began")).parse().unwrap();
        let last = last_sign_of_life(&store);
        assert!(last < began, "{}: alive at {last}, another began at {began}", store.url);
    }
}

#[test]
fn lost_files_kill_the_command_and_hanging_files_admit_no_other() {
    let store = support::file();
    let run = store.start(&["x", "--", "sh", "-c", STUBBORN]);
    let (pid, daemon) = (pid_in(&store.path("pid")), pid_in(&store.path("daemon")));
    // Another process locks the file that every operation needs; the held lock itself does not need it.
    let locks: Vec<_> = std::fs::read_dir(store.path("locks")).unwrap().flatten().collect();
    let meta = locks.iter().find(|entry| entry.path().extension().is_some_and(|end| end == "meta")).unwrap();
    let hang = std::fs::File::open(meta.path()).unwrap();
    hang.lock().unwrap();
    store.run(&["-w", "1", "x", "--", "touch", "began"]).says(69, "did not answer");
    drop(hang);
    assert_eq!(store.run(&["-n", "x", "--", "touch", "began"]).code(), 75);
    assert!(!store.path("began").exists() && lives(pid) && lives(daemon));
    // A client that comes now finds another directory, and the lock free.
    let waiter = store.start(&["x", "--", "sh", "-c", "date +%s%N >began"]);
    store.until_waited_for("x", &waiter);
    std::fs::rename(store.path("locks"), store.path("elsewhere")).unwrap();
    let ended = run.ended();
    assert_eq!(ended.code(), 79, "{ended:?}");
    assert!(!lives(pid) && !lives(daemon));
    let waited = waiter.ended();
    assert_eq!(waited.code(), 69, "{waited:?}");
    // The second message is for a place in the queue that was lost first.
    let says = [
        "the directory of the lock files was moved or removed; connect again",
        "no longer accepts this claim's lease id",
    ];
    assert!(says.iter().any(|says| waited.err.contains(says)), "{waited:?}");
    assert_eq!(store.run(&["-n", "x", "--", "sh", "-c", "date +%s%N >began"]).code(), 0);
    let began: u128 = line_in(&store.path("began")).parse().unwrap();
    assert!(last_sign_of_life(&store) < began);
}

#[test]
fn the_command_gets_a_term_signal_before_it_is_killed() {
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
    let run = store.start(&["--ttl", "9s", "--kill-after", "1s", "x", "--", "sh", "-c", script]);
    pid_in(&store.path("pid"));
    let away = store.cut_off();
    // Longer than until the next renewal, and much shorter than until the lease ends.
    std::thread::sleep(Duration::from_millis(3500));
    drop(away);
    std::fs::write(store.path("enough"), "").unwrap();
    let ended = run.ended();
    assert_eq!((ended.code(), ended.err.as_str()), (3, ""));
}

#[test]
fn events_report_failed_renewals_and_their_recovery() {
    each(&ttl_stores(), |store| {
        let script = "echo $$ >pid; while ! [ -e enough ]; do sleep 0.02; done; exit 3";
        let run = store.start(&["--ttl", "12s", "--json", "x", "--", "sh", "-c", script]);
        pid_in(&store.path("pid"));
        let find = |text: &str, event: &str| {
            let mut events =
                text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            events.find(|told| told["event"] == event)
        };
        let away = store.away();
        until("the run reports at_risk", || find(&run.said(), "at_risk").is_some());
        drop(away);
        until("the run reports renewed", || find(&run.said(), "renewed").is_some());
        std::fs::write(store.path("enough"), "").unwrap();
        let ended = run.ended();
        assert_eq!(ended.code(), 3, "{ended:?}");
        let told = |event| find(&ended.err, event);
        let risk = told("at_risk").unwrap();
        let (expires, stopped) =
            (risk["expires_in_ms"].as_u64().unwrap(), risk["stopped_in_ms"].as_u64().unwrap());
        assert!(stopped < expires && expires <= 7200, "{risk}");
        assert!(told("stopping").is_none() && told("released").is_some());
    });
}

#[test]
fn revoking_lets_the_command_end_in_good_order() {
    each(&ttl_stores(), |store| {
        let script = "trap 'echo bye >bye; sleep 0.3; echo done >>bye; exit 0' TERM
            echo $$ >pid; while :; do sleep 0.02; done";
        let run = store.start(&["--ttl", "12s", "x", "--", "sh", "-c", script]);
        pid_in(&store.path("pid"));
        let revoked = store.leasehold(&["revoke", "x", "--yes"]).output().unwrap();
        assert!(revoked.status.success(), "{revoked:?}");
        let ended = run.ended();
        ended_by_revocation(
            &ended,
            &["the lock was revoked; the command was asked to end, and will be killed in"],
            79,
        );
        assert_eq!(std::fs::read_to_string(store.path("bye")).unwrap(), "bye\ndone\n", "{ended:?}");
        // The lock is free as soon as the command is dead, long before the lease would end.
        assert_eq!(store.run(&["-w", "4", "x", "true"]).code(), 0, "{}: {ended:?}", store.url);

        // A command that does not end when asked is dead before another client can take the lock.
        let run = store.start(&["--ttl", "12s", "--kill-after", "500ms", "x", "--", "sh", "-c", STUBBORN]);
        let daemon = pid_in(&store.path("daemon"));
        leasehold::blocking::Locks::connect(&store.url).unwrap().revoke("x", false).unwrap();
        let next = store.run(&["-w", "30", "x", "--", "sh", "-c", "date +%s%N >began"]);
        assert_eq!(next.code(), 0, "{next:?}");
        let began: u128 = line_in(&store.path("began")).parse().unwrap();
        assert!(last_sign_of_life(store) < began && !lives(daemon));
        ended_by_revocation(
            &run.ended(),
            &["asked to end, and will be killed in", "it did not end when asked"],
            79,
        );
    });
}

fn ended_by_revocation(ended: &support::Ended, told: &[&str], code: i32) {
    assert_eq!(ended.code(), code, "{ended:?}");
    for words in [told, &["the lock was lost: it was revoked; the command is dead"]].concat() {
        assert!(ended.err.contains(words), "{words}: {ended:?}");
    }
}

#[test]
fn a_revoked_lease_ends_the_command() {
    each(&ttl_stores(), |store| {
        let run = store.start(&["--ttl", "6s", "--lost-code", "42", "x", "--", "sh", "-c", STUBBORN]);
        let (pid, daemon) = (pid_in(&store.path("pid")), pid_in(&store.path("daemon")));
        leasehold::blocking::Locks::connect(&store.url).unwrap().revoke("x", true).unwrap();
        let ended = run.ended();
        assert_eq!(ended.code(), 42, "{ended:?}");
        assert!(ended.err.contains("revoked; killing the command"), "no time is left then: {ended:?}");
        assert!(!lives(pid) && !lives(daemon));
    });
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
fn a_failed_release_is_reported_and_keeps_the_exit_code() {
    let store = sqlite();
    let script = "echo $$ >pid; while ! [ -e enough ]; do sleep 0.02; done; exit 3";
    let run = store.start(&["--ttl", "60s", "x", "--", "sh", "-c", script]);
    pid_in(&store.path("pid"));
    let _away = store.cut_off();
    std::fs::write(store.path("enough"), "").unwrap();
    run.ended().says(3, "could not be released");
}
