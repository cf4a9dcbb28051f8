//! The simulation finds nothing in the library as it is, gives the same history twice, and leaves nothing untried.

use leasehold_testbed::dice::{chosen_seed, fresh_seed};
use leasehold_torture::sim::{self, Options};

/// How many seeds: some, or as many as the variable `LEASEHOLD_SEEDS` says. `make zoo` and `make sim` try thousands,
/// with optimisation.
fn seeds() -> u64 {
    let set = std::env::var("LEASEHOLD_SEEDS").ok();
    set.map_or(250, |seeds| seeds.parse().expect("LEASEHOLD_SEEDS is a number"))
}

#[test]
fn nothing_is_broken_and_everything_that_can_happen_does() {
    let (first, seeds) = (chosen_seed().unwrap_or(0), seeds());
    let report = sim::run(first..first + seeds, Options { threads: 2, ..Options::default() });
    println!("{report}");
    assert!(report.is_good(), "{report}");
    assert_eq!(report.seeds, seeds);
    assert_eq!(report.counts.missing(), [], "{report}");
}

/// Seeds that no run has tried before: a failure here is a defect.
#[test]
fn fresh_seeds_break_nothing_either() {
    const FRESH: u64 = 60;
    let first = chosen_seed().unwrap_or_else(fresh_seed);
    println!("SEED={first}");
    let report = sim::run(first..first + FRESH, Options { threads: 2, ..Options::default() });
    let again =
        format!("SEED={first} cargo test -p leasehold-torture --all-features --test simulation fresh");
    assert!(report.is_good(), "repeat it with: {again}\n{report}");
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let simulate = |seed| {
        let seen = sim::simulate(seed);
        let bytes: Vec<u8> = seen.histories.concat().iter().flat_map(|record| record.to_bytes()).collect();
        (bytes, seen.setting, seen.counts)
    };
    let mut first = simulate(0);
    for seed in 0..40 {
        // Also on another thread, after other seeds.
        let again = std::thread::spawn(move || {
            simulate(seed + 1);
            simulate(seed)
        });
        let next = simulate(seed + 1);
        assert!(first == again.join().expect("it does not panic"), "seed {seed} gave two histories");
        assert!(first.0 != next.0, "another seed gives another history");
        first = next;
    }
}
