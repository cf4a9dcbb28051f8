//! What a machine can do to a store: a full disk, a file that cannot be written, a shifted clock. All of it is real,
//! in namespaces of its own.
//!
//! `unshare` needs root, or a kernel that gives namespaces to every user, as Debian's does. Without either these tests
//! fail and say so.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Release, Released};
use leasehold::backends::sqlite::Sqlite;
use leasehold::{Error, ErrorKind, Mode, Name};

use crate::support::{command, runtime, told};

/// Runs a child in its own namespaces, after a line of shell. Returns what it printed, if it succeeded.
fn run_in(namespaces: &[&str], shell: &str, role: &str, directory: &Path) -> String {
    let child = command(role, "", directory);
    let mut unshare = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare.args(namespaces).args([
        "sh",
        "-ec",
        &format!("cd \"$LEASEHOLD_TEST_DIRECTORY\"\n{shell}\nexec \"$0\" \"$@\""),
    ]);
    unshare.arg(child.get_program()).args(child.get_args());
    unshare.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = unshare.output().expect("unshare, of util-linux, can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "the child failed, or there is no namespace for it: these tests need root, or a kernel that lets \
         everybody have namespaces\n{said}\n{complained}"
    );
    said
}

fn claim(n: usize) -> Claim {
    let name = Name::new(&format!("{n}-{}", "x".repeat(400))).unwrap();
    Claim::new(name, Mode::Exclusive, Duration::from_secs(3600), "full")
}

async fn refused(path: &Path) -> Error {
    match Sqlite::open(path).await {
        Ok(_) => panic!("it was opened"),
        Err(error) => error,
    }
}

#[test]
fn a_process_with_a_clock_of_its_own_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for offset in ["86400", "-100"] {
        run_in(&["--time", "--boottime", offset], "", "other-clock", directory.path());
    }
    // A shifted monotonic clock does not matter, nor does a time namespace without a shift.
    run_in(&["--time", "--monotonic", "1000"], "", "same-clock", directory.path());
    run_in(&["--time"], "", "same-clock", directory.path());
}

pub(crate) fn other_clock() {
    let (_, directory) = told();
    runtime().block_on(async {
        let path = directory.join("locks.db");
        let error = refused(&path).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains("time namespace"), "{error}");
        assert!(!path.exists(), "it is refused before anything is made");
    });
}

pub(crate) fn same_clock() {
    let (_, directory) = told();
    runtime().block_on(async {
        let store = Sqlite::open(directory.join("same.db")).await.unwrap();
        let claim = claim(1);
        assert!(matches!(store.try_acquire(&claim).await.unwrap(), Attempt::Granted(_)));
        store.release(&Release::new(claim.name.clone(), claim.id)).await.unwrap();
    });
}

#[test]
fn a_full_disk_is_unavailable_grants_nothing_and_passes() {
    let directory = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=8m tmpfs .";
    println!("{}", run_in(&["--mount"], mount, "full", directory.path()));
}

pub(crate) fn full() {
    let (_, directory) = told();
    runtime().block_on(async {
        let (path, filler) = (directory.join("locks.db"), directory.join("filler"));
        let store = Sqlite::open(&path).await.unwrap();
        let (mut held, mut in_a_row, mut n) = (Vec::new(), 0, 0);
        for _ in 0..40 {
            n += 1;
            held.push(claim(n));
            assert!(matches!(store.try_acquire(&held[n - 1]).await.unwrap(), Attempt::Granted(_)));
        }
        // As happens now and then: the log is written back, and reused from its beginning.
        let db = rusqlite::Connection::open(&path).unwrap();
        db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
        // Other files fill the disk, to the last byte.
        let mut file = std::fs::File::create(&filler).unwrap();
        while file.write_all(&[b'x'; 512]).is_ok() {}
        assert_eq!(rustix::fs::statvfs(&directory).unwrap().f_bavail, 0);
        // A release needs no room but that of the log.
        for claim in held.drain(..10) {
            let release = Release::new(claim.name.clone(), claim.id);
            assert_eq!(store.release(&release).await.unwrap(), Released::Done);
        }
        while in_a_row < 20 {
            n += 1;
            let claim = claim(n);
            match store.try_acquire(&claim).await {
                Ok(Attempt::Granted(_)) => {
                    held.push(claim);
                    in_a_row = 0;
                }
                Ok(other) => panic!("not an answer to a full disk: {other:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    assert!(error.is_retryable());
                    in_a_row += 1;
                }
            }
            assert!(n < 5000, "never full");
        }
        println!("{} held, then 20 in a row refused", held.len());
        // Every grant that was answered is there. Claiming again grants nothing new.
        for claim in &held {
            let again = store.try_acquire(claim).await.unwrap();
            assert!(matches!(again, Attempt::Granted(_)), "a grant was lost: {again:?}");
        }
        drop(file);
        std::fs::remove_file(&filler).unwrap();
        for n in 0..20 {
            let claim = claim(10_000 + n);
            assert!(matches!(store.try_acquire(&claim).await.unwrap(), Attempt::Granted(_)));
            held.push(claim);
        }
        let leases: u32 = db.query_row("SELECT count(*) FROM leases", [], |row| row.get(0)).unwrap();
        assert_eq!(leases as usize, held.len(), "what was answered is what is stored");
        for claim in held {
            let release = Release::new(claim.name.clone(), claim.id);
            assert_eq!(store.release(&release).await.unwrap(), Released::Done);
        }
        let verdict: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(verdict, "ok");
    });
}

