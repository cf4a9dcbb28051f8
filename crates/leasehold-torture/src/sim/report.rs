//! Runs many seeds, one after the other, and sums up the results.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::count::{Count, Counts};
use crate::check::{self, Invariant, Violation};

/// From this many seeds on, every kind of trouble must have come: with fewer, a rare one may not have had its chance.
const ENOUGH: u64 = 1000;

/// How to run seeds.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The number of threads.
    pub threads: usize,
    /// Stop after this many failed seeds.
    pub failures: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { threads: 1, failures: 5 }
    }
}

/// The results of many seeds.
#[derive(Debug, Default)]
pub struct SimReport {
    /// How many were run.
    pub seeds: u64,
    /// How many records were judged.
    pub records: u64,
    /// Counts of what happened in them.
    pub counts: Counts,
    /// Those that failed, by seed.
    pub failures: Vec<Failure>,
}

/// A seed that failed.
#[derive(Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What it broke.
    pub violations: Vec<Violation>,
}

impl SimReport {
    /// Whether nothing was broken, and everything that can happen did, if there were seeds enough.
    pub fn is_good(&self) -> bool {
        self.failures.is_empty() && self.missing().is_empty()
    }

    /// What never happened although there were seeds enough: nothing is proved about it.
    pub fn missing(&self) -> Vec<Count> {
        if self.seeds < ENOUGH { Vec::new() } else { self.counts.missing() }
    }
}

impl fmt::Display for SimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} seeds, {} records", self.seeds, self.records)?;
        for what in Count::ALL {
            writeln!(f, "{:>12}  {}", self.counts.of(*what), what.as_str())?;
        }
        for failure in &self.failures {
            writeln!(f, "\n{failure}")?;
        }
        for what in self.missing() {
            writeln!(f, "vacuous: never once: {}", what.as_str())?;
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seed = self.seed;
        writeln!(f, "seed {seed} failed; to see it again: scripts/sim.sh --seed {seed}")?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "{violation}"))
    }
}

/// Simulates and judges one seed. Returns the number of records, what happened, what was broken.
pub fn judge(seed: u64) -> (u64, Counts, Vec<Violation>) {
    match catch_unwind(AssertUnwindSafe(|| super::simulate(seed))) {
        Ok(seen) => {
            let records = seen.histories.iter().map(Vec::len).sum::<usize>() as u64;
            (records, seen.counts, check::judge(&seen.setting, &seen.histories).violations)
        }
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).into()));
            let seen = format!("it panicked: {}", text.unwrap_or_default());
            (0, Counts::default(), vec![Violation { invariant: Invariant::History, seen }])
        }
    }
}

/// Simulates and judges many seeds.
pub fn run(seeds: Range<u64>, options: Options) -> SimReport {
    let report = Mutex::new(SimReport::default());
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                while failed.load(Ordering::Relaxed) < options.failures.max(1) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let (records, counts, violations) = judge(seed);
                    let mut report = report.lock();
                    report.seeds += 1;
                    report.records += records;
                    report.counts.add_all(&counts);
                    if !violations.is_empty() {
                        failed.fetch_add(1, Ordering::Relaxed);
                        report.failures.push(Failure { seed, violations });
                    }
                }
            });
        }
    });
    let mut report = report.into_inner();
    report.failures.sort_by_key(|failure| failure.seed);
    report
}
