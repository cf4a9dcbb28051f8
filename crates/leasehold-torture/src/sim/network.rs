//! The simulated network between a process and the store: everything between a call and its answer can go wrong.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::backend::{
    Attempt, Backend, Claim, Gone, Info, Liveness, Page, Query, Release, Released, Renewal, Renewed, Revoked,
    Swept, TimeAuthority, Wake,
};
use leasehold::state::{Answer, Op};
use leasehold::{Error, ErrorKind, Fence, LeaseId, Name, Result};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::count::Count;
use super::plan::Waits;
use super::session::{ASKS, Line};
use super::store::{Condition, PollReply, Wakes, unexpected};
use super::world::World;
use crate::history::record::{Fault, Record};

/// How long a broken connection can stay unnoticed, in milliseconds.
const UNNOTICED: u64 = 1000;

/// The connections of one process to the store. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Wire(pub(super) Arc<Ends>);

#[derive(Debug)]
pub(super) struct Ends {
    world: Arc<World>,
    /// The process that these connections belong to.
    process: u32,
    /// Nothing gets through.
    cut: AtomicBool,
    mended: Notify,
    /// Where waiters are notified, by id.
    bells: Mutex<BTreeMap<LeaseId, Arc<Notify>>>,
    /// The session, if the store has sessions.
    pub(super) line: Mutex<Line>,
}

/// What happens to one call.
#[derive(Debug, Default)]
struct Fate {
    there: Duration,
    back: Duration,
    request_lost: bool,
    answer_lost: bool,
    /// The caller gets a broken connection after this time.
    breaks: Option<Duration>,
    /// An error instead of an answer; and whether the call took effect.
    error: Option<(ErrorKind, bool)>,
    /// The fault, as recorded.
    fault: Option<Record>,
}

/// The result of a call at the store.
enum Reply<T> {
    Now(Result<T>),
    Later(oneshot::Receiver<Result<T>>),
}

pub(crate) fn broken() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection broke")
}

impl Wire {
    pub(crate) fn new(world: &Arc<World>, process: u32) -> Self {
        Wire(Arc::new(Ends {
            world: Arc::clone(world),
            process,
            cut: AtomicBool::new(false),
            mended: Notify::new(),
            bells: Mutex::default(),
            line: Mutex::default(),
        }))
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        &self.0.world
    }

    /// The process they belong to.
    pub(crate) fn process(&self) -> u32 {
        self.0.process
    }

    /// From here on nothing gets through.
    pub(crate) fn cut(&self) {
        self.0.cut.store(true, Ordering::Relaxed);
    }

    /// From here on everything gets through again, including what was stuck.
    pub(crate) fn mend(&self) {
        self.0.cut.store(false, Ordering::Relaxed);
        self.0.mended.notify_waiters();
        self.ring_all();
    }

    /// Notifies all waiters, because the wake-up channel broke or came back: messages may have been lost.
    pub(crate) fn ring_all(&self) {
        self.0.bells.lock().values().for_each(|bell| bell.notify_one());
    }

    pub(crate) async fn passable(&self) {
        while self.0.cut.load(Ordering::Relaxed) {
            self.0.mended.notified().await;
        }
    }

    fn fate(&self, long: bool) -> Fate {
        let world = &self.0.world;
        let plan = &world.plan;
        let mut chance = world.chance();
        let mut fate = Fate {
            there: chance.millis(0, plan.delay),
            back: chance.millis(0, plan.delay),
            ..Fate::default()
        };
        let mut wrong = None;
        if chance.per_mille(plan.lost_requests) {
            (fate.request_lost, wrong) = (true, Some((Count::RequestLost, Fault::Cut)));
        } else if chance.per_mille(plan.lost_answers) {
            (fate.answer_lost, wrong) = (true, Some((Count::AnswerLost, Fault::Swallow)));
        } else if chance.per_mille(plan.held) {
            // For as long as a lease or much longer.
            let most = *chance.pick(&[300, 300, 1000, 5000]);
            fate.there = chance.part(plan.ttl, 50, most);
            wrong = Some((Count::RequestHeld, Fault::Hold));
        } else if chance.per_mille(plan.late_answers) {
            fate.back = chance.part(plan.ttl, 20, 200);
            wrong = Some((Count::AnswerLate, Fault::Delay));
        } else if chance.per_mille(plan.errors) {
            // Errors that say that nothing was done are right; the others do not know.
            let kinds = [
                (ErrorKind::Overloaded, false),
                (ErrorKind::RateLimited, false),
                (ErrorKind::AuthFailed, false),
                (ErrorKind::Unavailable, false),
                (ErrorKind::Unavailable, true),
                (ErrorKind::NetworkTimeout, true),
                (ErrorKind::Internal, true),
            ];
            fate.error = Some(*chance.pick(&kinds));
            wrong = Some((Count::Error, Fault::Reset));
        }
        // A call that hangs ends in a broken connection, or only when its caller gives up; a long poll is kept alive.
        if wrong.is_some() && fate.error.is_none() && (long || chance.per_mille(400)) {
            fate.breaks = Some(chance.millis(0, if long { UNNOTICED } else { 50 }));
        }
        drop(chance);
        if let Some((count, fault)) = wrong {
            world.count(count);
            fate.fault = Some(world.begin_fault_on(fault, self.0.process));
        }
        fate
    }

