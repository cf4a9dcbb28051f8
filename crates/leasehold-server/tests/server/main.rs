//! The server as its clients see it: real HTTP on a port of its own.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod api;
mod bad_input;
mod gates;
mod operations;
mod schema;
mod support;
mod tls;
mod vanishing;
