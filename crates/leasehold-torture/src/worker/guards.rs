//! Turns with guards: mutexes, reader-writer locks and semaphores, waited for, tried, cancelled, released and dropped.

use std::time::Duration;

use leasehold::{Guard, GuardState, Result};

use crate::history::record::{Face, Kind, Mode};

use super::pen::{AnyGuard as _, now};
use super::{Part, Player};

/// How long an acquire may wait.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wait {
    /// Not at all.
    Try,
    /// At most this long.
    For(Duration),
    /// Until it is its turn.
    Unbounded,
}

impl Wait {
    /// As recorded in a history.
    pub(super) fn nanos(self) -> u64 {
        match self {
            Wait::Try => 0,
            Wait::For(limit) => limit.as_nanos() as u64,
            Wait::Unbounded => u64::MAX,
        }
    }
}

impl Player {
    pub(super) fn wait(&mut self) -> Wait {
        // A worker with a single task is meant to be hit while it holds a lock: it does not wait behind a dead place
        // until that lapses.
        let alone = self.task.tasks == 1;
        match self.dice.below(6) {
            0 => Wait::Try,
            roll if roll < 3 || alone => {
                Wait::For(Duration::from_millis(self.dice.below(500)) + self.dice.micros(1_000))
            }
            _ => Wait::Unbounded,
        }
    }

    /// After how long a call is cancelled, if it is.
    pub(super) fn give_up(&mut self) -> Option<Duration> {
        (self.task.cancels && self.dice.once_in(3)).then(|| self.dice.micros(5_000))
    }

    /// One turn.
    pub(super) async fn take_guard(&mut self) {
        let Some(guard) = self.acquire_guard(Face::Usual).await else { return };
        if self.dice.once_in(8) {
            self.run(&guard).await;
        } else {
            let protects = self.protects();
            self.keep(&guard, protects).await;
        }
        self.finish(guard).await;
    }

    /// Tries to get a guard, and records the result.
    pub(super) async fn acquire_guard(&mut self, face: Face) -> Option<Guard> {
        let wait = self.wait();
        self.acquire_within(wait, face).await
    }

    /// The same, with this wait.
    pub(super) async fn acquire_within(&mut self, wait: Wait, face: Face) -> Option<Guard> {
        let give_up = self.give_up();
        self.pen.know(None, 0);
        self.pen.call(now(), self.asked(), wait.nanos(), face);
        let mut finished = self.finished.clone();
        let taken = {
            let acquire = self.acquire(wait);
            let given_up = async {
                match give_up {
                    Some(after) => tokio::time::sleep(after).await,
                    None => drop(finished.wait_for(|finished| *finished).await),
                }
            };
            tokio::select! {
                biased;
                taken = acquire => Some(taken),
                () = given_up => None,
            }
        };
        match taken {
            Some(Ok(Some(guard))) => {
                self.pen.granted(&guard);
                return Some(guard);
            }
            Some(taken) => {
                if self.pen.refused(taken.err().as_ref()) {
                    self.rest().await;
                }
            }
            None => self.pen.note(Kind::AcquireDropped, now(), 0, 0),
        }
        None
    }

    /// Pauses, so that a store that fails at once is not asked in a tight loop.
    pub(super) async fn rest(&mut self) {
        tokio::time::sleep(Duration::from_millis(2 + self.dice.below(20))).await;
    }

    pub(super) async fn acquire(&self, wait: Wait) -> Result<Option<Guard>> {
        let name = self.name();
        match self.pen.mode {
            Mode::Permit => {
                let lock = self.locks.semaphore(&name.name, name.limit).ttl(self.ttl).owner(self.owner());
                match wait {
                    Wait::Try => lock.try_acquire().await,
                    Wait::For(limit) => lock.try_acquire_for(limit).await,
                    Wait::Unbounded => lock.acquire().await.map(Some),
                }
            }
            Mode::Shared => {
                let lock = self.locks.rwlock(&name.name).ttl(self.ttl).owner(self.owner());
                match wait {
                    Wait::Try => lock.try_read().await,
                    Wait::For(limit) => lock.try_read_for(limit).await,
                    Wait::Unbounded => lock.read().await.map(Some),
                }
            }
            Mode::Exclusive if matches!(self.part(), Part::Book | Part::Turn | Part::Archive) => {
                let lock = self.locks.rwlock(&name.name).ttl(self.ttl).owner(self.owner());
                match wait {
                    Wait::Try => lock.try_write().await,
                    Wait::For(limit) => lock.try_write_for(limit).await,
                    Wait::Unbounded => lock.write().await.map(Some),
                }
            }
            Mode::Exclusive => {
                let lock = self.locks.mutex(&name.name).ttl(self.ttl).owner(self.owner());
                match wait {
                    Wait::Try => lock.try_lock().await,
                    Wait::For(limit) => lock.try_lock_for(limit).await,
                    Wait::Unbounded => lock.lock().await.map(Some),
                }
            }
        }
    }