#[test]
fn what_cannot_be_written_is_refused_when_it_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    runtime().block_on(async { drop(Sqlite::open(directory.path().join("locks.db")).await.unwrap()) });
    let mount = "mount --bind . . && cd \"$LEASEHOLD_TEST_DIRECTORY\" && mount -o remount,ro,bind .";
    run_in(&["--mount"], mount, "read-only", directory.path());
}

pub(crate) fn read_only() {
    let (_, directory) = told();
    runtime().block_on(async {
        for file in ["locks.db", "new.db"] {
            let error = refused(&directory.join(file)).await;
            println!("{file}: {error}");
            assert!(
                matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::AuthFailed),
                "{file}: {error}"
            );
            let text = format!("{error:?}").to_lowercase();
            assert!(
                text.contains("read only") || text.contains("readonly") || text.contains("read-only"),
                "{text}"
            );
        }
    });
}

#[test]
fn what_belongs_to_another_user_is_refused_when_it_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    runtime().block_on(async { drop(Sqlite::open(directory.path().join("locks.db")).await.unwrap()) });
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    run_in(&[], "", "another-user", directory.path());
}

pub(crate) fn another_user() {
    let (_, directory) = told();
    // It applies to this thread, and so to the threads it starts.
    let nobody = rustix::process::Uid::from_raw(65_534);
    rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
    runtime().block_on(async {
        for file in ["locks.db", "new.db"] {
            let error = refused(&directory.join(file)).await;
            println!("{file}: {error}");
            assert!(
                matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::AuthFailed),
                "{file}: {error}"
            );
        }
    });
}

#[test]
fn a_file_that_is_mounted_alone_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    runtime().block_on(async { drop(Sqlite::open(directory.path().join("locks.db")).await.unwrap()) });
    // As in two containers that each mount only the file.
    let mount = "mkdir one two && touch one/locks.db two/locks.db \
        && mount --bind locks.db one/locks.db && mount --bind locks.db two/locks.db";
    run_in(&["--mount"], mount, "mounted-file", directory.path());
}

pub(crate) fn mounted_file() {
    let (_, directory) = told();
    runtime().block_on(async {
        for file in ["one/locks.db", "two/locks.db"] {
            let error = refused(&directory.join(file)).await;
            println!("{file}: {error}");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{file}: {error}");
            assert!(error.message().contains("directory"), "{file}: {error}");
        }
        drop(Sqlite::open(directory.join("locks.db")).await.unwrap());
    });
}

#[test]
fn a_directory_that_is_mounted_twice_has_one_store() {
    let directory = tempfile::tempdir().unwrap();
    let mount = "mkdir data one two && mount --bind data one && mount --bind data two";
    run_in(&["--mount"], mount, "mounted-directory", directory.path());
}

pub(crate) fn mounted_directory() {
    let (_, directory) = told();
    runtime().block_on(async {
        let one = Sqlite::open(directory.join("one/locks.db")).await.unwrap();
        let two = Sqlite::open(directory.join("two/locks.db")).await.unwrap();
        assert!(matches!(one.try_acquire(&claim(1)).await.unwrap(), Attempt::Granted(_)));
        assert!(matches!(two.try_acquire(&claim(1)).await.unwrap(), Attempt::Busy(_)));
    });
}
