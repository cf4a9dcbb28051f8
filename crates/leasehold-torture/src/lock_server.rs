//! A lock server as a store: a process that can be killed, stopped, and restarted on the same port.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use leasehold::Locks;
use leasehold_server::{App, Settings};
use rustix::process::{Pid, Signal, kill_process};

use crate::roles::{self, Around, Role};

/// Only a broken machine takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the server process: serves this store until its input ends.
pub(crate) fn serve(store: &str, port: u16) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let builder = Locks::connect_builder(store).await.map_err(io::Error::other)?;
        #[cfg(feature = "__bugs")]
        let builder = crate::defects::server(builder);
        let locks = builder.build();
        let app = App::new(locks, Settings::default()).map_err(io::Error::other)?;
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
        println!("ready");
        let (ended, end) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            let _ = ended.send(());
        });
        leasehold_server::serve(app, listener, None, async { drop(end.await) }).await
    })
}

/// A running lock server.
#[derive(Debug)]
pub(crate) struct LockServer {
    process: Child,
    store: String,
    port: u16,
    log: PathBuf,
    around: Around,
}

impl LockServer {
    /// Starts one in front of this store.
    pub(crate) fn start(store: &str, log: &Path, around: &Around) -> io::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let process = launch(store, port, log, around)?;
        let (store, log) = (store.to_owned(), log.to_owned());
        Ok(LockServer { process, store, port, log, around: around.clone() })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        signal_child(&self.process, signal)
    }

    /// Kills it and starts it again.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        self.kill();
        self.process = launch(&self.store, self.port, &self.log, &self.around)?;
        Ok(())
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for LockServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a child that was not waited for yet.
pub(crate) fn signal_child(child: &Child, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    Ok(kill_process(pid.ok_or_else(|| io::Error::other("no process id"))?, signal)?)
}

fn launch(store: &str, port: u16, log: &Path, around: &Around) -> io::Result<Child> {
    let started = Instant::now();
    loop {
        let errors = File::options().append(true).create(true).open(log)?;
        let role = Role::Server { store: store.to_owned(), port };
        let mut child = roles::start(role, Stdio::from(errors), around)?;
        if is_ready(&mut child) {
            return Ok(child);
        }
        let _ = child.kill();
        let _ = child.wait();
        // Another process may have taken the port for a moment.
        if started.elapsed() > PATIENCE {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            return Err(io::Error::other(format!("the lock server does not start: {said}")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until a process says that it is ready; false if it ends first.
pub(crate) fn is_ready(child: &mut Child) -> bool {
    let mut line = String::new();
    child
        .stdout
        .take()
        .is_some_and(|stdout| BufReader::new(stdout).read_line(&mut line).is_ok_and(|read| read > 0))
}
