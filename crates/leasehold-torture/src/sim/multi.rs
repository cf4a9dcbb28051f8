//! Several names taken by one call, held and lost together.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::{ErrorKind, Guard, GuardState, MultiGuard, MultiLock};

use super::count::Count;
use super::worker::{Claiming, Worker, cut_short};
use super::world::World;
use crate::history::record::{Face, Kind, Mode, Record};

/// The names that one call takes, in the order in which it lists them.
pub(crate) struct MultiClaiming(Vec<Claiming>);

impl Worker {
    /// Now and then one or two more names beside the first.
    pub(crate) fn several(self: &Arc<Self>, first: &Claiming) -> Option<MultiClaiming> {
        let plan = &self.world.plan;
        let mut chance = self.world.multi_chance();
        if plan.multi == 0 || !chance.per_mille(plan.multi) {
            return None;
        }
        let mut others: Vec<usize> = (0..plan.names.len()).filter(|lock| *lock != first.lock).collect();
        if others.len() > 1 && chance.per_mille(500) {
            others.swap_remove(chance.below(others.len() as u64) as usize);
        }
        let mut parts: Vec<_> = others
            .into_iter()
            .map(|lock| {
                let mode = match plan.names[lock].limit {
                    0 if chance.per_mille(plan.shared) => Mode::Shared,
                    0 => Mode::Exclusive,
                    _ => Mode::Permit,
                };
                let common = Record { mode, name: lock as u16, claim: self.next_claim(), ..first.common };
                Claiming { common, lock, ..first.clone() }
            })
            .collect();
        parts.insert(chance.below(parts.len() as u64 + 1) as usize, first.clone());
        Some(MultiClaiming(parts))
    }
}

impl MultiClaiming {
    fn world(&self) -> &Arc<World> {
        self.0[0].world()
    }

    /// Takes the names, holds them for a while, and releases them.
    pub(crate) async fn work(&self) {
        let Some(guard) = self.acquire().await else { return };
        let holds = &self.0[0].worker.process.holds;
        holds.fetch_add(1, Ordering::Relaxed);
        self.hold(&guard).await;
        self.release(guard).await;
        holds.fetch_sub(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MultiLock {
        let first = &self.0[0];
        let none: [&str; 0] = [];
        self.0.iter().fold(first.worker.locks.all(none).ttl(first.ttl), |lock, part| match part.common.mode {
            Mode::Exclusive => lock.also(part.name()),
            Mode::Shared => lock.also_read(part.name()),
            Mode::Permit => lock.also_permit(part.name(), part.limit()),
        })
    }

    /// Records the same of each name.
    fn write_all(&self, kind: Kind, value: u64) {
        self.0.iter().for_each(|part| part.write(kind, value));
    }

    async fn acquire(&self) -> Option<MultiGuard> {
        let (world, ttl) = (self.world(), self.0[0].ttl);
        let (wait, cut) = {
            let mut chance = world.multi_chance();
            let wait = match chance.below(4) {
                0 => Duration::ZERO,
                1 => chance.millis(1, 50),
                _ => chance.part(world.plan.ttl, 20, 3000),
            };
            let cancel = chance.per_mille(world.plan.cancels);
            let within = (wait.as_millis() as u64).max(20);
            (wait, cancel.then(|| chance.millis(0, within)))
        };
        let asked = if world.plan.session { Duration::ZERO } else { ttl };
        // One moment for all: it says that they belong together.
        let at = world.time.now();
        for part in &self.0 {
            let (value, deadline) = (wait.as_nanos() as u64, asked.as_nanos() as u64);
            let call = Record { value, deadline, fence: Face::Multi as u64, ..part.common };
            world.write(Record { kind: Kind::AcquireCall, at, ..call });
        }
        let lock = self.lock();
        let acquire = async {
            if wait.is_zero() { lock.try_lock().await } else { lock.max_wait(wait).lock().await.map(Some) }
        };
        match cut_short(acquire, cut).await {
            None => {
                self.write_all(Kind::AcquireDropped, 0);
                world.count(Count::AcquireDropped);
            }
            Some(Ok(Some(guard))) => {
                world.count(Count::MultiGranted);
                for part in &self.0 {
                    match guard.guard(part.name()) {
                        Some(guard) => world.write(part.about(Kind::Granted, guard)),
                        None => part.write(Kind::Missing, 0),
                    }
                }
                return Some(guard);
            }
            Some(Err(error)) if error.kind() != ErrorKind::Timeout => {
                self.write_all(Kind::AcquireFailed, 0);
                world.count(Count::AcquireFailed);
            }
            Some(_) => {
                self.write_all(Kind::Missing, 0);
                world.count(Count::MultiMissing);
            }
        }
        None
    }

    fn parts<'a>(&'a self, guard: &'a MultiGuard) -> impl Iterator<Item = (&'a Claiming, &'a Guard)> {
        self.0.iter().filter_map(|part| Some((part, guard.guard(part.name())?)))
    }

    /// Looks at each lease. If the holder `relies` on all, it does so at the moments before it finds one lost.
    fn look(&self, guard: &MultiGuard, relies: bool) {
        let seen: Vec<_> =
            self.parts(guard).map(|(part, guard)| (part, guard, part.about(Kind::Held, guard))).collect();
        let (lost, held): (Vec<_>, Vec<_>) =
            seen.into_iter().partition(|(_, guard, _)| guard.lost().now().is_some());
        if relies {
            held.into_iter().for_each(|(.., record)| self.world().write(record));
        }
        for (part, guard, _) in lost {
            part.look(guard);
        }
    }

    async fn hold(&self, guard: &MultiGuard) {
        let world = self.world();
        let (hold, runs) = {
            let mut chance = world.multi_chance();
            let hold = match (chance.per_mille(world.plan.long_holds), world.plan.session) {
                (true, false) => chance.part(self.0[0].ttl, 100, 400),
                (true, true) => chance.millis(200, 4000),
                _ => chance.millis(0, 60),
            };
            (hold, chance.per_mille(500))
        };
        let end = tokio::time::Instant::now() + hold;
        let step = async |relies: bool| {
            self.look(guard, relies);
            let nap = world.multi_chance().millis(1, 30);
            world.sleep(nap).await;
            tokio::time::Instant::now() < end
        };
        let lost = if runs {
            // As long as it runs, it relies on them, without asking.
            guard.run(async { while step(true).await {} }).await.is_err()
        } else {
            while guard.check().is_ok() && step(true).await {}
            guard.check().is_err()
        };
        self.look(guard, !lost);
        if lost {
            world.count(Count::MultiLost);
        }
    }

    async fn release(&self, guard: MultiGuard) {
        let world = self.world();
        let (drops, cut) = {
            let mut chance = world.multi_chance();
            let cancel = chance.per_mille(world.plan.cancels);
            (chance.per_mille(250), cancel.then(|| chance.millis(0, 20)))
        };
        let about: Vec<_> =
            self.parts(&guard).map(|(part, guard)| part.about(Kind::ReleaseCall, guard)).collect();
        about.iter().for_each(|call| world.write(Record { deadline: 0, value: u64::from(drops), ..*call }));
        if drops {
            world.count(Count::GuardDropped);
            return drop(guard);
        }
        let kind = match cut_short(guard.release(), cut).await {
            None => Kind::ReleaseDropped,
            Some(Ok(GuardState::Released)) => Kind::Released,
            // One of them was gone; the others were released.
            Some(_) => Kind::ReleaseFailed,
        };
        for (part, call) in self.0.iter().zip(about) {
            world.write(Record { lease: call.lease, fence: call.fence, ..part.record(kind) });
        }
    }
}
