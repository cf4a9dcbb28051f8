//! When a schedule is due: cron expressions in a time zone, or a fixed interval. No clock and no I/O, except that time
//! zones are read from the system.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::tick::Tick;
use crate::error::{Error, Result};
use crate::span;

/// An expression with this prefix is an interval.
const EVERY: &str = "@every ";

/// The most bytes of an expression, and of the name of a time zone: both are kept in the record of the ticks.
const MAX_TEXT: usize = 120;

/// The shortest interval: less than the time that a store needs to answer makes no sense.
const MIN_EVERY: Duration = Duration::from_millis(10);

/// When a job is due: a cron expression in a time zone, or a fixed interval.
///
/// A cron expression has five fields (minute, hour, day of the month, month, day of the week), or six with the second
/// first. Each field is `*`, a number, a range `1-5`, a list `1,15`, or has a step `*/10`. Months and days can be named
/// (`JAN`, `MON`); `L` is the last day of the month, `15W` the working day nearest to the 15th, `MON#2` the second
/// Monday. `@yearly`, `@monthly`, `@weekly`, `@daily` and `@hourly` are expressions too.
///
/// If both the day of the month and the day of the week are given, either one is enough, as in every cron; with a `+`
/// before the day of the week (`0 0 1 * +MON`) both have to fit.
///
/// The time zone is UTC unless [`in_zone`](Schedule::in_zone) sets another: nodes may be set to different zones, and
/// have to agree. Where clocks are set forward, a job for an hour that does not exist is due when the missing hour is
/// over, once. Where they are set back, a job for an hour that comes twice is due in the first one only; one with `*`
/// or a step in its hours or minutes goes on evenly through both.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use leasehold::Schedule;
///
/// # fn main() -> leasehold::Result<()> {
/// let schedule = Schedule::cron("30 2 * * *")?.in_zone("Europe/Berlin")?;
/// let first = schedule.next_after(UNIX_EPOCH).expect("it is due every day");
/// assert_eq!(first.as_u64(), (60 + 30) * 60_000);
///
/// // An interval counts from 1970 on, so that all nodes agree about it.
/// let often: Schedule = "@every 90s".parse()?;
/// assert_eq!(often, Schedule::every(Duration::from_secs(90))?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq)]
pub struct Schedule {
    text: Arc<str>,
    zone: Arc<str>,
    rule: Rule,
}

#[derive(Clone, PartialEq)]
enum Rule {
    Cron(Box<croner::Cron>, TimeZone),
    /// In milliseconds.
    Every(u64),
}

impl Schedule {
    /// A cron expression, in UTC; or `@every` and an interval.
    ///
    /// # Errors
    /// `InvalidArgument` for one that cannot be read, or that never comes true.
    pub fn cron(expression: impl AsRef<str>) -> Result<Self> {
        let text = expression.as_ref().trim();
        if text.len() > MAX_TEXT {
            return Err(Error::invalid(format!(
                "the schedule has {} bytes; at most {MAX_TEXT} are allowed",
                text.len()
            )));
        }
        if let Some(interval) = text.strip_prefix(EVERY) {
            return Schedule::every(interval_of(interval)?);
        }
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let cron = parser.parse(text).map_err(|error| {
            Error::invalid("the schedule is not a cron expression such as `0 2 * * *`").with_source(error)
        })?;
        let schedule = Schedule {
            text: text.into(),
            zone: "UTC".into(),
            rule: Rule::Cron(Box::new(cron), TimeZone::UTC),
        };
        if schedule.next_after(Tick::from(0)).is_none() {
            return Err(Error::invalid("the schedule is never due: no date fits its day and month"));
        }
        Ok(schedule)
    }

