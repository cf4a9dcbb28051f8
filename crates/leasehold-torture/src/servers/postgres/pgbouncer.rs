//! PgBouncer before a throw-away server.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{Postgres, TRIES};
use crate::servers::daemon::{Daemon, Directory, PATIENCE, free_port};
use crate::servers::{failed, or_panic};

/// How PgBouncer shares its connections to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMode {
    /// A connection belongs to a client for as long as the client is connected.
    Session,
    /// Only for the length of a transaction.
    Transaction,
}

/// A PgBouncer before a server. Killed on drop and when the process that started it dies.
#[derive(Debug)]
pub struct PgBouncer {
    /// Held for what happens when it is dropped.
    _daemon: Daemon,
    _directory: Directory,
    port: u16,
}

impl PgBouncer {
    /// Starts one that lets everybody in as the user `postgres`, with so many connections to the server at most.
    ///
    /// # Panics
    /// If PgBouncer is not installed or does not start.
    pub fn start(server: &Postgres, mode: PoolMode, connections: usize) -> Self {
        for _ in 0..TRIES {
            if let Some(pooler) = or_panic(PgBouncer::try_start(server, mode, connections)) {
                return pooler;
            }
        }
        panic!("PgBouncer does not start");
    }

    fn try_start(server: &Postgres, mode: PoolMode, connections: usize) -> io::Result<Option<Self>> {
        let (directory, port) = (Directory::new("pgb")?, free_port()?);
        let log = directory.path().join("log");
        let mut ini = String::new();
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        };
        let _ = write!(
            ini,
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n\
             default_pool_size = {connections}\nmax_client_conn = 500\nignore_startup_parameters = options\n",
            server.port
        );
        let file = directory.path().join("pgbouncer.ini");
        std::fs::write(&file, ini)?;
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].map(PathBuf::from).into_iter();
        let program = program.into_iter().find(|path| path.is_file());
        let program =
            program.ok_or_else(|| failed("PgBouncer is not installed: install the package pgbouncer"))?;
        let daemon = Daemon::start(&directory, &log, &program, &[file.as_os_str()], &[])?;
        let started = Instant::now();
        // By its own word: somebody else may listen on the port.
        let is_up = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("process up"));
        while !is_up() || std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if daemon.has_ended() {
                return Ok(None);
            }
            if started.elapsed() > PATIENCE {
                return Err(failed("PgBouncer does not come up"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Some(PgBouncer { _daemon: daemon, _directory: directory, port }))
    }

    /// Where it listens on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `postgres://postgres@127.0.0.1:port/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}
