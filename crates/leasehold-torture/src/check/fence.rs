//! Fences strictly increase in real-time order (I3).

use super::Invariant::{I3, I12};
use super::case::{Case, Court, Lease, Lock};
use crate::history::record::Mode;
use crate::history::setting::Losses;

pub(super) fn judge(case: &Case<'_>, lock: &Lock, court: &mut Court) {
    if !case.fenced() {
        return;
    }
    for number in &lock.leases {
        if case.leases[*number].fence == 0 {
            court.accuse(case, I3, format!("{} has none", case.brief(*number)), &[*number]);
        }
    }
    let fence = |number: &usize| case.leases[*number].fence;
    // What two primaries give at the same time has no order, where they give it by themselves.
    let no_order = |number: &usize| {
        let Lease { name, called, from, .. } = case.leases[*number];
        case.setting.promises.losses == Losses::Latest
            && case.two_primaries[usize::from(name)].meets(called, from)
    };
    for same in lock.leases.chunk_by(|a, b| fence(a) == fence(b)).filter(|same| fence(&same[0]) != 0) {
        for pair in same.windows(2) {
            let (a, b) = (&case.leases[pair[0]], &case.leases[pair[1]]);
            // Readers that a quorum let in together may share one.
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
        // Equal ones are accused above.
        if let Some(before) = highest.filter(|before| fence(before) > lease.fence && lease.fence != 0) {
            let restarted = case.restarts.meets(case.leases[before].from, lease.from);
            let invariant = if restarted && case.setting.promises.durable { I12 } else { I3 };
            let seen = format!("{} was granted after {}", case.brief(number), case.brief(before));
            court.accuse(case, invariant, seen, &[before, number]);
        }
    }
}
