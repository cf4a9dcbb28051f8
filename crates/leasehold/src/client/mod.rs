//! What a program works with: a client of one store, its locks, and guards. Everything here calls the store through
//! [`engine`](crate::engine).
//!
//! Loops and retries belong in the engine, not here.
//! Before changing anything here: `cargo test -p leasehold --all-features --test guards --test faces --test dropped`.

pub(crate) mod acquire;
pub(crate) mod diagnostics;
mod fences;
pub(crate) mod guard;
pub(crate) mod home;
pub(crate) mod leasing;
pub(crate) mod lock;
pub(crate) mod locks;
pub(crate) mod mutex;
mod release_after;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
