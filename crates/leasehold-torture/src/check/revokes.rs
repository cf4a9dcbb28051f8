//! The revokes of one lock: which leases each may have ended, which it certainly refuses, and which it must have found
//! (I14).

use std::collections::HashMap;

use super::Invariant::I14;
use super::case::{Case, Court, Lease, Lock};
use super::windows::Windows;

/// A revoke: its caller and time, until when it can have taken effect, whether it was answered, whether it is
/// immediate (frees the lock at once), the only fence it is meant for, and how many leases it found, if known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Revoke {
    pub(super) worker: u32,
    pub(super) called: u64,
    pub(super) until: u64,
    pub(super) answered: bool,
    pub(super) now: bool,
    pub(super) only: Option<u64>,
    pub(super) met: Option<u64>,
}

impl Revoke {
    fn means(&self, fence: u64) -> bool {
        self.only.is_none_or(|only| only == fence)
    }
}

/// Some revokes, in the order of their calls.
#[derive(Debug, Default)]
struct Series {
    all: Vec<Revoke>,
    /// The longest time that one of them took.
    longest: u64,
}

impl Series {
    fn new(mut all: Vec<Revoke>) -> Self {
        all.sort_by_key(|revoke| revoke.called);
        let longest = all.iter().map(|revoke| revoke.until.saturating_sub(revoke.called)).max();
        Series { longest: longest.unwrap_or(0), all }
    }

    /// Those that overlap a span.
    fn meeting(&self, from: u64, to: u64) -> impl Iterator<Item = &Revoke> {
        let first = self.all.partition_point(|revoke| revoke.called.saturating_add(self.longest) < from);
        let called = self.all[first..].iter().take_while(move |revoke| revoke.called <= to);
        called.filter(move |revoke| revoke.until >= from)
    }
}

/// All revokes of a lock.
#[derive(Debug, Default)]
pub(super) struct Revokes {
    /// Revokes of all leases. In a quorum all revokes: its readers may get another fence than they were granted with.
    every: Series,
    /// Revokes of one lease, by fence.
    only: HashMap<u64, Series>,
    /// Events outside the store's promises that may also end leases.
    unpromised: Windows,
}

impl Revokes {
    pub(super) fn new(all: Vec<Revoke>, unpromised: Windows, quorum: bool) -> Self {
        let (every, some): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|revoke| quorum || revoke.only.is_none());
        let mut only: HashMap<u64, Vec<Revoke>> = HashMap::new();
        for revoke in some {
            only.entry(revoke.only.unwrap_or(0)).or_default().push(revoke);
        }
        let only = only.into_iter().map(|(fence, all)| (fence, Series::new(all))).collect();
        Revokes { every: Series::new(every), only, unpromised }
    }

    /// Whether any of them may have taken effect in a span.
    pub(super) fn meet(&self, from: u64, to: u64) -> bool {
        let series = std::iter::once(&self.every).chain(self.only.values());
        series.into_iter().any(|series| series.meeting(from, to).next().is_some())
    }

    /// Revokes that may be meant for a lease.
    fn of(&self, lease: &Lease) -> impl Iterator<Item = &Series> {
        [Some(&self.every), self.only.get(&lease.fence)].into_iter().flatten()
    }

    /// Revokes that may have hit a lease in a span of its life.
    fn meeting(&self, lease: &Lease, from: u64, to: u64) -> impl Iterator<Item = &Revoke> {
        self.of(lease).flat_map(move |series| series.meeting(from, to))
    }

    /// From when on something may have ended a lease against its holder's will: an immediate revoke, or an event
    /// outside the store's promises.
    pub(super) fn ended(&self, lease: &Lease) -> Option<u64> {
        let first = |series: &Series| {
            series.meeting(lease.called, u64::MAX).find(|revoke| revoke.now).map(|revoke| revoke.called)
        };
        let unpromised = self.unpromised.from(lease.called).map(|(begin, _)| begin);
        self.of(lease).filter_map(first).chain(unpromised).min()
    }

    /// Whether a revoke may have hit the lease by this moment.
    pub(super) fn revoked(&self, lease: &Lease, by: u64) -> bool {
        self.meeting(lease, lease.called, by).next().is_some()
    }

    /// When the first suitable revoke had returned: one for this lease, called after its grant and, with `at_once`, one
    /// that frees the name at once.
    fn returned(&self, lease: &Lease, at_once: bool) -> Option<u64> {
        let mut soonest: Option<u64> = None;
        for Series { all, .. } in self.of(lease) {
            for revoke in &all[all.partition_point(|revoke| revoke.called <= lease.from)..] {
                // A later call can have returned sooner, but not before it was made.
                if soonest.is_some_and(|soonest| soonest <= revoke.called) {
                    break;
                }
                if revoke.answered && revoke.means(lease.fence) && (revoke.now || !at_once) {
                    soonest = Some(soonest.map_or(revoke.until, |soonest| soonest.min(revoke.until)));
                }
            }
        }
        soonest
    }

    /// From when on the store certainly refuses to renew a lease.
    pub(super) fn refusing(&self, lease: &Lease) -> Option<u64> {
        self.returned(lease, false)
    }

    /// From when on a lease is certainly gone, because of an immediate revoke.
    pub(super) fn cleared(&self, lease: &Lease) -> Option<u64> {
        self.returned(lease, true)
    }
}

/// A revoke that found no lease was made while no lease it was meant for was held.
pub(super) fn judge(case: &Case<'_>, lock: &Lock, revokes: &Revokes, court: &mut Court) {
    if case.quorum() {
        return;
    }
    let mut by_from = lock.leases.clone();
    by_from.sort_by_key(|number| case.leases[*number].from);
    let all = std::iter::once(&revokes.every).chain(revokes.only.values());
    let in_vain = |revoke: &&Revoke| revoke.met == Some(0) && revoke.answered;
    let mut in_vain: Vec<_> = all.flat_map(|series| &series.all).filter(in_vain).collect();
    in_vain.sort_by_key(|revoke| revoke.called);
    for revoke in in_vain {
        let before = by_from.partition_point(|number| case.leases[*number].from < revoke.called);
        // Much earlier leases have ended.
        let held = by_from[..before].iter().rev().take(100).find(|number| {
            let lease = &case.leases[**number];
            let lasts = lease.release_called.unwrap_or(u64::MAX).min(lease.deadline);
            let lost = lease.lost.map_or(u64::MAX, |(at, _)| at);
            let gone = lease.gone.unwrap_or(u64::MAX);
            let others = revokes.meeting(lease, lease.called, revoke.until);
            revoke.means(lease.fence)
                && lasts.min(lost).min(gone).min(lease.kept) > revoke.until
                && revokes.unpromised.from(lease.called).is_none_or(|(begin, _)| begin > revoke.until)
                && others.filter(|other| other.now).all(|other| other.called == revoke.called)
        });
        if let Some(number) = held {
            let seen = format!(
                "a revoke by worker {} at {} met nobody, while there was {}",
                revoke.worker,
                case.at(revoke.called),
                case.brief(*number)
            );
            court.accuse(case, I14, seen, &[*number]);
        }
    }
}
