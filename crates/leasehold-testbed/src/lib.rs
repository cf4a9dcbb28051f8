//! What a run of torture, and many a test, takes place on: real servers that are thrown away, and faults between them and
//! their clients.
//!
//! Servers run on free ports, in directories of their own, and are gone when they are dropped and when the process that
//! started them is. This knows nothing of locks. `leasehold torture` is shipped and needs it, so it is a crate of its own
//! beside `testkit`, which is for this workspace's tests only.

mod daemon;
pub mod dice;
pub mod postgres;
pub mod proxy;
pub mod redis;

use std::io;

/// What a user is told who has to do something about it.
fn failed(message: impl Into<String>) -> io::Error {
    io::Error::other(message.into())
}

/// Who calls this cannot go on without the server.
#[track_caller]
fn or_panic<T>(started: io::Result<T>) -> T {
    started.unwrap_or_else(|error| panic!("{error}"))
}

/// The last lines of a server's log, for the message that it does not start.
fn last_lines(log: &str) -> String {
    const LINES: usize = 12;
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
