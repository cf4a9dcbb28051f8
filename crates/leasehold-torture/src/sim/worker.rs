//! What a simulated process does: takes locks, checks whether it still holds them, gives them up, and records it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{ErrorKind, Mode as LockMode, Result};
use leasehold::{Guard, GuardState, Locks, LostReason};

use super::count::Count;
use super::network::Wire;
use super::process::Process;
use super::resource::Resource;
use super::served::Server;
use super::world::World;
use crate::history::record::{Kind, Loss, Mode, Record, SESSION, hash};

/// One process and everything it shares.
pub(crate) struct Worker {
    pub(crate) world: Arc<World>,
    pub(crate) process: Arc<Process>,
    pub(crate) locks: Locks,
    pub(crate) resource: Arc<Resource>,
    server: Option<Server>,
    claims: AtomicU64,
    tasks: AtomicU32,
}

/// A claim in progress: what its records have in common.
#[derive(Clone)]
pub(crate) struct Claiming {
    pub(crate) worker: Arc<Worker>,
    pub(crate) common: Record,
    pub(crate) lock: usize,
    pub(crate) ttl: Duration,
}

/// Starts a process; it ends by itself when there is no more work, and sends its number.
pub(crate) fn start(
    world: &Arc<World>,
    process: Arc<Process>,
    wire: Wire,
    resource: &Arc<Resource>,
    ended: impl FnOnce() + Send + 'static,
) {
    let plan = &world.plan;
    if plan.session {
        process.spawn(wire.clone().keep_alive());
    }
    let clock: Arc<dyn Clock> = process.clock.clone();
    #[cfg(feature = "__bugs")]
    let clock = crate::defects::clock(clock);
    let builder = Locks::builder(Arc::new(wire.clone()));
    #[cfg(feature = "__bugs")]
    let builder = crate::defects::client::plant(builder, clock.clone());
    let builder = builder
        .clock(clock)
        .owner(format!("process-{}", process.number))
        .ttl(plan.ttl)
        .request_timeout(plan.request_timeout)
        .release_timeout(plan.request_timeout * 4);
    let (locks, background) = builder.build_apart();
    world.write(world.record(Kind::Begin, process.number));
    process.spawn(background);
    let server = (plan.served > 0).then(|| Server::new(&locks)).flatten();
    let worker = Arc::new(Worker {
        server,
        world: Arc::clone(world),
        process: Arc::clone(&process),
        locks,
        resource: Arc::clone(resource),
        claims: AtomicU64::new(0),
        tasks: AtomicU32::new(u32::from(plan.tasks)),
    });
    let ended = Arc::new(parking_lot::Mutex::new(Some(ended)));
    for task in 0..plan.tasks {
        let (worker, ended, wire) = (Arc::clone(&worker), Arc::clone(&ended), wire.clone());
        process.spawn(async move {
            worker.work(task).await;
            if worker.tasks.fetch_sub(1, Ordering::Relaxed) > 1 {
                return;
            }
            // The last task waits for the releases that are still to be sent.
            worker.locks.close().await;
            wire.close();
            worker.world.write(worker.world.record(Kind::End, worker.process.number));
            let ended = ended.lock().take();
            if let Some(ended) = ended {
                ended();
            }
        });
    }
}

