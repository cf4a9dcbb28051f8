//! The simulated store: the real, durable state machine of each name, and the waiters to wake.

use std::collections::BTreeMap;

use leasehold::backend::{Attempt, Claim, Grant, Release, Released, Renewed, Wake};
use leasehold::clock::{Clock as _, Moment};
use leasehold::state::{Answer, Now, Op, State};
use leasehold::{Error, ErrorKind, LeaseId, Name, Result};
use tokio::sync::oneshot;

use super::count::{Count, Counts};
use super::network::Wire;
use super::session::Sessions;
use super::world::World;
#[cfg(feature = "__bugs")]
use crate::defects::state::{apply, restarted};

/// Whether the store answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Condition {
    #[default]
    Up,
    /// It is paused: requests wait.
    Paused,
    /// It is down: requests are refused.
    Down,
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) condition: Condition,
    /// Counts the restarts: older connections are broken.
    pub(crate) epoch: u64,
    names: BTreeMap<Name, Entry>,
    pub(super) sessions: Sessions,
}

#[derive(Debug, Default)]
struct Entry {
    state: State,
    /// Where to send a wake-up, by id; not durable.
    told: BTreeMap<LeaseId, Wire>,
    /// Open long polls, by id; not durable.
    parked: BTreeMap<LeaseId, Parked>,
    /// Leases ended since the last grant because their time was over.
    expired: bool,
}

#[derive(Debug)]
struct Parked {
    claim: Claim,
    since: Moment,
    reply: oneshot::Sender<Result<Wake>>,
}

/// The reply to a long poll: at once, or when the claim can enter.
pub(crate) enum PollReply {
    Now(Result<Wake>),
    Later(oneshot::Receiver<Result<Wake>>),
}

/// What the store cannot do itself while it is locked: wake clients.
#[must_use]
#[derive(Default)]
pub(crate) struct Wakes(pub(crate) Vec<(Wire, LeaseId)>);

impl Store {
    /// Applies one verb on one name, and then the attempts of those long polls that it lets in.
    pub(crate) fn apply(&mut self, world: &World, name: &Name, op: Op<'_>) -> (Result<Answer>, Wakes) {
        let entry = self.names.entry(name.clone()).or_default();
        let at = world.store_clock.now();
        entry.apply(now(world), at, op, &mut world.counts())
    }

    /// Registers where a queued attempt wants its wake-up.
    pub(crate) fn tell(&mut self, claim: &Claim, wire: &Wire) {
        if claim.queue.is_some() {
            self.names.entry(claim.name.clone()).or_default().told.insert(claim.id, wire.clone());
        }
    }

    /// A long poll arrived.
    pub(crate) fn park(&mut self, world: &World, claim: &Claim) -> (PollReply, Wakes) {
        let since = world.store_clock.now();
        let queued = self.names.get(&claim.name).is_some_and(|entry| entry.state.is_queued(&claim.id));
        if !queued {
            return (PollReply::Now(Ok(Wake::Retry)), Wakes::default());
        }
        let mut claim = claim.clone();
        claim.first = false;
        let (answer, wakes) = self.apply(world, &claim.name, Op::Acquire(&claim));
        let told = match answer {
            Ok(Answer::Acquired(Attempt::Granted(grant))) => PollReply::Now(Ok(Wake::Granted(grant))),
            Ok(Answer::Acquired(Attempt::Busy(_))) => {
                let (reply, later) = oneshot::channel();
                let entry = self.names.entry(claim.name.clone()).or_default();
                if let Some(older) = entry.parked.insert(claim.id, Parked { claim, since, reply }) {
                    let _ = older.reply.send(Ok(Wake::Retry));
                }
                PollReply::Later(later)
            }
            _ => PollReply::Now(Ok(Wake::Retry)),
        };
        (told, wakes)
    }

    /// The client of a long poll has disconnected.
    pub(crate) fn unpark(&mut self, claim: &Claim) {
        if let Some(entry) = self.names.get_mut(&claim.name)
            && entry.parked.get(&claim.id).is_some_and(|parked| parked.reply.is_closed())
        {
            entry.parked.remove(&claim.id);
        }
    }

    /// The session of a long poll has ended.
    pub(super) fn unpark_id(&mut self, name: &Name, id: &LeaseId) {
        if let Some(entry) = self.names.get_mut(name) {
            entry.parked.remove(id);
        }
    }

    /// Serves the open long polls.
    pub(crate) fn look_after(&mut self, world: &World) -> Vec<Wakes> {
        let waited: Vec<_> = self
            .names
            .iter()
            .filter(|(_, entry)| !entry.parked.is_empty())
            .map(|(name, _)| name.clone())
            .collect();
        let mut wakes = Vec::new();
        for name in waited {
            let claims: Vec<_> =
                self.names[&name].parked.values().map(|parked| parked.claim.clone()).collect();
            for claim in claims {
                wakes.push(self.apply(world, &name, Op::Keep(&claim)).1);
            }
        }
        wakes
    }

