//! PostgreSQL: what its stores share. A URL becomes an [`Address`], a fault an error.

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

/// An identifier as SQL has it.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
