//! Shares out the connections of a pool, so that a row that another session keeps locked holds up no other name.
//!
//! A call on a locked row keeps its connection until the server gives up on the row, which takes seconds. Three rules
//! limit what that costs the others. Renewals first skip a locked row, and such calls have connections that no call
//! which waits for a row gets. Releases have connections that no attempt gets. And of the calls that wait for the row
//! of one name only a few are in flight; the rest wait here, without a connection.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// The kind of a call, which decides how many like it may be in flight.
#[derive(Debug, Clone, Copy)]
pub(super) enum Call<'a> {
    /// An attempt or a revocation, which waits for the row of this name.
    Attempt(&'a str),
    /// A release, which waits for the row of this name.
    Release(&'a str),
    /// Renewals of this name, whose row was locked: now they wait for it.
    Renewal(&'a str),
    /// Renewals that skip locked rows, so they wait for none.
    Renewals,
    /// A walk through many names, which may take seconds.
    Walk,
    /// A look at one name.
    Look,
}

/// Calls that share a limit: those of one kind on one name.
type Group = (Kind, String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Attempt,
    /// A release, or a renewal that waits.
    Keep,
    Walk,
}

pub(super) struct Lanes {
    /// One permit for each connection.
    all: Arc<Semaphore>,
    /// One permit for each connection that calls other than renewals that skip locked rows may use.
    patient: Arc<Semaphore>,
    /// One permit for each connection that calls other than renewals and releases may use.
    open: Arc<Semaphore>,
    /// The limit for releases and renewals that wait for a row, of all names together.
    keeps: Arc<Semaphore>,
    attempts_per_name: usize,
    keeps_per_name: usize,
    groups: Arc<Groups>,
}

/// The groups that have calls, each with how many calls are in flight or wait for their turn.
#[derive(Default)]
struct Groups(Mutex<HashMap<Group, (Arc<Semaphore>, usize)>>);

/// The right to use a connection.
pub(super) struct Permit {
    turn: Option<Turn>,
    is_renewal: bool,
    _lane: Option<OwnedSemaphorePermit>,
    _patient: Option<OwnedSemaphorePermit>,
    _connection: OwnedSemaphorePermit,
}

impl Permit {
    /// Called when the caller no longer waits for the answer, which may still come. A renewal then lets the next one
    /// of its name try on another connection: a live server gives up on the row before the caller gives up the
    /// renewal. Other calls keep their turn until the connection is free; otherwise calls that were given up early
    /// would take the whole pool.
    pub(super) fn give_up(&mut self) {
        self.turn.take_if(|_| self.is_renewal);
    }
}

impl Lanes {
    /// From 4 connections on, a quarter of them, at least two, is not for attempts and looks. Half of that quarter is
    /// for renewals that skip locked rows alone. Attempts on one name get at most half of the rest. Its releases and
    /// waiting renewals get at most a quarter of all connections, and those of all names together at most half: so
    /// each kind of call finds a connection for other names while one row is stuck.
    pub(super) fn new(connections: usize) -> Self {
        let reserved = if connections < 4 { 0 } else { (connections / 4).max(2) };
        let open = connections - reserved;
        let limit = |calls: usize| Arc::new(Semaphore::new(calls));
        Lanes {
            all: limit(connections),
            patient: limit(connections - reserved / 2),
            open: limit(open),
            keeps: limit((connections / 2).max(1)),
            attempts_per_name: (open / 2).max(1),
            keeps_per_name: (connections / 4).max(1),
            groups: Arc::default(),
        }
    }

    /// Waits until a connection is free for this call.
    pub(super) async fn enter(&self, call: Call<'_>) -> Result<Permit, AcquireError> {
        let (group, lane) = match call {
            Call::Attempt(name) => (Some((Kind::Attempt, name, self.attempts_per_name)), Some(&self.open)),
            Call::Release(name) | Call::Renewal(name) => {
                (Some((Kind::Keep, name, self.keeps_per_name)), Some(&self.keeps))
            }
            Call::Walk => (Some((Kind::Walk, "", self.attempts_per_name)), Some(&self.open)),
            Call::Look => (None, Some(&self.open)),
            Call::Renewals => (None, None),
        };
        let turn = match group {
            Some((kind, name, most)) => Some(Turn::wait(&self.groups, (kind, name.to_owned()), most).await?),
            None => None,
        };
        let (lane, patient) = match lane {
            Some(lane) => {
                let lane = Arc::clone(lane).acquire_owned().await?;
                (Some(lane), Some(Arc::clone(&self.patient).acquire_owned().await?))
            }
            None => (None, None),
        };
        let connection = Arc::clone(&self.all).acquire_owned().await?;
        let is_renewal = matches!(call, Call::Renewal(_));
        Ok(Permit { turn, is_renewal, _lane: lane, _patient: patient, _connection: connection })
    }
}

/// A call's place in its group, from when it begins to wait until it is over.
struct Turn {
    groups: Arc<Groups>,
    group: Group,
    permit: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// Waits until fewer than `most` of the group are in flight.
    async fn wait(groups: &Arc<Groups>, group: Group, most: usize) -> Result<Self, AcquireError> {
        let semaphore = {
            let mut all = groups.0.lock();
            let entry = all.entry(group.clone()).or_insert_with(|| (Arc::new(Semaphore::new(most)), 0));
            entry.1 += 1;
            Arc::clone(&entry.0)
        };
        // Made before the wait, so that a call that is given up meanwhile leaves the group too.
        let mut turn = Turn { groups: Arc::clone(groups), group, permit: None };
        turn.permit = Some(semaphore.acquire_owned().await?);
        Ok(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = self.groups.0.lock();
        if let Some((_, calls)) = all.get_mut(&self.group) {
            *calls -= 1;
            if *calls == 0 {
                all.remove(&self.group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn one_name_never_takes_all_connections() {
        for connections in 4..=64 {
            let lanes = Lanes::new(connections);
            let on_one_name = lanes.attempts_per_name + lanes.keeps_per_name;
            assert!(on_one_name < lanes.patient.available_permits(), "{on_one_name} of {connections}");
            assert!(lanes.keeps_per_name < lanes.keeps.available_permits(), "of {connections}");
        }
    }

    #[test]
    fn calls_that_wait_leave_connections_for_releases_and_renewals() {
        for connections in 4..=64 {
            let lanes = Lanes::new(connections);
            let names: Vec<_> = (0..2 * connections).map(|n| n.to_string()).collect();
            let enter = |call| lanes.enter(call).now_or_never().map(Result::unwrap);
            let attempts: Vec<_> = names.iter().filter_map(|name| enter(Call::Attempt(name))).collect();
            assert!(enter(Call::Look).is_none());
            let releases: Vec<_> = names.iter().filter_map(|name| enter(Call::Release(name))).collect();
            assert!(!releases.is_empty(), "{} attempts of {connections}", attempts.len());
            assert!(enter(Call::Renewal("0")).is_none());
            assert!(enter(Call::Renewals).is_some(), "{} releases of {connections}", releases.len());
            drop((attempts, releases));
            let waiting: Vec<_> = names.iter().filter_map(|name| enter(Call::Renewal(name))).collect();
            assert_eq!(waiting.len(), connections / 2);
            assert!(enter(Call::Attempt("0")).is_some());
        }
    }

    #[test]
    fn no_group_is_remembered_after_its_last_call() {
        let lanes = Lanes::new(8);
        let enter = |call| lanes.enter(call).now_or_never().map(Result::unwrap);
        let held: Vec<_> = (0..5).filter_map(|_| enter(Call::Attempt("x"))).collect();
        assert_eq!((held.len(), lanes.groups.0.lock().len()), (3, 1));
        assert!(enter(Call::Attempt("y")).is_some());
        drop(held);
        assert_eq!(lanes.groups.0.lock().len(), 0);
        assert!(enter(Call::Attempt("x")).is_some());
    }

    #[test]
    fn a_renewal_that_is_given_up_lets_the_next_one_try() {
        let lanes = Lanes::new(8);
        let enter = |call| lanes.enter(call).now_or_never().map(Result::unwrap);
        for (call, next_enters) in [(Call::Renewal("x"), true), (Call::Release("x"), false)] {
            let mut held = [enter(call), enter(call)];
            assert!(held.iter().all(Option::is_some) && enter(call).is_none());
            held.iter_mut().flatten().for_each(Permit::give_up);
            assert_eq!(enter(call).is_some(), next_enters, "{call:?}");
        }
    }
}
