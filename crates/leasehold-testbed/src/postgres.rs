//! Throw-away PostgreSQL servers, and PgBouncer in front of them: real ones, on free ports, in their own directories.

mod pgbouncer;
mod standby;

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub use self::pgbouncer::{PgBouncer, PoolMode};
pub use self::standby::Pair;

use crate::daemon::{Daemon, Directory, PATIENCE, free_port, unprivileged};
use crate::{failed, last_lines, or_panic};

/// How often to restart a server because another process took its port first.
const TRIES: usize = 5;

/// Sets up a [`Postgres`].
#[derive(Debug, Default)]
pub struct PostgresBuilder {
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    access: String,
}

/// A running PostgreSQL server with the superuser `postgres`, without a password. Killed on drop and when the process
/// that started it dies.
#[derive(Debug)]
pub struct Postgres {
    daemon: Option<Daemon>,
    directory: Directory,
    port: u16,
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
}

/// How to stop a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Ends all sessions and writes everything to disk (`-m fast`).
    Fast,
    /// Ends at once; the next start recovers from the log (`-m immediate`).
    Immediate,
    /// SIGKILL to every process, like a machine crash after which the disk has what was synced.
    Kill,
}

impl PostgresBuilder {
    /// Sets a parameter of the server, as in `postgresql.conf`: `max_connections`, `default_transaction_isolation`, …
    /// The last one counts.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Answers before anything is on disk: for tests that need many transactions and no crash.
    #[must_use]
    pub fn without_fsync(self) -> Self {
        self.setting("fsync", "off").setting("synchronous_commit", "off").setting("full_page_writes", "off")
    }

    /// Adds a line at the top of `pg_hba.conf`, whose other lines let everybody in without a password: `host all alice
    /// 127.0.0.1/32 scram-sha-256`.
    #[must_use]
    pub fn access(mut self, line: &str) -> Self {
        self.access.push_str(line);
        self.access.push('\n');
        self
    }

    /// Uses TLS, with a certificate for `localhost` that [`Postgres::authority`] has signed.
    #[must_use]
    pub fn tls(self) -> Self {
        self.setting("ssl", "on")
    }

    /// Sets a variable in the server's environment.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Starts the server.
    ///
    /// # Panics
    /// If PostgreSQL is not installed or does not start.
    pub fn start(self) -> Postgres {
        or_panic(self.try_start())
    }

    /// Starts the server.
    ///
    /// # Errors
    /// If PostgreSQL is not installed or does not start; the message says what to do.
    pub fn try_start(self) -> io::Result<Postgres> {
        let directory = Directory::new("pg")?;
        run(Command::new("env")
            .args(unprivileged(Path::new("cp"), &[])?)
            .arg("-a")
            .args([template()?.join("data"), directory.path().join("data")]))?;
        let hba = directory.path().join("data/pg_hba.conf");
        let lines = std::fs::read_to_string(&hba)?;
        std::fs::write(&hba, self.access + &lines)?;
        if self.settings.iter().any(|(name, _)| name == "ssl") {
            make_certificates(directory.path())?;
        }
        let PostgresBuilder { settings, environment, .. } = self;
        Postgres { daemon: None, directory, port: 0, settings, environment }.up()
    }
}

impl Postgres {
    /// A server with its package's settings, but with room for more connections.
    ///
    /// # Panics
    /// As [`PostgresBuilder::start`].
    pub fn start() -> Self {
        Postgres::builder().start()
    }

