//! The renewal loop in paused time, against a store in which every step can fail, hang or lose its answer.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod asked;
mod cadence;
mod ends;
mod failing;
mod panics;
mod sessions;

use std::time::Duration;

use leasehold::LeaseId;
use testkit::faulty::Call;

const HOUR: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn ids(call: &Call) -> Vec<LeaseId> {
    call.renewals().iter().map(|renewal| renewal.id).collect()
}
