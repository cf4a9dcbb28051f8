//! The quorum layer: over memory stores that die, forget, hang and lose answers, and over real servers.

#![allow(clippy::unwrap_used)] // what the tests share may also stop

mod cluster;
mod conformance;
mod contention;
mod crowd;
mod fences;
mod history;
mod listing;
mod notes;
#[cfg(feature = "redis")]
mod redis;
mod setup;
mod tables;
mod unanswered;
