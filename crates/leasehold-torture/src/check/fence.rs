//! Fences strictly increase in real-time order (I3).

use super::Invariant::{I3, I12};
use super::case::{Case, Court, Lease, Lock};
use super::figures::Figures;
use crate::history::record::Mode;
use crate::history::setting::Losses;

pub(super) fn judge(case: &Case<'_>, lock: &Lock, court: &mut Court, figures: &mut Figures) {
    if !case.fenced() {
        return;
    }
    for number in &lock.leases {
        if case.leases[*number].fence == 0 {
            court.accuse(case, I3, format!("{} has none", case.brief(*number)), &[*number]);
        }
    }
    let fence = |number: &usize| case.leases[*number].fence;
    // Grants that two primaries make independently at the same time have no order.
    let no_order = |number: &usize| {
        let Lease { name, called, from, .. } = case.leases[*number];
        case.setting.promises.losses == Losses::Latest
            && case.two_primaries[usize::from(name)].meets(called, from)
    };
    for same in lock.leases.chunk_by(|a, b| fence(a) == fence(b)).filter(|same| fence(&same[0]) != 0) {
        for pair in same.windows(2) {
            let (a, b) = (&case.leases[pair[0]], &case.leases[pair[1]]);
            // Readers that a quorum granted together may share a fence.
            let together = a.called.max(b.called) <= a.from.min(b.from);
            if case.quorum() && together && a.mode == Mode::Shared && b.mode == Mode::Shared {
                continue;
            }
            if pair.iter().any(no_order) {
                continue;
            }
            let seen = format!("{} and {} have the same fence", case.brief(pair[0]), case.brief(pair[1]));
            court.accuse(case, I3, seen, pair);
        }
    }
    // A grant that was called for after another had returned has the higher fence.
    let mut by_return = lock.leases.clone();
    by_return.retain(|number| !no_order(number));
    by_return.sort_by_key(|number| case.leases[*number].from);
    let mut by_call = by_return.clone();
    by_call.sort_by_key(|number| case.leases[*number].called);
    let mut returned = by_return.into_iter().peekable();
    let mut highest: Option<usize> = None;
    for number in by_call {
        let lease = &case.leases[number];
        while let Some(before) = returned.next_if(|before| case.leases[*before].from < lease.called) {
            if highest.is_none_or(|highest| fence(&before) > fence(&highest)) {
                highest = Some(before);
            }
        }
        if let Some(before) = highest {
            let restarted = case.restarts.meets(case.leases[before].from, lease.from);
            let invariant = if restarted && case.setting.promises.durable { I12 } else { I3 };
            figures.weigh(invariant, lease.fence != 0, false);
        }
        // Equal fences are reported above.
        if let Some(before) = highest.filter(|before| fence(before) > lease.fence && lease.fence != 0) {
            let restarted = case.restarts.meets(case.leases[before].from, lease.from);
            let invariant = if restarted && case.setting.promises.durable { I12 } else { I3 };
            let seen = format!("{} was granted after {}", case.brief(number), case.brief(before));
            court.accuse(case, invariant, seen, &[before, number]);
        }
    }
}
