//! `postgres+advisory:` on real servers.
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

#[cfg(feature = "conformance")]
mod conformance;
mod support;
