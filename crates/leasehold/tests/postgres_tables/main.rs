//! Leases in the tables of a real PostgreSQL server.
#![allow(clippy::unwrap_used)]

mod conformance;
mod crowds;
mod exclusive;
mod hosts;
mod many_names;
mod model;
mod network;
mod plans;
mod processes;
mod races;
mod runtimes;
mod setup;
mod support;
mod survival;
mod upgrade;
mod waited;
mod wakeups;
