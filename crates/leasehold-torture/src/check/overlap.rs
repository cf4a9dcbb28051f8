//! Simultaneous holders: by belief (I1), by grants that came too early (I2, I12), permits (I9), kinds (I11).

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};

use super::Invariant::{self, I1, I2, I9, I11, I12};
use super::case::{Case, Court, Lease, Lock};
use super::figures::Figures;
use super::sweep::{Meeting, PrefixMax};
use crate::history::record::Mode;

/// A span in which a lease was certainly held, in one sense or the other.
#[derive(Debug, Clone, Copy)]
struct Span {
    lease: usize,
    from: u64,
    to: u64,
    exclusive: bool,
}

/// Shorter holds hardly ever met another client.
const SEEN: u64 = 1_000_000;

pub(super) fn judge(case: &Case<'_>, lock: &Lock, court: &mut Court, figures: &mut Figures) {
    count(case, lock, figures);
    let mut accused = HashSet::new();
    // A hold of a single moment need not be before or after anything.
    let mut holds = spans(case, lock, |lease| Some(lease.end()).filter(|end| *end > lease.from));
    if lock.limit > 0 {
        // A holder that relies on a permit has one that has not ended.
        granted_by(case, lock, &mut holds);
        return too_many(case, lock, holds, court);
    }
    let beliefs = spans(case, lock, |lease| lease.believes.then(|| lease.believed.min(lease.uncertain)));
    meet(case, beliefs, I1, court, &mut accused);
    meet(case, holds, I2, court, &mut accused);
    if case.fenced() {
        given_early(case, lock, court, &mut accused);
    }
}

/// Locks that share one name have different kinds, or different numbers of permits: none of them may be held while
/// another is held.
pub(super) fn mixed(case: &Case<'_>, court: &mut Court) {
    let mut groups: HashMap<&str, Vec<usize>> = HashMap::new();
    for (place, name) in case.setting.names.iter().enumerate() {
        groups.entry(&name.name).or_default().push(place);
    }
    for group in groups.values().filter(|group| group.len() > 1) {
        let of = |place: &usize| spans(case, &case.locks[*place], |lease| Some(lease.end()));
        let mut holds: Vec<(usize, Span)> =
            group.iter().flat_map(|place| of(place).into_iter().map(|span| (*place, span))).collect();
        holds.retain(|(_, span)| span.to > span.from);
        holds.sort_by_key(|(_, span)| (span.from, span.to));
        // For each of them, the longest hold so far.
        let mut longest: HashMap<usize, Span> = HashMap::new();
        for (place, span) in holds {
            let other = longest.iter().find(|(other, before)| **other != place && before.to > span.from);
            if let Some((_, before)) = other {
                let seen = format!(
                    "{} was granted beside {}, which is of another kind",
                    case.brief(span.lease),
                    case.brief(before.lease)
                );
                court.accuse(case, I11, seen, &[before.lease, span.lease]);
            }
            if longest.get(&place).is_none_or(|before| span.to > before.to) {
                longest.insert(place, span);
            }
        }
    }
}

/// When a lock was wanted: a second holder is seen only while a client asks for the lock.
pub(super) struct Wanted(Meeting);

impl Wanted {
    pub(super) fn new(case: &Case<'_>, lock: &Lock) -> Self {
        // A call for several names may ask for this one later, or never.
        let wanted = lock.acquires.iter().map(|number| &case.acquires[*number]).filter(|one| !one.multi);
        let wanted: Vec<_> = wanted.map(|acquire| (acquire.called, acquire.returned)).collect();
        Wanted(Meeting::new(&wanted))
    }

    /// Whether a lease was certainly held while another client wanted the lock, for long enough to be seen, so that a
    /// second holder would have been accused; `None` if nobody would have met it.
    fn held(&self, lease: &Lease) -> Option<bool> {
        // Its own call ended when it began.
        let long = lease.believes && lease.believed.saturating_sub(lease.from) >= SEEN;
        let met = long && self.0.count(lease.from + 1, lease.believed) > 0;
        met.then(|| lease.believed.min(lease.uncertain).saturating_sub(lease.from) >= SEEN)
    }

    /// Whether its end is certain, so that an earlier grant to another client would have been accused; `None` if no
    /// client came.
    fn ended(&self, lease: &Lease) -> Option<bool> {
        let sure = lease.end() > lease.from;
        // No other client came before it could be seen.
        if !sure && lease.uncertain > lease.from {
            return None;
        }
        let until = lease.end().max(lease.believed).max(lease.from + 1);
        (self.0.count(lease.from + 1, until) > 0).then_some(sure)
    }

    /// Whether both were judged: I1 (of permits I9) and I2.
    pub(super) fn judged(&self, lease: &Lease) -> bool {
        self.held(lease) == Some(true) && self.ended(lease) == Some(true)
    }
}

/// Counts how many leases were certainly held while another client wanted the lock (I1, I9), how many perhaps, and
/// before how many ends no other client may have been granted it (I2).
fn count(case: &Case<'_>, lock: &Lock, figures: &mut Figures) {
    let wanted = Wanted::new(case, lock);
    for lease in lock.leases.iter().map(|number| &case.leases[*number]).filter(|_| lock.limit == 0) {
        if let Some(sure) = wanted.ended(lease) {
            figures.weigh(I2, sure, false);
        }
    }
    let invariant = if lock.limit > 0 { I9 } else { I1 };
    for lease in lock.leases.iter().map(|number| &case.leases[*number]) {
        if let Some(sure) = wanted.held(lease) {
            figures.weigh(invariant, sure, false);
        }
    }
}

