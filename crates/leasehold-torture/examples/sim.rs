//! Runs seeds of the simulation: `sim [--from N] [--seeds N] [--seed N]`.
fn main() {
    let mut args = std::env::args().skip(1);
    let from: u64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(0);
    let n: u64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(10);
    let start = std::time::Instant::now();
    let mut records = 0;
    let mut most = (0u128, 0);
    let mut counts = vec![0u64; leasehold_torture::sim::Count::ALL.len()];
    for seed in from..from + n {
        let t = std::time::Instant::now();
        let seen = leasehold_torture::sim::simulate(seed);
        if t.elapsed().as_micros() > most.0 {
            most = (t.elapsed().as_micros(), seed);
        }
        records += seen.histories.iter().map(Vec::len).sum::<usize>();
        for (i, c) in leasehold_torture::sim::Count::ALL.iter().enumerate() {
            counts[i] += seen.counts.of(*c);
        }
    }
    println!("{n} seeds {records} records {:?} slowest {most:?}", start.elapsed());
    for (i, c) in leasehold_torture::sim::Count::ALL.iter().enumerate() {
        println!("{} {}", c.as_str(), counts[i]);
    }
}
