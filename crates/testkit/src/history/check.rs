//! Judges a history: the invariants that it breaks, or what it shows.
//!
//! Everything is judged by what is certain. A holder believed from its answer until it last looked and was
//! told that it may; a lease lasts at least until the latest deadline its holder saw, or until its release was
//! called; a claim whose process was killed before the answer may have been granted at any time or never, and
//! accuses nobody.

use std::collections::HashMap;
use std::fmt;

use super::record::{Kind, Record, SESSION};

/// An invariant that was broken, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Its number in the design: `I1`, `I2`, …
    pub invariant: &'static str,
    /// What was seen.
    pub seen: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.seen)
    }
}

/// What a history without violations shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Leases that were granted.
    pub grants: usize,
    /// Of these, shared ones.
    pub shared: usize,
    /// Grants that followed one of another process.
    pub handovers: usize,
    /// Acquires that were told that somebody else holds the lock.
    pub busy: usize,
    /// Acquires that failed.
    pub failed: usize,
    /// Acquires whose process was killed before the answer.
    pub unknown: usize,
    /// Leases whose holder found them lost.
    pub lost: usize,
    /// Leases whose process was killed while it held them.
    pub abandoned: usize,
}

/// One lease, put together from its records.
#[derive(Debug, Clone)]
struct Lease {
    worker: u32,
    shared: bool,
    fence: u64,
    /// When its acquire was called, and when that returned.
    called: u64,
    from: u64,
    /// The last moment at which its holder certainly believed.
    believed: u64,
    /// The latest deadline it saw.
    deadline: u64,
    lost: Option<u64>,
    release_called: Option<u64>,
}

impl Lease {
    fn conflicts(&self, other: &Lease) -> bool {
        !(self.shared && other.shared)
    }

    /// The store cannot have given it to another before this.
    fn earliest_end(&self) -> u64 {
        match self.release_called {
            // Its process was killed, at some time after it last looked.
            None if self.deadline == SESSION => self.believed,
            called => called.unwrap_or(u64::MAX).min(self.deadline),
        }
    }
}

/// Judges the histories of all processes of a trial on one name, each in the order it was written.
///
/// # Errors
/// The invariants that are broken.
pub fn check(histories: &[Vec<Record>]) -> Result<Summary, Vec<Violation>> {
    let mut violations = Vec::new();
    let mut summary = Summary::default();
    let mut leases = Vec::new();
    let mut ids: HashMap<u64, u32> = HashMap::new();
    for history in histories {
        leases.extend(leases_of(history, &mut summary, &mut ids, &mut violations));
    }
    beliefs_do_not_meet(&mut leases, &mut violations);
    nothing_is_given_early(&mut leases, &mut violations);
    fences_rise(&leases, &mut violations);
    summary.grants = leases.len();
    summary.shared = leases.iter().filter(|lease| lease.shared).count();
    summary.lost = leases.iter().filter(|lease| lease.lost.is_some()).count();
    let abandoned = |lease: &&Lease| lease.lost.is_none() && lease.release_called.is_none();
    summary.abandoned = leases.iter().filter(abandoned).count();
    // In the order of fences since the last check.
    summary.handovers = leases.windows(2).filter(|pair| pair[0].worker != pair[1].worker).count();
    if violations.is_empty() { Ok(summary) } else { Err(violations) }
}

