//! Runs seeds of the simulation: `sim [FROM [SEEDS [THREADS]]]`, or `sim one SEED`.
use leasehold_torture::sim;

fn main() {
    let mut args = std::env::args().skip(1);
    let first = args.next().unwrap_or_default();
    if first == "one" {
        let seed = args.next().and_then(|a| a.parse().ok()).unwrap_or(0);
        let seen = sim::simulate(seed);
        println!("{:#?}", seen.setting);
        let mut all: Vec<_> = seen.histories.concat();
        all.sort_by_key(|record| record.at);
        for r in all {
            let ms = (r.at - seen.setting.span.0) as f64 / 1e6;
            let left = if r.deadline > r.at {
                format!("+{:.3}", (r.deadline - r.at) as f64 / 1e6)
            } else {
                r.deadline.to_string()
            };
            println!(
                "{ms:>14.6} {}.{} c{} n{} {:?} {:?} lease {:x} fence {} deadline {left} value {} {:?}",
                r.worker,
                r.task,
                r.claim,
                r.name,
                r.kind,
                r.mode,
                r.lease & 0xffff,
                r.fence,
                r.value,
                r.fault
            );
        }
        for v in leasehold_torture::check::judge(&seen.setting, &seen.histories).violations {
            println!("{v}");
        }
        return;
    }
    let from: u64 = first.parse().unwrap_or(0);
    let n: u64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(1000);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(1);
    let start = std::time::Instant::now();
    let report = sim::run(from..from + n, sim::Options { threads, ..sim::Options::default() });
    println!("{report}\n{:?}", start.elapsed());
    std::process::exit(i32::from(!report.is_good()));
}
