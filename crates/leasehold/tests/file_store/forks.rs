//! Files that other processes have open too: forks of the holder, and children that inherit a lock.

use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};

use leasehold::backends::file::Directory;
use leasehold::backends::memory::Memory;
use leasehold::clock::{Clock, Moment, SystemClock};
use leasehold::{Fence, Gone, GuardState, Locks, LostReason, blocking};
use testkit::process::{Child, hear, role, say};
use testkit::until::{PATIENCE, in_time, in_time_blocking};

use crate::process::{TempDir, open, take};

/// A library, loaded before the system's, in which `getppid` forks. Rust has no safe way to fork: every crate's way
/// ends in `exec`, or is `unsafe`, which this workspace forbids. So the one unsafe line is C, and belongs to the test.
const FORK: &str = "#include <unistd.h>\npid_t getppid(void) { return fork(); }\n";

/// Forks, with that library. Returns zero in the fork.
fn fork() -> u32 {
    std::os::unix::process::parent_id()
}

/// Starts a child in which [`fork`] forks.
fn spawn(test: &str, temp: &TempDir) -> Child {
    let (source, library) = (temp.path().join("fork.c"), temp.path().join("fork.so"));
    std::fs::write(&source, FORK).unwrap();
    let mut cc = Command::new("cc");
    assert!(cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap().success());
    Child::spawn_with(test, &temp.locks().display().to_string(), |command| {
        command.env("LD_PRELOAD", &library);
    })
}

fn shown(guard: &blocking::Guard) -> String {
    let (check, lost) = (guard.check().is_ok(), guard.lost().now().is_some());
    format!("{:?} check={check} lost={lost}", guard.state())
}

/// Holds two locks, forks, and lets the fork report what it believes before it drops everything it has.
fn hold_and_fork(dir: &Path) {
    let memory = blocking::Locks::new(Memory::new());
    let files = blocking::Locks::new(Directory::open(dir).unwrap());
    let guards = [memory.mutex("x").lock().unwrap(), files.mutex("x").lock().unwrap()];
    if fork() == 0 {
        let mut believes: Vec<_> = guards.iter().map(shown).collect();
        for locks in [&memory, &files] {
            believes.push(format!("acquires={}", locks.mutex("y").try_lock().is_ok()));
        }
        let [first, second] = guards;
        believes.push(format!("releases={:?}", first.release().unwrap()));
        drop((second, memory, files));
        say(&believes.join("; "));
        std::process::exit(0);
    }
    hear();
    say(&guards.each_ref().map(shown).join("; "));
    hear();
}

#[tokio::test]
async fn a_fork_of_the_holder_holds_nothing_and_takes_nothing() {
    if let Some(dir) = role() {
        return hold_and_fork(Path::new(&dir));
    }
    let temp = TempDir::new();
    let test = "forks::a_fork_of_the_holder_holds_nothing_and_takes_nothing";
    let mut holder = spawn(test, &temp);
    let copy = "Lost check=false lost=true";
    assert_eq!(holder.line(), format!("{copy}; {copy}; acquires=false; acquires=false; releases=Lost"));
    holder.tell("what do you believe?");
    let held = "Held check=true lost=false";
    assert_eq!(holder.line(), format!("{held}; {held}"));
    let locks = open(&temp.locks());
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none(), "what the fork dropped is still locked");
    holder.tell("let go");
    assert!(locks.mutex("x").try_lock_for(PATIENCE).await.unwrap().is_some());
}

/// A clock that stops the thread `looks` for good, at a moment when it has locked what it looks at.
#[derive(Debug)]
struct Stopping(Mutex<mpsc::Sender<()>>);

impl Clock for Stopping {
    fn now(&self) -> Moment {
        if std::thread::current().name() == Some("looks") {
            self.0.lock().unwrap().send(()).unwrap();
            loop {
                std::thread::park();
            }
        }
        SystemClock.now()
    }

    fn wall_micros(&self) -> u64 {
        SystemClock.wall_micros()
    }
}

/// Forks while another thread looks at a guard, and lets the fork use its copy.
fn fork_while_a_thread_looks() {
    let (looks, looking) = mpsc::channel();
    let clock = Arc::new(Stopping(Mutex::new(looks)));
    let locks = blocking::Locks::from(Locks::builder(Arc::new(Memory::new())).clock(clock).build());
    let guard = locks.mutex("x").lock().unwrap();
    let lost = guard.lost();
    std::thread::Builder::new().name("looks".into()).spawn(move || lost.now()).unwrap();
    looking.recv_timeout(PATIENCE).unwrap();
    if fork() == 0 {
        say(&in_time_blocking("the copy answers", move || {
            let shown = format!("{guard:?}");
            let (mode, fenced) = (guard.mode(), guard.fence() > Fence::new(0));
            let lease = guard.into_lease();
            format!("{} {mode} {fenced} {}", shown.contains("state: Lost"), lease.mode)
        }));
        std::process::exit(0);
    }
    hear();
    std::process::exit(0);
}

#[test]
fn a_fork_never_waits_for_a_thread_it_does_not_have() {
    if role().is_some() {
        return fork_while_a_thread_looks();
    }
    let temp = TempDir::new();
    let holder = spawn("forks::a_fork_never_waits_for_a_thread_it_does_not_have", &temp);
    assert_eq!(holder.line(), "true exclusive true exclusive");
}

#[tokio::test]
async fn a_lock_that_was_taken_off_its_file_is_lost() {
    for mode in ["exclusive", "read", "1"] {
        let temp = TempDir::new();
        let store = Directory::open(temp.locks()).unwrap();
        let locks = Locks::new(store.clone());
        let guard = take(&locks, mode, "x", Some(PATIENCE)).await.unwrap();
        // Another reader has locked the same file by itself.
        let reader = if mode == "read" { take(&open(&temp.locks()), mode, "x", None).await } else { None };
        let handed = store.hand_over(&guard.lease_id()).unwrap();
        let mut flock = Command::new("flock");
        let unlocked = flock.args(["--unlock", &handed.as_raw_fd().to_string()]).status().unwrap();
        assert!(unlocked.success());
        drop(handed);
        // If no other process shares it, the next one gets it at once, on the same file.
        let other = open(&temp.locks());
        let second =
            take(&other, if mode == "read" { "write" } else { mode }, "x", Some(std::time::Duration::ZERO))
                .await;
        assert_eq!(second.is_some(), mode != "read");
        let reason = in_time("the loss is noticed", guard.lost()).await;
        assert_eq!(reason, LostReason::Refused(Gone::NotFound), "{mode}");
        for other in [reader, second].into_iter().flatten() {
            assert_eq!(other.state(), GuardState::Held, "{mode}");
        }
    }
}
