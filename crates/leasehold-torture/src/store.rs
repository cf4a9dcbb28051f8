//! The stores that can be tortured, what can be in front of them, and the fault profiles that suit each.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! named {
    ($(#[$doc:meta])* $name:ident ($what:literal) { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &[$name] = &[$($name::$variant),+];

            /// As typed on the command line.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let all: Vec<_> = $name::ALL.iter().map(|one| one.as_str()).collect();
                let found = $name::ALL.iter().find(|one| one.as_str() == text);
                found.copied().ok_or_else(|| format!(concat!("no such ", $what, "; there are {}"), all.join(", ")))
            }
        }
    };
}

named! {
    /// A temporary store.
    Store("store") {
        /// A lock server that keeps everything in memory, because `memory:` is private to one process.
        Memory = "memory",
        /// A SQLite file.
        Sqlite = "sqlite",
        /// A directory of lock files.
        File = "file",
        /// A Redis server.
        Redis = "redis",
        /// A Redis server, a replica of it, and three sentinels.
        Sentinel = "redis-sentinel",
        /// A Redis cluster: three primaries with a replica each.
        Cluster = "redis-cluster",
        /// Three Redis servers, of which a majority decides.
        Quorum = "quorum",
        /// A Redis server, a lock server on a SQLite file and a PostgreSQL server, of which a majority decides.
        MixedQuorum = "quorum-mixed",
        /// Tables of a PostgreSQL server.
        Postgres = "postgres",
        /// Session locks of a PostgreSQL server.
        Advisory = "postgres+advisory",
        /// A lock server on a SQLite file.
        Http = "http",
    }
}

named! {
    /// The language of the workers, if it is not Rust.
    Language("language") {
        /// Workers of the SDK for Python.
        Python = "python",
        /// Workers of the SDK for TypeScript.
        TypeScript = "typescript",
        /// Workers of the SDK for Go.
        Go = "go",
    }
}

named! {
    /// What clients go through to reach the store.
    Front("front") {
        /// Nothing: they reach the store directly.
        None = "none",
        /// A lock server; with a quorum, one in front of each node.
        Server = "server",
        /// Two lock servers in front of one store, each used by half of the clients.
        TwoServers = "two-servers",
        /// PgBouncer: in session mode for session locks, otherwise in transaction mode.
        PgBouncer = "pgbouncer",
        /// TLS, with its own certificate authority.
        Tls = "tls",
    }
}

named! {
    /// The kinds of faults.
    Profile("profile") {
        /// None.
        Calm = "calm",
        /// Workers are killed.
        Kill = "kill",
        /// Workers are stopped for longer than they may be.
        Pause = "pause",
        /// The network delays, resets, swallows and holds back.
        Net = "net",
        /// The store is killed and restarted, or stopped for a while.
        Restart = "restart",
        /// Wall clocks step.
        Clock = "clock",
        /// Calls are cancelled half-way.
        Cancel = "cancel",
        /// Leases last long and are held for moments, calls are cancelled half-way and packets are late: a second
        /// after the end nothing is left.
        Leak = "leak",
        /// A resource runs out: the disk, memory, open files.
        Resources = "resources",
        /// Sixty clients want one name that is stuck and then hot, beside fifty that have names of their own.
        Crowd = "crowd",
        /// The logs of some workers panic, those of others block; now and then workers are stopped.
        Logs = "logs",
        /// The store is full of idle names and other programs' data, packets are late, and a process sweeps and lists.
        Many = "many",
        /// Replicas take the places of primaries that are killed, stopped, or asked to let them.
        Failover = "failover",
        /// Kill, pause, net, restart and cancel together.
        All = "all",
    }
}

impl Store {
    /// The store that a URL names.
    pub fn of_url(url: &str) -> Option<Self> {
        let (scheme, _) = url.split_once(':')?;
        let is = |known: &&str| known.eq_ignore_ascii_case(scheme);
        let store = leasehold::stores().into_iter().find(|store| store.schemes.iter().any(&is))?;
        match store.info.scheme {
            "rediss" => Some(Store::Redis),
            // Private to one process.
            "memory" => None,
            scheme => scheme.parse().ok(),
        }
    }

    /// Whether there is a server that clients reach over the network.
    pub const fn has_server(self) -> bool {
        !matches!(self, Store::Sqlite | Store::File)
    }

    /// Whether a majority of several nodes decides.
    pub const fn is_quorum(self) -> bool {
        matches!(self, Store::Quorum | Store::MixedQuorum)
    }

    /// Whether answers survive a kill of the server.
    pub const fn survives_restart(self) -> bool {
        !matches!(self, Store::Memory)
    }

    /// Whether a step forward of the server's wall clock ends leases early, as its documentation says.
    pub const fn expires_by_wall_clock(self) -> bool {
        use Store::{Cluster, MixedQuorum, Postgres, Quorum, Redis, Sentinel};
        matches!(self, Redis | Sentinel | Cluster | Quorum | MixedQuorum | Postgres)
    }

