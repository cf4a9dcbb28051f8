//! Which calls on a session the server has not answered yet, and for how long it has answered none.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The calls of one session. The server answers them in the order in which they were sent.
pub(super) struct Calls(Mutex<Counts>);

struct Counts {
    sent: u64,
    answered: u64,
    /// The last call that its caller has given up; the server may still be at work on it.
    abandoned: u64,
    awaited: usize,
    /// When the last answer came, or the first call after it was sent.
    since: Instant,
}

impl Counts {
    fn is_open(&self) -> bool {
        self.awaited > 0 || self.abandoned > self.answered
    }

    fn settle(&mut self, number: u64) {
        self.answered = self.answered.max(number);
        self.since = Instant::now();
    }
}

impl Calls {
    pub(super) fn new() -> Self {
        let (sent, answered, abandoned, awaited) = (0, 0, 0, 0);
        Calls(Mutex::new(Counts { sent, answered, abandoned, awaited, since: Instant::now() }))
    }

    /// Counts a call that is about to be sent.
    pub(super) fn begin(&self) -> Call<'_> {
        let mut counts = self.0.lock();
        if !counts.is_open() {
            counts.since = Instant::now();
        }
        counts.sent += 1;
        counts.awaited += 1;
        Call { calls: self, number: counts.sent }
    }

    /// The number of the last call.
    pub(super) fn last(&self) -> u64 {
        self.0.lock().sent
    }

    /// Marks all calls up to this one as answered.
    pub(super) fn settle(&self, number: u64) {
        self.0.lock().settle(number);
    }

    /// For how long the server has answered none of the pending calls; `None` if none is pending.
    pub(super) fn unanswered_for(&self) -> Option<Duration> {
        let counts = self.0.lock();
        counts.is_open().then(|| counts.since.elapsed())
    }
}

/// One call. If dropped without an answer, it still counts as pending at the server.
pub(super) struct Call<'a> {
    calls: &'a Calls,
    number: u64,
}

impl Call<'_> {
    pub(super) fn answered(self) {
        self.calls.settle(self.number);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut counts = self.calls.0.lock();
        counts.awaited -= 1;
        counts.abandoned = counts.abandoned.max(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_call_is_under_way_until_a_later_one_is_answered() {
        let calls = Calls::new();
        assert_eq!(calls.unanswered_for(), None);
        calls.begin().answered();
        assert_eq!(calls.unanswered_for(), None);
        drop(calls.begin());
        assert!(calls.unanswered_for().is_some());
        let (first, second) = (calls.begin(), calls.begin());
        first.answered();
        assert!(calls.unanswered_for().is_some());
        second.answered();
        assert_eq!(calls.unanswered_for(), None);
        drop(calls.begin());
        calls.settle(calls.last());
        assert_eq!(calls.unanswered_for(), None);
    }
}
