//! Sixteen processes want one lock; some are killed while they have it, some stopped past its ttl.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold::Locks;
use rustix::process::Signal;
use testkit::notes::{Notes, history};
use testkit::postgres::Postgres;
use testkit::process::{self, Child};

use crate::support::until;

const TEST: &str = "processes::sixteen_processes_never_overlap_though_some_die_or_sleep";
const PROCESSES: usize = 16;
/// The first processes are killed now and then, the next stopped.
const KILLED: std::ops::Range<usize> = 0..3;
const STOPPED: std::ops::Range<usize> = 3..6;
const TTL: Duration = Duration::from_secs(4);
/// How many are killed, and how many stopped.
const EACH: usize = 3;
const LINGER: Duration = Duration::from_millis(30);
/// What a process prints at the end.
const ENDS: [&str; 2] = ["out", "lost"];
/// How much history is enough.
const LINES: usize = 300;
/// For the slowest machine.
const AT_MOST: Duration = Duration::from_secs(240);

/// The role of a child: notes when it is inside.
fn contend(role: &str) {
    let [who, url, notes] = role.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let mut notes = Notes::open(Path::new(notes));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = Locks::connect(&format!("{url}?application_name=contender")).await.unwrap();
        let mutex = locks.mutex("x").ttl(TTL);
        loop {
            // The server may be slow, and a lease that is lost while its process stood still cannot be released.
            let Ok(guard) = mutex.lock().await else { continue };
            notes.add("in", who, guard.fence().get());
            if index(who) < STOPPED.end {
                // Long enough for the test to catch it inside.
                tokio::time::sleep(LINGER).await;
            }
            // A process that stood still for too long, for whatever reason, must know it by now.
            notes.add(if guard.check().is_ok() { "out" } else { "lost" }, who, guard.fence().get());
            let _ = guard.release().await;
        }
    });
}

fn index(who: &str) -> usize {
    who.split('-').next().unwrap().parse().unwrap()
}

#[test]
fn sixteen_processes_never_overlap_though_some_die_or_sleep() {
    if let Some(role) = process::role() {
        return contend(&role);
    }
    let server = Postgres::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut notes = Notes::open(file.path());
    let start = |who: &str| Child::spawn(TEST, &format!("{who} {} {}", server.url(), file.path().display()));
    let mut names: Vec<_> = (0..PROCESSES).map(|index| format!("{index}-0")).collect();
    let mut running: Vec<_> = names.iter().map(|who| start(who)).collect();
    let (mut kills, mut stopped, mut met) = (0, Vec::new(), HashSet::new());
    let started = Instant::now();
    let history = loop {
        assert!(started.elapsed() < AT_MOST, "{kills} kills, {} stops", stopped.len());
        std::thread::sleep(Duration::from_millis(1));
        let history = history(file.path());
        let entered: HashSet<_> = history.iter().map(|(_, who, _)| index(who)).collect();
        let all = (0..PROCESSES).all(|index| entered.contains(&index));
        let has_said =
            |one: &u64| history.iter().any(|(what, _, fence)| fence == one && ENDS.contains(&&**what));
        if (kills, stopped.len()) == (EACH, EACH)
            && all
            && history.len() >= LINES
            && stopped.iter().all(has_said)
        {
            // Read it before they are killed one by one: a process that is inside then never says that it is out.
            break history;
        }
        // The process inside, if it was not hit yet.
        let Some((what, who, fence)) = history.last() else { continue };
        let index = index(who);
        if what != "in" || names[index] != *who || !met.insert(*fence) {
            continue;
        }
        if KILLED.contains(&index) && kills < EACH {
            kills += 1;
            // Noted first, so that nothing that follows from it can come before.
            notes.add("kill", who, *fence);
            running[index].signal(Signal::KILL);
            names[index] = format!("{index}-{kills}");
            running[index] = start(&names[index]);
        } else if STOPPED.contains(&index) && stopped.len() < EACH {
            stopped.push(*fence);
            running[index].stop();
            // By now it has said what it could say before.
            notes.add("stop", who, *fence);
            std::thread::sleep(TTL + LINGER);
            running[index].go_on();
        }
    };
    drop(running);
    println!("{} times inside, {kills} kills, {} stops", judge(&history), stopped.len());
    nothing_is_left(&server);
}

/// Reads the history in the order it was written. Returns how often a process was inside.
fn judge(history: &[(String, String, u64)]) -> usize {
    // Leases of processes that stood still past their ttl, and say so: stopped ones, or because the machine is slow.
    let lost: HashSet<u64> =
        history.iter().filter(|(what, ..)| what == "lost").map(|(.., fence)| *fence).collect();
    let mut inside: Option<(&str, u64)> = None;
    let (mut killed, mut stopped, mut given) = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut highest = 0;
    for (what, who, fence) in history {
        let this = (who.as_str(), *fence);
        match what.as_str() {
            "in" => {
                assert!(given.insert(*fence), "fence {fence} was given twice");
                if lost.contains(fence) && *fence < highest {
                    continue; // it stood still before it could say so
                }
                let before = inside.replace(this);
                let is_out = |(other, fence): (&str, u64)| killed.contains(other) || lost.contains(&fence);
                assert!(before.is_none_or(is_out), "{who} came in to {before:?}");
                assert!(*fence > highest, "{who} was given fence {fence} after {highest}");
                highest = *fence;
            }
            "kill" => {
                killed.insert(who.as_str());
            }
            "stop" => {
                stopped.insert(this);
            }
            "out" => {
                assert!(!stopped.contains(&this), "{who} did not know that its lease had ended");
                assert_eq!(inside.take(), Some(this), "when {who} went out");
            }
            "lost" => inside = inside.filter(|one| *one != this),
            other => panic!("{other}"),
        }
    }
    given.len()
}

/// Killed processes leave only leases and places that end by themselves.
fn nothing_is_left(server: &Postgres) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'contender'";
        until("their sessions are over", async || server.sql(sessions) == "0").await;
        let locks = Locks::connect(&server.url()).await.unwrap();
        until("their leases and places are gone", async || {
            locks.backend().sweep().await.unwrap();
            let left = "(SELECT count(*) FROM leasehold.leases) + (SELECT count(*) FROM leasehold.tickets)";
            server.sql(&format!("SELECT {left}")) == "0"
        })
        .await;
        locks.mutex("x").try_lock().await.unwrap().expect("it is free").release().await.unwrap();
        let rows = "SELECT count(*) FROM leasehold.leases";
        assert_eq!(server.sql(rows), "0");
    });
}