    /// Whether a replica can take the place of a server.
    pub const fn fails_over(self) -> bool {
        matches!(self, Store::Sentinel | Store::Cluster | Store::Postgres)
    }

    /// Whether other servers announce its servers to clients, so that no proxy can be put in between.
    pub const fn is_found_by_others(self) -> bool {
        matches!(self, Store::Sentinel | Store::Cluster)
    }
}

impl Front {
    /// Why it cannot be in front of this store, if it cannot. `owned`: it is a temporary store.
    pub fn refuses(self, store: Store, owned: bool) -> Option<&'static str> {
        match (self, store) {
            (Front::None, _) => None,
            _ if !owned => Some("it needs a throw-away store; leave out `--url`"),
            (Front::Server, Store::Redis | Store::Quorum | Store::Postgres) => None,
            (Front::TwoServers, Store::Redis | Store::Postgres) => None,
            (Front::PgBouncer, Store::Postgres | Store::Advisory) => None,
            (Front::Tls, Store::Redis | Store::Postgres | Store::Advisory) => None,
            (Front::Server, Store::Sqlite) => Some("that is the store http"),
            (Front::Server, Store::Memory | Store::Http) => Some("it is behind a lock server already"),
            (Front::Server | Front::TwoServers, Store::File | Store::Advisory) => {
                Some("a lock server takes no store whose locks end with a session")
            }
            (Front::Server | Front::TwoServers, _) => Some("there is no such ground yet"),
            (Front::Tls, Store::Sentinel | Store::Cluster) => Some("there is no such ground yet"),
            (Front::PgBouncer, _) => Some("PgBouncer is for PostgreSQL"),
            (Front::Tls, _) => Some("Redis and PostgreSQL speak TLS"),
        }
    }

    /// Whether it is made of lock servers.
    pub const fn is_server(self) -> bool {
        matches!(self, Front::Server | Front::TwoServers)
    }

    /// A store with this in front of it, as in histories and reports: `redis`, `redis/two-servers`.
    pub fn before(self, store: Store) -> String {
        match self {
            Front::None => store.to_string(),
            front => format!("{store}/{front}"),
        }
    }
}

impl Profile {
    /// Why this store cannot be tortured with it, if it cannot. `owned`: it is a temporary store.
    pub fn refuses(self, store: Store, owned: bool) -> Option<&'static str> {
        match self {
            Profile::Net if !store.has_server() => Some("nobody reaches this store by the network"),
            Profile::Restart if !store.has_server() => Some("this store has no server"),
            Profile::Restart if !store.survives_restart() => {
                Some("what is in memory does not survive a restart")
            }
            Profile::Many if !matches!(store, Store::Redis | Store::Postgres) => {
                Some("only one Redis or PostgreSQL server is filled with names")
            }
            Profile::Net
            | Profile::Restart
            | Profile::Resources
            | Profile::Clock
            | Profile::Many
            | Profile::Failover
                if !owned =>
            {
                Some("it needs a throw-away store; leave out `--url`")
            }
            Profile::Failover if !store.fails_over() => {
                Some("no replica takes over here; redis-sentinel, redis-cluster and postgres have one")
            }
            Profile::Net | Profile::Restart | Profile::Resources | Profile::Clock | Profile::All
                if owned && store.is_found_by_others() =>
            {
                Some("a single server does not have to come back here; failover is the profile for it")
            }
            _ => None,
        }
    }

    /// Whether workers cancel calls half-way.
    pub const fn cancels(self) -> bool {
        matches!(self, Profile::Cancel | Profile::Leak | Profile::All)
    }

    /// Whether none of its faults keeps a running client from renewing its guards.
    pub const fn keeps(self) -> bool {
        matches!(self, Profile::Crowd | Profile::Logs)
    }

    /// Whether workers are killed.
    pub const fn kills(self) -> bool {
        matches!(self, Profile::Kill | Profile::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_typed() {
        for store in Store::ALL {
            assert_eq!(store.to_string().parse(), Ok(*store));
        }
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().parse(), Ok(*profile));
        }
        for front in Front::ALL {
            assert_eq!(front.to_string().parse(), Ok(*front));
        }
        assert_eq!(Store::of_url("rediss://host"), Some(Store::Redis));
        assert_eq!(Store::of_url("memory:"), None);
        let error = "etcd".parse::<Store>().expect_err("there is none");
        assert!(error.contains("postgres+advisory"), "{error}");
    }

    #[test]
    fn every_front_suits_a_store_of_ones_own_alone() {
        for front in Front::ALL.iter().filter(|front| **front != Front::None) {
            let suits =
                |owned| Store::ALL.iter().filter(|store| front.refuses(**store, owned).is_none()).count();
            assert!(suits(true) > 0 && suits(false) == 0, "{front}");
        }
        assert_eq!(Front::TwoServers.before(Store::Redis), "redis/two-servers");
        assert_eq!(Front::None.before(Store::Redis), "redis");
    }
}
