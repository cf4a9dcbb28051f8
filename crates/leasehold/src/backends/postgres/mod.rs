//! PostgreSQL: what its stores share. A URL becomes an [`Address`], a fault an error.

pub mod advisory;
mod config;
mod driver;
mod fault;
mod findings;
mod line;
mod pooler;
mod reach;
mod tables;
mod tls;
mod tls_stream;

pub use advisory::{Advisory, AdvisoryKey};
pub use config::Address;
pub use pooler::Pooler;
pub use tables::{Lent, Postgres, PostgresBuilder};
