//! Runs seeds of the deterministic simulation; `scripts/sim.sh` starts it. The shipped `leasehold` contains no
//! simulation.

use std::process::ExitCode;

use leasehold_torture::sim::{self, Options};

const USAGE: &str = "\
Simulates the library with a store and a network that fail in every way, and judges what happened.

Usage: scripts/sim.sh [--seeds N] [--from N]
       scripts/sim.sh --seed N

  --seeds N   How many seeds [default: 5000]
  --from N    The first of them [default: 0]
  --seed N    One seed, with its whole history

Exit: 0 passed, 80 a promise was broken, 81 too little happened to show anything, 64 usage";

/// The exit codes of `leasehold torture`.
const USAGE_ERROR: u8 = 64;
const VIOLATED: u8 = 80;
const VACUOUS: u8 = 81;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let (mut seeds, mut from, mut one) = (None, None, None);
    for pair in words.chunks(2) {
        let wanted = match pair[0].as_str() {
            "--seeds" => &mut seeds,
            "--from" => &mut from,
            "--seed" => &mut one,
            _ => return usage(),
        };
        match pair.get(1).and_then(|number| number.parse::<u64>().ok()) {
            Some(number) => *wanted = Some(number),
            None => return usage(),
        }
    }
    match one {
        Some(_) if seeds.is_some() || from.is_some() => usage(),
        Some(seed) => show(seed),
        None => simulate(from.unwrap_or(0), seeds.unwrap_or(5000)),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(USAGE_ERROR)
}

/// Prints one seed with its whole history.
fn show(seed: u64) -> ExitCode {
    print!("{}", sim::simulate(seed));
    let (_, _, violations) = sim::judge(seed);
    violations.iter().for_each(|violation| println!("{violation}"));
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(VIOLATED) }
}

fn simulate(from: u64, seeds: u64) -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = sim::run(from..from.saturating_add(seeds), Options { threads, ..Options::default() });
    print!("{report}");
    match (report.failures.is_empty(), report.missing().is_empty()) {
        (false, _) => ExitCode::from(VIOLATED),
        (_, false) => ExitCode::from(VACUOUS),
        _ => ExitCode::SUCCESS,
    }
}
