//! A process whose files cannot grow: faults, no grants, and everything works again when they can.

use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Release, Released};
use leasehold::backends::sqlite::Sqlite;
use leasehold::{ErrorKind, Mode, Name};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{command, runtime, told};

#[test]
fn writes_that_the_system_refuses_are_unavailable_and_pass() {
    let directory = tempfile::tempdir().unwrap();
    let child = command("room", "", directory.path());
    // A refused write is an error, not the end of the process; a shell can say so.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(child.get_program()).args(child.get_args());
    shell.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn limit(bytes: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
}

fn claim(n: usize) -> Claim {
    let name = Name::new(&format!("{n}-{}", "x".repeat(400))).unwrap();
    Claim::new(name, Mode::Exclusive, Duration::from_secs(3600), "room")
}

pub(crate) fn short_of_room() {
    let (_, directory) = told();
    runtime().block_on(async {
        let path = directory.join("locks.db");
        let store = Sqlite::open(&path).await.unwrap();
        limit(Some(400_000));
        // Some fail before the log is written back; then the file itself is full.
        let (mut held, mut in_a_row, mut n) = (Vec::new(), 0, 0);
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
                    in_a_row += 1;
                    // The log may have been written back meanwhile; if it says granted, it is stored.
                    if let Ok(Attempt::Granted(_)) = store.try_acquire(&claim).await {
                        held.push(claim);
                        in_a_row = 0;
                    }
                }
            }
            assert!(n < 5000, "never full");
        }
        println!("{} granted, {} refused", held.len(), n - held.len());
        assert!(held.len() > 20);
        check(&path, held.len());

        limit(None);
        for n in 0..20 {
            let claim = claim(10_000 + n);
            assert!(matches!(store.try_acquire(&claim).await.unwrap(), Attempt::Granted(_)));
            held.push(claim);
        }
        for claim in &held {
            assert!(
                matches!(store.try_acquire(claim).await.unwrap(), Attempt::Granted(_)),
                "a grant was lost"
            );
        }
        check(&path, held.len());
        for claim in held {
            let release = Release::new(claim.name.clone(), claim.id);
            assert_eq!(store.release(&release).await.unwrap(), Released::Done);
        }
        check(&path, 0);
    });
}

fn check(path: &std::path::Path, held: usize) {
    let db = rusqlite::Connection::open(path).unwrap();
    let leases: u32 = db.query_row("SELECT count(*) FROM leases", [], |row| row.get(0)).unwrap();
    assert_eq!(leases as usize, held, "what was answered is what is stored");
    let verdict: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
}
