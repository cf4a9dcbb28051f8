//! Several names taken by one call: held together or not at all (I15), and never waited for in a circle (J1).
//!
//! Each name has its own acquire and lease, which the other checks judge like any other. Only the call as a whole is
//! judged here.

use std::collections::BTreeMap;

use super::Invariant::{I15, J1};
use super::case::{Acquire, Case, Court, Lease, Outcome, SLACK};
use super::figures::Figures;
use super::liveness::{BOUND, in_the_way, in_the_way_from};
use crate::history::record::Kind;

pub(super) fn judge(case: &Case<'_>, court: &mut Court, figures: &mut Figures) {
    let mut calls: BTreeMap<(u64, u32, u16), Vec<usize>> = BTreeMap::new();
    for (number, acquire) in case.acquires.iter().enumerate().filter(|(_, acquire)| acquire.multi) {
        let task = case.records[acquire.op as usize].task;
        calls.entry((acquire.called, acquire.worker, task)).or_default().push(number);
    }
    for parts in calls.values() {
        together(case, parts, court, figures);
    }
    for names in tied(case, calls.values()) {
        let of_these = |parts: &&Vec<usize>| names.contains(&case.acquires[parts[0]].name);
        progress(case, &names, calls.values().filter(of_these), court, figures);
    }
}

/// All are granted or none, each is believed in when the call returns, and none is relied on after one was lost.
fn together(case: &Case<'_>, parts: &[usize], court: &mut Court, figures: &mut Figures) {
    let leases: Vec<usize> = parts.iter().filter_map(|number| case.acquires[*number].lease).collect();
    // What a call got that was not granted is given back, as after any acquire that was given up.
    let Some(first) = leases.first() else { return };
    let Acquire { worker, called, returned, .. } = case.acquires[parts[0]];
    let without = |number: &&usize| {
        let Acquire { lease, outcome, .. } = case.acquires[**number];
        lease.is_none() && outcome != Outcome::Unknown
    };
    if let Some(without) = parts.iter().find(without) {
        let name = &case.setting.names[usize::from(case.acquires[*without].name)].name;
        let seen =
            format!("{} was granted without {name:?}, which was asked for with it", case.brief(*first));
        return court.accuse_with(case, I15, seen, &leases, &[*without]);
    }
    // Its time may be over between the last look of the call and the first of its caller.
    let lost = leases.iter().find(|lease| !case.leases[**lease].believes);
    let explained = lost.is_some() && case.around(worker).explained.meets(called, returned);
    figures.weigh(I15, true, explained);
    if let Some(lost) = lost.filter(|_| !explained) {
        let seen = format!("{} was lost when it was granted with the others", case.brief(*lost));
        return court.accuse(case, I15, seen, &leases);
    }
    let lost = leases.iter().filter_map(|lease| Some((case.leases[*lease].lost?.0, *lease))).min();
    let Some((at, lost)) = lost else { return };
    let held = |op: &u32| {
        let record = &case.records[*op as usize];
        record.kind == Kind::Held && record.at > at
    };
    let relied = |lease: &&usize| **lease != lost && case.leases[**lease].ops.iter().any(held);
    if let Some(other) = leases.iter().find(relied) {
        let (lost, other) = (case.brief(lost), case.brief(*other));
        court.accuse(case, I15, format!("{other} was relied on after {lost} was lost"), &leases);
    }
}

/// The names, in groups: those that one call takes, and those that are tied to them by other calls.
fn tied<'a>(case: &Case<'_>, calls: impl Iterator<Item = &'a Vec<usize>>) -> Vec<Vec<u16>> {
    let mut groups: Vec<Vec<u16>> = Vec::new();
    for parts in calls {
        let mut names: Vec<u16> = parts.iter().map(|number| case.acquires[*number].name).collect();
        let (tied, apart): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group: &Vec<u16>| names.iter().any(|name| group.contains(name)));
        groups = apart;
        names.extend(tied.into_iter().flatten());
        names.sort_unstable();
        names.dedup();
        groups.push(names);
    }
    groups
}

/// When nothing else holds any of these names, one of the waiting calls gets them all: the one that holds the last of
/// those that are held, in the order in which every call takes them. It gets each further name within the bound.
/// Waiting calls do not excuse each other.
fn progress<'a>(
    case: &Case<'_>,
    names: &[u16],
    calls: impl Iterator<Item = &'a Vec<usize>>,
    court: &mut Court,
    figures: &mut Figures,
) {
    let locks: Vec<_> = names.iter().map(|name| &case.locks[usize::from(*name)]).collect();
    let mut ways: Vec<(u64, u64)> = Vec::new();
    for lock in &locks {
        ways.extend(lock.leases.iter().map(|number| {
            let Lease { called, from, possible, .. } = case.leases[*number];
            (called.max(from.saturating_sub(SLACK)), possible)
        }));
        let acquires = lock.acquires.iter().map(|number| &case.acquires[*number]);
        ways.extend(acquires.filter(|acquire| in_the_way(case, acquire)).map(|acquire| {
            let from = if acquire.multi { acquire.returned } else { in_the_way_from(case, acquire) };
            (from, acquire.possible)
        }));
    }
    ways.sort_unstable();
    // Of each and all before it, the end of the longest.
    let mut longest = 0;
    for (_, end) in &mut ways {
        longest = longest.max(*end);
        *end = longest;
    }
    let bound = BOUND * names.len() as u64;
    for parts in calls {
        let Acquire { called, returned, wait, worker, .. } = case.acquires[parts[0]];
        // Some time before its end: then the others that end at the same time still waited.
        let until = returned.min(case.setting.span.1).saturating_sub(SLACK);
        let before = ways.partition_point(|(from, _)| *from < until).checked_sub(1);
        let free = before.map_or(called, |last| called.max(ways[last].1));
        if wait == 0 || until <= free.saturating_add(bound) {
            continue;
        }
        let revoked = names.iter().any(|name| case.revokes[usize::from(*name)].meet(called, until));
        let explained = revoked || locks.iter().any(|lock| case.explains(lock, free, until));
        figures.weigh(J1, true, explained);
        if explained {
            figures.waived += 1;
            continue;
        }
        let late = until - free;
        let seen = format!(
            "worker {worker} waited for {} names, none of which had been held for {late} ns",
            parts.len()
        );
        court.accuse_with(case, J1, seen, &[], parts);
    }
}
