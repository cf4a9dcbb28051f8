//! The library's own threads end with the client or guard that needed them. One test, because it counts the threads of
//! its process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // also in helpers of tests

use std::time::Duration;

use leasehold::backends::memory::Memory;
use leasehold::blocking::Locks;
use leasehold::layers::telemetry::Telemetry;
use testkit::until::{until, until_renewed};

/// The threads of this process that have this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|comm| comm.trim_end() == name)
        .count()
}

fn soon(name: &str, number: usize) {
    until(&format!("there are {number} threads {name}"), || threads(name) == number);
}

#[test]
fn the_threads_of_a_client_end_with_it() {
    // A client that never acquires has no thread.
    let unused = leasehold::Locks::new(Memory::new());
    Locks::from(unused).close();
    assert_eq!(threads("leasehold"), 0);

    // A connection that was not used, or not made.
    let builder = Locks::connect_builder("memory:").unwrap();
    soon("leasehold", 1);
    drop(builder);
    assert!(Locks::connect("nonsense").is_err());
    soon("leasehold", 0);

    // A client; its guard keeps the thread, until it is dropped and its release is sent.
    let locks = Locks::connect("memory:").unwrap();
    let guard = locks.mutex("x").renew_every(Duration::from_millis(20)).lock().unwrap();
    drop(locks);
    until_renewed(|| guard.valid_for());
    assert_eq!(threads("leasehold"), 1);
    drop(guard);
    soon("leasehold", 0);

    // A layer of telemetry. The system cuts names of threads at 15 bytes.
    let locks = Locks::new(Telemetry::new(Memory::new(), |_| ()));
    drop(locks.mutex("x").lock().unwrap());
    soon("leasehold-event", 1);
    drop(locks);
    soon("leasehold-event", 0);
    soon("leasehold", 0);
}
