//! Everything known about a run, put together, and the list of violations.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::matter::Reach;
use super::queue::List;
use super::revokes::Revokes;
use super::windows::Windows;
use super::{Invariant, Violation};
use crate::history::record::{Face, Fault, Kind, Loss, Mode, Record, SESSION};
use crate::history::setting::Setting;

/// How long after it was sent a request can arrive while nothing is disturbed. Far more than it takes: a slower
/// machine has stalled, and the stall monitor says so.
pub(super) const SLACK: u64 = 1_000_000_000;

/// How many violations of each invariant list all operations: a store that breaks one breaks it often.
const TOLD: usize = 20;

/// How an acquire ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Granted,
    Busy,
    Failed,
    Dropped,
    /// Several names were wanted, and one of them was missing.
    Missing,
    /// Its process ended before the answer.
    Unknown,
}

/// One call to acquire.
#[derive(Debug, Clone)]
pub(super) struct Acquire {
    pub(super) name: u16,
    pub(super) mode: Mode,
    pub(super) worker: u32,
    pub(super) called: u64,
    /// 0 for a try.
    pub(super) wait: u64,
    /// One of several names that one call takes: from its call on it may hold this one while it waits for the others,
    /// give it back and take it anew.
    pub(super) multi: bool,
    /// 0 if it is not known.
    pub(super) ttl: u64,
    pub(super) outcome: Outcome,
    /// When it returned, or else the last moment its process can have been alive.
    pub(super) returned: u64,
    pub(super) lease: Option<usize>,
    /// When its client was closed: by then its give-backs had been sent.
    pub(super) closed: Option<u64>,
    /// Its first record.
    pub(super) op: u32,
    /// Until when it can have held the lock or a place in its queue.
    pub(super) possible: u64,
}

/// One lease, put together from its records.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) name: u16,
    pub(super) mode: Mode,
    pub(super) worker: u32,
    pub(super) fence: u64,
    /// All its records, in time order.
    pub(super) ops: Vec<u32>,
    /// When it was first called for, how long that call might wait, and when it returned.
    pub(super) called: u64,
    pub(super) wait: u64,
    pub(super) from: u64,
    /// The longest ttl requested for it; 0 if not known.
    pub(super) ttl: u64,
    /// Whether its holder ever relied on it, and the last moment at which it certainly did.
    pub(super) believes: bool,
    pub(super) believed: u64,
    /// The latest deadline its holder saw.
    pub(super) deadline: u64,
    /// When it became shared, if it was exclusive first.
    pub(super) downgraded: Option<u64>,
    /// From this moment on it certainly kept no reader out: the store had confirmed that it is shared.
    pub(super) shared_by: u64,
    /// The ttl of renewals since the store shortened the lease.
    pub(super) shortened: Option<u64>,
    /// When its client was closed: by then its give-backs had been sent.
    pub(super) closed: Option<u64>,
    pub(super) release_called: Option<u64>,
    /// When the store had said that it is gone, released or not.
    pub(super) gone: Option<u64>,
    pub(super) lost: Option<(u64, Loss)>,
    /// It was refused because of a revoke: unless that revoke freed the lock at once, it lasts until its time is over.
    pub(super) revoked: bool,
    /// From this moment on a fail-over may have lost it, or an old primary may know nothing of it.
    pub(super) kept: u64,
    /// From this moment on something that no promise covers may have ended it.
    pub(super) uncertain: u64,
    /// Until when it can have held the lock.
    pub(super) possible: u64,
    /// When it probably ended: by its release, because its time was over, or because its process died.
    pub(super) likely: u64,
}

impl Lease {
    /// The store cannot have granted the lock to another client before this.
    pub(super) fn end(&self) -> u64 {
        let end = match (self.release_called, self.lost) {
            // It was ended before its time, which is reported as a separate violation.
            (_, Some((at, Loss::Refused))) if at < self.deadline && !self.revoked => self.believed,
            // Its process was killed at some time after it last looked.
            (None, _) if self.deadline == SESSION => self.believed,
            (called, _) => called.unwrap_or(u64::MAX).min(self.deadline),
        };
        end.min(self.uncertain)
    }

    /// When it stopped being exclusive, if that was before its end.
    pub(super) fn exclusive_end(&self) -> u64 {
        match self.mode {
            Mode::Exclusive => self.downgraded.unwrap_or(u64::MAX).min(self.end()),
            _ => 0,
        }
    }

    /// Until when it can have kept readers out.
    pub(super) fn keeps_out(&self) -> u64 {
        self.possible.min(self.shared_by)
    }

    /// Whether it ended because its time was over.
    pub(super) fn expired(&self) -> bool {
        self.deadline != SESSION
            && self.release_called.is_none_or(|called| called >= self.deadline)
            && !matches!(self.lost, Some((_, Loss::Refused)))
    }
}

/// One lock: its leases in the order of their grants, its acquires in the order of their calls.
#[derive(Debug, Default)]
pub(super) struct Lock {
    pub(super) limit: u32,
    pub(super) leases: Vec<usize>,
    pub(super) acquires: Vec<usize>,
}

