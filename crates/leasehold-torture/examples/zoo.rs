//! Plants each defect of the zoo, or those that are named, and waits until its check sees it; then, with none planted,
//! the same seeds and more must show nothing: `zoo [simulated|live|DEFECT…]`.

use std::collections::BTreeSet;
use std::io;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use leasehold_torture::roles;
use leasehold_torture::sim::{self, Options};
use leasehold_torture::zoo::live::{LIVE, LiveExhibit};
use leasehold_torture::zoo::{ZOO, hunt};

/// For each defect: about half a minute. What a seed shows does not depend on how fast the machine is.
const PATIENCE: u64 = 2000;

/// For each defect of a store: no run is begun after this.
const LIVE_PATIENCE: Duration = Duration::from_secs(30);

/// Without a defect.
const SEEDS: u64 = 5000;

/// The word with which the zoo starts itself, to torture a store with a defect.
const RUN: &str = "--run";

fn main() -> ExitCode {
    if let Some(code) = roles::play() {
        return code;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [word, name, seed, directory] = words.as_slice()
        && word == RUN
    {
        return torture(name, seed.parse().unwrap_or(1), directory);
    }
    let wanted =
        |kind: &str, name: &str| words.is_empty() || words.iter().any(|word| word == kind || word == name);
    let simulated: Vec<_> = ZOO.iter().filter(|one| wanted("simulated", one.bug.as_str())).collect();
    let live: Vec<_> = LIVE.iter().filter(|one| wanted("live", one.bug.as_str())).collect();
    // Some defects panic on their way; the check tells.
    std::panic::set_hook(Box::new(|_| ()));
    let mut escaped = 0;
    let mut last = 0;
    let header =
        |shown: &str| println!("{:<26} {:<7} {shown:>22} {:>8}  also seen by", "defect", "check", "time");
    if !simulated.is_empty() {
        header("seed");
    }
    for exhibit in &simulated {
        let hunt = hunt(**exhibit, PATIENCE);
        let check = format!("{:?}", exhibit.caught_by);
        let also: Vec<String> = hunt.also.iter().map(|other| format!("{other:?}")).collect();
        tell(
            exhibit.bug.as_str(),
            &check,
            hunt.seed.map(|seed| seed.to_string()),
            hunt.took,
            &also.join(" "),
        );
        escaped += usize::from(hunt.seed.is_none());
        last = hunt.seed.unwrap_or(0).max(last);
    }
    if !live.is_empty() {
        println!();
        header("run");
    }
    for exhibit in &live {
        escaped += usize::from(!catch(exhibit));
    }
    let all = simulated.len() + live.len();
    let caught = format!("{} of {all} defects were caught by the check that is named", all - escaped);
    if !words.is_empty() && words != ["simulated"] {
        println!("{caught}");
        return ExitCode::from(u8::from(escaped > 0));
    }
    let begun = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = sim::run(0..SEEDS.max(last + 1), Options { threads, ..Options::default() });
    println!("\nwithout a defect, in {:.1} s: {report}", begun.elapsed().as_secs_f64());
    println!("{caught}");
    ExitCode::from(u8::from(escaped > 0 || !report.is_good()))
}

fn tell(name: &str, check: &str, shown: Option<String>, took: Duration, also: &str) {
    let shown = shown.unwrap_or_else(|| "none".into());
    println!("{name:<26} {check:<7} {shown:>22} {:>6.1} s  {also}", took.as_secs_f64());
}

/// Tortures the store with the defect until its check sees it; whether it did.
fn catch(exhibit: &LiveExhibit) -> bool {
    let (name, check) = (exhibit.bug.as_str(), exhibit.check());
    let begun = Instant::now();
    let mut also = BTreeSet::new();
    for seed in 1.. {
        if begun.elapsed() > LIVE_PATIENCE {
            break;
        }
        match run(name, seed) {
            Ok(broken) => also.extend(broken),
            Err(error) => drop(also.insert(format!("({error})"))),
        }
        if also.remove(&check) {
            let shown = format!("{} {} {seed}", exhibit.store, exhibit.profile);
            tell(name, &check, Some(shown), begun.elapsed(), &Vec::from_iter(also).join(" "));
            return true;
        }
    }
    tell(name, &check, None, begun.elapsed(), &Vec::from_iter(also).join(" "));
    false
}

/// One run, by a process that has the defect, and all that it starts; what was broken.
fn run(name: &str, seed: u64) -> io::Result<Vec<String>> {
    let out = std::env::temp_dir().join(format!("leasehold-zoo-{name}-{}-{seed}", std::process::id()));
    let ran = Command::new(std::env::current_exe()?)
        .args([RUN, name, &seed.to_string()])
        .arg(&out)
        .env("LEASEHOLD_BUG", name)
        .output()?;
    if std::env::var_os("LEASEHOLD_ZOO_KEEP").is_none() {
        let _ = std::fs::remove_dir_all(&out);
    }
    if !ran.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&ran.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).split_whitespace().map(str::to_owned).collect())
}

/// As that process.
fn torture(name: &str, seed: u64, directory: &str) -> ExitCode {
    let Some(exhibit) = LiveExhibit::of(name) else { return ExitCode::from(64) };
    match exhibit.run(seed, directory.as_ref()) {
        Ok(report) => {
            println!("{}", Vec::from_iter(LiveExhibit::signs(&report)).join(" "));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
