//! Runs seeds of the simulation: `sim [SEEDS [FROM]]`, or one of them, with its history: `sim seed N`.

use std::process::ExitCode;

use leasehold_torture::sim::{self, Options};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |place: usize, default: u64| args.get(place).and_then(|arg| arg.parse().ok()).unwrap_or(default);
    if args.first().is_some_and(|arg| arg == "seed") {
        let seed = number(1, 0);
        print!("{}", sim::simulate(seed));
        let (_, _, violations) = sim::judge(seed);
        violations.iter().for_each(|violation| println!("{violation}"));
        return ExitCode::from(u8::from(!violations.is_empty()));
    }
    let (seeds, from) = (number(0, 5000), number(1, 0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = sim::run(from..from + seeds, Options { threads, ..Options::default() });
    print!("{report}");
    ExitCode::from(u8::from(!report.is_good()))
}
