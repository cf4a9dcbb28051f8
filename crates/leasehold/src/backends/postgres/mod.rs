//! PostgreSQL: what its two stores share, such as URLs ([`Address`]) and errors.
//!
#![doc = include_str!("../../../docs/postgres.md")]

// What belongs here: what both stores need. Before changing anything here:
// `cargo test -p leasehold --all-features --test postgres_tables --test postgres_advisory`, then `make bench-postgres`.

pub mod advisory;
mod config;
mod connect;
mod connection;
mod fault;
mod findings;
mod pooler;
mod socket;
mod tables;
mod tls;
mod tls_stream;

pub use advisory::{Advisory, AdvisoryKey};
pub use config::Address;
pub use pooler::Pooler;
pub use tables::{Lent, Postgres, PostgresBuilder};

/// An identifier, quoted for SQL.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
