//! The ground of a run: the store, what is in front of it, and the servers and proxies of both.
//!
//! One file because every method answers the same question for each kind of store and front.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::hours::counts;
use crate::lock_server::LockServer;
use crate::plan::Plan;
use crate::replicated::Replicated;
use crate::roles::Around;
use crate::room::Room;
use crate::store::{Front, Profile, Store};
use leasehold_testbed::postgres::{PgBouncer, PoolMode, Postgres, Stop};
use leasehold_testbed::proxy::{Direction, Proxy};
use leasehold_testbed::redis::Server as Redis;

/// A server that can be killed and stopped.
#[derive(Debug)]
enum Server {
    Redis(Redis),
    Postgres(Postgres),
    Lock(LockServer),
    PgBouncer(PgBouncer),
}

impl Server {
    fn port(&self) -> u16 {
        match self {
            Server::Redis(server) => server.port(),
            Server::Postgres(server) => server.port(),
            Server::Lock(server) => server.port(),
            Server::PgBouncer(server) => server.port(),
        }
    }

    /// Its URL at this port, its own or that of a proxy in front of it.
    fn url_at(&self, store: Store, front: Front, port: u16) -> String {
        let scheme = if store == Store::Advisory { "postgres+advisory" } else { "postgres" };
        match self {
            // Certificates are for localhost.
            Server::Redis(server) if front == Front::Tls => {
                format!("rediss://localhost:{port}/?cacert={}", server.ca().display())
            }
            Server::Postgres(server) if front == Front::Tls => {
                let authority = server.authority();
                let tls = format!("sslmode=verify-full&sslrootcert={}", authority.display());
                format!("{scheme}://postgres@localhost:{port}/postgres?{tls}")
            }
            Server::Redis(_) => format!("redis://127.0.0.1:{port}"),
            // For session locks the URL must say that the pooler keeps sessions.
            Server::PgBouncer(_) if store == Store::Advisory => {
                format!("{scheme}://postgres@127.0.0.1:{port}/postgres?pooler=session")
            }
            Server::Postgres(_) | Server::PgBouncer(_) => {
                format!("{scheme}://postgres@127.0.0.1:{port}/postgres")
            }
            Server::Lock(_) => format!("http://127.0.0.1:{port}"),
        }
    }
}

/// The store of a run, and what is in front of it. Everything that was started for it ends with it.
#[derive(Debug)]
pub(crate) struct Ground {
    store: Store,
    front: Front,
    /// The URL of the user's own store, if it is not a temporary one.
    url: Option<String>,
    /// The path of a store without a server.
    path: String,
    servers: Vec<Server>,
    /// The servers with replicas, if there are any: clients find these themselves.
    replicated: Option<Replicated>,
    /// How many replicas must confirm a grant.
    wait_replicas: u32,
    /// The servers that a client's URL names: one, or the nodes of a quorum. Clients are spread over several such
    /// doors.
    doors: Vec<Vec<usize>>,
    /// One proxy in front of each server of a door, for each side. Workers of all sides share the store, and a fault
    /// hits one side.
    proxies: Vec<Vec<Proxy>>,
    /// The proxies between lock servers and the store. Their faults hit everybody.
    behind: Vec<Proxy>,
    /// The store's disk, if it can be filled.
    room: Option<Room>,
    configuration: String,
}

