//! The report on a run: one screen for people, and `report.json`.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::check::{Figures, Invariant, Judged, Verdict, Violation};
use crate::floors::{self, Floor};
use crate::history::setting::Promises;
use crate::plan::Plan;
use crate::store::Profile;
use crate::supervise::{Faults, Looks, Observed, Order};

/// The name of its file in the directory of a run.
pub const FILE: &str = "report.json";

/// How many violations are shown on the screen; all are in the file.
const TOLD: usize = 3;

/// From this many percent on, other processes use too much of the machine for times to be meaningful.
const OTHERS: u64 = 30;

/// Whether the invariant is only about how quickly something happened.
fn is_of_time(invariant: Invariant) -> bool {
    matches!(
        invariant,
        Invariant::J1 | Invariant::J2 | Invariant::J4 | Invariant::J5 | Invariant::J9 | Invariant::J10
    )
}

/// The outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Every promise was kept, and enough happened to prove it.
    Passed,
    /// Too little happened to prove anything.
    Vacuous,
    /// A promise was broken.
    Violated,
}

/// The report.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// The seed of its plan.
    pub seed: u64,
    /// The store, and what is in front of it.
    pub store: String,
    /// The profile of faults.
    pub profile: Profile,
    /// How the store was configured.
    pub configuration: String,
    /// What the store promises.
    pub promises: Promises,
    /// The ttl of leases, in milliseconds.
    pub ttl_ms: u64,
    /// Locks that were always wanted.
    pub hot: u16,
    /// Worker processes at any time.
    pub workers: usize,
    /// Worker processes in all.
    pub processes: u32,
    /// How long they worked, in seconds.
    pub seconds: f64,
    /// Workers that did not finish when asked to.
    pub stuck: usize,
    /// The faults, by kind.
    pub faults: Faults,
    /// The results of the sweeps and lists of the profile `many`.
    pub looks: Looks,
    /// The figures from the histories.
    pub figures: Figures,
    /// What must have happened for the run to prove anything.
    pub floors: Vec<Floor>,
    /// The share of the used processor time that went to unrelated processes, in percent.
    pub others: u64,
    /// How often each invariant was broken.
    pub broken: BTreeMap<String, usize>,
    /// How often each time bound was broken on a machine that others used too much: these do not count.
    pub excused: BTreeMap<String, usize>,
    /// All violations.
    pub violations: Vec<Violation>,
    /// The directory of the run.
    pub directory: PathBuf,
}

impl Report {
    pub(crate) fn new(
        order: &Order,
        plan: &Plan,
        seen: Observed,
        verdict: Verdict,
        out: &Path,
    ) -> io::Result<Self> {
        let Verdict { violations, figures } = verdict;
        let floors = floors::of(plan, &seen.promises, &seen.faults, &seen.looks, &figures);
        let (mut broken, mut excused) = (BTreeMap::new(), BTreeMap::new());
        for violation in &violations {
            let timely = seen.others <= OTHERS || !is_of_time(violation.invariant);
            let list = if timely { &mut broken } else { &mut excused };
            *list.entry(format!("{:?}", violation.invariant)).or_default() += 1;
        }
        if !seen.looks.failed.is_empty() {
            let list = if seen.others <= OTHERS { &mut broken } else { &mut excused };
            list.insert("slow looks".into(), seen.looks.failed.len());
        }
        if seen.stuck > 0 {
            // All faults were undone by then: a worker that cannot give back its locks hangs.
            broken.insert("stuck workers".into(), seen.stuck);
        }
        let outcome = match (broken.is_empty(), floors.iter().all(Floor::is_met)) {
            (false, _) => Outcome::Violated,
            (true, false) => Outcome::Vacuous,
            (true, true) => Outcome::Passed,
        };
        Ok(Report {
            outcome,
            seed: plan.seed,
            store: plan.front.before(plan.store),
            profile: plan.profile,
            configuration: seen.configuration,
            promises: seen.promises,
            ttl_ms: plan.ttl_ms,
            hot: plan.hot,
            workers: order.workers,
            processes: seen.processes,
            seconds: seen.worked.as_secs_f64(),
            stuck: seen.stuck,
            faults: seen.faults,
            looks: seen.looks,
            figures,
            floors,
            others: seen.others,
            broken,
            excused,
            violations,
            directory: out.to_owned(),
        })
    }

    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        std::fs::write(directory.join(FILE), serde_json::to_string_pretty(self)? + "\n")
    }
}

