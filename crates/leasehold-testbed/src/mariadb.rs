//! Throw-away MariaDB servers: real ones, on free ports, in their own directories.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::daemon::{Daemon, Directory, PATIENCE, free_port, unprivileged};
use crate::{failed, last_lines, or_panic};

/// A machine has room for few queues of the kernel's own I/O, and tests start several servers at once.
const NO_AIO: &str = "--innodb-use-native-aio=OFF";

/// How often to start a server again because another process took its port first.
const TRIES: usize = 5;

const MISSING: &str = "MariaDB is not installed; on Debian: apt-get install mariadb-server";

/// A running MariaDB server with the user `root`, without a password, and an empty database `test`. Killed on drop and
/// when the process that started it dies.
#[derive(Debug)]
pub struct MariaDb {
    // Before the directory, in which it may still write.
    _daemon: Daemon,
    directory: Directory,
    port: u16,
}

impl MariaDb {
    /// Starts a server.
    ///
    /// # Panics
    /// If MariaDB is not installed or does not start.
    pub fn start() -> Self {
        or_panic(MariaDb::try_start())
    }

    /// Starts a server.
    ///
    /// # Errors
    /// If MariaDB is not installed or does not start; the message says what to do.
    pub fn try_start() -> io::Result<Self> {
        let directory = Directory::new("mariadb")?;
        let data = directory.path().join("data");
        let mut install = Command::new("env");
        install.args(unprivileged(&program("mariadb-install-db")?, &[])?);
        install
            .args(["--no-defaults", "--auth-root-authentication-method=normal", NO_AIO])
            .arg(with("--datadir=", &data));
        run(&mut install)?;
        for _ in 0..TRIES {
            let port = free_port()?;
            if let Some(daemon) = start_on(&directory, port)? {
                let server = MariaDb { _daemon: daemon, directory, port };
                server.client(None, "CREATE DATABASE IF NOT EXISTS test CHARACTER SET utf8mb4")?;
                return Ok(server);
            }
        }
        let log = std::fs::read_to_string(directory.path().join("log")).unwrap_or_default();
        Err(failed(format!("MariaDB does not start:\n{}", last_lines(&log))))
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs SQL in the database `test`, as `mariadb < file` does; returns what it prints, without headings.
    ///
    /// # Panics
    /// If it fails.
    pub fn sql(&self, sql: &str) -> String {
        or_panic(self.try_sql(sql))
    }

    /// As [`sql`](MariaDb::sql).
    ///
    /// # Errors
    /// If it fails; the message is the server's.
    pub fn try_sql(&self, sql: &str) -> io::Result<String> {
        self.client(Some("test"), sql)
    }

    fn client(&self, database: Option<&str>, sql: &str) -> io::Result<String> {
        // A file, so that the client takes DELIMITER.
        let file = self.directory.path().join(format!("{:?}.sql", std::thread::current().id()));
        std::fs::write(&file, sql)?;
        let mut client = Command::new(program("mariadb")?);
        client.args(["--no-defaults", "--user=root", "--host=127.0.0.1", "--batch", "--skip-column-names"]);
        client.arg(format!("--port={}", self.port)).args(["--default-character-set=utf8mb4", "--raw"]);
        client.args(database).stdin(std::fs::File::open(&file)?);
        run(&mut client)
    }
}

/// Starts the server; `None` if it ended at once, perhaps because of its port.
fn start_on(directory: &Directory, port: u16) -> io::Result<Option<Daemon>> {
    let path = directory.path();
    let args = [
        "--no-defaults".into(),
        with("--datadir=", &path.join("data")),
        with("--socket=", &path.join("socket")),
        with("--pid-file=", &path.join("pid")),
        format!("--port={port}"),
        "--bind-address=127.0.0.1".into(),
        NO_AIO.into(),
        // Small, and quick to start.
        "--innodb-buffer-pool-size=16M".into(),
        "--skip-name-resolve".into(),
    ];
    let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
    let daemon = Daemon::start(directory, &path.join("log"), &program("mariadbd")?, &args, &[])?;
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if daemon.has_ended() {
            return Ok(None);
        }
        let mut ping = Command::new(program("mariadb")?);
        ping.args(["--no-defaults", "--user=root", "--execute=SELECT 1"])
            .arg(with("--socket=", &path.join("socket")));
        if run(&mut ping).is_ok() {
            return Ok(Some(daemon));
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Err(failed("MariaDB does not answer"))
}

fn with(option: &str, path: &Path) -> String {
    format!("{option}{}", path.display())
}

/// A program of MariaDB: from the PATH, or from where Debian puts it.
fn program(name: &str) -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = ["/usr/sbin", "/usr/bin"].map(PathBuf::from);
    let mut all = std::env::split_paths(&path).chain(beside).map(|directory| directory.join(name));
    all.find(|program| program.is_file()).ok_or_else(|| failed(MISSING))
}

/// Runs a command; returns what it prints.
fn run(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
    }
    // Its installer says on stdout what went wrong.
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let said = [text(&output.stderr), text(&output.stdout)].join("\n");
    Err(failed(format!("{}: {}", command.get_program().display(), last_lines(&said))))
}
