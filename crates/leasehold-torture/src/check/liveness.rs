//! How soon a free lock is held again: by hand-over (J1), by takeover (J2, I8); and what is left at rest (J6, J7).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Invariant::{self, I8, I9, J1, J2, J6, J7};
use super::case::{Acquire, Case, Court, Lease, Lock, Outcome, SLACK};
use super::figures::{Figures, Times, share};
use super::overlap::Wanted;
use super::sweep::Meeting;
use crate::history::record::{Leftover, Mode};

/// A waiter gets a free lock within this time: at once by a push, and by looking if the push was lost.
pub(super) const BOUND: u64 = 1_000_000_000;

/// Where the store wakes waiters, half of the hand-overs take no longer than this, or than a few calls to a slow
/// store. The promise is that 99 of 100 do, which a busy machine cannot show; polling takes longer than this on any
/// machine.
const PUSHED: u64 = 50_000_000;
const PUSHED_CALLS: u64 = 6;
const ENOUGH: usize = 50;

/// Without wake-ups there are few hand-overs; this many are enough if half of them took several times as long.
const FEW: usize = 10;
const FAR: u64 = 2;

pub(super) fn judge(case: &Case<'_>, court: &mut Court, figures: &mut Figures) {
    let mut times = Times::default();
    for lock in &case.locks {
        Free::new(case, lock).judge(court, figures, &mut times);
        in_vain(case, lock, court, figures);
    }
    times.unexplained.sort_unstable();
    let half = share(&times.unexplained, 0.5);
    let pushed = PUSHED.max(PUSHED_CALLS * share(&case.calls, 0.5));
    let enough = if half > FAR * pushed { FEW } else { ENOUGH };
    if case.setting.promises.push && times.unexplained.len() >= enough && half > pushed {
        let seen = format!(
            "half of {} hand-overs took longer than {half} ns: nobody is woken",
            times.unexplained.len()
        );
        court.accuse(case, J1, seen, &[]);
    }
    times.into_figures(figures);
    for left in &case.left {
        let permits = case.locks[usize::from(left.name)].limit > 0;
        let (invariant, what) = match Leftover::ALL.get(left.value as usize) {
            Some(Leftover::Holder) if permits => (I9, "a permit"),
            Some(Leftover::Holder) => (J7, "a holder"),
            Some(Leftover::Waiter) => (J6, "a waiter"),
            _ => (J7, "something"),
        };
        figures.leftovers += 1;
        court.accuse(case, invariant, format!("{what} of lock {} is left at rest", left.name), &[]);
    }
}

/// Goes through the grants of a lock in order, and knows by when it was free for each.
struct Free<'a> {
    case: &'a Case<'a>,
    lock: &'a Lock,
    /// The longest possible hold among the earlier leases.
    possible: Longest,
    /// The longest probable hold among the earlier leases: the lock was handed over from that one.
    likely: Longest,
    /// A reader that died since the last writer, and the last moment at which any reader held the lock.
    dead_reader: Option<usize>,
    last_read: u64,
    /// When each acquire that was not granted was called, in order; and until when it or an earlier one can have
    /// blocked others.
    calls: Vec<u64>,
    in_the_way: Vec<u64>,
    /// Acquires that hold up the others: of processes that died meanwhile, whose places in the queue remain, and of
    /// several names, which are kept until the last of them is free.
    slow: Meeting,
    wanted: Wanted,
}

impl<'a> Free<'a> {
    fn new(case: &'a Case<'a>, lock: &'a Lock) -> Self {
        let nothing = |acquire: &&Acquire| acquire.multi || in_the_way(case, acquire);
        let acquires = lock.acquires.iter().map(|number| &case.acquires[*number]).filter(nothing);
        let (calls, ends): (Vec<u64>, Vec<u64>) =
            acquires.map(|acquire| (acquire.called, acquire.possible)).unzip();
        let acquires = lock.acquires.iter().map(|number| &case.acquires[*number]);
        let slow = acquires.filter(|acquire| {
            acquire.multi || acquire.outcome == Outcome::Unknown && acquire.lease.is_none()
        });
        let slow: Vec<_> = slow.map(|acquire| (acquire.called, acquire.possible)).collect();
        let longest = |longest: &mut u64, end: u64| {
            *longest = end.max(*longest);
            Some(*longest)
        };
        Free {
            case,
            lock,
            possible: Longest::by(|lease| lease.possible, Lease::keeps_out),
            likely: Longest::by(|lease| lease.likely, |lease| lease.likely.min(lease.shared_by)),
            dead_reader: None,
            last_read: 0,
            calls,
            in_the_way: ends.into_iter().scan(0, longest).collect(),
            slow: Meeting::new(&slow),
            wanted: Wanted::new(case, lock),
        }
    }

