//! Spans of time with a disturbance: faults, stalls, revokes.

/// Spans in order, none touching another.
#[derive(Debug, Default, Clone)]
pub(super) struct Windows(Vec<(u64, u64)>);

impl Windows {
    /// Builds the windows from any spans; those less than `gap` apart are merged.
    pub(super) fn new(mut spans: Vec<(u64, u64)>, gap: u64) -> Self {
        spans.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (from, to) in spans {
            match merged.last_mut() {
                Some((_, last)) if from <= last.saturating_add(gap) => *last = to.max(*last),
                _ => merged.push((from, to)),
            }
        }
        Windows(merged)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    /// The first that ends at or after a moment.
    pub(super) fn from(&self, moment: u64) -> Option<(u64, u64)> {
        self.0.get(self.0.partition_point(|(_, to)| *to < moment)).copied()
    }

    /// The first that overlaps a span.
    pub(super) fn meeting(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        self.from(from).filter(|(begin, _)| *begin <= to)
    }

    pub(super) fn meets(&self, from: u64, to: u64) -> bool {
        self.meeting(from, to).is_some()
    }
}
