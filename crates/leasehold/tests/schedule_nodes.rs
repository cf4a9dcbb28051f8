//! Real processes with clocks apart, and kills: at most once is never twice, at least once never zero.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::clock::{Clock, Moment, SystemClock};
use leasehold::{Locks, Missed, Schedule, ScheduledJob, Tick, TickPolicy, TickResult};
use rustix::process::Signal;
use testkit::process::{self, Child};
use testkit::until::until_within;

/// How far the clocks of the nodes are off, in milliseconds.
const OFF: [i64; 3] = [-500, 0, 500];

/// Between two ticks.
const EACH: Duration = Duration::from_millis(100);
const TICKS: u64 = 200;
/// Long enough for a slow machine, short enough that a death holds up the rest for seconds only.
const TTL: Duration = Duration::from_secs(8);

/// The system's clock, with a wall time that is off.
#[derive(Debug)]
struct Off(i64);

impl Clock for Off {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn wall_micros(&self) -> u64 {
        SystemClock.wall_micros().saturating_add_signed(self.0 * 1000)
    }
}

/// A node: runs the ticks of its policy, by a clock that is off, and writes a line for each.
async fn node(role: &str) {
    let words: Vec<&str> = role.split(' ').collect();
    let [policy, off, dir] = words[..] else { panic!("{role}") };
    let clock = Arc::new(Off(off.parse().unwrap()));
    let builder = Locks::connect_builder(&format!("sqlite:{dir}/locks.db")).await.unwrap();
    let locks = builder.clock(Arc::clone(&clock) as Arc<dyn Clock>).ttl(TTL).owner(off).build();
    let mut log = std::fs::File::options().append(true).create(true).open(format!("{dir}/ran")).unwrap();
    let mut ran = |tick: Tick| {
        // One write: a written line survives a kill.
        let line = format!("{tick}\n");
        assert_eq!(log.write(line.as_bytes()).unwrap(), line.len());
    };
    process::say("ready");
    if policy == "unrecorded" {
        // What people write themselves: at each tick, the node that gets the lock runs the job.
        let schedule = Schedule::every(EACH).unwrap();
        let mut tick = Tick::from(clock.wall_micros() / 1000);
        loop {
            tick = schedule.next_after(tick).unwrap();
            let left = tick.as_u64().saturating_sub(clock.wall_micros() / 1000);
            tokio::time::sleep(Duration::from_millis(left)).await;
            if let Some(guard) = locks.mutex("job").try_lock().await.unwrap() {
                tokio::time::sleep(Duration::from_millis(1)).await;
                ran(tick);
                guard.release().await.unwrap();
            }
        }
    }
    let policy = if policy == "most" { TickPolicy::AtMostOnce } else { TickPolicy::AtLeastOnce };
    let job = ScheduledJob::new("job", Schedule::every(EACH).unwrap()).policy(policy).missed(Missed::RunAll);
    let mut ticks = job.ticks(&locks).unwrap();
    loop {
        let tick = ticks.next().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        ran(tick.tick());
        if let Err(error) = tick.finish(TickResult::Done).await {
            eprintln!("not recorded: {error}");
        }
    }
}

/// How often each tick has run.
fn runs(dir: &Path) -> BTreeMap<u64, u32> {
    let mut runs = BTreeMap::new();
    for line in std::fs::read_to_string(dir.join("ran")).unwrap_or_default().lines() {
        *runs.entry(line.parse().unwrap()).or_default() += 1;
    }
    runs
}

