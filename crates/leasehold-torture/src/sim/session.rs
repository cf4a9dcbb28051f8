//! Sessions: where leases have no ttl, a process holds them for as long as its connection to the store lives.
//!
//! As with PostgreSQL's session locks: the store frees a session's locks when the session has ended, by a restart,
//! because the process died, or because the connection broke. The client's end notices that its session does not
//! answer, and reports it to its holders when the renewal loop asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::backend::{Attempt, Claim, Gone, Grant, Release, Renewal, Renewed, Wake};
use leasehold::state::Op;
use leasehold::{LeaseId, Name, Result};

use super::count::Count;
use super::network::{Wire, broken, send};
use super::store::{Condition, Store, Wakes};
use super::world::World;
use crate::history::record::Fault;

/// How long a lease of a session lasts in the state machine: longer than any simulation.
pub(crate) const ENDLESS: Duration = Duration::from_secs(3600);

/// How long after the store is gone a holder may still rely on its lock.
pub(crate) const NOTICES: Duration = Duration::from_secs(1);

/// How often a client asks for a sign of life, how long that may take, and how often the renewal loop asks: together
/// less than [`NOTICES`].
pub(crate) const ASKS: Duration = Duration::from_millis(200);

/// The client's end.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// The number of the open session; 0 if none is.
    current: u64,
    /// The session on which each claim was made.
    of: BTreeMap<LeaseId, u64>,
    /// The process has ended.
    closed: bool,
}

/// The store's end.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    of: BTreeMap<LeaseId, (Name, u64)>,
    ended: BTreeSet<u64>,
    /// All sessions with a lower number have ended.
    ended_below: u64,
}

impl Sessions {
    /// A claim arrives on a session; it fails if that has ended, or if its client has gone on with a newer one.
    pub(crate) fn enter(&mut self, number: u64, claim: &Claim) -> Result<()> {
        self.check(number)?;
        // A late request of an earlier session does not take the lease along when that session ends.
        if self.of.get(&claim.id).is_some_and(|(_, later)| *later > number) {
            return Err(broken());
        }
        self.of.insert(claim.id, (claim.name.clone(), number));
        Ok(())
    }

    fn check(&self, number: u64) -> Result<()> {
        let over = number < self.ended_below || self.ended.contains(&number);
        if over { Err(broken()) } else { Ok(()) }
    }
}

impl Store {
    /// Frees a session's locks, and gives up its places.
    pub(crate) fn end_session(&mut self, world: &World, number: u64) -> Vec<Wakes> {
        if number == 0 || self.sessions.check(number).is_err() {
            return Vec::new();
        }
        world.count(Count::SessionEnded);
        self.sessions.ended.insert(number);
        let of = self.sessions.of.iter().filter(|(_, (_, session))| *session == number);
        let held: Vec<_> = of.map(|(id, (name, _))| (*id, name.clone())).collect();
        held.into_iter().map(|(id, name)| self.free(world, &name, id)).collect()
    }

    /// Ends all sessions, because the store was restarted.
    pub(crate) fn end_sessions(&mut self, world: &World) {
        self.sessions.ended_below = world.sessions.load(Ordering::Relaxed);
        for (id, (name, _)) in std::mem::take(&mut self.sessions.of) {
            // There is nobody to wake.
            drop(self.free(world, &name, id));
        }
    }

    fn free(&mut self, world: &World, name: &Name, id: LeaseId) -> Wakes {
        self.sessions.of.remove(&id);
        self.unpark_id(name, &id);
        self.apply(world, name, Op::Release(&Release::new(name.clone(), id))).1
    }
}

impl Wire {
    /// The claim that is sent, and its session, if this store has sessions.
    pub(crate) fn on_session(&self, claim: &Claim) -> (Claim, Option<u64>) {
        let mut claim = claim.clone();
        if !self.world().plan.session {
            return (claim, None);
        }
        claim.ttl = ENDLESS;
        let mut line = self.0.line.lock();
        if line.current == 0 {
            line.current = self.world().sessions.fetch_add(1, Ordering::Relaxed);
        }
        let number = line.current;
        line.of.insert(claim.id, number);
        (claim, Some(number))
    }

