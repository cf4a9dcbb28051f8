//! Turns with the blocking API, on a separate thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::blocking::{Guard, Locks};
use leasehold::{Error, GuardState, Result};
use tokio::sync::watch;

use crate::history::record::{Face, Kind, Log, Mode};
use crate::history::setting::Name;
use leasehold_testbed::dice::Dice;

use super::pen::{AnyGuard as _, Pen, now};
use super::{Part, Task, queue};

/// One thread of a worker.
pub(super) struct Blocking {
    locks: Locks,
    pen: Pen,
    dice: Dice,
    task: Arc<Task>,
    claims: Arc<AtomicU64>,
    finished: watch::Receiver<bool>,
}

impl Blocking {
    /// Uses the client of the worker's other tasks.
    pub(super) fn new(
        locks: &leasehold::Locks,
        task: &Arc<Task>,
        log: &Arc<Log>,
        claims: &Arc<AtomicU64>,
        finished: &watch::Receiver<bool>,
    ) -> Self {
        Blocking {
            locks: Locks::from(locks.clone()),
            pen: Pen::new(Arc::clone(log), task.worker, task.tasks),
            dice: Dice::fork(task.seed, u64::from(task.worker) << 16 | u64::from(task.tasks)),
            task: Arc::clone(task),
            claims: Arc::clone(claims),
            finished: finished.clone(),
        }
    }

    pub(super) fn play(mut self) {
        while !*self.finished.borrow() {
            self.pen.claim = self.claims.fetch_add(1, Ordering::Relaxed);
            let parts: &[Part] = &[Part::Book, Part::Pool, Part::Cool];
            let part = parts[self.dice.below(3) as usize];
            let places: Vec<u16> =
                (0..).zip(&self.task.parts).filter(|(_, of)| **of == part).map(|(place, _)| place).collect();
            let Some(name) = places.get(self.dice.below(places.len() as u64) as usize) else { continue };
            self.pen.name = *name;
            let reads = part == Part::Book && self.task.shared && self.dice.once_in(2);
            self.pen.mode = match self.name().limit {
                0 if reads => Mode::Shared,
                0 => Mode::Exclusive,
                _ => Mode::Permit,
            };
            if self.dice.once_in(4) {
                self.take_with();
            } else {
                self.take_guard();
            }
            std::thread::sleep(self.dice.micros(10_000));
        }
    }

    fn name(&self) -> &Name {
        &self.task.names[usize::from(self.pen.name)]
    }

    fn call(&mut self, wait: Duration) {
        let ttl = if self.task.session { 0 } else { self.task.ttl_ms * 1_000_000 };
        self.pen.know(None, 0);
        self.pen.call(now(), ttl, wait.as_nanos() as u64, Face::Blocking);
    }

    fn take_guard(&mut self) {
        let wait =
            if self.dice.once_in(3) { Duration::ZERO } else { Duration::from_millis(self.dice.below(300)) };
        self.call(wait);
        match self.acquire(wait) {
            Ok(Some(guard)) => {
                self.pen.granted(&guard);
                self.keep(&guard);
                self.release(guard);
            }
            Ok(None) => drop(self.pen.refused(None)),
            Err(error) => self.failed(&error),
        }
    }

    fn acquire(&self, wait: Duration) -> Result<Option<Guard>> {
        let (Name { name, limit, .. }, owner) = (self.name(), queue::owner(self.pen.worker, self.pen.claim));
        match (self.pen.mode, wait.is_zero()) {
            (Mode::Permit, true) => self.locks.semaphore(name, *limit).owner(owner).try_acquire(),
            (Mode::Permit, false) => self.locks.semaphore(name, *limit).owner(owner).try_acquire_for(wait),
            (Mode::Shared, true) => self.locks.rwlock(name).owner(owner).try_read(),
            (Mode::Shared, false) => self.locks.rwlock(name).owner(owner).try_read_for(wait),
            (Mode::Exclusive, true) => self.locks.mutex(name).owner(owner).try_lock(),
            (Mode::Exclusive, false) => self.locks.rwlock(name).owner(owner).try_write_for(wait),
        }
    }

    fn take_with(&mut self) {
        let wait = Duration::from_millis(20 + self.dice.below(300));
        self.call(wait);
        let Name { name, limit, .. } = self.name().clone();
        let (locks, mode) = (self.locks.clone(), self.pen.mode);
        let owner = queue::owner(self.pen.worker, self.pen.claim);
        let mut granted = None;
        let work = |guard: &Guard| -> Result<()> {
            granted = Some(guard.lost());
            self.pen.granted(guard);
            self.keep(guard);
            self.pen.note(Kind::ReleaseCall, now(), 0, 1);
            Ok(())
        };
        let worked = match mode {
            Mode::Permit => locks.semaphore(name, limit).owner(owner).max_wait(wait).with_permit(work),
            Mode::Shared => locks.rwlock(name).owner(owner).max_wait(wait).with_read(work),
            Mode::Exclusive => locks.mutex(name).owner(owner).max_wait(wait).with_lock(work),
        };
        match (worked, granted) {
            (_, Some(lost)) => {
                if let Some(reason) = lost.now() {
                    self.pen.lost(reason);
                }
            }
            (Err(error), None) => self.failed(&error),
            (Ok(()), None) => {}
        }
    }

    fn failed(&mut self, error: &Error) {
        if self.pen.refused(Some(error)) {
            std::thread::sleep(Duration::from_millis(2 + self.dice.below(20)));
        }
    }

    fn keep(&mut self, guard: &Guard) {
        let end = now() + self.dice.between(500, 5_000) * 1_000;
        while now() < end && self.pen.look(guard) {
            if !self.task.session && self.dice.once_in(20) {
                let ttl = self.task.ttl();
                self.pen.note(Kind::RenewCall, now(), 0, ttl.as_nanos() as u64);
                let renewed = guard.renew_for(ttl).is_ok();
                let at = now();
                let kind = if renewed { Kind::Renewed } else { Kind::RenewFailed };
                self.pen.note(kind, at, if renewed { guard.deadline(at) } else { 0 }, 0);
            }
            // As a thread does that waits until the lock is lost.
            let _ = guard.wait_lost_for(Duration::from_micros(200 + self.dice.below(1_000)));
        }
        self.pen.look(guard);
    }

    fn release(&mut self, guard: Guard) {
        let drops = self.dice.once_in(4);
        self.pen.note(Kind::ReleaseCall, now(), 0, u64::from(drops));
        if drops {
            return drop(guard);
        }
        let kind = match guard.release() {
            Ok(GuardState::Released) => Kind::Released,
            Ok(_) => Kind::ReleasedNothing,
            Err(_) => Kind::ReleaseFailed,
        };
        self.pen.note(kind, now(), 0, 0);
    }
}
