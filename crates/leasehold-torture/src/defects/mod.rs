//! Defects that are planted around the library, so that its own code contains none of them.
//!
//! [`client`] stands between a client, or a lock server, and its store, and does what a client with the defect would
//! do. [`state`] does the same to the state machine of the simulated store. A defect that neither can show (it is in
//! what a guard believes, or between a store's code and its file or server) is planted in the library itself, by
//! `leasehold::bugs`.
//!
//! At most one defect is planted in a process. Without the feature `__bugs` none of this is compiled.

pub(crate) mod client;
pub(crate) mod state;

use std::sync::Arc;

#[cfg(feature = "run")]
use leasehold::LocksBuilder;
use leasehold::bugs::{Bug, on};
#[cfg(feature = "run")]
use leasehold::clock::SystemClock;
use leasehold::clock::{Clock, Moment};

/// The clock of a client, with a defect if one is planted.
pub(crate) fn clock(clock: Arc<dyn Clock>) -> Arc<dyn Clock> {
    if on(Bug::DeadlineByWallClock) { Arc::new(WallClock(clock)) } else { clock }
}

/// The store of a lock server, with a defect if one is planted.
#[cfg(feature = "run")]
pub(crate) fn server(builder: LocksBuilder) -> LocksBuilder {
    // Defects of clients are not planted in the server a second time.
    if on(Bug::ServerKeepsVanished) { client::plant(builder, Arc::new(SystemClock)) } else { builder }
}

/// A clock whose every time comes from the wall clock.
#[derive(Debug)]
struct WallClock(Arc<dyn Clock>);

impl Clock for WallClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.wall_micros() * 1000)
    }

    fn wall_micros(&self) -> u64 {
        self.0.wall_micros()
    }
}
