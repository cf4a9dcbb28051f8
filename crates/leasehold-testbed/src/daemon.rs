//! A server process in its own directory. Both are gone when it is dropped, and when the process that started it dies
//! in any way.

use std::ffi::OsStr;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::failed;

/// Long enough for the slowest machine; only a failure waits this long.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps a server: starts it, prints its process id, and waits for the end of its own input, which comes when its
/// owner closes it or dies. Then it kills the server with its children, and removes its shared memory and the
/// directory.
const KEEPER: &str = r#"
dir=$1; log=$2; shift 2
"$@" </dev/null >>"$log" 2>&1 &
pid=$!
echo "$pid"
exec >/dev/null 2>&1
cat >/dev/null
children=$(cat "/proc/$pid/task/$pid/children")
kill -KILL $pid $children
wait "$pid"
ipcrm -m "$(sed -n '7s/.* //p' "$dir/data/postmaster.pid")"
# A child that is still dying may write once more.
for n in 1 2 3 4 5; do rm -rf "$dir" && break; sleep 0.2; done
"#;

/// A separate directory, removed when dropped.
#[derive(Debug)]
pub(super) struct Directory(PathBuf);

impl Directory {
    /// Creates one that belongs to the user the server runs as.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn new(what: &str) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Short: the path of a Unix socket may have 107 bytes.
        let path = std::env::temp_dir().join(format!("leasehold-{what}-{}-{number}", std::process::id()));
        // Left behind by an earlier process with the same id.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path)?;
        let directory = Directory(path);
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))?;
        if let Some((uid, gid)) = servant()? {
            chown(directory.path(), Some(uid), Some(gid))?;
        }
        Ok(directory)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Frees the shared memory segment that a killed PostgreSQL leaves behind; its number is at the end of line 7 of
    /// the lock file. A machine has only 4096 of them.
    pub(super) fn free_memory(&self) {
        let Ok(lock) = std::fs::read_to_string(self.0.join("data/postmaster.pid")) else { return };
        if let Some(segment) = lock.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
            let _ = Command::new("ipcrm").args(["-m", segment]).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.free_memory();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running server.
#[derive(Debug)]
pub(super) struct Daemon {
    keeper: Child,
    pid: Pid,
}

impl Daemon {
    /// Starts a program in a directory that is removed with it, with these variables in its environment.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn start(
        directory: &Directory,
        log: &Path,
        program: &Path,
        args: &[&OsStr],
        environment: &[(String, String)],
    ) -> io::Result<Self> {
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(directory.path())
            .arg(log)
            .args(unprivileged(program, environment)?)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is not for servers: their owner ends them.
            .process_group(0)
            .spawn()?;
        let mut line = String::new();
        let stdout = keeper.stdout.take().ok_or_else(|| failed("a pipe is missing"))?;
        BufReader::new(stdout).read_line(&mut line)?;
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| failed("the shell that keeps a server does not say its process id"))?;
        Ok(Daemon { keeper, pid })
    }

    /// Its process id.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        has_ended(self.pid)
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid, signal);
    }

    /// The processes it has started.
    pub(super) fn children(&self) -> Vec<Pid> {
        let pid = self.pid.as_raw_nonzero();
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)).collect()
    }

    /// Waits until it has ended, with all processes it had started; its directory stays.
    ///
    /// # Errors
    /// If that takes too long.
    pub(super) fn wait(mut self, children: &[Pid]) -> io::Result<()> {
        wait_until("the server does not end", || {
            self.has_ended() && children.iter().all(|pid| has_ended(*pid))
        })?;
        self.dismiss();
        Ok(())
    }

    /// Stops it with SIGSTOP, with all processes it has started, and returns when they are stopped.
    ///
    /// # Errors
    /// If that takes too long.
    pub(super) fn freeze(&self) -> io::Result<()> {
        let stop = |pid: Pid| {
            let _ = kill_process(pid, Signal::STOP);
            wait_until("the server does not stand still", || matches!(state(pid), None | Some('T' | 'Z')))
        };
        // First the process that starts the others. From then on their list can only shrink; it may lack one while
        // another ends.
        stop(self.pid)?;
        loop {
            let children = self.children();
            children.iter().copied().try_for_each(stop)?;
            if children == self.children() {
                return Ok(());
            }
        }
    }

    /// Continues it.
    pub(super) fn thaw(&self) {
        for pid in self.children().into_iter().chain([self.pid]) {
            let _ = kill_process(pid, Signal::CONT);
        }
    }

    /// Ends the keeper before it can act.
    fn dismiss(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // First the process that starts the others.
        let all: Vec<Pid> = [self.pid].into_iter().chain(self.children()).collect();
        for pid in &all {
            let _ = kill_process(*pid, Signal::KILL);
        }
        // Until then they may write into the directory that is removed next.
        let _ = wait_until("the server does not end", || all.iter().all(|pid| has_ended(*pid)));
        self.dismiss();
    }
}

/// The state of a process: running, sleeping, stopped (T), a zombie (Z); `None` if it is gone.
fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Whether a process has ended. Until its parent asks how, it stays as a zombie.
fn has_ended(pid: Pid) -> bool {
    matches!(state(pid), None | Some('Z'))
}

/// Waits until the condition holds.
///
/// # Errors
/// If it takes too long.
pub(super) fn wait_until(otherwise: &str, mut is_so: impl FnMut() -> bool) -> io::Result<()> {
    let started = Instant::now();
    while !is_so() {
        if started.elapsed() > PATIENCE {
            return Err(failed(otherwise));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// The ports for servers: below those that the system gives to outgoing connections, which could otherwise take the
/// port of a server that is about to start or restart.
const PORTS: std::ops::Range<u64> = 10_000..32_000;

/// A port on which nobody listens at the moment.
///
/// # Errors
/// If none is found.
pub(super) fn free_port() -> io::Result<u16> {
    let mut taken = None;
    for _ in 0..1000 {
        let random = RandomState::new().build_hasher().finish();
        let port = PORTS.start + random % (PORTS.end - PORTS.start);
        match TcpListener::bind(("127.0.0.1", port as u16)) {
            Ok(_) => return Ok(port as u16),
            Err(error) => taken = Some(error),
        }
    }
    Err(taken.unwrap_or_else(|| failed("there is no free port")))
}

/// The start of a command line that runs a program without root's rights, which servers refuse.
///
/// # Errors
/// If there is no user to run it as.
pub(super) fn unprivileged(program: &Path, environment: &[(String, String)]) -> io::Result<Vec<PathBuf>> {
    let mut command = vec!["env".into()];
    command.extend(environment.iter().map(|(name, value)| format!("{name}={value}").into()));
    if let Some((uid, gid)) = servant()? {
        command.push("setpriv".into());
        command.push(format!("--reuid={uid}").into());
        command.push(format!("--regid={gid}").into());
        command.push("--clear-groups".into());
    }
    command.push(program.into());
    Ok(command)
}

/// The user that servers run as if this process is root: `postgres`, which its package creates.
fn servant() -> io::Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd")?;
    let ids = users.lines().find(|line| line.starts_with("postgres:")).and_then(|line| {
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    let missing =
        "PostgreSQL refuses to run as root, and there is no user postgres: install the package postgresql";
    ids.map(Some).ok_or_else(|| failed(missing))
}
