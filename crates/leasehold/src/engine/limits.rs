//! Every time that waiting, renewing and giving back go by.

use std::time::Duration;

/// How long a place in a queue is kept without a sign of life. Refreshed at a third of it, so two
/// refreshes may fail; long enough for an ordinary hiccup, short enough that a dead waiter at the
/// front does not hold up the rest for long.
pub const TICKET_TTL: Duration = Duration::from_secs(10);

/// How often a waiter looks by itself where the store keeps the places of its waiters: never needed, and so rarely
/// that it costs nothing.
pub(crate) const KEPT_LOOK: Duration = Duration::from_secs(60);

/// How long a waiting acquire puts up with a store that does not answer: as long as its place is kept.
pub(crate) const PATIENCE: Duration = TICKET_TTL;

/// At the wait limit a `Busy` answer is trusted up to this age. An older one may mean that the store has fallen silent,
/// which is not contention.
pub(crate) const BELIEVED: Duration = Duration::from_secs(1);

/// How long a store may take for the last answer at the wait limit: as long as a lost packet costs, and not so long
/// that the limit would no longer be the one that was asked for.
pub const LAST_LOOK: Duration = Duration::from_secs(2);

/// The first pause after a call that failed; pauses grow from here to [`LONGEST_PAUSE`].
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause between two tries of a call that fails.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long `close` waits for the acquires that it aborts. Each ends when it is next polled, so one that has not ended
/// by then is not polled: its future was put aside, or its runtime is blocked.
pub(crate) const ABORT_PATIENCE: Duration = Duration::from_secs(5);
