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