    /// Every so often, counted from the beginning of 1970 in UTC: every 10 s is at second 0, 10, 20 … of each minute.
    ///
    /// # Errors
    /// `InvalidArgument` for less than 10 ms, more than a year, or a fraction of a millisecond.
    pub fn every(interval: Duration) -> Result<Self> {
        const YEAR: Duration = Duration::from_secs(366 * 86_400);
        if interval < MIN_EVERY || interval > YEAR || !interval.subsec_nanos().is_multiple_of(1_000_000) {
            let (least, most) = (span::show(MIN_EVERY), span::show(YEAR));
            return Err(Error::invalid(format!(
                "an interval of {} cannot be kept: choose whole milliseconds, from {least} to {most}",
                span::show(interval)
            )));
        }
        // Below a year.
        let millis = interval.as_millis() as u64;
        let text = match millis % 1000 {
            0 => format!("{EVERY}{}s", millis / 1000),
            _ => format!("{EVERY}{millis}ms"),
        };
        Ok(Schedule { text: text.into(), zone: "UTC".into(), rule: Rule::Every(millis) })
    }

    /// The same expression in another time zone, named as in the IANA database: `Europe/Berlin`. The rules of the zone
    /// are those of this system, or those that were compiled in if it has none. An interval is the same in every zone.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown zone.
    pub fn in_zone(self, zone: impl AsRef<str>) -> Result<Self> {
        let zone = zone.as_ref();
        let found = TimeZone::get(zone).ok().filter(|_| zone.len() <= MAX_TEXT);
        let found = found.ok_or_else(|| {
            Error::invalid("there is no such time zone; name one as `Europe/Berlin`, or use `UTC`")
        })?;
        Ok(match self.rule {
            Rule::Every(_) => self,
            Rule::Cron(cron, _) => {
                let name = found.iana_name().unwrap_or("UTC").into();
                Schedule { zone: name, rule: Rule::Cron(cron, found), ..self }
            }
        })
    }

    /// The expression.
    pub fn expression(&self) -> &str {
        &self.text
    }

    /// The name of the time zone.
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// The first tick after this time; `None` if there is none, because the years have run out.
    pub fn next_after(&self, time: impl Into<Tick>) -> Option<Tick> {
        let after = time.into().as_u64();
        match &self.rule {
            Rule::Every(millis) => Some((after / millis).checked_add(1)?.checked_mul(*millis)?.into()),
            Rule::Cron(cron, zone) => {
                // Ticks are at whole seconds, so the fraction decides nothing.
                let second = i64::try_from(after / 1000).ok()?;
                let from = Timestamp::from_second(second).ok()?.to_zoned(zone.clone());
                let next = cron.find_next_occurrence(&from, false).ok()?.timestamp();
                let next = u64::try_from(next.as_second()).ok()?.checked_mul(1000)?;
                Some(next.into()).filter(|_| next > after)
            }
        }
    }

    /// The last tick that is later than `after` and not later than `until`.
    pub(crate) fn last_within(&self, after: Tick, until: Tick) -> Option<Tick> {
        let due = |from: u64| self.next_after(from).filter(|tick| *tick <= until);
        due(after.as_u64())?;
        // From some moment on there is no tick until the end: the one before it is the last.
        let (mut before, mut beyond) = (after.as_u64(), until.as_u64());
        while beyond - before > 1 {
            let middle = before + (beyond - before) / 2;
            match due(middle) {
                // Nothing in between: skip what is known.
                Some(tick) => before = middle.max(tick.as_u64() - 1),
                None => beyond = middle,
            }
        }
        due(before)
    }

    /// The time at which this tick is due in its zone, for people.
    pub fn show(&self, tick: Tick) -> String {
        let zone = match &self.rule {
            Rule::Cron(_, zone) => zone.clone(),
            Rule::Every(_) => TimeZone::UTC,
        };
        show(tick, zone)
    }
}

fn show(tick: Tick, zone: TimeZone) -> String {
    let Ok(time) = i64::try_from(tick.as_u64())
        .map_err(drop)
        .and_then(|ms| Timestamp::from_millisecond(ms).map_err(drop))
    else {
        return tick.to_string();
    };
    let form =
        if tick.as_u64().is_multiple_of(1000) { "%Y-%m-%dT%H:%M:%S%:z" } else { "%Y-%m-%dT%H:%M:%S%.3f%:z" };
    time.to_zoned(zone).strftime(form).to_string()
}

