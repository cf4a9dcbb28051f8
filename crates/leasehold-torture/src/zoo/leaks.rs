//! Leaks: defects that break no promise, and that show only in the figures of a long-lived process or store.

use leasehold::bugs::Bug;

use crate::store::Store;

/// A leak, where it is provoked, and what must be seen to grow.
#[derive(Debug, Clone, Copy)]
pub struct Leak {
    /// The planted defect.
    pub bug: Bug,
    /// On which store.
    pub store: Store,
    /// What grows, as a report names it.
    pub grows: &'static str,
}

const fn leak(bug: Bug, store: Store, grows: &'static str) -> Leak {
    Leak { bug, store, grows }
}

/// All of them. `tests/hours.rs` plants each.
pub const LEAKS: &[Leak] = &[
    leak(Bug::MemoryKept, Store::Memory, "resident 1: memory"),
    leak(Bug::DescriptorsKept, Store::Memory, "resident 1: descriptors"),
    leak(Bug::ReleasesLeaveIds, Store::Sqlite, "store: rows"),
];
