//! Clusters of Redis servers.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::replicas::COPY_AT_ONCE;
use super::{Dir, Server, certificates, tls_only};
use crate::daemon::{self, wait_until};
use crate::or_panic;

/// How many primaries there are.
const PRIMARIES: usize = 3;

/// A cluster of three primaries, without replicas unless asked for.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes: the first primaries, then their replicas.
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// Starts it, and waits until every node serves.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start() -> Self {
        or_panic(Cluster::launch(None, &[]))
    }

    /// As [`start`](Cluster::start), with a fourth node: a replica of this one that has caught up.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn with_replica_of(primary: usize) -> Self {
        or_panic(Cluster::launch(None, &[primary]))
    }

    /// As [`start`](Cluster::start), with a replica of each primary: the node three places after it. On a busy machine
    /// none of them takes its primary's place by itself: they do only while [asked](Cluster::wait_for_promotion) to.
    ///
    /// # Errors
    /// If it cannot be started; the message says what to do.
    pub fn try_with_replicas() -> io::Result<Self> {
        let cluster = Cluster::launch(None, &[0, 1, 2])?;
        for node in &cluster.nodes {
            node.cli(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
        }
        Ok(cluster)
    }

    /// As [`start`](Cluster::start), with nodes that use only TLS, also with each other.
    ///
    /// # Panics
    /// If the certificates cannot be made, or it cannot be started.
    pub fn with_tls() -> Self {
        let authority = or_panic(Dir::new());
        or_panic(certificates(&authority.0));
        or_panic(Cluster::launch(Some(&authority.0), &[]))
    }

    fn launch(authority: Option<&Path>, with_replicas: &[usize]) -> io::Result<Self> {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        let options = [&options[..], &COPY_AT_ONCE].concat();
        let node = || {
            Server::launch(&options, &[], authority.is_some(), |dir, port| {
                let mut more = Vec::new();
                if let Some(authority) = authority {
                    for file in ["ca.pem", "server.pem", "server.key"] {
                        std::fs::copy(authority.join(file), dir.join(file))?;
                    }
                    more.extend(tls_only(dir, port));
                    more.extend(["--tls-cluster".into(), "yes".into()]);
                }
                more.extend(["--cluster-port".into(), daemon::free_port()?.to_string()]);
                Ok(more)
            })
        };
        let nodes: Vec<Server> =
            (0..PRIMARIES + with_replicas.len()).map(|_| node()).collect::<io::Result<_>>()?;
        let bus = |node: &Server| node.options.last().cloned().unwrap_or_default();
        for (i, node) in nodes.iter().enumerate() {
            if i < PRIMARIES {
                let slot = |i: usize| i * 16384 / PRIMARIES;
                let (first, last) = (slot(i).to_string(), (slot(i + 1) - 1).to_string());
                assert_eq!(node.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]), "OK");
            }
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]);
            let first = &nodes[0];
            if i > 0 {
                node.cli(&["CLUSTER", "MEET", "127.0.0.1", &first.port.to_string(), &bus(first)]);
            }
        }
        let cluster = Cluster { nodes };
        let known = format!("cluster_known_nodes:{}", cluster.nodes.len());
        wait_until("the cluster does not come up", || {
            cluster.nodes.iter().all(|node| {
                let info = node.cli(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains(&known)
            })
        })?;
        for (replica, primary) in cluster.nodes[PRIMARIES..].iter().zip(with_replicas) {
            let primary = &cluster.nodes[*primary];
            let id = primary.cli(&["CLUSTER", "MYID"]);
            assert_eq!(replica.cli(&["CLUSTER", "REPLICATE", &id]), "OK");
            primary.wait_for_copy(replica)?;
            wait_until("the nodes do not learn of the replica", || {
                let knows = |node: &Server| node.cli(&["CLUSTER", "NODES"]).contains(&format!("slave {id}"));
                cluster.nodes.iter().all(knows)
            })?;
        }
        Ok(cluster)
    }

    /// `redis-cluster://…`, naming one node.
    pub fn url(&self) -> String {
        let url = format!("redis-cluster://127.0.0.1:{}", self.nodes[0].port);
        match &self.nodes[0] {
            node if node.tls => format!("{url}?tls=1&cacert={}", node.ca().display()),
            _ => url,
        }
    }

    /// The node that serves a slot.
    ///
    /// # Panics
    /// If none does.
    pub fn serving(&self, slot: u16) -> &Server {
        let at = self.nodes.iter().find(|node| {
            let nodes = node.cli(&["CLUSTER", "NODES"]);
            let own = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default().to_owned();
            own.split(' ').skip(8).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                matches!((first.parse(), last.parse()), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
            })
        });
        at.expect("a node serves the slot")
    }

    /// Which of the two nodes of a part of the slots is its primary, and which the replica.
    ///
    /// # Errors
    /// If they do not have one of each.
    pub fn roles(&self, part: usize) -> io::Result<(usize, usize)> {
        let (first, second) = (part, part + PRIMARIES);
        let mut primary = first;
        wait_until("the nodes do not agree on a primary", || {
            primary = if self.nodes[first].is_primary() { first } else { second };
            let replica = first + second - primary;
            self.nodes[primary].is_primary() && !self.nodes[replica].is_primary()
        })?;
        Ok((primary, first + second - primary))
    }

    /// Which part of the slots a key is in.
    pub fn part_of(&self, key: &str) -> usize {
        let slot = self.nodes[0].cli(&["CLUSTER", "KEYSLOT", key]);
        slot.parse::<usize>().map_or(0, |slot| slot * PRIMARIES / 16384)
    }

    /// Cuts a replica off: nothing reaches it any more.
    ///
    /// # Errors
    /// If something still does.
    pub fn cut(&self, replica: usize) -> io::Result<()> {
        self.nodes[replica].cut_from(&self.nodes[other(replica)])
    }

    /// Waits until the cluster has found a primary dead, and this replica has taken its place.
    ///
    /// # Errors
    /// If it does not.
    pub fn wait_for_promotion(&self, replica: usize) -> io::Result<()> {
        let node = &self.nodes[replica];
        node.cli(&["CONFIG", "SET", "cluster-replica-no-failover", "no"]);
        self.promoted(replica)?;
        node.cli(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
        node.mend();
        Ok(())
    }

    /// Lets a replica take its primary's place once it has all data; meanwhile the primary holds back its clients.
    ///
    /// # Errors
    /// If it does not.
    pub fn switch(&self, replica: usize) -> io::Result<()> {
        self.tell(replica, &["CLUSTER", "FAILOVER"])?;
        self.wait_for_demotion(other(replica))
    }

    /// Lets a replica take the place of a dead primary before the cluster has noticed the death.
    ///
    /// # Errors
    /// If it does not.
    pub fn force(&self, replica: usize) -> io::Result<()> {
        self.tell(replica, &["CLUSTER", "FAILOVER", "FORCE"])?;
        self.nodes[replica].mend();
        Ok(())
    }

    fn tell(&self, replica: usize, command: &[&str]) -> io::Result<()> {
        let mut told: Option<Instant> = None;
        wait_until("the replica does not take over", || {
            // It gives up after five seconds.
            if told.is_none_or(|told| told.elapsed() > Duration::from_secs(6))
                && self.nodes[replica].cli(command) == "OK"
            {
                told = Some(Instant::now());
            }
            self.nodes[replica].is_primary()
        })?;
        self.promoted(replica)
    }

    fn promoted(&self, replica: usize) -> io::Result<()> {
        wait_until("the replica does not take over", || {
            let node = &self.nodes[replica];
            node.is_primary() && node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        })
    }

    /// Continues a stopped primary: for a while it does not know that another has taken its place.
    ///
    /// # Errors
    /// If it does not become a replica.
    pub fn go_on_beside(&self, old: usize) -> io::Result<()> {
        self.nodes[old].go_on();
        self.wait_for_demotion(old)
    }

    fn wait_for_demotion(&self, old: usize) -> io::Result<()> {
        wait_until("the old primary does not become a replica", || !self.nodes[old].is_primary())
    }

    /// Restarts a killed node, which becomes the other's replica.
    ///
    /// # Errors
    /// If it cannot be started, or does not become a replica.
    pub fn come_back(&mut self, old: usize) -> io::Result<()> {
        self.nodes[old].try_restart()?;
        self.nodes[old].cli(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
        self.wait_for_demotion(old)
    }

    /// Waits until a replica has all data.
    ///
    /// # Errors
    /// If it does not get it.
    pub fn wait_for_copy(&self, replica: usize) -> io::Result<()> {
        self.nodes[other(replica)].wait_for_copy(&self.nodes[replica])
    }
}

/// The other node of the same part of the slots.
const fn other(node: usize) -> usize {
    (node + PRIMARIES) % (2 * PRIMARIES)
}
