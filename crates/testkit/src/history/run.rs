//! Runs a trial: starts the processes, kills some and puts others in their place, stops some past their ttl.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::check::{Summary, check};
use super::record::{Kind, Record, read, read_last};
use super::worker::Task;
use crate::process::{Child, role};

/// A trial of one store by many processes.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The store.
    pub url: String,
    /// How many processes there are at any time.
    pub processes: usize,
    /// How many of these may be killed. They have one task each: one that is killed while it waits, and has come
    /// to the front of a queue, keeps everybody waiting until its ticket lapses, which takes longer than a trial.
    pub mortal: usize,
    /// How many take turns in each of the others.
    pub tasks: u32,
    /// How long leases last.
    pub ttl: Duration,
    /// Whether locks last as long as their session: who is stopped keeps its lock, and nobody may lose one.
    pub session: bool,
    /// How long it goes on at least.
    pub time: Duration,
    /// What it must have seen to show anything; it goes on until it has.
    pub demands: Demands,
}

/// What a trial must have seen.
#[derive(Debug, Clone, Copy)]
pub struct Demands {
    /// Leases that were granted.
    pub grants: usize,
    /// Grants that followed one of another process.
    pub handovers: usize,
    /// Processes that were killed while they held the lock.
    pub killed_holders: usize,
    /// Processes that were stopped for longer than the ttl while they held the lock.
    pub stopped_holders: usize,
}

/// What came of a trial.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// What was found in the histories.
    pub summary: Summary,
    /// Processes that were killed with the lock.
    pub kills: usize,
    /// Processes that were stopped with the lock, and of these those that were stopped past its ttl.
    pub stops: (usize, usize),
}

/// Only a trial that gets nowhere takes this long.
const PATIENCE: Duration = Duration::from_secs(120);

struct Worker {
    child: Child,
    log: PathBuf,
    /// When it goes on.
    stopped_until: Option<Instant>,
}

impl Trial {
    /// Sixteen processes of three tasks each for ten seconds, with leases of 400 ms.
    pub fn of(url: impl Into<String>) -> Self {
        Trial {
            url: url.into(),
            processes: 16,
            mortal: 6,
            tasks: 3,
            ttl: Duration::from_millis(400),
            session: false,
            time: Duration::from_secs(10),
            demands: Demands { grants: 150, handovers: 50, killed_holders: 3, stopped_holders: 3 },
        }
    }

    /// Runs it in processes that are the test `test` of this binary, which must begin with [`play`], and
    /// judges it.
    ///
    /// # Panics
    /// With the invariants that were broken; if a process cannot be started or fails; if what is demanded does
    /// not happen within two minutes.
    pub fn run(&self, test: &str) -> Outcome {
        let directory =
            std::env::temp_dir().join(format!("leasehold-trial-{}-{}", std::process::id(), random(1 << 40)));
        std::fs::create_dir(&directory).expect("a directory for the histories");
        let outcome = self.run_in(test, &directory);
        std::fs::remove_dir_all(&directory).expect("the directory can be removed");
        outcome
    }

    fn start(&self, test: &str, directory: &Path, number: &mut u32, tasks: u32) -> Worker {
        let log = directory.join(format!("{number}"));
        let task = Task {
            url: self.url.clone(),
            name: "trial".into(),
            ttl: self.ttl,
            worker: *number,
            log: log.clone(),
            tasks,
        };
        *number += 1;
        Worker { child: Child::spawn(test, &task.to_line()), log, stopped_until: None }
    }

    /// Whether there were as many grants as demanded.
    fn grants(&self, directory: &Path, workers: u32) -> bool {
        let histories = (0..workers).map(|number| history(&directory.join(format!("{number}"))));
        let granted = histories.flatten().filter(|record| record.kind == Kind::Granted).count();
        granted >= self.demands.grants
    }

