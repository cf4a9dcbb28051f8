//! The report on hours of torture: one screen for people, and `report.json`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::report::{FILE, Outcome};
use crate::store::{Profile, Store};

use super::growth::Growth;

/// How many rounds that proved too little are named on the screen; all are in the file.
const TOLD: usize = 5;

/// One run among many.
#[derive(Debug, Clone, Serialize)]
pub struct Round {
    /// Its number, from 1.
    pub number: u64,
    /// The store.
    pub store: Store,
    /// The profile of faults.
    pub profile: Profile,
    /// The seed of its plan.
    pub seed: u64,
    /// How it ended; `None` if the time was over first.
    pub outcome: Option<Outcome>,
    /// Hand-overs.
    pub handovers: u64,
    /// What was broken, and where the histories are.
    pub broken: Option<String>,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Round { number, store, profile, seed, handovers, .. } = self;
        let ended = match (&self.broken, self.outcome) {
            (Some(broken), _) => format!("BROKEN: {broken}"),
            (None, Some(Outcome::Passed)) => "passed".into(),
            (None, Some(_)) => "vacuous".into(),
            (None, None) => "cut short".into(),
        };
        write!(f, "round {number}: {store} {profile}, seed {seed}, {handovers} hand-overs: {ended}")
    }
}

/// The report.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// The seeds of the rounds derive from this.
    pub seed: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Whether a signal ended it early.
    pub interrupted: bool,
    /// How many locks the residents were granted.
    pub acquires: u64,
    /// How often everything was measured.
    pub samples: u64,
    /// All rounds.
    pub rounds: Vec<Round>,
    /// The judgement on all that was measured.
    pub growth: Vec<Growth>,
    /// Everything that is wrong.
    pub broken: Vec<String>,
    /// Why it proves too little, if it does.
    pub too_little: Vec<String>,
    /// The directory of the run.
    pub directory: PathBuf,
}

impl Report {
    /// Judges: what is broken, and what proves too little.
    pub(super) fn judged(mut self, rounds_wanted: &[(Store, Profile)]) -> Self {
        self.broken.extend(self.rounds.iter().filter(|round| round.broken.is_some()).map(Round::to_string));
        let grows = self.growth.iter().filter(|growth| growth.grows);
        self.broken.extend(grows.map(|growth| format!("it grows: {growth}")));
        let unknown = self.growth.iter().filter(|growth| growth.quarters.is_none()).count();
        if unknown > 0 || self.growth.is_empty() {
            let all = self.growth.len();
            self.too_little.push(format!("{unknown} of {all} figures were measured too rarely to be judged"));
        }
        for (store, profile) in rounds_wanted {
            let of = |round: &&Round| round.store == *store && round.profile == *profile;
            if !self.rounds.iter().filter(of).any(|round| round.outcome == Some(Outcome::Passed)) {
                self.too_little.push(format!("{store} {profile}: no round that shows something"));
            }
        }
        self.outcome = match (self.broken.is_empty(), self.too_little.is_empty()) {
            (false, _) => Outcome::Violated,
            (true, false) => Outcome::Vacuous,
            (true, true) => Outcome::Passed,
        };
        self
    }

    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        // Write to another file first, because a user may be reading the report.
        let new = directory.join("report.json.new");
        std::fs::write(&new, serde_json::to_string_pretty(self)? + "\n")?;
        std::fs::rename(new, directory.join(FILE))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { seconds, seed, acquires, samples, rounds, .. } = self;
        let early = if self.interrupted { ", ended early" } else { "" };
        writeln!(f, "{:.2} hours{early}, seed {seed}", seconds / 3600.0)?;
        let ended = |outcome| rounds.iter().filter(|round| round.outcome == Some(outcome)).count();
        let handovers: u64 = rounds.iter().map(|round| round.handovers).sum();
        writeln!(
            f,
            "  rounds          {}, {} passed, {} vacuous; {handovers} hand-overs",
            rounds.len(),
            ended(Outcome::Passed),
            ended(Outcome::Vacuous)
        )?;
        writeln!(f, "  residents       {acquires} acquires, measured {samples} times")?;
        for growth in &self.growth {
            let label = match (growth.grows, growth.quarters) {
                (true, _) => "GROWS",
                (false, Some(_)) => "steady",
                (false, None) => "not judged",
            };
            writeln!(f, "  {label:<16}{growth}")?;
        }
        let vacuous = |round: &&Round| round.outcome == Some(Outcome::Vacuous);
        for round in rounds.iter().filter(vacuous).take(TOLD) {
            writeln!(f, "  {round}")?;
        }
        for why in &self.too_little {
            writeln!(f, "  TOO LITTLE      {why}")?;
        }
        for what in &self.broken {
            writeln!(f, "  BROKEN          {what}")?;
        }
        match self.outcome {
            Outcome::Passed => writeln!(f, "passed: no violations, nothing grows"),
            Outcome::Vacuous => writeln!(f, "VACUOUS: nothing is wrong, but too little happened to show it"),
            Outcome::Violated => {
                writeln!(f, "VIOLATED: {}; see {}", self.broken.len(), self.directory.display())
            }
        }
    }
}