    fn judge(&mut self, court: &mut Court, figures: &mut Figures, times: &mut Times) {
        for number in &self.lock.leases {
            let lease = &self.case.leases[*number];
            self.measure(lease, self.likely.before(lease, self.lock), figures, times);
            self.bound(*number, self.possible.before(lease, self.lock), court, figures);
            self.enter(*number);
        }
    }

    fn enter(&mut self, number: usize) {
        let lease = &self.case.leases[number];
        self.possible.enter(number, self.case, self.lock);
        self.likely.enter(number, self.case, self.lock);
        match lease.mode {
            Mode::Exclusive => {
                (self.dead_reader, self.last_read) = (None, 0);
            }
            Mode::Shared => {
                if lease.gone.is_none() && lease.release_called.is_none() {
                    self.dead_reader = Some(number);
                } else {
                    self.last_read = self.last_read.max(lease.believed);
                }
            }
            Mode::Permit => {}
        }
    }

    fn measure(&self, lease: &Lease, before: Option<usize>, figures: &mut Figures, times: &mut Times) {
        let Some(before) = before.map(|before| &self.case.leases[before]) else { return };
        if lease.mode == Mode::Shared && before.shared_by < lease.from {
            // It was granted beside the other.
            return;
        }
        match before.release_called {
            Some(called) if !before.expired() => {
                figures.handovers += 1;
                figures.handovers_judged += u64::from(self.wanted.judged(before));
                if lease.wait > 0 && lease.called < called && lease.from > called {
                    times.handovers.push(lease.from - called);
                    let held_up = self.slow.count(called, lease.from) > 0;
                    if !held_up && !self.case.anybody.explained.meets(called, lease.from) {
                        times.unexplained.push(lease.from - called);
                    }
                }
            }
            _ if before.expired() && before.uncertain > before.deadline => {
                figures.takeovers += 1;
                let margin = lease.from.saturating_sub(before.deadline);
                figures.lost_margin = Some(figures.lost_margin.map_or(margin, |least| least.min(margin)));
                if lease.wait > 0 {
                    times.takeovers.push(lease.from.saturating_sub(before.deadline.max(lease.called)));
                }
            }
            _ => figures.takeovers += 1,
        }
    }

    fn bound(&self, number: usize, before: Option<usize>, court: &mut Court, figures: &mut Figures) {
        let lease = &self.case.leases[number];
        let held = before.map_or(0, |before| match (lease.mode, &self.case.leases[before]) {
            (Mode::Shared, before) => before.keeps_out(),
            (_, before) => before.possible,
        });
        let tried = self.calls.partition_point(|call| *call < lease.from);
        let tried = tried.checked_sub(1).map_or(0, |last| self.in_the_way[last]);
        let free = held.max(tried).max(lease.called);
        if lease.wait == 0 {
            return;
        }
        let late = lease.from > free.saturating_add(BOUND);
        // A hand-over in time counts as judged only if a late one would have been reported.
        let since = free.min(lease.from).max(lease.called);
        let explained = match late {
            true => self.case.explains(self.lock, free, lease.from),
            false => self.case.anybody.explained.meets(since, lease.from),
        };
        figures.weigh(J1, true, explained);
        let is_dead = |before: usize| self.case.leases[before].release_called.is_none();
        if tried > held || before.is_some_and(is_dead) {
            figures.weigh(J2, true, explained);
        }
        // Others relied on their leases when its time was over.
        let outlived = self.dead_reader.filter(|reader| {
            lease.mode == Mode::Exclusive && self.last_read > self.case.leases[*reader].deadline
        });
        if let Some(reader) = outlived {
            // If a ttl is shorter than the allowed delay, another client's renewals look the same.
            figures.weigh(I8, self.case.leases[reader].ttl > BOUND + SLACK, explained);
        }
        if !late {
            return;
        }
        if explained {
            figures.waived += 1;
            return;
        }
        let late = lease.from - free;
        let dead = |before: &usize| self.case.leases[*before].release_called.is_none();
        let (invariant, other): (Invariant, _) = match (outlived, before) {
            (Some(reader), _) => (I8, Some(reader)),
            (_, before) if tried > held || before.is_some_and(|before| dead(&before)) => (J2, before),
            (_, before) => (J1, before),
        };
        let what = match invariant {
            I8 => "after a dead reader's own ttl, which others prolonged",
            J2 => "after what the dead left had ended",
            _ => "after it was free",
        };
        let seen = format!("{} was granted {late} ns {what}", self.case.brief(number));
        let leases: Vec<usize> = other.into_iter().chain([number]).collect();
        court.accuse(self.case, invariant, seen, &leases);
    }
}

