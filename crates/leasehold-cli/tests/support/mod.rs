//! Shared by the tests of the built binary: stores of their own, and processes to watch.

#![allow(dead_code)] // each test file uses a part of it
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

pub(crate) mod authority;
pub(crate) mod shell;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;
#[allow(unused_imports)] // as above
pub(crate) use testkit::until::{PATIENCE, until, until_within};

/// A store that no other test uses, and a directory for the test's files.
pub(crate) struct Store {
    pub(crate) dir: TempDir,
    pub(crate) url: String,
    /// Whether its leases end by a ttl; otherwise they end with the process.
    pub(crate) ttl: bool,
    /// Whether other clients can see waiters.
    pub(crate) shows_waiters: bool,
    /// Whether other clients can see names, and holders and waiters by their labels.
    pub(crate) shows_names: bool,
    /// Whether it supports permits.
    pub(crate) permits: bool,
    server: Server,
}

/// The server of a store, for as long as the test lasts.
enum Server {
    Nobody,
    Redis(testkit::redis::Server),
    Postgres(testkit::postgres::Postgres),
    Quorum(Vec<testkit::redis::Server>),
    Leasehold(Served),
}

/// Every store that the command line is tested on, one per line.
pub(crate) fn stores() -> Vec<Store> {
    vec![file(), sqlite(), redis(), postgres(), advisory(), server()]
}

/// The same, and a quorum.
pub(crate) fn every_store() -> Vec<Store> {
    stores().into_iter().chain([quorum()]).collect()
}

/// Stores that can be unavailable while their clients run.
pub(crate) fn fallible_stores() -> Vec<Store> {
    vec![sqlite(), redis(), postgres(), advisory(), server()]
}

/// Stores whose leases end by a ttl.
pub(crate) fn ttl_stores() -> Vec<Store> {
    stores().into_iter().filter(|store| store.ttl).collect()
}

pub(crate) fn file() -> Store {
    Store::new(false, |dir| format!("file:{}", dir.join("locks").display()))
}

pub(crate) fn sqlite() -> Store {
    Store::new(true, |dir| format!("sqlite:{}", dir.join("locks.db").display()))
}

pub(crate) fn redis() -> Store {
    let server = testkit::redis::Server::start();
    let url = server.url();
    Store { server: Server::Redis(server), ..Store::at(url) }
}

pub(crate) fn postgres() -> Store {
    let server = testkit::postgres::Postgres::start();
    let url = server.url();
    Store { server: Server::Postgres(server), ..Store::at(url) }
}

pub(crate) fn advisory() -> Store {
    let server = testkit::postgres::Postgres::start();
    // Notice a hanging server before the test gives up.
    let url = server.url().replacen("postgres://", "postgres+advisory://", 1) + "?keepalive=1";
    let server = Server::Postgres(server);
    Store { ttl: false, shows_names: false, permits: false, server, ..Store::at(url) }
}

/// A majority of three Redis servers.
pub(crate) fn quorum() -> Store {
    let servers = testkit::redis::servers(3);
    let urls: Vec<String> = servers.iter().map(testkit::redis::Server::url).collect();
    // Waiters poll, so there is no queue to show them.
    let url = format!("quorum:{}", urls.join(","));
    Store { shows_waiters: false, server: Server::Quorum(servers), ..Store::at(url) }
}

/// A leasehold server in front of SQLite.
pub(crate) fn server() -> Store {
    let mut store = Store::new(true, |_| String::new());
    let served = Served::start(store.dir.path(), &[]);
    store.url.clone_from(&served.url);
    Store { server: Server::Leasehold(served), ..store }
}

/// A `leasehold serve`, killed on drop.
pub(crate) struct Served {
    process: Child,
    pub(crate) url: String,
    /// What it printed before it served.
    pub(crate) greeting: String,
}

impl Served {
    /// Starts a server with these options and its data in this directory.
    pub(crate) fn start(dir: &Path, options: &[&str]) -> Self {
        let mut serve = vec!["serve", "--log", "none", "--listen", "127.0.0.1:0"];
        if !options.contains(&"--store") {
            serve.extend(["--store", "sqlite:served.db"]);
        }
        Served::from(leasehold(&[&serve[..], options].concat()).current_dir(dir))
    }

    pub(crate) fn from(command: &mut Command) -> Self {
        let (process, url, greeting) = greeted(command);
        Served { process, url, greeting }
    }

    /// The value it printed after this word.
    pub(crate) fn told(&self, what: &str) -> &str {
        let line = self.greeting.lines().find_map(|line| line.strip_prefix(what));
        line.unwrap_or_else(|| panic!("no {what} in {}", self.greeting)).trim()
    }

    pub(crate) fn pid(&self) -> Pid {
        pid(self.process.id())
    }

