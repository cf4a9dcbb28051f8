//! The stores, one file or folder each. `memory` is always there; the others have a feature each.

pub mod memory;
mod slot;
#[cfg(all(feature = "sqlite", target_os = "linux"))]
pub mod sqlite;
