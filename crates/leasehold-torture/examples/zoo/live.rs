//! Defects of the stores: each is caught by torture of a real store, in separate processes.

use std::collections::BTreeSet;
use std::io;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use leasehold_torture::roles;
use leasehold_torture::zoo::live::{LIVE, LiveExhibit};

use super::{header, tell};

/// For each defect of a store: no run starts after this time.
const PATIENCE: Duration = Duration::from_secs(30);

/// The argument with which the zoo starts itself, to torture a store with a defect.
const RUN: &str = "--run";

/// Plays the role of this process, if it is not the zoo itself.
pub(super) fn play() -> Option<ExitCode> {
    if let Some(code) = roles::play_if_asked() {
        return Some(code);
    }
    match Vec::from_iter(std::env::args().skip(1)).as_slice() {
        [word, name, seed, directory] if word == RUN => {
            Some(torture(name, seed.parse().unwrap_or(1), directory))
        }
        _ => None,
    }
}

/// Plants the wanted defects one after the other. Returns how many there were, and how many were not caught.
pub(super) fn hunt(wanted: impl Fn(&str, &str) -> bool) -> (usize, usize) {
    let live: Vec<_> = LIVE.iter().filter(|one| wanted("live", one.bug.as_str())).collect();
    if !live.is_empty() {
        println!();
        header("run");
    }
    (live.len(), live.into_iter().filter(|exhibit| !catch(exhibit)).count())
}

/// Tortures the store with the defect until its check sees it. Returns whether it did.
fn catch(exhibit: &LiveExhibit) -> bool {
    let (name, check) = (exhibit.bug.as_str(), exhibit.check());
    let begun = Instant::now();
    let mut also = BTreeSet::new();
    for seed in 1.. {
        if begun.elapsed() > PATIENCE {
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

/// One run, in a process that has the defect, as do all processes it starts. Returns what was broken.
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

/// The code of that process.
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
