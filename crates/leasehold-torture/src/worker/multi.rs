//! Turns with several names at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::{Error, Guard, GuardState, MultiGuard, MultiLock, Result};
use tokio::sync::watch;

use crate::history::record::{Face, Kind, Mode};

use super::faces::Ending;
use super::guards::Wait;
use super::pen::{AnyGuard as _, Pen, now};
use super::{Part, Player, Task};

/// The names of a turn, in the order in which it lists them.
struct Names {
    task: Arc<Task>,
    pens: Vec<Pen>,
    finished: watch::Receiver<bool>,
}

impl Names {
    fn name(&self, pen: &Pen) -> &str {
        &self.task.names[usize::from(pen.name)].name
    }

    /// Records the same of each.
    fn note(&self, kind: Kind, value: u64) {
        self.pens.iter().for_each(|pen| pen.note(kind, now(), 0, value));
    }

    fn granted(&mut self, guard: &MultiGuard) {
        let Names { task, pens, .. } = self;
        for pen in pens {
            match guard.guard(&task.names[usize::from(pen.name)].name) {
                Some(guard) => pen.granted(guard),
                None => pen.note(Kind::Missing, now(), 0, 0),
            }
        }
    }

    fn guards<'a>(&'a self, guard: &'a MultiGuard) -> impl Iterator<Item = (&'a Pen, &'a Guard)> {
        self.pens.iter().filter_map(|pen| Some((pen, guard.guard(self.name(pen))?)))
    }

    /// Looks at each lease. A holder that `relies` on all does so until it finds one lost: that is recorded after what
    /// it relied on in the same look.
    fn look(&self, guard: &MultiGuard, relies: bool) {
        let at = now();
        let seen = self.guards(guard).map(|(pen, guard)| (pen, guard.deadline(at), guard.lost_by_now()));
        let seen: Vec<_> = seen.collect();
        for (pen, deadline, _) in seen.iter().filter(|(.., lost)| relies && lost.is_none()) {
            pen.note(Kind::Held, at, *deadline, 0);
        }
        for (pen, _, lost) in seen {
            if let Some(reason) = lost {
                pen.lost(reason);
            }
        }
    }

    /// Looks repeatedly for this long, as work that is dropped when one of the leases is lost.
    async fn rely(&self, guard: &MultiGuard, time: Duration) {
        let end = now() + time.as_nanos() as u64;
        loop {
            self.look(guard, true);
            if now() >= end || *self.finished.borrow() {
                return;
            }
            tokio::time::sleep((time / 6).clamp(Duration::from_micros(300), Duration::from_millis(20))).await;
        }
    }
}

impl Player {
    /// One turn with two or three names.
    pub(super) async fn take_several(&mut self) {
        let mut names = self.several();
        let (wait, give_up, hold) = (self.wait(), self.give_up(), self.hold_for());
        let (lock, with) = (self.multi_lock(&names), self.dice.once_in(4));
        // One moment for all: it says that they belong together.
        let at = now();
        names.pens.iter().for_each(|pen| pen.call(at, self.asked(), wait.nanos(), Face::Multi));
        let mut granted = false;
        let taken = {
            let mut finished = self.finished.clone();
            let given_up = async {
                match give_up {
                    Some(after) => tokio::time::sleep(after).await,
                    None => drop(finished.wait_for(|finished| *finished).await),
                }
            };
            let take = async {
                match wait {
                    Wait::Try => lock.try_lock().await,
                    Wait::For(limit) if !with => lock.try_lock_for(limit).await,
                    Wait::For(limit) => {
                        let lock = lock.max_wait(limit);
                        lock.with_lock(async |guard| work(guard, &mut names, hold, &mut granted).await)
                            .await?;
                        Ok(None)
                    }
                    Wait::Unbounded => lock.lock().await.map(Some),
                }
            };
            tokio::select! {
                biased;
                taken = take => Some(taken),
                () = given_up => None,
            }
        };
        match taken {
            // The helper has released it.
            _ if granted => {}
            None => names.note(Kind::AcquireDropped, 0),
            Some(Ok(Some(guard))) => {
                names.granted(&guard);
                self.keep_several(&guard, &names, hold).await;
                self.release_several(guard, &names).await;
            }
            Some(Err(error)) if error.kind() != leasehold::ErrorKind::Timeout => {
                names.note(Kind::AcquireFailed, 0);
                self.rest().await;
            }
            Some(_) => names.note(Kind::Missing, 0),
        }
    }

