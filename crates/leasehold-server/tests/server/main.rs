//! The server as its clients see it: real HTTP on its own port.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod api;
mod bad_input;
mod batch;
mod draining;
mod figures;
mod findings;
mod gates;
mod hand_overs;
mod json;
mod limits;
mod logs;
mod messages;
mod notes;
mod operations;
mod quorum;
mod repeats;
mod schema;
mod several;
mod silence;
mod struck_out;
mod support;
mod tls;
mod vanishing;
