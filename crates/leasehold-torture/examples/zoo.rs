//! Plants each defect of the zoo and waits until its check sees it: `zoo [SEEDS to survey]`.
use leasehold_torture::{sim, zoo::ZOO};
use std::collections::BTreeMap;

fn main() {
    let seeds: u64 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(500);
    let only = std::env::args().nth(2);
    for exhibit in ZOO {
        if only.as_ref().is_some_and(|only| only != exhibit.bug.as_str()) {
            continue;
        }
        leasehold::bugs::plant(Some(exhibit.bug));
        let mut seen: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        let t = std::time::Instant::now();
        for seed in 0..seeds {
            let (.., violations) = sim::judge(seed);
            let mut inv: Vec<_> = violations.iter().map(|v| v.invariant).collect();
            inv.sort();
            inv.dedup();
            for i in inv {
                let e = seen.entry(i).or_insert((0, seed));
                e.0 += 1;
            }
            if t.elapsed().as_secs() > 30 {
                break;
            }
        }
        println!("{:24} want {:?} {:?} {:?}", exhibit.bug.as_str(), exhibit.caught_by, seen, t.elapsed());
    }
}
