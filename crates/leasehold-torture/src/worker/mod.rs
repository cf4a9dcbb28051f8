//! A worker: a process that takes, keeps and gives back locks in every possible way, through the public API alone, and
//! records what it does and sees.

mod archive;
mod blocking;
mod crowd;
mod faces;
mod foreign;
mod guards;
mod leases;
mod multi;
mod part;
mod pen;
mod queue;
mod raw;
mod sink;
mod turns;

use std::io::{self, BufRead as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::Locks;
#[cfg(feature = "__bugs")]
use leasehold::clock::SystemClock;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::history::record::{Kind, Log, Mode, Record};
use crate::history::setting::Name;
use crate::resource;
use leasehold_testbed::dice::Dice;

pub(crate) use crowd::{CrowdPart, locks as locks_of_crowd};
pub(crate) use part::{Part, all as locks_of};
use pen::Pen;
pub(crate) use pen::now;
pub(crate) use sink::Sink;

/// The name of a worker's history in the directory of a run.
pub(crate) fn history(number: u32) -> String {
    format!("worker-{number}")
}

/// The task of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    /// The store.
    pub(crate) url: String,
    /// The number of this process; no other process has it.
    pub(crate) worker: u32,
    /// The file or pipe to which the process writes its history.
    pub(crate) history: PathBuf,
    /// Where the resource listens.
    pub(crate) resource: PathBuf,
    /// The process derives its random choices from this and from `worker`.
    pub(crate) seed: u64,
    /// How many tasks the process runs.
    pub(crate) tasks: u16,
    /// The locks that further tasks want, each all the time: their places among the names.
    pub(crate) wants: Vec<u16>,
    /// Whether its tasks run on several threads.
    pub(crate) threads: bool,
    /// The locks.
    pub(crate) names: Vec<Name>,
    /// What each lock is for.
    pub(crate) parts: Vec<Part>,
    /// Where leases are left for another process to adopt.
    pub(crate) handed: PathBuf,
    /// The ttl of leases, in milliseconds.
    pub(crate) ttl_ms: u64,
    /// Leases end with their session: plain ones, which nobody watches, are not used.
    pub(crate) session: bool,
    /// Readers may share a name.
    pub(crate) shared: bool,
    /// Holders list the waiters.
    pub(crate) lists: bool,
    /// Listing shows lease ids.
    pub(crate) shows_ids: bool,
    /// Calls are cancelled half-way.
    pub(crate) cancels: bool,
    /// One turn in this many uses a plain lease, whose calls are made once: unlike the wait loop they show every
    /// failure.
    pub(crate) plain: u64,
    /// Acquires are repeated with an id that already has a lease. Not in a quorum: while nodes fail, a repeat may be
    /// answered with a higher fence, as its page says.
    pub(crate) repeats: bool,
    /// Some leases are left to expire.
    pub(crate) abandons: bool,
    /// Some hold a lock for as long as its ttl, or longer.
    pub(crate) lingers: bool,
    /// Some locks are held for seconds.
    pub(crate) stays: bool,
    /// Answers may come when the lease's time is over: more holders stay until then, and look on.
    pub(crate) late: bool,
    /// How long a call to the store may take, in milliseconds.
    pub(crate) patience_ms: u64,
    /// What it does in a crowd, if it is in one.
    pub(crate) crowd: Option<CrowdPart>,
    /// What is wrong with its log, if anything is.
    pub(crate) sink: Option<Sink>,
    /// The program that works in place of this process: that of an SDK.
    pub(crate) program: Option<PathBuf>,
}

impl Task {
    fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }
}

