//! `postgres+advisory:` on real servers.
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod at_once;
#[cfg(feature = "conformance")]
mod conformance;
mod connecting;
mod contention;
mod fences;
mod home;
mod keys;
mod loss;
mod poolers;
mod processes;
mod runtimes;
mod scope;
mod slow;
mod support;
mod waiting;
