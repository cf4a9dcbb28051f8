//! The throw-away servers themselves: they start, keep their data, and leave nothing behind.

use std::path::Path;

use rustix::process::Signal;
use testkit::postgres::{PgBouncer, PoolMode, Postgres, Stop};
use testkit::process::{self, Child};
use testkit::until::until;

#[test]
fn a_server_keeps_data_over_restarts_and_is_removed_on_drop() {
    let mut server = Postgres::builder().setting("max_connections", "17").start();
    assert_eq!(server.sql("SHOW max_connections"), "17");
    server.sql("CREATE TABLE kept (n int); INSERT INTO kept VALUES (0)");
    let mut segments = Vec::new();
    for how in [Stop::Fast, Stop::Immediate, Stop::Kill] {
        segments.push(segment(server.socket()));
        server.restart(how);
        server.sql("UPDATE kept SET n = n + 1");
    }
    assert_eq!(server.sql("SELECT n FROM kept"), "3");
    server.freeze();
    server.thaw();
    assert_eq!(server.sql("SELECT 1"), "1");
    let directory = server.socket().to_owned();
    let last = segment(&directory);
    assert!(is_there(&last));
    drop(server);
    assert!(!directory.exists());
    for segment in segments.iter().chain([&last]) {
        assert!(!is_there(segment), "a segment of shared memory is left");
    }
}

/// The number of a running server's shared memory segment.
fn segment(directory: &Path) -> String {
    let lock = std::fs::read_to_string(directory.join("data/postmaster.pid")).expect("it has a lock file");
    let line = lock.lines().nth(6).expect("its line 7 is about shared memory");
    line.split_whitespace().nth(1).expect("and has a number").to_owned()
}

fn is_there(segment: &str) -> bool {
    let all = std::fs::read_to_string("/proc/sysvipc/shm").expect("/proc lists them");
    all.lines().any(|line| line.split_whitespace().nth(1) == Some(segment))
}

#[test]
fn a_pooler_stands_before_a_server() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server, PoolMode::Transaction, 2);
    let mut psql = std::process::Command::new("psql");
    let done =
        psql.args(["-X", "-A", "-t", "-d", &pooler.url(), "-c", "SELECT 1"]).output().expect("psql runs");
    assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "1");
}

#[test]
fn a_killed_test_process_takes_its_server_and_directory_with_it() {
    if process::role().is_some() {
        let server = Postgres::start();
        process::say(&server.socket().display().to_string());
        process::hear();
        return;
    }
    let child = Child::spawn("a_killed_test_process_takes_its_server_and_directory_with_it", "serve");
    let directory = child.line();
    let segment = segment(Path::new(&directory));
    child.signal(Signal::KILL);
    until("its server has ended with it", || !Path::new(&directory).exists());
    assert!(!is_there(&segment), "a segment of shared memory is left");
}
