//! Wrappers around a store that are themselves a store.

pub mod telemetry;
