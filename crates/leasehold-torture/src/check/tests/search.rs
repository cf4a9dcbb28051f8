//! Searches for a valid order of all operations, by trying them all.
//!
//! The lock is the contract's, as permissive as a history can be read: a lease lasts at least until the latest
//! deadline its holder saw and may end by itself at any moment after that; an answer says what was true at one moment
//! between call and return; a call without an answer takes effect at one moment after it, or never. Places in queues
//! are left out.
//!
//! A revoke ends every lease, or has them refused from then on; without an answer it takes effect before everything
//! sent has arrived, or never. A session may end during a fault on its holder's route, or when its holder has died;
//! nothing else ends it.

use std::cell::Cell;
use std::collections::HashMap;

use crate::history::record::{Fault, Kind, Loss, Mode, Record};

/// What an operation did to the lock, and what it must have found.
#[derive(Debug, Clone, Copy)]
enum Act {
    Granted {
        id: u64,
        mode: Mode,
        fence: u64,
        deadline: u64,
    },
    Busy {
        mode: Mode,
    },
    /// The lease exists, until a deadline.
    There {
        id: u64,
        deadline: Option<u64>,
    },
    Gone {
        id: u64,
    },
    Released {
        id: u64,
    },
    /// Without an answer, like the next.
    MaybeReleased {
        id: u64,
    },
    MaybeGranted {
        mode: Mode,
    },
    /// The lease exists and is renewed: not if it was revoked.
    Renewed {
        id: u64,
        deadline: Option<u64>,
    },
    /// Gone, or revoked.
    Refused {
        id: u64,
    },
    Revoked {
        now: bool,
    },
    MaybeRevoked {
        now: bool,
    },
    /// Everything that a worker holds by its session, if there are sessions.
    MaybeEnded {
        worker: u32,
    },
}

#[derive(Debug, Clone, Copy)]
struct Event {
    worker: u32,
    from: u64,
    to: u64,
    act: Act,
}

impl Event {
    fn must_be(&self) -> bool {
        use Act::{MaybeEnded, MaybeGranted, MaybeReleased, MaybeRevoked};
        !matches!(
            self.act,
            MaybeReleased { .. } | MaybeGranted { .. } | MaybeRevoked { .. } | MaybeEnded { .. }
        )
    }
}

/// The conditions around the lock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Promises {
    /// A message arrives within this time after it was sent, or after a fault on its route. 0: at any time.
    pub(super) arrives: u64,
    /// There are sessions, and the end of one is noticed within this time.
    pub(super) notices: Option<u64>,
}

/// Whether a valid order exists. `limit`: of permits, 0 for a reader-writer lock.
pub(super) fn linearizable(histories: &[Vec<Record>], limit: u32) -> bool {
    explained(histories, limit, Promises::default(), u64::MAX).unwrap_or(false)
}

/// The same with faults; `None` if it takes more steps than this.
pub(super) fn explained(
    histories: &[Vec<Record>],
    limit: u32,
    promises: Promises,
    steps: u64,
) -> Option<bool> {
    let Some(mut events) = events(histories) else { return Some(false) };
    around(histories, promises, &mut events);
    if events.len() > 64 {
        return None;
    }
    let search = Search { events, limit, left: Cell::new(steps) };
    let found = search.go(&mut State::default(), 0, 0);
    if found || search.left.get() > 0 { Some(found) } else { None }
}

/// Revokes, deaths, and faults of a worker's route.
fn around(histories: &[Vec<Record>], promises: Promises, events: &mut Vec<Event>) {
    let faults = || {
        let all = histories.iter().flatten();
        let begins = all.filter(|record| record.kind == Kind::FaultBegin);
        begins.map(|begin| {
            let same = |end: &&Record| {
                end.kind == Kind::FaultEnd
                    && (end.fault, end.value) == (begin.fault, begin.value)
                    && end.at >= begin.at
            };
            let end = histories.iter().flatten().find(same).map_or(u64::MAX, |end| end.at);
            (begin.fault, begin.value as u32, begin.at, end)
        })
    };
    let arrived = |worker: u32, sent: u64| {
        if promises.arrives == 0 {
            return u64::MAX;
        }
        let mut by = sent.saturating_add(promises.arrives);
        let mut ways: Vec<_> =
            faults().filter(|(fault, other, ..)| *fault != Fault::Kill && *other == worker).collect();
        ways.sort_by_key(|(_, _, from, _)| *from);
        for (_, _, from, to) in ways {
            // A fault that ended before the message was sent does not delay it; later ones may.
            if to >= sent && from <= by {
                by = by.max(to.saturating_add(promises.arrives));
            }
        }
        by
    };
    for history in histories {
        for (place, call) in history.iter().enumerate().filter(|(_, record)| record.kind == Kind::RevokeCall)
        {
            let now = call.value == 1;
            let answer = history[place..].iter().find(|record| record.kind == Kind::Revoked);
            let event = match answer {
                Some(answer) if answer.value == 0 => {
                    Event { worker: call.worker, from: call.at, to: answer.at, act: Act::Revoked { now } }
                }
                answer => {
                    let to = arrived(call.worker, answer.map_or(call.at, |answer| answer.at));
                    Event { worker: call.worker, from: call.at, to, act: Act::MaybeRevoked { now } }
                }
            };
            events.push(event);
        }
    }
    if let Some(notices) = promises.notices {
        for (fault, worker, from, to) in faults() {
            let to = if fault == Fault::Kill { u64::MAX } else { to.saturating_add(notices) };
            // Each of the worker's leases in that time may end, one after the other.
            events.extend([Event { worker, from, to, act: Act::MaybeEnded { worker } }; 2]);
        }
    }
}