    /// Keeps the lock for a while, and looks repeatedly; if it protects something, writes to that. If this future may
    /// be dropped in the middle, it must not protect anything.
    pub(super) async fn keep(&mut self, guard: &Guard, protects: bool) {
        let time = self.hold_for();
        if time.is_zero() {
            return;
        }
        let end = now() + time.as_nanos() as u64;
        if protects {
            self.enter().await;
        }
        let step = u64::try_from(time.as_micros() / 6).unwrap_or(u64::MAX).clamp(300, 20_000);
        let mut may = true;
        // Some keep looking at a lost lease: it does not come back.
        let stubborn = self.task.late || self.dice.once_in(3);
        if self.task.lists && self.dice.once_in(25) {
            let _ = self.list().await;
        }
        let renews = if self.part() == Part::Evict { 5 } else { 40 };
        while (may || stubborn) && now() < end && !*self.finished.borrow() {
            may = self.pen.look(guard);
            if may && !self.task.session && self.dice.once_in(renews) {
                self.renew(guard, self.ttl).await;
            }
            // It does not look again before it writes: that is what fences are for.
            if protects && self.dice.once_in(3) {
                self.write_fenced().await;
            }
            tokio::time::sleep(Duration::from_micros(100 + self.dice.below(step))).await;
        }
        if protects {
            self.write_fenced().await;
            self.leave().await;
        }
        if may || stubborn {
            self.pen.look(guard);
        }
    }

    async fn renew(&self, guard: &Guard, ttl: Duration) {
        self.pen.note(Kind::RenewCall, now(), 0, ttl.as_nanos() as u64);
        let renewed = guard.renew_for(ttl).await;
        let at = now();
        match renewed {
            Ok(()) => self.pen.note(Kind::Renewed, at, guard.deadline(at), 0),
            Err(error) if error.kind() == leasehold::ErrorKind::Lost => {
                // The store said so, or the deadline has passed: the next look tells.
                self.pen.note(Kind::RenewFailed, at, 0, 0);
            }
            Err(_) => self.pen.note(Kind::RenewFailed, at, 0, 0),
        }
    }

    /// Ends a turn, in one of several ways.
    pub(super) async fn finish(&mut self, guard: Guard) {
        let leaks = !self.task.lingers;
        if !self.task.session && self.dice.once_in(if leaks { 10 } else { 30 }) && self.shorten(&guard).await
        {
            // Left to expire, which is soon.
            if leaks || (self.task.abandons && self.part() != Part::Hot && self.dice.once_in(3)) {
                self.give_away(guard);
                return;
            }
            self.pen.look(&guard);
        }
        self.release(guard).await;
    }

    pub(super) async fn release(&mut self, guard: Guard) {
        let give_up = self.give_up();
        if give_up.is_none() && self.dice.once_in(5) {
            self.pen.note(Kind::ReleaseCall, now(), 0, 1);
            return drop(guard);
        }
        self.pen.note(Kind::ReleaseCall, now(), 0, 0);
        let answer = match give_up {
            Some(after) => tokio::time::timeout(after, guard.release()).await.ok(),
            None => Some(guard.release().await),
        };
        let kind = match answer {
            Some(Ok(GuardState::Released)) => Kind::Released,
            Some(Ok(_)) => Kind::ReleasedNothing,
            Some(Err(_)) => Kind::ReleaseFailed,
            None => Kind::ReleaseDropped,
        };
        self.pen.note(kind, now(), 0, 0);
    }
}