/// An interval as `90s`, `250ms`, `5m`, `2h` or `1d`.
fn interval_of(text: &str) -> Result<Duration> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit = match text[digits..].trim() {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => 0,
    };
    let millis = text[..digits].parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    match millis.filter(|_| unit > 0) {
        Some(millis) => Ok(Duration::from_millis(millis)),
        None => Err(Error::invalid(
            "the schedule has no interval such as `@every 90s`: ms, s, m, h and d are known",
        )),
    }
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Schedule::cron(text)
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule").field("expression", &self.text).field("zone", &self.zone).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A time such as `2026-03-29T01:30:00+01:00` as a tick.
    fn at(text: &str) -> Tick {
        let time: Timestamp = text.parse().unwrap();
        u64::try_from(time.as_millisecond()).unwrap().into()
    }

    /// The next ticks after a time, as people in that zone read them.
    fn ticks(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let schedule = Schedule::cron(expression).unwrap().in_zone(zone).unwrap();
        let mut from = at(after);
        let next = || {
            from = schedule.next_after(from)?;
            Some(schedule.show(from))
        };
        std::iter::from_fn(next).take(count).collect()
    }

    #[test]
    fn expressions_are_read_as_in_cron_with_seconds_if_given() {
        for (expression, next) in [
            ("* * * * *", "2026-11-19T21:43:00+00:00"),
            ("*/10 * * * * *", "2026-11-19T21:42:40+00:00"),
            ("0 2 * * *", "2026-11-20T02:00:00+00:00"),
            ("0 0 * * MON", "2026-11-23T00:00:00+00:00"),
            ("0 0 L * *", "2026-11-30T00:00:00+00:00"),
            ("0 0 15W * *", "2026-12-15T00:00:00+00:00"),
            ("0 0 * * TUE#1", "2026-12-01T00:00:00+00:00"),
            // Either day is enough; with a plus, both have to fit.
            ("0 0 1 * FRI", "2026-11-20T00:00:00+00:00"),
            ("0 0 1 * +FRI", "2027-01-01T00:00:00+00:00"),
            ("0 0 29 2 *", "2028-02-29T00:00:00+00:00"),
            ("@hourly", "2026-11-19T22:00:00+00:00"),
            ("@every 90s", "2026-11-19T21:43:30+00:00"),
            ("@every 250ms", "2026-11-19T21:42:30.250+00:00"),
            (" @every 2 h ", "2026-11-19T22:00:00+00:00"),
        ] {
            assert_eq!(ticks(expression, "UTC", "2026-11-19T21:42:30Z", 1), [next], "{expression}");
        }
    }

    #[test]
    fn what_cannot_be_a_schedule_is_refused() {
        for expression in [
            "",
            "* * * *",
            "61 * * * *",
            "* * * * * * 2030",
            "0 0 30 2 *",
            "@reboot",
            "@every",
            "@every 5",
            "@every 1ms",
            "@every 400d",
            "@every 99999999999999999999d",
            "@every -5s",
            "nightly",
            &"0,".repeat(100),
        ] {
            let error = Schedule::cron(expression).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument, "{expression}");
        }
        let zone = Schedule::cron("* * * * *").unwrap().in_zone("Europe/Atlantis").unwrap_err();
        assert!(zone.message().contains("there is no such time zone"), "{zone}");
    }

    #[test]
    fn an_hour_that_is_skipped_is_made_up_for_when_it_is_over() {
        // In Berlin 02:00 to 03:00 does not exist on 29 March 2026.
        assert_eq!(
            ticks("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", 3),
            ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
        );
        // What goes on all the time just goes on.
        assert_eq!(
            ticks("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:15:00Z", 3),
            ["2026-03-29T01:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"]
        );
    }

    #[test]
    fn in_an_hour_that_comes_twice_a_fixed_time_is_due_once() {
        // In Berlin 02:00 to 03:00 comes twice on 25 October 2026.
        assert_eq!(
            ticks("30 2 * * *", "Europe/Berlin", "2026-10-24T22:00:00Z", 2),
            ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
        );
        assert_eq!(
            ticks("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:45:00Z", 5),
            [
                "2026-10-25T02:00:00+02:00",
                "2026-10-25T02:30:00+02:00",
                "2026-10-25T02:00:00+01:00",
                "2026-10-25T02:30:00+01:00",
                "2026-10-25T03:00:00+01:00"
            ]
        );
    }

    /// Expressions and zones of all sorts; zones with half hours, and with changes at midnight.
    fn schedule() -> impl Strategy<Value = Schedule> {
        let field = |least: u32, most: u32| {
            prop_oneof![
                3 => Just("*".to_owned()),
                3 => (least..=most).prop_map(|number| number.to_string()),
                1 => (2..=most / 2).prop_map(|step| format!("*/{step}")),
                1 => (least..=most, least..=most).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
                1 => (least..=most, least..=most).prop_map(|(a, b)| format!("{a},{b}")),
            ]
        };
        let zone = prop_oneof![
            Just("UTC"),
            Just("Europe/Berlin"),
            Just("America/New_York"),
            Just("Australia/Lord_Howe"),
            Just("America/Santiago"),
            Just("Asia/Kathmandu"),
            Just("Africa/Cairo"),
        ];
        let cron = (field(0, 59), field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 6), zone)
            .prop_map(|(second, minute, hour, day, month, weekday, zone)| {
                let text = format!("{second} {minute} {hour} {day} {month} {weekday}");
                Schedule::cron(text).unwrap().in_zone(zone).unwrap()
            });
        let every = (10u64..100_000_000).prop_map(|ms| Schedule::every(Duration::from_millis(ms)).unwrap());
        prop_oneof![4 => cron, 1 => every]
    }

    /// Any time of 2025 to 2027, often within the days of a change of clocks.
    fn time() -> impl Strategy<Value = u64> {
        let change = prop_oneof![
            Just("2026-03-29T01:00:00Z"),
            Just("2026-10-25T01:00:00Z"),
            Just("2026-03-08T07:00:00Z"),
            Just("2026-11-01T06:00:00Z"),
            Just("2026-04-04T15:00:00Z"),
            Just("2026-10-03T15:30:00Z"),
        ];
        let near =
            (change, 0u64..36_000_000).prop_map(|(change, off)| at(change).as_u64() - 18_000_000 + off);
        prop_oneof![1_735_689_600_000u64..1_830_297_600_000, near]
    }

    proptest! {
        #[test]
        fn ticks_rise_and_none_is_passed_over(schedule in schedule(), after in time(), part in 0.0..1.0f64) {
            let next = schedule.next_after(after).unwrap();
            prop_assert!(next > after.into());
            // From any time in between the same tick comes next.
            let between = after + ((next.as_u64() - 1 - after) as f64 * part) as u64;
            prop_assert_eq!(schedule.next_after(between), Some(next));
            prop_assert!(schedule.next_after(next).unwrap() > next);
        }

        #[test]
        fn the_last_tick_within_a_span_is_that_of_all_of_them(
            schedule in schedule(), after in time(), span in 0u64..4_000_000,
        ) {
            let until = Tick::from(after + span);
            let all = std::iter::successors(schedule.next_after(after), |tick| schedule.next_after(*tick));
            let last = all.take_while(|tick| *tick <= until).last();
            prop_assert_eq!(schedule.last_within(after.into(), until), last);
        }

        #[test]
        fn any_text_is_a_schedule_or_an_error(text in ".{0,40}") {
            let _ = Schedule::cron(text);
        }
    }
}
