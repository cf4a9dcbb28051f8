//! Sixteen processes on one lock, killed and stopped at random, judged by what they wrote down: one trial for
//! each store that processes can share.

#![allow(clippy::unwrap_used)] // what the tests share may also stop

use testkit::history::run::{Trial, play};

#[cfg(feature = "sqlite")]
#[test]
fn sixteen_processes_on_one_sqlite_lock_keep_every_invariant() {
    if play() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("locks.db").display());
    let outcome = Trial::of(url).run("sixteen_processes_on_one_sqlite_lock_keep_every_invariant");
    println!("{outcome:?}");
}

#[cfg(feature = "redis")]
#[test]
fn sixteen_processes_on_one_redis_lock_keep_every_invariant() {
    if play() {
        return;
    }
    let server = testkit::redis::Server::start();
    let outcome = Trial::of(server.url()).run("sixteen_processes_on_one_redis_lock_keep_every_invariant");
    println!("{outcome:?}");
}

#[cfg(feature = "redis")]
#[test]
fn sixteen_processes_on_one_quorum_lock_keep_every_invariant() {
    if play() {
        return;
    }
    let servers = testkit::redis::servers(3);
    let urls: Vec<_> = servers.iter().map(testkit::redis::Server::url).collect();
    let mut trial = Trial::of(format!("quorum:{}", urls.join(",")));
    // Nobody queues, so nobody who is killed holds up a queue; but 90 % of a ttl must be left.
    trial.ttl = std::time::Duration::from_millis(800);
    let outcome = trial.run("sixteen_processes_on_one_quorum_lock_keep_every_invariant");
    println!("{outcome:?}");
}

#[cfg(feature = "postgres")]
#[test]
fn sixteen_processes_on_one_postgres_lock_keep_every_invariant() {
    if play() {
        return;
    }
    let server = testkit::postgres::Postgres::start();
    let outcome = Trial::of(server.url()).run("sixteen_processes_on_one_postgres_lock_keep_every_invariant");
    println!("{outcome:?}");
}

#[cfg(feature = "postgres")]
#[test]
fn sixteen_processes_on_one_session_lock_keep_every_invariant() {
    if play() {
        return;
    }
    let server = testkit::postgres::Postgres::start();
    let mut trial = Trial::of(server.url().replacen("postgres:", "postgres+advisory:", 1));
    trial.session = true;
    let outcome = trial.run("sixteen_processes_on_one_session_lock_keep_every_invariant");
    println!("{outcome:?}");
    // What the killed ones held and waited for is gone with them, also in the queue.
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    let started = std::time::Instant::now();
    while server.sql(locks) != "0" {
        assert!(started.elapsed() < std::time::Duration::from_secs(60), "locks are left");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
