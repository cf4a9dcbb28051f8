//! Shared by the workspace's tests and benchmarks: bounded waits, faulty backends, stuck calls, child processes,
//! terminals, a browser, throw-away servers, a TCP proxy, measuring in turns, lists of messages.

pub mod blocked;
pub mod browser;
pub mod faulty;
pub mod fuzz;
pub mod hand;
pub mod history;
pub mod messages;
pub mod notes;
pub mod paused;
pub mod process;
pub mod pty;
pub mod snapshot;
pub mod turns;
pub mod until;

pub use leasehold_testbed::{bench, dice, mariadb, postgres, proxy, redis};

/// Reports at the end of `make test` that something was not tested here, and why.
pub fn not_tested(what: &str) {
    use std::io::Write as _;
    let Some(list) = std::env::var_os("NOT_TESTED") else { return };
    let list = std::fs::OpenOptions::new().append(true).create(true).open(list);
    list.and_then(|mut list| writeln!(list, "{what}")).expect("the list can be written to");
}
