//! Stores with replicas that take over: the steps of a fail-over, the same for all of them.

use std::io;
use std::time::Duration;

use leasehold::DEFAULT_NAMESPACE;
#[cfg(feature = "__bugs")]
use leasehold::bugs::{Bug, on};

use crate::store::Store;
use leasehold_testbed::postgres::{Pair, Stop};
use leasehold_testbed::redis::{Cluster, Sentinels};

/// The servers of such a store, each with one replica.
#[derive(Debug)]
pub(crate) enum Replicated {
    Sentinels(Sentinels),
    Cluster(Cluster),
    Pair(Pair),
}

/// How long Redis waits for its replicas. A slower replica costs only that one call, and a renewal still comes in
/// time.
const WAIT_MS: u32 = 100;

impl Replicated {
    /// Starts it; `None` for a store without replicas.
    pub(crate) fn start(store: Store) -> io::Result<Option<Self>> {
        Ok(match store {
            Store::Sentinel => {
                let sentinels = Sentinels::try_start()?;
                // From here on nothing fails over by itself.
                sentinels.roles()?;
                Some(Replicated::Sentinels(sentinels))
            }
            Store::Cluster => Some(Replicated::Cluster(Cluster::try_with_replicas()?)),
            Store::Postgres => Some(Replicated::Pair(Pair::try_start()?)),
            _ => None,
        })
    }

    /// A description for people.
    pub(crate) fn configuration(&self, wait_replicas: u32) -> String {
        let servers = match self {
            Replicated::Sentinels(_) => "a Redis server with a replica and three sentinels",
            Replicated::Cluster(_) => "a Redis cluster of three primaries with a replica each",
            Replicated::Pair(_) => return "PostgreSQL with a synchronous standby".into(),
        };
        match wait_replicas {
            0 => format!("{servers}, which answers before the replica has it"),
            _ => format!("{servers}, wait_replicas={wait_replicas}"),
        }
    }

    pub(crate) fn url(&self, wait_replicas: u32) -> String {
        let url = match self {
            Replicated::Sentinels(sentinels) => sentinels.url(),
            Replicated::Cluster(cluster) => cluster.url(),
            Replicated::Pair(pair) => return pair.url(),
        };
        #[cfg(feature = "__bugs")]
        let wait_replicas = if on(Bug::RedisWaitsForNoReplica) { 0 } else { wait_replicas };
        match wait_replicas {
            0 => url,
            _ => format!("{url}?wait_replicas={wait_replicas}&wait_timeout_ms={WAIT_MS}"),
        }
    }

    /// The part of the store a name is in; parts fail over independently.
    pub(crate) fn part_of(&self, name: &str) -> u64 {
        match self {
            Replicated::Cluster(cluster) => {
                cluster.part_of(&format!("leasehold:{{{DEFAULT_NAMESPACE}/{name}}}")) as u64
            }
            _ => 0,
        }
    }

    /// Which part a number means.
    pub(crate) fn part(&self, number: u64) -> u64 {
        if matches!(self, Replicated::Cluster(_)) { number % 3 } else { 0 }
    }

    /// The primary of a part, and its replica.
    pub(crate) fn roles(&self, part: u64) -> io::Result<(usize, usize)> {
        match self {
            Replicated::Sentinels(sentinels) => sentinels.roles(),
            Replicated::Cluster(cluster) => cluster.roles(part as usize),
            Replicated::Pair(pair) => Ok(pair.roles()),
        }
    }

    /// Cuts a replica off: nothing reaches it any more.
    pub(crate) fn cut(&self, replica: usize) -> io::Result<()> {
        match self {
            Replicated::Sentinels(sentinels) => sentinels.cut(replica),
            Replicated::Cluster(cluster) => cluster.cut(replica),
            Replicated::Pair(pair) => pair.cut(),
        }
    }

    /// Kills a primary.
    pub(crate) fn kill(&mut self, primary: usize) -> io::Result<()> {
        match self {
            Replicated::Sentinels(sentinels) => sentinels.servers[primary].kill(),
            Replicated::Cluster(cluster) => cluster.nodes[primary].kill(),
            Replicated::Pair(pair) => pair.stop(Stop::Kill)?,
        }
        Ok(())
    }

    /// Stops a primary with SIGSTOP.
    pub(crate) fn freeze(&self, primary: usize) {
        match self {
            Replicated::Sentinels(sentinels) => sentinels.servers[primary].freeze(),
            Replicated::Cluster(cluster) => cluster.nodes[primary].freeze(),
            Replicated::Pair(pair) => pair.freeze(),
        }
    }

    /// Lets the replica take the place of a dead or stopped primary. Sentinels and clusters notice that by themselves,
    /// unless they are asked to do it at once; PostgreSQL has to be asked. There, a stopped old primary is killed
    /// first, because it must never serve again.
    pub(crate) fn promote(&mut self, replica: usize, at_once: bool) -> io::Result<()> {
        match self {
            Replicated::Sentinels(sentinels) if at_once => sentinels.switch(replica),
            Replicated::Sentinels(sentinels) => sentinels.wait_for_promotion(replica),
            Replicated::Cluster(cluster) if at_once => cluster.force(replica),
            Replicated::Cluster(cluster) => cluster.wait_for_promotion(replica),
            Replicated::Pair(pair) => pair.promote(),
        }
    }

    /// Whether an old primary that was stopped serves again before it learns that another has taken its place.
    pub(crate) fn has_two_primaries(&self) -> bool {
        !matches!(self, Replicated::Pair(_))
    }

    /// Continues a stopped old primary, beside the new one for about this long; it is a replica when this returns.
    pub(crate) fn go_on_beside(&self, old: usize, time: Duration) -> io::Result<()> {
        match self {
            Replicated::Sentinels(sentinels) => sentinels.go_on_beside(old, time),
            Replicated::Cluster(cluster) => cluster.go_on_beside(old),
            Replicated::Pair(_) => Ok(()),
        }
    }

    /// Whether a switch lets the old primary serve for a while beside the new one, and loses its answers.
    pub(crate) fn switches_in_disorder(&self) -> bool {
        matches!(self, Replicated::Sentinels(_))
    }

    /// Lets the replica take the place of a living primary, which is its replica, or stopped, when this returns.
    pub(crate) fn switch(&mut self, replica: usize) -> io::Result<()> {
        match self {
            Replicated::Sentinels(sentinels) => sentinels.switch(replica),
            Replicated::Cluster(cluster) => cluster.switch(replica),
            Replicated::Pair(pair) => {
                // It sends the standby everything before it ends.
                pair.stop(Stop::Fast)?;
                pair.promote()
            }
        }
    }

    /// Brings a killed old primary back as a replica.
    pub(crate) fn come_back(&mut self, old: usize) -> io::Result<()> {
        match self {
            Replicated::Sentinels(sentinels) => sentinels.come_back(old),
            Replicated::Cluster(cluster) => cluster.come_back(old),
            Replicated::Pair(pair) => pair.come_back(),
        }
    }

    /// Waits until a replica has all data.
    pub(crate) fn wait_for_copy(&self, replica: usize) -> io::Result<()> {
        match self {
            Replicated::Sentinels(sentinels) => sentinels.wait_for_copy(replica),
            Replicated::Cluster(cluster) => cluster.wait_for_copy(replica),
            Replicated::Pair(pair) => pair.wait_for_copy(),
        }
    }
}
