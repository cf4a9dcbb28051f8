//! Runs a plan: starts everything, injects the faults, ends everything in order, and has it judged.
//!
//! One file because these are the steps of one run, in their order; each step of its own is a module.

mod crew;
mod failover;
mod faults;
mod landed;
mod load;
pub(crate) mod many;
pub(crate) mod rest;
mod stalls;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::backend::{Info, Liveness, TimeAuthority};
use leasehold::{LeaseId, Locks};

use crate::check;
use crate::clock::Clocks;
use crate::floors::{self, FAILOVER_SECS, FAILOVER_TIMES};
use crate::ground::Ground;
use crate::history::record::Log;
use crate::history::setting::{Losses, Name, Promises, Setting};
use crate::lock_server::is_ready;
use crate::plan::{self, Plan};
use crate::report::Report;
use crate::roles::{self, Around, Role};
use crate::room::Room;
use crate::store::{Front, Language, Profile, Store};
use crate::worker::{CrowdPart, Sink, Task, now};
use crate::{resource, worker};

use crew::Crew;
use faults::Making;
pub use landed::{Faults, Landed};
use load::Load;
use many::Looker;
pub use many::Looks;
use rest::Rest;
use stalls::Stalls;

/// The name of the supervisor's history in the directory of a run.
const HISTORY: &str = "supervisor";

/// Where leases are left for another process, in the directory of a run.
const HANDED: &str = "handed";

/// How long workers may take to give back what they hold.
pub(crate) const FINISH: Duration = Duration::from_secs(20);

/// How long a dead waiter's place can delay the others, where there are queues.
pub(crate) const TICKET: Duration = Duration::from_secs(10);

/// How long after the end something may be left where nothing has to expire.
const AT_REST: Duration = Duration::from_secs(1);

/// How many tasks use the archive and nothing else, at least.
const READERS: usize = 4;

/// The default number of idle names in the profile `many`.
pub const NAMES: u32 = 50_000;

/// The request for a run.
#[derive(Debug, Clone)]
pub struct Order {
    /// The store.
    pub store: Store,
    /// What is in front of it.
    pub front: Front,
    /// The URL of the user's own store, instead of a temporary one.
    pub url: Option<String>,
    /// The profile of faults.
    pub profile: Profile,
    /// How long the workers work.
    pub time: Duration,
    /// The seed of the plan.
    pub seed: u64,
    /// How many worker processes there are at any time.
    pub workers: usize,
    /// The language of the workers, if it is not Rust.
    pub language: Option<Language>,
    /// The directory of the SDKs.
    pub sdk: PathBuf,
    /// How many locks are hot: held for moments, and always wanted by several workers.
    pub hot: u16,
    /// In the profile `many`: the number of idle names, and of other programs' keys.
    pub names: u32,
    /// How many replicas must confirm a grant, where there are any.
    pub wait_replicas: u32,
    /// The directory for all files: empty, or not existing yet.
    pub out: PathBuf,
    /// Whether to print the progress on stderr, if that is a terminal.
    pub progress: bool,
    /// The prefix of the locks' names. The default is none in a temporary store, and a random one in any other.
    pub prefix: Option<String>,
    /// When this becomes true the run ends early, and is judged as far as it came.
    pub stop: Arc<AtomicBool>,
}

impl Order {
    /// Twelve workers for twenty seconds, or for as long as twenty fail-overs take.
    pub fn new(store: Store, profile: Profile, out: impl Into<PathBuf>) -> Self {
        let time = Duration::from_secs(if profile == Profile::Failover { FAILOVER_SECS } else { 20 });
        Order {
            store,
            front: Front::None,
            url: None,
            profile,
            time,
            seed: 1,
            workers: 12,
            language: None,
            sdk: "sdk".into(),
            hot: plan::HOT,
            names: NAMES,
            wait_replicas: 0,
            out: out.into(),
            progress: false,
            prefix: None,
            stop: Arc::default(),
        }
    }

    /// The worker program of an SDK.
    fn program(&self, language: Language) -> PathBuf {
        let program = self.sdk.join(language.as_str()).join("bin/worker");
        std::path::absolute(&program).unwrap_or(program)
    }