/// Works until a line of input asks it to finish; ends with its parent.
pub(crate) fn run(task: Task) -> io::Result<()> {
    if let Some(program) = &task.program {
        return Err(foreign::become_program(program, &task));
    }
    let log = Arc::new(Log::append(&task.history)?);
    if let Some(sink) = task.sink {
        sink::install(sink)?;
    }
    let (finish, finished) = watch::channel(false);
    std::thread::spawn(move || {
        let mut line = String::new();
        match io::stdin().lock().read_line(&mut line) {
            Ok(1..) => finish.send_replace(true),
            _ => std::process::exit(0),
        };
        // A worker that does not manage to finish is killed; one without a parent ends by itself.
        let _ = io::stdin().lock().read_line(&mut line);
        std::process::exit(0);
    });
    let mut builder = if task.threads {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2);
        builder
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    builder.enable_all().build()?.block_on(work(Arc::new(task), log, finished))
}

async fn work(task: Arc<Task>, log: Arc<Log>, finished: watch::Receiver<bool>) -> io::Result<()> {
    let mut resources = Vec::new();
    for _ in 0..usize::from(task.tasks) + task.wants.len() {
        resources.push(resource::Client::connect(&task.resource).await?);
    }
    // From here on faults may come.
    let begin =
        Record { value: u64::from(std::process::id()), ..Record::new(Kind::Begin, task.worker, now()) };
    log.write(begin)?;
    if let Some(locks) = connect(&task, &finished).await {
        let claims = Arc::new(AtomicU64::new(1));
        let mut players = tokio::task::JoinSet::new();
        let blocking = (task.tasks > 2 && task.crowd.is_none()).then(|| {
            let player = blocking::Blocking::new(&locks, &task, &log, &claims, &finished);
            tokio::task::spawn_blocking(|| player.play())
        });
        let mut clients = vec![locks.clone()];
        // The number between the two is that of the thread with the blocking API.
        let contenders = (task.tasks + 1..).zip(task.wants.iter().copied().map(Some));
        let players_of = (0..task.tasks).map(|number| (number, None)).chain(contenders);
        for ((number, wants), resource) in players_of.zip(resources) {
            // In a crowd every task has its own client.
            if task.crowd.is_some() && number > 0 {
                clients.extend(connect(&task, &finished).await);
            }
            let player = Player {
                locks: clients[clients.len() - 1].clone(),
                resource,
                pen: Pen::new(Arc::clone(&log), task.worker, number),
                dice: Dice::fork(task.seed, u64::from(task.worker) << 16 | u64::from(number)),
                task: Arc::clone(&task),
                ttl: task.ttl(),
                claims: Arc::clone(&claims),
                finished: finished.clone(),
                seen: 0,
                wants,
            };
            players.spawn(player.play());
        }
        while let Some(player) = players.join_next().await {
            if let Err(error) = player {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        if let Some(Err(error)) = match blocking {
            Some(blocking) => Some(blocking.await),
            None => None,
        } {
            std::panic::resume_unwind(error.into_panic());
        }
        // Dropped guards are released in the background.
        for locks in clients {
            locks.close().await;
        }
    }
    log.write(Record::new(Kind::End, task.worker, now()))
}

/// Connects, however long it takes: the store may be down just now. `None` if there is nothing left to do.
async fn connect(task: &Task, finished: &watch::Receiver<bool>) -> Option<Locks> {
    let mut finished = finished.clone();
    loop {
        let connect = tokio::time::timeout(Duration::from_secs(5), Locks::connect_builder(&task.url));
        let connected = tokio::select! {
            connected = connect => connected,
            _ = finished.wait_for(|finished| *finished) => return None,
        };
        match connected {
            Ok(Ok(builder)) => {
                #[cfg(feature = "__bugs")]
                let builder = crate::defects::client::plant(builder, Arc::new(SystemClock));
                let patience = Duration::from_millis(task.patience_ms);
                let locks = builder.build().with_options(|options| {
                    options.ttl = task.ttl();
                    options.owner = format!("worker-{}", task.worker).into();
                    options.request_timeout = patience;
                    options.release_timeout = patience * 2;
                });
                return Some(locks);
            }
            Ok(Err(error)) => eprintln!("worker {}: connecting: {error:?}", task.worker),
            Err(_) => eprintln!("worker {}: connecting takes too long", task.worker),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One task of a worker.
struct Player {
    locks: Locks,
    resource: resource::Client,
    pen: Pen,
    dice: Dice,
    task: Arc<Task>,
    /// The ttl requested for the lease of this turn.
    ttl: Duration,
    claims: Arc<AtomicU64>,
    finished: watch::Receiver<bool>,
    /// A fence that was seen on a lock that is revoked; by now it may be outdated.
    seen: u64,
    /// The only lock that it uses, if it has one.
    wants: Option<u16>,
}

impl Player {
    async fn play(mut self) {
        while !*self.finished.borrow() {
            match self.task.crowd {
                Some(part) => self.begin_in_crowd(part),
                None => self.begin(),
            }
            if self.wants.is_none() && !self.task.session && self.task.abandons && self.dice.once_in(150) {
                self.outlive().await;
                continue;
            }
            if self.task.crowd.is_some() {
                self.take_guard().await;
                tokio::task::yield_now().await;
                continue;
            }
            if self.wants.is_none() && self.pen.task > 0 && self.dice.once_in(120) {
                self.close_in_the_middle().await;
                continue;
            }
            let plain = if self.part() == Part::Hot { self.task.plain * 12 } else { self.task.plain };
            match self.part() {
                Part::Archive => self.read_and_write().await,
                Part::Evict if self.dice.once_in(3) => self.revoke().await,
                Part::Turn if self.pen.mode == Mode::Exclusive => self.write_and_read().await,
                Part::Relay => self.relay().await,
                Part::Raw => self.vanish().await,
                Part::Several if !self.dice.once_in(3) => self.take_several().await,
                _ if self.dice.once_in(12) => self.take_with().await,
                _ if !self.task.session && self.dice.once_in(plain) => self.take_lease().await,
                _ => self.take_guard().await,
            }
            if self.devoted().is_none() && self.dice.once_in(3) {
                tokio::time::sleep(self.dice.micros(4_000)).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Begins a turn: chooses the lock and the mode.
    fn begin(&mut self) {
        self.pen.claim = self.claims.fetch_add(1, Ordering::Relaxed);
        // Shows that a step of its wall clock has reached this process; the library may not use that clock.
        std::hint::black_box(std::time::SystemTime::now());
        let crowd = if self.dice.once_in(2) { Part::Pool } else { Part::Book };
        let part = match (self.devoted(), self.dice.below(100)) {
            _ if self.wants.is_some() => Part::Cool,
            (Some(Part::Hot), 0..25) | (Some(Part::Book), _) => crowd,
            (Some(Part::Evict), 0..40) => Part::Turn,
            (Some(part), _) => part,
            (None, 0..6) => Part::Hot,
            (None, 6..20) => crowd,
            (None, 20..36) => Part::Evict,
            (None, 36..46) => Part::Turn,
            (None, 46..60) => Part::Relay,
            (None, 60..65) if self.task.parts.contains(&Part::Raw) => Part::Raw,
            (None, 65..72) if self.task.parts.contains(&Part::Mixed) => Part::Mixed,
            (None, 73..80) => Part::Several,
            (None, 72) if self.task.parts.contains(&Part::Archive) => Part::Archive,
            (None, _) => Part::Cool,
        };
        self.pen.name =
            self.wants.or_else(|| self.lock_for(part)).or_else(|| self.lock_for(Part::Book)).unwrap_or(0);
        let reads = match self.part() {
            Part::Book => !self.dice.once_in(6),
            Part::Turn => self.dice.once_in(2),
            Part::Evict => self.dice.once_in(3),
            Part::Archive => true,
            _ => false,
        };
        self.pen.mode = match self.name().limit {
            0 if reads && self.task.shared => Mode::Shared,
            0 => Mode::Exclusive,
            _ => Mode::Permit,
        };
        self.ttl = match self.dice.below(8) {
            0 => self.task.ttl() / 2,
            1 => self.task.ttl() * 2,
            _ => self.task.ttl(),
        };
    }

    /// Any lock for this purpose; `None` if there is none.
    fn lock_for(&mut self, part: Part) -> Option<u16> {
        let places: Vec<u16> =
            (0..).zip(&self.task.parts).filter(|(_, of)| **of == part).map(|(place, _)| place).collect();
        places.get(self.dice.below(places.len() as u64) as usize).copied()
    }

    /// What this task mostly uses, if anything. The first task of each process that has several uses a hot lock, so
    /// that there is nearly always a queue for one; the second belongs to a crowd of readers and permits; the third
    /// revokes and downgrades.
    fn devoted(&self) -> Option<Part> {
        match (self.pen.task, self.task.tasks) {
            _ if self.wants.is_some() => Some(self.part()),
            (0, 2..) => Some(Part::Hot),
            (1, 3..) => Some(Part::Book),
            (2, 4..) => Some(Part::Evict),
            _ => None,
        }
    }

    /// What the lock of this turn is for.
    fn part(&self) -> Part {
        self.task.parts[usize::from(self.pen.name)]
    }

    /// The requested ttl, as recorded in a history.
    fn asked(&self) -> u64 {
        if self.task.session { 0 } else { self.ttl.as_nanos() as u64 }
    }

    /// The owner label that the store shows: it identifies the claim and its process.
    fn owner(&self) -> String {
        queue::owner(self.pen.worker, self.pen.claim)
    }

    fn name(&self) -> &Name {
        &self.task.names[usize::from(self.pen.name)]
    }

    /// The holder, as sent to the resource.
    fn holder(&self) -> resource::Holder {
        let Pen { name, task, worker, claim, lease, fence, .. } = self.pen;
        resource::Holder { name, task, worker, claim, lease, fence }
    }

    /// Writes to the fenced table.
    async fn write_fenced(&mut self) {
        let number = self.pen.next_write();
        self.pen.note(Kind::WriteCall, now(), 0, number);
        // Without the resource there is nothing to show; the supervisor notices that it is gone.
        let Ok(taken) = self.resource.write(self.holder()).await else { std::process::exit(4) };
        let kind = if taken { Kind::WriteTaken } else { Kind::WriteRejected };
        self.pen.note(kind, now(), 0, number);
    }

    /// Whether this turn protects something.
    fn protects(&mut self) -> bool {
        self.pen.mode == Mode::Exclusive && !self.dice.once_in(3)
    }

    async fn enter(&mut self) {
        if self.resource.enter(self.holder()).await.is_err() {
            std::process::exit(4);
        }
    }

    async fn leave(&mut self) {
        if self.resource.leave(self.holder()).await.is_err() {
            std::process::exit(4);
        }
    }

    /// How long to keep it: mostly not at all or for moments, sometimes for longer than its ttl.
    fn hold_for(&mut self) -> Duration {
        let alone = self.task.tasks == 1;
        if let Some(part) = self.task.crowd {
            return self.hold_in_crowd(part);
        }
        let ttl = self.ttl;
        // Two simultaneous holders of one of these are seen only if both look.
        let crowded = matches!(self.part(), Part::Hot | Part::Book | Part::Pool);
        if !self.task.lingers {
            return self.dice.micros(5_000);
        }
        match self.dice.below(if crowded { 2_000 } else { 60 }) {
            // Longer than a restart or a fail-over takes, and than it may take to notice that a session has ended.
            0..5 if self.task.stays && !crowded => {
                let most = if self.task.session { 6_000 } else { 3_000 };
                Duration::from_millis(1_500 + self.dice.below(most))
            }
            0..8 if self.task.late => ttl.mul_f64(1.0 + self.dice.below(50) as f64 / 100.0),
            0 => ttl.mul_f64(1.0 + self.dice.below(50) as f64 / 100.0),
            1 | 2 => ttl.mul_f64(self.dice.below(100) as f64 / 200.0),
            _ if crowded => Duration::from_micros(self.dice.between(500, 5_000)),
            _ if self.part() == Part::Evict => Duration::from_micros(self.dice.between(1_000, 20_000)),
            _ if alone => Duration::from_micros(self.dice.below(30_000)),
            roll if roll % 3 > 0 => Duration::ZERO,
            _ => self.dice.micros(2_000),
        }
    }
}