/// `None` if a single lease contradicts itself: lost is final.
fn events(histories: &[Vec<Record>]) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    for history in histories {
        let mut called: HashMap<(u64, Kind), Record> = HashMap::new();
        let mut lost: HashMap<u64, u64> = HashMap::new();
        let mut looked: HashMap<u64, u64> = HashMap::new();
        for record in history {
            let Record { kind, claim, at, lease: id, mode, fence, deadline, value, .. } = *record;
            let call = match kind {
                Kind::Granted | Kind::Busy | Kind::AcquireFailed => Kind::AcquireCall,
                Kind::Renewed | Kind::RenewRefused | Kind::RenewFailed => Kind::RenewCall,
                Kind::Released | Kind::ReleasedNothing | Kind::ReleaseFailed => Kind::ReleaseCall,
                Kind::AcquireCall | Kind::RenewCall | Kind::ReleaseCall => {
                    called.insert((claim, kind), *record);
                    continue;
                }
                kind => kind,
            };
            let from = called.remove(&(claim, call)).map_or(at, |call| call.at);
            let act = match kind {
                // A deadline in the past is only the moment at which the loss was noticed.
                Kind::Granted => {
                    Act::Granted { id, mode, fence, deadline: if deadline > at { deadline } else { 0 } }
                }
                Kind::Busy => Act::Busy { mode },
                Kind::Held if lost.contains_key(&claim) => return None,
                // Never relied on.
                Kind::Held if deadline <= at => continue,
                Kind::Held => Act::There { id, deadline: Some(deadline).filter(|deadline| *deadline > at) },
                Kind::Renewed => {
                    Act::Renewed { id, deadline: Some(deadline).filter(|deadline| *deadline > at) }
                }
                Kind::Released => Act::Released { id },
                Kind::ReleasedNothing => Act::Gone { id },
                Kind::RenewRefused => Act::Refused { id },
                Kind::Lost if value == Loss::Refused as u64 => Act::Gone { id },
                Kind::ReleaseFailed => Act::MaybeReleased { id },
                Kind::AcquireFailed => Act::MaybeGranted { mode },
                _ => continue,
            };
            if kind == Kind::Lost {
                lost.insert(claim, at);
                events.push(Event {
                    worker: record.worker,
                    from: looked.get(&claim).copied().unwrap_or(at),
                    to: at,
                    act,
                });
                continue;
            }
            looked.insert(claim, at);
            let to = if matches!(kind, Kind::ReleaseFailed | Kind::AcquireFailed) { u64::MAX } else { at };
            events.push(Event { worker: record.worker, from, to, act });
        }
        for ((_, kind), call) in called {
            let act = match kind {
                Kind::AcquireCall => Act::MaybeGranted { mode: call.mode },
                Kind::ReleaseCall => Act::MaybeReleased { id: call.lease },
                // An unanswered renewal lets a lease last longer, which every lease may.
                _ => continue,
            };
            events.push(Event { worker: call.worker, from: call.at, to: u64::MAX, act });
        }
    }
    Some(events)
}

#[derive(Debug, Default, Clone)]
struct State {
    now: u64,
    fence: u64,
    /// Id, whether exclusive, and from when on it may end by itself.
    leases: Vec<(u64, bool, u64)>,
    /// Leases that were revoked, and last until their time is over.
    revoked: Vec<u64>,
    /// Leases that ended without their holders' knowledge, and until when these may still rely on them.
    unaware: Vec<(u64, u64)>,
}

impl State {
    fn has(&self, id: u64) -> bool {
        self.leases.iter().any(|(other, ..)| *other == id)
    }

    /// The leases that block a claim; if there are none it may enter.
    fn in_the_way(&self, mode: Mode, limit: u32) -> Vec<usize> {
        let all = 0..self.leases.len();
        match mode {
            Mode::Exclusive => all.collect(),
            Mode::Shared => all.filter(|place| self.leases[*place].1).collect(),
            Mode::Permit if self.leases.len() < limit as usize => Vec::new(),
            Mode::Permit => all.collect(),
        }
    }
}

struct Search {
    events: Vec<Event>,
    limit: u32,
    /// How many more steps it may take.
    left: Cell<u64>,
}