    /// Waits until it has ended; returns its exit status.
    #[track_caller]
    pub(crate) fn ended(mut self) -> ExitStatus {
        until("the server ends", || self.process.try_wait().unwrap().is_some());
        self.process.wait().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A store that does not answer until this is dropped.
pub(crate) struct Away<'a>(&'a Store, Option<rusqlite::Connection>);

impl Drop for Away<'_> {
    fn drop(&mut self) {
        match &self.0.server {
            Server::Nobody => drop(self.1.take()),
            Server::Redis(server) => server.go_on(),
            Server::Postgres(server) => server.thaw(),
            Server::Quorum(servers) => servers.iter().for_each(|server| server.go_on()),
            Server::Leasehold(server) => server.signal(Signal::CONT),
        }
    }
}

impl Store {
    fn new(ttl: bool, url: impl FnOnce(&Path) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = url(dir.path());
        Store { dir, url, ttl, shows_waiters: ttl, shows_names: true, permits: true, server: Server::Nobody }
    }

    /// Makes the store unavailable to everybody: it answers nothing, and refuses nothing.
    pub(crate) fn away(&self) -> Away<'_> {
        match &self.server {
            Server::Nobody => return Away(self, Some(self.cut_off())),
            Server::Redis(server) => server.freeze(),
            Server::Postgres(server) => server.freeze(),
            Server::Quorum(servers) => servers.iter().for_each(|server| server.freeze()),
            Server::Leasehold(server) => server.signal(Signal::STOP),
        }
        Away(self, None)
    }

    /// The session locks in PostgreSQL, held or waited for, if this is their store.
    pub(crate) fn session_locks(&self) -> Option<String> {
        match &self.server {
            Server::Postgres(server) if !self.ttl => Some(
                server.sql("SELECT granted, count(*) FROM pg_locks WHERE locktype = 'advisory' GROUP BY 1"),
            ),
            _ => None,
        }
    }

    /// Waits until this process is the only waiter for the name.
    #[track_caller]
    pub(crate) fn until_waited_for(&self, name: &str, waiter: &Running) {
        match &self.server {
            _ if self.shows_waiters => until("it is in the queue", || self.inspect(name).queue_length == 1),
            Server::Postgres(_) => until("it is in the queue", || self.session_waits()),
            _ => until("it says that it waits", || waiter.said().contains("waiting")),
        }
    }

    /// Whether PostgreSQL shows a waiter for a session lock.
    pub(crate) fn session_waits(&self) -> bool {
        self.session_locks().is_some_and(|locks| locks.lines().count() == 2)
    }

    /// Waits until this process has opened the store: its files, or a connection to its server.
    #[track_caller]
    pub(crate) fn until_opened_by(&self, process: &Running) {
        let directory = format!("/proc/{}/fd", process.pid().as_raw_nonzero());
        let files = self.dir.path().canonicalize().unwrap();
        let port = self.url.split("127.0.0.1:").nth(1).map(|rest| {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
            digits.parse::<u16>().unwrap()
        });
        // The remote end of an open connection.
        let connected = port.map(|port| format!(" 0100007F:{port:04X} 01 "));
        until("it has the store open", || {
            let sockets: Vec<String> = connected.iter().flat_map(|end| sockets_to(end)).collect();
            let open = std::fs::read_dir(&directory).expect("it runs").flatten();
            let mut links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
            links.any(|link| {
                link.starts_with(&files) || sockets.iter().any(|socket| link == Path::new(socket))
            })
        });
    }

    /// A store on a server that the test keeps itself.
    pub(crate) fn at(url: String) -> Self {
        Store::new(true, |_| url)
    }

    /// Its URL as displayed.
    pub(crate) fn shown(&self) -> String {
        match self.url.split_once("://") {
            Some((scheme, rest)) => {
                let place = rest.split('?').next().unwrap().rsplit('@').next().unwrap();
                format!("{scheme}://{place}")
            }
            None => self.url.clone(),
        }
    }

    /// How a holder with this label is displayed.
    pub(crate) fn owner<'a>(&self, label: &'a str) -> &'a str {
        if self.shows_names { label } else { "PostgreSQL session " }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `leasehold …` on this store, in the directory of the test.
    pub(crate) fn leasehold(&self, args: &[&str]) -> Command {
        let mut command = leasehold(args);
        command.env("LEASEHOLD_URL", &self.url).current_dir(self.dir.path());
        if !matches!(self.server, Server::Nobody) {
            // Test stores are fast and not durable, or in a temporary directory, which causes warnings.
            command.env("LEASEHOLD_NO_WARNINGS", "true");
        }
        command
    }

    /// Runs `leasehold run …` to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        ended(self.leasehold(&[&["run"], args].concat()))
    }

    /// Starts `leasehold run …` in the background.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        Running::start(self.leasehold(&[&["run"], args].concat()))
    }

    /// Starts a process that holds the name until it is dropped.
    pub(crate) fn hold(&self, name: &str, options: &[&str]) -> Running {
        let mark = self.path("held");
        let _ = std::fs::remove_file(&mark);
        let mark = mark.to_str().unwrap();
        let script = "touch \"$0\"; exec sleep 600";
        let holder = self.start(&[options, &[name, "--", "sh", "-c", script, mark]].concat());
        appears(Path::new(mark));
        holder
    }

    /// Makes a SQLite store unavailable until this is dropped: nothing can be written, as on a server that does not
    /// answer.
    pub(crate) fn cut_off(&self) -> rusqlite::Connection {
        let db =
            rusqlite::Connection::open(self.url.strip_prefix("sqlite:").expect("a SQLite store")).unwrap();
        db.busy_timeout(PATIENCE).unwrap();
        db.execute_batch("BEGIN IMMEDIATE").unwrap();
        db
    }

    /// What this store knows about a name.
    pub(crate) fn inspect(&self, name: &str) -> leasehold::backend::NameInfo {
        leasehold::blocking::Locks::connect(&self.url).unwrap().inspect(name).unwrap()
    }
}

