//! The stores, one file or folder each. `memory` is always included; each of the others has a feature.
//!
//! Files beside the folders hold what several stores share.
//! Before changing a store: its own tests, which run the conformance suite too, for example
//! `cargo test -p leasehold --all-features --test redis`.

#[cfg(all(feature = "file", unix))]
pub mod file;
#[cfg(any(all(feature = "file", unix), feature = "postgres"))]
mod held;
#[cfg(feature = "http")]
pub mod http;
pub mod memory;
#[cfg(any(all(feature = "file", unix), all(feature = "sqlite", target_os = "linux")))]
mod place;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", all(feature = "sqlite", target_os = "linux")))]
mod queries;
#[cfg(feature = "redis")]
pub mod redis;
// Redis needs all of it, other stores a part.
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
pub(crate) mod runtimes;
#[cfg(all(feature = "sqlite", target_os = "linux"))]
pub mod sqlite;
mod waiting;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod wakes;
