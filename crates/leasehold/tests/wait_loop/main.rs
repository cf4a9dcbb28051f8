//! The wait loop in paused time, against a store in which every step can fail, hang or lose its answer.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod faults;
mod kinds;
mod late;
mod limits;
mod once;
mod stopping;
mod waiting;

use std::time::Duration;

use testkit::faulty::Call;

const HOUR: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// When each call was made, in milliseconds after the first.
fn times(calls: &[Call]) -> Vec<u128> {
    calls.iter().map(|call| call.at.since(calls[0].at).as_millis()).collect()
}
