//! Provokes the worst moments of a lock store, and judges what was seen.
//!
//! Workers are processes that use the public API alone; each appends what it did and saw to a
//! [history](history) of its own, which is there after a SIGKILL. Everything is judged afterwards, from the histories alone.

pub mod check;
pub mod history;
pub mod sim;
#[cfg(feature = "bugs")]
pub mod zoo;
