//! Sixteen processes want one lock; some are killed while they have it, some stopped past its ttl.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use leasehold::backends::sqlite::Sqlite;
use leasehold::clock::{Clock, SystemClock};
use leasehold::{Fence, Locks};
use rustix::process::Signal;
use testkit::until::until;

use crate::support::{Log, Process, directory, lines, random, runtime, start, told};

const PROCESSES: usize = 16;
/// The first processes are killed now and then, the next stopped.
const KILLED: std::ops::Range<usize> = 0..3;
const STOPPED: std::ops::Range<usize> = 3..6;
/// Far longer than a busy machine delays a process that is inside.
const TTL: Duration = Duration::from_millis(2500);
/// How many are killed, and how many stopped.
const EACH: u32 = 2;
const LINGER: Duration = Duration::from_millis(30);
/// How often a process has to have been inside.
const ENTERED: usize = 150;

/// The child: adds one to a number in a file, by reading and writing it, whenever it has the lock.
pub(crate) fn contend() {
    let (who, directory) = told();
    let index: usize = who.split('-').next().unwrap().parse().unwrap();
    let log = Log::append(&directory.join("log"));
    let counter = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(directory.join("counter"))
        .unwrap();
    runtime().block_on(async {
        let locks = Locks::new(Sqlite::open(directory.join("locks.db")).await.unwrap());
        let mutex = locks.mutex("x").ttl(TTL);
        loop {
            // Another process may be stopped in the middle of a transaction.
            let guard = match mutex.lock().await {
                Ok(guard) => guard,
                Err(error) => {
                    assert!(error.is_retryable(), "{error:?}");
                    continue;
                }
            };
            let fence = guard.fence();
            log.line(&format!("in {who} {fence} {}", SystemClock.now().as_micros()));
            if index < STOPPED.end {
                // Long enough for the test to catch it inside.
                tokio::time::sleep(LINGER).await;
            }
            // A process that may be stopped in here must not touch the file: that is what fences are for.
            if !STOPPED.contains(&index) {
                let mut text = [b'0'; 20];
                let _ = counter.read_at(&mut text, 0).unwrap();
                let count: u64 = std::str::from_utf8(&text).unwrap().parse().unwrap();
                std::thread::sleep(Duration::from_micros(500));
                counter.write_at(format!("{:020}", count + 1).as_bytes(), 0).unwrap();
                log.line(&format!("wrote {who} {}", count + 1));
            }
            log.line(&format!("out {who} {fence}"));
            if let Err(error) = guard.release().await {
                assert!(error.is_retryable(), "{error:?}");
            }
        }
    });
}

#[test]
fn sixteen_processes_never_overlap_though_some_die_or_sleep() {
    let directory = directory();
    let mut names: Vec<_> = (0..PROCESSES).map(|index| format!("{index}-0")).collect();
    let mut running: Vec<_> = names.iter().map(|who| start("contend", who, directory.path())).collect();
    let (mut kills, mut stops) = (0, 0);
    until("they get in", || lines(&directory.path().join("log")).len() >= 50);
    until("all were met, and often enough inside", || {
        let log = lines(&directory.path().join("log"));
        let entered = log.iter().filter(|line| line.starts_with("in")).count();
        if (kills, stops) == (EACH, EACH) && entered >= ENTERED {
            return true;
        }
        // The process inside, if it was not hit yet.
        let last: Vec<_> = log.last().unwrap().split(' ').collect();
        let index: usize = last[1].split('-').next().unwrap().parse().unwrap();
        if last[0] != "in" || names[index] != last[1] || random(2) == 0 {
            return false;
        }
        if KILLED.contains(&index) && kills < EACH {
            kills += 1;
            running[index].kill();
            names[index] = format!("{index}-{kills}");
            running[index] = start("contend", &names[index], directory.path());
        } else if STOPPED.contains(&index) && stops < EACH {
            stops += 1;
            running[index].signal(Signal::STOP);
            std::thread::sleep(TTL + Duration::from_millis(random(300)));
            running[index].signal(Signal::CONT);
        }
        false
    });
    // No half line, and no process that still reads the counter.
    running.iter_mut().for_each(Process::kill);
    let log = lines(&directory.path().join("log"));
    let entered = judge(&log);
    println!("{entered} times inside, {kills} kills, {stops} stops");
}

/// Reads the history in the order it was written. Returns how often a process was inside.
fn judge(log: &[String]) -> usize {
    let index = |who: &str| who.split('-').next().unwrap().parse::<usize>().unwrap();
    let mut inside: Option<(&str, Fence)> = None;
    let mut highest = Fence::UNFENCED;
    let mut written = 0;
    let mut entered: HashMap<usize, u32> = HashMap::new();
    let mut seen = HashSet::new();
    for line in log {
        let words: Vec<_> = line.split(' ').collect();
        let (what, who) = (words[0], words[1]);
        let stopped = STOPPED.contains(&index(who));
        match what {
            "in" => {
                let fence = Fence::new(words[2].parse().unwrap());
                assert!(seen.insert(fence), "fence {fence} was given twice");
                if stopped {
                    // Its line may be late. But no process may have entered while another was inside.
                    if let Some((other, theirs)) = inside {
                        let killed = KILLED.contains(&index(other));
                        assert!(killed || fence < theirs, "{who} was let in while {other} was inside");
                    }
                } else {
                    if let Some((other, _)) = inside {
                        let killed = KILLED.contains(&index(other));
                        assert!(killed, "{who} was let in while {other} was inside");
                    }
                    assert!(fence > highest, "fence {fence} came after {highest}");
                    inside = Some((who, fence));
                }
                highest = highest.max(fence);
                *entered.entry(index(who)).or_default() += 1;
            }
            "wrote" => {
                let count: u64 = words[2].parse().unwrap();
                assert!(count > written, "the count went from {written} to {count}: an addition was lost");
                written = count;
            }
            "out" if !stopped => {
                assert_eq!(inside.map(|(who, _)| who), Some(who));
                inside = None;
            }
            _ => {}
        }
    }
    // First come, first served: no undisturbed process starved.
    for index in STOPPED.end..PROCESSES {
        assert!(entered.get(&index).is_some_and(|times| *times >= 3), "{index} starved: {entered:?}");
    }
    entered.values().sum::<u32>() as usize
}
