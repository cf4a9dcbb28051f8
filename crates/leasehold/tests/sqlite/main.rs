//! The SQLite store in one process: its file, its clock, its answers.

mod clock;
mod faults;
mod file;
mod model;
mod sharing;
mod support;
