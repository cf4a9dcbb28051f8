//! Shares out the connections of a pool, so that a row that another session keeps locked holds up no other name.
//!
//! A call on a locked row keeps its connection until the server gives up on the row, which takes seconds. Two rules
//! limit what that costs the others. Renewals and releases have connections that no other call gets. And of the calls
//! that wait for the row of one name only a few are in flight; the rest wait here, without a connection.

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
    /// The renewal of one lease, which waits for the row of this name.
    Renewal(&'a str),
    /// A batch of renewals, which waits for no row.
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
    Release,
    Renewal,
    Walk,
}

pub(super) struct Lanes {
    /// One permit for each connection.
    all: Arc<Semaphore>,
    /// One permit for each connection that calls other than renewals and releases may use.
    open: Arc<Semaphore>,
    attempts_per_name: usize,
    /// The limit for releases of one name, and for renewals of one name.
    keeps_per_name: usize,
    groups: Arc<Groups>,
}

/// The groups that have calls, each with how many calls are in flight or wait for their turn.
#[derive(Default)]
struct Groups(Mutex<HashMap<Group, (Arc<Semaphore>, usize)>>);

/// The right to use a connection.
pub(super) struct Permit {
    turn: Option<Turn>,
    _open: Option<OwnedSemaphorePermit>,
    _connection: OwnedSemaphorePermit,
}

impl Permit {
    /// Called when the caller no longer waits for the answer, which may still come. A renewal then lets the next one
    /// of its name try on another connection: a live server gives up on the row before the caller gives up the
    /// renewal. Other calls keep their turn until the connection is free; otherwise calls that were given up early
    /// would take the whole pool.
    pub(super) fn give_up(&mut self) {
        self.turn.take_if(|turn| turn.group.0 == Kind::Renewal);
    }
}

impl Lanes {
    /// A quarter of the connections is for renewals and releases alone. Attempts on one name get at most half of the
    /// rest, and its releases and renewals a quarter each: so from 4 connections on, one is left for other names.
    pub(super) fn new(connections: usize) -> Self {
        let reserved = connections / 4;
        let open = connections - reserved;
        Lanes {
            all: Arc::new(Semaphore::new(connections)),
            open: Arc::new(Semaphore::new(open)),
            attempts_per_name: (open / 2).max(1),
            keeps_per_name: reserved.max(1),
            groups: Arc::default(),
        }
    }

    /// Waits until a connection is free for this call.
    pub(super) async fn enter(&self, call: Call<'_>) -> Result<Permit, AcquireError> {
        let group = match call {
            Call::Attempt(name) => Some((Kind::Attempt, name, self.attempts_per_name)),
            Call::Release(name) => Some((Kind::Release, name, self.keeps_per_name)),
            Call::Renewal(name) => Some((Kind::Renewal, name, self.keeps_per_name)),
            Call::Walk => Some((Kind::Walk, "", self.attempts_per_name)),
            Call::Renewals | Call::Look => None,
        };
        let turn = match group {
            Some((kind, name, most)) => Some(Turn::wait(&self.groups, (kind, name.to_owned()), most).await?),
            None => None,
        };
        let open = match call {
            Call::Attempt(_) | Call::Walk | Call::Look => Some(Arc::clone(&self.open).acquire_owned().await?),
            Call::Release(_) | Call::Renewal(_) | Call::Renewals => None,
        };
        let connection = Arc::clone(&self.all).acquire_owned().await?;
        Ok(Permit { turn, _open: open, _connection: connection })
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
            let on_one_name = lanes.attempts_per_name + 2 * lanes.keeps_per_name;
            assert!(on_one_name < connections, "{on_one_name} of {connections}");
        }
    }

    #[test]
    fn attempts_never_take_what_is_kept_for_renewals() {
        let lanes = Lanes::new(8);
        let names: Vec<_> = (0..20).map(|n| n.to_string()).collect();
        let enter = |call| lanes.enter(call).now_or_never().map(Result::unwrap);
        let held: Vec<_> = names.iter().filter_map(|name| enter(Call::Attempt(name))).collect();
        assert_eq!(held.len(), 6);
        assert!(enter(Call::Look).is_none());
        let kept = [enter(Call::Renewals), enter(Call::Release("0"))];
        assert!(kept.iter().all(Option::is_some));
        assert!(enter(Call::Renewals).is_none(), "there are no more connections");
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
