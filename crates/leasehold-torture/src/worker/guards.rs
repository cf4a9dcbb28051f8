//! Turns with guards: mutexes, reader-writer locks and semaphores, waited for, tried, given up, released and dropped.

use std::time::Duration;

use leasehold::{Guard, LostReason, Result, State};

use crate::history::record::{Kind, Loss, Mode, SESSION};

use super::Player;
use super::pen::now;

/// How long an acquire may wait.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wait {
    /// Not at all.
    Try,
    /// So long.
    For(Duration),
    /// Until it is its turn.
    Unbounded,
}

impl Wait {
    /// As a history has it.
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
        // Who is alone in its process is to be met with a lock: it does not stand behind a dead place until that lapses.
        let alone = self.task.tasks == 1;
        match self.dice.below(6) {
            0 => Wait::Try,
            roll if roll < 3 || alone => {
                Wait::For(Duration::from_millis(self.dice.below(500)) + self.dice.micros(1_000))
            }
            _ => Wait::Unbounded,
        }
    }

    /// After how long a call is given up, if it is.
    pub(super) fn give_up(&mut self) -> Option<Duration> {
        (self.task.cancels && self.dice.once_in(3)).then(|| self.dice.micros(5_000))
    }

    /// One turn.
    pub(super) async fn take_guard(&mut self) {
        let wait = self.wait();
        let give_up = self.give_up();
        self.pen.know(None, 0);
        self.pen.note(Kind::AcquireCall, now(), self.asked(), wait.nanos());
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
        let at = now();
        match taken {
            Some(Ok(Some(guard))) => {
                self.pen.know(Some(guard.lease_id()), guard.fence().get());
                self.pen.mode = recorded(guard.mode());
                self.pen.note(Kind::Granted, at, deadline(&guard, at), 0);
                self.keep(&guard).await;
                self.release(guard).await;
            }
            Some(Ok(None)) => self.pen.note(Kind::Busy, at, 0, 0),
            Some(Err(_)) => {
                self.pen.note(Kind::AcquireFailed, at, 0, 0);
                self.rest().await;
            }
            None => self.pen.note(Kind::AcquireDropped, at, 0, 0),
        }
    }

    /// A store that fails at once should not be asked in a tight loop.
    pub(super) async fn rest(&mut self) {
        tokio::time::sleep(Duration::from_millis(2 + self.dice.below(20))).await;
    }

    async fn acquire(&self, wait: Wait) -> Result<Option<Guard>> {
        let name = self.name();
        match self.pen.mode {
            Mode::Permit => {
                let lock = self.locks.semaphore(&name.name, name.limit);
                match wait {
                    Wait::Try => lock.try_acquire().await,
                    Wait::For(limit) => lock.try_acquire_for(limit).await,
                    Wait::Unbounded => lock.acquire().await.map(Some),
                }
            }
            Mode::Shared => {
                let lock = self.locks.rwlock(&name.name);
                match wait {
                    Wait::Try => lock.try_read().await,
                    Wait::For(limit) => lock.try_read_for(limit).await,
                    Wait::Unbounded => lock.read().await.map(Some),
                }
            }
            Mode::Exclusive if self.pen.name == 1 => {
                let lock = self.locks.rwlock(&name.name);
                match wait {
                    Wait::Try => lock.try_write().await,
                    Wait::For(limit) => lock.try_write_for(limit).await,
                    Wait::Unbounded => lock.write().await.map(Some),
                }
            }
            Mode::Exclusive => {
                let lock = self.locks.mutex(&name.name);
                match wait {
                    Wait::Try => lock.try_lock().await,
                    Wait::For(limit) => lock.try_lock_for(limit).await,
                    Wait::Unbounded => lock.lock().await.map(Some),
                }
            }
        }
    }

    /// Looks; whether it still may.
    fn look(&self, guard: &Guard) -> bool {
        // Read before looking: what is seen is true of this moment and a little later.
        let at = now();
        let deadline = deadline(guard, at);
        match guard.lost().now() {
            // Also when the deadline has passed, which was looked at first: one that is not lost then is relied on for too long.
            None => self.pen.note(Kind::Held, at, deadline, 0),
            Some(reason) => {
                let loss = match reason {
                    LostReason::DeadlinePassed => Loss::Deadline,
                    LostReason::Refused(_) => Loss::Refused,
                    _ => Loss::Other,
                };
                // It had come by now.
                self.pen.note(Kind::Lost, now(), 0, loss as u64);
                return false;
            }
        }
        true
    }

    async fn keep(&mut self, guard: &Guard) {
        let time = self.hold_for();
        if time.is_zero() {
            return;
        }
        let end = now() + time.as_nanos() as u64;
        let protects = self.protects();
        if protects {
            self.enter().await;
        }
        let ttl = self.task.ttl();
        let step = u64::try_from(time.as_micros() / 6).unwrap_or(u64::MAX).clamp(300, 20_000);
        let mut may = true;
        // Some go on looking at what is lost: it does not come back.
        let stubborn = self.dice.once_in(3);
        while (may || stubborn) && now() < end && !*self.finished.borrow() {
            may = self.look(guard);
            if may && !self.task.session && self.dice.once_in(40) {
                self.renew(guard, ttl).await;
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
            self.look(guard);
        }
    }

    async fn renew(&self, guard: &Guard, ttl: Duration) {
        self.pen.note(Kind::RenewCall, now(), 0, ttl.as_nanos() as u64);
        let renewed = guard.renew_for(ttl).await;
        let at = now();
        match renewed {
            Ok(()) => self.pen.note(Kind::Renewed, at, deadline(guard, at), 0),
            Err(error) if error.kind() == leasehold::ErrorKind::Lost => {
                // The store said so, or the deadline has passed: the next look tells.
                self.pen.note(Kind::RenewFailed, at, 0, 0);
            }
            Err(_) => self.pen.note(Kind::RenewFailed, at, 0, 0),
        }
    }

    async fn release(&mut self, guard: Guard) {
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
            Some(Ok(State::Released)) => Kind::Released,
            Some(Ok(_)) => Kind::ReleasedNothing,
            Some(Err(_)) => Kind::ReleaseFailed,
            None => Kind::ReleaseDropped,
        };
        self.pen.note(kind, now(), 0, 0);
    }
}

/// As a history has it.
pub(super) fn recorded(mode: leasehold::Mode) -> Mode {
    match mode {
        leasehold::Mode::Shared => Mode::Shared,
        leasehold::Mode::Permit { .. } => Mode::Permit,
        _ => Mode::Exclusive,
    }
}

/// Until when it may be relied on.
fn deadline(guard: &Guard, now: u64) -> u64 {
    guard.valid_for().map_or(SESSION, |valid| now + valid.as_nanos() as u64)
}