    /// Why workers in this language cannot take part.
    fn refuses(&self, language: Language) -> Option<String> {
        use Profile::{Calm, Kill, Net, Pause, Restart};
        if self.store != Store::Http || self.front != Front::None {
            return Some(format!("workers in {language} reach a lock server only: --store http"));
        }
        if !matches!(self.profile, Calm | Kill | Pause | Net | Restart) {
            return Some(format!("workers in {language} have no profile {}", self.profile));
        }
        let program = self.program(language);
        (!program.is_file()).then(|| {
            format!(
                "there is no {}: run it in the repository, or name its sdk/ with --sdk",
                program.display()
            )
        })
    }

    /// Runs it, has it judged, and writes the report.
    ///
    /// Call it on a thread that lives as long as this takes: the processes it starts end with that thread. The binary
    /// must begin with [`roles::play_if_asked`].
    ///
    /// # Errors
    /// If something it needs is missing or fails; the message says what to do. Violations are not errors.
    pub fn run(&self) -> io::Result<Report> {
        if let Some(why) = self.front.refuses(self.store, self.url.is_none()) {
            let message = format!("the front {} does not suit {}: {why}", self.front, self.store);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if let Some(why) = self.profile.refuses(self.store, self.url.is_none()) {
            let message = format!("the profile {} does not suit {}: {why}", self.profile, self.store);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if self.profile == Profile::Failover && self.front != Front::None {
            let message = "the profile failover is for a store with nothing before it: --front none";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if self.wait_replicas > u32::from(self.store.is_found_by_others() && self.url.is_none()) {
            let message = "wait_replicas is for redis-sentinel and redis-cluster, with one replica each";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if self.hot != plan::HOT && matches!(self.profile, Profile::Crowd | Profile::Failover) {
            let message = format!("the profile {} has its own locks: it takes no --hot", self.profile);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if let Some(why) = self.language.and_then(|language| self.refuses(language)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        std::fs::create_dir_all(&self.out)?;
        let out = self.out.canonicalize()?;
        if std::fs::read_dir(&out)?.next().is_some() {
            let message =
                format!("{} is not empty: --out names a directory for this run alone", out.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let lasts = u64::try_from(self.time.as_millis()).unwrap_or(u64::MAX);
        let mut plan = Plan::new(
            self.seed,
            (self.store, self.front),
            self.url.is_none(),
            self.profile,
            lasts,
            self.workers.max(2),
        )
        .with_hot(self.hot);
        plan.language = self.language;
        plan.wait_replicas = self.wait_replicas;
        std::fs::write(out.join(plan::FILE), serde_json::to_string_pretty(&plan)? + "\n")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let seen = Run { order: self, plan: &plan, out: &out, runtime: &runtime }.run()?;
        let verdict = check::check(&out)?;
        let report = Report::new(self, &plan, seen, verdict, &out)?;
        report.write(&out)?;
        Ok(report)
    }
}

/// What the supervisor observed of a run.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) configuration: String,
    pub(crate) promises: Promises,
    pub(crate) faults: Faults,
    pub(crate) looks: Looks,
    pub(crate) processes: u32,
    pub(crate) stuck: usize,
    pub(crate) worked: Duration,
    pub(crate) others: u64,
}

struct Run<'a> {
    order: &'a Order,
    plan: &'a Plan,
    out: &'a Path,
    runtime: &'a tokio::runtime::Runtime,
}

impl Run<'_> {
    fn run(&self) -> io::Result<Observed> {
        let Order { store, profile, .. } = *self.order;
        self.say("starting the store");
        let clocks = if profile == Profile::Clock { Some(Clocks::new()?) } else { None };
        let environment =
            |of: fn(&Clocks) -> Vec<(String, String)>| clocks.as_ref().map(of).unwrap_or_default();
        let mut ground = match &self.order.url {
            Some(url) => Ground::theirs(store, url),
            None => Ground::start(self.plan, self.out, &environment(Clocks::of_store))?,
        };
        let entered = ground.room().map(Room::entered).unwrap_or_default();
        let info = self.info(&ground)?;
        let setting = self.setting(&ground, &info);
        setting.write(self.out)?;
        let looks = self.out.join("looks.json");
        let looker = if profile == Profile::Many { Some(self.fill(&ground, &looks)?) } else { None };
        let log = Log::append(&self.out.join(HISTORY))?;
        let stalls = Stalls::watch(&self.out.join(HISTORY))?;

        self.say("starting the workers");
        let socket = self.out.join("socket");
        std::fs::create_dir_all(self.out.join(HANDED))?;
        let role = Role::Resource { socket: socket.clone(), history: self.out.join(resource::HISTORY) };
        let mut resource = Killed(roles::start(role, Stdio::inherit(), &Around::default())?);
        if !is_ready(&mut resource.0) {
            return Err(io::Error::other("the resource does not start"));
        }
        let mut crew = Crew::new(
            self.out,
            Around { environment: environment(Clocks::of_workers), entered: entered.clone() },
        );
        for (place, worker) in self.plan.workers.iter().enumerate() {
            let task = self.task(place, worker, &setting, &info, &socket);
            crew.add(task, |number| ground.url_of(number))?;
        }
        crew.wait_for_begin()?;

        let begun = now();
        let (faults, worked, others) = self.work(&mut ground, &mut crew, &log, clocks.as_ref())?;
        let span = (begun, now());
        drop(looker);
        let looks = if profile == Profile::Many { Looks::read(&looks)? } else { Looks::default() };
        self.say("everybody finishes");
        let stuck = crew.finish(FINISH)?;
        let processes = crew.count();
        drop(crew);
        drop(resource);
        let _ = std::fs::remove_file(&socket);
        // Leases that nobody took expire.
        let _ = std::fs::remove_dir_all(self.out.join(HANDED));
        self.say("looking at the store at rest");
        if let Some(server) = ground.fallen() {
            ground.restart(server)?;
        }
        let patience = match profile {
            // Every worker gave back its locks, and none died: there is nothing to wait for.
            Profile::Leak => AT_REST,
            _ => TICKET + Duration::from_millis(self.plan.ttl_ms) + Duration::from_secs(5),
        };
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let names = setting.names.clone();
        let role =
            Role::Rest(Rest { url: ground.own_url(), names, patience_ms, history: self.out.join(HISTORY) });
        let mut look =
            Killed(roles::start(role, Stdio::inherit(), &Around { entered, ..Around::default() })?);
        if !look.0.wait()?.success() {
            return Err(io::Error::other("the store cannot be looked at"));
        }
        stalls.end()?;
        let setting = Setting { span, ..setting };
        setting.write(self.out)?;
        self.say("judging");
        let (configuration, promises) = (setting.configuration, setting.promises);
        Ok(Observed { configuration, promises, faults, looks, processes, stuck, worked, others })
    }

    /// The store's abilities. Asked before any fault, so that the store is set up when the workers come.
    fn info(&self, ground: &Ground) -> io::Result<Info> {
        let url = ground.own_url();
        if ground.room().is_some() && !self.order.store.has_server() {
            // Only its workers can see it.
            let mut infos = leasehold::stores().into_iter().map(|store| store.info);
            let info = infos.find(|info| info.scheme == self.order.store.as_str());
            return info.ok_or_else(|| io::Error::other("this build has no such store"));
        }
        let locks = self.runtime.block_on(Locks::connect(&url)).map_err(io::Error::other)?;
        self.runtime.block_on(locks.close());
        Ok(locks.info())
    }

    /// Fills the store, delays every packet, and starts to sweep and list.
    fn fill(&self, ground: &Ground, looks: &Path) -> io::Result<Killed> {
        self.say("filling the store");
        let name = "rest-0";
        self.runtime.block_on(async {
            let locks = Locks::connect(&ground.own_url()).await.map_err(io::Error::other)?;
            let guard = locks.mutex(name).lock().await.map_err(io::Error::other)?;
            guard.release().await.map_err(io::Error::other)?;
            locks.close().await;
            io::Result::Ok(())
        })?;
        ground.fill(name, self.order.names)?;
        ground.delay(many::LATE);
        let role = Role::Looker(Looker { url: ground.url_of(0), out: looks.to_owned() });
        Ok(Killed(roles::start(role, Stdio::inherit(), &Around::default())?))
    }

    /// Lets the workers work, and injects the faults.
    fn work(
        &self,
        ground: &mut Ground,
        crew: &mut Crew,
        log: &Log,
        clocks: Option<&Clocks>,
    ) -> io::Result<(Faults, Duration, u64)> {
        let mut making = Making::new(self.plan, ground, crew, log, clocks);
        let started = making.started;
        let mut planned = self.plan.faults.iter().peekable();
        let mut said = started;
        let mut load = Load::new();
        let least = floors::failovers(self.plan);
        let mut longest = Duration::ZERO;
        while !self.order.stop.load(Ordering::Relaxed)
            && (started.elapsed() < self.order.time
                // However slow the machine is.
                || making.landed.failovers() < least && started.elapsed() < self.order.time * FAILOVER_TIMES)
        {
            let elapsed = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            while let Some(fault) = planned.next_if(|fault| fault.at_ms <= elapsed) {
                let begun = Instant::now();
                let is_failover = fault.fault.is_failover();
                // Once a run has enough fail-overs, it starts none that would outlast it.
                let enough = is_failover && making.landed.failovers() >= least;
                let too_late = enough && started.elapsed() + longest > self.order.time;
                if !does_nothing() && !too_late {
                    making.begin(*fault)?;
                }
                if is_failover {
                    // It takes as long as it takes.
                    longest = longest.max(begun.elapsed());
                    break;
                }
            }
            making.go_on()?;
            load.go_on();
            if said.elapsed() > Duration::from_millis(250) {
                said = Instant::now();
                making.crew.watch()?;
                let (records, landed) = (making.crew.records(), making.landed.landed());
                self.say(&format!(
                    "{:5.1} s, {records} records, {landed} faults landed",
                    elapsed as f64 / 1e3
                ));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        making.crew.watch()?;
        making.heal()?;
        Ok((making.landed, started.elapsed(), load.others()))
    }

    /// The locks that the workers use, and the purpose of each.
    fn locks(&self, info: &Info, prefix: &str) -> Vec<(worker::Part, Name)> {
        if self.order.profile != Profile::Crowd {
            let kills = self.order.profile == Profile::Kill;
            return worker::locks_of(info, self.plan.hot, kills, prefix);
        }
        let tasks: u16 = self.plan.workers.iter().map(|worker| worker.tasks).sum();
        worker::locks_of_crowd(tasks, prefix)
    }

    fn setting(&self, ground: &Ground, info: &Info) -> Setting {
        let Order { store, front, profile, url, seed, prefix, .. } = self.order;
        // The user's own store may contain anything.
        let random = || url.as_ref().map(|_| format!("torture-{}/", LeaseId::random().hash()));
        let prefix = prefix.clone().or_else(random).unwrap_or_default();
        let mut names: Vec<_> = self.locks(info, &prefix).into_iter().map(|(_, name)| name).collect();
        names.iter_mut().for_each(|name| name.part = ground.part_of(&name.name));
        let session = info.liveness == Liveness::Session;
        let nanos = |time: Duration| time.as_nanos() as u64;
        let durable = match store {
            Store::Redis | Store::Quorum | Store::MixedQuorum => {
                url.is_none() && matches!(profile, Profile::Restart | Profile::All)
            }
            Store::Memory | Store::Sentinel | Store::Cluster => false,
            _ => true,
        };
        let promises = Promises {
            session,
            // As the store's page says: the end of a session is noticed within a second.
            notices_within: if session { nanos(Duration::from_secs(1)) } else { 0 },
            fenced: info.fenced,
            fifo: info.fifo,
            push: info.push,
            ticket: if info.fifo { nanos(TICKET) } else { 0 },
            durable,
            keeps: profile.keeps(),
            steady: !store.expires_by_wall_clock() || info.time == TimeAuthority::None,
            losses: Losses::of(store.as_str(), self.order.wait_replicas),
        };
        Setting {
            seed: *seed,
            profile: profile.to_string(),
            store: front.before(*store),
            configuration: ground.configuration().to_owned(),
            promises,
            names,
            sides: u32::try_from(ground.sides()).unwrap_or(0),
            span: (now(), now()),
        }
    }

    fn task(
        &self,
        place: usize,
        worker: &plan::Worker,
        setting: &Setting,
        info: &Info,
        socket: &Path,
    ) -> Task {
        let Order { store, profile, seed, .. } = self.order;
        let before: u16 = self.plan.workers[..place].iter().map(|worker| worker.tasks).sum();
        let part = match place < self.plan.workers.len().div_ceil(2) {
            // The very first keeps the hot name for a quarter of the run: less than J5 lets anybody wait.
            true => CrowdPart::Crowd { stuck_ms: if place == 0 { self.plan.lasts_ms / 4 } else { 0 } },
            false => CrowdPart::Quiet { from: 1 + before },
        };
        let sink = match place % 3 {
            0 => Some(Sink::Blocks { ms: self.plan.ttl_ms + self.plan.ttl_ms / 4 }),
            1 => Some(Sink::Panics),
            _ => None,
        };
        let lossy = matches!(profile, Profile::Net | Profile::Restart | Profile::Failover | Profile::All);
        let parts: Vec<_> = self.locks(info, "").into_iter().map(|(part, _)| part).collect();
        let mut wants = worker.wants.clone();
        let several = self.plan.workers.iter().filter(|worker| worker.tasks > 1).count();
        if let Some(archive) = parts.iter().position(|part| *part == worker::Part::Archive)
            && worker.tasks > 1
        {
            wants.extend(std::iter::repeat_n(archive as u16, READERS.div_ceil(several)));
        }
        Task {
            url: String::new(),
            worker: 0,
            history: self.out.join(worker::history(0)),
            resource: socket.to_owned(),
            seed: *seed,
            tasks: worker.tasks,
            wants,
            threads: worker.threads,
            names: setting.names.clone(),
            parts,
            handed: self.out.join(HANDED),
            ttl_ms: self.plan.ttl_ms,
            session: setting.promises.session,
            shared: info.shared,
            lists: info.fifo,
            shows_ids: info.shows_ids,
            cancels: profile.cancels(),
            plain: if lossy && *profile != Profile::Failover { 2 } else { 5 },
            repeats: !store.is_quorum(),
            // After a step back of the store's clock such a lease would last for an hour.
            abandons: match profile {
                Profile::Leak | Profile::Crowd | Profile::Failover => false,
                Profile::Clock => !store.expires_by_wall_clock(),
                _ => true,
            },
            lingers: *profile != Profile::Leak,
            stays: setting.promises.session && lossy || matches!(profile, Profile::Logs | Profile::Failover),
            late: *profile == Profile::Net && !setting.promises.session,
            // Where answers are lost, a long wait shows little.
            patience_ms: match profile {
                // A lease given back after the replica has taken over need not expire.
                Profile::Failover => 2_500,
                _ if lossy => 400,
                _ => 1_000,
            },
            crowd: (*profile == Profile::Crowd).then_some(part),
            sink: sink.filter(|_| *profile == Profile::Logs),
            program: self.order.language.map(|language| self.order.program(language)),
        }
    }

    /// Prints a line that the next one overwrites.
    fn say(&self, line: &str) {
        let mut stderr = io::stderr().lock();
        if self.order.progress && stderr.is_terminal() {
            let Order { store, front, profile, .. } = self.order;
            let _ = write!(stderr, "\r\x1b[K{} {profile}: {line}", front.before(*store));
            let _ = stderr.flush();
        }
    }
}

/// Whether no fault is injected: a planted defect.
fn does_nothing() -> bool {
    #[cfg(feature = "__bugs")]
    return leasehold::bugs::on(leasehold::bugs::Bug::NoFaultIsMade);
    #[cfg(not(feature = "__bugs"))]
    false
}

/// A process that is killed on drop.
pub(crate) struct Killed(pub(crate) std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