    /// A builder for a server.
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default().setting("max_connections", "200")
    }

    /// Starts the server on its own port.
    fn up(mut self) -> io::Result<Self> {
        for _ in 0..TRIES {
            self.port = free_port()?;
            if self.come_up()? {
                return Ok(self);
            }
        }
        Err(self.does_not_start())
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of its Unix socket.
    pub fn socket(&self) -> &Path {
        self.directory.path()
    }

    /// `postgres://postgres@127.0.0.1:port/postgres`.
    pub fn url(&self) -> String {
        self.url_of("postgres", "postgres")
    }

    /// A URL for a user, who may be `name:password`, and a database.
    pub fn url_of(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// The file of the authority that signed its certificate, if it uses TLS.
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("authority.pem")
    }

    /// Runs SQL as the superuser with `psql`; returns what it prints, unaligned and without headings.
    ///
    /// # Panics
    /// If it fails.
    pub fn sql(&self, sql: &str) -> String {
        or_panic(self.try_sql(sql))
    }

    /// As [`sql`](Postgres::sql).
    ///
    /// # Errors
    /// If it fails.
    pub fn try_sql(&self, sql: &str) -> io::Result<String> {
        let mut psql = Command::new(program("psql")?);
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d"]).arg(self.url()).args(["-c", sql]);
        psql.env("PGCONNECT_TIMEOUT", PATIENCE.as_secs().to_string());
        run(&mut psql)
    }

    /// Its major version.
    ///
    /// # Panics
    /// If it does not say.
    pub fn version(&self) -> u32 {
        self.sql("SHOW server_version_num").parse::<u32>().expect("a number") / 10_000
    }

    /// What it has written to its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Stops it, and waits until all its processes have ended.
    ///
    /// # Panics
    /// If it does not run, or does not stop.
    pub fn stop(&mut self, how: Stop) {
        or_panic(self.try_stop(how));
    }

    /// Stops it, and waits until all its processes have ended.
    ///
    /// # Errors
    /// If it does not run, or does not stop.
    pub fn try_stop(&mut self, how: Stop) -> io::Result<()> {
        let daemon = self.daemon.take().ok_or_else(|| failed("PostgreSQL does not run"))?;
        let children = daemon.children();
        match how {
            Stop::Fast => daemon.signal(Signal::INT),
            Stop::Immediate => daemon.signal(Signal::QUIT),
            Stop::Kill => {
                daemon.signal(Signal::KILL);
                for child in &children {
                    let _ = kill_process(*child, Signal::KILL);
                }
            }
        }
        daemon.wait(&children)
    }

    /// Starts it again, on the same port.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_again(&mut self) {
        or_panic(self.try_start_again());
    }

    /// Starts it again, on the same port.
    ///
    /// # Errors
    /// If it does not start.
    pub fn try_start_again(&mut self) -> io::Result<()> {
        if self.daemon.is_none() && self.come_up()? { Ok(()) } else { Err(self.does_not_start()) }
    }

    fn does_not_start(&self) -> io::Error {
        failed(format!("PostgreSQL does not start; the end of its log:\n{}", last_lines(&self.log())))
    }

    /// Stops and starts it.
    ///
    /// # Panics
    /// As [`stop`](Postgres::stop) and [`start_again`](Postgres::start_again).
    pub fn restart(&mut self, how: Stop) {
        self.stop(how);
        self.start_again();
    }

    /// Stops all its processes with SIGSTOP, and returns when they are stopped: connections stay open, nothing is
    /// answered.
    ///
    /// # Panics
    /// If it does not run.
    pub fn freeze(&self) {
        or_panic(self.daemon.as_ref().expect("the server runs").freeze());
    }

    /// Continues it.
    ///
    /// # Panics
    /// If it does not run.
    pub fn thaw(&self) {
        self.daemon.as_ref().expect("the server runs").thaw();
    }

    /// Sends a signal to the process of one session, by its `pg_backend_pid()`.
    ///
    /// # Panics
    /// If there is no such process of this server.
    pub fn signal_session(&self, pid: i32, signal: Signal) {
        let pid = Pid::from_raw(pid).expect("a process id");
        assert!(
            self.daemon.as_ref().is_some_and(|daemon| daemon.children().contains(&pid)),
            "no such session"
        );
        kill_process(pid, signal).expect("the session is there");
    }

    /// Whether it has started; false if the port was taken meanwhile.
    fn come_up(&mut self) -> io::Result<bool> {
        let (data, log) = (self.directory.path().join("data"), self.directory.path().join("log"));
        let mut args: Vec<String> = vec!["-D".into(), data.display().to_string()];
        let own = [
            ("port", self.port.to_string()),
            ("listen_addresses", "127.0.0.1".into()),
            ("unix_socket_directories", self.directory.path().display().to_string()),
            ("ssl_cert_file", self.directory.path().join("server.pem").display().to_string()),
            ("ssl_key_file", self.directory.path().join("server.key").display().to_string()),
            ("log_min_messages", "warning".into()),
        ];
        let given = self.settings.iter().map(|(name, value)| (name.as_str(), value.clone()));
        for (name, value) in own.into_iter().chain(given) {
            args.extend(["-c".into(), format!("{name}={value}")]);
        }
        let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        self.directory.free_memory();
        let _ = std::fs::remove_file(data.join("postmaster.pid"));
        let daemon = Daemon::start(&self.directory, &log, &program("postgres")?, &args, &self.environment)?;
        let started = Instant::now();
        while !is_ready(&data, daemon.pid()) {
            if daemon.has_ended() {
                daemon.wait(&[])?;
                return Ok(false);
            }
            if started.elapsed() > PATIENCE {
                return Err(self.does_not_start());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.daemon = Some(daemon);
        Ok(true)
    }
}

/// A new database, to be copied: that takes a fraction of the time of making one. Removed when this process ends.
fn template() -> io::Result<&'static Path> {
    static TEMPLATE: OnceLock<Result<(Directory, Daemon), String>> = OnceLock::new();
    let make = || -> io::Result<_> {
        let directory = Directory::new("pgt")?;
        // Its keeper removes the directory, however this process ends.
        let log = directory.path().join("log");
        let idler = Daemon::start(&directory, &log, Path::new("sleep"), &[OsStr::new("infinity")], &[])?;
        run(Command::new("env")
            .args(unprivileged(&program("initdb")?, &[])?)
            .args(["-U", "postgres", "-A", "trust", "-N", "--no-locale", "-E", "UTF8", "-D"])
            .arg(directory.path().join("data")))?;
        Ok((directory, idler))
    };
    match TEMPLATE.get_or_init(|| make().map_err(|error| error.to_string())) {
        Ok((directory, _)) => Ok(directory.path()),
        Err(message) => Err(failed(message.clone())),
    }
}

