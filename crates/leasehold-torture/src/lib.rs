//! Puts a lock store through its worst moments, and judges what was seen.
//!
//! Workers are processes that use only the public API. Each appends what it did and saw to its own [history], which
//! survives a SIGKILL. Everything is judged afterwards, from the histories alone.

#[cfg(not(target_os = "linux"))]
compile_error!("leasehold-torture builds on Linux only");

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