/// The binary, with no store in its environment; it dies with the test.
pub(crate) fn leasehold(args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command
        // The tests may be started with ignored signals, as by nohup, and that is inherited.
        .args(["--pdeathsig", "KILL", "--", "env", "--default-signal", env!("CARGO_BIN_EXE_leasehold")])
        .args(args)
        .stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LEASEHOLD_") || name == "NO_COLOR" {
            command.env_remove(name);
        }
    }
    command.env("SHELL", "/bin/sh");
    command
}

/// How a command ended, and what it printed.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by a signal: {self:?}"))
    }

    /// Checks that it exits with this code, and prints exactly one line, which contains this.
    #[track_caller]
    pub(crate) fn says(&self, code: i32, what: &str) {
        assert_eq!(self.code(), code, "{self:?}");
        assert!(self.err.contains(what), "{self:?}");
        assert!(self.err.starts_with("leasehold: ") && self.err.lines().count() == 1, "{self:?}");
    }
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn ended(command: Command) -> Ended {
    Running::start(command).ended()
}

/// The sockets of all connections to this end, as `/proc` shows them.
fn sockets_to(end: &str) -> Vec<String> {
    let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let of_it = connections.lines().filter(|line| line.contains(end));
    of_it.filter_map(|line| Some(format!("socket:[{}]", line.split_whitespace().nth(9)?))).collect()
}

/// A command in the background, killed on drop. Its output is in files, which can be read while it runs.
pub(crate) struct Running {
    process: Child,
    out: File,
    err: File,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let (out, err) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        command.stdout(out.try_clone().unwrap()).stderr(err.try_clone().unwrap());
        Running { process: command.spawn().expect("the binary starts"), out, err }
    }

    /// What it has printed on stderr until now.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&content(&self.err)).into_owned()
    }

    /// What it has printed on stdout until now.
    pub(crate) fn printed(&self) -> String {
        String::from_utf8_lossy(&content(&self.out)).into_owned()
    }

    pub(crate) fn pid(&self) -> Pid {
        pid(self.process.id())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Waits until it has ended.
    #[track_caller]
    pub(crate) fn ended(mut self) -> Ended {
        until("it ends", || self.has_ended());
        let text = |file| String::from_utf8(content(file)).expect("output is UTF-8");
        Ended { status: self.process.wait().unwrap(), out: text(&self.out), err: text(&self.err) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads a whole file, also while a process still writes to it.
fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

pub(crate) fn pid(id: u32) -> Pid {
    i32::try_from(id).ok().and_then(Pid::from_raw).expect("a process id")
}

/// Whether such a process exists and has not ended.
pub(crate) fn lives(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let ended = stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'));
    !ended && test_kill_process(pid).is_ok()
}

/// Does the same with each, all at once, so that it takes no longer than the slowest.
pub(crate) fn each<T: Sync, R: Send>(all: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let acts: Vec<_> = all.iter().map(|one| scope.spawn(|| act(one))).collect();
        let results: Vec<_> = acts.into_iter().map(|act| act.join()).collect();
        // A failed thread has printed why.
        results.into_iter().map(|result| result.expect("each succeeds")).collect()
    })
}

/// Waits until a file exists.
#[track_caller]
pub(crate) fn appears(path: &Path) {
    until(&format!("{} appears", path.display()), || path.exists());
}

/// Waits until a file contains a whole line, and reads it.
#[track_caller]
pub(crate) fn line_in(path: &Path) -> String {
    let read = || std::fs::read_to_string(path).unwrap_or_default();
    until(&format!("{} holds a line", path.display()), || read().ends_with('\n'));
    read().trim().to_owned()
}

/// Waits until a file contains a process id, and reads it.
#[track_caller]
pub(crate) fn pid_in(path: &Path) -> Pid {
    pid(line_in(path).parse().expect("a process id"))
}

/// Starts a server; returns its process, its URL, and all that it printed until then.
pub(crate) fn greeted(command: &mut Command) -> (std::process::Child, String, String) {
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap());
    let mut greeting = String::new();
    let url = loop {
        let begin = greeting.len();
        assert!(lines.read_line(&mut greeting).unwrap() > 0, "it ended: {greeting}");
        if let Some(url) = greeting[begin..].strip_prefix("export LEASEHOLD_URL=") {
            break url.trim().to_owned();
        }
    };
    (process, url, greeting)
}