    /// Restarts with what is durable: every name is rebuilt from its rows.
    pub(crate) fn restart(&mut self, world: &World) {
        self.epoch += 1;
        self.end_sessions(world);
        for entry in self.names.values_mut() {
            let state = restarted(&entry.state);
            // Open long polls break with their connections.
            *entry = Entry { state, expired: entry.expired, ..Entry::default() };
        }
    }

    /// What is left of a name: leases, places, and whether anything else should be gone.
    pub(crate) fn left(&mut self, world: &World, name: &Name) -> (u64, u64, bool) {
        let (_, _) = self.apply(world, name, Op::Sweep);
        let Some(entry) = self.names.get(name) else { return (0, 0, false) };
        let seen = entry.state.view(name, now(world), None);
        (seen.holder_count, seen.queue_length, !entry.state.is_at_rest())
    }
}

impl Entry {
    fn apply(&mut self, now: Now, at: Moment, op: Op<'_>, counts: &mut Counts) -> (Result<Answer>, Wakes) {
        if self.state.due() <= now.expiry {
            // What the verb is about to settle.
            if let Ok(Answer::Swept(swept)) = self.state.clone().apply(now, Op::Sweep, &mut Vec::new()) {
                counts.add(Count::Expired, swept.expired);
                counts.add(Count::Lapsed, swept.tickets);
                self.expired |= swept.expired > 0;
            }
        }
        let mut wake = Vec::new();
        let answer = apply(&mut self.state, now, op, &mut wake);
        self.count(op, &answer, counts);
        let mut wakes = Wakes::default();
        let mut next = 0;
        while let Some(id) = wake.get(next).copied() {
            next += 1;
            if let Some(wire) = self.told.get(&id) {
                wakes.0.push((wire.clone(), id));
            }
            let Some(parked) = self.parked.remove(&id) else { continue };
            let answer = apply(&mut self.state, now, Op::Acquire(&parked.claim), &mut wake);
            self.count(Op::Acquire(&parked.claim), &answer, counts);
            let told = match answer {
                Ok(Answer::Acquired(Attempt::Granted(grant))) => {
                    counts.add(Count::WokenGranted, 1);
                    Wake::Granted(with_waited(grant, at, parked.since))
                }
                _ => Wake::Retry,
            };
            let _ = parked.reply.send(Ok(told));
        }
        (answer, wakes)
    }

    fn count(&mut self, op: Op<'_>, answer: &Result<Answer>, counts: &mut Counts) {
        match (op, answer) {
            (Op::Acquire(_), Ok(Answer::Acquired(Attempt::Granted(_)))) => {
                counts.add(Count::Takeover, u64::from(std::mem::take(&mut self.expired)));
            }
            (_, Ok(Answer::Acquired(Attempt::Gone(_)))) => counts.add(Count::Refused, 1),
            (_, Ok(Answer::Renewed(Renewed::Held(_)))) => counts.add(Count::Renewed, 1),
            (_, Ok(Answer::Renewed(Renewed::Gone(_)))) => counts.add(Count::RenewGone, 1),
            (Op::Release(Release { unanswered: Some(_), .. }), Ok(Answer::Released(Released::Done))) => {
                counts.add(Count::GivenBack, 1);
            }
            _ => {}
        }
    }
}

#[cfg(not(feature = "__bugs"))]
fn apply(state: &mut State, now: Now, op: Op<'_>, wake: &mut Vec<LeaseId>) -> Result<Answer> {
    state.apply(now, op, wake)
}

/// A name, rebuilt from its rows.
#[cfg(not(feature = "__bugs"))]
fn restarted(state: &State) -> State {
    let ids: std::collections::BTreeSet<_> = state.ids().collect();
    let rows = ids.into_iter().filter_map(|id| Some((id, state.row(&id)?)));
    State::from_rows(state.last_fence(), state.version(), rows).with_note(state.note().cloned())
}

/// The time by the store's clocks.
fn now(world: &World) -> Now {
    let wall = world.store_clock.wall_micros();
    let expiry = if world.plan.steady { world.store_clock.now().as_micros() } else { wall };
    Now { expiry, wall }
}

/// Adds the waiting time to a grant that was measured when it was granted, this long after the call arrived.
fn with_waited(mut grant: Grant, at: Moment, since: Moment) -> Grant {
    grant.waited = at.since(since);
    grant
}

/// Cannot happen: the state machine answers each verb in kind.
pub(crate) fn unexpected() -> Error {
    Error::new(ErrorKind::Internal, "the state machine answered out of turn")
}
