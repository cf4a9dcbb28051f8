//! Counts expired leases on a quorum: one lease is on several nodes, which drop it one after the other.

use std::collections::VecDeque;

/// How many sweeps after the first node the last node of a majority may find the same lease expired. Nodes get a lease
/// within milliseconds of each other; a server sweeps twice a second, and a node may be slow for some seconds.
const APART: u64 = 20;

/// The expired leases that each node has found and that are not counted yet.
#[derive(Debug)]
pub(super) struct Tally {
    /// By node: the sweep, and how many.
    found: Vec<VecDeque<(u64, u64)>>,
    sweeps: u64,
}

impl Tally {
    pub(super) fn of(nodes: usize) -> Self {
        Tally { found: vec![VecDeque::new(); nodes], sweeps: 0 }
    }

    /// Adds what a node has found.
    pub(super) fn add(&mut self, node: usize, expired: u64) {
        if let Some(found) = self.found.get_mut(node).filter(|_| expired > 0) {
            found.push_back((self.sweeps, expired));
        }
    }

    /// Called at the end of a sweep. Returns how many leases a majority has found expired that were not counted
    /// before. A lease that only a minority finds was never granted, or was on nodes that have been away.
    pub(super) fn count(&mut self, majority: usize) -> u64 {
        let oldest = self.sweeps.saturating_sub(APART);
        for found in &mut self.found {
            found.retain(|(sweep, _)| *sweep >= oldest);
        }
        self.sweeps += 1;
        let mut sums: Vec<u64> =
            self.found.iter().map(|found| found.iter().map(|(_, count)| count).sum()).collect();
        sums.sort_unstable_by(|a, b| b.cmp(a));
        let counted = majority.checked_sub(1).and_then(|last| sums.get(last)).copied().unwrap_or_default();
        for found in &mut self.found {
            let mut rest = counted;
            while let Some((_, count)) = found.front_mut().filter(|_| rest > 0) {
                let part = rest.min(*count);
                (*count, rest) = (*count - part, rest - part);
                if *count == 0 {
                    found.pop_front();
                }
            }
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(tally: &mut Tally, expired: [u64; 3]) -> u64 {
        expired.into_iter().enumerate().for_each(|(node, expired)| tally.add(node, expired));
        tally.count(2)
    }

    #[test]
    fn one_lease_is_counted_once_whenever_the_nodes_drop_it() {
        let mut tally = Tally::of(3);
        assert_eq!(sweep(&mut tally, [1, 1, 1]), 1);
        assert_eq!(sweep(&mut tally, [1, 0, 0]), 0);
        assert_eq!(sweep(&mut tally, [0, 1, 0]), 1);
        assert_eq!(sweep(&mut tally, [0, 0, 1]), 0);
        assert_eq!(sweep(&mut tally, [5, 3, 0]) + sweep(&mut tally, [0, 2, 5]), 5);
    }

    #[test]
    fn what_a_minority_found_is_forgotten_after_a_while() {
        let mut tally = Tally::of(3);
        assert_eq!(sweep(&mut tally, [7, 0, 0]), 0);
        for _ in 0..=APART {
            assert_eq!(sweep(&mut tally, [0, 0, 0]), 0);
        }
        assert_eq!(sweep(&mut tally, [0, 1, 0]) + sweep(&mut tally, [0, 0, 1]), 1);
        // The count needs neither a node that is away nor, when it is back, what it did not report.
        for _ in 0..3 {
            assert_eq!(sweep(&mut tally, [1, 1, 0]), 1);
        }
        assert_eq!(sweep(&mut tally, [0, 1, 1]), 1);
    }
}
