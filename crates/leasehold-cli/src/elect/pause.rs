//! A pause that doubles while things go wrong.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_secs(1);

/// A command that ran at least this long has not failed at its start.
const RAN: Duration = Duration::from_secs(10);

/// How long to pause next.
#[derive(Debug)]
pub(crate) struct Pause {
    next: Duration,
    most: Duration,
}

impl Pause {
    /// Between terms whose command ends by itself: no crash loop keeps the processor, or the lead, busy.
    pub(crate) fn between_terms() -> Self {
        Pause { next: FIRST, most: Duration::from_secs(30) }
    }

    /// Between tries to reach the store. Shorter, because all candidates wait for it.
    pub(crate) fn between_tries() -> Self {
        Pause { next: FIRST, most: Duration::from_secs(5) }
    }

    /// The pause to make now.
    pub(crate) fn take(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(self.most);
        now
    }

    /// The pause to make after a command that ran for this long.
    pub(crate) fn after(&mut self, ran: Duration) -> Duration {
        if ran >= RAN {
            self.next = FIRST;
        }
        self.take()
    }

    /// Everything went well.
    pub(crate) fn reset(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_begin_anew_after_a_long_run() {
        let mut pause = Pause::between_terms();
        let short = RAN - Duration::from_millis(1);
        let pauses: Vec<u64> = (0..7).map(|_| pause.after(short).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!([pause.after(RAN).as_secs(), pause.after(short).as_secs()], [1, 2]);
        let mut pause = Pause::between_tries();
        let pauses: Vec<u64> = (0..5).map(|_| pause.take().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        pause.reset();
        assert_eq!(pause.take(), FIRST);
    }
}
