//! The source of random numbers: the system, unless a simulation on this thread has seeded it.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// Fills a lease id's bytes from the system's random generator, so that nobody can guess the id.
pub(crate) fn fill(bytes: &mut [u8]) {
    #[cfg(feature = "__simulation")]
    if let Some(()) = seeded::fill(bytes) {
        return;
    }
    // No id must ever be guessable or made twice, so there is nothing to fall back on; systems
    // without a random generator cannot run this library.
    #[allow(clippy::expect_used)]
    getrandom::fill(bytes).expect("the system has a random generator");
}

/// A random number to spread load; nothing secret is made from it.
pub(crate) fn number() -> u64 {
    #[cfg(feature = "__simulation")]
    if let Some(number) = seeded::number() {
        return number;
    }
    RandomState::new().build_hasher().finish()
}

#[cfg(feature = "__simulation")]
pub use seeded::seed;

#[cfg(feature = "__simulation")]
mod seeded {
    use std::cell::Cell;

    thread_local! {
        static STATE: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Makes this thread's lease ids and jitter follow from the seed, so that they are no longer secret; with `None`
    /// they come from the system again. For simulations, which must give the same history twice.
    pub fn seed(seed: Option<u64>) {
        STATE.set(seed);
    }

    /// The next number of splitmix64.
    pub(super) fn number() -> Option<u64> {
        let state = STATE.get()?.wrapping_add(0x9e37_79b9_7f4a_7c15);
        STATE.set(Some(state));
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(mixed ^ (mixed >> 31))
    }

    pub(super) fn fill(bytes: &mut [u8]) -> Option<()> {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&number()?.to_le_bytes()[..part.len()]);
        }
        Some(())
    }
}

#[cfg(all(test, feature = "__simulation"))]
mod tests {
    use crate::lease_id::LeaseId;

    #[test]
    fn a_seeded_thread_makes_the_same_ids_again_and_others_do_not() {
        let ids = || {
            super::seed(Some(7));
            let ids = [LeaseId::random(), LeaseId::random()];
            super::seed(None);
            ids
        };
        let first = ids();
        assert_eq!(first, ids());
        assert_ne!(first[0], first[1]);
        assert!(!first.contains(&LeaseId::random()));
        super::seed(Some(7));
        let other = std::thread::spawn(LeaseId::random).join().unwrap();
        super::seed(None);
        assert!(!first.contains(&other));
    }
}
