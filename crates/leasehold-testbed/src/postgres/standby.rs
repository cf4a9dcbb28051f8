//! PostgreSQL standbys, which follow another server and can take its place.

use std::io;
use std::process::Command;

use super::{Postgres, Stop, program, run};
use crate::daemon::{Directory, unprivileged, wait_until};
use crate::or_panic;

impl Postgres {
    /// A standby that follows this server and answers reads.
    ///
    /// # Panics
    /// If it does not start.
    pub fn standby(&self) -> Self {
        or_panic(self.try_standby())
    }

    /// As [`standby`](Postgres::standby).
    ///
    /// # Errors
    /// If it does not start.
    pub fn try_standby(&self) -> io::Result<Self> {
        let directory = Directory::new("pgs")?;
        self.copy_to(&directory)?;
        let (settings, environment) = (self.settings.clone(), self.environment.clone());
        Postgres { daemon: None, directory, port: 0, settings, environment }.up()
    }

    /// Copies its database, so that a server started there follows this one.
    fn copy_to(&self, directory: &Directory) -> io::Result<()> {
        run(Command::new("env")
            .args(unprivileged(&program("pg_basebackup")?, &[])?)
            .args(["-R", "-c", "fast", "-X", "stream", "-d", &self.url(), "-D"])
            .arg(directory.path().join("data")))
        .map(drop)
    }
}

/// The default name of a standby. A copy in progress has another name, and confirms nothing.
const STANDBY: &str = "walreceiver";

/// A primary that answers only when its standby also has the data on disk, and that standby, which can take its place.
#[derive(Debug)]
pub struct Pair {
    servers: Vec<Postgres>,
    primary: usize,
}

impl Pair {
    /// Starts both.
    ///
    /// # Errors
    /// If one does not start; the message says what to do.
    pub fn try_start() -> io::Result<Self> {
        let primary = Postgres::builder()
            .setting("synchronous_standby_names", STANDBY)
            .setting("wal_keep_size", "1GB")
            // Cancelled calls still wait for a standby while there is none.
            .setting("max_connections", "600")
            .try_start()?;
        let standby = primary.try_standby()?;
        let pair = Pair { servers: vec![primary, standby], primary: 0 };
        pair.wait_for_copy()?;
        Ok(pair)
    }

    /// `postgres://…`, naming both.
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("postgres://postgres@{}/postgres", hosts.join(","))
    }

    /// Which of the two is the primary, and which the standby.
    pub fn roles(&self) -> (usize, usize) {
        (self.primary, 1 - self.primary)
    }

    fn standby(&self) -> &Postgres {
        &self.servers[1 - self.primary]
    }

    /// Cuts the standby off: nothing reaches it any more.
    ///
    /// # Errors
    /// If something still does.
    pub fn cut(&self) -> io::Result<()> {
        self.standby().try_sql("ALTER SYSTEM SET primary_conninfo = ''")?;
        self.standby().try_sql("SELECT pg_reload_conf()")?;
        wait_until("the standby is not cut off", || {
            self.standby()
                .try_sql("SELECT count(*) FROM pg_stat_wal_receiver")
                .is_ok_and(|count| count == "0")
        })
    }

    /// Stops the primary.
    ///
    /// # Errors
    /// If it does not stop.
    pub fn stop(&mut self, how: Stop) -> io::Result<()> {
        self.servers[self.primary].try_stop(how)
    }

    /// Stops all processes of the primary with SIGSTOP.
    pub fn freeze(&self) {
        self.servers[self.primary].freeze();
    }

    /// Makes the standby the primary. If the old primary still lives, it is killed afterwards: it must not come back.
    ///
    /// # Errors
    /// If the standby does not become the primary.
    pub fn promote(&mut self) -> io::Result<()> {
        self.standby().try_sql("SELECT pg_promote(true, 60)")?;
        let old = self.primary;
        self.primary = 1 - old;
        match self.servers[old].daemon {
            Some(_) => self.servers[old].try_stop(Stop::Kill),
            None => Ok(()),
        }
    }

    /// Rebuilds the old primary as the standby.
    ///
    /// # Errors
    /// If it does not start.
    pub fn come_back(&mut self) -> io::Result<()> {
        let (primary, old) = (self.primary, 1 - self.primary);
        self.servers[old].directory.free_memory();
        std::fs::remove_dir_all(self.servers[old].directory.path().join("data"))?;
        self.servers[primary].copy_to(&self.servers[old].directory)?;
        self.servers[old].try_start_again()
    }

    /// Waits until the standby confirms the primary's writes.
    ///
    /// # Errors
    /// If it does not.
    pub fn wait_for_copy(&self) -> io::Result<()> {
        let confirms =
            "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'";
        wait_until("the standby does not catch up", || {
            self.servers[self.primary].try_sql(confirms).is_ok_and(|count| count == "1")
        })
    }
}
