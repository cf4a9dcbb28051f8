//! The only source of randomness in a simulation: everything derives from its seed.

use std::time::Duration;

/// splitmix64.
#[derive(Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    /// Everything drawn derives from this seed.
    pub(crate) fn new(seed: u64) -> Self {
        Chance(seed)
    }

    /// Any number.
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below this, which must be above 0.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        // The bias is far below what any simulation can notice.
        self.number() % most.max(1)
    }

    /// A number between these, both included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True this many times in a thousand.
    pub(crate) fn per_mille(&mut self, part: u64) -> bool {
        self.below(1000) < part
    }

    /// A number of milliseconds between these, both included: tokio's timers have no finer resolution.
    pub(crate) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.between(least, most))
    }

    /// A share of a time, between these percentages.
    pub(crate) fn part(&mut self, of: Duration, least: u64, most: u64) -> Duration {
        of * u32::try_from(self.between(least, most)).unwrap_or(u32::MAX) / 100
    }

    /// One of these.
    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}
