//! The stores that can be tortured, and the profiles of faults that each of them can be tortured with.

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

            /// As it is typed.
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
    /// A throw-away store.
    Store("store") {
        /// A lock server that keeps everything in memory: `memory:` is one process's own.
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
        /// Tables of a PostgreSQL server.
        Postgres = "postgres",
        /// Session locks of a PostgreSQL server.
        Advisory = "postgres+advisory",
        /// A lock server on a SQLite file.
        Http = "http",
    }
}

named! {
    /// Which faults there are.
    Profile("profile") {
        /// None.
        Calm = "calm",
        /// Workers are killed.
        Kill = "kill",
        /// Workers stand still for longer than they may.
        Pause = "pause",
        /// The network delays, resets, swallows and holds back.
        Net = "net",
        /// The store is killed and started again, or stands still.
        Restart = "restart",
        /// Wall clocks step.
        Clock = "clock",
        /// Calls are given up half-way.
        Cancel = "cancel",
        /// Leases last long and are held for moments, calls are given up half-way and packets are late: a second after the
        /// end nothing is left.
        Leak = "leak",
        /// There is no more room: on the disk, in memory, for open files.
        Resources = "resources",
        /// Replicas take the places of primaries that are killed, stand still, or are told to let them.
        Failover = "failover",
        /// Kill, pause, net, restart and cancel together.
        All = "all",
    }
}

impl Store {
    /// The store that a URL names.
    pub fn of_url(url: &str) -> Option<Self> {
        let (scheme, _) = url.split_once(':')?;
        match scheme.to_ascii_lowercase().as_str() {
            "sqlite" => Some(Store::Sqlite),
            "file" => Some(Store::File),
            "redis" | "rediss" => Some(Store::Redis),
            "redis-sentinel" => Some(Store::Sentinel),
            "redis-cluster" => Some(Store::Cluster),
            "quorum" => Some(Store::Quorum),
            "postgres" | "postgresql" => Some(Store::Postgres),
            "postgres+advisory" | "postgresql+advisory" => Some(Store::Advisory),
            "http" | "https" => Some(Store::Http),
            // `memory:` is one process's own.
            _ => None,
        }
    }

    /// Whether there is a server, which clients reach by the network.
    pub const fn has_server(self) -> bool {
        !matches!(self, Store::Sqlite | Store::File)
    }

    /// Whether leases end with their session, and no ttl ends them.
    pub const fn is_session(self) -> bool {
        matches!(self, Store::File | Store::Advisory)
    }

    /// Whether what was answered is still there after the server was killed.
    pub const fn survives_restart(self) -> bool {
        !matches!(self, Store::Memory)
    }

    /// Whether a step forward of the server's wall clock ends leases early, as its documentation says.
    pub const fn expires_by_wall_clock(self) -> bool {
        matches!(self, Store::Redis | Store::Sentinel | Store::Cluster | Store::Quorum | Store::Postgres)
    }

    /// Whether a replica can take the place of a server.
    pub const fn fails_over(self) -> bool {
        matches!(self, Store::Sentinel | Store::Cluster | Store::Postgres)
    }

    /// Whether its servers are found by other servers, so that nothing can be put in between.
    pub const fn is_found_by_others(self) -> bool {
        matches!(self, Store::Sentinel | Store::Cluster)
    }
}

impl Profile {
    /// Why this store cannot be tortured with it, if it cannot. `owned`: it is a throw-away store.
    pub fn refuses(self, store: Store, owned: bool) -> Option<&'static str> {
        match self {
            Profile::Net if !store.has_server() => Some("nobody reaches this store by the network"),
            Profile::Restart if !store.has_server() => Some("this store has no server"),
            Profile::Restart if !store.survives_restart() => {
                Some("what is in memory does not survive a restart")
            }
            Profile::Net | Profile::Restart | Profile::Resources | Profile::Clock | Profile::Failover
                if !owned =>
            {
                Some("it takes a store of its own, and --url names one that is somebody's")
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

    /// Whether workers give up calls half-way.
    pub const fn cancels(self) -> bool {
        matches!(self, Profile::Cancel | Profile::Leak | Profile::All)
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
        assert_eq!(Store::of_url("rediss://host"), Some(Store::Redis));
        assert_eq!(Store::of_url("memory:"), None);
        let error = "etcd".parse::<Store>().expect_err("there is none");
        assert!(error.contains("postgres+advisory"), "{error}");
    }
}
