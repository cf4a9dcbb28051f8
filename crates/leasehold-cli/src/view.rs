//! What is shown of a name: everything but the lease ids, which are secrets.

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
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) queue_length: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Holder {
    pub(crate) owner: String,
    pub(crate) mode: Mode,
    pub(crate) fence: Fence,
    pub(crate) acquired_at_ms: u64,
    /// `None`: as long as its process lives.
    pub(crate) expires_in_ms: Option<u128>,
    pub(crate) renewals: u64,
    pub(crate) revoked: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Waiter {
    pub(crate) owner: String,
    pub(crate) mode: Mode,
    pub(crate) waited_ms: u128,
}

impl From<&NameInfo> for Name {
    fn from(info: &NameInfo) -> Self {
        Name {
            name: info.name.as_str().to_owned(),
            held: !info.holders.is_empty(),
            last_fence: info.last_fence,
            version: info.version,
            holders: info.holders.iter().map(Holder::from).collect(),
            waiters: info.waiters.iter().map(Waiter::from).collect(),
            queue_length: info.queue_length,
        }
    }
}

impl From<&HolderInfo> for Holder {
    fn from(holder: &HolderInfo) -> Self {
        Holder {
            owner: holder.owner.to_string(),
            mode: holder.grant.mode,
            fence: holder.grant.fence,
            acquired_at_ms: holder.grant.acquired_at_ms,
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
    pub(crate) fn held_for(&self) -> Duration {
        Duration::from_millis(now_ms().saturating_sub(self.acquired_at_ms))
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

/// A moment of the wall clock, in UTC.
pub(crate) fn time_of_day(at_ms: u64) -> String {
    let seconds = at_ms / 1000 % 86400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// JSON for programs, as an answer.
pub(crate) fn json(value: &impl Serialize) -> Result<String, crate::report::Failure> {
    Ok(serde_json::to_string_pretty(value).map_err(std::io::Error::from)? + "\n")
}
