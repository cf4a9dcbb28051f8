//! `file:` with real processes and real files.
#![cfg(all(feature = "file", unix))]
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

#[cfg(feature = "conformance")]
mod conformance;
mod files;
#[cfg(target_os = "linux")]
mod forks;
mod hot;
mod layout;
mod local;
mod process;
mod processes;
