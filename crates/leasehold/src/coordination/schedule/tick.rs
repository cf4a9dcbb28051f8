//! A tick: one due time of a schedule, or a number of the caller's.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// One due time of a schedule, in milliseconds since 1970, or a number of the caller's.
///
/// Ticks are ordered, and all nodes have to call one tick by the same number: take the time at which it was due, not
/// the time at which the node woke up.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use leasehold::Tick;
///
/// assert_eq!(Tick::from(UNIX_EPOCH + Duration::from_secs(5)), Tick::from(5000));
/// assert!(Tick::from(6) > Tick::from(5));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tick(u64);

impl Tick {
    /// Later than every tick of a schedule.
    pub(crate) const MAX: Tick = Tick(u64::MAX);

    /// The number: milliseconds since 1970 for a due time.
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// The due time, if it is one.
    pub fn time(self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.0)).unwrap_or(UNIX_EPOCH)
    }
}

impl From<u64> for Tick {
    fn from(number: u64) -> Self {
        Tick(number)
    }
}

impl From<SystemTime> for Tick {
    /// Rounds down to milliseconds; a time before 1970 is tick 0.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Tick(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
