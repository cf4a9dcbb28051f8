//! The record of a name's ticks: which have begun and ended, where and how. It is the text of the name's note.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::tick::Tick;
use super::{Schedule, TickPolicy};
use crate::error::{Error, ErrorKind, Result};

/// The most bytes of a record: what a note can have.
pub(super) const MAX_BYTES: usize = 1024;

/// The most bytes of an owner label, and of a reason, in the record; the rest is cut off.
const MAX_LABEL: usize = 48;

/// The form of the text. A client that finds a higher number must not write.
const FORM: u32 = 1;

/// How one tick was run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TickRun {
    /// The tick.
    pub tick: Tick,
    /// When the job was about to start, in milliseconds since 1970 by its node's clock.
    pub started_at_ms: u64,
    /// The owner label of the node, at most 48 bytes of it.
    pub owner: Arc<str>,
    /// How it ended, and how long it took; `None` while it runs, and for ever if its node died.
    pub end: Option<TickEnd>,
}

/// How the run of a tick ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TickEnd {
    /// How long the job took.
    pub took: Duration,
    /// Whether it succeeded.
    pub result: TickResult,
}

/// Whether a job succeeded. It decides nothing: a job that failed has run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TickResult {
    /// It did.
    Done,
    /// It did not. The text is kept in the record, at most 48 bytes of it, for all to see.
    Failed(Arc<str>),
}

/// The last ticks of a name, as the store knows them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TickRecord {
    /// The schedule of the job that wrote the record; `None` if its caller had a scheduler of its own.
    pub schedule: Option<RecordedSchedule>,
    /// All ticks up to this one have been dropped from the record, and count as done.
    pub dropped: Option<Tick>,
    /// The last runs, in the order in which they began.
    pub runs: Vec<TickRun>,
    /// Whether the last run goes on at this moment: it has not ended, and its node holds the lock.
    pub is_running: bool,
}

/// The schedule of the job that wrote a record, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedSchedule {
    /// The expression.
    pub expression: Arc<str>,
    /// The name of the time zone.
    pub zone: Arc<str>,
}

impl From<&Schedule> for RecordedSchedule {
    fn from(schedule: &Schedule) -> Self {
        RecordedSchedule { expression: schedule.expression().into(), zone: schedule.zone().into() }
    }
}

/// What the record says about a tick.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing<'a> {
    /// Nothing: it has not begun.
    New,
    /// It has begun and not ended.
    Open,
    /// It is done; the run, if the record still has it.
    Done(Option<&'a TickRun>),
}

impl TickRecord {
    /// The record after this tick of a schedule.
    pub(super) fn done(tick: Tick, schedule: &Schedule) -> Self {
        TickRecord { schedule: Some(schedule.into()), dropped: Some(tick), ..TickRecord::default() }
    }

