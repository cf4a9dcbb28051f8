//! Redis replicas.

use std::io;

use super::Server;
use crate::daemon::wait_until;
use crate::or_panic;

/// Start a full copy at once, without waiting five seconds for other replicas.
pub(super) const COPY_AT_ONCE: [&str; 2] = ["--repl-diskless-sync-delay", "0"];

/// A primary and a replica of it that has caught up.
///
/// # Panics
/// If they cannot be started.
pub fn with_replica() -> Vec<Server> {
    or_panic(with_replica_and(&[]))
}

pub(super) fn with_replica_and(options: &[&str]) -> io::Result<Vec<Server>> {
    let options = [options, &COPY_AT_ONCE].concat();
    let primary = Server::try_with(&options, &[])?;
    let follow = format!("127.0.0.1 {}", primary.port);
    let replica = Server::try_with(&[&options, &["--replicaof", &follow][..]].concat(), &[])?;
    wait_until("the replica does not catch up", || replica.follows())?;
    Ok(vec![primary, replica])
}

impl Server {
    /// A field of the server's `INFO`.
    pub(super) fn said(&self, section: &str, field: &str) -> String {
        let info = self.cli(&["INFO", section]);
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_default().trim().to_owned()
    }

    /// Whether it is a primary.
    pub(super) fn is_primary(&self) -> bool {
        self.said("replication", "role") == "master"
    }

    /// Whether it is a replica that its primary sends everything to.
    pub(super) fn follows(&self) -> bool {
        self.said("replication", "master_link_status") == "up"
    }

    /// Waits until a replica has all data, and its primary knows it.
    pub(super) fn wait_for_copy(&self, replica: &Server) -> io::Result<()> {
        wait_until("the replica does not catch up", || {
            replica.follows() && self.said("replication", "slave0").contains("state=online")
        })
    }

    /// Restarts it empty, as a replica of the server on this port.
    pub(super) fn restart_as_replica_of(&mut self, port: u16) -> io::Result<()> {
        if let Some(place) = self.options.iter().position(|option| option == "--replicaof") {
            self.options.drain(place..place + 2);
        }
        self.options.extend(["--replicaof".into(), format!("127.0.0.1 {port}")]);
        self.try_restart()
    }

    /// Cuts this replica off: it may not log in to its primary.
    pub(super) fn cut_from(&self, primary: &Server) -> io::Result<()> {
        self.cli(&["CONFIG", "SET", "masterauth", "nobody-wants-this"]);
        primary.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
        wait_until("the replica is not cut off", || !self.follows())
    }

    /// Lets it log in again.
    pub(super) fn mend(&self) {
        self.cli(&["CONFIG", "SET", "masterauth", ""]);
    }
}
