//! Throw-away Redis servers: single ones, clusters, sentinels. They run on free ports, in their own directories, and
//! are gone when dropped and when the process that started them is.
//!
//! The kernel ends a server when the **thread** that started it ends, so start them on one that lasts: a test's own.

mod cluster;
mod replicas;
mod sentinels;

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub use self::cluster::Cluster;
pub use self::replicas::with_replica;
pub use self::sentinels::Sentinels;

use crate::daemon::{self, PATIENCE};
use crate::{failed, last_lines, or_panic};

/// How often a port may turn out to be taken.
const TRIES: usize = 10;

/// A port that is free at this moment.
///
/// # Panics
/// If there is none.
pub fn free_port() -> u16 {
    or_panic(daemon::free_port())
}

/// A separate directory, removed on drop.
#[derive(Debug)]
struct Dir(PathBuf);

impl Dir {
    fn new() -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("leasehold-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Dir(path))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One Redis server, or one sentinel.
#[derive(Debug)]
pub struct Server {
    process: Option<Child>,
    port: u16,
    dir: Dir,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    password: Option<String>,
    tls: bool,
    sentinel: bool,
}

impl Server {
    /// A plain server that keeps nothing on disk.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start() -> Self {
        Server::with(&[])
    }

    /// A server with command-line options, for example `["--appendonly", "yes"]`. If `--requirepass` is among them,
    /// [`cli`](Server::cli) and [`url`](Server::url) use its password.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn with(options: &[&str]) -> Self {
        or_panic(Server::try_with(options, &[]))
    }

    /// As [`with`](Server::with), with these variables in its environment.
    ///
    /// # Errors
    /// If it cannot be started; the message says what to do.
    pub fn try_with(options: &[&str], environment: &[(String, String)]) -> io::Result<Self> {
        Server::launch(options, environment, false, |_, _| Ok(Vec::new()))
    }

    /// A server that writes everything to disk before it answers.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn durable() -> Self {
        Server::with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// A server that accepts only TLS, with a certificate for localhost that [`ca`](Server::ca) has signed.
    ///
    /// # Panics
    /// If the certificates cannot be made, or it cannot be started.
    pub fn with_tls() -> Self {
        or_panic(Server::try_with_tls(&[], &[]))
    }

    /// As [`with_tls`](Server::with_tls), with options and environment as [`try_with`](Server::try_with).
    ///
    /// # Errors
    /// If the certificates cannot be made, or it cannot be started.
    pub fn try_with_tls(options: &[&str], environment: &[(String, String)]) -> io::Result<Self> {
        Server::launch(options, environment, true, |dir, port| {
            certificates(dir)?;
            Ok(tls_only(dir, port))
        })
    }

    fn launch(
        options: &[&str],
        environment: &[(String, String)],
        tls: bool,
        more: impl Fn(&Path, u16) -> io::Result<Vec<String>>,
    ) -> io::Result<Self> {
        let mut log = String::new();
        for _ in 0..TRIES {
            let dir = Dir::new()?;
            let port = daemon::free_port()?;
            let mut all = vec!["--port".to_owned(), port.to_string()];
            all.extend(options.iter().map(|option| (*option).to_owned()));
            all.extend(more(&dir.0, port)?);
            let password = options.iter().skip_while(|option| **option != "--requirepass").nth(1);
            let password = password.map(|password| (*password).to_owned());
            let mut server = Server {
                process: None,
                port,
                dir,
                options: all,
                environment: environment.to_vec(),
                password,
                tls,
                sentinel: false,
            };
            if server.run()? {
                return Ok(server);
            }
            log = server.log();
        }
        Err(failed(format!(
            "redis-server cannot be started; it comes with the package redis-server\n{}",
            last_lines(&log)
        )))
    }