    /// Makes one call. What was sent is in flight, whatever happens to the caller.
    async fn call<T: Send + 'static>(
        &self,
        long: bool,
        run: impl FnOnce(&Arc<World>) -> Reply<T> + Send + 'static,
        hang_up: impl FnOnce(&Arc<World>) + Send + 'static,
    ) -> Result<T> {
        let fate = self.fate(long);
        let breaks = fate.breaks;
        let session = self.session();
        let (answer, mut answered) = oneshot::channel();
        tokio::spawn(self.clone().carry((fate, session), answer, run, hang_up));
        if let Some(breaks) = breaks {
            return match tokio::time::timeout(breaks, &mut answered).await {
                Ok(Ok(answer)) => answer,
                _ => {
                    self.break_off(session);
                    Err(broken())
                }
            };
        }
        match answered.await {
            Ok(answer) => answer,
            Err(_) => std::future::pending().await,
        }
    }

    async fn carry<T: Send + 'static>(
        self,
        (fate, session): (Fate, u64),
        mut answer: oneshot::Sender<Result<T>>,
        run: impl FnOnce(&Arc<World>) -> Reply<T>,
        hang_up: impl FnOnce(&Arc<World>),
    ) {
        let world = &self.0.world;
        world.sleep(fate.there).await;
        world.end_fault(fate.fault.filter(|fault| fault.fault != Fault::Delay), false);
        self.passable().await;
        if fate.request_lost {
            return self.hang_up(session);
        }
        let epoch = loop {
            let changed = world.changed.notified();
            let (condition, epoch) = {
                let store = world.store();
                (store.condition, store.epoch)
            };
            match condition {
                Condition::Up => break epoch,
                Condition::Paused => changed.await,
                Condition::Down => {
                    self.hang_up(session);
                    let _ = answer.send(Err(broken()));
                    return;
                }
            }
        };
        let mut told = match fate.error {
            Some((kind, false)) => Err(Error::new(kind, "the store refused")),
            _ => match run(world) {
                Reply::Now(told) => told,
                Reply::Later(later) => tokio::select! {
                    biased;
                    told = later => told.unwrap_or_else(|_| Err(broken())),
                    () = answer.closed() => {
                        world.sleep(fate.back).await;
                        return hang_up(world);
                    }
                },
            },
        };
        if let Some((kind, true)) = fate.error {
            told = Err(Error::new(kind, "the store does not know"));
        }
        world.sleep(fate.back).await;
        world.end_fault(fate.fault.filter(|fault| fault.fault == Fault::Delay), false);
        self.passable().await;
        if world.store().epoch != epoch {
            self.hang_up(session);
            told = Err(broken());
        }
        if fate.answer_lost {
            self.break_off(session);
        } else {
            let _ = answer.send(told);
        }
    }

    /// Makes one call of a verb on one name.
    pub(crate) async fn verb<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Arc<World>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.call(false, |world| Reply::Now(run(world)), |_| {}).await
    }

    /// Sends a wake-up to the waiters here.
    fn send_wake(self, id: LeaseId) {
        let world = Arc::clone(&self.0.world);
        let plan = &world.plan;
        let (lost, late, delay) = {
            let mut chance = world.chance();
            let lost = chance.per_mille(plan.lost_wakes);
            let late = chance.per_mille(plan.lost_wakes);
            (lost, late, chance.millis(0, if late { 2000 } else { plan.delay }))
        };
        let fault = (lost || late).then(|| world.begin_fault_on(Fault::Hold, self.0.process));
        if lost {
            world.end_fault(fault, false);
            return world.count(Count::WakeLost);
        }
        tokio::spawn(async move {
            self.0.world.sleep(delay).await;
            self.0.world.end_fault(fault, false);
            self.passable().await;
            self.0.world.count(Count::Woken);
            if let Some(bell) = self.0.bells.lock().get(&id) {
                bell.notify_one();
            }
        });
    }
}