/// The disturbances of a worker: a fault counts for the workers that it can hit.
#[derive(Debug, Default)]
pub(super) struct Around {
    /// What delays requests: faults of the network, the store and its machine, pauses, stalls. Spans less than a
    /// second apart are merged.
    pub(super) disturbed: Windows,
    /// The same spans one by one, each with some time after it: they explain a long delay.
    pub(super) explained: Windows,
    /// The same spans one by one.
    pub(super) struck: Windows,
    /// The process itself was stopped.
    pub(super) still: Windows,
    /// Its sessions may have ended without their holders' knowledge.
    pub(super) unnoticed: Windows,
}

/// A run.
#[derive(Debug)]
pub(super) struct Case<'a> {
    pub(super) setting: &'a Setting,
    /// The workers' records, by process and claim.
    pub(super) records: Vec<Record>,
    pub(super) leases: Vec<Lease>,
    pub(super) acquires: Vec<Acquire>,
    pub(super) locks: Vec<Lock>,
    /// The disturbances of each worker.
    pub(super) around: HashMap<u32, Around>,
    /// The disturbances of any worker.
    pub(super) anybody: Around,
    /// Each fault: its kind, whom it hits, from when and until when.
    pub(super) faults: Vec<(Fault, Reach, u64, u64)>,
    /// When the store was killed and restarted.
    pub(super) restarts: Windows,
    /// When the store did not run.
    pub(super) paused: Windows,
    /// What a fail-over may have lost, by name: everything answered in these spans, as far as the store may lose it.
    pub(super) lost: Vec<Windows>,
    /// When two primaries answered for a name.
    pub(super) two_primaries: Vec<Windows>,
    /// The revokes, by name.
    pub(super) revokes: Vec<Revokes>,
    /// The lists of waiters that holders have seen, by name.
    pub(super) lists: Vec<Vec<List>>,
    /// What the resource recorded, in its order.
    pub(super) resource: Vec<Record>,
    /// What was left in the store.
    pub(super) left: Vec<Record>,
    pub(super) stalls: u64,
    /// How long single calls took while nothing was disturbed, sorted: the speed of the machine and its store.
    pub(super) calls: Vec<u64>,
    /// The slower ones of them: when each was made, and when it returned.
    pub(super) slow: Vec<(u64, u64)>,
    /// The last moment of any record.
    pub(super) last: u64,
}

