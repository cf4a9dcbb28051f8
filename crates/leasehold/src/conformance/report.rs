//! Runs all checks and reports the results.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _};

use super::{Check, Failure, Harness, checks};

/// The result of one check.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Outcome {
    /// The check saw what was promised.
    Passed,
    /// The check saw something else.
    Failed(Failure),
    /// The store does not claim an ability that the check needs; the text names it.
    DoesNotApply(String),
    /// The check was left out on purpose, for this reason. See [`Harness::without`].
    LeftOut(String),
}

/// Runs every check that applies, several at once, and reports on all of them.
///
/// # Cancel safety
/// As [`Check::run`].
pub async fn run_all(harness: &Harness) -> Report {
    let started = Instant::now();
    let info = harness.info();
    let run = |(place, check): (usize, Check)| async move {
        let started = Instant::now();
        let left_out = harness.left_out.iter().find(|(name, _)| name == check.name());
        let (outcome, not_judged) = if let Some(lack) = check.why_not(&info) {
            (Outcome::DoesNotApply(lack), Vec::new())
        } else if let Some((_, why)) = left_out {
            (Outcome::LeftOut(why.clone()), Vec::new())
        } else {
            let (result, not_judged) = check.run_and_tell(harness).await;
            (result.map_or_else(Outcome::Failed, |()| Outcome::Passed), not_judged)
        };
        (place, Row { check, outcome, not_judged, took: started.elapsed() })
    };
    let all = checks();
    let unknown = harness.left_out.iter().map(|(name, _)| name.clone());
    let unknown = unknown.filter(|name| all.iter().all(|check| check.name() != name)).collect();
    let mut rows: Vec<_> =
        stream::iter(all.into_iter().enumerate()).map(run).buffer_unordered(harness.at_once).collect().await;
    rows.sort_unstable_by_key(|(place, _)| *place);
    let rows = rows.into_iter().map(|(_, row)| row).collect();
    Report { scheme: info.scheme, rows, unknown, took: started.elapsed() }
}

/// The results of all checks. `Display` prints a table.
#[derive(Debug, Clone)]
#[must_use = "look at it, or let it assert_passed()"]
pub struct Report {
    scheme: &'static str,
    rows: Vec<Row>,
    unknown: Vec<String>,
    took: Duration,
}

#[derive(Debug, Clone)]
struct Row {
    check: Check,
    outcome: Outcome,
    /// Parts that were not judged, because the store lacks an ability.
    not_judged: Vec<&'static str>,
    took: Duration,
}

impl Report {
    /// Whether no check failed, and every check that was left out exists.
    pub fn is_passed(&self) -> bool {
        self.unknown.is_empty() && self.failures().next().is_none()
    }

    /// Panics with the report unless it is passed. Otherwise prints how many checks passed, and how many were skipped
    /// and why: a store that claims few abilities is tested little.
    ///
    /// # Panics
    /// If any check failed, or [`Harness::without`] named one that does not exist.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.is_passed(), "{self}");
        println!("{}", self.summary());
    }

    /// How many checks passed and failed, and how many were skipped, whole or in part, for each reason.
    pub fn summary(&self) -> String {
        let mut text = self.totals();
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for Row { outcome, not_judged, .. } in &self.rows {
            let whole = match outcome {
                Outcome::DoesNotApply(lack) => Some(lack.clone()),
                Outcome::LeftOut(why) => Some(format!("left out: {why}")),
                _ => None,
            };
            let parts = not_judged.iter().map(|what| format!("in part: {what}"));
            whole.into_iter().chain(parts).for_each(|reason| *reasons.entry(reason).or_default() += 1);
        }
        for (reason, checks) in reasons {
            text.push_str(&format!("\n  {checks} skipped: {reason}"));
        }
        text
    }

    fn totals(&self) -> String {
        format!(
            "{}: {} checks: {} passed, {} failed, {} do not apply, {} left out, in {:.1} s",
            self.scheme,
            self.rows.len(),
            self.count(|outcome| matches!(outcome, Outcome::Passed)),
            self.failures().count() + self.unknown.len(),
            self.count(|outcome| matches!(outcome, Outcome::DoesNotApply(_))),
            self.count(|outcome| matches!(outcome, Outcome::LeftOut(_))),
            self.took.as_secs_f64()
        )
    }

    /// Each check with its result, in the order of the list.
    pub fn outcomes(&self) -> impl Iterator<Item = (&Check, &Outcome)> {
        self.rows.iter().map(|row| (&row.check, &row.outcome))
    }

    /// The checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = (&Check, &Failure)> {
        self.outcomes().filter_map(|(check, outcome)| match outcome {
            Outcome::Failed(failure) => Some((check, failure)),
            _ => None,
        })
    }

    fn count(&self, what: fn(&Outcome) -> bool) -> usize {
        self.rows.iter().filter(|row| what(&row.outcome)).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let promises = self.rows.iter().map(|row| row.check.promise.len()).max().unwrap_or(0).max(7);
        writeln!(f, "{:6} {:8} {:>6} {:promises$}  check", "level", "result", "ms", "shows")?;
        for Row { check, outcome, not_judged, took } in &self.rows {
            let (result, note) = match outcome {
                Outcome::Passed => ("passed", None),
                Outcome::Failed(failure) => ("FAILED", Some(failure.to_string())),
                Outcome::DoesNotApply(lack) => ("n/a", Some(lack.clone())),
                Outcome::LeftOut(why) => ("left out", Some(why.clone())),
            };
            let (level, millis) = (check.level, took.as_millis());
            write!(f, "{level:6} {result:8} {millis:6} {:promises$}  {}", check.promise, check.name)?;
            match note {
                Some(note) => writeln!(f, "\n{:promises$}                         {note}", "")?,
                None => writeln!(f)?,
            }
            for what in not_judged {
                writeln!(f, "{:promises$}                         not judged: {what}", "")?;
            }
        }
        for name in &self.unknown {
            writeln!(f, "FAILED: there is no check {name} to leave out")?;
        }
        f.write_str(&self.totals())
    }
}
