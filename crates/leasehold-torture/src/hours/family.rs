//! One store for the whole run, its residents (long-lived workers), and what can be measured of them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use leasehold::Locks;
use leasehold::backend::{Info, Liveness};

use crate::ground::Ground;
use crate::history::record::{Kind, read};
use crate::history::setting::Name;
use crate::lock_server::is_ready;
use crate::plan::{HOT, Plan};
use crate::roles::{self, Around, Role};
use crate::store::{Front, Profile, Store};
use crate::supervise::rest::Rest;
use crate::supervise::{FINISH, Killed, TICKET};
use crate::worker::{Task, locks_of};

use super::counts;
use super::growth::Unit;
use super::resident::Resident;

/// The residents: how many tasks each has, and whether on several threads.
const RESIDENTS: [(u16, bool); 2] = [(3, false), (4, true)];

/// How long a server may take to notice that its clients are gone.
const NOTICED: Duration = Duration::from_secs(10);

/// One measured value.
pub(super) struct Reading {
    pub(super) what: String,
    pub(super) unit: Unit,
    /// It belongs to the store, and is meaningful only between rounds.
    pub(super) of_store: bool,
    /// It includes spent ids, which stay for a minute.
    pub(super) has_spent: bool,
    pub(super) value: Option<u64>,
}

/// What residents do.
pub(super) struct Ways {
    pub(super) seed: u64,
    /// They repeat acquires, and so do all workers in the rounds: such ids are refused for a minute.
    pub(super) spends: bool,
    /// They cancel calls half-way.
    pub(super) cancels: bool,
    /// Their connections are reset now and then.
    pub(super) resets: bool,
}

/// A store and its residents. The fields are dropped in this order.
pub(super) struct Family {
    pub(super) store: Store,
    residents: Vec<Resident>,
    _resource: Killed,
    pub(super) ground: Ground,
    names: Vec<Name>,
    ttl_ms: u64,
    directory: PathBuf,
    resets: bool,
}

impl Family {
    /// Starts the store, unless it is the user's own, and the residents, which add their grants to `grants`.
    pub(super) fn start(
        store: Store,
        url: Option<&str>,
        ways: &Ways,
        directory: PathBuf,
        grants: &Arc<AtomicU64>,
    ) -> io::Result<Self> {
        std::fs::create_dir_all(&directory)?;
        let resets = ways.resets && url.is_none() && store.has_server();
        let profile = if resets { Profile::Net } else { Profile::Calm };
        let ground = match url {
            Some(url) => Ground::theirs(store, url),
            // No time for faults.
            None => {
                let plan = Plan::new(ways.seed, (store, Front::None), true, profile, 0, RESIDENTS.len());
                Ground::start(&plan, &directory, &[])?
            }
        };
        let info = info(&ground.own_url())?;
        let prefix = if url.is_some() { "torture-resident/" } else { "resident/" };
        let (parts, names): (Vec<_>, Vec<_>) = locks_of(&info, HOT, false, prefix).into_iter().unzip();
        let handed = directory.join("handed");
        std::fs::create_dir_all(&handed)?;
        let socket = directory.join("socket");
        let role = Role::Resource { socket: socket.clone(), history: "/dev/null".into() };
        let mut resource = Killed(roles::start(role, Stdio::inherit(), &Around::default())?);
        if !is_ready(&mut resource.0) {
            return Err(io::Error::other("the resource does not start"));
        }
        let ttl_ms = if store.is_quorum() { 800 } else { 400 };
        let task = |number: u32, (tasks, threads)| Task {
            url: ground.url_of(number),
            worker: number,
            history: PathBuf::new(),
            resource: socket.clone(),
            seed: ways.seed,
            tasks,
            wants: Vec::new(),
            threads,
            names: names.clone(),
            parts: parts.clone(),
            handed: handed.clone(),
            ttl_ms,
            session: info.liveness == Liveness::Session,
            shared: info.shared,
            lists: info.fifo,
            shows_ids: info.shows_ids,
            cancels: ways.cancels,
            plain: 5,
            repeats: ways.spends && !store.is_quorum(),
            abandons: true,
            lingers: true,
            stays: false,
            late: false,
            patience_ms: 1_000,
            crowd: None,
            sink: None,
            program: None,
        };
        let residents = (1..)
            .zip(RESIDENTS)
            .map(|(number, shape)| Resident::start(task(number, shape), &directory, grants));
        let residents = residents.collect::<io::Result<_>>()?;
        Ok(Family { store, residents, _resource: resource, ground, names, ttl_ms, directory, resets })
    }

