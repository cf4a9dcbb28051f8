//! `file:` with real processes and real files.
#![cfg(all(feature = "file", unix))]

mod files;
mod hot;
mod local;
mod process;
mod processes;
