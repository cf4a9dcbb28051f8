//! PgBouncer in front of a throw-away server.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{Postgres, TRIES};
use crate::daemon::{Daemon, Directory, PATIENCE, free_port};
use crate::{failed, or_panic};

/// How PgBouncer shares its connections to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMode {
    /// A connection belongs to a client for as long as the client is connected.
    Session,
    /// A connection belongs to a client only for the length of a transaction.
    Transaction,
}

impl fmt::Display for PoolMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        })
    }
}

/// A PgBouncer in front of a server. Killed on drop and when the process that started it dies.
#[derive(Debug)]
pub struct PgBouncer {
    /// Dropped before the directory, into which it writes.
    daemon: Option<Daemon>,
    directory: Directory,
    port: u16,
}

impl PgBouncer {
    /// Starts one that lets everybody in as the user `postgres`, with at most this many connections to the server.
    ///
    /// # Panics
    /// If PgBouncer is not installed or does not start.
    pub fn start(server: &Postgres, mode: PoolMode, connections: usize) -> Self {
        or_panic(PgBouncer::try_start(server, mode, connections))
    }

    /// As [`start`](PgBouncer::start).
    ///
    /// # Errors
    /// If PgBouncer is not installed or does not start; the message says what to do.
    pub fn try_start(server: &Postgres, mode: PoolMode, connections: usize) -> io::Result<Self> {
        for _ in 0..TRIES {
            let (directory, port) = (Directory::new("pgb")?, free_port()?);
            let ini = format!(
                "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
                 listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n\
                 default_pool_size = {connections}\nmax_client_conn = 1000\nignore_startup_parameters = options\n\
                 server_login_retry = 1\n",
                server.port
            );
            std::fs::write(directory.path().join("pgbouncer.ini"), ini)?;
            let mut pooler = PgBouncer { daemon: None, directory, port };
            if pooler.come_up()? {
                return Ok(pooler);
            }
        }
        Err(failed("PgBouncer does not start"))
    }

    /// Whether it has started; false if the port was taken meanwhile.
    fn come_up(&mut self) -> io::Result<bool> {
        let log = self.directory.path().join("log");
        // The log of the previous start.
        let _ = std::fs::remove_file(&log);
        let file = self.directory.path().join("pgbouncer.ini");
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].map(PathBuf::from);
        let program = program.into_iter().find(|path| path.is_file());
        let program =
            program.ok_or_else(|| failed("PgBouncer is not installed: install the package pgbouncer"))?;
        let daemon = Daemon::start(&self.directory, &log, &program, &[file.as_os_str()], &[])?;
        let started = Instant::now();
        // Trust only its log: another process may listen on the port.
        let is_up = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("process up"));
        while !is_up() || std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if daemon.has_ended() {
                return Ok(false);
            }
            if started.elapsed() > PATIENCE {
                return Err(failed("PgBouncer does not come up"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.daemon = Some(daemon);
        Ok(true)
    }

    /// Kills it and starts it again on the same port.
    ///
    /// # Errors
    /// If it does not start.
    pub fn try_restart(&mut self) -> io::Result<()> {
        drop(self.daemon.take());
        let started = Instant::now();
        // Another process may have taken the port for a moment.
        while !self.come_up()? {
            if started.elapsed() > PATIENCE {
                return Err(failed("PgBouncer does not start again"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.daemon.as_ref().is_none_or(Daemon::has_ended)
    }

    /// Stops it with SIGSTOP, and returns when it is stopped.
    ///
    /// # Errors
    /// If that takes too long.
    pub fn freeze(&self) -> io::Result<()> {
        self.daemon.as_ref().map_or(Ok(()), Daemon::freeze)
    }

    /// Continues it.
    pub fn thaw(&self) {
        if let Some(daemon) = &self.daemon {
            daemon.thaw();
        }
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `postgres://postgres@127.0.0.1:port/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}
