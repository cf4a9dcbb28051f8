//! Sixteen processes want one lock; some are killed while they have it, some stopped past its ttl.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold::Locks;
use rustix::process::Signal;
use testkit::postgres::Postgres;
use testkit::process::{self, Child};

use crate::support::until;

const TEST: &str = "processes::sixteen_processes_of_which_some_die_or_sleep_never_hold_together";
const PROCESSES: usize = 16;
/// The first are killed now and then, the next stopped.
const KILLED: std::ops::Range<usize> = 0..3;
const STOPPED: std::ops::Range<usize> = 3..6;
const TTL: Duration = Duration::from_secs(4);
/// How many are killed, and how many stopped.
const EACH: usize = 3;
const LINGER: Duration = Duration::from_millis(30);
/// What is enough of a history.
const LINES: usize = 300;
/// For the slowest machine.
const AT_MOST: Duration = Duration::from_secs(240);

/// The role of a child: notes when it is inside, line by line, each by one write.
fn contend(role: &str) {
    let [who, url, log] = role.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let mut log = File::options().append(true).open(log).unwrap();
    let mut note = |what: &str, fence: u64| {
        let line = format!("{what} {who} {fence}\n");
        assert_eq!(log.write(line.as_bytes()).unwrap(), line.len());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = Locks::connect(&format!("{url}?application_name=contender")).await.unwrap();
        let mutex = locks.mutex("x").ttl(TTL);
        loop {
            // The server may be slow, and a lease that is lost while its process stood still cannot be released.
            let Ok(guard) = mutex.lock().await else { continue };
            note("in", guard.fence().get());
            if index(who) < STOPPED.end {
                // Long enough to be met inside.
                tokio::time::sleep(LINGER).await;
            }
            // Whoever stood still for too long, for whatever reason, has to know it by now.
            note(if guard.check().is_ok() { "out" } else { "lost" }, guard.fence().get());
            let _ = guard.release().await;
        }
    });
}

fn index(who: &str) -> usize {
    who.split('-').next().unwrap().parse().unwrap()
}

/// The whole lines of the log, in words.
fn history(log: &Path) -> Vec<[String; 3]> {
    let text = std::fs::read_to_string(log).unwrap();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
    whole.lines().map(words).collect()
}

#[test]
fn sixteen_processes_of_which_some_die_or_sleep_never_hold_together() {
    if let Some(role) = process::role() {
        return contend(&role);
    }
    let server = Postgres::start();
    let log = tempfile::NamedTempFile::new().unwrap();
    let start = |who: &str| Child::spawn(TEST, &format!("{who} {} {}", server.url(), log.path().display()));
    let mut names: Vec<_> = (0..PROCESSES).map(|index| format!("{index}-0")).collect();
    let mut running: Vec<_> = names.iter().map(|who| start(who)).collect();
    let (mut kills, mut stops, mut met) = (0, 0, HashSet::new());
    let started = Instant::now();
    let seen = loop {
        assert!(started.elapsed() < AT_MOST, "{kills} kills, {stops} stops");
        std::thread::sleep(Duration::from_millis(1));
        let history = history(log.path());
        let entered: HashSet<_> = history.iter().map(|[_, who, _]| index(who)).collect();
        let all = (STOPPED.end..PROCESSES).all(|index| entered.contains(&index));
        if (kills, stops) == (EACH, EACH) && all && history.len() >= LINES {
            // Before they are killed one by one: whoever is inside then never says that it is out.
            break history;
        }
        // Who is inside, and was not met yet.
        let Some([what, who, fence]) = history.last() else { continue };
        let index = index(who);
        if what != "in" || names[index] != *who || !met.insert(fence.clone()) {
            continue;
        }
        if KILLED.contains(&index) && kills < EACH {
            kills += 1;
            running[index].signal(Signal::KILL);
            names[index] = format!("{index}-{kills}");
            running[index] = start(&names[index]);
        } else if STOPPED.contains(&index) && stops < EACH {
            stops += 1;
            running[index].signal(Signal::STOP);
            std::thread::sleep(TTL + LINGER);
            running[index].signal(Signal::CONT);
        }
    };
    drop(running);
    println!("{} times inside, {kills} kills, {stops} stops", judge(&seen));
    nothing_is_left(&server);
}

/// Reads the history in the order it was written. Returns how often somebody was inside.
fn judge(history: &[[String; 3]]) -> usize {
    let lost: HashSet<_> =
        history.iter().filter(|[what, ..]| what == "lost").map(|[.., fence]| fence).collect();
    let mut inside: Option<(&str, u64)> = None;
    let mut highest = 0;
    let mut given: HashMap<u64, &str> = HashMap::new();
    for [what, who, fence] in history {
        let stopped = STOPPED.contains(&index(who)) || lost.contains(fence);
        let fence = fence.parse().unwrap();
        if what == "in" {
            assert_eq!(given.insert(fence, who), None, "fence {fence} was given twice");
            if let Some((other, theirs)) = inside {
                // One that was killed never says that it is out; one that stood still says late that it is in.
                let late = stopped && fence < theirs;
                assert!(late || KILLED.contains(&index(other)), "{who} was let in while {other} was inside");
            }
            if !stopped {
                assert!(fence > highest, "fence {fence} came after {highest}");
                inside = Some((who, fence));
            }
            highest = highest.max(fence);
        } else if !stopped {
            assert_eq!(inside, Some((who.as_str(), fence)));
            inside = None;
        }
    }
    given.len()
}

/// Killed processes leave what ends by itself.
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
