//! Where a run takes place: the store, with the servers and proxies that belong to it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use rustix::process::Signal;

use crate::hours::counts;
use crate::lock_server::LockServer;
use crate::plan::Plan;
use crate::proxy::Proxy;
use crate::replicated::Replicated;
use crate::roles::Around;
use crate::room::Room;
use crate::servers::postgres::{Postgres, Stop};
use crate::servers::redis::Server as Redis;
use crate::store::{Profile, Store};

/// A server that can be killed and stopped.
#[derive(Debug)]
enum Server {
    Redis(Redis),
    Postgres(Postgres),
    Lock(LockServer),
}

impl Server {
    fn port(&self) -> u16 {
        match self {
            Server::Redis(server) => server.port(),
            Server::Postgres(server) => server.port(),
            Server::Lock(server) => server.port(),
        }
    }
}

/// The store of a run. Everything that was started for it ends with it.
#[derive(Debug)]
pub(crate) struct Ground {
    store: Store,
    /// Whose store it is, if it is not a throw-away one.
    url: Option<String>,
    /// The path of a store without a server.
    path: String,
    servers: Vec<Server>,
    /// The servers that replicas follow, if there are any.
    replicated: Option<Replicated>,
    /// How many replicas have to confirm a grant.
    wait_replicas: u32,
    /// One before each server, of each side. Workers of all sides share the store, and a fault is one side's.
    proxies: Vec<Vec<Proxy>>,
    /// The disk that it is on, if that can be filled.
    room: Option<Room>,
    configuration: String,
}

impl Ground {
    /// Uses somebody's store.
    pub(crate) fn theirs(store: Store, url: &str) -> Self {
        Ground {
            store,
            url: Some(url.to_owned()),
            path: String::new(),
            servers: Vec::new(),
            replicated: None,
            wait_replicas: 0,
            proxies: Vec::new(),
            room: None,
            configuration: "somebody's own".into(),
        }
    }

    /// Starts the throw-away store of a plan in a directory, with these variables in the environment of its servers.
    pub(crate) fn start(plan: &Plan, directory: &Path, environment: &[(String, String)]) -> io::Result<Self> {
        let Plan { store, profile, wait_replicas, .. } = *plan;
        let workers = plan.workers.len();
        let log = directory.join("server.log");
        let room = match (profile, store) {
            (Profile::Resources, Store::Sqlite | Store::File | Store::Http) => {
                Room::new(&directory.join("room")).ok()
            }
            _ => None,
        };
        let path = directory.join(if room.is_some() { "room/store" } else { "store" });
        let around = Around {
            environment: environment.to_vec(),
            entered: room.as_ref().map(Room::entered).unwrap_or_default(),
        };
        let sqlite = || format!("sqlite:{}", path.with_extension("db").display());
        let durable = matches!(profile, Profile::Restart | Profile::All);
        let redis = |durable: bool| {
            let options: &[&str] =
                if durable { &["--appendonly", "yes", "--appendfsync", "always"] } else { &[] };
            Redis::try_with(options, environment).map(Server::Redis)
        };
        let postgres = || {
            let mut builder = Postgres::builder();
            for (name, value) in environment {
                builder = builder.environment(name, value);
            }
            builder.try_start().map(Server::Postgres)
        };
        let lock_server = |store: &str| LockServer::start(store, &log, &around).map(Server::Lock);
        let kept = if durable { "everything on disk before it answers" } else { "nothing on disk" };
        let (servers, configuration) = match store {
            Store::Memory => (vec![lock_server("memory:")?], "a lock server on memory:".into()),
            Store::Http => (vec![lock_server(&sqlite())?], "a lock server on a SQLite file".into()),
            Store::Sqlite => (Vec::new(), "a file".into()),
            Store::File => (Vec::new(), "a directory".into()),
            Store::Redis => (vec![redis(durable)?], format!("a Redis server, {kept}")),
            Store::Quorum => {
                let nodes = (0..3).map(|_| redis(durable)).collect::<io::Result<Vec<_>>>()?;
                (nodes, format!("three Redis servers, {kept}"))
            }
            Store::Sentinel | Store::Cluster => (Vec::new(), String::new()),
            Store::Postgres if profile == Profile::Failover => (Vec::new(), String::new()),
            Store::Postgres | Store::Advisory => {
                (vec![postgres()?], "a PostgreSQL server with its package's settings".into())
            }
        };
        let replicated = if servers.is_empty() { Replicated::start(store)? } else { None };
        let configuration = replicated.as_ref().map_or(configuration, |all| all.configuration(wait_replicas));
        let mut ground = Ground {
            store,
            url: None,
            path: path.display().to_string(),
            servers,
            replicated,
            wait_replicas,
            proxies: Vec::new(),
            room,
            configuration,
        };
        if profile == Profile::Resources && ground.room.is_none() && !store.has_server() {
            ground.configuration += "; without a full disk, which takes root's rights";
        }
        if matches!(profile, Profile::Net | Profile::Leak | Profile::All) && !ground.servers.is_empty() {
            let side = || -> io::Result<Vec<Proxy>> {
                let before =
                    |server: &Server| Proxy::before(SocketAddr::from((Ipv4Addr::LOCALHOST, server.port())));
                ground.servers.iter().map(before).collect()
            };
            // A session is not judged for a second after a fault on its way: with one way for each worker, some are.
            let sides = if store == Store::Advisory { workers } else { 2 };
            ground.proxies = (0..sides).map(|_| side()).collect::<io::Result<_>>()?;
        }
        Ok(ground)
    }

    /// For people.
    pub(crate) fn configuration(&self) -> &str {
        &self.configuration
    }

