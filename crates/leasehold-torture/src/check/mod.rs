//! Judges a run: a place for the checker, which judges nothing yet.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::Serialize;

/// What the histories of a run come to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// What was broken.
    pub violations: Vec<Violation>,
    /// What was seen.
    pub figures: Figures,
}

/// An invariant that was broken, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// What was seen.
    pub seen: String,
}

/// What can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Invariant {
    /// A history contradicts itself.
    History,
}

/// What was seen. Times are in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Figures {
    pub grants: u64,
    pub handovers: u64,
    pub expiries: u64,
    pub takeovers: u64,
    pub unknowns: u64,
    pub busy: u64,
    pub failed: u64,
    pub dropped: u64,
    pub lost: BTreeMap<String, u64>,
    pub lost_margin: Option<u64>,
    pub handover: Percentiles,
    pub takeover: Percentiles,
    pub fifo_inversions: u64,
    pub fenced_saves: u64,
    pub unfenced_overlaps: u64,
    pub leftovers: u64,
    pub stalls: u64,
    pub waived: u64,
    pub operations: BTreeMap<String, u64>,
}

/// Of some times, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Percentiles {
    pub count: u64,
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

/// Judges nothing.
///
/// # Errors
/// None.
pub fn check(_: &Path) -> io::Result<Verdict> {
    Ok(Verdict { violations: Vec::new(), figures: Figures::default() })
}