/// Whether interest is registered too late: the one planted defect that belongs here.
fn is_late() -> bool {
    #[cfg(feature = "__bugs")]
    return leasehold::bugs::on(leasehold::bugs::Bug::InterestAfterAttempt);
    #[cfg(not(feature = "__bugs"))]
    false
}

/// Applies one verb at the store, and sends the wake-ups.
fn apply(world: &Arc<World>, name: &Name, op: Op<'_>) -> Result<Answer> {
    let (answer, wakes) = world.store().apply(world, name, op);
    send(wakes);
    answer
}

/// Sends the wake-ups.
pub(crate) fn send(wakes: Wakes) {
    wakes.0.into_iter().for_each(|(wire, id)| wire.send_wake(id));
}

#[async_trait]
impl Backend for Wire {
    fn info(&self) -> Info {
        let mut info = Info::new("simulation");
        let waits = self.0.world.plan.waits;
        info.push = waits != Waits::Poll;
        info.fifo = waits != Waits::Poll;
        info.keeps_places = waits == Waits::LongPoll;
        if self.0.world.plan.session {
            (info.liveness, info.time) = (Liveness::Session, TimeAuthority::None);
            (info.check_every, info.revoke) = (Some(ASKS), false);
        }
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        // Interest first: a wake-up may come before the answer.
        if claim.queue.is_some() && !is_late() {
            self.0.bells.lock().entry(claim.id).or_default();
        }
        let (id, wire) = (claim.id, self.clone());
        let (claim, session) = self.on_session(claim);
        let answer = self.verb(move |world| {
            if let Some(session) = session {
                world.store().sessions.enter(session, &claim)?;
            }
            world.store().tell(&claim, &wire);
            match apply(world, &claim.name, Op::Acquire(&claim))? {
                Answer::Acquired(attempt) => Ok(attempt),
                _ => Err(unexpected()),
            }
        });
        let attempt = answer.await?;
        if session.is_some() { self.endless(&id, attempt) } else { Ok(attempt) }
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        match self.0.world.plan.waits {
            Waits::Poll => std::future::pending().await,
            Waits::Push => {
                let bell = Arc::clone(self.0.bells.lock().entry(claim.id).or_default());
                bell.notified().await;
                Ok(Wake::Retry)
            }
            Waits::LongPoll => {
                let (id, same) = (claim.id, claim.clone());
                let (claim, session) = self.on_session(claim);
                let park = move |world: &Arc<World>| {
                    let open =
                        session.map_or(Ok(()), |session| world.store().sessions.enter(session, &claim));
                    if let Err(error) = open {
                        return Reply::Now(Err(error));
                    }
                    let (told, wakes) = world.store().park(world, &claim);
                    send(wakes);
                    match told {
                        PollReply::Now(told) => Reply::Now(told),
                        PollReply::Later(later) => Reply::Later(later),
                    }
                };
                let wake = self.call(true, park, move |world| world.store().unpark(&same)).await?;
                if session.is_some() { self.endless_wake(&id, wake) } else { Ok(wake) }
            }
        }
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        if self.0.world.plan.session {
            return leases.iter().map(|renewal| Ok(self.look_at(renewal))).collect();
        }
        let asked = leases.to_vec();
        let answers = self
            .verb(move |world| {
                let renew = |renewal: &Renewal| match apply(world, &renewal.name, Op::Renew(renewal))? {
                    Answer::Renewed(renewed) => Ok(renewed),
                    _ => Err(unexpected()),
                };
                Ok(asked.iter().map(renew).collect())
            })
            .await;
        match answers {
            Ok(answers) => answers,
            Err(error) => {
                leases.iter().map(|_| Err(Error::new(error.kind(), error.message().to_owned()))).collect()
            }
        }
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        if self.0.world.plan.session && !self.is_on(&lease.id) {
            // Its session has ended, and the store frees it.
            return Ok(Released::Gone(Gone::NotFound));
        }
        let lease = lease.clone();
        self.verb(move |world| match apply(world, &lease.name, Op::Release(&lease))? {
            Answer::Released(released) => Ok(released),
            _ => Err(unexpected()),
        })
        .await
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        let name = name.clone();
        self.verb(move |world| match apply(world, &name, Op::Revoke { now, only })? {
            Answer::Revoked(revoked) => Ok(revoked),
            _ => Err(unexpected()),
        })
        .await
    }

    async fn inspect(&self, _: &Query) -> Result<Page> {
        Err(Error::new(ErrorKind::Unsupported, "nobody looks"))
    }

    async fn sweep(&self) -> Result<Swept> {
        Err(Error::new(ErrorKind::Unsupported, "nobody sweeps"))
    }
}
