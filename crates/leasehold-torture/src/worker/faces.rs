//! Turns with other parts of the API: `with_lock` and similar, `Guard::run`, and a client that is closed in the
//! middle.

use std::time::Duration;

use leasehold::{Error, Guard, LostSignal};

use crate::history::record::{Face, Kind, Mode};

use super::guards::Wait;
use super::pen::{Pen, now};
use super::{Part, Player, connect};

/// Records, when the work is over or dropped, that the library is about to release.
pub(super) struct Ending(pub(super) Pen);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.note(Kind::ReleaseCall, now(), 0, 1);
    }
}

impl Player {
    /// One turn inside `with_lock`, `with_read`, `with_write` or `with_permit`.
    pub(super) async fn take_with(&mut self) {
        let limit = Duration::from_millis(20 + self.dice.below(500));
        let give_up = self.give_up();
        let mut finished = self.finished.clone();
        self.pen.know(None, 0);
        self.pen.call(now(), self.asked(), limit.as_nanos() as u64, Face::With);
        let mut granted: Option<LostSignal> = None;
        let worked = {
            let given_up = async {
                match give_up {
                    Some(after) => tokio::time::sleep(after).await,
                    None => drop(finished.wait_for(|finished| *finished).await),
                }
            };
            let with = self.work_with(limit, &mut granted);
            tokio::select! {
                biased;
                worked = with => Some(worked),
                () = given_up => None,
            }
        };
        match (worked, granted) {
            (Some(_), Some(lost)) => {
                if let Some(reason) = lost.now() {
                    self.pen.lost(reason);
                }
            }
            (Some(worked), None) => {
                if self.pen.refused(worked.err().as_ref()) {
                    self.rest().await;
                }
            }
            (None, Some(_)) => {}
            (None, None) => self.pen.note(Kind::AcquireDropped, now(), 0, 0),
        }
    }

    async fn work_with(&mut self, limit: Duration, granted: &mut Option<LostSignal>) -> Result<(), Error> {
        let name = self.name().name.clone();
        let (ttl, owner) = (self.ttl, self.owner());
        let (permits, writes) = (self.name().limit, self.part() == Part::Book);
        let (locks, mode) = (self.locks.clone(), self.pen.mode);
        let work = async |guard: &Guard| {
            *granted = Some(guard.lost());
            self.pen.granted(guard);
            let _ending = Ending(self.pen.clone());
            self.keep(guard, false).await;
            Ok(())
        };
        match mode {
            Mode::Permit => {
                let lock = locks.semaphore(&name, permits).ttl(ttl).owner(owner).max_wait(limit);
                lock.with_permit(work).await
            }
            Mode::Shared => locks.rwlock(&name).ttl(ttl).owner(owner).max_wait(limit).with_read(work).await,
            Mode::Exclusive if writes => {
                locks.rwlock(&name).ttl(ttl).owner(owner).max_wait(limit).with_write(work).await
            }
            Mode::Exclusive => locks.mutex(&name).ttl(ttl).owner(owner).max_wait(limit).with_lock(work).await,
        }
    }

    /// Keeps a guard while work runs that is dropped when the lease is lost.
    pub(super) async fn run(&mut self, guard: &Guard) {
        self.pen.note(Kind::RunCall, now(), 0, 0);
        let lost = guard.run(self.keep(guard, false)).await.is_err();
        self.pen.note(Kind::RunEnded, now(), 0, u64::from(lost));
        self.pen.look(guard);
    }

    /// One turn with a separate client, which is closed while it waits or holds.
    pub(super) async fn close_in_the_middle(&mut self) {
        let Some(own) = connect(&self.task, &self.finished).await else { return };
        let shared = std::mem::replace(&mut self.locks, own);
        self.pen.know(None, 0);
        let wait = match self.wait() {
            Wait::Unbounded => Wait::For(Duration::from_millis(500)),
            wait => wait,
        };
        self.pen.call(now(), self.asked(), wait.nanos(), Face::Closing);
        let after = self.dice.micros(20_000);
        let closing = self.locks.clone();
        let close = async {
            tokio::time::sleep(after).await;
            closing.close().await;
        };
        let (taken, ()) = tokio::join!(self.acquire(wait), close);
        match taken {
            Ok(Some(guard)) => {
                self.pen.granted(&guard);
                // A closed client still renews the lease until it is released.
                self.keep(&guard, false).await;
                if self.dice.once_in(2) {
                    self.pen.note(Kind::ReleaseCall, now(), 0, 1);
                    drop(guard);
                } else {
                    self.release(guard).await;
                }
            }
            Ok(None) => drop(self.pen.refused(None)),
            Err(error) => drop(self.pen.refused(Some(&error))),
        }
        self.locks.close().await;
        self.pen.note(Kind::Closed, now(), 0, 0);
        self.locks = shared;
    }
}
