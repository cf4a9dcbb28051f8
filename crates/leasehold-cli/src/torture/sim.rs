//! `leasehold torture sim`: seeds of the deterministic simulation, of the library itself and without any store.

use std::process::ExitCode;

use leasehold_torture::sim::{self, Options};

use crate::exit::Exit;
use crate::report::{Failure, answer};

const EXAMPLES: &str = "\
Examples:
  leasehold torture sim                     5 000 seeds
  leasehold torture sim --seeds 1000000     A long run
  leasehold torture sim --seed 7            One seed, with its whole history";

/// Simulate the library with a store and a network that fail in every way, and judge what happened.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Sim {
    /// How many seeds
    #[arg(long, default_value_t = 5000, value_name = "N")]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0, value_name = "N")]
    from: u64,
    /// One seed, with its whole history
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
}

/// Runs it.
pub(crate) fn run(args: &Sim) -> Result<ExitCode, Failure> {
    if let Some(seed) = args.seed {
        let (_, _, violations) = sim::judge(seed);
        let told: String = violations.iter().map(|violation| format!("{violation}\n")).collect();
        answer(&format!("{}{told}", sim::simulate(seed)))?;
        return Ok(if violations.is_empty() { Exit::Success } else { Exit::Violated }.into());
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let seeds = args.from..args.from.saturating_add(args.seeds);
    let report = sim::run(seeds, Options { threads, ..Options::default() });
    answer(&report.to_string())?;
    let exit = match (report.failures.is_empty(), report.missing().is_empty()) {
        (false, _) => Exit::Violated,
        (_, false) => Exit::Vacuous,
        _ => Exit::Success,
    };
    Ok(exit.into())
}
