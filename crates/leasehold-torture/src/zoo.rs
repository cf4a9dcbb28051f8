//! The bug zoo: which planted defect each check must see.
//!
//! A check that sees nothing is worth nothing. Each defect is planted alone. Then seeds are simulated, or a real store
//! is tortured if the defect is in the store, until the check named beside the defect sees it. Other checks may see it
//! too, but do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::bugs::{Bug, plant};
use parking_lot::Mutex;

use crate::check::Invariant;
use crate::sim;

#[cfg(feature = "run")]
pub mod leaks;
#[cfg(feature = "run")]
pub mod live;

/// A defect and the check that must see it.
#[derive(Debug, Clone, Copy)]
pub struct Exhibit {
    /// The planted defect.
    pub bug: Bug,
    /// The invariant that must be found broken.
    pub caught_by: Invariant,
    /// Whether clients of the lock server must show it.
    pub through_server: bool,
}

/// How a defect was seen.
#[derive(Debug)]
pub struct Hunt {
    /// The first seed in which the named check saw it.
    pub seed: Option<u64>,
    /// How long that took.
    pub took: Duration,
    /// Other invariants found broken meanwhile.
    pub also: BTreeSet<Invariant>,
}

const fn exhibit(bug: Bug, caught_by: Invariant) -> Exhibit {
    Exhibit { bug, caught_by, through_server: false }
}

const fn through_server(bug: Bug, caught_by: Invariant) -> Exhibit {
    Exhibit { bug, caught_by, through_server: true }
}

/// The defects that the simulation shows.
pub const ZOO: &[Exhibit] = &[
    exhibit(Bug::ReleaseWithoutId, Invariant::I5),
    exhibit(Bug::RenewWithoutId, Invariant::I1),
    exhibit(Bug::RenewShortens, Invariant::I2),
    exhibit(Bug::TakeoverBeforeExpiry, Invariant::I2),
    exhibit(Bug::TwoWinners, Invariant::I1),
    exhibit(Bug::WriterAmongReaders, Invariant::I1),
    exhibit(Bug::OnePermitTooMany, Invariant::I9),
    exhibit(Bug::PermitGrantedAsLock, Invariant::I11),
    exhibit(Bug::ExpiredPermitFreed, Invariant::I9),
    exhibit(Bug::ReadersShareTtl, Invariant::I8),
    exhibit(Bug::FenceDroppedOnRelease, Invariant::I3),
    exhibit(Bug::FenceInMemoryOnly, Invariant::I12),
    exhibit(Bug::LeasesInMemoryOnly, Invariant::I12),
    exhibit(Bug::RepeatBeginsAnew, Invariant::I10),
    exhibit(Bug::RepeatGrantsAgain, Invariant::I10),
    exhibit(Bug::TicketsNeverLapse, Invariant::J7),
    exhibit(Bug::QueueIgnored, Invariant::J4),
    exhibit(Bug::NobodyWoken, Invariant::J1),
    exhibit(Bug::SpentIdsGranted, Invariant::J2),
    exhibit(Bug::BusyTakenForHeld, Invariant::I1),
    exhibit(Bug::ErrorReportedAsBusy, Invariant::I13),
    exhibit(Bug::RetryWithNewId, Invariant::J2),
    exhibit(Bug::DropWithoutGiveBack, Invariant::J1),
    exhibit(Bug::UnansweredNotSaid, Invariant::J2),
    exhibit(Bug::DeadlineFromReceipt, Invariant::I1),
    exhibit(Bug::DeadlineWithoutMargin, Invariant::I7),
    exhibit(Bug::DeadlineNotLookedAt, Invariant::J3),
    exhibit(Bug::LostNotFinal, Invariant::I6),
    exhibit(Bug::FailureTakenForRenewal, Invariant::I1),
    exhibit(Bug::InterestAfterAttempt, Invariant::J2),
    exhibit(Bug::DeadlineByWallClock, Invariant::I7),
    exhibit(Bug::LeftNotCapped, Invariant::I7),
    exhibit(Bug::RevokedRenewed, Invariant::I6),
    exhibit(Bug::SessionEndNotTold, Invariant::I1),
    exhibit(Bug::MultiPartsKept, Invariant::J1),
    exhibit(Bug::MultiUnordered, Invariant::J1),
    exhibit(Bug::MultiLossIgnored, Invariant::I15),
    // Defects in waiting and giving back show in the server as well, which drives the same loops.
    through_server(Bug::TicketsNeverLapse, Invariant::J7),
    through_server(Bug::QueueIgnored, Invariant::J4),
    through_server(Bug::NobodyWoken, Invariant::J1),
    through_server(Bug::SpentIdsGranted, Invariant::J2),
    through_server(Bug::BusyTakenForHeld, Invariant::I1),
    through_server(Bug::ErrorReportedAsBusy, Invariant::I13),
    through_server(Bug::RetryWithNewId, Invariant::J2),
    through_server(Bug::DropWithoutGiveBack, Invariant::J1),
    through_server(Bug::UnansweredNotSaid, Invariant::J2),
    through_server(Bug::ServerKeepsVanished, Invariant::J2),
];

/// Plants the defect and simulates seeds, at most this many and on this many threads, until its check sees it. The
/// seed found is the first that shows it, however many threads there are.
pub fn hunt(exhibit: Exhibit, seeds: u64, threads: usize) -> Hunt {
    let begun = Instant::now();
    plant(Some(exhibit.bug));
    let (next, first) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let broken = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.min(first.load(Ordering::Relaxed)) {
                        return;
                    }
                    if sim::through_server(seed) != exhibit.through_server {
                        continue;
                    }
                    let (.., violations) = sim::judge(seed);
                    let seen: BTreeSet<_> = violations.iter().map(|violation| violation.invariant).collect();
                    if seen.contains(&exhibit.caught_by) {
                        first.fetch_min(seed, Ordering::Relaxed);
                    }
                    broken.lock().insert(seed, seen);
                }
            });
        }
    });
    plant(None);
    let first = first.into_inner();
    let broken = broken.into_inner();
    let mut also: BTreeSet<_> =
        broken.into_iter().filter(|(seed, _)| *seed <= first).flat_map(|(_, seen)| seen).collect();
    also.remove(&exhibit.caught_by);
    Hunt { seed: (first < u64::MAX).then_some(first), took: begun.elapsed(), also }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "run")]
    #[test]
    fn every_defect_is_in_the_zoo_and_in_each_part_of_it_once() {
        for bug in Bug::ALL {
            let simulated = ZOO.iter().filter(|one| one.bug == *bug && !one.through_server).count();
            let live = live::LIVE.iter().filter(|exhibit| exhibit.bug == *bug).count();
            let leaks = leaks::LEAKS.iter().filter(|leak| leak.bug == *bug).count();
            let once = simulated <= 1 && live <= 1 && leaks <= 1;
            assert!(once && simulated + live + leaks >= 1, "{}", bug.as_str());
        }
    }
}