    fn run_in(&self, test: &str, directory: &Path) -> Outcome {
        let mut number = 0;
        let tasks = |place: usize| if place < self.mortal { 1 } else { self.tasks };
        let mut workers: Vec<_> =
            (0..self.processes).map(|place| self.start(test, directory, &mut number, tasks(place))).collect();
        let started = Instant::now();
        while workers.iter().any(|worker| history(&worker.log).is_empty()) {
            assert!(started.elapsed() < PATIENCE, "the processes do not get to work");
            std::thread::sleep(Duration::from_millis(20));
        }
        let started = Instant::now();
        let (mut kills, mut stops) = (0, (0, 0));
        let mut next = started;
        loop {
            std::thread::sleep(Duration::from_millis(1));
            let now = Instant::now();
            for worker in &mut workers {
                if worker.stopped_until.is_some_and(|until| until <= now) {
                    worker.stopped_until = None;
                    worker.child.go_on();
                }
            }
            let enough = kills >= self.demands.killed_holders && stops.1 >= self.demands.stopped_holders;
            if started.elapsed() >= self.time && enough && self.grants(directory, number) {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "{kills} kills, {stops:?} stops, and it should be more");
            // Whoever dies or sleeps with the lock keeps it for a ttl: the others need a rest from that.
            let among = if random(2) == 0 { self.mortal } else { self.processes };
            let place = random(among as u64) as usize;
            if now < next || workers[place].stopped_until.is_some() || !holds(&workers[place]) {
                continue;
            }
            // It stands still first, so that what it holds is what its history says.
            let worker = &mut workers[place];
            worker.child.stop();
            if !holds(worker) {
                worker.child.go_on();
                continue;
            }
            next = Instant::now() + self.ttl * 3;
            if place < self.mortal && random(3) > 0 {
                kills += 1;
                worker.child.signal(Signal::KILL);
                *worker = self.start(test, directory, &mut number, 1);
            } else {
                let pause = self.ttl / 2 + self.ttl.mul_f64(random(250) as f64 / 100.0);
                stops = (stops.0 + 1, stops.1 + usize::from(pause > self.ttl));
                worker.stopped_until = Some(Instant::now() + pause);
            }
        }
        // Those that stand still get to look at what they hold.
        for worker in workers.iter().filter(|worker| worker.stopped_until.is_some()) {
            worker.child.go_on();
        }
        std::thread::sleep(self.ttl);
        drop(workers);
        let histories: Vec<_> =
            (0..number).map(|number| history(&directory.join(format!("{number}")))).collect();
        let summary = match check(&histories) {
            Ok(summary) => summary,
            Err(violations) => {
                let all: Vec<_> = violations.iter().map(ToString::to_string).collect();
                panic!(
                    "{} violations (histories in {}):\n{}",
                    all.len(),
                    directory.display(),
                    all.join("\n")
                );
            }
        };
        let outcome = Outcome { summary, kills, stops };
        let Demands { grants, handovers, .. } = self.demands;
        let shows = summary.grants >= grants
            && summary.handovers >= handovers
            && summary.shared > 0
            && (summary.lost == 0) == self.session;
        assert!(shows, "this trial shows nothing: {outcome:?}");
        outcome
    }
}

/// As a process of a trial: takes turns until it is killed, or the process that started it is gone. `false`
/// if this is none.
///
/// # Panics
/// If the store cannot be opened.
pub fn play() -> bool {
    let Some(task) = role().as_deref().and_then(Task::from_line) else { return false };
    // Ends with its parent, also when that was killed.
    std::thread::spawn(|| {
        loop {
            crate::process::hear();
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(task.run()).expect("the store can be opened");
    true
}

/// Whether its history says that it holds the lock.
fn holds(worker: &Worker) -> bool {
    // As far back as any of its tasks can have begun what it is at.
    let history = read_last(&worker.log, 500).expect("the history can be read");
    let mut held = std::collections::HashSet::new();
    for Record { kind, claim, .. } in history {
        match kind {
            Kind::Granted | Kind::Held => drop(held.insert(claim)),
            Kind::ReleaseCall | Kind::LostByDeadline | Kind::LostByRefusal => drop(held.remove(&claim)),
            _ => {}
        }
    }
    !held.is_empty()
}

fn history(log: &Path) -> Vec<Record> {
    read(log).expect("the history can be read")
}

/// At random; zero of zero.
fn random(below: u64) -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(()) % below.max(1)
}
