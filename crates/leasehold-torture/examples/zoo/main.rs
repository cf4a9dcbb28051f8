//! Plants each defect of the zoo, or the named ones, and waits until its check sees it. Then, with none planted, the
//! same seeds and more must show nothing: `zoo [simulated|live|DEFECT…]`.
//!
//! The simulated part builds without the feature `run`, and so without any store; defects of the stores need it.

#[cfg(feature = "run")]
mod live;

use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use leasehold_testbed::dice::{chosen_seed, fresh_seed};
use leasehold_torture::sim::{self, Options};
use leasehold_torture::zoo::{ZOO, hunt};

/// Seeds for each defect. What a seed shows does not depend on the machine's speed.
const PATIENCE: u64 = 8000;

/// Seeds without a defect: the same in every run, and new ones that no run has tried before.
const SEEDS: u64 = 5000;
const FRESH: u64 = 1000;

fn main() -> ExitCode {
    #[cfg(feature = "run")]
    if let Some(code) = live::play() {
        return code;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let wanted =
        |kind: &str, name: &str| words.is_empty() || words.iter().any(|word| word == kind || word == name);
    let first = chosen_seed();
    // Some defects panic on the way; only the check counts.
    std::panic::set_hook(Box::new(|_| ()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let simulated: Vec<_> = ZOO.iter().filter(|one| wanted("simulated", one.bug.as_str())).collect();
    let (mut escaped, mut last) = (0, 0);
    if !simulated.is_empty() {
        header("seed");
    }
    for exhibit in &simulated {
        let hunt = hunt(**exhibit, PATIENCE, threads);
        let check = format!("{:?}", exhibit.caught_by);
        let also: Vec<String> = hunt.also.iter().map(|other| format!("{other:?}")).collect();
        let seed = hunt.seed.map(|seed| seed.to_string());
        tell(exhibit.bug.as_str(), &check, seed, hunt.took, &also.join(" "));
        escaped += usize::from(hunt.seed.is_none());
        last = hunt.seed.unwrap_or(0).max(last);
    }
    #[cfg(feature = "run")]
    let (live, missed) = live::hunt(wanted);
    #[cfg(not(feature = "run"))]
    let (live, missed) = (0, 0);
    let all = simulated.len() + live;
    escaped += missed;
    if all == 0 {
        println!("no such defect: {}", words.join(" "));
        return ExitCode::FAILURE;
    }
    let caught = format!("{} of {all} defects were caught by the check that is named", all - escaped);
    if !words.is_empty() && words != ["simulated"] {
        println!("{caught}");
        return ExitCode::from(u8::from(escaped > 0));
    }
    let begun = Instant::now();
    let seeds = first.map_or(0..SEEDS.max(last + 1), |first| first..first + SEEDS);
    let mut good = report(seeds, begun, threads);
    if first.is_none() {
        let fresh = fresh_seed();
        println!("\nfresh seeds; SEED={fresh} scripts/zoo.sh simulated repeats them:");
        good &= report(fresh..fresh + FRESH, Instant::now(), threads);
    }
    println!("{caught}");
    ExitCode::from(u8::from(escaped > 0 || !good))
}

/// Simulates these seeds without a defect. Returns whether nothing was found.
fn report(seeds: Range<u64>, begun: Instant, threads: usize) -> bool {
    let report = sim::run(seeds.clone(), Options { threads, ..Options::default() });
    let took = begun.elapsed().as_secs_f64();
    println!("\nwithout a defect, from seed {} on, in {took:.1} s: {report}", seeds.start);
    report.is_good()
}

fn header(shown: &str) {
    println!("{:<26} {:<7} {shown:>22} {:>8}  also seen by", "defect", "check", "time");
}

fn tell(name: &str, check: &str, shown: Option<String>, took: Duration, also: &str) {
    let shown = shown.unwrap_or_else(|| "none".into());
    println!("{name:<26} {check:<7} {shown:>22} {:>6.1} s  {also}", took.as_secs_f64());
}
