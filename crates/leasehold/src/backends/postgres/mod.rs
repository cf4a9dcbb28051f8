//! PostgreSQL: what its stores share. A URL becomes an [`Address`], a fault an error.

mod config;
mod fault;
mod tls;
mod tls_stream;

pub use config::Address;
