//! A clock that only the test moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, Moment, SystemClock};

/// A clock that is set by hand, and that no timer follows. Clones share one time.
#[derive(Debug, Clone, Default)]
pub struct Hand(Arc<AtomicU64>);

impl Hand {
    /// Lets time pass.
    ///
    /// # Panics
    /// If that is more than 584 years.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).expect("less than 584 years"), Ordering::SeqCst);
    }
}

impl Clock for Hand {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn wall_micros(&self) -> u64 {
        SystemClock.wall_micros()
    }
}