    /// The name of this turn and one or two others that are there for this, in any order. The label that the store shows
    /// has the claim of this name.
    fn several(&mut self) -> Names {
        let parts = (0..).zip(&self.task.parts).filter(|(_, part)| **part == Part::Several);
        let mut others: Vec<u16> =
            parts.map(|(place, _)| place).filter(|place| *place != self.pen.name).collect();
        if others.len() > 1 && self.dice.once_in(2) {
            others.swap_remove(self.dice.below(others.len() as u64) as usize);
        }
        self.pen.know(None, 0);
        let mut pens: Vec<Pen> = Vec::new();
        for name in others {
            let mut pen = self.pen.clone();
            pen.name = name;
            pen.mode = match self.task.names[usize::from(name)].limit {
                0 if self.task.shared && self.dice.once_in(3) => Mode::Shared,
                0 => Mode::Exclusive,
                _ => Mode::Permit,
            };
            pen.claim = self.claims.fetch_add(1, Ordering::Relaxed);
            pens.push(pen);
        }
        pens.insert(self.dice.below(pens.len() as u64 + 1) as usize, self.pen.clone());
        Names { task: Arc::clone(&self.task), pens, finished: self.finished.clone() }
    }

    fn multi_lock(&self, names: &Names) -> MultiLock {
        let none: [&str; 0] = [];
        let lock = self.locks.all(none).ttl(self.ttl).owner(self.owner());
        names.pens.iter().fold(lock, |lock, pen| match pen.mode {
            Mode::Exclusive => lock.also(names.name(pen)),
            Mode::Shared => lock.also_read(names.name(pen)),
            Mode::Permit => lock.also_permit(names.name(pen), self.task.names[usize::from(pen.name)].limit),
        })
    }

    async fn keep_several(&mut self, guard: &MultiGuard, names: &Names, hold: Duration) {
        if self.dice.once_in(2) {
            names.note(Kind::RunCall, 0);
            let lost = guard.run(names.rely(guard, hold)).await.is_err();
            names.note(Kind::RunEnded, u64::from(lost));
        } else {
            let end = now() + hold.as_nanos() as u64;
            while guard.check().is_ok() && now() < end && !*names.finished.borrow() {
                names.look(guard, true);
                tokio::time::sleep(Duration::from_micros(100 + self.dice.below(2_000))).await;
            }
        }
        names.look(guard, guard.check().is_ok());
    }

    async fn release_several(&mut self, guard: MultiGuard, names: &Names) {
        let give_up = self.give_up();
        let drops = give_up.is_none() && self.dice.once_in(5);
        names.note(Kind::ReleaseCall, u64::from(drops));
        if drops {
            return drop(guard);
        }
        let answer = match give_up {
            Some(after) => tokio::time::timeout(after, guard.release()).await.ok(),
            None => Some(guard.release().await),
        };
        let kind = match answer {
            Some(Ok(GuardState::Released)) => Kind::Released,
            // One of them was gone; the others were released.
            Some(_) => Kind::ReleaseFailed,
            None => Kind::ReleaseDropped,
        };
        names.note(kind, 0);
    }
}

/// The work inside `with_lock`.
async fn work(
    guard: &MultiGuard,
    names: &mut Names,
    hold: Duration,
    granted: &mut bool,
) -> Result<(), Error> {
    *granted = true;
    names.granted(guard);
    let _endings: Vec<Ending> = names.pens.iter().cloned().map(Ending).collect();
    names.rely(guard, hold).await;
    Ok(())
}
