//! The Redis store against real servers.

#![allow(clippy::unwrap_used)] // what the tests share may also stop

mod conformance;
mod support;