impl Case<'_> {
    /// The disturbances of a worker.
    pub(super) fn around(&self, worker: u32) -> &Around {
        self.around.get(&worker).unwrap_or(&self.anybody)
    }

    /// By when everything that a worker sent before a moment has arrived, and whether nothing was disturbed.
    pub(super) fn settled(&self, worker: u32, moment: u64) -> (u64, bool) {
        let by = moment.saturating_add(SLACK);
        match self.around(worker).disturbed.meeting(moment, by) {
            None => (by, true),
            Some((_, end)) => (end.saturating_add(SLACK), false),
        }
    }

    /// The longest of the single calls in progress during a span; 0 if none was slow.
    pub(super) fn slowest(&self, from: u64, to: u64) -> u64 {
        let meanwhile = self.slow.iter().filter(|(called, returned)| *called <= to && *returned >= from);
        meanwhile.map(|(called, returned)| returned - called).max().unwrap_or(0)
    }

    /// Whether a disturbance explains that a lock was delayed: one of a client that held or wanted it meanwhile.
    pub(super) fn explains(&self, lock: &Lock, from: u64, to: u64) -> bool {
        let matters = |worker: u32| self.around(worker).explained.meets(from, to);
        let held = lock.leases.iter().map(|lease| &self.leases[*lease]);
        let wanted = lock.acquires.iter().map(|acquire| &self.acquires[*acquire]);
        self.anybody.explained.meets(from, to)
            && (held
                .into_iter()
                .any(|lease| lease.called <= to && lease.possible >= from && matters(lease.worker))
                || wanted.into_iter().any(|acquire| {
                    acquire.called <= to && acquire.possible >= from && matters(acquire.worker)
                }))
    }

    /// The revokes of a lease's lock.
    pub(super) fn revokes(&self, lease: &Lease) -> &Revokes {
        &self.revokes[usize::from(lease.name)]
    }

    /// Whether the fences of its grants are meaningful.
    pub(super) fn fenced(&self) -> bool {
        self.setting.promises.fenced
    }

    /// Whether it is a quorum, whose grants and refusals are not made in one place.
    pub(super) fn quorum(&self) -> bool {
        self.setting.store.starts_with("quorum")
    }

    /// Whether the party that answers an attempt may start counting later than at its call.
    pub(super) fn asks_later(&self) -> bool {
        let store = self.setting.store.as_str();
        // A blocked log keeps a grant from its caller, and it is renewed meanwhile.
        let held_up = self.setting.profile == "logs";
        held_up || self.quorum() || matches!(store, "http" | "memory") || store.contains("server")
    }

    /// Whether several servers answer independently: one that is stopped does not block the others.
    pub(super) fn several_answer(&self) -> bool {
        self.quorum() || self.setting.store.ends_with("/two-servers")
    }

    /// A moment as people read it.
    pub(super) fn at(&self, moment: u64) -> String {
        match moment {
            SESSION => "the end of the session".into(),
            _ => format!("{:+.6} ms", (moment as f64 - self.setting.span.0 as f64) / 1e6),
        }
    }

    /// A short description of a lease.
    pub(super) fn brief(&self, lease: usize) -> String {
        let Lease { worker, fence, mode, name, .. } = &self.leases[lease];
        let lock = &self.setting.names[usize::from(*name)].name;
        format!("worker {worker}'s {mode:?} lease on {lock:?} with fence {fence}")
    }

    /// All operations of some leases, in time order; consecutive looks are merged into one line.
    fn tell(&self, leases: &[usize], acquires: &[usize]) -> String {
        let mut letters = HashMap::new();
        let mut ops: Vec<(u64, u32)> = Vec::new();
        for lease in leases {
            for op in &self.leases[*lease].ops {
                letters.insert(*op, letters_of(leases, *lease));
                ops.push((self.records[*op as usize].at, *op));
            }
        }
        for acquire in acquires {
            let op = self.acquires[*acquire].op;
            let Record { worker, claim, .. } = self.records[op as usize];
            let same = |record: &&Record| (record.worker, record.claim) == (worker, claim);
            let count = self.records[op as usize..].iter().take_while(same).count() as u32;
            ops.extend((op..op + count).map(|op| (self.records[op as usize].at, op)));
        }
        ops.sort_unstable();
        ops.dedup();
        let record = |place: usize| ops.get(place).map(|(_, op)| &self.records[*op as usize]);
        let mut told = String::new();
        let mut skipped = 0;
        for (place, (at, op)) in ops.iter().enumerate() {
            let Some(this) = record(place) else { continue };
            let look = |other: Option<&Record>| {
                other.is_some_and(|other| {
                    (other.kind, other.worker, other.claim) == (Kind::Held, this.worker, this.claim)
                })
            };
            if look(Some(this)) && look(record(place.wrapping_sub(1))) && look(record(place + 1)) {
                skipped += 1;
                continue;
            }
            let who = letters.get(op).copied().unwrap_or(' ');
            let Record { worker, task, claim, kind, mode, fence, deadline, value, .. } = *this;
            let _ = write!(
                told,
                "\n  {:>16}  {who}  worker {worker}.{task} claim {claim}  {kind:?}",
                self.at(*at)
            );
            if skipped > 0 {
                let _ = write!(told, " (after {} looks like it)", std::mem::take(&mut skipped));
            }
            let _ = match kind {
                Kind::AcquireCall if value == 0 => write!(told, " {mode:?}, a try"),
                Kind::AcquireCall if value == u64::MAX => write!(told, " {mode:?}"),
                Kind::AcquireCall => write!(told, " {mode:?}, waits {:.3} ms", value as f64 / 1e6),
                Kind::Lost => write!(told, " {:?}", Loss::ALL.get(value as usize)),
                Kind::RenewCall | Kind::ShortenCall | Kind::AdoptCall => {
                    write!(told, " for {:.3} ms", value as f64 / 1e6)
                }
                Kind::ReleaseCall if value == 1 => write!(told, " by drop"),
                _ => Ok(()),
            };
            if kind == Kind::AcquireCall {
                if let Some(face) = Face::ALL.get(fence as usize).filter(|face| **face != Face::Usual) {
                    let _ = write!(told, ", by {face:?}");
                }
            } else if fence > 0 {
                let _ = write!(told, ", fence {fence}");
            }
            if deadline > 0 && kind != Kind::AcquireCall {
                let _ = write!(told, ", until {}", self.at(deadline));
            }
        }
        told
    }
}

/// `A` for the first of them, `B` for the second.
fn letters_of(leases: &[usize], lease: usize) -> char {
    let place = leases.iter().position(|other| *other == lease).unwrap_or(0);
    char::from(b'A' + (place % 26) as u8)
}

/// Collects the violations.
#[derive(Debug, Default)]
pub(super) struct Court {
    pub(super) violations: Vec<Violation>,
    told: HashMap<Invariant, usize>,
}

impl Court {
    pub(super) fn accuse(&mut self, case: &Case<'_>, invariant: Invariant, seen: String, leases: &[usize]) {
        self.accuse_with(case, invariant, seen, leases, &[]);
    }

    /// Reports a violation, also about acquires that were not granted.
    pub(super) fn accuse_with(
        &mut self,
        case: &Case<'_>,
        invariant: Invariant,
        mut seen: String,
        leases: &[usize],
        acquires: &[usize],
    ) {
        let told = self.told.entry(invariant).or_default();
        *told += 1;
        if *told <= TOLD {
            seen += &case.tell(leases, acquires);
        }
        self.violations.push(Violation { invariant, seen });
    }

    /// A history contradicts itself.
    pub(super) fn contradiction(&mut self, seen: String) {
        self.violations.push(Violation { invariant: Invariant::History, seen });
    }
}
