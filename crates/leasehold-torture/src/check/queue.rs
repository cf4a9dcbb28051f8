//! The queue as a holder saw it: grants follow the list (J4), and waiters that gave up are not in it (J6).
//!
//! A list shows the queue at one moment, in order. A later waiter must not get the lock before one that stands ahead
//! of it in the list, or one that was listed before the later one called. The exception is two waiters that can hold
//! the lock together: readers can, and so can permits while one is left for each waiter ahead.

use std::collections::HashMap;

use super::Invariant::{J4, J6};
use super::case::{Acquire, Case, Court, Lease, Lock, Outcome};
use super::figures::Figures;
use crate::history::record::{Kind, Mode, Record};

/// How long after a list the grants are compared with it: long enough to catch a store that lets waiters overtake each
/// other.
const FOLLOWED: u64 = 3_000_000_000;

/// How many earlier permits are checked for each permit.
const LOOKED_BACK: usize = 64;

/// A waiter that gave up must have left the lists this long after its last request arrived at the store.
const GONE_BY: u64 = 2_000_000_000;

/// The waiters, in order, at a moment between the call for the list and its answer.
#[derive(Debug, Clone, Default)]
pub(super) struct List {
    called: u64,
    returned: u64,
    /// Worker, claim, and a hash of the id, or 0.
    waiters: Vec<(u32, u64, u64)>,
}

impl List {
    /// Whether nobody waited.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }
}

/// Lists while they are read.
#[derive(Default)]
pub(super) struct Reader(HashMap<(u32, u16), List>);

impl Reader {
    /// Reads one record of a list. Returns the list when it is complete.
    pub(super) fn read(&mut self, record: &Record) -> Option<List> {
        let key = (record.worker, record.task);
        match record.kind {
            Kind::ListCall => {
                self.0.insert(key, List { called: record.at, ..List::default() });
                None
            }
            Kind::Waiting => {
                let list = self.0.get_mut(&key)?;
                list.waiters.push((record.fence as u32, record.value, record.lease));
                None
            }
            _ => {
                let list = self.0.remove(&key)?;
                Some(List { returned: record.at, ..list })
            }
        }
    }
}

pub(super) fn judge(case: &Case<'_>, lock: &Lock, lists: &[List], court: &mut Court, figures: &mut Figures) {
    if !case.setting.promises.fifo || !case.fenced() || lists.is_empty() {
        return;
    }
    let mut waits: HashMap<(u32, u64), usize> = HashMap::new();
    for number in lock.acquires.iter().filter(|number| case.acquires[**number].wait > 0) {
        let Record { worker, claim, .. } = case.records[case.acquires[*number].op as usize];
        waits.insert((worker, claim), *number);
    }
    let mut by_from = lock.leases.clone();
    by_from.sort_by_key(|number| case.leases[*number].from);
    let queue = Queue { case, lock, waits, by_from };
    for list in lists {
        queue.follow(list, court, figures);
    }
}

struct Queue<'a> {
    case: &'a Case<'a>,
    lock: &'a Lock,
    /// The waiting acquires, by worker and claim.
    waits: HashMap<(u32, u64), usize>,
    by_from: Vec<usize>,
}

