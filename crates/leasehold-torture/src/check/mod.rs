//! Judges a run: which invariants its histories break, and which figures they show.
//!
//! Only what is certain counts. A holder relied on its lease from its answer until it last looked and found it valid.
//! A lease lasts in the store at least until the latest deadline its holder saw, or until its release was called. A
//! call without an answer may have taken effect at any later time or never: an unknown acquire accuses nobody and
//! excuses others, an unknown renewal only lengthens, an unknown release only shortens. Two equal moments have no
//! order.
//!
//! Safety is never waived, but it covers only what a store promises: a hold is uncertain from the moment at which
//! something may have ended it that the promises exclude. Such events are a restart of a store without durability, a
//! fail-over that may lose the latest answers, a step of a clock that the store relies on, and a revoke. Time bounds
//! are waived, and counted, where a stall of the machine or a fault explains the delay.
//!
//! `docs/torture-checks.md` has a row for each check: what it says and what it cannot see.

use std::fmt;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::history::record::{self, Record};
use crate::history::setting::Setting;

mod busy;
mod case;
mod failover;
mod fence;
mod figures;
mod gather;
mod kept;
mod lease;
mod liveness;
mod matter;
mod multi;
mod order;
mod overlap;
mod possible;
mod queue;
mod resource;
mod revokes;
mod sweep;
mod windows;

pub use failover::WORKS_WITHIN;
pub use figures::{Figures, Judged, Percentiles};

/// The judgement on the histories of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The violations. Only the first few of each invariant list all operations.
    pub violations: Vec<Violation>,
    /// What was seen.
    pub figures: Figures,
}

/// An invariant that was broken, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The broken invariant.
    pub invariant: Invariant,
    /// A sentence, then the leases concerned and all their operations.
    pub seen: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.seen)
    }
}

/// The invariants. Numbers are those of the design.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Invariant {
    /// Two conflicting holders never both rely on their leases.
    I1,
    /// No grant before the predecessor released or expired.
    I2,
    /// Fences strictly increase in real-time order.
    I3,
    /// A fenced resource accepts no stale write.
    I4,
    /// A release takes effect once, and only on its own lease.
    I5,
    /// No resurrection; lost is final.
    I6,
    /// The local deadline moves only when a renewal is confirmed.
    I7,
    /// Every reader has its own ttl.
    I8,
    /// Permits never exceed their limit, and all are free at rest.
    I9,
    /// Same lease id, same grant.
    I10,
    /// Kinds of locks never mix on one name.
    I11,
    /// What was answered survives the end of the store.
    I12,
    /// A broken store is never reported as contention.
    I13,
    /// A revoke takes effect, on the leases it is meant for.
    I14,
    /// Several names are held together or not at all.
    I15,
    /// Hand-overs are quick.
    J1,
    /// The lock of a dead holder is taken over soon.
    J2,
    /// Lost comes before the deadline, and there are no false alarms.
    J3,
    /// First come, first served, where that is promised.
    J4,
    /// Nobody starves.
    J5,
    /// Cancel leaves nothing.
    J6,
    /// At rest nothing is left.
    J7,
    /// Cost per hand-over does not grow with the number of waiters. Histories cannot show this.
    J8,
    /// After a fail-over every name works again soon, for every client.
    J9,
    /// A guard is kept while nothing prevents its renewals.
    J10,
    /// A history contradicts itself: its writer is broken, and nothing can be said about the store.
    History,
}

impl Invariant {
    /// The invariants that histories can show to be broken; for each it is counted how much there was to judge.
    pub const JUDGED: [Invariant; 22] = {
        use Invariant::*;
        [I1, I2, I3, I4, I5, I6, I7, I8, I9, I10, I11, I12, I13, I14, I15, J1, J2, J3, J4, J5, J6, J7]
    };
}

/// Judges the run whose setting and histories are in a directory.
///
/// # Errors
/// Those of the system; `InvalidData` for contents that no run can have written.
pub fn check(directory: &Path) -> io::Result<Verdict> {
    let setting = Setting::read(directory)?;
    let mut paths: Vec<_> = std::fs::read_dir(directory)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    paths.sort();
    let is_history = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("worker-") || name == "resource" || name == "supervisor"
    };
    let histories: Vec<Vec<Record>> = paths
        .iter()
        .filter(|path| is_history(path))
        .map(|path| record::read(path))
        .collect::<io::Result<_>>()?;
    Ok(judge(&setting, &histories))
}

/// Judges histories, one for each process including the supervisor and the resource, each in the order it was written.
pub fn judge(setting: &Setting, histories: &[Vec<Record>]) -> Verdict {
    let (case, mut court) = gather::gather(setting, histories);
    let mut figures = Figures::default();
    lease::judge(&case, &mut court, &mut figures);
    for (place, lock) in case.locks.iter().enumerate() {
        revokes::judge(&case, lock, &case.revokes[place], &mut court);
        queue::judge(&case, lock, &case.lists[place], &mut court, &mut figures);
        overlap::judge(&case, lock, &mut court, &mut figures);
        fence::judge(&case, lock, &mut court, &mut figures);
        busy::judge(&case, lock, &mut court, &mut figures);
        order::judge(&case, lock, &mut court, &mut figures);
    }
    overlap::mixed(&case, &mut court);
    liveness::judge(&case, &mut court, &mut figures);
    multi::judge(&case, &mut court, &mut figures);
    failover::judge(&case, &mut court, &mut figures);
    kept::judge(&case, &mut court, &mut figures);
    resource::judge(&case, &mut court, &mut figures);
    figures::count(&case, &mut figures);
    Verdict { violations: court.violations, figures }
}

#[cfg(test)]
mod tests;
