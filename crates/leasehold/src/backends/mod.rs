//! The stores, one file or folder each. `memory` is always there; the others have a feature each.

#[cfg(all(feature = "file", unix))]
pub mod file;
pub mod memory;
