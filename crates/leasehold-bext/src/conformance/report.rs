//! Runs all checks and reports the results.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Check, Harness, Need, Shown, Trial, checks};

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The check saw what bext expects.
    Passed,
    /// The check saw something else.
    Failed(String),
    /// The harness lacks what the check needs; the text says what.
    LeftOut(String),
}

/// Runs every check, most of them at once, and reports on all of them.
pub fn run_all(harness: Harness) -> Report {
    let started = Instant::now();
    let harness = Arc::new(harness);
    // The last one alone: the store is broken from then on.
    let (breaking, others): (Vec<_>, Vec<_>) =
        checks().into_iter().partition(|check| check.needs == Need::Breaking);
    let running: Vec<_> = others.into_iter().map(|check| (check, start(check, &harness))).collect();
    let mut rows: Vec<_> = running.into_iter().map(|(check, run)| run.end(check, &harness)).collect();
    rows.extend(breaking.into_iter().map(|check| start(check, &harness).end(check, &harness)));
    Report { rows, took: started.elapsed() }
}

/// A check on its thread.
enum Run {
    Thread(mpsc::Receiver<(Shown, Duration)>, thread::JoinHandle<()>),
    LeftOut(&'static str),
}

fn start(check: Check, harness: &Arc<Harness>) -> Run {
    match check.needs {
        Need::Fences if harness.fence_of.is_none() => {
            Run::LeftOut("the harness does not say how to read fences")
        }
        Need::Breaking if harness.breaking.is_none() => {
            Run::LeftOut("the harness does not say how to break the store")
        }
        _ => {
            let (done, outcome) = mpsc::channel();
            let harness = Arc::clone(harness);
            let thread = thread::spawn(move || {
                let started = Instant::now();
                let shown = Trial::new(&harness).and_then(|trial| {
                    let shown = (check.run)(&trial);
                    trial.clean_up();
                    shown
                });
                let _ = done.send((shown, started.elapsed()));
            });
            Run::Thread(outcome, thread)
        }
    }
}

impl Run {
    fn end(self, check: Check, harness: &Harness) -> Row {
        // A check waits at most a few times for what must happen.
        let limit = harness.patience.saturating_mul(5) + harness.answers_within.saturating_mul(5);
        let (outcome, took) = match self {
            Run::LeftOut(why) => (Outcome::LeftOut(why.into()), Duration::ZERO),
            Run::Thread(outcome, thread) => match outcome.recv_timeout(limit) {
                Ok((Ok(()), took)) => (Outcome::Passed, took),
                Ok((Err(failure), took)) => (Outcome::Failed(failure), took),
                Err(RecvTimeoutError::Timeout) => {
                    (Outcome::Failed(format!("a call did not come back within {limit:?}")), limit)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    (Outcome::Failed(panicked(thread.join())), Duration::ZERO)
                }
            },
        };
        Row { check, outcome, took }
    }
}

/// The message of a panic.
pub(super) fn panicked<T>(joined: Result<T, Box<dyn Any + Send>>) -> String {
    let panic = joined.err();
    let text = panic.as_ref().and_then(|panic| {
        panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
    });
    format!("a call panicked: {}", text.unwrap_or_default())
}

/// The results of all checks. `Display` prints a table.
#[derive(Debug, Clone)]
#[must_use = "look at it, or let it assert_passed()"]
pub struct Report {
    rows: Vec<Row>,
    took: Duration,
}

#[derive(Debug, Clone)]
struct Row {
    check: Check,
    outcome: Outcome,
    took: Duration,
}

impl Report {
    /// Each check with its result, in the order of the list.
    pub fn outcomes(&self) -> impl Iterator<Item = (&Check, &Outcome)> {
        self.rows.iter().map(|row| (&row.check, &row.outcome))
    }

    /// Whether no check failed.
    pub fn is_passed(&self) -> bool {
        self.outcomes().all(|(_, outcome)| !matches!(outcome, Outcome::Failed(_)))
    }

    /// Panics with the report unless it is passed. Otherwise prints how many checks passed, and which were left out.
    ///
    /// # Panics
    /// If any check failed.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.is_passed(), "{self}");
        println!("{}", self.summary());
    }

    /// How many checks passed and failed, and which were left out.
    pub fn summary(&self) -> String {
        let count = |what: fn(&Outcome) -> bool| self.outcomes().filter(|(_, outcome)| what(outcome)).count();
        let mut text = format!(
            "{} checks: {} passed, {} failed, {} left out, in {:.1} s",
            self.rows.len(),
            count(|outcome| matches!(outcome, Outcome::Passed)),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
            count(|outcome| matches!(outcome, Outcome::LeftOut(_))),
            self.took.as_secs_f64()
        );
        for (check, outcome) in self.outcomes() {
            if let Outcome::LeftOut(why) = outcome {
                text.push_str(&format!("\n  left out: {}: {why}", check.name()));
            }
        }
        text
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Row { check, outcome, took } in &self.rows {
            let (result, note) = match outcome {
                Outcome::Passed => ("passed", None),
                Outcome::Failed(failure) => ("FAILED", Some(failure)),
                Outcome::LeftOut(why) => ("left out", Some(why)),
            };
            writeln!(f, "{result:8} {:6} ms  {}", took.as_millis(), check.name)?;
            if let Some(note) = note {
                writeln!(f, "                    {note}")?;
            }
        }
        f.write_str(&self.summary())
    }
}
