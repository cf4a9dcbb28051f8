//! Sixteen processes want one lock; some are killed while they have it, some stopped, and the sessions of some ended.
//!
//! Session locks have no ttl, so there is one history that is right, whoever stands still: nobody comes in before the
//! one before has gone out, was killed, or had its session ended.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold::Locks;
use rustix::process::Signal;
use testkit::notes::{Notes, history};
use testkit::postgres::Postgres;
use testkit::process::{self, Child};

use crate::support::{advisory_locks, in_time, stranger, until, url};

const TEST: &str =
    "contention::sixteen_processes_of_which_some_die_sleep_or_lose_their_session_never_hold_together";
const PROCESSES: usize = 16;
/// The first are killed now and then, the next stopped, and the next have their sessions ended.
const KILLED: std::ops::Range<usize> = 0..3;
const STOPPED: std::ops::Range<usize> = 3..6;
const ENDED: std::ops::Range<usize> = 6..9;
/// How many of each.
const EACH: usize = 3;
/// Long enough to be met inside.
const LINGER: Duration = Duration::from_millis(30);
/// Several times as long as those who hold look at their sessions.
const STOP: Duration = Duration::from_millis(1500);
/// How many lines are enough of a history.
const LINES: usize = 300;
/// For the slowest machine.
const AT_MOST: Duration = Duration::from_secs(240);

/// The role of a child: notes when it is inside.
fn contend(role: &str) {
    let [who, url, notes] = role.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let mut notes = Notes::open(Path::new(notes));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // An answer that is late because the machine is slow is no loss here.
        let locks = Locks::connect(&format!("{url}application_name={who}&keepalive=60")).await.unwrap();
        let mutex = locks.mutex("x");
        let mut to_be_ended = ENDED.contains(&index(who));
        loop {
            let guard = match mutex.lock().await {
                Ok(guard) => guard,
                Err(error) if error.is_retryable() => continue,
                Err(error) => panic!("{error:?}"),
            };
            notes.add("in", who, guard.fence().get());
            if std::mem::take(&mut to_be_ended) {
                in_time("the loss is told", guard.lost()).await;
            } else if index(who) < STOPPED.end {
                tokio::time::sleep(LINGER).await;
            }
            notes.add(if guard.check().is_ok() { "out" } else { "lost" }, who, guard.fence().get());
            let _ = guard.release().await;
        }
    });
}

fn index(who: &str) -> usize {
    who.split('-').next().unwrap().parse().unwrap()
}

#[test]
fn sixteen_processes_of_which_some_die_sleep_or_lose_their_session_never_hold_together() {
    if let Some(role) = process::role() {
        return contend(&role);
    }
    let server = Postgres::builder().without_fsync().start();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut notes = Notes::open(file.path());
    let start =
        |who: &str| Child::spawn(TEST, &format!("{who} {} {}", url(&server, ""), file.path().display()));
    let mut names: Vec<_> = (0..PROCESSES).map(|index| format!("{index}-0")).collect();
    let mut running: Vec<_> = names.iter().map(|who| start(who)).collect();
    let (mut kills, mut stops, mut ends, mut met) = (0, 0, 0, HashSet::new());
    let started = Instant::now();
    let history = loop {
        assert!(started.elapsed() < AT_MOST, "{kills} kills, {stops} stops, {ends} ends");
        std::thread::sleep(Duration::from_millis(1));
        let history = history(file.path());
        let entered: HashSet<_> = history.iter().map(|(_, who, _)| index(who)).collect();
        let all = (0..PROCESSES).all(|index| entered.contains(&index));
        let losses = history.iter().filter(|(what, ..)| what == "lost").count();
        if (kills, stops, losses) == (EACH, EACH, ENDED.len()) && all && history.len() >= LINES {
            break history;
        }
        // Who is inside, and was not met yet. The one before may say only after that that it has lost its session.
        let Some(at) = history.iter().rposition(|(what, ..)| what == "in") else { continue };
        let (_, who, fence) = &history[at];
        let is_out = history[at + 1..].iter().any(|(.., other)| other == fence);
        let index = index(who);
        if is_out || names[index] != *who || !met.insert(*fence) {
            continue;
        }
        // What is done is noted before, so that nothing that follows from it can be.
        if KILLED.contains(&index) && kills < EACH {
            kills += 1;
            notes.add("kill", who, *fence);
            running[index].signal(Signal::KILL);
            names[index] = format!("{index}-{kills}");
            running[index] = start(&names[index]);
        } else if STOPPED.contains(&index) && stops < EACH {
            stops += 1;
            running[index].stop();
            std::thread::sleep(STOP);
            running[index].go_on();
        } else if ENDED.contains(&index) && ends < ENDED.len() {
            ends += 1;
            notes.add("end", who, *fence);
            let sessions = format!("FROM pg_stat_activity WHERE application_name = '{who}'");
            server.sql(&format!("SELECT count(pg_terminate_backend(pid)) {sessions}"));
        }
    };
    // What they do while they are killed one after the other was not read.
    drop(running);
    println!("{} times inside, {kills} kills, {stops} stops, {ends} ends", judge(&history));
    nothing_is_left(&server);
}

/// Reads the history in the order it was written. Returns how often somebody was inside.
fn judge(history: &[(String, String, u64)]) -> usize {
    let mut inside: Option<(&str, u64)> = None;
    let (mut killed, mut ended, mut lost) = (HashSet::new(), HashSet::new(), HashSet::new());
    let (mut highest, mut entered) = (0, 0);
    for (what, who, fence) in history {
        let this = (who.as_str(), *fence);
        match what.as_str() {
            "in" => {
                let before = inside.replace(this);
                // One that was killed never says that it is out.
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