/// A proxy in front of this port.
fn proxy(port: u16) -> io::Result<Proxy> {
    Proxy::before(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

impl Ground {
    /// Uses the user's own store.
    pub(crate) fn theirs(store: Store, url: &str) -> Self {
        Ground {
            store,
            front: Front::None,
            url: Some(url.to_owned()),
            path: String::new(),
            servers: Vec::new(),
            replicated: None,
            wait_replicas: 0,
            doors: Vec::new(),
            proxies: Vec::new(),
            behind: Vec::new(),
            room: None,
            configuration: "the user's own store".into(),
        }
    }

    /// Starts the temporary store of a plan in a directory, with these variables in the environment of its servers.
    pub(crate) fn start(plan: &Plan, directory: &Path, environment: &[(String, String)]) -> io::Result<Self> {
        let Plan { store, front, profile, wait_replicas, .. } = *plan;
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
        let mut ground = Ground {
            store,
            front,
            url: None,
            path: path.display().to_string(),
            servers: Vec::new(),
            replicated: None,
            wait_replicas,
            doors: Vec::new(),
            proxies: Vec::new(),
            behind: Vec::new(),
            room,
            configuration: String::new(),
        };
        let through_proxies = matches!(profile, Profile::Net | Profile::Leak | Profile::Many | Profile::All);
        let log = directory.join("server.log");
        let lock_server = |url: &str| LockServer::start(url, &log, &around).map(Server::Lock);
        // In a crowd more than a hundred clients have several connections each, and PgBouncer must be refused none.
        let wants: usize = plan.workers.iter().map(|worker| worker.wants.len()).sum();
        let connections = match (profile, front) {
            (Profile::Crowd, _) => 800,
            (_, Front::PgBouncer) => 400,
            // A session for each waiter, and one for each holder.
            _ => 200 + 2 * u32::try_from(wants).unwrap_or(0),
        };
        ground.start_store(profile, connections, environment, &lock_server)?;
        ground.start_front(through_proxies, &lock_server)?;
        if profile == Profile::Resources && ground.room.is_none() && !store.has_server() {
            ground.configuration += "; without a full disk, which takes root's rights";
        }
        if through_proxies && !ground.servers.is_empty() {
            // A session is not judged for a second after a fault on its route: with one route for each worker, some
            // are judged.
            let sides = if store == Store::Advisory { plan.workers.len() } else { 2 };
            let ports = |side: usize| {
                ground.doors[side % ground.doors.len()].iter().map(|at| ground.servers[*at].port())
            };
            let side = |side: usize| ports(side).map(proxy).collect::<io::Result<Vec<_>>>();
            ground.proxies = (0..sides).map(side).collect::<io::Result<_>>()?;
        }
        Ok(ground)
    }

    /// Starts the servers of the store itself, which are the only door while nothing is in front of them.
    fn start_store(
        &mut self,
        profile: Profile,
        connections: u32,
        environment: &[(String, String)],
        lock_server: &dyn Fn(&str) -> io::Result<Server>,
    ) -> io::Result<()> {
        let durable = matches!(profile, Profile::Restart | Profile::All);
        let with_replicas = profile == Profile::Failover;
        let tls = self.front == Front::Tls;
        let redis = || {
            let options: &[&str] =
                if durable { &["--appendonly", "yes", "--appendfsync", "always"] } else { &[] };
            let server = if tls { Redis::try_with_tls } else { Redis::try_with };
            server(options, environment).map(Server::Redis)
        };
        let postgres = || {
            let mut builder = Postgres::builder().setting("max_connections", &connections.to_string());
            if tls {
                builder = builder.tls();
            }
            for (name, value) in environment {
                builder = builder.environment(name, value);
            }
            builder.try_start().map(Server::Postgres)
        };
        let sqlite = format!("sqlite:{}.db", self.path);
        let kept = if durable { "everything on disk before it answers" } else { "nothing on disk" };
        let (servers, configuration) = match self.store {
            Store::Memory => (vec![lock_server("memory:")?], "a lock server on memory:".into()),
            Store::Http => (vec![lock_server(&sqlite)?], "a lock server on a SQLite file".into()),
            Store::Sqlite => (Vec::new(), "a file".into()),
            Store::File => (Vec::new(), "a directory".into()),
            Store::Redis => (vec![redis()?], format!("a Redis server, {kept}")),
            Store::Quorum => {
                let nodes = (0..3).map(|_| redis()).collect::<io::Result<Vec<_>>>()?;
                (nodes, format!("three Redis servers, {kept}"))
            }
            Store::MixedQuorum => {
                let nodes = vec![redis()?, lock_server(&sqlite)?, postgres()?];
                (
                    nodes,
                    format!("a Redis server, {kept}; a lock server on a SQLite file; a PostgreSQL server"),
                )
            }
            Store::Sentinel | Store::Cluster => (Vec::new(), String::new()),
            Store::Postgres if with_replicas => (Vec::new(), String::new()),
            Store::Postgres | Store::Advisory => {
                (vec![postgres()?], "a PostgreSQL server with its package's settings".into())
            }
        };
        self.doors = vec![(0..servers.len()).collect()];
        (self.servers, self.configuration) = (servers, configuration);
        if self.servers.is_empty() {
            self.replicated = Replicated::start(self.store)?;
        }
        if let Some(replicated) = &self.replicated {
            self.configuration = replicated.configuration(self.wait_replicas);
        }
        Ok(())
    }

    /// Starts what is in front of the store: other servers, which become the doors.
    fn start_front(
        &mut self,
        through_proxies: bool,
        lock_server: &dyn Fn(&str) -> io::Result<Server>,
    ) -> io::Result<()> {
        let nodes = self.servers.len();
        let before = |ground: &mut Ground, node: usize| -> io::Result<usize> {
            let server = &ground.servers[node];
            let mut port = server.port();
            if through_proxies {
                let between = proxy(port)?;
                port = between.address().port();
                ground.behind.push(between);
            }
            let url = ground.servers[node].url_at(ground.store, ground.front, port);
            ground.servers.push(lock_server(&url)?);
            Ok(ground.servers.len() - 1)
        };
        match self.front {
            Front::None => {}
            Front::Tls => self.configuration += "; over TLS",
            Front::Server => {
                let door = (0..nodes).map(|node| before(self, node)).collect::<io::Result<_>>()?;
                self.doors = vec![door];
                self.configuration +=
                    if nodes == 1 { "; a lock server" } else { "; a lock server before each" };
            }
            Front::TwoServers => {
                self.doors = vec![vec![before(self, 0)?], vec![before(self, 0)?]];
                self.configuration += "; two lock servers";
            }
            Front::PgBouncer => {
                let Server::Postgres(server) = &self.servers[0] else {
                    return Err(io::Error::other("PgBouncer is for PostgreSQL"));
                };
                let (mode, connections) = match self.store {
                    Store::Advisory => (PoolMode::Session, 180),
                    _ => (PoolMode::Transaction, 20),
                };
                let pooler = PgBouncer::try_start(server, mode, connections)?;
                self.servers.push(Server::PgBouncer(pooler));
                self.doors = vec![vec![nodes]];
                self.configuration += &format!("; PgBouncer in {mode} mode, {connections} connections");
            }
        }
        Ok(())
    }

    /// A description for people.
    pub(crate) fn configuration(&self) -> &str {
        &self.configuration
    }

    /// The URL a worker connects to: through the proxies, if there are any.
    pub(crate) fn url_of(&self, worker: u32) -> String {
        let side = worker as usize % self.sides();
        let ports =
            self.proxies.get(side).map(|side| side.iter().map(|proxy| proxy.address().port()).collect());
        self.url_at(side, ports)
    }

    /// The URL the supervisor connects to.
    pub(crate) fn own_url(&self) -> String {
        self.url_at(0, None)
    }

    /// The URL for a side, with these ports instead of the servers' own.
    fn url_at(&self, side: usize, ports: Option<Vec<u16>>) -> String {
        if let Some(url) = &self.url {
            return url.clone();
        }
        if let Some(replicated) = &self.replicated {
            return replicated.url(self.wait_replicas);
        }
        match self.store {
            Store::Sqlite => return format!("sqlite:{}.db", self.path),
            Store::File => return format!("file:{}", self.path),
            _ => {}
        }
        let door: Vec<&Server> =
            self.doors[side % self.doors.len()].iter().map(|at| &self.servers[*at]).collect();
        let ports = ports.unwrap_or_else(|| door.iter().map(|server| server.port()).collect());
        let url = |(server, port): (&&Server, u16)| server.url_at(self.store, self.front, port);
        let nodes: Vec<String> = door.iter().zip(ports).map(url).collect();
        if self.store.is_quorum() { format!("quorum:{}", nodes.join(",")) } else { nodes.concat() }
    }

    /// One of the proxies; `None` if there are none.
    pub(crate) fn proxy(&self, number: usize) -> Option<&Proxy> {
        let mut all = self.proxies.iter().flatten().chain(&self.behind);
        all.nth(number.checked_rem(all.clone().count())?)
    }

    /// The number of routes by which workers reach the store.
    pub(crate) fn sides(&self) -> usize {
        self.proxies.len().max(self.doors.len()).max(1)
    }

    /// The route a proxy belongs to; `None` if it serves all of them, or if there are no proxies.
    pub(crate) fn side_of(&self, number: usize) -> Option<usize> {
        let before: usize = self.proxies.iter().map(Vec::len).sum();
        let place = number.checked_rem(before + self.behind.len())?;
        let mut last = 0;
        self.proxies.iter().position(|side| {
            last += side.len();
            place < last
        })
    }

    /// Delays every packet by this much, between workers and the front and behind it.
    pub(crate) fn delay(&self, late: Duration) {
        let all = self.proxies.iter().flatten().chain(&self.behind);
        all.for_each(|proxy| proxy.delay(Direction::ToServer, late));
    }

    /// Puts this many copies of an idle name of the default namespace into the store, and as many keys of other
    /// programs.
    pub(crate) fn fill(&self, name: &str, count: u32) -> io::Result<()> {
        const REDIS: &str = "local head = redis.call('GET', KEYS[1]) \
            for i = ARGV[1], ARGV[2] do \
              redis.call('SET', 'leasehold:{leasehold/rest-' .. i .. '}', head, 'PX', 604800000) \
              redis.call('SET', 'foreign-' .. i, 'x') \
            end return 'filled'";
        const AT_ONCE: u32 = 20_000;
        for server in &self.servers {
            match server {
                Server::Redis(server) => {
                    let head = format!("leasehold:{{leasehold/{name}}}");
                    for from in (1..=count).step_by(AT_ONCE as usize) {
                        let to = count.min(from + AT_ONCE - 1).to_string();
                        let said = server.cli(&["EVAL", REDIS, "1", &head, &from.to_string(), &to]);
                        if said != "filled" {
                            return Err(io::Error::other(format!("Redis cannot be filled: {said}")));
                        }
                    }
                }
                Server::Postgres(server) => {
                    server.sql(&format!(
                        "INSERT INTO leasehold.names (name, fence, version) SELECT 'leasehold/rest-' || i, fence, version \
                         FROM leasehold.names, generate_series(1, {count}) i WHERE name = 'leasehold/{name}'"
                    ));
                }
                Server::Lock(_) | Server::PgBouncer(_) => {}
            }
        }
        Ok(())
    }

    /// All proxies pass everything on.
    pub(crate) fn heal(&self) {
        self.proxies.iter().flatten().chain(&self.behind).for_each(Proxy::pass);
    }

    /// Whether one server can start only when another one answers: a lock server, or PgBouncer, and the store behind
    /// it.
    pub(crate) fn needs(&self, server: usize, other: usize) -> bool {
        let is_door = |which: usize| self.doors.iter().flatten().any(|door| *door == which);
        is_door(server) && !is_door(other)
    }

    /// Which Redis server a number means.
    pub(crate) fn redis(&self, number: usize) -> Option<usize> {
        let is_redis = |at: &usize| matches!(self.servers[*at], Server::Redis(_));
        let all = (0..self.servers.len()).filter(is_redis);
        all.clone().nth(number.checked_rem(all.count())?)
    }

    /// Which server a number means.
    pub(crate) fn server(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.servers.len())
    }

    /// A server that has ended by itself: PgBouncer 1.18 does when cancel requests come and go quickly ("bad client
    /// state").
    pub(crate) fn fallen(&self) -> Option<usize> {
        let has_ended = |server: &Server| matches!(server, Server::PgBouncer(pooler) if pooler.has_ended());
        self.servers.iter().position(has_ended)
    }

    /// Kills a server and starts it again.
    pub(crate) fn restart(&mut self, server: usize) -> io::Result<()> {
        // The restarted server has to reach the store, and faults end only when the restart is over.
        for between in &self.behind {
            between.disarm();
            between.pass();
        }
        match &mut self.servers[server] {
            Server::Redis(server) => server.try_restart(),
            Server::Postgres(server) => {
                server.try_stop(Stop::Kill)?;
                server.try_start_again()
            }
            Server::Lock(server) => server.restart(),
            Server::PgBouncer(server) => server.try_restart(),
        }
    }

    /// Stops a server with SIGSTOP, or continues it.
    pub(crate) fn freeze(&self, server: usize, freeze: bool) -> io::Result<()> {
        match (&self.servers[server], freeze) {
            (Server::Redis(server), true) => server.freeze(),
            (Server::Redis(server), false) => server.go_on(),
            (Server::Postgres(server), true) => server.freeze(),
            (Server::Postgres(server), false) => server.thaw(),
            (Server::PgBouncer(server), true) => server.freeze()?,
            (Server::PgBouncer(server), false) => server.thaw(),
            (Server::Lock(server), true) => server.signal(Signal::STOP)?,
            (Server::Lock(server), false) => server.signal(Signal::CONT)?,
        }
        Ok(())
    }

    /// The servers with replicas, if there are any.
    pub(crate) fn replicated(&mut self) -> Option<&mut Replicated> {
        self.replicated.as_mut()
    }

    /// Which part of the store a name is in.
    pub(crate) fn part_of(&self, name: &str) -> u64 {
        self.replicated.as_ref().map_or(0, |replicated| replicated.part_of(name))
    }

    /// The store's disk, if it can be filled.
    pub(crate) fn room(&self) -> Option<&Room> {
        self.room.as_ref()
    }

    /// Limits the memory of a Redis server, in bytes; 0: no limit.
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

    /// How much the store contains, as far as that can be seen from outside: what is counted, and how many there are.
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
                Server::Postgres(_) | Server::Lock(_) | Server::PgBouncer(_) => {}
            }
        }
        kept
    }
}
