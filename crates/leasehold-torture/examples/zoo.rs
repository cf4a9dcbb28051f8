//! Plants each defect of the zoo, or the one that is named, and waits until its check sees it; then, with none planted,
//! the same seeds and more must show nothing: `zoo [DEFECT]`.

use std::process::ExitCode;
use std::time::Instant;

use leasehold_torture::sim::{self, Options};
use leasehold_torture::zoo::{ZOO, hunt};

/// For each defect: about half a minute. What a seed shows does not depend on how fast the machine is.
const PATIENCE: u64 = 2000;

/// Without a defect.
const SEEDS: u64 = 5000;

fn main() -> ExitCode {
    let only = std::env::args().nth(1);
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    // Some defects panic on their way; the check tells.
    std::panic::set_hook(Box::new(|_| ()));
    let mut escaped = 0;
    let mut last = 0;
    println!("{:<24} {:<8} {:>6} {:>8}  also seen by", "defect", "check", "seed", "time");
    for exhibit in ZOO.iter().filter(|exhibit| wanted(exhibit.bug.as_str())) {
        let hunt = hunt(*exhibit, PATIENCE);
        let check = format!("{:?}", exhibit.caught_by);
        let seed = hunt.seed.map_or("none".into(), |seed| seed.to_string());
        let also: Vec<String> = hunt.also.iter().map(|other| format!("{other:?}")).collect();
        let name = exhibit.bug.as_str();
        println!("{name:<24} {check:<8} {seed:>6} {:>6.1} s  {}", hunt.took.as_secs_f64(), also.join(" "));
        escaped += usize::from(hunt.seed.is_none());
        last = hunt.seed.unwrap_or(0).max(last);
    }
    if only.is_some() {
        return ExitCode::from(u8::from(escaped > 0));
    }
    let begun = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = sim::run(0..SEEDS.max(last + 1), Options { threads, ..Options::default() });
    println!("\nwithout a defect, in {:.1} s: {report}", begun.elapsed().as_secs_f64());
    println!("{} of {} defects were caught by the check that is named", ZOO.len() - escaped, ZOO.len());
    ExitCode::from(u8::from(escaped > 0 || !report.is_good()))
}
