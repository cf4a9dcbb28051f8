//! What `leasehold fences` prints, used as printed: on real databases and a real Redis, by a writer that is really
//! paused.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod forms;
mod paused;
mod printed;
mod together;
mod writer;
