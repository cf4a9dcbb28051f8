//! Order of service: first come, first served where that is promised (J4), and nobody starves (J5).

use super::Invariant::{J4, J5};
use super::case::{Acquire, Case, Court, Lock, Outcome};
use super::figures::{Figures, share};
use super::sweep::PrefixMax;
use crate::history::record::Mode;

/// A waiter that called this much earlier was queued first, if nothing was disturbed. On a slow store the bound is
/// larger: twice the slowest single call made meanwhile, or four times the 99th percentile, if there are hundreds of
/// calls.
const QUEUED_AFTER: u64 = 100_000_000;
const SLOWEST: u64 = 2;
const RARE: u64 = 4;

/// A wait this long is starvation if others are served meanwhile: a quarter of it would be a long queue.
const STARVED_AFTER: u64 = 10_000_000_000;
const SERVED_MEANWHILE: usize = 50;

pub(super) fn judge(case: &Case<'_>, lock: &Lock, court: &mut Court, figures: &mut Figures) {
    if case.setting.promises.fifo && case.fenced() && lock.limit <= 1 {
        inversions(case, lock, court, figures);
    }
    starvation(case, lock, court, figures);
}

/// A later waiter was granted the lock before one that was queued, and the two cannot hold it together.
fn inversions(case: &Case<'_>, lock: &Lock, court: &mut Court, figures: &mut Figures) {
    let rare = if case.calls.len() < 100 { 0 } else { share(&case.calls, 0.99) };
    let margin = QUEUED_AFTER.max(rare.saturating_mul(RARE));
    let mut found = Vec::new();
    // The earliest call among those with higher fences: of all, and of those that keep readers out.
    let (mut any, mut exclusive): (Option<usize>, Option<usize>) = (None, None);
    let called = |lease: Option<usize>| lease.map_or(u64::MAX, |lease| case.leases[lease].called);
    for number in lock.leases.iter().rev() {
        let lease = &case.leases[*number];
        let other = if lease.mode == Mode::Shared { exclusive } else { any };
        // A waiter granted later could have been overtaken.
        if other.is_some_and(|other| case.leases[other].called < lease.from) {
            let explained = case.around(lease.worker).explained.meets(lease.called, lease.from);
            figures.weigh(J4, true, explained);
        }
        if let Some(other) = other.filter(|_| called(other).saturating_add(margin) < lease.called) {
            let waited = lease.called - called(Some(other));
            found.push((*number, called(Some(other)), waited, Some(other), None));
        }
        if lease.wait > 0 {
            if lease.called < called(any) {
                any = Some(*number);
            }
            if lease.mode != Mode::Shared && lease.called < called(exclusive) {
                exclusive = Some(*number);
            }
        }
    }
    // The same for waiters that timed out.
    let vain = |mode: Option<Mode>| -> (Vec<u64>, PrefixMax) {
        let in_vain = |number: &&usize| {
            let Acquire { wait, outcome, mode: own, .. } = case.acquires[**number];
            wait > 0 && outcome == Outcome::Busy && mode.is_none_or(|mode| mode == own)
        };
        let who: Vec<usize> = lock.acquires.iter().filter(in_vain).copied().collect();
        let mut ends = PrefixMax::new(who.len());
        for (place, number) in who.iter().enumerate() {
            // It leaves the queue when its time is over, even if its own process, for example a blocked log, delays it
            // then.
            let Acquire { called, wait, returned, .. } = case.acquires[*number];
            ends.raise(place, returned.min(called.saturating_add(wait)), *number);
        }
        (who.iter().map(|number| case.acquires[*number].called).collect(), ends)
    };
    let (all, writers) = (vain(None), vain(Some(Mode::Exclusive)));
    for number in &lock.leases {
        let lease = &case.leases[*number];
        let (calls, ends) = if lease.mode == Mode::Shared { &writers } else { &all };
        let before = calls.partition_point(|call| call.saturating_add(margin) < lease.called);
        let (end, other) = ends.first(before);
        if end > lease.from.saturating_add(margin) {
            let since = case.acquires[other].called;
            let waited = (lease.called - since).min(end - lease.from);
            found.push((*number, since, waited, None, Some(other)));
        }
    }
    for (number, since, waited, lease, acquire) in found {
        if waited <= case.slowest(since, case.leases[number].from).saturating_mul(SLOWEST) {
            continue;
        }
        let overtaken = lease.map(|lease| case.leases[lease].worker);
        let overtaken = overtaken.or(acquire.map(|acquire| case.acquires[acquire].worker));
        let who = [Some(case.leases[number].worker), overtaken];
        let matters = |worker: u32| case.around(worker).explained.meets(since, case.leases[number].from);
        if who.into_iter().flatten().any(matters) {
            figures.waived += 1;
            continue;
        }
        figures.fifo_inversions += 1;
        let waited = case.leases[number].called - since;
        let seen =
            format!("{} overtook one that had waited for {waited} ns before it called", case.brief(number));
        let leases: Vec<usize> = lease.into_iter().chain([number]).collect();
        court.accuse_with(case, J4, seen, &leases, acquire.as_slice());
    }
}

fn starvation(case: &Case<'_>, lock: &Lock, court: &mut Court, figures: &mut Figures) {
    // Of sixty clients that race for a name without a queue, some have no luck for long; no page promises them more.
    if case.setting.promises.keeps && !case.setting.promises.fifo {
        return;
    }
    let mut grants: Vec<u64> = lock.leases.iter().map(|lease| case.leases[*lease].from).collect();
    grants.sort_unstable();
    let (start, end) = case.setting.span;
    let patience = STARVED_AFTER.max(end.saturating_sub(start) / 2);
    for number in &lock.acquires {
        let Acquire { called, returned, wait, multi, worker, .. } = case.acquires[*number];
        let until = returned.min(case.last);
        // A call for several names does not wait for this one all the time.
        if wait == 0 || multi || until.saturating_sub(called) < patience {
            continue;
        }
        let served = grants.partition_point(|at| *at < until) - grants.partition_point(|at| *at <= called);
        if served < SERVED_MEANWHILE {
            figures.weigh(J5, true, false);
            continue;
        }
        let explained = case.explains(lock, called, until);
        figures.weigh(J5, true, explained);
        if explained {
            figures.waived += 1;
            continue;
        }
        let seen =
            format!("worker {worker} waited for {} ns while {served} others were served", until - called);
        court.accuse_with(case, J5, seen, &[], &[*number]);
    }
}
