//! Hot loops: processes that take, release and remove the same few files as fast as they can.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold::backend::{Attempt, Backend as _, Claim, Release};
use leasehold::backends::file::Directory;
use leasehold::{Fence, Mode, Name};

use testkit::process::{Child, say};

use crate::process::{TempDir, start};

/// Leases per process in tests of exclusion; the others need fewer.
const MANY: usize = 10_000;
const SOME: usize = 2_000;

/// The body of one process: `count` leases, each checked from inside.
pub(crate) fn run(dir: &Path, mode: &str, count: usize) {
    let store = Directory::open(dir).unwrap();
    let mode =
        if mode == "exclusive" { Mode::Exclusive } else { Mode::Permit { limit: mode.parse().unwrap() } };
    let name = Name::new("hot").unwrap();
    let (inside, last) = (dir.with_extension("inside"), dir.with_extension("last"));
    let mut fences = Vec::with_capacity(count);
    let work = async {
        while fences.len() < count {
            let claim = Claim::new(name.clone(), mode, Duration::from_secs(30), "hot");
            let grant = match store.try_acquire(&claim).await.unwrap() {
                Attempt::Granted(grant) => grant,
                _ => {
                    std::thread::sleep(Duration::from_micros(100));
                    continue;
                }
            };
            if mode == Mode::Exclusive {
                let marker = OpenOptions::new().write(true).create_new(true).open(&inside);
                drop(marker.expect("nobody else is inside"));
                let before = std::fs::read_to_string(&last).map_or(0, |text| text.parse().unwrap());
                assert!(Fence::new(before) < grant.fence, "{before} {}", grant.fence);
                std::fs::write(&last, grant.fence.get().to_string()).unwrap();
                std::fs::remove_file(&inside).unwrap();
            }
            fences.push(grant.fence.get());
            store.release(&Release::new(name.clone(), claim.id)).await.unwrap();
        }
    };
    // Polled on this thread; what blocks runs on the runtime this is called from.
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(work));
    for fence in fences {
        say(&fence.to_string());
    }
}

/// A cleaner that keeps to the rule and no more: it removes a lock file only while it has it locked.
pub(crate) fn clean(dir: &Path) {
    use rustix::fs::{FlockOperation, flock};
    use std::os::unix::fs::MetadataExt as _;
    say("cleaning");
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "lock") {
                continue;
            }
            let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let same = std::fs::symlink_metadata(&path)
                .is_ok_and(|there| there.ino() == file.metadata().unwrap().ino());
            if same {
                std::fs::remove_file(&path).unwrap();
            }
        }
    }
}

fn race(mode: &str, loops: usize, cleaner: bool) -> Vec<Vec<u64>> {
    let temp = TempDir::fast();
    Directory::open(temp.locks()).unwrap();
    let cleaner = cleaner.then(|| {
        let cleaner = start(&["clean"], &temp.locks());
        assert_eq!(cleaner.line(), "cleaning");
        cleaner
    });
    let started = Instant::now();
    let count = loops.to_string();
    let others: Vec<_> = (0..3).map(|_| start(&["hot", mode, &count], &temp.locks())).collect();
    let collect = |other: Child| {
        let fences: Vec<u64> = (0..loops).map(|_| other.line().parse().unwrap()).collect();
        assert!(other.ended_well());
        fences
    };
    let fences = others.into_iter().map(collect).collect();
    println!("3 x {loops} leases, {mode}, cleaner {}: {:?}", cleaner.is_some(), started.elapsed());
    drop(cleaner);
    let left: Vec<_> = std::fs::read_dir(temp.locks()).unwrap().flatten().map(|entry| entry.path()).collect();
    let unused = |path: &&std::path::PathBuf| {
        path.extension().is_some_and(|extension| extension != "meta" && extension != "fence")
    };
    assert_eq!(left.iter().find(unused), None, "only the counter is left");
    fences
}

#[test]
fn processes_never_overlap_while_files_go_after_each_lease() {
    let fences = race("exclusive", MANY, false);
    assert!(fences.iter().all(|fences| fences.is_sorted()));
}

#[test]
fn processes_never_overlap_while_a_cleaner_removes_files_too() {
    race("exclusive", SOME, true);
}

#[test]
fn permits_taken_at_the_same_time_have_fences_of_their_own() {
    let fences = race("3", SOME, false);
    let distinct: HashSet<u64> = fences.iter().flatten().copied().collect();
    assert_eq!(distinct.len(), 3 * SOME);
}