impl Worker {
    async fn work(self: &Arc<Self>, task: u16) {
        let world = &self.world;
        while !world.is_ending() {
            let pause = world.chance().millis(0, 60);
            world.sleep(pause).await;
            let claiming = self.claim(task);
            let (bare, revoke, served) = {
                let mut chance = world.chance();
                (
                    chance.per_mille(world.plan.bare),
                    chance.per_mille(world.plan.revokes),
                    self.server.is_some() && chance.per_mille(world.plan.served),
                )
            };
            if revoke {
                claiming.revoke().await;
            } else if let Some(claiming) = self.several(&claiming) {
                claiming.work().await;
            } else if let Some(server) = self.server.as_ref().filter(|_| served) {
                claiming.served(server).await;
            } else if bare {
                claiming.bare().await;
            } else if let Some(guard) = claiming.acquire().await {
                self.process.holds.fetch_add(1, Ordering::Relaxed);
                claiming.hold(guard).await;
                self.process.holds.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// The number of the next claim.
    pub(crate) fn next_claim(&self) -> u64 {
        self.claims.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn claim(self: &Arc<Self>, task: u16) -> Claiming {
        let names = &self.world.plan.names;
        let mut chance = self.world.chance();
        let lock = chance.below(names.len() as u64) as usize;
        let mode = match names[lock].limit {
            0 if chance.per_mille(self.world.plan.shared) => Mode::Shared,
            0 => Mode::Exclusive,
            _ => Mode::Permit,
        };
        let ttl = chance.part(self.world.plan.ttl, 100, 200);
        drop(chance);
        let common = Record {
            mode,
            name: lock as u16,
            task,
            claim: self.next_claim(),
            ..Record::new(Kind::Begin, self.process.number, 0)
        };
        Claiming { worker: Arc::clone(self), common, lock, ttl }
    }
}

impl Claiming {
    pub(crate) fn world(&self) -> &Arc<World> {
        &self.worker.world
    }

    pub(crate) fn mode(&self) -> LockMode {
        match self.common.mode {
            Mode::Exclusive => LockMode::Exclusive,
            Mode::Shared => LockMode::Shared,
            Mode::Permit => LockMode::Permit { limit: self.limit() },
        }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.world().plan.names[self.lock].limit
    }

    pub(crate) fn name(&self) -> &str {
        &self.world().plan.names[self.lock].name
    }

    /// A record with the current time.
    pub(crate) fn record(&self, kind: Kind) -> Record {
        Record { kind, at: self.world().time.now(), ..self.common }
    }

    pub(crate) fn write(&self, kind: Kind, value: u64) {
        self.world().write(Record { value, ..self.record(kind) });
    }

    /// A moment in the future, this far off by the process's clock.
    pub(crate) fn after(&self, at: u64, time: Duration) -> u64 {
        at + self.worker.process.clock.truly(time).as_nanos() as u64
    }

    async fn acquire(&self) -> Option<Guard> {
        let world = self.world();
        let (wait, cut) = {
            let mut chance = world.chance();
            let wait = match chance.below(4) {
                0 => Duration::ZERO,
                1 => chance.millis(1, 50),
                _ => chance.part(world.plan.ttl, 20, 1500),
            };
            let cancel = chance.per_mille(world.plan.cancels);
            let within = (wait.as_millis() as u64).max(20);
            (wait, cancel.then(|| chance.millis(0, within)))
        };
        let asked = if world.plan.session { Duration::ZERO } else { self.ttl };
        let (value, deadline) = (wait.as_nanos() as u64, asked.as_nanos() as u64);
        world.write(Record { value, deadline, ..self.record(Kind::AcquireCall) });
        let started = tokio::time::Instant::now();
        let Some(outcome) = cut_short(self.lock_within(wait), cut).await else {
            self.write(Kind::AcquireDropped, 0);
            world.count(Count::AcquireDropped);
            return None;
        };
        match outcome {
            Ok(Some(guard)) => {
                world.count(Count::Grants);
                if started.elapsed() > Duration::from_millis(4 * world.plan.delay) {
                    world.count(Count::WaitedGrants);
                }
                let record = self.about(Kind::Granted, &guard);
                world.write(record);
                Some(guard)
            }
            Ok(None) => {
                self.write(Kind::Busy, 0);
                world.count(Count::Busy);
                None
            }
            Err(error) if error.kind() == ErrorKind::Timeout => {
                self.write(Kind::Busy, 0);
                None
            }
            Err(_) => {
                self.write(Kind::AcquireFailed, 0);
                world.count(Count::AcquireFailed);
                None
            }
        }
    }

    /// Through the lock type of the mode.
    async fn lock_within(&self, wait: Duration) -> Result<Option<Guard>> {
        let locks = &self.worker.locks;
        match self.common.mode {
            Mode::Exclusive if self.common.claim.is_multiple_of(2) => {
                locks.rwlock(self.name()).ttl(self.ttl).try_write_for(wait).await
            }
            Mode::Exclusive => locks.mutex(self.name()).ttl(self.ttl).try_lock_for(wait).await,
            Mode::Shared => locks.rwlock(self.name()).ttl(self.ttl).try_read_for(wait).await,
            Mode::Permit => {
                locks.semaphore(self.name(), self.limit()).ttl(self.ttl).try_acquire_for(wait).await
            }
        }
    }

    /// A record of a guard's lease, with the time read before looking: what is seen is true at that moment and a
    /// little later.
    pub(crate) fn about(&self, kind: Kind, guard: &Guard) -> Record {
        let record = self.record(kind);
        let lease = hash(guard.lease_id().expose().as_bytes());
        let deadline = guard.valid_for().map_or(SESSION, |valid| self.after(record.at, valid));
        // The mode as granted, whatever was requested.
        let mode = match guard.mode() {
            LockMode::Shared => Mode::Shared,
            LockMode::Permit { .. } => Mode::Permit,
            _ => Mode::Exclusive,
        };
        Record { lease, mode, fence: guard.fence().get(), deadline, ..record }
    }

    /// Looks; returns whether the lease may still be relied on.
    pub(crate) fn look(&self, guard: &Guard) -> bool {
        let record = self.about(Kind::Held, guard);
        let Some(reason) = guard.lost().now() else {
            self.world().write(record);
            return true;
        };
        let loss = match reason {
            LostReason::DeadlinePassed => Loss::Deadline,
            LostReason::Refused(_) => Loss::Refused,
            _ => Loss::Other,
        };
        self.world().count(match loss {
            Loss::Refused if self.world().plan.session => Count::SessionLost,
            Loss::Refused => Count::LostRefused,
            _ => Count::LostDeadline,
        });
        let record = self.about(Kind::Lost, guard);
        self.world().write(Record { deadline: 0, value: loss as u64, ..record });
        false
    }

    async fn hold(&self, guard: Guard) {
        let world = self.world();
        let (hold, stubborn) = {
            let mut chance = world.chance();
            let long = chance.per_mille(world.plan.long_holds);
            let hold = match (long, world.plan.session) {
                (true, false) => chance.part(self.ttl, 100, 400),
                // Longer than it may take to notice that a session has ended.
                (true, true) => chance.millis(200, 4000),
                _ => chance.millis(0, 60),
            };
            (hold, chance.per_mille(200))
        };
        let end = tokio::time::Instant::now() + hold;
        loop {
            let may = self.look(&guard);
            if (!may && !stubborn) || tokio::time::Instant::now() >= end {
                break;
            }
            let (nap, write, renew) = {
                let mut chance = world.chance();
                (chance.millis(0, 30), chance.per_mille(300), chance.per_mille(40))
            };
            // A careless holder writes without asking the guard: the fence stops it.
            if write && self.common.mode == Mode::Exclusive {
                self.worker.resource.write(self, guard.fence().get()).await;
            }
            if renew && may && !world.plan.session {
                self.renew(&guard).await;
            }
            world.sleep(nap).await;
        }
        self.release(guard).await;
    }

    async fn renew(&self, guard: &Guard) {
        let world = self.world();
        let ttl = world.chance().part(self.ttl, 50, 200).max(leasehold::MIN_GUARD_TTL);
        self.world().write(Record { value: ttl.as_nanos() as u64, ..self.about(Kind::RenewCall, guard) });
        let kind = match guard.renew_for(ttl).await {
            Ok(()) => Kind::Renewed,
            Err(_) if matches!(guard.lost().now(), Some(LostReason::Refused(_))) => Kind::RenewRefused,
            Err(_) => Kind::RenewFailed,
        };
        // A renewal confirmed in time may be over by the next look.
        world.write(self.about(kind, guard));
    }

    async fn release(&self, guard: Guard) {
        let world = self.world();
        let (how, cut) = {
            let mut chance = world.chance();
            let cancel = chance.per_mille(world.plan.cancels);
            (chance.below(4), cancel.then(|| chance.millis(0, 20)))
        };
        let about = self.about(Kind::ReleaseCall, &guard);
        world.write(Record { deadline: 0, value: u64::from(how == 0), ..about });
        if how == 0 {
            world.count(Count::GuardDropped);
            return drop(guard);
        }
        let outcome = cut_short(guard.release(), cut).await;
        let (kind, count) = match outcome {
            None => (Kind::ReleaseDropped, Count::ReleaseDropped),
            Some(Ok(GuardState::Released)) => (Kind::Released, Count::Released),
            Some(Ok(_)) => (Kind::ReleasedNothing, Count::ReleasedNothing),
            Some(Err(_)) => (Kind::ReleaseFailed, Count::ReleaseFailed),
        };
        world.count(count);
        world.write(Record { lease: about.lease, fence: about.fence, ..self.record(kind) });
    }

    async fn revoke(&self) {
        let world = self.world();
        let at_once = world.chance().per_mille(500);
        self.write(Kind::RevokeCall, u64::from(at_once));
        let answer = self.worker.locks.revoke(self.name(), at_once).await;
        if answer.as_ref().is_ok_and(|revoked| revoked.leases > 0) {
            world.count(Count::Revoked);
        }
        self.write(Kind::Revoked, u64::from(answer.is_err()));
    }
}

/// Awaits a future, or drops it after this time and returns `None`.
pub(crate) async fn cut_short<F: Future>(future: F, cut: Option<Duration>) -> Option<F::Output> {
    let mut future = pin!(future);
    match cut {
        None => Some(future.await),
        // As soon as it has begun.
        Some(Duration::ZERO) => {
            std::future::poll_fn(|cx| {
                std::task::Poll::Ready(match future.as_mut().poll(cx) {
                    std::task::Poll::Ready(output) => Some(output),
                    std::task::Poll::Pending => None,
                })
            })
            .await
        }
        Some(cut) => tokio::time::timeout(cut, future).await.ok(),
    }
}