/// Spans in the order of their starts; a downgraded lease has two.
fn spans(case: &Case<'_>, lock: &Lock, until: impl Fn(&Lease) -> Option<u64>) -> Vec<Span> {
    let mut spans = Vec::with_capacity(lock.leases.len());
    for place in &lock.leases {
        let lease = &case.leases[*place];
        let Some(to) = until(lease).filter(|to| *to >= lease.from) else { continue };
        let span = Span { lease: *place, from: lease.from, to, exclusive: lease.mode == Mode::Exclusive };
        match lease.downgraded.filter(|turned| *turned < to) {
            None => spans.push(span),
            Some(turned) => {
                spans.push(Span { to: turned, ..span });
                spans.push(Span { from: turned, exclusive: false, ..span });
            }
        }
    }
    spans.sort_by_key(|span| (span.from, span.to));
    spans
}

/// Two conflicting spans do not meet. Reports one violation for each that came too early, against the longest hold.
fn meet(
    case: &Case<'_>,
    spans: Vec<Span>,
    invariant: Invariant,
    court: &mut Court,
    accused: &mut HashSet<usize>,
) {
    let mut longest: Option<Span> = None;
    let mut longest_exclusive: Option<Span> = None;
    for span in spans {
        let before = if span.exclusive { longest } else { longest_exclusive };
        if let Some(before) = before.filter(|before| before.to > span.from && before.lease != span.lease)
            && accused.insert(span.lease)
        {
            accuse(case, invariant, before.lease, span, before.to, court);
        }
        if longest.is_none_or(|longest| span.to > longest.to) {
            longest = Some(span);
        }
        if span.exclusive && longest_exclusive.is_none_or(|longest| span.to > longest.to) {
            longest_exclusive = Some(span);
        }
    }
}

fn accuse(case: &Case<'_>, invariant: Invariant, before: usize, span: Span, until: u64, court: &mut Court) {
    let pair = [before, span.lease];
    let (a, b) = (case.brief(before), case.brief(span.lease));
    if invariant == I1 {
        let seen = format!("{a} and {b} were both believed in at {}", case.at(span.from));
        return court.accuse(case, I1, seen, &pair);
    }
    let early = until - span.from;
    let invariant = if case.restarts.meets(case.leases[before].from, span.from) { I12 } else { I2 };
    court.accuse(case, invariant, format!("{b} was granted {early} ns before {a} can have ended"), &pair);
}

/// Never more than the limit at once.
fn too_many(case: &Case<'_>, lock: &Lock, spans: Vec<Span>, court: &mut Court) {
    let mut inside: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    for span in spans {
        while inside.peek().is_some_and(|Reverse((to, _))| *to <= span.from) {
            inside.pop();
        }
        inside.push(Reverse((span.to, span.lease)));
        if inside.len() > lock.limit as usize {
            // The longest holds are the ones to report.
            let mut who: Vec<usize> =
                inside.clone().into_sorted_vec().iter().map(|Reverse((_, lease))| *lease).collect();
            who.retain(|lease| *lease != span.lease);
            who.truncate(4);
            who.push(span.lease);
            let seen = format!(
                "{} permits were held at once, {} are allowed: the last is {}",
                inside.len(),
                lock.limit,
                case.brief(span.lease)
            );
            court.accuse(case, I9, seen, &who);
        }
    }
}

/// Uses the fences to find that a permit was granted before its answer came: before one with a higher fence was
/// answered.
fn granted_by(case: &Case<'_>, lock: &Lock, holds: &mut [Span]) {
    if !case.fenced() {
        return;
    }
    let mut by: HashMap<usize, u64> = HashMap::new();
    let mut answered = BTreeSet::new();
    let fence = |number: &usize| case.leases[*number].fence;
    for group in lock.leases.chunk_by(|a, b| fence(a) == fence(b)).rev() {
        for number in group {
            // Only by grants that came after its call: otherwise the fences are wrong.
            let Lease { called, from, .. } = case.leases[*number];
            by.insert(
                *number,
                answered.range(called..).next().map_or(from, |answered: &u64| from.min(*answered)),
            );
        }
        answered.extend(group.iter().map(|number| case.leases[*number].from));
    }
    for span in &mut *holds {
        span.from = by.get(&span.lease).copied().unwrap_or(span.from);
    }
    holds.sort_by_key(|span| (span.from, span.to));
}

/// I2 where the order of returns does not decide, but the fences do: the higher fence was granted later, so after the
/// other's end.
fn given_early(case: &Case<'_>, lock: &Lock, court: &mut Court, accused: &mut HashSet<usize>) {
    let mut calls: Vec<u64> = lock.leases.iter().map(|lease| case.leases[*lease].called).collect();
    calls.sort_unstable();
    let place = |moment: u64| calls.partition_point(|call| *call < moment);
    let by = |moment: u64| calls.partition_point(|call| *call <= moment);
    let mut ends = PrefixMax::new(calls.len());
    let mut exclusive_ends = PrefixMax::new(calls.len());
    let fence = |number: &usize| case.leases[*number].fence;
    for group in lock.leases.chunk_by(|a, b| fence(a) == fence(b)) {
        for number in group {
            let lease = &case.leases[*number];
            let before = if lease.mode == Mode::Exclusive { &ends } else { &exclusive_ends };
            // Only those that can have been granted by then: otherwise the fences are wrong.
            let (end, other) = before.first(by(lease.from));
            if end > lease.from && accused.insert(*number) {
                let span = Span { lease: *number, from: lease.from, to: lease.from, exclusive: false };
                accuse(case, I2, other, span, end, court);
            }
        }
        for number in group {
            let lease = &case.leases[*number];
            let rank = place(lease.called);
            ends.raise(rank, lease.end(), *number);
            exclusive_ends.raise(rank, lease.exclusive_end(), *number);
        }
    }
}
