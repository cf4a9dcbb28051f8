//! Sixteen processes want one lock; some are killed while they have it, some stopped, and the sessions of some ended.
//!
//! Session locks have no ttl, so only one history is right, whichever process stands still: none enters before the one
//! before has left, was killed, or had its session ended.

use std::collections::HashSet;
use std::future::pending;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold::Locks;
use rustix::process::Signal;
use testkit::notes::{Notes, history};
use testkit::postgres::Postgres;
use testkit::process::{self, Child};

use crate::support::{advisory_locks, in_time, stranger, until, url};

const TEST: &str = "contention::sixteen_processes_never_overlap_though_some_lose_sessions";
const PROCESSES: usize = 16;
/// The first processes are killed while they are inside, the next stopped, and the next have their sessions ended:
/// each once, and they stay inside until it happens.
const KILLED: std::ops::Range<usize> = 0..3;
const STOPPED: std::ops::Range<usize> = 3..6;
const ENDED: std::ops::Range<usize> = 6..9;
/// Several times as long as holders take to look at their sessions.
const STOP: Duration = Duration::from_millis(1500);
/// How many lines of history are enough.
const LINES: usize = 300;
/// For the slowest machine.
const AT_MOST: Duration = Duration::from_secs(240);

/// The role of a child: notes when it is inside.
fn contend(role: &str) {
    let [who, url, notes] = role.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let file = Path::new(notes);
    let mut notes = Notes::open(file);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // An answer that is late because the machine is slow is not a loss here.
        let locks = Locks::connect(&format!("{url}application_name={who}&keepalive=60")).await.unwrap();
        let mutex = locks.mutex("x");
        // A process that replaces a killed one is spared.
        let mut unharmed = who.ends_with("-0");
        loop {
            let guard = match mutex.lock().await {
                Ok(guard) => guard,
                Err(error) if error.is_retryable() => continue,
                Err(error) => panic!("{error:?}"),
            };
            let fence = guard.fence().get();
            notes.add("in", who, fence);
            if std::mem::take(&mut unharmed) {
                match index(who) {
                    index if KILLED.contains(&index) => in_time("it is killed", pending()).await,
                    index if STOPPED.contains(&index) => {
                        let stopped = ("stop".to_owned(), who.to_owned(), fence);
                        until("it was stopped", async || history(file).contains(&stopped)).await;
                    }
                    index if ENDED.contains(&index) => {
                        in_time("the guard reports its loss", guard.lost()).await;
                    }
                    _ => {}
                }
            }
            notes.add(if guard.check().is_ok() { "out" } else { "lost" }, who, fence);
            let _ = guard.release().await;
        }
    });
}

fn index(who: &str) -> usize {
    who.split('-').next().unwrap().parse().unwrap()
}

#[test]
fn sixteen_processes_never_overlap_though_some_lose_sessions() {
    if let Some(role) = process::role() {
        return contend(&role);
    }
    let server = Postgres::builder().without_fsync().start();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut notes = Notes::open(file.path());
    let start =
        |who: &str| Child::spawn(TEST, &format!("{who} {} {}", url(&server, ""), file.path().display()));
    let mut running: Vec<_> = (0..PROCESSES).map(|index| start(&format!("{index}-0"))).collect();
    let mut harmed = HashSet::new();
    let started = Instant::now();
    let history = loop {
        assert!(started.elapsed() < AT_MOST, "these were met inside: {harmed:?}");
        std::thread::sleep(Duration::from_millis(1));
        let history = history(file.path());
        let entered: HashSet<_> = history.iter().map(|(_, who, _)| index(who)).collect();
        let all = (0..PROCESSES).all(|index| entered.contains(&index));
        let losses = history.iter().filter(|(what, ..)| what == "lost").count();
        if harmed.len() == ENDED.end && losses == ENDED.len() && all && history.len() >= LINES {
            break history;
        }
        // The process inside. The one before may report only later that it has lost its session.
        let Some(at) = history.iter().rposition(|(what, ..)| what == "in") else { continue };
        let (_, who, fence) = &history[at];
        let is_out = history[at + 1..].iter().any(|(.., other)| other == fence);
        let index = index(who);
        if is_out || index >= ENDED.end || !harmed.insert(index) {
            continue;
        }
        // A kill and an ended session are noted first, so that nothing that follows from them can come before.
        if KILLED.contains(&index) {
            notes.add("kill", who, *fence);
            running[index].signal(Signal::KILL);
            running[index] = start(&format!("{index}-1"));
        } else if STOPPED.contains(&index) {
            running[index].stop();
            std::thread::sleep(STOP);
            running[index].go_on();
            notes.add("stop", who, *fence);
        } else {
            notes.add("end", who, *fence);
            let sessions = format!("FROM pg_stat_activity WHERE application_name = '{who}'");
            server.sql(&format!("SELECT count(pg_terminate_backend(pid)) {sessions}"));
        }
    };
    // What the processes did while they were killed one after the other was not read.
    drop(running);
    println!("{} times inside", judge(&history));
    nothing_is_left(&server);
}

/// Reads the history in the order it was written. Returns how often a process was inside.
fn judge(history: &[(String, String, u64)]) -> usize {
    let mut inside: Option<(&str, u64)> = None;
    let (mut killed, mut ended, mut lost) = (HashSet::new(), HashSet::new(), HashSet::new());
    let (mut highest, mut entered) = (0, 0);
    for (what, who, fence) in history {
        let this = (who.as_str(), *fence);
        match what.as_str() {
            "in" => {
                let before = inside.replace(this);
                // A killed process never says that it is out.
                assert!(
                    before.is_none_or(|(other, _)| killed.contains(other)),
                    "{who} came in to {before:?}"
                );
                assert!(*fence > highest, "{who} was given fence {fence} after {highest}");
                (highest, entered) = (*fence, entered + 1);
            }
            "kill" => {
                killed.insert(who.as_str());
            }
            "stop" => assert_eq!(inside, Some(this), "{who} was stopped, and another came in"),
            "end" => {
                ended.insert(this);
                inside = inside.filter(|one| *one != this);
            }
            "out" => {
                assert!(!ended.contains(&this), "{who} was not told that its session had ended");
                assert_eq!(inside.take(), Some(this), "when {who} went out");
            }
            "lost" => {
                assert!(ended.contains(&this), "{who} lost what nobody took");
                lost.insert(this);
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(ended, lost, "who had its session ended, and who noticed");
    entered
}

/// Killed processes leave nothing.
fn nothing_is_left(server: &Postgres) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%-%'";
        until("their sessions are over", async || server.sql(sessions) == "0").await;
        assert_eq!(advisory_locks(&stranger(server).await).await, 0);
        let locks = Locks::connect(&url(server, "")).await.unwrap();
        locks.mutex("x").try_lock().await.unwrap().expect("it is free").release().await.unwrap();
    });
}