/// Puts the leases of one process together, and judges what only concerns one lease.
fn leases_of(
    history: &[Record],
    summary: &mut Summary,
    ids: &mut HashMap<u64, u32>,
    violations: &mut Vec<Violation>,
) -> Vec<Lease> {
    let mut accuse = |invariant, seen: String| violations.push(Violation { invariant, seen });
    let mut calls: HashMap<u64, u64> = HashMap::new();
    let mut leases: HashMap<u64, Lease> = HashMap::new();
    for record in history {
        let Record { kind, shared, worker, claim, at, lease: id, deadline, .. } = *record;
        match kind {
            Kind::AcquireCall => {
                calls.insert(claim, at);
                continue;
            }
            Kind::Granted => {
                let Some(called) = calls.remove(&claim) else {
                    accuse("history", format!("worker {worker} has a grant without a call"));
                    continue;
                };
                if let Some(other) = ids.insert(id, worker) {
                    accuse("I10", format!("workers {other} and {worker} were granted one lease id"));
                }
                let new = Lease {
                    worker,
                    shared,
                    fence: record.fence,
                    called,
                    from: at,
                    believed: at,
                    deadline,
                    lost: None,
                    release_called: None,
                };
                leases.insert(claim, new);
                continue;
            }
            Kind::Busy | Kind::Failed => {
                calls.remove(&claim);
                let count = if kind == Kind::Busy { &mut summary.busy } else { &mut summary.failed };
                *count += 1;
                continue;
            }
            _ => {}
        }
        let Some(lease) = leases.get_mut(&claim) else {
            accuse("history", format!("worker {worker} has {kind:?} without a grant"));
            continue;
        };
        let fence = lease.fence;
        match kind {
            Kind::Held => {
                if let Some(lost) = lease.lost {
                    accuse(
                        "I6",
                        format!("worker {worker} holds fence {fence} {} ns after it was lost", at - lost),
                    );
                }
                if deadline <= at {
                    accuse("J3", format!("worker {worker} relies on fence {fence} past its deadline"));
                }
                lease.believed = lease.believed.max(at);
                lease.deadline = lease.deadline.max(deadline);
            }
            Kind::LostByDeadline => {
                if at < lease.deadline {
                    let early = lease.deadline - at;
                    accuse(
                        "J3",
                        format!("worker {worker} gave up fence {fence} {early} ns before its deadline"),
                    );
                }
                lease.lost.get_or_insert(at);
            }
            Kind::LostByRefusal => {
                if at < lease.deadline {
                    accuse("I5", format!("somebody ended fence {fence} of worker {worker} before its time"));
                }
                lease.lost.get_or_insert(at);
            }
            Kind::ReleaseCall => {
                lease.release_called.get_or_insert(at);
            }
            Kind::ReleasedNothing if lease.lost.is_none() && at < lease.deadline => {
                accuse(
                    "I5",
                    format!("fence {fence} of worker {worker} was gone when it released it in time"),
                );
            }
            _ => {}
        }
    }
    summary.unknown += calls.len();
    leases.into_values().collect()
}

/// I1: two conflicting holders never both believe.
fn beliefs_do_not_meet(leases: &mut [Lease], violations: &mut Vec<Violation>) {
    leases.sort_unstable_by_key(|lease| lease.from);
    let mut open: Vec<&Lease> = Vec::new();
    for lease in leases.iter() {
        open.retain(|other| other.believed > lease.from);
        for other in open.iter().filter(|other| other.conflicts(lease)) {
            if lease.believed > lease.from {
                let (a, b) = (other, lease);
                let seen = format!(
                    "worker {} (fence {}) and worker {} (fence {}) believed at the same time for {} ns",
                    a.worker,
                    a.fence,
                    b.worker,
                    b.fence,
                    a.believed.min(b.believed) - b.from
                );
                violations.push(Violation { invariant: "I1", seen });
            }
        }
        open.push(lease);
    }
}

/// I2: no grant before the predecessor released or expired. Fences tell who came before whom.
fn nothing_is_given_early(leases: &mut [Lease], violations: &mut Vec<Violation>) {
    leases.sort_unstable_by_key(|lease| lease.fence);
    // The latest end so far, of all and of the exclusive ones.
    let (mut of_all, mut of_exclusive) = (0, 0);
    for lease in leases.iter() {
        let must_wait_for = if lease.shared { of_exclusive } else { of_all };
        if lease.from < must_wait_for {
            let early = must_wait_for - lease.from;
            let seen = format!("fence {} was granted {early} ns before one before it ended", lease.fence);
            violations.push(Violation { invariant: "I2", seen });
        }
        of_all = of_all.max(lease.earliest_end());
        if !lease.shared {
            of_exclusive = of_exclusive.max(lease.earliest_end());
        }
    }
}

/// I3: a grant that was called after another had returned has the higher fence.
fn fences_rise(leases: &[Lease], violations: &mut Vec<Violation>) {
    let mut by_return: Vec<&Lease> = leases.iter().collect();
    by_return.sort_unstable_by_key(|lease| lease.from);
    let mut by_call = by_return.clone();
    by_call.sort_unstable_by_key(|lease| lease.called);
    let mut returned = by_return.into_iter().peekable();
    let mut highest = None;
    for lease in by_call {
        while let Some(before) = returned.next_if(|before| before.from < lease.called) {
            highest = highest.max(Some(before.fence));
        }
        if let Some(before) = highest.filter(|before| *before >= lease.fence) {
            let seen = format!("fence {} was granted after fence {before}", lease.fence);
            violations.push(Violation { invariant: "I3", seen });
        }
    }
}

#[cfg(test)]
mod tests;
