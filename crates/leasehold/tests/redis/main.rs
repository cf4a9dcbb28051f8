//! The Redis store against real servers.

#![allow(clippy::unwrap_used)] // what the tests share may also stop

mod cluster;
mod conformance;
mod connecting;
mod crowds;
mod faults;
mod kept;
mod keys;
mod layout;
mod listing;
mod model;
mod proxied;
mod refusals;
mod replicas;
mod rewriting;
mod runtimes;
mod sentinels;
mod silent;
mod slots;
mod support;
mod sweeping;
mod walks;
