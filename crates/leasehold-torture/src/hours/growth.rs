//! Decides whether something grows: tells a leak from a process that warms up, or a machine that is busy.
//!
//! The first quarter of the samples is for warming up. For each other quarter the median counts (quarters of the
//! samples, not of the time: a stalled machine would leave a quarter of the time without samples). Something grows if
//! it rises from the second quarter to the third and on to the last, by more than the allowance in total, and by a
//! quarter of the allowance each time: a pool that was filled late, or an allocator that took one more arena, is a
//! single step and not a leak. A value that follows the pace of the work, such as ids that are refused for a minute,
//! may rise with it.

use std::fmt;

use serde::Serialize;

/// Samples that a quarter must have to be judged.
const LEAST: usize = 4;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Bytes of memory.
    Bytes,
    /// Descriptors, connections, keys, rows, files.
    Count,
}

impl Unit {
    /// The allowed rise: what an allocator or a pool takes for itself, and a part of the early value.
    fn allowance(self, early: u64) -> u64 {
        match self {
            Unit::Bytes => (8 << 20) + early / 10,
            Unit::Count => 16 + early / 5,
        }
    }
}

/// One value at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    /// In seconds from the start.
    pub(super) at: f64,
    pub(super) value: u64,
}

/// The judgement on one measured thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Growth {
    /// Whose value it is, and which.
    pub what: String,
    /// What it is measured in.
    pub unit: Unit,
    /// The medians of the second, third and last quarter; `None` if there were too few samples.
    pub quarters: Option<[u64; 3]>,
    /// The allowed rise.
    pub allowed: u64,
    /// Whether it rose steadily, and by more than allowed.
    pub grows: bool,
}

impl Growth {
    /// Judges what was measured from `since` to `until`, in seconds. `work` is how much was done by when, if the value
    /// follows the pace of the work; else it is empty.
    pub(super) fn judge(
        what: String,
        unit: Unit,
        points: &[Point],
        work: &[Point],
        since: f64,
        until: f64,
    ) -> Self {
        let of = |points: &[Point], quarter: usize| -> Vec<u64> {
            let within = |point: &&Point| point.at >= since && point.at <= until;
            let values: Vec<u64> = points.iter().filter(within).map(|point| point.value).collect();
            values[values.len() * quarter / 4..values.len() * (quarter + 1) / 4].to_vec()
        };
        let median = |number: usize| {
            let mut values = of(points, number);
            values.sort_unstable();
            (values.len() >= LEAST).then(|| values[values.len() / 2])
        };
        let done = [1, 2, 3].map(|number| {
            let done = of(work, number);
            done.last().zip(done.first()).map_or(1, |(last, first)| (last - first).max(1))
        });
        // What a value of one quarter would be at the pace of another, if that is faster.
        let at_pace = |value: u64, from: usize, to: usize| {
            (value as f64 * (done[to] as f64 / done[from] as f64).max(1.0)) as u64
        };
        let quarters = match (median(1), median(2), median(3)) {
            (Some(early), Some(middle), Some(late)) => Some([early, middle, late]),
            _ => None,
        };
        let allowed = unit.allowance(quarters.map_or(0, |[early, ..]| early));
        let grows = quarters.is_some_and(|[early, middle, late]| {
            let step = allowed / 4;
            late > at_pace(early, 0, 2) + allowed
                && middle > at_pace(early, 0, 1) + step
                && late > at_pace(middle, 1, 2) + step
        });
        Growth { what, unit, quarters, allowed, grows }
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(quarters) = self.quarters else { return write!(f, "{}: too few samples", self.what) };
        let show = |value: u64| match self.unit {
            Unit::Bytes => format!("{:.1} MiB", value as f64 / f64::from(1 << 20)),
            Unit::Count => value.to_string(),
        };
        write!(f, "{}: {}", self.what, quarters.map(show).join(" → "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_testbed::dice::Dice;

    const MIB: u64 = 1 << 20;

    fn judge(unit: Unit, value: impl Fn(u64) -> u64) -> Growth {
        let points: Vec<_> = (0..100).map(|at| Point { at: at as f64, value: value(at) }).collect();
        Growth::judge("something".into(), unit, &points, &[], 0.0, 100.0)
    }

    #[test]
    fn leaks_are_seen() {
        let mut dice = Dice::new(3);
        let noise: Vec<u64> = (0..100).map(|_| dice.below(2 * MIB)).collect();
        assert!(judge(Unit::Bytes, |at| 20 * MIB + at * MIB / 4 + noise[at as usize]).grows);
        assert!(judge(Unit::Count, |at| 12 + at).grows);
        // A rise that begins late, or comes in bursts.
        assert!(judge(Unit::Count, |at| 12 + at.saturating_sub(40)).grows);
        assert!(judge(Unit::Count, |at| 12 + at / 20 * 20).grows);
    }

    #[test]
    fn healthy_figures_are_not_accused() {
        let mut dice = Dice::new(4);
        let noise: Vec<u64> = (0..100).map(|_| dice.below(30)).collect();
        for unit in [Unit::Bytes, Unit::Count] {
            assert!(!judge(unit, |_| 20 * MIB).grows, "constant");
            assert!(!judge(unit, |at| 20 * MIB + if at > 60 { 100 * MIB } else { 0 }).grows, "one step");
            assert!(!judge(unit, |at| 120 * MIB - at * MIB).grows, "it shrinks");
        }
        assert!(!judge(Unit::Bytes, |at| 20 * MIB + at.min(25) * MIB).grows, "warming up");
        assert!(!judge(Unit::Count, |at| 40 + noise[at as usize]).grows, "noise");
        assert!(!judge(Unit::Count, |at| if at % 10 == 0 { 900 } else { 40 }).grows, "peaks");
        assert!(!judge(Unit::Count, |at| 40 + at / 10).grows, "less than is allowed");
    }

    #[test]
    fn figures_that_follow_the_pace_may_rise_with_it() {
        // Faster and faster, and everything of the last ten seconds is kept.
        let done = |at: u64| at * (at + 100);
        let points = |value: &dyn Fn(u64) -> u64| -> Vec<Point> {
            (0..100).map(|at| Point { at: at as f64, value: value(at) }).collect()
        };
        let work = points(&done);
        let judge =
            |values: &[Point], work| Growth::judge("it".into(), Unit::Count, values, work, 0.0, 100.0).grows;
        let kept = points(&|at| done(at) - done(at.saturating_sub(10)));
        assert!(!judge(&kept, &work));
        assert!(judge(&kept, &[]), "at an even pace this is a leak");
        assert!(judge(&points(&done), &work), "what is kept for ever rises faster");
    }

    #[test]
    fn a_machine_that_stalls_leaves_no_quarter_empty() {
        let stalled = |at: u64| if at < 5 { at as f64 } else { 90.0 + at as f64 / 10.0 };
        let points: Vec<_> = (0..40).map(|at| Point { at: stalled(at), value: 12 + 2 * at }).collect();
        let growth = Growth::judge("it".into(), Unit::Count, &points, &[], 0.0, 100.0);
        assert!(growth.grows, "{growth}");
    }

    #[test]
    fn too_few_samples_are_not_judged() {
        let points: Vec<_> = (0..8).map(|at| Point { at: at as f64, value: at * 1000 }).collect();
        let growth = Growth::judge("it".into(), Unit::Count, &points, &[], 0.0, 8.0);
        assert_eq!((growth.quarters, growth.grows), (None, false));
        assert_eq!(growth.to_string(), "it: too few samples");
    }
}
