//! Every time limit of waiting, renewing and giving back.

use std::time::Duration;

/// The default ttl of a lease.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// How long a waiter's place in a queue is kept without a sign of life. The waiter refreshes it at a third of this
/// time, so two refreshes may fail. It is long enough for an ordinary hiccup, and short enough that a dead waiter at
/// the front does not hold up the rest for long.
pub const TICKET_TTL: Duration = Duration::from_secs(10);

/// How often a waiter tries by itself where the store keeps the places of its waiters. This is never needed, and so
/// rare that it costs nothing.
pub(crate) const KEPT_LOOK: Duration = Duration::from_secs(60);

/// How long a waiting acquire tolerates a store that does not answer: as long as its place is kept.
pub(crate) const PATIENCE: Duration = TICKET_TTL;

/// At the wait limit, trust a `Busy` answer up to this age. An older one may mean that the store has gone silent,
/// which is not contention.
pub(crate) const BELIEVED: Duration = Duration::from_secs(1);

/// How long the store may take for the last answer at the wait limit: long enough for one lost packet, and short
/// enough that the caller's limit still means something.
pub const LAST_LOOK: Duration = Duration::from_secs(2);

/// The first pause after a call that failed; later pauses grow up to [`LONGEST_PAUSE`].
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause between two tries of a call that fails.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Subtracted from the time that a grant has left, together with one percent, for times that a store rounds up.
pub(crate) const ROUNDING: Duration = Duration::from_millis(2);

/// The time limit of one renewal: short enough that several fit between the first one and the deadline, and that a
/// hanging one is noticed early.
pub(crate) fn renewal_timeout(ttl: Duration) -> Duration {
    (ttl / 6).min(Duration::from_secs(5))
}

/// How long to wait before a failed renewal is retried.
pub(crate) fn retry_after(ttl: Duration) -> Duration {
    (ttl / 12).min(Duration::from_secs(1))
}

/// Stores round up, some to whole seconds, so a shortening succeeds if the result is at most this much longer than
/// asked.
pub(crate) const SHORTEN_SLACK: Duration = Duration::from_secs(2);

/// How long `close` waits for the acquires that it aborts. Each ends when it is next polled. One that has not ended by
/// then is not being polled: its future was put aside, or its runtime is blocked.
pub(crate) const ABORT_PATIENCE: Duration = Duration::from_secs(5);

/// How long `close` then waits until the program has taken what was reported so far: log lines, metrics and failed
/// releases. A log, recorder or callback that blocks for longer does not keep a client from closing.
pub(crate) const REPORT_PATIENCE: Duration = Duration::from_secs(5);
