//! Wrappers around one store or several, which are themselves stores.
//!
//! A wrapper for any [`Backend`](crate::Backend) belongs here; code for one store belongs in its folder in `backends`.
//! Before changing anything here: `cargo test -p leasehold --all-features --test quorum --test telemetry`.

pub mod quorum;
pub mod telemetry;