    /// What a worker connects to: through the proxies, if there are any.
    pub(crate) fn url_of(&self, worker: u32) -> String {
        match self.proxies.get(worker as usize % self.proxies.len().max(1)) {
            Some(side) => self.url_at(&side.iter().map(|proxy| proxy.address().port()).collect::<Vec<_>>()),
            None => self.own_url(),
        }
    }

    /// What the supervisor connects to.
    pub(crate) fn own_url(&self) -> String {
        self.url_at(&self.servers.iter().map(Server::port).collect::<Vec<_>>())
    }

    fn url_at(&self, ports: &[u16]) -> String {
        if let Some(url) = &self.url {
            return url.clone();
        }
        if let Some(replicated) = &self.replicated {
            return replicated.url(self.wait_replicas);
        }
        let port = ports.first().copied().unwrap_or_default();
        match self.store {
            Store::Memory | Store::Http => format!("http://127.0.0.1:{port}"),
            Store::Sqlite => format!("sqlite:{}.db", self.path),
            Store::File => format!("file:{}", self.path),
            Store::Redis | Store::Sentinel | Store::Cluster => format!("redis://127.0.0.1:{port}"),
            Store::Quorum => {
                let nodes: Vec<_> = ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect();
                format!("quorum:{}", nodes.join(","))
            }
            Store::Postgres => format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            Store::Advisory => format!("postgres+advisory://postgres@127.0.0.1:{port}/postgres"),
        }
    }

    /// One of the proxies; `None` if there are none.
    pub(crate) fn proxy(&self, number: usize) -> Option<&Proxy> {
        let all = self.proxies.iter().map(Vec::len).sum::<usize>();
        self.proxies.iter().flatten().nth(number.checked_rem(all)?)
    }

    /// By how many ways workers reach the store.
    pub(crate) fn sides(&self) -> usize {
        self.proxies.len().max(1)
    }

    /// To which way one of the proxies belongs; `None` if there are none.
    pub(crate) fn side_of(&self, number: usize) -> Option<usize> {
        let all = self.proxies.iter().map(Vec::len).sum::<usize>();
        number.checked_rem(all)?.checked_div(self.servers.len())
    }

    /// All proxies pass everything on.
    pub(crate) fn heal(&self) {
        self.proxies.iter().flatten().for_each(Proxy::pass);
    }

    /// Which server a number means.
    pub(crate) fn server(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.servers.len())
    }

    /// Kills a server and starts it again.
    pub(crate) fn restart(&mut self, server: usize) -> io::Result<()> {
        match &mut self.servers[server] {
            Server::Redis(server) => server.try_restart(),
            Server::Postgres(server) => {
                server.try_stop(Stop::Kill)?;
                server.try_start_again()
            }
            Server::Lock(server) => server.restart(),
        }
    }

    /// Stops a server with SIGSTOP, or lets it go on.
    pub(crate) fn freeze(&self, server: usize, freeze: bool) -> io::Result<()> {
        match (&self.servers[server], freeze) {
            (Server::Redis(server), true) => server.freeze(),
            (Server::Redis(server), false) => server.go_on(),
            (Server::Postgres(server), true) => server.freeze(),
            (Server::Postgres(server), false) => server.thaw(),
            (Server::Lock(server), true) => server.signal(Signal::STOP)?,
            (Server::Lock(server), false) => server.signal(Signal::CONT)?,
        }
        Ok(())
    }

    /// The servers that replicas follow, if there are any.
    pub(crate) fn replicated(&mut self) -> Option<&mut Replicated> {
        self.replicated.as_mut()
    }

    /// Which part of the store a name is in.
    pub(crate) fn part_of(&self, name: &str) -> u64 {
        self.replicated.as_ref().map_or(0, |replicated| replicated.part_of(name))
    }

    /// The disk that it is on, if that can be filled.
    pub(crate) fn room(&self) -> Option<&Room> {
        self.room.as_ref()
    }

    /// Gives a Redis server so much memory, in bytes; 0: as much as it wants.
    pub(crate) fn limit_memory(&self, server: usize, bytes: u64) -> bool {
        match &self.servers[server] {
            Server::Redis(server) => server.cli(&["CONFIG", "SET", "maxmemory", &bytes.to_string()]) == "OK",
            _ => false,
        }
    }

    /// Where its servers listen.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(Server::port).collect()
    }

    /// The processes of its lock servers.
    pub(crate) fn lock_servers(&self) -> Vec<u32> {
        let pid = |server: &Server| match server {
            Server::Lock(server) => Some(server.pid()),
            _ => None,
        };
        self.servers.iter().filter_map(pid).collect()
    }

    /// How much is kept in it, as far as that can be seen from outside: what is counted, and how many there are.
    pub(crate) fn kept(&self) -> Vec<(&'static str, Option<u64>)> {
        if self.url.is_some() {
            return Vec::new();
        }
        let mut kept = Vec::new();
        if matches!(self.store, Store::Sqlite | Store::Http) {
            kept.push(("rows", counts::sqlite_rows(&Path::new(&self.path).with_extension("db"))));
        }
        if self.store == Store::File {
            kept.push(("files", counts::files(Path::new(&self.path))));
        }
        for server in &self.servers {
            match server {
                Server::Redis(server) => {
                    kept.push(("keys", server.cli(&["DBSIZE"]).parse().ok()));
                    kept.push(("bytes of data", counts::redis_data(&server.cli(&["INFO", "memory"]))));
                }
                Server::Postgres(server) if self.store == Store::Postgres => {
                    let rows = server.try_sql(counts::POSTGRES_ROWS).ok();
                    kept.push(("rows", rows.and_then(|rows| rows.trim().parse().ok())));
                }
                Server::Postgres(_) | Server::Lock(_) => {}
            }
        }
        kept
    }
}
