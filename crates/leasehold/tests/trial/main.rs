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