impl Search {
    /// Tries each event that can be next.
    fn go(&self, state: &mut State, done: u64, made: u64) -> bool {
        if self.left.get() == 0 {
            return false;
        }
        self.left.set(self.left.get() - 1);
        let open = |place: usize| done & (1 << place) == 0;
        let left = || (0..self.events.len()).filter(|place| open(*place));
        if left().all(|place| !self.events[place].must_be()) {
            return true;
        }
        // No event may be later than the first that must have ended.
        let soonest =
            left().filter(|place| self.events[*place].must_be()).map(|place| self.events[place].to).min();
        for place in left() {
            let event = self.events[place];
            // One process did its operations in order, even at one moment.
            let earlier =
                |before: usize| self.events[before].worker == event.worker && self.events[before].must_be();
            if event.must_be() && left().take_while(|before| *before < place).any(earlier) {
                continue;
            }
            if Some(event.from) > soonest || state.now > soonest.unwrap_or(u64::MAX) {
                continue;
            }
            for mut after in self.after(state, &event, soonest.unwrap_or(u64::MAX), made + place as u64) {
                if self.go(&mut after, done | (1 << place), made) {
                    return true;
                }
            }
        }
        false
    }

    /// The states that an event can lead to; none if it cannot happen.
    fn after(&self, state: &State, event: &Event, soonest: u64, number: u64) -> Vec<State> {
        let to = event.to.min(soonest);
        let mut next = state.clone();
        next.now = next.now.max(event.from);
        if next.now > to {
            return Vec::new();
        }
        let one = |next: State| vec![next];
        match event.act {
            Act::Granted { id, mode, fence, deadline } => {
                if fence <= state.fence {
                    return Vec::new();
                }
                next.fence = fence;
                self.enter(next, (id, mode == Mode::Exclusive, deadline), mode, to)
            }
            Act::MaybeGranted { mode } => {
                let now = next.now;
                self.enter(next, (u64::MAX - number, mode == Mode::Exclusive, now), mode, to)
            }
            Act::Busy { mode } if state.in_the_way(mode, self.limit).is_empty() => Vec::new(),
            Act::Busy { .. } => one(next),
            Act::Renewed { id, .. } if state.revoked.contains(&id) => Vec::new(),
            Act::Refused { id } if state.revoked.contains(&id) => one(next),
            Act::Revoked { now } | Act::MaybeRevoked { now } => {
                next.revoked.extend(next.leases.iter().map(|(id, ..)| *id));
                if now {
                    next.unaware.extend(next.leases.drain(..).map(|(id, ..)| (id, u64::MAX)));
                }
                one(next)
            }
            Act::MaybeEnded { worker } => {
                let own = |id: u64| id / 1000 == u64::from(worker);
                let ended = next.leases.iter().filter(|(id, ..)| own(*id)).map(|(id, ..)| (*id, event.to));
                next.unaware.extend(ended);
                next.leases.retain(|(id, ..)| !own(*id));
                one(next)
            }
            Act::There { id, .. }
                if !state.has(id)
                    && state.unaware.iter().any(|(other, until)| *other == id && *until >= event.from) =>
            {
                one(next)
            }
            Act::There { id, deadline } | Act::Renewed { id, deadline } => {
                let Some(lease) = next.leases.iter_mut().find(|(other, ..)| *other == id) else {
                    return Vec::new();
                };
                lease.2 = deadline.unwrap_or(lease.2);
                one(next)
            }
            Act::Released { id } if !state.has(id) => Vec::new(),
            Act::Released { id } | Act::MaybeReleased { id } => {
                next.leases.retain(|(other, ..)| *other != id);
                one(next)
            }
            Act::Gone { id } | Act::Refused { id } => {
                if let Some((_, _, ends)) = next.leases.iter().find(|(other, ..)| *other == id) {
                    next.now = next.now.max(*ends);
                    next.leases.retain(|(other, ..)| *other != id);
                }
                if next.now <= to { one(next) } else { Vec::new() }
            }
        }
    }

    /// Enters when the leases in the way have ended by themselves: all, or for a permit any one.
    fn enter(&self, next: State, lease: (u64, bool, u64), mode: Mode, to: u64) -> Vec<State> {
        let in_the_way = next.in_the_way(mode, self.limit);
        let sets: Vec<Vec<usize>> = match mode {
            Mode::Permit if !in_the_way.is_empty() => {
                in_the_way.into_iter().map(|place| vec![place]).collect()
            }
            _ => vec![in_the_way],
        };
        let mut after = Vec::new();
        for ended in sets {
            let mut next = next.clone();
            next.now = ended.iter().map(|place| next.leases[*place].2).fold(next.now, u64::max);
            if next.now > to {
                continue;
            }
            let mut place = 0;
            next.leases.retain(|_| {
                place += 1;
                !ended.contains(&(place - 1))
            });
            next.leases.push(lease);
            after.push(next);
        }
        after
    }
}
