//! Wrappers around a store, or around several, that are themselves a store.

pub mod quorum;
pub mod telemetry;
