//! Sixteen processes want one lock; some are killed while they have it, some stopped past its ttl.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use leasehold::backends::sqlite::Sqlite;
use leasehold::clock::{Clock, SystemClock};
use leasehold::{Fence, Locks};
use rustix::process::Signal;

use crate::support::{Log, Process, lines, random, runtime, start, told};

const PROCESSES: usize = 16;
/// The first are killed now and then, the next stopped.
const KILLED: std::ops::Range<usize> = 0..3;
const STOPPED: std::ops::Range<usize> = 3..6;
const TTL: Duration = Duration::from_millis(600);
const RUN: Duration = Duration::from_secs(8);

/// The child: adds one to a number in a file, by reading and writing it, whenever it has the lock.
pub fn contend() {
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
            let guard = mutex.lock().await.unwrap();
            let fence = guard.fence();
            log.line(&format!("in {who} {fence} {}", SystemClock.now().as_micros()));
            // Who may be stopped in here has no business in the file: that is what fences are for.
            if !STOPPED.contains(&index) {
                let mut text = [b'0'; 20];
                let _ = counter.read_at(&mut text, 0).unwrap();
                let count: u64 = std::str::from_utf8(&text).unwrap().parse().unwrap();
                std::thread::sleep(Duration::from_micros(500));
                counter.write_at(format!("{:020}", count + 1).as_bytes(), 0).unwrap();
                log.line(&format!("wrote {who} {}", count + 1));
            }
            log.line(&format!("out {who} {fence}"));
            guard.release().await.unwrap();
        }
    });
}

#[test]
fn sixteen_processes_of_which_some_die_or_sleep_never_hold_together() {
    let directory = tempfile::tempdir().unwrap();
    let mut names: Vec<_> = (0..PROCESSES).map(|index| format!("{index}-0")).collect();
    let mut running: Vec<_> = names.iter().map(|who| start("contend", who, directory.path())).collect();
    let started = Instant::now();
    let (mut kills, mut stops) = (0, 0);
    while lines(&directory.path().join("log")).len() < 50 {
        assert!(started.elapsed() < Duration::from_secs(60), "nobody gets in");
        std::thread::sleep(Duration::from_millis(20));
    }
    let started = Instant::now();
    while started.elapsed() < RUN {
        std::thread::sleep(Duration::from_millis(200 + random(200)));
        let index = random(STOPPED.end as u64) as usize;
        if KILLED.contains(&index) {
            kills += 1;
            running[index].kill();
            names[index] = format!("{index}-{kills}");
            running[index] = start("contend", &names[index], directory.path());
        } else {
            stops += 1;
            running[index].signal(Signal::STOP);
            std::thread::sleep(TTL + Duration::from_millis(random(600)));
            running[index].signal(Signal::CONT);
        }
    }
    // No half line, and nobody who still reads the counter.
    running.iter_mut().for_each(Process::kill);
    let log = lines(&directory.path().join("log"));
    let entered = judge(&log);
    println!("{entered} times inside, {kills} kills, {stops} stops");
    assert!(kills >= 3 && stops >= 3, "{kills} kills, {stops} stops");
    assert!(entered >= 100, "only {entered} times inside");
}

/// Reads the history in the order it was written. Returns how often somebody was inside.
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
                    // Its line may be late. But nobody may have been let in while another was inside.
                    if let Some((other, theirs)) = inside {
                        assert!(fence < theirs, "{who} was let in while {other} was inside");
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
    // First come, first served: nobody who was left alone starved.
    for index in STOPPED.end..PROCESSES {
        assert!(entered.get(&index).is_some_and(|times| *times >= 3), "{index} starved: {entered:?}");
    }
    entered.values().sum::<u32>() as usize
}
