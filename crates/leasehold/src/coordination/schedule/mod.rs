//! Jobs that run once per tick among all nodes: with a scheduler of the caller's, or with the one here.
//!
//! Which ticks are done is recorded in the note of the name, under the lock of that name.

// What belongs here: `calendar`, `record` and `plan` are pure; `take` is the only part that talks to the store, through
// the public locks. Before changing anything here:
// `cargo test -p leasehold --all-features --test once --test schedule --test schedule_nodes`.

pub(crate) mod calendar;
pub(crate) mod job;
pub(crate) mod once;
mod plan;
pub(crate) mod record;
pub(crate) mod take;
pub(crate) mod tick;

pub use self::calendar::Schedule;

/// What a tick may suffer when its node dies: to be left out, or to be run again.
///
/// The start of a tick is recorded before its job starts, and its end when the job has ended. The policy decides what a
/// start without an end means to the other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum TickPolicy {
    /// The tick is done: no tick ever runs twice. One whose node dies between the record of its start and the end of
    /// its job is not run again, though nobody knows how far the job came.
    #[default]
    AtMostOnce,
    /// The tick is not done, and the next node that can takes it: no tick is left out while one node and the store
    /// live. One whose node dies, or loses its lease, before the end is recorded runs again, so the job must bear that.
    AtLeastOnce,
}

/// What a scheduler does about ticks that no node has run: because all nodes were down, the store was away, or a job
/// took longer than until its next tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Missed {
    /// Runs the latest of them, once, for all.
    #[default]
    RunOnce,
    /// Leaves them out, unless the latest is late by less than the clock bound.
    Skip,
    /// Runs each of them, one after the other.
    RunAll,
}

/// Whether a scheduled job needs the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LockingHint {
    /// No: every node runs it.
    NodeLocal,
    /// Yes: one node runs it. While the store cannot be reached, nobody does.
    #[default]
    RequireGlobal,
    /// As `RequireGlobal` where a store is configured, also while it cannot be reached; as `NodeLocal` where none is.
    PreferGlobal,
}
