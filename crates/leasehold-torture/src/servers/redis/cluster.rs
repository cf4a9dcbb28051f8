//! Clusters of Redis servers.

use std::path::Path;

use super::{Dir, Server, certificates, tls_only, until};
use crate::servers::{daemon, or_panic};

/// A cluster of three primaries without replicas.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes.
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// Starts it, and waits until every node serves.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start() -> Self {
        Cluster::launch(None)
    }

    /// As [`start`](Cluster::start), with nodes that speak TLS only, also with each other.
    ///
    /// # Panics
    /// If the certificates cannot be made, or it cannot be started.
    pub fn with_tls() -> Self {
        let authority = or_panic(Dir::new());
        certificates(&authority.0);
        Cluster::launch(Some(&authority.0))
    }

    fn launch(authority: Option<&Path>) -> Self {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
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
        let nodes: Vec<Server> = (0..3).map(|_| node()).collect();
        let bus = |node: &Server| node.options.last().cloned().unwrap_or_default();
        for (i, node) in nodes.iter().enumerate() {
            let (first, last) = ((i * 16384 / 3).to_string(), ((i + 1) * 16384 / 3 - 1).to_string());
            assert_eq!(node.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]), "OK");
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]);
            let first = &nodes[0];
            if i > 0 {
                node.cli(&["CLUSTER", "MEET", "127.0.0.1", &first.port.to_string(), &bus(first)]);
            }
        }
        until("the cluster comes up", || {
            nodes.iter().all(|node| {
                let info = node.cli(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
            })
        });
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
