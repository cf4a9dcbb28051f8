//! What the library tells about itself: `tracing` events without names, and optional metrics.
//!
//! Names appear only as their [`hash_name`](crate::hash_name). Lease ids never appear.

use std::fmt::Display;
use std::time::Duration;

use crate::cell::LostReason;
use crate::error::Error;
use crate::fence::Fence;
use crate::name::Name;
use crate::options::ReleaseSource;

/// Counters and histograms, through whatever recorder the program has installed.
#[cfg(feature = "metrics")]
mod measure {
    use std::time::Duration;

    pub(super) fn count(name: &'static str, label: &'static str, value: &'static str) {
        metrics::counter!(name, label => value).increment(1);
    }

    pub(super) fn time(name: &'static str, span: Duration) {
        metrics::histogram!(name).record(span.as_secs_f64());
    }
}

#[cfg(not(feature = "metrics"))]
mod measure {
    use std::time::Duration;

    pub(super) fn count(_: &'static str, _: &'static str, _: &'static str) {}

    pub(super) fn time(_: &'static str, _: Duration) {}
}

/// An acquire ended: `granted`, `busy` or `error`.
pub(crate) fn acquired(result: &'static str, waited: Duration) {
    measure::count("leasehold_acquire_total", "result", result);
    measure::time("leasehold_wait_seconds", waited);
}

/// A renewal was answered: `ok`, `gone` or `error`.
pub(crate) fn renewed(result: &'static str) {
    measure::count("leasehold_renew_total", "result", result);
}

/// A guard ended after this long: `released`, `gone` or `error`; `background` if nobody awaited it.
pub(crate) fn released(result: &'static str, held: Duration) {
    measure::count("leasehold_release_total", "result", result);
    measure::time("leasehold_hold_seconds", held);
}

pub(crate) fn at_risk(name: &Name, fence: Fence, why: &dyn Display) {
    measure::count("leasehold_state_total", "state", "at_risk");
    tracing::warn!(name_hash = name.hash(), %fence, %why, "lease at risk: the last renewal was not confirmed");
}

pub(crate) fn held_again(name: &Name, fence: Fence) {
    measure::count("leasehold_state_total", "state", "held_again");
    tracing::info!(name_hash = name.hash(), %fence, "lease held again: a renewal was confirmed");
}

pub(crate) fn lost(name: &Name, fence: Fence, reason: Option<LostReason>) {
    measure::count("leasehold_state_total", "state", "lost");
    tracing::warn!(name_hash = name.hash(), %fence, reason = reason.map(LostReason::as_str), "lease lost");
}

pub(crate) fn release_failed(name: &Name, source: ReleaseSource, error: &Error) {
    tracing::warn!(
        name_hash = name.hash(),
        source = source.as_str(),
        %error,
        "a release failed; the lease ends when its ttl passes"
    );
}

pub(crate) fn near_fence_limit(name: &Name, fence: Fence) {
    if fence > Fence::WARN {
        tracing::warn!(name_hash = name.hash(), %fence, "fence near its limit: a clock was far in the future");
    }
}
