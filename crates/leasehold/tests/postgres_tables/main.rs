//! Leases in the tables of a real PostgreSQL server.

mod conformance;
mod model;
mod races;
mod setup;
mod support;
mod survival;
mod wakeups;
