//! Structures for sweeps over intervals: they replace a loop over pairs by O(n log n).

/// The greatest value at or before each place, and its owner.
pub(super) struct PrefixMax {
    tree: Vec<(u64, usize)>,
}

impl PrefixMax {
    pub(super) fn new(places: usize) -> Self {
        PrefixMax { tree: vec![(0, usize::MAX); places + 1] }
    }

    pub(super) fn raise(&mut self, place: usize, value: u64, who: usize) {
        let mut place = place + 1;
        while place < self.tree.len() {
            self.tree[place] = self.tree[place].max((value, who));
            place += place & place.wrapping_neg();
        }
    }

    /// The greatest value among the first `places` places.
    pub(super) fn first(&self, places: usize) -> (u64, usize) {
        let (mut place, mut most) = (places, (0, usize::MAX));
        while place > 0 {
            let (value, who) = self.tree[place];
            if value > most.0 {
                most = (value, who);
            }
            place -= place & place.wrapping_neg();
        }
        most
    }
}

/// Counts how many of a set of closed intervals meet a span.
pub(super) struct Meeting {
    starts: Vec<u64>,
    ends: Vec<u64>,
}

impl Meeting {
    pub(super) fn new(intervals: &[(u64, u64)]) -> Self {
        let mut starts: Vec<u64> = intervals.iter().map(|(start, _)| *start).collect();
        let mut ends: Vec<u64> = intervals.iter().map(|(_, end)| *end).collect();
        starts.sort_unstable();
        ends.sort_unstable();
        Meeting { starts, ends }
    }

    pub(super) fn count(&self, from: u64, to: u64) -> usize {
        let begun = self.starts.partition_point(|start| *start <= to);
        begun - self.ends.partition_point(|end| *end < from)
    }
}

/// How many of a set of closed intervals are open at once, at most, within a span.
pub(super) struct Depth {
    times: Vec<u64>,
    /// A tree over the depth after each event.
    most: Vec<u32>,
}

impl Depth {
    pub(super) fn new(intervals: &[(u64, u64)]) -> Self {
        // Starts before ends of the same moment.
        let mut events: Vec<(u64, bool)> =
            intervals.iter().flat_map(|(start, end)| [(*start, false), (*end, true)]).collect();
        events.sort_unstable();
        let mut most = vec![0; 2 * events.len()];
        let mut depth = 0_u32;
        for (place, (_, is_end)) in events.iter().enumerate() {
            depth = if *is_end { depth.saturating_sub(1) } else { depth + 1 };
            most[events.len() + place] = depth;
        }
        for place in (1..events.len()).rev() {
            most[place] = most[2 * place].max(most[2 * place + 1]);
        }
        Depth { times: events.into_iter().map(|(time, _)| time).collect(), most }
    }

    pub(super) fn most(&self, from: u64, to: u64) -> u32 {
        let size = self.times.len();
        let first = self.times.partition_point(|time| *time < from);
        let last = self.times.partition_point(|time| *time <= to);
        // What was open before, and after each event in between.
        let (mut left, mut right) = (size + first.saturating_sub(1), size + last);
        let mut most = 0;
        if first == 0 {
            left = size;
        }
        while left < right {
            if left & 1 == 1 {
                most = most.max(self.most[left]);
                left += 1;
            }
            if right & 1 == 1 {
                right -= 1;
                most = most.max(self.most[right]);
            }
            (left, right) = (left / 2, right / 2);
        }
        most
    }
}
