//! Until when a lease or an acquire can have blocked others.

use std::collections::HashMap;

use super::case::{Acquire, Case, Lease, Outcome, SLACK};
use crate::history::record::{Mode, SESSION};

fn died(worker: u32, case: &Case<'_>, deaths: &HashMap<u32, u64>) -> u64 {
    deaths.get(&worker).copied().unwrap_or(case.last)
}

/// When a lease probably ended.
pub(super) fn likely(lease: &Lease, deaths: &HashMap<u32, u64>) -> u64 {
    let released = lease.release_called.unwrap_or(u64::MAX);
    if lease.deadline != SESSION {
        return released.min(lease.deadline);
    }
    let lost = lease.lost.map_or(u64::MAX, |(at, _)| at);
    let died = deaths.get(&lease.worker).copied().unwrap_or(lease.believed);
    if released.min(lost) == u64::MAX { died.max(lease.believed) } else { released.min(lost) }
}

/// Until when a lease can have held the lock.
pub(super) fn possible(
    lease: &Lease,
    case: &Case<'_>,
    deaths: &HashMap<u32, u64>,
    calls: &HashMap<(u32, u16), Vec<u64>>,
) -> u64 {
    if let Some(gone) = lease.gone {
        // In a quorum a majority said so; the others follow.
        return match case.settled(lease.worker, gone) {
            _ if !case.quorum() => gone,
            (by, true) => by,
            (by, false) => by.saturating_add(lease.ttl),
        };
    }
    if let Some(cleared) = case.revokes(lease).cleared(lease).filter(|_| !case.quorum()) {
        return cleared;
    }
    let Some(last) = lease.ops.last().map(|op| case.records[*op as usize]) else { return u64::MAX };
    // It may have passed to another process.
    let mut died = died(lease.worker, case, deaths).max(died(last.worker, case, deaths));
    let ended = died;
    // A task that makes another acquire has left the lease to expire. Its client goes on to release what was dropped.
    if let Some(calls) = calls.get(&(last.worker, last.task)) {
        died = calls.get(calls.partition_point(|call| *call <= last.at)).map_or(died, |call| died.min(*call));
    }
    let last_sent = lease.release_called.or(lease.lost.map(|(at, _)| at)).unwrap_or(died);
    let (by, calm) = case.settled(last.worker, last_sent);
    if let Some(closed) = lease.closed.filter(|_| calm && lease.release_called.is_some() && !case.quorum()) {
        return closed.min(by);
    }
    if calm && lease.release_called.is_some() && ended > by {
        return by;
    }
    // A renewal may have been the last call to arrive.
    match (lease.deadline, lease.ttl) {
        (SESSION, _) => by.saturating_add(case.setting.promises.notices_within),
        (_, 0) => u64::MAX,
        (_, ttl) => by.saturating_add(lease.shortened.filter(|_| calm).unwrap_or(ttl)),
    }
}

/// By name: the calls of exclusive grants, each with the first answer to that call or a later one.
pub(super) type Alone = HashMap<u16, Vec<(u64, u64)>>;

pub(super) fn alone(case: &Case<'_>) -> Alone {
    let mut alone: HashMap<u16, Vec<(u64, u64)>> = HashMap::new();
    for lease in case.leases.iter().filter(|lease| lease.mode == Mode::Exclusive) {
        alone.entry(lease.name).or_default().push((lease.called, lease.from));
    }
    for calls in alone.values_mut() {
        calls.sort_unstable();
        let mut first = u64::MAX;
        for (_, answered) in calls.iter_mut().rev() {
            first = first.min(*answered);
            *answered = first;
        }
    }
    alone
}

/// The answer of the first exclusive grant that was called for after a moment.
fn first_alone(alone: &Alone, name: u16, moment: u64) -> Option<u64> {
    let calls = alone.get(&name)?;
    calls.get(calls.partition_point(|(called, _)| *called <= moment)).map(|(_, answered)| *answered)
}

/// If a fail-over has forgotten the end of a lease, it may be back until its time is over or until an exclusive grant.
pub(super) fn come_back(case: &mut Case<'_>, alone: &Alone) {
    let ticket = case.setting.promises.ticket;
    let until = |name: u16, from: u64, to: u64, ttl: u64| {
        let (_, end) = case.lost[usize::from(name)].iter().take_while(|(begin, _)| *begin <= to).last()?;
        let over = end.saturating_add(SLACK + ttl.max(ticket));
        (end >= from).then(|| over.min(first_alone(alone, name, end).unwrap_or(u64::MAX)))
    };
    let leases = case.leases.iter().map(|lease| {
        let ended = lease.gone.or(lease.release_called).unwrap_or(lease.possible);
        until(lease.name, lease.called, ended, lease.ttl)
    });
    let leases: Vec<_> = leases.collect();
    let acquires =
        case.acquires.iter().map(|one| until(one.name, one.called, one.returned.min(one.possible), one.ttl));
    let acquires: Vec<_> = acquires.collect();
    for (lease, until) in case.leases.iter_mut().zip(leases) {
        lease.possible = lease.possible.max(until.unwrap_or(0));
    }
    for (acquire, until) in case.acquires.iter_mut().zip(acquires) {
        acquire.possible = acquire.possible.max(until.unwrap_or(0));
    }
}

/// An exclusive grant shows that nothing is left of an acquire that had arrived before its call: neither a lease nor a
/// place in the queue, which would have been ahead.
pub(super) fn passed(case: &mut Case<'_>, deaths: &HashMap<u32, u64>, alone: &Alone) {
    if case.quorum() {
        return;
    }
    for number in 0..case.acquires.len() {
        let acquire = &case.acquires[number];
        if acquire.lease.is_some() || matches!(acquire.outcome, Outcome::Granted) {
            continue;
        }
        let died = died(acquire.worker, case, deaths);
        let (by, _) = case.settled(acquire.worker, acquire.returned.min(died.max(acquire.called)));
        if let Some(answered) = first_alone(alone, acquire.name, by) {
            let possible = acquire.possible.min(answered.max(by));
            case.acquires[number].possible = possible;
        }
    }
}

/// Until when an acquire can have held the lock or a place in its queue.
pub(super) fn possible_of_acquire(acquire: &Acquire, case: &Case<'_>, deaths: &HashMap<u32, u64>) -> u64 {
    // An attempt of a waiter may have been granted and given back before the attempt that it returned with.
    let again = acquire.wait > 0
        && (acquire.multi || case.around(acquire.worker).disturbed.meets(acquire.called, acquire.returned));
    if (acquire.outcome == Outcome::Granted && !again)
        || (acquire.outcome, acquire.wait) == (Outcome::Busy, 0)
    {
        return acquire.returned;
    }
    let died = died(acquire.worker, case, deaths);
    let (by, calm) = case.settled(acquire.worker, acquire.returned.min(died.max(acquire.called)));
    if let Some(closed) = acquire.closed.filter(|_| calm && !case.quorum()) {
        return closed.min(by);
    }
    if calm && acquire.outcome != Outcome::Unknown && died > by {
        return by;
    }
    let promises = &case.setting.promises;
    match (promises.session, acquire.ttl) {
        (true, _) => by.saturating_add(promises.notices_within.max(promises.ticket)),
        (_, 0) => u64::MAX,
        (_, ttl) => by.saturating_add(ttl.max(promises.ticket)),
    }
}
