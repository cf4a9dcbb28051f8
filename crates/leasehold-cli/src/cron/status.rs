//! `leasehold cron --status`: the last runs of a schedule, and the next one.

use std::process::ExitCode;
use std::time::SystemTime;

use leasehold::{Schedule, Tick, TickRecord, TickResult, TickRun};
use serde::Serialize;

use crate::args::Output;
use crate::exit::Exit;
use crate::report::{Failure, answer};
use crate::{duration, store, table, view};

use super::Cron;

/// What is printed. The names of the fields are those of the JSON output.
#[derive(Debug, Serialize)]
struct Status<'a> {
    name: &'a str,
    /// `None` if the record is not that of a schedule.
    schedule: Option<&'a str>,
    time_zone: Option<&'a str>,
    next: Option<String>,
    next_ms: Option<Tick>,
    runs: Vec<Run<'a>>,
}

/// One run, the latest first.
#[derive(Debug, Serialize)]
struct Run<'a> {
    tick: String,
    tick_ms: Tick,
    started_at_ms: u64,
    owner: &'a str,
    state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    took_ms: Option<u128>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Running,
    /// Its node died, or was stopped.
    Unfinished,
    Done,
    Failed,
}

/// Prints the status.
pub(super) async fn show(args: &Cron, name: &str) -> Result<ExitCode, Failure> {
    let opened = store::open(&args.store).await?;
    let record = opened.locks.tick_record(name).await.map_err(|error| opened.failed(error))?;
    let status = Status::new(name, &record)?;
    answer(&match args.output {
        Output::Json => view::json(&status)?,
        Output::Table => status.table(&opened.url.shown()),
    })?;
    Ok(Exit::Success.into())
}

impl<'a> Status<'a> {
    fn new(name: &'a str, record: &'a TickRecord) -> Result<Self, Failure> {
        let texts = record.schedule.as_ref().map(|it| (&*it.expression, &*it.zone));
        let schedule = match texts {
            Some((expression, zone)) => Some(Schedule::cron(expression)?.in_zone(zone)?),
            None => None,
        };
        let shown = |tick: Tick| schedule.as_ref().map_or(tick.to_string(), |schedule| schedule.show(tick));
        let last = record.runs.len().saturating_sub(1);
        let run = |(number, run): (usize, &'a TickRun)| {
            let (state, why) = match run.end.as_ref().map(|end| &end.result) {
                None if record.is_running && number == last => (State::Running, None),
                None => (State::Unfinished, None),
                Some(TickResult::Failed(why)) => (State::Failed, Some(&**why)),
                Some(_) => (State::Done, None),
            };
            Run {
                tick: shown(run.tick),
                tick_ms: run.tick,
                started_at_ms: run.started_at_ms,
                owner: &run.owner,
                state,
                why,
                took_ms: run.end.as_ref().map(|end| end.took.as_millis()),
            }
        };
        let next = schedule.as_ref().and_then(|schedule| schedule.next_after(SystemTime::now()));
        let runs = record.runs.iter().enumerate().rev().map(run).collect();
        let (schedule, time_zone) = texts.unzip();
        Ok(Status { name, schedule, time_zone, next: next.map(shown), next_ms: next, runs })
    }

    fn table(&self, store: &str) -> String {
        let name = table::bold(&table::plain(self.name), table::colour());
        let when = match (self.schedule, self.time_zone, &self.next) {
            (Some(schedule), Some(zone), Some(next)) => {
                format!("{} ({zone}), next at {next}", table::plain(schedule))
            }
            _ if self.runs.is_empty() => "no tick has run".to_owned(),
            _ => "run by its own scheduler".to_owned(),
        };
        let mut out = format!("{name} on {store}: {when}\n");
        if self.runs.is_empty() {
            return out;
        }
        let mut lines = vec![["TICK", "RESULT", "TOOK", "STARTED", "OWNER"].map(String::from)];
        for run in &self.runs {
            let result = match (run.state, run.why) {
                (State::Running, _) => "running".into(),
                (State::Unfinished, _) => "unfinished".into(),
                (State::Done, _) => "done".into(),
                (State::Failed, why) => table::plain(why.unwrap_or("failed")),
            };
            let took = run.took_ms.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX));
            lines.push([
                table::plain(&run.tick),
                result,
                took.map_or("-".into(), |ms| duration::show(std::time::Duration::from_millis(ms))),
                view::date_and_time(run.started_at_ms),
                table::plain(run.owner),
            ]);
        }
        out.push_str(&table::table(&lines, table::width(), table::colour()));
        out
    }
}
