//! Contention only when justified (I13): another client held the lock, or may have held it or queued, during the
//! refused call.

use std::collections::HashSet;

use super::Invariant::I13;
use super::case::{Acquire, Case, Court, Lock, Outcome};
use super::figures::Figures;
use super::sweep::{Depth, Meeting};
use crate::history::record::Mode;

/// A waiter that gives up may have been granted the lock in its last moments, too late to know: at most this long
/// before its end, or twice what the slowest single call took.
const LAST_MOMENTS: u64 = 100_000_000;

/// A fault may begin and end this much before and after its records say.
const EDGE: u64 = 50_000_000;

pub(super) fn judge(case: &Case<'_>, lock: &Lock, court: &mut Court, figures: &mut Figures) {
    // Intervals of possible holders, of possible exclusive holders, and of possible waiters.
    let (mut holds, mut exclusive, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    // A lease with a higher fence was granted later, so after the calls of those with lower fences.
    let mut called = 0;
    for number in &lock.leases {
        let lease = &case.leases[*number];
        called = called.max(lease.called);
        // If that is after its answer, the fences are wrong.
        let after = if case.fenced() && called <= lease.from { called } else { lease.called };
        holds.push((after, lease.possible.max(after)));
        if lease.mode == Mode::Exclusive {
            exclusive.push((after, lease.keeps_out().max(after)));
        }
    }
    let moments = LAST_MOMENTS.max(case.calls.last().map_or(0, |slowest| slowest.saturating_mul(2)));
    // Waiters that timed out while nothing was disturbed and nobody can have held the lock: they do not excuse each
    // other.
    let mut in_vain = Vec::new();
    for number in &lock.acquires {
        let acquire = &case.acquires[*number];
        let span = (acquire.called, acquire.possible);
        let Acquire { worker, called, returned, .. } = *acquire;
        if acquire.wait > 0 {
            let calm = acquire.outcome == Outcome::Busy
                && !case.quorum()
                && returned.saturating_sub(called) > moments
                && !case.around(worker).disturbed.meets(called, returned);
            if calm { in_vain.push(*number) } else { waits.push(span) }
        } else if acquire.outcome != Outcome::Granted && (acquire.outcome != Outcome::Busy || case.quorum()) {
            holds.push(span);
            if acquire.mode == Mode::Exclusive {
                exclusive.push(span);
            }
        }
    }
    let (holds, exclusive, waits) = match lock.limit {
        0 => (Blocking::Any(Meeting::new(&holds)), Meeting::new(&exclusive), Meeting::new(&waits)),
        limit => (Blocking::Many(Depth::new(&holds), limit), Meeting::new(&[]), Meeting::new(&waits)),
    };
    let mut idle = HashSet::new();
    let mut last_moments = Vec::new();
    for number in in_vain {
        let Acquire { called, returned, possible, mode, .. } = case.acquires[number];
        let busy = match mode {
            Mode::Shared => exclusive.count(called, returned) > 0,
            _ => holds.met(called, returned, 0),
        };
        if busy || waits.count(called, returned) > 0 {
            last_moments.push((called, possible));
        } else {
            idle.insert(number);
            last_moments.push((returned - moments, possible));
        }
    }
    let in_vain = Meeting::new(&last_moments);
    for number in &lock.acquires {
        let acquire = &case.acquires[*number];
        if acquire.outcome != Outcome::Busy {
            continue;
        }
        let Acquire { called, returned, wait, .. } = *acquire;
        // An old primary does not know which leases have ended since.
        if case.two_primaries[usize::from(acquire.name)].meets(called, returned) {
            figures.judged(I13).waived += 1;
            continue;
        }
        // An acquire's own refusal does not justify it.
        let itself = usize::from(wait == 0 && case.quorum());
        let waiting = if idle.contains(number) {
            // Its first attempt was answered by then.
            in_vain.count(called, called + moments) > usize::from(returned - moments <= called + moments)
        } else {
            waits.count(called, returned) + in_vain.count(called, returned) > usize::from(wait > 0)
        };
        let held = match acquire.mode {
            // The acquire itself is not among those.
            Mode::Shared => exclusive.count(called, returned) > 0,
            _ => holds.met(called, returned, itself),
        };
        let judged = figures.judged(I13);
        // A mere waiter may not have been in the queue at all.
        let count = if waiting && !held { &mut judged.uncertain } else { &mut judged.judged };
        *count += 1;
        if !held && !waiting {
            let seen = format!(
                "worker {} was told that lock {} is busy, but nobody can have held it or waited for it",
                acquire.worker, acquire.name
            );
            court.accuse_with(case, I13, seen, &[], &[*number]);
        } else if !case.several_answer()
            && let Some((from, to)) = case.paused.meeting(called, returned)
            && called > from.saturating_add(EDGE)
            && returned.saturating_add(EDGE) < to
        {
            let seen = format!("worker {} was told busy by a store that did not run", acquire.worker);
            court.accuse_with(case, I13, seen, &[], &[*number]);
        }
    }
}

enum Blocking {
    Any(Meeting),
    Many(Depth, u32),
}

impl Blocking {
    fn met(&self, from: u64, to: u64, itself: usize) -> bool {
        match self {
            Blocking::Any(meeting) => meeting.count(from, to) > itself,
            Blocking::Many(depth, limit) => depth.most(from, to) as usize >= *limit as usize + itself,
        }
    }
}
