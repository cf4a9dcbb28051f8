//! Random numbers from a seed: the same seed gives the same numbers.

use std::hash::BuildHasher as _;
use std::time::Duration;

/// A generator (splitmix64): small, quick, and good enough to choose what happens next.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    /// Another generator, derived from this seed and a number, with unrelated numbers.
    pub fn fork(seed: u64, number: u64) -> Self {
        let mut dice = Dice(seed ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        dice.roll();
        dice
    }

    /// Any number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below this; 0 if the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound.max(1)
    }

    /// True once in this many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// From the first number to before the second.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from))
    }

    /// From 0 to this many microseconds, with as many short times as long ones: each power of two is equally likely.
    pub fn micros(&mut self, most: u64) -> Duration {
        let powers = u64::from(most.max(1).ilog2()) + 1;
        let power = self.below(powers);
        Duration::from_micros(self.below(2 << power).min(most))
    }
}

/// The seed in the variable `SEED`, if that is set, to repeat a run.
///
/// # Panics
/// If the variable is not a number.
pub fn chosen_seed() -> Option<u64> {
    let seed = std::env::var("SEED").ok()?;
    Some(seed.parse().expect("the variable `SEED` is a number"))
}

/// A new random seed, short enough to be typed.
pub fn fresh_seed() -> u64 {
    std::hash::RandomState::new().hash_one(()) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_sequence_and_another_seed_another() {
        let numbers = |mut dice: Dice| -> Vec<u64> { (0..100).map(|_| dice.roll()).collect() };
        assert_eq!(numbers(Dice::new(7)), numbers(Dice::new(7)));
        assert_ne!(numbers(Dice::new(7)), numbers(Dice::new(8)));
        assert_ne!(numbers(Dice::fork(7, 1)), numbers(Dice::fork(7, 2)));
    }

    #[test]
    fn numbers_stay_within_their_bounds() {
        let mut dice = Dice::new(1);
        for _ in 0..10_000 {
            assert!((3..9).contains(&dice.between(3, 9)));
            assert!(dice.micros(5_000) <= Duration::from_micros(5_000));
            assert_eq!(dice.below(0), 0);
        }
    }
}
