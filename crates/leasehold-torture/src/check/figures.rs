//! The figures of a run, besides its violations.

use std::collections::BTreeMap;

use serde::Serialize;

use super::case::{Case, Lease, Outcome};
use super::matter::Reach;
use crate::history::record::{Face, Kind, Loss, Mode, Record};

/// The figures. Times are in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Leases that were granted.
    pub grants: u64,
    /// Grants for which another claim had released.
    pub handovers: u64,
    /// Those of a lease that was certainly held, for a millisecond or more, while another client wanted the lock, and
    /// whose end is certain: a second holder, or a grant before the release, would have been accused.
    pub handovers_judged: u64,
    /// Leases that ended because their time was over.
    pub expiries: u64,
    /// Grants of a lock that another client had left by expiry, loss or death.
    pub takeovers: u64,
    /// Calls to acquire, renew or release whose outcome is unknown.
    pub unknowns: u64,
    /// Acquires that were refused because another client holds the lock.
    pub busy: u64,
    /// Acquires that failed.
    pub failed: u64,
    /// Acquires that were dropped.
    pub dropped: u64,
    /// Leases that their holders found lost, by reason.
    pub lost: BTreeMap<String, u64>,
    /// The shortest time from the deadline of an expired lease until another was granted.
    pub lost_margin: Option<u64>,
    /// From the call to release until the next holder, a waiter, had its answer.
    pub handover: Percentiles,
    /// From the latest deadline that the holder saw until the next holder, a waiter, had its answer. The lease may
    /// have been renewed after that look.
    pub takeover: Percentiles,
    /// Grants that overtook a waiter that was certainly queued before.
    pub fifo_inversions: u64,
    /// Writes that the fenced table rejected.
    pub fenced_saves: u64,
    /// How often a holder entered the unfenced table while another was in it.
    pub unfenced_overlaps: u64,
    /// What was left in the store at rest.
    pub leftovers: u64,
    /// How often the machine itself stalled.
    pub stalls: u64,
    /// Time bounds that were exceeded, and excused because a fault or a stall explains it.
    pub waived: u64,
    /// By invariant: how much there was to judge.
    pub judged: BTreeMap<String, Judged>,
    /// Faults, by kind, during which a worker they hit had an acquire in progress or held a lock.
    pub felt: BTreeMap<String, u64>,
    /// Grants to readers, and of permits.
    pub readers: u64,
    /// See `readers`.
    pub permits: u64,
    /// Acquires, by the part of the API that made them.
    pub faces: BTreeMap<String, u64>,
    /// Leases adopted by another process than the one they were granted to.
    pub adopted: u64,
    /// Leases that certainly ended because of an immediate revoke.
    pub revoked: u64,
    /// Lists of waiters that were not empty.
    pub lists: u64,
    /// How often each thing was recorded.
    pub operations: BTreeMap<String, u64>,
}

/// How much evidence there was to judge an invariant; `docs/torture-checks.md` says what is counted for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// Cases that would have been reported if they had been wrong.
    pub judged: u64,
    /// Cases that were wrong, or could not be judged, but are explained by a fault or a stall.
    pub waived: u64,
    /// Cases that may or may not have happened.
    pub uncertain: u64,
}

impl Figures {
    pub(super) fn judged(&mut self, invariant: super::Invariant) -> &mut Judged {
        self.judged.entry(format!("{invariant:?}")).or_default()
    }

    /// Counts a case as judged, or as not judged because it is `explained` or not `sure`.
    pub(super) fn weigh(&mut self, invariant: super::Invariant, sure: bool, explained: bool) {
        let judged = self.judged(invariant);
        let count = match (sure, explained) {
            (_, true) => &mut judged.waived,
            (true, false) => &mut judged.judged,
            (false, false) => &mut judged.uncertain,
        };
        *count += 1;
    }

    /// How often an invariant was judged.
    pub fn judged_by(&self, invariant: super::Invariant) -> u64 {
        self.judged.get(&format!("{invariant:?}")).map_or(0, |judged| judged.judged)
    }
}

/// Percentiles of times, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// How many times there are.
    pub count: u64,
    /// Half of them are at most this.
    pub p50: u64,
    /// 99 of 100 are at most this.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// The value that this share of the sorted values does not exceed; 0 if there are none.
pub(super) fn share(sorted: &[u64], share: f64) -> u64 {
    let place = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or(0)
}

impl Percentiles {
    fn of(mut times: Vec<u64>) -> Self {
        times.sort_unstable();
        Percentiles {
            count: times.len() as u64,
            p50: share(&times, 0.5),
            p99: share(&times, 0.99),
            max: times.last().copied().unwrap_or(0),
        }
    }
}