/// With a readable number of digits.
fn ms(nanos: u64) -> String {
    format!("{:.1} ms", nanos as f64 / 1e6)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { store, profile, seed, seconds, workers, processes, ttl_ms, figures, .. } = self;
        writeln!(f, "{store} {profile}, seed {seed}: {}", self.configuration)?;
        writeln!(f, "  {seconds:.1} s, {workers} workers at a time, {processes} in all, ttl {ttl_ms} ms")?;
        let faults: Vec<_> = self
            .faults
            .0
            .iter()
            .map(|(name, faults)| {
                let holders = if faults.holders > 0 {
                    format!(" ({} with a lock)", faults.holders)
                } else {
                    String::new()
                };
                let felt = self.figures.felt.get(name).copied().unwrap_or(0);
                format!("{name} {}/{}{holders}, felt {felt}", faults.landed, faults.planned)
            })
            .collect();
        if !faults.is_empty() {
            writeln!(f, "  faults landed   {}", faults.join("; "))?;
        }
        let Figures { grants, handovers, expiries, takeovers, unknowns, busy, failed, dropped, .. } = figures;
        writeln!(
            f,
            "  acquires        {grants} granted, {busy} busy, {failed} failed, {dropped} dropped, {unknowns} calls unknown"
        )?;
        writeln!(f, "  leases          {handovers} hand-overs, {expiries} expiries, {takeovers} takeovers")?;
        writeln!(f, "  hand-overs      {} judged", figures.handovers_judged)?;
        let operations = |kind: &str| figures.operations.get(kind).copied().unwrap_or(0);
        writeln!(
            f,
            "  used            {} readers, {} permits, {} revoked at once, {} downgrades, {} shortened, {} adopted ({} by another process), {} lists",
            figures.readers,
            figures.permits,
            figures.revoked,
            operations("Downgraded"),
            operations("Shortened"),
            operations("Adopted"),
            figures.adopted,
            figures.lists
        )?;
        let faces: Vec<_> = figures.faces.iter().map(|(face, count)| format!("{face} {count}")).collect();
        writeln!(f, "  by              {}, Run {}", faces.join(", "), operations("RunEnded"))?;
        let lost: Vec<_> = figures.lost.iter().map(|(why, count)| format!("{count} {why}")).collect();
        let lost = if lost.is_empty() { "none".into() } else { lost.join(", ") };
        let margin =
            figures.lost_margin.map(|margin| format!("; least margin before another had it {}", ms(margin)));
        writeln!(f, "  lost            {lost}{}", margin.unwrap_or_default())?;
        let (over, take) = (&figures.handover, &figures.takeover);
        writeln!(f, "  hand-over       p50 {}, p99 {}, max {}", ms(over.p50), ms(over.p99), ms(over.max))?;
        writeln!(f, "  takeover        p50 {}, p99 {}, max {}", ms(take.p50), ms(take.p99), ms(take.max))?;
        writeln!(
            f,
            "  resource        {} stale writes rejected, {} overlaps without fences",
            figures.fenced_saves, figures.unfenced_overlaps
        )?;
        writeln!(
            f,
            "  order, rest     {} overtaken, {} left over",
            figures.fifo_inversions, figures.leftovers
        )?;
        let Looks { sweeps, lists, failed, slowest_sweep_ms, slowest_list_ms } = &self.looks;
        if sweeps + lists + failed.len() as u64 > 0 {
            writeln!(
                f,
                "  looks           {sweeps} sweeps, slowest {slowest_sweep_ms} ms; {lists} pages, slowest \
                 {slowest_list_ms} ms; {} too slow or failed",
                failed.len()
            )?;
        }
        for failed in failed.iter().take(TOLD) {
            writeln!(f, "  TOO SLOW        {failed}")?;
        }
        let judged: Vec<_> = figures
            .judged
            .iter()
            .map(|(what, Judged { judged, waived, uncertain })| {
                let besides = [(*waived, "waived"), (*uncertain, "uncertain")];
                let besides = besides.iter().filter(|(count, _)| *count > 0);
                let besides: Vec<_> = besides.map(|(count, word)| format!("{count} {word}")).collect();
                let besides =
                    if besides.is_empty() { String::new() } else { format!(" ({})", besides.join(", ")) };
                format!("{what} {judged}{besides}")
            })
            .collect();
        for (place, some) in judged.chunks(4).enumerate() {
            writeln!(f, "  {:<16}{}", if place == 0 { "judged" } else { "" }, some.join(", "))?;
        }
        let (stalls, waived, others) = (figures.stalls, figures.waived, self.others);
        writeln!(
            f,
            "  machine         {stalls} stalls, {waived} bounds waived, {others} % of its work was for others"
        )?;
        if !self.excused.is_empty() {
            let all: Vec<_> = self.excused.iter().map(|(what, count)| format!("{what} {count}×")).collect();
            writeln!(
                f,
                "  EXCUSED         {}: others used too much of the machine for times to mean anything",
                all.join(", ")
            )?;
        }
        for floor in self.floors.iter().filter(|floor| !floor.is_met()) {
            writeln!(f, "  TOO LITTLE      {floor}")?;
        }
        for violation in self.violations.iter().take(TOLD) {
            writeln!(f, "  VIOLATION       {:?}: {}", violation.invariant, violation.seen)?;
        }
        if self.violations.len() > TOLD {
            writeln!(f, "  and {} more", self.violations.len() - TOLD)?;
        }
        let all: Vec<_> = self.broken.iter().map(|(what, count)| format!("{what} {count}×")).collect();
        match self.outcome {
            Outcome::Passed => writeln!(f, "passed: no violations"),
            Outcome::Vacuous => {
                writeln!(f, "VACUOUS: no violations, but too little happened to show anything")
            }
            Outcome::Violated => {
                writeln!(f, "VIOLATED: {}; the histories are in {}", all.join(", "), self.directory.display())
            }
        }
    }
}
