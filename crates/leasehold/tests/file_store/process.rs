//! Other processes: this test binary again, in a role.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::backends::file::Directory;
use leasehold::{Guard, Locks};

/// A directory of its own, removed when dropped.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        TempDir::below(&std::env::temp_dir())
    }

    /// In memory where the system has that: for tests that would wait for the disk thousands of times.
    pub(crate) fn fast() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { TempDir::below(memory) } else { TempDir::new() }
    }

    fn below(above: &Path) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = above.join(format!("leasehold-file-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        TempDir(dir)
    }

    /// The directory for the locks; not made yet.
    pub(crate) fn locks(&self) -> PathBuf {
        self.0.join("locks")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn open(dir: &Path) -> Locks {
    Locks::new(Directory::open(dir).unwrap())
}

/// Another process in a role of [`play`]. Killed when dropped.
pub(crate) struct Other {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Other {
    pub(crate) fn start(role: &[&str], dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process::play", "--nocapture", "--test-threads=1"])
            .env("LEASEHOLD_TEST_ROLE", role.join("\t"))
            .env("LEASEHOLD_TEST_DIR", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Other { child, lines }
    }

    /// What it says next.
    pub(crate) fn hear(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the other process goes on").unwrap();
            // The harness prints its own, also at the beginning of a line.
            if let Some((_, said)) = line.split_once('@') {
                return said.to_owned();
            }
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    /// Waits for its end, which must be a good one.
    pub(crate) fn end(mut self) {
        assert!(self.wait().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(what: impl std::fmt::Display) {
    println!("@{what}");
}

pub(crate) async fn take(locks: &Locks, mode: &str, name: &str, wait: Option<Duration>) -> Option<Guard> {
    let wait = wait.unwrap_or(Duration::MAX);
    match mode {
        "exclusive" => locks.mutex(name).try_lock_for(wait).await,
        "read" => locks.rwlock(name).try_read_for(wait).await,
        "write" => locks.rwlock(name).try_write_for(wait).await,
        permits => locks.semaphore(name, permits.parse().unwrap()).try_acquire_for(wait).await,
    }
    .unwrap()
}

/// Not a test: what another process does. Without a role it is over at once.
#[test]
fn play() {
    let Ok(role) = std::env::var("LEASEHOLD_TEST_ROLE") else { return };
    let dir = PathBuf::from(std::env::var("LEASEHOLD_TEST_DIR").unwrap());
    let role: Vec<&str> = role.split('\t').collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        match role[..] {
            ["hold", mode, name] => hold(&dir, mode, name, false).await,
            ["hold-with-child", mode, name] => hold(&dir, mode, name, true).await,
            ["hand-over", mode, name] => hand_over(&dir, mode, name).await,
            ["alternate", name, count] => alternate(&dir, name, count.parse().unwrap()).await,
            ["hot", mode, count] => crate::hot::run(&dir, mode, count.parse().unwrap()),
            #[cfg(target_os = "linux")]
            ["count-watches"] => crate::processes::count_watches(&dir).await,
            ["clean"] => crate::hot::clean(&dir),
            _ => panic!("no such role: {role:?}"),
        }
    });
}

/// Takes a lock, says its fence, and holds it until told.
async fn hold(dir: &Path, mode: &str, name: &str, with_child: bool) {
    let locks = open(dir);
    let guard = take(&locks, mode, name, None).await.unwrap();
    let child = with_child.then(|| {
        let mut sleep = Command::new("sleep");
        sleep.arg("60").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    });
    say(format!("{} {}", guard.fence(), child.map_or(0, |child| child.id())));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    if line.trim() == "release" {
        guard.release().await.unwrap();
        say("released");
        std::io::stdin().read_line(&mut line).unwrap();
    } else {
        std::mem::forget(guard);
        std::process::exit(0);
    }
}

/// Takes a lock, hands it to a child, and says the child's id. Told so, it releases the lock.
#[allow(clippy::zombie_processes)] // the child outlives it, and the test ends it
async fn hand_over(dir: &Path, mode: &str, name: &str) {
    let store = Directory::open(dir).unwrap();
    let locks = Locks::new(store.clone());
    let guard = take(&locks, mode, name, None).await.unwrap();
    let lock = store.hand_over(&guard.lease_id()).unwrap();
    let mut sleep = Command::new("sleep");
    let child =
        sleep.arg("60").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    drop(lock);
    say(child.id());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    guard.release().await.unwrap();
    say("released");
    std::io::stdin().read_line(&mut line).unwrap();
}

/// Holds a lock a few times, for so long that those who wait have stopped looking, and says when it lets go.
async fn alternate(dir: &Path, name: &str, count: usize) {
    let locks = open(dir);
    for _ in 0..count {
        let guard = take(&locks, "exclusive", name, None).await.unwrap();
        say("held");
        tokio::time::sleep(Duration::from_millis(350)).await;
        guard.release().await.unwrap();
        say(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros());
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
    }
}
