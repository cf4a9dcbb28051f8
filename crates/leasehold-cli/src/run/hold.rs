//! What a command is run under: the lock of one or more names, or a tick.

use std::slice;
use std::time::Duration;

use leasehold::{Guard, GuardState, LostReason, MultiGuard, Result, TickGuard, TickResult};

/// What a command is run under.
#[derive(Debug)]
pub(crate) enum Hold {
    Names(MultiGuard),
    Tick(TickGuard),
}

impl Hold {
    /// The guards of the names.
    pub(crate) fn guards(&self) -> &[Guard] {
        match self {
            Hold::Names(guard) => guard.guards(),
            Hold::Tick(tick) => tick.guard().map(slice::from_ref).unwrap_or_default(),
        }
    }

    /// Fails if one of the leases is lost.
    pub(crate) fn check(&self) -> Result<()> {
        self.guards().iter().try_for_each(Guard::check)
    }

    /// How long all leases can be relied on; `None` if they do not expire.
    pub(crate) fn valid_for(&self) -> Option<Duration> {
        self.guards().iter().filter_map(Guard::valid_for).min()
    }

    /// What is known about the leases now.
    pub(crate) fn state(&self) -> GuardState {
        match self {
            Hold::Names(guard) => guard.state(),
            Hold::Tick(tick) => tick.guard().map_or(GuardState::Held, Guard::state),
        }
    }

    /// Why one of the leases is lost, if one is.
    pub(crate) fn lost_now(&self) -> Option<LostReason> {
        self.guards().iter().find_map(|guard| guard.lost().now())
    }

    /// Releases the leases. A tick is recorded as ended with this result, or left open if there is none.
    pub(crate) async fn release(self, result: Option<TickResult>) -> Result<GuardState> {
        match (self, result) {
            (Hold::Names(guard), _) => guard.release().await,
            (Hold::Tick(tick), Some(result)) if tick.check().is_ok() => tick.finish(result).await,
            (Hold::Tick(tick), _) => tick.leave_open().await,
        }
    }
}