impl Queue<'_> {
    /// Checks the grants after a list, each against those ahead of it.
    fn follow(&self, list: &List, court: &mut Court, figures: &mut Figures) {
        // The queued acquires, with the ids they had there.
        let waiters = list.waiters.iter();
        let waiters: Vec<Option<(usize, u64)>> =
            waiters.map(|(worker, claim, id)| Some((*self.waits.get(&(*worker, *claim))?, *id))).collect();
        for (number, _) in waiters.iter().flatten() {
            self.left(list, *number, court);
        }
        let places: HashMap<usize, usize> = waiters
            .iter()
            .enumerate()
            .filter_map(|(place, waiter)| Some((self.case.acquires[waiter.as_ref()?.0].lease?, place)))
            .collect();
        let gone = |(number, _): &(usize, u64)| {
            let Acquire { lease, returned, .. } = self.case.acquires[*number];
            lease.map_or(returned, |lease| self.case.leases[lease].from)
        };
        let until = waiters.iter().flatten().map(gone).max().unwrap_or(0).min(list.returned + FOLLOWED);
        let first = self.by_from.partition_point(|number| self.case.leases[*number].from <= list.called);
        for number in &self.by_from[first..] {
            let lease = &self.case.leases[*number];
            if lease.from > until {
                break;
            }
            let place = match places.get(number) {
                Some(place) => *place,
                None if lease.called > list.returned => waiters.len(),
                // It may have been granted before the list.
                None => continue,
            };
            let ahead = waiters[..place].iter().flatten();
            let still: Vec<usize> = ahead
                .clone()
                .filter(|waiter| self.waits_still(waiter, lease))
                .map(|(number, _)| *number)
                .filter(|number| {
                    lease.mode != Mode::Shared || self.case.acquires[*number].mode != Mode::Shared
                })
                .collect();
            if ahead.count() == 0 {
                continue;
            }
            let room = match lease.mode {
                // Each waiter ahead has one of the earlier permits.
                Mode::Permit => self.held_before(*number) + still.len() < self.lock.limit as usize,
                _ => still.is_empty(),
            };
            self.count(list, *number, &still, room, court, figures);
        }
    }

    /// How many permits were granted before this one and certainly held for as long as it may have waited for its
    /// answer. Much earlier permits have ended.
    fn held_before(&self, number: usize) -> usize {
        let Lease { fence, from, .. } = self.case.leases[number];
        let place = self.lock.leases.partition_point(|other| self.case.leases[*other].fence < fence);
        let before = self.lock.leases[..place].iter().rev().take(LOOKED_BACK);
        before.filter(|other| self.case.leases[**other].end() > from).count()
    }

    /// A waiter that gave up is not in a list that was called for long after.
    fn left(&self, list: &List, number: usize, court: &mut Court) {
        let Acquire { outcome, possible, worker, .. } = self.case.acquires[number];
        if outcome != Outcome::Granted && list.called > possible.saturating_add(GONE_BY) {
            let later = list.called - possible;
            let seen = format!("worker {worker} stands in the queue {later} ns after it can have left it");
            court.accuse_with(self.case, J6, seen, &[], &[number]);
        }
    }

    /// Whether a listed waiter certainly still waited when another was granted the lock.
    fn waits_still(&self, (number, id): &(usize, u64), granted: &Lease) -> bool {
        let Acquire { outcome, called, wait, lease, .. } = self.case.acquires[*number];
        match (outcome, lease) {
            (Outcome::Granted, Some(lease)) => {
                let own = &self.case.leases[lease];
                // With another id it had given up its place meanwhile.
                let kept = *id == 0 || own.ops.iter().any(|op| self.case.records[*op as usize].lease == *id);
                kept && own.fence > granted.fence
            }
            // It gives up when its time is over, and not before.
            (Outcome::Busy, _) => called.saturating_add(wait) > granted.from,
            _ => false,
        }
    }

    fn count(
        &self,
        list: &List,
        number: usize,
        still: &[usize],
        room: bool,
        court: &mut Court,
        figures: &mut Figures,
    ) {
        let lease = &self.case.leases[number];
        let workers = still.iter().map(|number| self.case.acquires[*number].worker).chain([lease.worker]);
        let matters = |worker: u32| self.case.around(worker).explained.meets(list.called, lease.from);
        let explained = workers.into_iter().any(matters);
        let judged = figures.judged(J4);
        *(if explained { &mut judged.waived } else { &mut judged.judged }) += 1;
        if room {
            return;
        }
        if explained {
            figures.waived += 1;
            return;
        }
        figures.fifo_inversions += 1;
        let seen = format!(
            "{} was let in before {} that stood ahead of it in the list of {}",
            self.case.brief(number),
            still.len(),
            self.case.at(list.called)
        );
        court.accuse_with(self.case, J4, seen, &[number], &still[..still.len().min(3)]);
    }
}
