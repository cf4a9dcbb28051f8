//! The results of a load, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use leasehold::{Error, Gone, wire};
use serde::Serialize;

use super::resource::Resource;

/// The results of one client, or the sum of several.
#[derive(Debug, Default)]
pub(super) struct ClientFigures {
    pub(super) acquires: Vec<Duration>,
    /// Of acquires that found the lock held and then got it.
    pub(super) waits: Vec<Duration>,
    pub(super) handovers: Vec<Duration>,
    pub(super) timeouts: u64,
    /// Number of errors by code.
    errors: BTreeMap<&'static str, u64>,
    pub(super) renewals: u64,
    pub(super) stalls: u64,
    pub(super) stale_rejected: u64,
    /// Releases that ended a lease whose ttl had passed.
    pub(super) stale_released: u64,
    lost: u64,
    /// Losses before the ttl had passed.
    lost_early: u64,
}

impl ClientFigures {
    pub(super) fn add(&mut self, other: ClientFigures) {
        self.acquires.extend(other.acquires);
        self.waits.extend(other.waits);
        self.handovers.extend(other.handovers);
        self.timeouts += other.timeouts;
        other.errors.into_iter().for_each(|(code, count)| *self.errors.entry(code).or_default() += count);
        self.stalls += other.stalls;
        self.stale_rejected += other.stale_rejected;
        self.renewals += other.renewals;
        self.stale_released += other.stale_released;
        self.lost += other.lost;
        self.lost_early += other.lost_early;
    }

    /// A lease is gone; `in_time` if its ttl cannot have passed yet. A revoked lease does not count as a breach, and
    /// neither does a renewal that came too late because the machine stalled. Any other lease must live for its ttl.
    pub(super) fn lost(&mut self, gone: Gone, in_time: bool) {
        self.lost += 1;
        self.lost_early += u64::from(in_time && gone != Gone::Revoked);
    }

    pub(super) fn failed(&mut self, error: &Error) {
        *self.errors.entry(wire::code(error.kind())).or_default() += 1;
    }
}

/// The results. Times are in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    /// The store's URL without secrets.
    store: String,
    clients: usize,
    seconds: f64,
    acquisitions: usize,
    acquisitions_per_second: f64,
    acquire_ms_p50: f64,
    acquire_ms_p99: f64,
    waits: usize,
    wait_ms_p50: f64,
    wait_ms_p99: f64,
    handover_ms_p50: f64,
    handover_ms_p99: f64,
    waits_timed_out: u64,
    errors: u64,
    errors_by_code: BTreeMap<&'static str, u64>,
    renewals: u64,
    leases_lost: u64,
    leases_lost_early: u64,
    stalls: u64,
    stale_writes_rejected: u64,
    stale_releases_done: u64,
    writes_accepted: u64,
    writes_rejected: u64,
    /// Two clients that believed to hold one lock at once, fences that did not rise, leases lost early, and releases
    /// that ended an expired lease.
    pub(super) violations: u64,
}

fn percentile(times: &mut [Duration], part: f64) -> f64 {
    times.sort_unstable();
    let index = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
    times.get(index).map_or(0.0, |time| (time.as_secs_f64() * 1e5).round() / 1e2)
}

impl Summary {
    pub(super) fn new(
        store: String,
        mut seen: ClientFigures,
        resources: &[Resource],
        clients: usize,
        took: Duration,
    ) -> Self {
        let acquisitions = seen.acquires.len();
        Summary {
            store,
            clients,
            seconds: (took.as_secs_f64() * 1e2).round() / 1e2,
            acquisitions,
            acquisitions_per_second: (acquisitions as f64 / took.as_secs_f64() * 10.0).round() / 10.0,
            acquire_ms_p50: percentile(&mut seen.acquires, 0.5),
            acquire_ms_p99: percentile(&mut seen.acquires, 0.99),
            waits: seen.waits.len(),
            wait_ms_p50: percentile(&mut seen.waits, 0.5),
            wait_ms_p99: percentile(&mut seen.waits, 0.99),
            handover_ms_p50: percentile(&mut seen.handovers, 0.5),
            handover_ms_p99: percentile(&mut seen.handovers, 0.99),
            waits_timed_out: seen.timeouts,
            errors: seen.errors.values().sum(),
            errors_by_code: seen.errors,
            renewals: seen.renewals,
            leases_lost: seen.lost,
            leases_lost_early: seen.lost_early,
            stalls: seen.stalls,
            stale_writes_rejected: seen.stale_rejected,
            stale_releases_done: seen.stale_released,
            writes_accepted: resources.iter().map(Resource::accepted).sum(),
            writes_rejected: resources.iter().map(Resource::rejected).sum(),
            violations: resources.iter().map(Resource::violations).sum::<u64>()
                + seen.lost_early
                + seen.stale_released,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("store", self.store.clone()),
            ("clients", self.clients.to_string()),
            ("seconds", self.seconds.to_string()),
            ("acquisitions", self.acquisitions.to_string()),
            ("acquisitions a second", self.acquisitions_per_second.to_string()),
            ("acquire p50 / p99", format!("{} / {} ms", self.acquire_ms_p50, self.acquire_ms_p99)),
            ("had to wait", self.waits.to_string()),
            ("wait p50 / p99", format!("{} / {} ms", self.wait_ms_p50, self.wait_ms_p99)),
            ("hand-over p50 / p99", format!("{} / {} ms", self.handover_ms_p50, self.handover_ms_p99)),
            ("waits timed out", self.waits_timed_out.to_string()),
            ("errors", self.errors.to_string()),
            ("renewals of holders", self.renewals.to_string()),
            ("leases lost", self.leases_lost.to_string()),
            ("before their time", self.leases_lost_early.to_string()),
            ("holders that stalled", self.stalls.to_string()),
            ("their stale writes rejected", self.stale_writes_rejected.to_string()),
            ("their stale releases done", self.stale_releases_done.to_string()),
            ("writes accepted", self.writes_accepted.to_string()),
            ("violations", self.violations.to_string()),
        ];
        rows.iter().try_for_each(|(name, value)| writeln!(f, "{name:<28} {value}"))?;
        let mut by_code = self.errors_by_code.iter();
        by_code.try_for_each(|(code, count)| writeln!(f, "errors {code:<21} {count}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losing_a_live_lease_is_a_violation_unless_it_was_revoked() {
        let violations = |gone, in_time| {
            let mut seen = ClientFigures::default();
            seen.lost(gone, in_time);
            let summary = Summary::new("memory:".into(), seen, &[], 1, Duration::from_secs(1));
            (summary.leases_lost, summary.violations)
        };
        assert_eq!(violations(Gone::NotFound, true), (1, 1));
        assert_eq!(violations(Gone::Expired, true), (1, 1));
        assert_eq!(violations(Gone::Expired, false), (1, 0));
        assert_eq!(violations(Gone::Revoked, true), (1, 0));
    }
}
