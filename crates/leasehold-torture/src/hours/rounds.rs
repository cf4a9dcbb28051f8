//! The rounds: runs of some seconds, one after the other, each with its own seed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::report::Outcome;
use crate::store::{Profile, Store};
use crate::supervise::Order;
use leasehold_testbed::dice::Dice;

use super::{Hours, Round};

/// No store has a round at the moment.
const NONE: u64 = u64::MAX;

/// Makes rounds until the time is over.
pub(super) struct Rounds {
    hours: Hours,
    pairs: Vec<(Store, Profile)>,
    urls: Vec<String>,
    out: PathBuf,
    over: Arc<AtomicBool>,
    /// The index of the store that has a round at the moment; its own figures are meaningful only between rounds.
    pub(super) at_work: Arc<AtomicU64>,
}

impl Rounds {
    pub(super) fn new(
        hours: &Hours,
        pairs: Vec<(Store, Profile)>,
        urls: Vec<String>,
        out: PathBuf,
        over: Arc<AtomicBool>,
    ) -> Self {
        Rounds { hours: hours.clone(), pairs, urls, out, over, at_work: Arc::new(AtomicU64::new(NONE)) }
    }

    /// Makes the rounds, and sends the result of each.
    pub(super) fn run(self, told: &mpsc::Sender<Round>) {
        for (number, (store, profile)) in (1..).zip(self.pairs.iter().copied().cycle()) {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            let round = self.round(number, store, profile);
            self.at_work.store(NONE, Ordering::Relaxed);
            if told.send(round).is_err() {
                return;
            }
            self.pause();
        }
    }

    fn round(&self, number: u64, store: Store, profile: Profile) -> Round {
        let seed = Dice::fork(self.hours.seed, number).roll() >> 32;
        let out = self.out.join(format!("round-{number}"));
        let mut order = Order::new(store, profile, &out);
        (order.seed, order.time, order.workers) = (seed, self.hours.round, self.hours.workers);
        order.stop = Arc::clone(&self.over);
        order.url.clone_from(&self.hours.url);
        let place = self.hours.stores.iter().position(|one| *one == store).unwrap_or_default();
        // A profile that harms the store gets a store of its own.
        if self.hours.url.is_none() && profile.refuses(store, false).is_none() {
            order.url = self.urls.get(place).cloned();
            self.at_work.store(place as u64, Ordering::Relaxed);
        }
        if order.url.is_some() {
            // Always the same: fence counters stay for a week.
            order.prefix = Some("torture-round/".into());
        }
        let mut round = Round { number, store, profile, seed, outcome: None, handovers: 0, broken: None };
        match order.run() {
            Ok(report) => {
                let cut = self.over.load(Ordering::Relaxed) && report.outcome == Outcome::Vacuous;
                round.outcome = (!cut).then_some(report.outcome);
                round.handovers = report.figures.handovers;
                if report.outcome == Outcome::Violated {
                    let broken = report.broken.iter().map(|(what, count)| format!("{what} {count}×"));
                    let broken = broken.collect::<Vec<_>>().join(", ");
                    round.broken = Some(format!("{broken}; the histories are in {}", out.display()));
                } else {
                    // The seed reproduces it.
                    let _ = std::fs::remove_dir_all(&out);
                }
            }
            Err(error) => round.broken = Some(format!("it cannot go on: {error}")),
        }
        round
    }

    /// Lets the residents work alone for a fifth of a round's time.
    fn pause(&self) {
        let until = Instant::now() + self.hours.round / 5;
        while Instant::now() < until && !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