    /// Reads a note.
    pub(super) fn parse(note: Option<&str>) -> Result<Self> {
        let Some(text) = note.filter(|text| !text.is_empty()) else { return Ok(TickRecord::default()) };
        let foreign = |why: &str| {
            Err(Error::new(
                ErrorKind::Mismatch,
                format!("the note of this name {why}; give the schedule a name of its own"),
            ))
        };
        match serde_json::from_str::<Text<'_>>(text) {
            Ok(text) if text.ticks == FORM => Ok(text.into()),
            Ok(_) => foreign("was written by a newer version of leasehold"),
            Err(_) => foreign("is not a record of ticks"),
        }
    }

    /// The text of the note. Drops the lowest ticks until it fits, but never the latest run.
    pub(super) fn text(&mut self) -> Result<String> {
        loop {
            let text = serde_json::to_string(&Text::from(&*self)).map_err(|error| {
                Error::new(ErrorKind::Internal, "a record cannot be written").with_source(error)
            })?;
            if text.len() <= MAX_BYTES {
                return Ok(text);
            }
            let older = self.runs.len().saturating_sub(1);
            let lowest = self.runs[..older].iter().enumerate().min_by_key(|(_, run)| run.tick);
            let Some((lowest, _)) = lowest else {
                return Err(Error::new(
                    ErrorKind::Internal,
                    "a record with one run does not fit into a note",
                ));
            };
            let dropped = self.runs.remove(lowest).tick;
            self.dropped = self.dropped.max(Some(dropped));
        }
    }

    /// The highest tick that has begun.
    pub fn last(&self) -> Option<Tick> {
        self.runs.iter().map(|run| run.tick).max().max(self.dropped)
    }

    /// Whether this schedule wrote the record.
    pub(super) fn is_of(&self, schedule: &Schedule) -> bool {
        self.schedule.as_ref().is_some_and(|wrote| *wrote == schedule.into())
    }

    pub(super) fn standing(&self, tick: Tick, policy: TickPolicy) -> Standing<'_> {
        match self.runs.iter().rev().find(|run| run.tick == tick) {
            Some(run) if run.end.is_none() && policy == TickPolicy::AtLeastOnce => Standing::Open,
            Some(run) => Standing::Done(Some(run)),
            None if self.dropped >= Some(tick) => Standing::Done(None),
            None => Standing::New,
        }
    }

    /// The first run that has not ended.
    pub(super) fn open(&self) -> Option<&TickRun> {
        self.runs.iter().find(|run| run.end.is_none())
    }

    /// Notes that the job of a tick is about to start.
    pub(super) fn begin(&mut self, tick: Tick, owner: &str, now_ms: u64) {
        self.runs.retain(|run| run.tick != tick);
        let owner = cut(owner).into();
        self.runs.push(TickRun { tick, started_at_ms: now_ms, owner, end: None });
    }

    /// Notes that the job has ended that was noted last.
    pub(super) fn end(&mut self, took: Duration, result: &TickResult) {
        let result = match result {
            TickResult::Done => TickResult::Done,
            TickResult::Failed(why) => TickResult::Failed(cut(why).into()),
        };
        if let Some(run) = self.runs.last_mut() {
            run.end = Some(TickEnd { took, result });
        }
    }
}

/// The beginning of a text, in whole characters, without those that JSON would write as six.
fn cut(text: &str) -> String {
    let mut short = String::new();
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        // A quote and a backslash take two bytes.
        let bytes =
            short.len() + short.matches(['"', '\\']).count() + c.len_utf8() + usize::from("\"\\".contains(c));
        if bytes > MAX_LABEL {
            break;
        }
        short.push(c);
    }
    short
}

/// The record as JSON.
#[derive(Serialize, Deserialize)]
struct Text<'a> {
    ticks: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cron: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped: Option<Tick>,
    #[serde(borrow = "'a")]
    runs: Vec<RunText<'a>>,
}

#[derive(Serialize, Deserialize)]
struct RunText<'a> {
    tick: Tick,
    at: u64,
    by: std::borrow::Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<std::borrow::Cow<'a, str>>,
}

impl<'a> From<&'a TickRecord> for Text<'a> {
    fn from(record: &'a TickRecord) -> Self {
        let (cron, zone) = record.schedule.clone().map(|it| (it.expression, it.zone)).unzip();
        let run = |run: &'a TickRun| {
            let end = run.end.as_ref();
            RunText {
                tick: run.tick,
                at: run.started_at_ms,
                by: (&*run.owner).into(),
                ms: end.map(|end| u64::try_from(end.took.as_millis()).unwrap_or(u64::MAX)),
                failed: end.and_then(|end| match &end.result {
                    TickResult::Done => None,
                    TickResult::Failed(why) => Some((&**why).into()),
                }),
            }
        };
        Text { ticks: FORM, cron, zone, dropped: record.dropped, runs: record.runs.iter().map(run).collect() }
    }
}