/// Whether the eighth line of the server's lock file says that it accepts connections.
fn is_ready(data: &Path, pid: Pid) -> bool {
    let text = std::fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    let mut lines = text.lines();
    lines.next() == Some(&pid.as_raw_nonzero().to_string())
        && lines.nth(6).is_some_and(|line| matches!(line.trim(), "ready" | "standby"))
}

/// Names the directory with the programs of another PostgreSQL, to run the same tests on that.
const PROGRAMS: &str = "LEASEHOLD_POSTGRES_PROGRAMS";

/// A program of PostgreSQL: of the newest installed version, unless another was named.
fn program(name: &str) -> io::Result<PathBuf> {
    if let Some(programs) = std::env::var_os(PROGRAMS) {
        return Ok(PathBuf::from(programs).join(name));
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let version = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let newest =
        versions.map(|entry| entry.path()).filter(|path| version(path).is_some()).max_by_key(version);
    let found = newest.map(|path| path.join("bin").join(name)).filter(|path| path.is_file());
    if let Some(found) = found {
        return Ok(found);
    }
    let missing = |_| failed("PostgreSQL is not installed: install the package postgresql");
    let binaries = Command::new("pg_config").arg("--bindir").output().map_err(missing)?;
    Ok(PathBuf::from(String::from_utf8_lossy(&binaries.stdout).trim()).join(name))
}

/// Makes an authority, and a certificate for `localhost` that it has signed. Only the server's user can read its key.
fn make_certificates(dir: &Path) -> io::Result<()> {
    let script = r#"
set -e; cd "$1"; umask 077
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=authority \
  -keyout authority.key -out authority.pem
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost \
  -keyout server.key -out server.csr
printf 'subjectAltName=DNS:localhost\n' >extensions
openssl x509 -req -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 \
  -extfile extensions -out server.pem
chmod 644 authority.pem
"#;
    let mut sh = Command::new("env");
    run(sh.args(unprivileged(Path::new("sh"), &[])?).args(["-c", script, "sh"]).arg(dir)).map(drop)
}

fn run(command: &mut Command) -> io::Result<String> {
    let done = command.current_dir("/").output();
    let done = done.map_err(|error| failed(format!("{command:?}: {error}")))?;
    if !done.status.success() {
        return Err(failed(format!("{command:?}:\n{}", String::from_utf8_lossy(&done.stderr))));
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim_end().to_owned())
}