/// Times while they are being measured.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) handovers: Vec<u64>,
    /// Those during which nothing was disturbed.
    pub(super) unexplained: Vec<u64>,
    pub(super) takeovers: Vec<u64>,
}

impl Times {
    pub(super) fn into_figures(self, figures: &mut Figures) {
        figures.handover = Percentiles::of(self.handovers);
        figures.takeover = Percentiles::of(self.takeovers);
    }
}

/// Counts what is not judged.
pub(super) fn count(case: &Case<'_>, figures: &mut Figures) {
    figures.grants = case.leases.len() as u64;
    figures.stalls = case.stalls;
    for invariant in super::Invariant::JUDGED {
        // A missing entry would look as if the invariant were not checked.
        figures.judged(invariant);
    }
    rest(case, figures);
    figures.lists = case.lists.iter().flatten().filter(|list| !list.is_empty()).count() as u64;
    for (fault, reach, from, to) in &case.faults {
        let hit = |worker: u32| reach.hits(worker, case.setting.sides);
        // A worker that is killed or stopped while it holds a lock does not look any more.
        let held_until = |lease: &Lease| match reach {
            Reach::Worker(_) => lease.likely.max(lease.believed),
            _ => lease.believed,
        };
        let met = |begin: u64, end: u64, worker: u32| begin <= *to && end >= *from && hit(worker);
        let called =
            case.acquires.iter().any(|acquire| met(acquire.called, acquire.returned, acquire.worker));
        if called || case.leases.iter().any(|lease| met(lease.from, held_until(lease), lease.worker)) {
            *figures.felt.entry(format!("{fault:?}")).or_default() += 1;
        }
    }
    for acquire in &case.acquires {
        match acquire.outcome {
            Outcome::Granted => {}
            Outcome::Busy | Outcome::Missing => figures.busy += 1,
            Outcome::Failed => figures.failed += 1,
            Outcome::Dropped => figures.dropped += 1,
            Outcome::Unknown => figures.unknowns += 1,
        }
    }
    for call in case.records.iter().filter(|record| record.kind == Kind::AcquireCall) {
        let face = Face::ALL.get(call.fence as usize).copied().unwrap_or(Face::Usual);
        *figures.faces.entry(format!("{face:?}")).or_default() += 1;
    }
    for Record { kind, .. } in case.records.iter().chain(&case.resource).chain(&case.left) {
        *figures.operations.entry(format!("{kind:?}")).or_default() += 1;
    }
    for lease in &case.leases {
        figures.readers += u64::from(lease.mode == Mode::Shared);
        figures.permits += u64::from(lease.mode == Mode::Permit);
        let elsewhere = |op: &u32| {
            let Record { kind, worker, .. } = case.records[*op as usize];
            kind == Kind::Adopted && worker != lease.worker
        };
        figures.adopted += u64::from(lease.ops.iter().any(elsewhere));
        let ended = lease.release_called.unwrap_or(u64::MAX).min(lease.deadline);
        let cleared = case.revokes(lease).cleared(lease).unwrap_or(u64::MAX);
        figures.revoked += u64::from(cleared < ended);
        figures.unknowns += unanswered(case, &lease.ops);
        if let Some((_, why)) = lease.lost {
            let why = match why {
                Loss::Deadline => "deadline",
                Loss::Refused => "refused",
                Loss::Other => "other",
            };
            *figures.lost.entry(why.into()).or_default() += 1;
        }
        figures.expiries += u64::from(lease.expired() && lease.gone.is_none());
    }
}

/// Counts what could be left at rest: by abandoned acquires (J6), and by held locks (J7).
fn rest(case: &Case<'_>, figures: &mut Figures) {
    for acquire in &case.acquires {
        if matches!(acquire.outcome, Outcome::Dropped | Outcome::Failed | Outcome::Missing) {
            figures.weigh(super::Invariant::J6, true, false);
        }
    }
    for _ in case.locks.iter().filter(|lock| !lock.leases.is_empty()) {
        figures.weigh(super::Invariant::J7, true, false);
    }
}

/// The number of renewals and releases of a lease whose outcome is unknown.
fn unanswered(case: &Case<'_>, ops: &[u32]) -> u64 {
    use crate::history::record::Kind::{
        ReleaseCall, ReleaseDropped, ReleaseFailed, Released, ReleasedNothing, RenewCall, RenewFailed,
        RenewRefused, Renewed,
    };
    let mut open = 0;
    for op in ops {
        let Record { kind, value, .. } = case.records[*op as usize];
        match kind {
            RenewCall => open += 1,
            // Nobody awaits the release of a dropped guard.
            ReleaseCall if value == 0 => open += 1,
            Renewed | RenewRefused | Released | ReleasedNothing => open -= 1,
            RenewFailed | ReleaseFailed | ReleaseDropped => {}
            _ => {}
        }
    }
    open.max(0) as u64
}
