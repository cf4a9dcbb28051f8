//! The SQLite store in one process: its file, its clock, its answers.

#![allow(clippy::unwrap_used)] // what the tests share may also stop

mod clock;
mod faults;
mod file;
mod model;
mod places;
mod sharing;
mod support;
mod two_stores;