    /// Fails if a resident has ended.
    pub(super) fn watch(&mut self) -> io::Result<()> {
        self.residents.iter_mut().try_for_each(Resident::watch)
    }

    /// Resets the connections of some residents, if the profile asks for it.
    pub(super) fn disturb(&self, number: usize) {
        if let Some(proxy) = self.ground.proxy(number).filter(|_| self.resets) {
            proxy.reset();
        }
    }

    /// Everything that can be measured, always in the same order.
    pub(super) fn readings(&self) -> Vec<Reading> {
        let store = self.store;
        let mut readings = Vec::new();
        let mut add = |who: &str, what: &str, unit, of_store, has_spent, value| {
            let what = format!("{store}, {who}: {what}");
            readings.push(Reading { what, unit, of_store, has_spent, value });
        };
        for resident in &self.residents {
            let (who, pid) = (format!("resident {}", resident.number()), resident.pid());
            add(&who, "memory", Unit::Bytes, false, false, counts::memory(pid));
            add(&who, "descriptors", Unit::Count, false, false, counts::descriptors(pid));
        }
        for pid in self.ground.lock_servers() {
            add("lock server", "memory", Unit::Bytes, true, true, counts::memory(pid));
            add("lock server", "descriptors", Unit::Count, true, false, counts::descriptors(pid));
        }
        let several = self.ground.ports().len() > 1;
        for (number, port) in self.ground.ports().into_iter().enumerate() {
            let who = if several { format!("node {}", number + 1) } else { "server".into() };
            add(&who, "connections", Unit::Count, true, false, counts::connections(port));
        }
        let kept = self.ground.kept();
        for (number, (what, value)) in kept.into_iter().enumerate() {
            let who = if several { format!("store {}", number / 2 + 1) } else { "store".into() };
            let unit = if what.starts_with("bytes") { Unit::Bytes } else { Unit::Count };
            add(&who, what, unit, true, true, value);
        }
        readings
    }

    /// Ends the residents, and checks the store at rest. Returns what is wrong.
    pub(super) fn finish(&mut self) -> io::Result<Vec<String>> {
        let store = self.store;
        let mut wrong = Vec::new();
        self.ground.heal();
        self.residents.iter_mut().for_each(Resident::finish);
        for resident in &mut self.residents {
            if !resident.ends_within(FINISH)? {
                wrong.push(format!("{store}: resident {} does not finish", resident.number()));
            }
        }
        self.residents.clear();
        let patience = TICKET + Duration::from_millis(self.ttl_ms) + Duration::from_secs(5);
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let history = self.directory.join("rest");
        let names = self.names.clone();
        let rest = Rest { url: self.ground.own_url(), names, patience_ms, history: history.clone() };
        let mut look = Killed(roles::start(Role::Rest(rest), Stdio::inherit(), &Around::default())?);
        if !look.0.wait()?.success() {
            return Err(io::Error::other("the store cannot be looked at"));
        }
        let left = read(&history)?.iter().filter(|record| record.kind == Kind::Left).count();
        if left > 0 {
            wrong.push(format!("{store}: {left} leases or places are left at rest"));
        }
        let noticed = Instant::now();
        for port in self.ground.ports() {
            while counts::connections(port).is_some_and(|count| count > 0) {
                if noticed.elapsed() > NOTICED {
                    let count = counts::connections(port).unwrap_or(0);
                    wrong.push(format!("{store}: {count} connections are left at rest"));
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(wrong)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }
}

/// The store's abilities; asking also sets it up.
fn info(url: &str) -> io::Result<Info> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = Locks::connect(url).await.map_err(io::Error::other)?;
        locks.close().await;
        Ok(locks.info())
    })
}
