//! After a fail-over every name works again, for every client, without a restart (J9).

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::Invariant::J9;
use super::case::{Acquire, Case, Court, Outcome, SLACK};
use super::figures::Figures;

/// How soon after a fail-over everything works again: by then an abandoned place in a queue, or a lease, has lapsed,
/// and connections are open again.
pub const WORKS_WITHIN: Duration = Duration::from_secs(15);

/// An acquire that wants a name for this long has asked in time.
const WANTED: u64 = 5_000_000_000;

pub(super) fn judge(case: &Case<'_>, court: &mut Court, figures: &mut Figures) {
    let mut failovers: Vec<(u64, u64)> = case
        .faults
        .iter()
        .filter(|(fault, .., to)| fault.is_failover() && *to != u64::MAX)
        .map(|(_, _, from, to)| (*from, *to))
        .collect();
    if failovers.is_empty() {
        return;
    }
    failovers.sort_unstable();
    // When each worker was answered about each name, and what it asked for.
    let mut answers: HashMap<(u32, u16), Vec<u64>> = HashMap::new();
    for record in case.records.iter().filter(|record| record.kind.is_answer()) {
        answers.entry((record.worker, record.name)).or_default().push(record.at);
    }
    answers.values_mut().for_each(|times| times.sort_unstable());
    let mut wanted: HashMap<(u32, u16), Vec<usize>> = HashMap::new();
    for (number, acquire) in case.acquires.iter().enumerate() {
        wanted.entry((acquire.worker, acquire.name)).or_default().push(number);
    }
    let pairs: BTreeSet<(u32, u16)> = wanted.keys().copied().collect();
    let within = WORKS_WITHIN.as_nanos() as u64;
    let grants = case.locks.iter().map(|lock| {
        let mut times: Vec<u64> = lock.leases.iter().map(|lease| case.leases[*lease].from).collect();
        times.sort_unstable();
        times
    });
    let grants: Vec<Vec<u64>> = grants.collect();
    for (place, (_, end)) in failovers.iter().enumerate() {
        let next = failovers.get(place + 1).map_or(case.setting.span.1, |(from, _)| *from);
        let bound = end.saturating_add(within);
        // A machine that was stalled for long is not the store's fault.
        let stood: u64 = case.anybody.still.iter().map(|(from, to)| overlap((from, to), (*end, bound))).sum();
        let unfair = next < bound || stood > SLACK;
        for (name, times) in grants.iter().enumerate() {
            let granted = times.get(times.partition_point(|at| at < end)).is_some_and(|at| *at <= bound);
            let asked = case.locks[name].acquires.iter().find(|number| in_time(case, **number, *end));
            if let Some(asked) = asked.filter(|_| !granted && !unfair) {
                let name = &case.setting.names[name].name;
                let seen = format!("nobody has had {name:?} for {within} ns after a fail-over");
                court.accuse_with(case, J9, seen, &[], &[*asked]);
            }
        }
        for pair in &pairs {
            let times = answers.get(pair).map_or(&[][..], Vec::as_slice);
            let answered = times.get(times.partition_point(|at| at < end));
            let asked = wanted[pair].iter().find(|number| in_time(case, **number, *end));
            let Some(asked) = asked else { continue };
            let judged = figures.judged(J9);
            match answered {
                Some(at) if *at <= bound.min(next) => judged.judged += 1,
                // Or the next fail-over, or the end, came before it was due.
                _ if unfair => judged.waived += 1,
                _ => {
                    judged.judged += 1;
                    let (worker, name) = *pair;
                    let name = &case.setting.names[usize::from(name)].name;
                    let seen = format!(
                        "worker {worker} has had no answer about {name:?} for {within} ns after the fail-over that was over at {}",
                        case.at(*end)
                    );
                    court.accuse_with(case, J9, seen, &[], &[*asked]);
                }
            }
        }
    }
}

/// The length of the overlap of two spans.
fn overlap(a: (u64, u64), b: (u64, u64)) -> u64 {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

/// Whether an acquire asked for its name so long before the bound that it should have been answered.
fn in_time(case: &Case<'_>, number: usize, end: u64) -> bool {
    let Acquire { called, returned, outcome, multi, .. } = case.acquires[number];
    // A call for several names may never have come to this one.
    let asked = outcome == Outcome::Granted || !multi && outcome != Outcome::Dropped;
    let latest = end.saturating_add(WORKS_WITHIN.as_nanos() as u64 - WANTED);
    called <= latest && returned > end && asked
}
