//! The Redis store against real servers.

#![allow(clippy::unwrap_used)] // what the tests share may also stop

mod cluster;
mod conformance;
mod faults;
mod kept;
mod keys;
mod model;
mod proxied;
mod refusals;
mod replicas;
mod runtimes;
mod support;
mod sweeping;
