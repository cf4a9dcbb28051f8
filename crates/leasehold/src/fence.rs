//! Fencing tokens: one number per grant of a name, always higher than the last.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// A fencing token: a number that strictly increases from grant to grant of one name.
///
/// Pass it along with every write to what the lock protects, and make that resource refuse a write whose fence is
/// below the highest it has seen. Then a holder that was paused past its lease can do no harm.
///
/// A fence is a hybrid logical clock: the larger of the name's previous fence + 1 and the store's time in units of
/// 1/256 ms. So it does not fall when a store forgets its counters. It prints as 15 zero-padded digits, sorts the same
/// as a number and as text, and is exact in a double.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Fence(u64);

impl Fence {
    /// The fence of a lease from a store without fences: it protects nothing.
    pub const UNFENCED: Fence = Fence(0);
    /// A grant above this logs a warning: a wrong clock has driven the counter up.
    pub const WARN: Fence = Fence(800_000_000_000_000);
    /// No grant gets a fence above this (the clock reaches it in the year 2081).
    pub const MAX: Fence = Fence(900_000_000_000_000);

    /// One day in fence units: how far ahead of the store's clock a fence may be raised.
    pub(crate) const DAY: u64 = 24 * 3600 * 256_000;

    /// How many digits a fence prints with.
    const DIGITS: usize = 15;

    /// How long a name's counter is kept after the clock has passed it. A clock that steps back by less than this
    /// cannot make a fence fall.
    pub const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

    /// A fence from its number.
    pub const fn new(number: u64) -> Self {
        Fence(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether the grant came from a store without fences.
    pub const fn is_unfenced(self) -> bool {
        self.0 == 0
    }

    /// The clock's part of a fence: microseconds since 1970, in units of 1/256 ms, rounded down.
    pub const fn at(wall_micros: u64) -> Self {
        let (sec, usec) = (wall_micros / 1_000_000, wall_micros % 1_000_000);
        Fence(sec * 256_000 + usec * 32 / 125)
    }

    /// The fence of the next grant of a name whose last fence is `self`.
    ///
    /// # Errors
    /// `Internal` above [`Fence::MAX`]: the store must then grant nothing. A counter that is this high, most likely
    /// because of a wrong clock, is repaired by deleting it while no client holds the name.
    pub fn next(self, wall_micros: u64) -> Result<Fence> {
        let next = Fence(self.0.saturating_add(1)).max(Fence::at(wall_micros));
        if next > Fence::MAX {
            return Err(Error::new(
                ErrorKind::Internal,
                format!(
                    "the name's fence counter has reached its limit of {}; delete the counter while nobody holds \
                     the name",
                    Fence::MAX
                ),
            ));
        }
        Ok(next)
    }

    /// The highest fence to which a lease may be raised, where `self` is the name's last fence: a day ahead of the
    /// store's clock, or one above the last fence as for a grant, and never above [`Fence::MAX`].
    ///
    /// Without this limit any holder could use up all fences of a name.
    pub(crate) fn raise_limit(self, wall_micros: u64) -> Fence {
        let tomorrow = Fence(Fence::at(wall_micros).0.saturating_add(Fence::DAY));
        Fence(self.0.saturating_add(1)).max(tomorrow).min(Fence::MAX)
    }

    /// The error for a raise above [`Fence::raise_limit`].
    pub(crate) fn too_high() -> Error {
        Error::invalid(format!(
            "a fence can be raised to at most a day ahead of the store's clock (or one above the name's last \
             fence), and never above {}",
            Fence::MAX
        ))
    }

    /// Whether a store may forget the counter: the clock alone has given higher fences for at least the retention.
    pub fn is_forgettable(self, wall_micros: u64, retention: Duration) -> bool {
        let retention = u64::try_from(retention.as_micros()).unwrap_or(u64::MAX);
        Fence::at(wall_micros.saturating_sub(retention)) > self
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:015}", self.0)
    }
}

/// Reads a plain number, or 15 digits as `Display` prints them.
impl FromStr for Fence {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = (1..=Fence::DIGITS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits);
        number.map(Fence).ok_or_else(|| Error::invalid("a fence is a number of 1 to 15 digits"))
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> u64 {
        fence.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_fifteen_digits_as_the_vectors_do() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../../vectors/syncguard.json")).unwrap();
        for case in vectors["formatFence"].as_array().unwrap() {
            let number: u64 = case["n"].as_str().unwrap().parse().unwrap();
            assert_eq!(Fence::new(number).to_string(), case["fence"].as_str().unwrap());
        }
    }

    #[test]
    fn number_and_fifteen_digits_are_read_and_nothing_else() {
        for number in [0, 7, 459_475_822_995_008, Fence::MAX.get()] {
            let fence = Fence::new(number);
            assert_eq!(number.to_string().parse::<Fence>().unwrap(), fence);
            assert_eq!(fence.to_string().parse::<Fence>().unwrap(), fence);
        }
        for bad in ["", "-1", "+1", " 1", "1 ", "1.0", "1e3", "0x1", "0000000000000001", "\u{663}"] {
            assert_eq!(bad.parse::<Fence>().unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad:?}");
        }
    }

    #[test]
    fn the_clock_part_is_the_floor_of_micros_times_0_256() {
        for micros in [0, 1, 3, 4, 999_999, 1_000_000, 1_793_000_000_123_457, 3_515_624_999_999_999] {
            assert_eq!(u128::from(Fence::at(micros).get()), u128::from(micros) * 256 / 1000);
        }
    }

    #[test]
    fn the_next_fence_is_above_the_last_and_not_below_the_clock() {
        let now = 1_793_000_000_000_000;
        assert_eq!(Fence::new(0).next(now).unwrap(), Fence::at(now));
        assert_eq!(Fence::at(now).next(now).unwrap().get(), Fence::at(now).get() + 1);
        assert_eq!(Fence::at(now).next(0).unwrap().get(), Fence::at(now).get() + 1);
    }

    #[test]
    fn above_the_limit_there_is_an_error() {
        assert_eq!(Fence::new(Fence::MAX.get() - 1).next(0).unwrap(), Fence::MAX);
        assert_eq!(Fence::MAX.next(0).unwrap_err().kind(), ErrorKind::Internal);
        assert_eq!(Fence::new(u64::MAX).next(0).unwrap_err().kind(), ErrorKind::Internal);
        assert_eq!(Fence::new(0).next(u64::MAX).unwrap_err().kind(), ErrorKind::Internal);
    }

    #[test]
    fn a_fence_is_raised_at_most_a_day_ahead() {
        let now = 1_793_000_000_000_000;
        let tomorrow = Fence::at(now + 24 * 3600 * 1_000_000);
        assert_eq!(Fence::new(0).raise_limit(now), tomorrow);
        assert_eq!(tomorrow.raise_limit(now).get(), tomorrow.get() + 1);
        assert_eq!(Fence::MAX.raise_limit(now), Fence::MAX);
        assert_eq!(Fence::new(u64::MAX).raise_limit(u64::MAX), Fence::MAX);
    }

    #[test]
    fn a_counter_is_kept_for_the_retention_past_its_clock_time() {
        let granted = 1_793_000_000_000_000;
        let retention = u64::try_from(Fence::RETENTION.as_micros()).unwrap();
        let fence = Fence::at(granted);
        assert!(!fence.is_forgettable(granted, Fence::RETENTION));
        assert!(!fence.is_forgettable(granted + retention, Fence::RETENTION));
        assert!(fence.is_forgettable(granted + retention + 4, Fence::RETENTION));
    }
}