/// The longest holds: of all leases, of those that kept readers out, and of permits.
struct Longest {
    end: fn(&Lease) -> u64,
    /// The end of a lease that keeps readers out.
    exclusive_end: fn(&Lease) -> u64,
    all: Option<usize>,
    exclusive: Option<usize>,
    permits: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Longest {
    fn by(end: fn(&Lease) -> u64, exclusive_end: fn(&Lease) -> u64) -> Self {
        Longest { end, exclusive_end, all: None, exclusive: None, permits: BinaryHeap::new() }
    }

    /// The lease whose end it had to wait for.
    fn before(&self, lease: &Lease, lock: &Lock) -> Option<usize> {
        match lease.mode {
            Mode::Exclusive => self.all,
            Mode::Shared => self.exclusive,
            Mode::Permit if self.permits.len() < lock.limit as usize => None,
            Mode::Permit => self.permits.peek().map(|Reverse((_, lease))| *lease),
        }
    }

    fn enter(&mut self, number: usize, case: &Case<'_>, lock: &Lock) {
        let lease = &case.leases[number];
        let end = (self.end)(lease);
        let longer = |end: fn(&Lease) -> u64, other: Option<usize>| {
            other.is_none_or(|other| end(lease) >= end(&case.leases[other]))
        };
        if longer(self.end, self.all) {
            self.all = Some(number);
        }
        if lease.mode == Mode::Exclusive && longer(self.exclusive_end, self.exclusive) {
            self.exclusive = Some(number);
        }
        if lease.mode == Mode::Permit {
            self.permits.push(Reverse((end, number)));
            if self.permits.len() > lock.limit as usize {
                self.permits.pop();
            }
        }
    }
}

/// Nobody waits in vain for a free lock (J1).
fn in_vain(case: &Case<'_>, lock: &Lock, court: &mut Court, figures: &mut Figures) {
    let mut ways: Vec<(u64, u64, usize)> = Vec::new();
    ways.extend(
        lock.leases
            .iter()
            .map(|lease| (case.leases[*lease].called, case.leases[*lease].possible, usize::MAX)),
    );
    let acquires = lock.acquires.iter().filter(|number| in_the_way(case, &case.acquires[**number]));
    ways.extend(acquires.map(|number| {
        let acquire = &case.acquires[*number];
        (in_the_way_from(case, acquire), acquire.possible, *number)
    }));
    ways.sort_unstable();
    // For each prefix of the list, the two longest holds: one may be the waiter itself.
    let mut longest = vec![[(0, usize::MAX); 2]];
    for (_, end, who) in &ways {
        let [first, second] = longest[longest.len() - 1];
        longest.push(match (*end, *who) {
            new if new.0 > first.0 => [new, first],
            new if new.0 > second.0 => [first, new],
            _ => [first, second],
        });
    }
    for number in &lock.acquires {
        let Acquire { called, returned, wait, multi, outcome, worker, lease, .. } = case.acquires[*number];
        let hangs = outcome == Outcome::Unknown && returned == u64::MAX;
        let until = if hangs { case.setting.span.1 } else { returned };
        if wait == 0
            || multi
            || lease.is_some()
            || !(hangs || matches!(outcome, Outcome::Busy | Outcome::Dropped))
        {
            continue;
        }
        // Until its end; and until some time before it, when other waiters that timed out were not yet about to give
        // up.
        let in_vain = [until, until.saturating_sub(SLACK)].into_iter().find_map(|until| {
            let [first, second] = longest[ways.partition_point(|(from, ..)| *from < until)];
            let free = called.max(if first.1 == *number { second.0 } else { first.0 });
            (until > free.saturating_add(BOUND)).then_some((free, until))
        });
        let Some((free, until)) = in_vain else { continue };
        let explained = case.explains(lock, free, until);
        figures.weigh(J1, true, explained);
        if explained {
            figures.waived += 1;
            continue;
        }
        let seen = format!("worker {worker} waited in vain for a lock that was free for {} ns", until - free);
        court.accuse_with(case, J1, seen, &[], &[*number]);
    }
}

/// Whether an acquire that was not granted can have held the lock, or waited for it.
pub(super) fn in_the_way(case: &Case<'_>, acquire: &Acquire) -> bool {
    acquire.lease.is_none() && (acquire.outcome != Outcome::Busy || acquire.wait > 0 || case.quorum())
}

/// From when on an acquire that was not granted can have held the lock. One that waited undisturbed can have held it
/// only in its last moments: otherwise waiters that timed out would excuse each other.
pub(super) fn in_the_way_from(case: &Case<'_>, acquire: &Acquire) -> u64 {
    let Acquire { worker, called, returned, wait, multi, outcome, .. } = *acquire;
    let waited = wait > 0 && !multi && matches!(outcome, Outcome::Busy | Outcome::Dropped) && !case.quorum();
    if waited && !case.around(worker).disturbed.meets(called, returned) {
        called.max(returned.saturating_sub(SLACK))
    } else {
        called
    }
}
