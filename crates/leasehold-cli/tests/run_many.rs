//! Twenty `leasehold run` of one name: never two at a time, whatever happens to them.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::{PATIENCE, Running, each, stores, until, until_within};

/// Each says when it begins and when it ends, in one write each; the fence tells them apart. It looks whether the one
/// before it, which may have been killed, is still alive.
const BEGIN: &str = "echo begin $LEASEHOLD_FENCE >>log
    if read last 2>/dev/null <who && read stat 2>/dev/null </proc/$last/stat; then
        case $stat in *') Z '*) ;; *) [ -n \"$LATE\" ] || echo overlap with $last >>log ;; esac
    fi
    echo $$ >who";

/// In between it looks whether somebody else is there, by a directory that only one can make.
const WORK: &str = "mkdir inside || echo overlap $LEASEHOLD_FENCE >>log
    sleep 0.05
    rmdir inside; rm who; echo end $LEASEHOLD_FENCE >>log";

#[test]
fn twenty_at_once_never_overlap_while_some_are_killed_and_some_are_stopped() {
    let starting = Mutex::new(());
    each(&stores(), |store| {
        let told = |number| store.path(&format!("told-{number}"));
        // Those of one store after those of another: a hundred programs that start at once would be too slow for each.
        let turn = starting.lock();
        let mut runs: Vec<_> = (0..20)
            .map(|number| {
                // Those that are killed must not leave the directory behind: they work without it.
                let work = if number % 5 == 0 { "exec sleep 600" } else { WORK };
                let script = format!("{BEGIN}\n{work}");
                let mut run =
                    store.leasehold(&["run", "--json", "--ttl", "4s", "x", "--", "sh", "-c", &script]);
                if !store.ttl && !store.url.starts_with("file:") {
                    // A server frees the lock of a killed process when its connection ends, and that is a moment
                    // before the system kills the command.
                    run.env("LATE", "yes");
                }
                Running::telling(run, &told(number))
            })
            .collect();
        until("all wait or have the lock", || {
            (0..20).all(|number| std::fs::metadata(told(number)).is_ok_and(|file| file.len() > 0))
        });
        drop(turn);
        let log = || std::fs::read_to_string(store.path("log")).unwrap_or_default();
        // Whoever sleeps for ever is killed when its turn has come; every third is stopped for a while.
        let mut stopped: Vec<(usize, Instant)> = Vec::new();
        let mut round = 0;
        // Twenty turns, and of those who are killed a ttl each, on all stores at once.
        until_within(4 * PATIENCE, "all have ended", || {
            round += 1;
            for (number, run) in runs.iter_mut().enumerate() {
                if run.has_ended() {
                    continue;
                }
                if number % 3 == 1 && round % 40 == number % 40 {
                    run.signal(Signal::STOP);
                    stopped.push((number, Instant::now()));
                }
            }
            // For much less than the ttl, however slow the machine is.
            stopped.retain(|&(number, since)| {
                let over = since.elapsed() >= Duration::from_millis(300);
                if over && !runs[number].has_ended() {
                    runs[number].signal(Signal::CONT);
                }
                !over
            });
            // The one that is inside and does not end by itself.
            let text = log();
            assert!(!text.contains("overlap"), "{text}");
            let last = text.lines().next_back().unwrap_or_default();
            if last.starts_with("begin") {
                let before = text.clone();
                std::thread::sleep(Duration::from_millis(400));
                if log() == before
                    && let Some(run) = inside(&mut runs)
                {
                    run.signal(Signal::KILL);
                }
            }
            runs.iter_mut().all(|run| run.has_ended())
        });
        for (number, run) in runs.into_iter().enumerate().filter(|(number, _)| number % 5 != 0) {
            let ended = run.ended();
            let told = std::fs::read_to_string(told(number)).unwrap();
            assert_eq!(ended.status.code(), Some(0), "{}: {number} says {told}", store.url);
        }
        let text = log();
        assert!(!text.contains("overlap"), "{text}");
        let begins: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("begin ")).collect();
        // One of those that are killed may not have come to say so.
        assert!((16..=20).contains(&begins.len()), "{text}");
        assert!(begins.is_sorted() && begins.windows(2).all(|pair| pair[0] < pair[1]), "fences rise: {text}");
        // An end comes right after its own begin.
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

/// The one that sleeps for ever and has begun: it has a child.
fn inside(runs: &mut [Running]) -> Option<&Running> {
    let mut found = None;
    for (number, run) in runs.iter_mut().enumerate() {
        if number % 5 == 0 && !run.has_ended() {
            let pid = run.pid().as_raw_nonzero();
            let children =
                std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            if !children.trim().is_empty() {
                found = Some(number);
            }
        }
    }
    found.map(|number| &runs[number])
}
