//! Turns on the archive: readers that stay for seconds, of which some die or leave their leases behind, and writers, which
//! have to wait for a dead reader's own time, but not for what the other readers renew.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::history::record::{Face, Mode};

use super::Player;
use super::guards::Wait;
use super::pen::now;

/// Longer than the delay that a check allows: a shorter ttl that another reader prolongs looks like such a delay.
const TTL: Duration = Duration::from_secs(3);

/// Longer than a dead reader can keep a writer out, even if others prolong its lease.
const PATIENCE: Duration = Duration::from_secs(12);

impl Player {
    /// One turn: reads for a while; or leaves the lease behind, reads again, and then writes.
    pub(super) async fn read_and_write(&mut self) {
        self.ttl = TTL;
        let alone = self.task.tasks == 1;
        let wait = if alone { Wait::Try } else { Wait::For(PATIENCE) };
        let Some(guard) = self.acquire_within(wait, Face::Usual).await else { return };
        if !alone && self.dice.once_in(3) {
            // Left to expire.
            self.give_away(guard);
            return self.write_later().await;
        }
        // Until after the end of a reader that came at the same time and left its lease behind. A worker with a single
        // task is meant to be killed.
        let hold = if alone { self.dice.between(100, 800) } else { self.dice.between(2_500, 4_500) };
        let pen = self.pen.clone();
        self.stay(Duration::from_millis(hold), || pen.look(&guard)).await;
        self.pen.look(&guard);
        self.release(guard).await;
    }

    async fn write_later(&mut self) {
        // A task's next call shows that nothing renews the lease that it has left behind.
        self.pen.claim = self.claims.fetch_add(1, Ordering::Relaxed);
        if let Some(guard) = self.acquire_within(Wait::Try, Face::Usual).await {
            let pen = self.pen.clone();
            let hold = self.dice.between(1_000, 2_200);
            self.stay(Duration::from_millis(hold), || pen.look(&guard)).await;
            self.release(guard).await;
        }
        self.pen.claim = self.claims.fetch_add(1, Ordering::Relaxed);
        self.pen.mode = Mode::Exclusive;
        let Some(guard) = self.acquire_within(Wait::For(PATIENCE), Face::Usual).await else { return };
        self.pen.look(&guard);
        self.release(guard).await;
    }

    /// Waits this long, and looks repeatedly, until it has seen enough or the run ends.
    async fn stay(&self, time: Duration, look: impl Fn() -> bool) {
        let end = now() + time.as_nanos() as u64;
        while now() < end && look() && !*self.finished.borrow() {
            let left = Duration::from_nanos(end.saturating_sub(now()));
            tokio::time::sleep(left.min(Duration::from_millis(50))).await;
        }
    }
}
