//! A server process for a test, in a directory of its own. Both are gone when it is dropped, and also when the
//! test process dies in any other way.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Long enough for the slowest machine; only a test that fails waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps a server: starts it, says its process id, and waits for the end of its own input, which comes when
/// the test process closes it or dies. Then it kills the server with its children and removes the directory.
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
rm -rf "$dir"
"#;

/// A directory of its own, removed when dropped.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// A new one, which belongs to whoever the server runs as.
    pub(crate) fn new(what: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Short: the path of a Unix socket may have 107 bytes.
        let path = std::env::temp_dir().join(format!("leasehold-{what}-{}-{number}", std::process::id()));
        // What a process with the same id has left behind.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a directory for the server can be made");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("its permissions can be set");
        if let Some((uid, gid)) = servant() {
            chown(&path, Some(uid), Some(gid)).expect("root can give a directory away");
        }
        Directory(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Daemon {
    keeper: Child,
    pid: Pid,
}

impl Daemon {
    /// Starts a program in a directory that is removed with it.
    ///
    /// # Panics
    /// If it cannot be started.
    pub(crate) fn start(directory: &Directory, log: &Path, program: &Path, args: &[&OsStr]) -> Self {
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(directory.path())
            .arg(log)
            .args(unprivileged(program))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell can be started");
        let mut line = String::new();
        let stdout = keeper.stdout.take().expect("stdout is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the keeper says a process id");
        let pid = line.trim().parse().ok().and_then(Pid::from_raw).expect("the keeper says a process id");
        Daemon { keeper, pid }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        // Until its keeper is gone it stays as a zombie.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
        stat.ok()
            .and_then(|stat| Some(stat.rsplit_once(')')?.1.trim_start().starts_with('Z')))
            .unwrap_or(true)
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid, signal);
    }

    /// The processes it has started.
    pub(crate) fn children(&self) -> Vec<Pid> {
        let pid = self.pid.as_raw_nonzero();
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)).collect()
    }

    /// Waits until it has ended, with all that it had started; its directory stays.
    ///
    /// # Panics
    /// If that takes too long.
    pub(crate) fn wait(mut self, children: &[Pid]) {
        let started = Instant::now();
        while !self.has_ended() || children.iter().any(|child| test_kill_process(*child).is_ok()) {
            assert!(started.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
        self.dismiss();
    }

    /// Ends the keeper before it can act.
    fn dismiss(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let children = self.children();
        self.signal(Signal::KILL);
        for child in children {
            let _ = kill_process(child, Signal::KILL);
        }
        self.dismiss();
    }
}

/// A port on which nobody listens at the moment.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    listener.local_addr().expect("it has an address").port()
}

/// The start of a command line that runs a program without root's rights, which servers refuse.
pub(crate) fn unprivileged(program: &Path) -> Vec<PathBuf> {
    let mut command = Vec::new();
    if let Some((uid, gid)) = servant() {
        command.push("setpriv".into());
        command.push(format!("--reuid={uid}").into());
        command.push(format!("--regid={gid}").into());
        command.push("--clear-groups".into());
    }
    command.push(program.into());
    command
}

/// Whose rights servers get if this process is root: those of the user `postgres`, whom its package makes.
fn servant() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd can be read");
    let mut fields =
        users.lines().find(|line| line.starts_with("postgres:")).expect("a user postgres").split(':');
    let mut number = |skip| fields.nth(skip)?.parse().ok();
    Some((number(2).expect("a user id"), number(0).expect("a group id")))
}
