//! Other processes: this test binary again, in a role that the environment names.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::backends::file::Directory;
use leasehold::{Guard, Locks};
use testkit::process::{Child, hear, role, say};
use testkit::until::until_async;

/// A directory of its own, removed when dropped.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        TempDir::below(&std::env::temp_dir())
    }

    /// In memory where possible: for tests that would wait for the disk thousands of times.
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

/// Another process in a role of [`play`].
pub(crate) fn start(role: &[&str], dir: &Path) -> Child {
    Child::spawn("process::play", &format!("{}\t{}", role.join("\t"), dir.display()))
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

/// Not a test: the body of another process. Without a role it ends at once.
#[test]
fn play() {
    let Some(role) = role() else { return };
    let mut role: Vec<&str> = role.split('\t').collect();
    let dir = PathBuf::from(role.pop().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        match role[..] {
            ["hold", mode, name] => hold(&dir, mode, name, false).await,
            ["hold-with-child", mode, name] => hold(&dir, mode, name, true).await,
            ["hand-over", mode, name] => hand_over(&dir, mode, name).await,
            ["hot", mode, count] => crate::hot::run(&dir, mode, count.parse().unwrap()),
            #[cfg(target_os = "linux")]
            ["count-watches"] => crate::processes::count_watches(&dir).await,
            ["clean"] => crate::hot::clean(&dir),
            _ => panic!("no such role: {role:?}"),
        }
    });
}

/// Takes a lock, prints its fence, and holds it until the test says so.
async fn hold(dir: &Path, mode: &str, name: &str, with_child: bool) {
    let locks = open(dir);
    let guard = take(&locks, mode, name, None).await.unwrap();
    let child = with_child.then(|| {
        let mut sleep = Command::new("sleep");
        sleep.arg("60").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    });
    say(&format!("{} {}", guard.fence(), child.map_or(0, |child| child.id())));
    if hear() == "release" {
        guard.release().await.unwrap();
        say("released");
        hear();
    } else {
        std::mem::forget(guard);
        std::process::exit(0);
    }
}

/// Takes a lock, hands it to a child, and prints the child's id. On a signal from the test it releases the lock.
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
    say(&child.id().to_string());
    hear();
    guard.release().await.unwrap();
    say("released");
    hear();
}

/// Waits until this many claims wait for a name in this process.
pub(crate) async fn queued(locks: &Locks, name: &str, count: u64) {
    until_async("they wait", async || locks.inspect(name).await.unwrap().queue_length == count).await;
}
