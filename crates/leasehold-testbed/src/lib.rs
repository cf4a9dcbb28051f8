//! Throw-away Redis, PostgreSQL, MariaDB and lock servers, and a TCP proxy that injects faults between them and their
//! clients.
//!
//! Each server runs on a free port, in its own directory. Both are gone when it is dropped, and when the process that
//! started it dies. Nothing here knows of locks. `leasehold torture` ships and needs these servers, so they are a
//! separate crate; `testkit`, which only this workspace's tests use, re-exports them.

#[cfg(not(unix))]
compile_error!("leasehold-testbed builds on Unix only");

pub mod bench;
mod daemon;
pub mod dice;
pub mod mariadb;
pub mod postgres;
pub mod proxy;
pub mod redis;

use std::io;

/// An error whose message says what the user has to do.
fn failed(message: impl Into<String>) -> io::Error {
    io::Error::other(message.into())
}

/// For callers that cannot continue without the server.
#[track_caller]
fn or_panic<T>(started: io::Result<T>) -> T {
    started.unwrap_or_else(|error| panic!("{error}"))
}

/// The last lines of a server's log, for the error that it does not start.
fn last_lines(log: &str) -> String {
    const LINES: usize = 12;
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
