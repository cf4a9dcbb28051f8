//! What the protected resource accepted and rejected (I4), and what would have been corrupted without fences.

use std::collections::HashMap;

use super::Invariant::I4;
use super::case::{Case, Court};
use super::figures::Figures;
use crate::history::record::{Fault, Kind, Mode, Record};

/// In the resource's records, in `fault`: the write was accepted.
const TAKEN: Fault = Fault::Kill;

pub(super) fn judge(case: &Case<'_>, court: &mut Court, figures: &mut Figures) {
    let mut highest: HashMap<u16, u64> = HashMap::new();
    // When the resource accepted, or rejected, a write with this fence of this lock.
    let mut came: HashMap<(u16, u64, bool), Vec<u64>> = HashMap::new();
    let mut inside: HashMap<u16, Occupants> = HashMap::new();
    for record in &case.resource {
        let Record { kind, name, fence, at, value, .. } = *record;
        if kind == Kind::UnfencedWrite {
            let limit = case.locks[usize::from(name)].limit;
            figures.unfenced_overlaps += u64::from(inside.entry(name).or_default().turn(record, limit));
            continue;
        }
        let taken = record.fault == TAKEN;
        figures.weigh(I4, true, false);
        came.entry((name, fence, taken)).or_default().push(at);
        let mark = highest.entry(name).or_default();
        if taken && fence < value.max(*mark) {
            let leases = who(case, name, &[value.max(*mark), fence]);
            let seen =
                format!("the resource took a write with fence {fence} after one with {}", value.max(*mark));
            court.accuse(case, I4, seen, &leases);
        }
        if taken && record.mode == Mode::Exclusive {
            *mark = fence.max(*mark);
        }
        figures.fenced_saves += u64::from(!taken);
    }
    if !came.is_empty() {
        answers(case, court, &mut came);
    }
}

/// Checks that the resource did what it answered to the holders.
fn answers(case: &Case<'_>, court: &mut Court, came: &mut HashMap<(u16, u64, bool), Vec<u64>>) {
    came.values_mut().for_each(|times| times.sort_unstable());
    for (place, lease) in case.leases.iter().enumerate() {
        let mut called: HashMap<u64, &Record> = HashMap::new();
        for op in &lease.ops {
            let record = &case.records[*op as usize];
            let taken = match record.kind {
                Kind::WriteCall => {
                    called.insert(record.value, record);
                    continue;
                }
                Kind::WriteTaken => true,
                Kind::WriteRejected => false,
                _ => continue,
            };
            let Some(call) = called.get(&record.value) else {
                let seen = format!("{} has {:?} without a call", case.brief(place), record.kind);
                court.contradiction(seen);
                continue;
            };
            let fence = if call.fence == 0 { lease.fence } else { call.fence };
            let times = came.get(&(lease.name, fence, taken)).map_or(&[][..], Vec::as_slice);
            let between =
                times.get(times.partition_point(|at| *at < call.at)).is_some_and(|at| *at <= record.at);
            if !between {
                let seen = format!(
                    "{} has {:?}, of which the resource knows nothing",
                    case.brief(place),
                    record.kind
                );
                court.accuse(case, I4, seen, &[place]);
            }
        }
    }
}

/// The leases with these fences.
fn who(case: &Case<'_>, name: u16, fences: &[u64]) -> Vec<usize> {
    if !case.fenced() {
        return Vec::new();
    }
    // They are sorted by fence.
    let leases = &case.locks[usize::from(name)].leases;
    let with = |fence: &u64| {
        let place = leases.partition_point(|lease| case.leases[*lease].fence < *fence);
        leases.get(place).copied().filter(|lease| case.leases[*lease].fence == *fence)
    };
    fences.iter().filter_map(with).collect()
}

/// Counts the holders that use the unfenced table at one moment.
#[derive(Default)]
struct Occupants {
    all: u32,
    exclusive: u32,
}

impl Occupants {
    /// Enters or leaves. Returns whether it entered while another was inside.
    fn turn(&mut self, record: &Record, limit: u32) -> bool {
        let exclusive = record.mode == Mode::Exclusive;
        if record.value != 1 {
            self.all = self.all.saturating_sub(1);
            self.exclusive = self.exclusive.saturating_sub(u32::from(exclusive));
            return false;
        }
        let overlap = match record.mode {
            Mode::Exclusive => self.all > 0,
            Mode::Shared => self.exclusive > 0,
            Mode::Permit => self.all >= limit,
        };
        self.all += 1;
        self.exclusive += u32::from(exclusive);
        overlap
    }
}