    /// Starts it; returns whether it came up.
    fn run(&mut self) -> io::Result<bool> {
        let mut command = Command::new("setpriv");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.args(["--pdeathsig", "KILL", "redis-server"]);
        if self.sentinel {
            command.arg(self.dir.0.join("sentinel.conf")).arg("--sentinel");
        }
        // An absolute path: the options may name another directory.
        command.args(["--bind", "127.0.0.1", "--daemonize", "no", "--logfile"]).arg(self.dir.0.join("log"));
        if !self.sentinel {
            command.args(["--save", "", "--enable-debug-command", "yes"]);
        }
        let process = command
            .args(&self.options)
            .current_dir(&self.dir.0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C is not for servers: their owner ends them.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                failed(format!("setpriv, of the package util-linux, cannot be started: {error}"))
            })?;
        self.process = Some(process);
        let started = Instant::now();
        loop {
            let ended = self.process.as_mut().is_none_or(|process| !matches!(process.try_wait(), Ok(None)));
            if ended {
                self.process = None;
                return Ok(false);
            }
            if self.answers() {
                return Ok(true);
            }
            if started.elapsed() > PATIENCE {
                return Err(failed(format!("redis-server does not answer:\n{}", last_lines(&self.log()))));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn answers(&self) -> bool {
        // Trust only its log: another process may listen on the port.
        if !self.sentinel && !self.log().contains("Ready to accept connections") {
            return false;
        }
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        if self.tls {
            return true;
        }
        let mut answer = [0; 7];
        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
        stream.write_all(b"PING\r\n").is_ok()
            && stream.read(&mut answer).is_ok_and(|read| read > 0)
            && (answer.starts_with(b"+PONG") || answer.starts_with(b"-NOAUTH"))
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.0.join("log")).unwrap_or_default()
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://…`, or `rediss://…` with its authority.
    pub fn url(&self) -> String {
        if self.tls {
            return format!("rediss://localhost:{}/?cacert={}", self.port, self.ca().display());
        }
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{password}127.0.0.1:{}/", self.port)
    }

    /// The certificate of its authority, if it uses TLS.
    pub fn ca(&self) -> PathBuf {
        self.dir.0.join("ca.pem")
    }

    /// What `redis-cli` prints for a command.
    ///
    /// # Panics
    /// If it cannot be run.
    pub fn cli(&self, args: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "--no-auth-warning"]);
        if let Some(password) = &self.password {
            command.args(["-a", password]);
        }
        if self.tls {
            command.arg("--tls").arg("--cacert").arg(self.ca());
        }
        let output = command.args(args).output().expect("redis-cli can be started");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("the server runs");
        let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("the server is there");
    }

    /// Stops it with SIGSTOP, so that it answers nobody.
    ///
    /// # Panics
    /// If it does not run.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues it.
    ///
    /// # Panics
    /// If it does not run.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Kills it, if it still runs, and starts it again on the same port with what it has on disk.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn restart(&mut self) {
        or_panic(self.try_restart());
    }

    /// As [`restart`](Server::restart).
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn try_restart(&mut self) -> io::Result<()> {
        self.kill();
        let started = Instant::now();
        // Another process may have taken the port for a moment.
        while !self.run()? {
            if started.elapsed() > PATIENCE {
                let log = self.log();
                return Err(failed(format!("redis-server does not start again:\n{}", last_lines(&log))));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// As [`restart`](Server::restart), with nothing on disk.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn restart_empty(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(self.dir.0.join("appendonlydir"));
        let _ = std::fs::remove_file(self.dir.0.join("dump.rdb"));
        self.restart();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Options for a server that uses TLS on this port, with the certificates in this directory.
fn tls_only(dir: &Path, port: u16) -> Vec<String> {
    let file = |name: &str| dir.join(name).display().to_string();
    let port = port.to_string();
    ["--port", "0", "--tls-port", &port, "--tls-auth-clients", "no"]
        .map(str::to_owned)
        .into_iter()
        .chain(["--tls-cert-file".into(), file("server.pem"), "--tls-key-file".into(), file("server.key")])
        .chain(["--tls-ca-cert-file".into(), file("ca.pem")])
        .collect()
}

/// Makes an authority, and a certificate for localhost that it has signed.
fn certificates(dir: &Path) -> io::Result<()> {
    let openssl = |args: &[&str]| {
        let done = Command::new("openssl").args(args).current_dir(dir).output();
        let done = done.map_err(|error| {
            failed(format!("openssl cannot be started; it comes with the package openssl: {error}"))
        })?;
        if done.status.success() { Ok(()) } else { Err(failed(String::from_utf8_lossy(&done.stderr))) }
    };
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let new = |args: &[&str]| openssl(&[&["req"], &key[..], args].concat());
    new(&["-x509", "-days", "2", "-subj", "/CN=test", "-keyout", "ca.key", "-out", "ca.pem"])?;
    new(&["-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr"])?;
    std::fs::write(dir.join("ext"), "subjectAltName=DNS:localhost,IP:127.0.0.1")?;
    openssl(&[
        "x509",
        "-req",
        "-days",
        "2",
        "-in",
        "server.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-extfile",
        "ext",
        "-out",
        "server.pem",
    ])
}

/// Starts this many plain servers.
///
/// # Panics
/// If one cannot be started.
pub fn servers(count: usize) -> Vec<Server> {
    (0..count).map(|_| Server::start()).collect()
}
