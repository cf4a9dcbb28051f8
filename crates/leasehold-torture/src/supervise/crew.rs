//! The worker processes: starts, watches, stops, kills and ends them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::history::record::{Kind, read_last};
use crate::lock_server::signal_child;
use crate::roles::{self, Around, Role};
use crate::worker::{self, Task};

/// Only a broken machine takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Enough records to find the start of what any of a worker's tasks is doing.
const RECENT: u64 = 500;

/// One worker process.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    task: Task,
    errors: PathBuf,
    /// Whether it is stopped at the moment.
    pub(super) stopped: bool,
}

/// What a worker is doing, by its history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct At {
    /// A task holds a lock.
    pub(super) holds: bool,
    /// A task waits for one.
    pub(super) waits: bool,
}

impl Worker {
    /// Starts one.
    pub(super) fn start(task: Task, around: &Around) -> io::Result<Self> {
        let errors = task.history.with_file_name(format!("errors-{}", task.worker));
        let file = File::create(&errors)?;
        let mut child = roles::start(Role::Worker(task.clone()), Stdio::from(file), around)?;
        let input = child.stdin.take();
        Ok(Worker { child, input, task, errors, stopped: false })
    }

    pub(super) fn number(&self) -> u32 {
        self.task.worker
    }

    pub(super) fn task(&self) -> &Task {
        &self.task
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        signal_child(&self.child, signal)
    }

    /// Stops it, and returns when all its threads are stopped.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        self.stopped = true;
        let started = Instant::now();
        while !self.stands_still()? {
            if started.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("worker {} does not stop", self.number())));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Continues it.
    pub(super) fn go_on(&mut self) -> io::Result<()> {
        self.stopped = false;
        self.signal(Signal::CONT)
    }

    fn stands_still(&self) -> io::Result<bool> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()))?;
        Ok(tasks.flatten().all(|task| {
            // `pid (name) state …`; a thread that has just ended does not run either.
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['T', 'Z', 'X']))
        }))
    }

    /// What it is at.
    pub(super) fn at(&self) -> io::Result<At> {
        // The latest turn of each task counts: leases left by an earlier one expire.
        let mut turns: HashMap<u16, (u64, At)> = HashMap::new();
        for record in read_last(&self.task.history, RECENT)? {
            let turn = turns.entry(record.task).or_default();
            if turn.0 != record.claim {
                *turn = (record.claim, At::default());
            }
            match record.kind {
                Kind::AcquireCall => turn.1.waits = true,
                // A turn with several names has a claim for each.
                Kind::Granted | Kind::Adopted | Kind::Held => turn.1 = At { holds: true, waits: false },
                Kind::Busy | Kind::Missing | Kind::AcquireFailed | Kind::AcquireDropped => {
                    turn.1.waits = false;
                }
                Kind::Lost | Kind::ReleaseCall | Kind::RenewRefused | Kind::GivenAway => {
                    turn.1.holds = false;
                }
                _ => {}
            }
        }
        let mut all = At::default();
        for (_, at) in turns.values() {
            all.holds |= at.holds;
            all.waits |= at.waits;
        }
        Ok(all)
    }

    /// Whether it has begun its history.
    pub(super) fn has_begun(&self) -> io::Result<bool> {
        Ok(std::fs::metadata(&self.task.history).is_ok_and(|file| file.len() > 0))
    }

    /// How it ended, if it did, with what it printed.
    pub(super) fn ended(&mut self) -> io::Result<Option<String>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        let said = std::fs::read_to_string(&self.errors).unwrap_or_default();
        Ok(Some(format!("worker {} ended by itself ({status}): {}", self.number(), said.trim())))
    }

    /// Kills it, and waits until it is gone.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to finish.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        if let Some(input) = &mut self.input {
            // If it has just ended, that is noticed elsewhere.
            let _ = input.write_all(b"finish\n").and_then(|()| input.flush());
        }
        Ok(())
    }

    /// Whether it has ended normally.
    pub(super) fn has_finished(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Removes the file of its output, if that is empty.
    pub(super) fn tidy(&self) {
        if std::fs::metadata(&self.errors).is_ok_and(|file| file.len() == 0) {
            let _ = std::fs::remove_file(&self.errors);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        self.tidy();
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Crew {
    pub(super) workers: Vec<Worker>,
    next: u32,
    directory: PathBuf,
    around: Around,
}

impl Crew {
    pub(super) fn new(directory: &Path, around: Around) -> Self {
        Crew { workers: Vec::new(), next: 1, directory: directory.to_owned(), around }
    }

    /// Starts a worker with a new number.
    fn launch(&mut self, mut task: Task, url: impl Fn(u32) -> String) -> io::Result<Worker> {
        task.worker = self.next;
        task.url = url(self.next);
        task.history = self.directory.join(worker::history(self.next));
        self.next += 1;
        Worker::start(task, &self.around)
    }

    pub(super) fn add(&mut self, task: Task, url: impl Fn(u32) -> String) -> io::Result<()> {
        let worker = self.launch(task, url)?;
        self.workers.push(worker);
        Ok(())
    }

    /// Kills a worker, and starts another in its place.
    pub(super) fn replace(&mut self, place: usize, url: impl Fn(u32) -> String) -> io::Result<()> {
        self.workers[place].kill();
        let task = self.workers[place].task().clone();
        self.workers[place] = self.launch(task, url)?;
        Ok(())
    }

    /// Waits until all have begun.
    pub(super) fn wait_for_begin(&mut self) -> io::Result<()> {
        let started = Instant::now();
        for worker in &mut self.workers {
            while !worker.has_begun()? {
                if let Some(ended) = worker.ended()? {
                    return Err(io::Error::other(ended));
                }
                if started.elapsed() > PATIENCE {
                    return Err(io::Error::other("the workers do not get to work"));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// Fails if one has ended that was not killed.
    pub(super) fn watch(&mut self) -> io::Result<()> {
        for worker in &mut self.workers {
            if let Some(ended) = worker.ended()? {
                return Err(io::Error::other(ended));
            }
        }
        Ok(())
    }

    /// Asks all to finish, and waits for them; the others are killed, and counted.
    pub(super) fn finish(&mut self, patience: Duration) -> io::Result<usize> {
        for worker in &mut self.workers {
            if worker.stopped {
                worker.go_on()?;
            }
            worker.finish()?;
        }
        let started = Instant::now();
        let mut stuck = 0;
        for worker in &mut self.workers {
            while !worker.has_finished()? {
                if started.elapsed() > patience {
                    stuck += 1;
                    worker.kill();
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(stuck)
    }

    /// The number of records until now.
    pub(super) fn records(&self) -> u64 {
        (1..self.next)
            .filter_map(|number| std::fs::metadata(self.directory.join(worker::history(number))).ok())
            .map(|file| file.len() / crate::history::record::SIZE as u64)
            .sum()
    }

    /// How many processes there were.
    pub(super) fn count(&self) -> u32 {
        self.next - 1
    }
}
