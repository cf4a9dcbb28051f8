//! Clusters of Redis servers.

use std::path::Path;

use super::{Dir, Server, certificates, tls_only, until};
use crate::servers::{daemon, or_panic};

/// A cluster of three primaries, without replicas unless asked for.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes: the primaries, then a replica if there is one.
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// Starts it, and waits until every node serves.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start() -> Self {
        Cluster::launch(None, None)
    }

    /// As [`start`](Cluster::start), with a fourth node: a replica of this one that has caught up.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn with_replica_of(primary: usize) -> Self {
        Cluster::launch(None, Some(primary))
    }

    /// As [`start`](Cluster::start), with nodes that speak TLS only, also with each other.
    ///
    /// # Panics
    /// If the certificates cannot be made, or it cannot be started.
    pub fn with_tls() -> Self {
        let authority = or_panic(Dir::new());
        or_panic(certificates(&authority.0));
        Cluster::launch(Some(&authority.0), None)
    }

    fn launch(authority: Option<&Path>, with_replica: Option<usize>) -> Self {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        let options = [&options[..], &["--repl-diskless-sync-delay", "0"]].concat();
        let node = || {
            or_panic(Server::launch(&options, &[], authority.is_some(), |dir, port| {
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
            }))
        };
        const PRIMARIES: usize = 3;
        let nodes: Vec<Server> =
            (0..PRIMARIES + usize::from(with_replica.is_some())).map(|_| node()).collect();
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
        let known = format!("cluster_known_nodes:{}", nodes.len());
        until("the cluster comes up", || {
            nodes.iter().all(|node| {
                let info = node.cli(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains(&known)
            })
        });
        if let Some(primary) = with_replica {
            let primary = nodes[primary].cli(&["CLUSTER", "MYID"]);
            let replica = &nodes[PRIMARIES];
            assert_eq!(replica.cli(&["CLUSTER", "REPLICATE", &primary]), "OK");
            until("the replica catches up, and all know of it", || {
                replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
                    && nodes
                        .iter()
                        .all(|node| node.cli(&["CLUSTER", "NODES"]).contains(&format!("slave {primary}")))
            });
        }
        Cluster { nodes }
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
}
