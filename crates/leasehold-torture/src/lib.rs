//! Provokes the worst moments of a lock store, and judges what was seen.
//!
//! Workers are processes that use the public API alone; each appends what it did and saw to a
//! [history] of its own, which is there after a SIGKILL. Everything is judged afterwards, from the histories alone.

pub mod check;
#[cfg(feature = "run")]
pub mod clock;
#[cfg(feature = "__bugs")]
mod defects;
#[cfg(feature = "run")]
pub mod floors;
#[cfg(feature = "run")]
mod ground;
pub mod history;
#[cfg(feature = "run")]
pub mod hours;
#[cfg(feature = "run")]
mod lock_server;
#[cfg(feature = "run")]
pub mod plan;
#[cfg(feature = "run")]
mod replicated;
#[cfg(feature = "run")]
pub mod report;
#[cfg(feature = "run")]
pub mod resource;
#[cfg(feature = "run")]
pub mod roles;
#[cfg(feature = "run")]
mod room;
#[cfg(feature = "__simulation")]
pub mod sim;
#[cfg(feature = "run")]
pub mod store;
#[cfg(feature = "run")]
pub mod supervise;
#[cfg(feature = "run")]
mod worker;
#[cfg(feature = "__bugs")]
pub mod zoo;