impl From<Text<'_>> for TickRecord {
    fn from(text: Text<'_>) -> Self {
        let run = |run: RunText<'_>| TickRun {
            tick: run.tick,
            started_at_ms: run.at,
            owner: (&*run.by).into(),
            end: run.ms.map(|ms| TickEnd {
                took: Duration::from_millis(ms),
                result: run.failed.map_or(TickResult::Done, |why| TickResult::Failed((&*why).into())),
            }),
        };
        TickRecord {
            schedule: text
                .cron
                .zip(text.zone)
                .map(|(expression, zone)| RecordedSchedule { expression, zone }),
            dropped: text.dropped,
            runs: text.runs.into_iter().map(run).collect(),
            is_running: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn begun(ticks: &[u64]) -> TickRecord {
        let mut record = TickRecord::default();
        for tick in ticks {
            record.begin((*tick).into(), "me", 7);
        }
        record
    }

    #[test]
    fn the_policy_decides_what_an_open_run_means() {
        let mut record = begun(&[5]);
        let at = |record: &TickRecord, tick: u64, policy| match record.standing(tick.into(), policy) {
            Standing::New => "new",
            Standing::Open => "open",
            Standing::Done(_) => "done",
        };
        assert_eq!(at(&record, 5, TickPolicy::AtMostOnce), "done");
        assert_eq!(at(&record, 5, TickPolicy::AtLeastOnce), "open");
        record.end(Duration::from_millis(1), &TickResult::Failed("exit 3".into()));
        for policy in [TickPolicy::AtMostOnce, TickPolicy::AtLeastOnce] {
            assert_eq!(
                (at(&record, 5, policy), at(&record, 4, policy), at(&record, 6, policy)),
                ("done", "new", "new")
            );
        }
        record.dropped = Some(4.into());
        assert_eq!(at(&record, 4, TickPolicy::AtLeastOnce), "done");
    }

    #[test]
    fn a_note_that_is_not_a_record_is_refused() {
        for foreign in ["10.0.0.7:9000", "{}", r#"{"ticks":2,"runs":[]}"#, r#"{"ticks":1}"#] {
            let error = TickRecord::parse(Some(foreign)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch);
            assert!(error.message().contains("give the schedule a name of its own"), "{error}");
        }
        for empty in [None, Some("")] {
            assert_eq!(TickRecord::parse(empty).unwrap(), TickRecord::default());
        }
    }

    #[test]
    fn the_text_is_short_json_that_others_can_read() {
        let mut record = begun(&[60_000]);
        record.schedule = Some((&Schedule::cron("* * * * *").unwrap()).into());
        record.end(Duration::from_millis(3), &TickResult::Done);
        record.begin(120_000.into(), "me", 8);
        let runs = r#"{"tick":60000,"at":7,"by":"me","ms":3},{"tick":120000,"at":8,"by":"me"}"#;
        let text = format!(r#"{{"ticks":1,"cron":"* * * * *","zone":"UTC","runs":[{runs}]}}"#);
        assert_eq!(record.text().unwrap(), text);
        assert_eq!(TickRecord::parse(Some(&text)).unwrap(), record);
    }

    #[test]
    fn a_full_record_drops_the_lowest_ticks_and_keeps_them_done() {
        let mut record = begun(&[]);
        for tick in (1..=100).rev().chain(101..=200) {
            // As `begin` is only called for ticks that are not done.
            if record.standing(tick.into(), TickPolicy::AtMostOnce) == Standing::New {
                record.begin(tick.into(), "a-node-with-a-name:12345", 1_763_000_000_000);
                record = TickRecord::parse(Some(&record.text().unwrap())).unwrap();
                assert_eq!(record.runs.last().unwrap().tick, tick.into());
            }
            assert!(
                matches!(record.standing(tick.into(), TickPolicy::AtMostOnce), Standing::Done(_)),
                "{tick}"
            );
        }
        assert!(record.runs.len() >= 8, "{}", record.runs.len());
        let first = record.runs[0].tick;
        assert_eq!(record.dropped, Some((first.as_u64() - 1).into()));
    }

    proptest! {
        #[test]
        fn any_record_fits_into_a_note_and_comes_back(
            runs in proptest::collection::vec((any::<u64>(), any::<u64>(), ".*", proptest::option::of(".*")), 1..20),
            cron in "[ -~]{0,120}", zone in "[ -~]{0,120}",
        ) {
            let schedule = RecordedSchedule { expression: cron.into(), zone: zone.into() };
            let mut record = TickRecord { schedule: Some(schedule), ..TickRecord::default() };
            for (tick, at, owner, failed) in runs {
                record.begin(tick.into(), &owner, at);
                let begun = record.text().unwrap();
                prop_assert_eq!(&TickRecord::parse(Some(&begun)).unwrap(), &record);
                let result = failed.map_or(TickResult::Done, |why| TickResult::Failed(why.into()));
                record.end(Duration::from_millis(at), &result);
                let ended = record.text().unwrap();
                prop_assert!(begun.len() <= MAX_BYTES && ended.len() <= MAX_BYTES);
                prop_assert_eq!(&TickRecord::parse(Some(&ended)).unwrap(), &record);
                prop_assert_eq!(record.runs.last().unwrap().tick, tick.into());
            }
        }
    }
}
