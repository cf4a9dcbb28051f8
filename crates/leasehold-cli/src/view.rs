//! The view of a name that is printed: everything but the lease ids, which are secrets.

use std::time::Duration;

use leasehold::backend::{HolderInfo, NameInfo, WaiterInfo};
use leasehold::{Fence, Mode};
use serde::Serialize;

/// A name. The names of the fields are those of the JSON output.
#[derive(Debug, Serialize)]
pub(crate) struct Name {
    pub(crate) name: String,
    pub(crate) held: bool,
    pub(crate) last_fence: Fence,
    pub(crate) version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<Note>,
    pub(crate) holders: Vec<Holder>,
    pub(crate) holder_count: u64,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) queue_length: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Holder {
    pub(crate) owner: String,
    #[serde(flatten, serialize_with = "mode")]
    pub(crate) mode: Mode,
    pub(crate) fence: Fence,
    /// `None`: the store does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) acquired_at_ms: Option<u64>,
    /// `None`: as long as its process lives.
    pub(crate) expires_in_ms: Option<u128>,
    pub(crate) renewals: u64,
    pub(crate) revoked: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<String>,
}

/// What a holder left at the name.
#[derive(Debug, Serialize)]
pub(crate) struct Note {
    pub(crate) text: String,
    /// Of the lease that wrote it.
    pub(crate) fence: Fence,
}

#[derive(Debug, Serialize)]
pub(crate) struct Waiter {
    pub(crate) owner: String,
    #[serde(flatten, serialize_with = "mode")]
    pub(crate) mode: Mode,
    pub(crate) waited_ms: u128,
}

/// Writes a mode as two fields, as in HTTP requests.
fn mode<S: serde::Serializer>(mode: &Mode, to: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeMap as _;
    let (mode, limit) = leasehold::wire::mode_fields(*mode);
    let mut fields = to.serialize_map(None)?;
    fields.serialize_entry("mode", &mode)?;
    if let Some(limit) = limit {
        fields.serialize_entry("limit", &limit)?;
    }
    fields.end()
}

impl From<&NameInfo> for Name {
    fn from(info: &NameInfo) -> Self {
        Name {
            name: info.name.as_str().to_owned(),
            held: !info.holders.is_empty(),
            last_fence: info.last_fence,
            version: info.version,
            note: info
                .note
                .as_ref()
                .filter(|note| !note.text.is_empty())
                .map(|note| Note { text: note.text.to_string(), fence: note.fence }),
            holders: info.holders.iter().map(Holder::from).collect(),
            holder_count: info.holder_count,
            waiters: info.waiters.iter().map(Waiter::from).collect(),
            queue_length: info.queue_length,
        }
    }
}

impl Name {
    /// How many holders are not shown.
    pub(crate) fn more_holders(&self) -> u64 {
        self.holder_count.saturating_sub(self.holders.len() as u64)
    }
}

impl From<&HolderInfo> for Holder {
    fn from(holder: &HolderInfo) -> Self {
        Holder {
            owner: holder.owner.to_string(),
            mode: holder.grant.mode,
            fence: holder.grant.fence,
            acquired_at_ms: Some(holder.grant.acquired_at_ms).filter(|at| *at > 0),
            expires_in_ms: holder.grant.left.map(|left| left.as_millis()),
            renewals: holder.grant.renewals,
            revoked: holder.revoked,
            metadata: holder.metadata.as_ref().map(ToString::to_string),
        }
    }
}

impl From<&WaiterInfo> for Waiter {
    fn from(waiter: &WaiterInfo) -> Self {
        Waiter { owner: waiter.owner.to_string(), mode: waiter.mode, waited_ms: waiter.waited.as_millis() }
    }
}

impl Holder {
    /// How long it has been held, by this machine's wall clock.
    pub(crate) fn held_for(&self) -> Option<Duration> {
        self.acquired_at_ms.map(|at| Duration::from_millis(now_ms().saturating_sub(at)))
    }

    pub(crate) fn left(&self) -> Option<Duration> {
        self.expires_in_ms.map(|left| Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX)))
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    use leasehold::clock::Clock as _;
    leasehold::clock::SystemClock.wall_micros() / 1000
}

/// A wall-clock time with its date, in UTC.
pub(crate) fn date_and_time(at_ms: u64) -> String {
    let (mut year, mut days) = (1970, at_ms / 86_400_000);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 0;
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02} {}", month + 1, days + 1, time_of_day(at_ms))
}

/// A wall-clock time, in UTC.
pub(crate) fn time_of_day(at_ms: u64) -> String {
    let seconds = at_ms / 1000 % 86400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Pretty JSON as the output of a command.
pub(crate) fn json(value: &impl Serialize) -> Result<String, crate::report::Failure> {
    Ok(serde_json::to_string_pretty(value).map_err(std::io::Error::from)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_that_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399, "2000-02-28 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_798_761_599, "2026-12-31 23:59:59Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(date_and_time(seconds * 1000), text);
        }
    }
}