/// What three nodes with clocks half a second apart make of the ticks, with a kill now and then.
fn three_nodes(test: &str, policy: &str, kills: u32) -> BTreeMap<u64, u32> {
    // In memory where possible: what a process wrote survives its death there too, and a busy disk holds up no test.
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let locks =
        leasehold::blocking::Locks::connect(&format!("sqlite:{}/locks.db", dir.path().display())).unwrap();
    let start = |off: i64| {
        let node = Child::spawn(test, &format!("{policy} {off} {}", dir.path().display()));
        assert_eq!(node.line(), "ready");
        node
    };
    let mut nodes: Vec<Child> = OFF.map(start).into();
    until_within(Duration::from_secs(120), "the first tick has run", || !runs(dir.path()).is_empty());
    let first = *runs(dir.path()).keys().next().unwrap();
    let enough = first + TICKS * u64::try_from(EACH.as_millis()).unwrap();
    let mut killed = 0;
    let began = Instant::now();
    loop {
        let last = *runs(dir.path()).keys().next_back().unwrap();
        if last >= enough {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(300), "tick {last} of {enough} after five minutes");
        // Spread over the ticks, however long those take.
        let due = first + (enough - first) * u64::from(killed + 1) / u64::from(kills + 1);
        if killed < kills && last >= due {
            // In the middle of a tick, if one can be caught.
            let caught = Instant::now();
            let which = loop {
                let record = locks.tick_record("job").unwrap();
                match record.runs.last().filter(|_| record.is_running) {
                    Some(run) => break OFF.iter().position(|off| off.to_string() == *run.owner).unwrap(),
                    None if caught.elapsed() > EACH * 20 => break (killed % 3) as usize,
                    None => {}
                }
            };
            nodes[which].signal(Signal::KILL);
            nodes[which] = start(OFF[which]);
            killed += 1;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(killed, kills);
    drop(nodes);
    let runs = runs(dir.path());
    runs.range(first..=enough).map(|(tick, count)| (*tick, *count)).collect()
}

/// Ticks that ran more than once, and those that never ran.
fn wrong(runs: &BTreeMap<u64, u32>) -> (Vec<u64>, Vec<u64>) {
    let (first, last) = (*runs.keys().next().unwrap(), *runs.keys().next_back().unwrap());
    let twice = runs.iter().filter(|(_, count)| **count > 1).map(|(tick, _)| *tick).collect();
    let step = usize::try_from(EACH.as_millis()).unwrap();
    let never = (first..=last).step_by(step).filter(|tick| !runs.contains_key(tick)).collect();
    (twice, never)
}

/// Runs a node in a child, and tells whether this is one.
fn is_node() -> bool {
    let Some(role) = process::role() else { return false };
    // A node must not outlive the test.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(node(&role));
    true
}

#[test]
fn at_most_once_never_runs_a_tick_twice() {
    if is_node() {
        return;
    }
    let kills = 6;
    let runs = three_nodes("at_most_once_never_runs_a_tick_twice", "most", kills);
    let (twice, never) = wrong(&runs);
    assert!(twice.is_empty(), "{twice:?}");
    eprintln!("{} ticks have run once, {} never", runs.len(), never.len());
    // Only a tick whose node was killed can be missing.
    assert!(never.len() <= kills as usize, "{never:?}");
    assert!(runs.len() as u64 >= TICKS - u64::from(kills), "{}", runs.len());
}

#[test]
fn at_least_once_never_leaves_out_a_tick() {
    if is_node() {
        return;
    }
    let kills = 6;
    let runs = three_nodes("at_least_once_never_leaves_out_a_tick", "least", kills);
    let (twice, never) = wrong(&runs);
    assert!(never.is_empty(), "{never:?}");
    eprintln!("{} ticks have run, {} twice", runs.len(), twice.len());
    // Only a tick whose node was killed can run again.
    assert!(twice.len() <= kills as usize, "{twice:?}");
    assert!(runs.len() as u64 > TICKS, "{}", runs.len());
}

#[test]
fn without_the_record_ticks_run_twice() {
    if is_node() {
        return;
    }
    let runs = three_nodes("without_the_record_ticks_run_twice", "unrecorded", 0);
    let (twice, _) = wrong(&runs);
    eprintln!("{} of {} ticks have run twice or more", twice.len(), runs.len());
    // How many depends on how fast the machine is; with the record it is none.
    assert!(!twice.is_empty());
}