    /// The open session; 0 if none is.
    pub(crate) fn session(&self) -> u64 {
        self.0.line.lock().current
    }

    /// Whether the claim of this id was made on the open session.
    pub(crate) fn is_on(&self, id: &LeaseId) -> bool {
        let line = self.0.line.lock();
        line.current != 0 && line.of.get(id) == Some(&line.current)
    }

    /// Breaks the session, perhaps long after the fault was recorded: a long poll is answered only when there is an
    /// answer.
    pub(crate) fn break_off(&self, number: u64) {
        if number != 0 && self.session() == number {
            let fault = self.world().begin_fault_on(Fault::Reset, self.process());
            self.world().end_fault(Some(fault), false);
        }
        self.hang_up(number);
    }

    /// Ends the session at this end. The store hears of it when it can.
    pub(crate) fn hang_up(&self, number: u64) {
        self.hang_up_after(Duration::ZERO, number);
    }

    fn hang_up_after(&self, pause: Duration, number: u64) {
        let mut line = self.0.line.lock();
        if number == 0 || line.current != number {
            return;
        }
        line.current = 0;
        drop(line);
        let (wire, delay) = (self.clone(), self.world().chance().millis(0, self.world().plan.delay));
        tokio::spawn(async move {
            let world = wire.world();
            world.sleep(pause + delay).await;
            wire.passable().await;
            loop {
                let changed = world.changed.notified();
                if world.store().condition == Condition::Up {
                    break;
                }
                changed.await;
            }
            let wakes = world.store().end_session(world, number);
            wakes.into_iter().for_each(send);
        });
    }

    /// The process ends, and its session with it.
    pub(crate) fn close(&self) {
        self.0.line.lock().closed = true;
        self.hang_up(self.session());
    }

    /// Asks the store for a sign of life, as long as the process lives.
    pub(crate) async fn keep_alive(self) {
        loop {
            tokio::time::sleep(ASKS).await;
            let (number, closed) = {
                let line = self.0.line.lock();
                (line.current, line.closed)
            };
            if closed {
                return;
            }
            if number == 0 {
                continue;
            }
            let ask = self.verb(move |world| world.store().sessions.check(number));
            if !matches!(tokio::time::timeout(ASKS, ask).await, Ok(Ok(()))) {
                // Its holders learn of it first.
                self.hang_up_after(ASKS * 2, number);
            }
        }
    }

    /// The answer to an attempt on a session: without a time, and worthless if the session has ended meanwhile.
    pub(crate) fn endless(&self, id: &LeaseId, attempt: Attempt) -> Result<Attempt> {
        match attempt {
            _ if !self.is_on(id) => Err(broken()),
            Attempt::Granted(grant) => Ok(Attempt::Granted(without_end(grant))),
            other => Ok(other),
        }
    }

    /// As [`endless`](Wire::endless), for a waiter.
    pub(crate) fn endless_wake(&self, id: &LeaseId, wake: Wake) -> Result<Wake> {
        match wake {
            _ if !self.is_on(id) => Err(broken()),
            Wake::Granted(grant) => Ok(Wake::Granted(without_end(grant))),
            other => Ok(other),
        }
    }

    /// Whether a lease still exists: this end knows.
    pub(crate) fn look_at(&self, renewal: &Renewal) -> Renewed {
        if !self.is_on(&renewal.id) {
            return Renewed::Gone(Gone::NotFound);
        }
        let mode = renewal.mode.unwrap_or(leasehold::Mode::Exclusive);
        Renewed::Held(Grant::new(renewal.fence.unwrap_or_default(), mode, None))
    }
}

fn without_end(mut grant: Grant) -> Grant {
    (grant.left, grant.expires_at_ms) = (None, None);
    grant
}
