//! Twenty `leasehold run` of one name: never two at a time, whatever happens to them.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::{PATIENCE, Running, each, stores, until, until_within};

/// Logs its start and its end, in one write each; the fence tells the runs apart. Checks whether the previous command,
/// which may have been killed, is still alive. A zombie counts as dead, and so does a process on its way out of the
/// kernel (`PF_EXITING`), which closes the file of a lock before it becomes a zombie.
const BEGIN: &str = "echo begin $LEASEHOLD_FENCE >>log
    if read last 2>/dev/null <who && read stat 2>/dev/null </proc/$last/stat; then
        set -- ${stat##*) }
        [ $1 = Z ] || [ $(($7 & 4)) != 0 ] || [ -n \"$LATE\" ] || echo overlap with $stat >>log
    fi
    echo $$ >who";

/// In between it checks that it is alone, with a directory that only one process can make.
const WORK: &str = "mkdir inside || echo overlap $LEASEHOLD_FENCE >>log
    sleep 0.05
    rmdir inside; rm who; echo end $LEASEHOLD_FENCE >>log";

#[test]
fn twenty_runs_never_overlap_while_some_are_killed_or_stopped() {
    let starting = Mutex::new(());
    each(&stores(), |store| {
        // One store after the other: a hundred programs that start at once would all be slow.
        let turn = starting.lock();
        let mut runs: Vec<_> = (0..20)
            .map(|number| {
                // Every fifth is killed. It works without the directory, so that it leaves none behind; the next one
                // waits for the end of its lease.
                let (work, ttl) = if is_killed(number) {
                    (format!("echo >asleep-{number}; exec sleep 600"), "3s")
                } else {
                    (WORK.to_owned(), "30s")
                };
                let script = format!("{BEGIN}\n{work}");
                let mut run =
                    store.leasehold(&["run", "--json", "--ttl", ttl, "x", "--", "sh", "-c", &script]);
                if !store.ttl && !store.url.starts_with("file:") {
                    // A server frees the lock of a killed process when its connection closes, a moment before the
                    // system kills the command.
                    run.env("LATE", "yes");
                }
                Running::start(run)
            })
            .collect();
        until("all wait or have the lock", || runs.iter().all(|run| !run.said().is_empty()));
        drop(turn);
        let log = || std::fs::read_to_string(store.path("log")).unwrap_or_default();
        // A run that sleeps for ever is killed when its turn has come; every third is stopped for a while.
        let (mut killed, mut stops, mut round) = (BTreeSet::new(), 0, 0);
        let mut stopped: BTreeMap<usize, Instant> = BTreeMap::new();
        let mut last_stop = Instant::now();
        // Twenty turns, and a ttl for each killed run, on all stores at once.
        until_within(4 * PATIENCE, "all have ended", || {
            if last_stop.elapsed() > Duration::from_millis(100) {
                last_stop = Instant::now();
                let number = 1 + 3 * (round % 7);
                round += 1;
                if !runs[number].has_ended() && !stopped.contains_key(&number) {
                    runs[number].signal(Signal::STOP);
                    stopped.insert(number, Instant::now());
                    stops += 1;
                }
            }
            // For much less than the ttl, however slow the machine is.
            stopped.retain(|&number, since| {
                let over = since.elapsed() >= Duration::from_millis(300);
                if over && !runs[number].has_ended() {
                    runs[number].signal(Signal::CONT);
                }
                !over
            });
            for number in (0..runs.len()).filter(|number| is_killed(*number)) {
                if store.path(&format!("asleep-{number}")).exists() && killed.insert(number) {
                    runs[number].signal(Signal::KILL);
                }
            }
            let text = log();
            assert!(!text.contains("overlap"), "{text}");
            runs.iter_mut().all(|run| run.has_ended())
        });
        assert!(killed.len() == 4 && stops > 0, "{killed:?} killed, {stops} stops");
        for (number, run) in runs.into_iter().enumerate().filter(|(number, _)| !is_killed(*number)) {
            let ended = run.ended();
            assert_eq!(ended.status.code(), Some(0), "{}: {number} says {}", store.url, ended.err);
        }
        let text = log();
        assert!(!text.contains("overlap"), "{text}");
        let begins: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("begin ")).collect();
        assert_eq!(begins.len(), 20, "{text}");
        assert!(begins.is_sorted() && begins.windows(2).all(|pair| pair[0] < pair[1]), "fences rise: {text}");
        // Each end comes right after its own begin.
        let mut last = "";
        for line in text.lines() {
            if let Some(fence) = line.strip_prefix("end ") {
                assert_eq!(last, format!("begin {fence}"), "{text}");
            }
            last = line;
        }
        assert_eq!(text.lines().filter(|line| line.starts_with("end")).count(), 16, "{text}");
    });
}

fn is_killed(number: usize) -> bool {
    number.is_multiple_of(5)
}
