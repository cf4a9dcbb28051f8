//! The contract beside the tested code: the rules as naive code (`spec.rs`), guided random histories (`history.rs`),
//! what they must reach (`reach.rs`), and the driver that runs a store beside the rules (`drive.rs`).
//!
//! Shared by the model tests of the state machine and of each store: one generator, one list of what it must reach.
//!
//! `LEASEHOLD_SEED` repeats a run, `LEASEHOLD_STEPS` makes it longer.

#![allow(dead_code)] // each test uses its part

pub(crate) mod drive;
pub(crate) mod history;
pub(crate) mod reach;
pub(crate) mod spec;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Attempt, Busy, Grant, NameInfo, Released, Renewed};
use leasehold::state::{Answer, Now, Op};
use leasehold::{ErrorKind, Fence, Gone, LeaseId, Mode};

use history::Verb;

// What is compared.

/// A lease id that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Id(pub(crate) LeaseId);

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0.expose().trim_start_matches('0'))
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    Granted(Grant),
    /// `holders`: owner and time left of the lease it speaks of; several if the contract leaves the choice.
    Busy {
        place: Option<u64>,
        queue_length: u64,
        holders: Vec<(Arc<str>, Duration)>,
    },
    Held(Grant),
    Gone(Gone),
    Done,
    Revoked {
        leases: u64,
    },
    Swept {
        expired: u64,
        tickets: u64,
        counters: u64,
        held: u64,
        waiting: u64,
    },
    Kept(bool),
    Error(ErrorKind),
    /// An answer that no contract allows.
    Odd(&'static str),
    /// Nothing was asked.
    Nothing,
}

impl Said {
    pub(crate) fn agrees_with(&self, spec: &Said) -> bool {
        match (self, spec) {
            (
                Said::Busy { place, queue_length, holders },
                Said::Busy { place: other_place, queue_length: other_length, holders: tied },
            ) => {
                place == other_place
                    && queue_length == other_length
                    && holders.is_empty() == tied.is_empty()
                    && holders.iter().all(|h| tied.contains(h))
            }
            _ => self == spec,
        }
    }
}

/// Everything visible.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) version: u64,
    pub(crate) last_fence: Fence,
    pub(crate) note: Option<leasehold::backend::Note>,
    pub(crate) holders: Vec<HolderSeen>,
    pub(crate) holder_count: u64,
    /// The holders shown to a caller that asks by each of these ids, where not all are shown.
    pub(crate) asked: Vec<Vec<Id>>,
    pub(crate) waiters: Vec<WaiterSeen>,
    pub(crate) queue_length: u64,
    /// Those of the ids asked about that hold a lease or wait.
    pub(crate) known: Vec<Id>,
    pub(crate) at_rest: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HolderSeen {
    pub(crate) id: Id,
    pub(crate) owner: Arc<str>,
    pub(crate) metadata: Option<Arc<str>>,
    pub(crate) grant: Grant,
    pub(crate) revoked: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WaiterSeen {
    pub(crate) id: Id,
    pub(crate) owner: Arc<str>,
    pub(crate) mode: Mode,
    pub(crate) waited: Duration,
}

/// Turns an answer to this verb into a comparable form.
pub(crate) fn said(answer: leasehold::Result<Answer>, op: Op<'_>) -> Said {
    match (answer, op) {
        (Err(error), _) => Said::Error(error.kind()),
        (Ok(Answer::Acquired(Attempt::Granted(grant))), Op::Acquire(_)) => Said::Granted(grant),
        (Ok(Answer::Acquired(Attempt::Gone(why))), Op::Acquire(_)) => Said::Gone(why),
        (Ok(Answer::Acquired(Attempt::Busy(busy))), Op::Acquire(claim)) => said_busy(busy, claim.queue),
        (Ok(Answer::Renewed(Renewed::Held(grant))), Op::Renew(_)) => Said::Held(grant),
        (Ok(Answer::Renewed(Renewed::Gone(why))), Op::Renew(_)) => Said::Gone(why),
        (Ok(Answer::Released(Released::Done)), Op::Release(_)) => Said::Done,
        (Ok(Answer::Released(Released::Gone(why))), Op::Release(_)) => Said::Gone(why),
        (Ok(Answer::Revoked(revoked)), Op::Revoke { .. }) => Said::Revoked { leases: revoked.leases },
        (Ok(Answer::Swept(s)), Op::Sweep) => Said::Swept {
            expired: s.expired,
            tickets: s.tickets,
            counters: s.counters,
            held: s.held,
            waiting: s.waiting,
        },
        (Ok(Answer::Kept(kept)), Op::Keep(_)) => Said::Kept(kept),
        (answer, op) => panic!("{op:?} was answered with {answer:?}"),
    }
}

/// What an inspection shows, without the parts that only some stores report.
pub(crate) fn seen(view: NameInfo) -> Seen {
    let holder = |h: leasehold::backend::HolderInfo| HolderSeen {
        id: Id(h.id),
        owner: h.owner,
        metadata: h.metadata,
        grant: h.grant,
        revoked: h.revoked,
    };
    let waiter = |w: leasehold::backend::WaiterInfo| WaiterSeen {
        id: Id(w.id),
        owner: w.owner,
        mode: w.mode,
        waited: w.waited,
    };
    Seen {
        version: view.version,
        last_fence: view.last_fence,
        note: view.note,
        holders: view.holders.into_iter().map(holder).collect(),
        holder_count: view.holder_count,
        asked: Vec::new(),
        waiters: view.waiters.into_iter().map(waiter).collect(),
        queue_length: view.queue_length,
        known: Vec::new(),
        at_rest: false,
    }
}

pub(crate) fn said_busy(busy: Busy, queue: Option<Duration>) -> Said {
    // The store decides when to try again, as long as it says so, and in time to keep the place.
    let Some(retry_in) = busy.retry_in else {
        return Said::Odd("busy, and not when to look again");
    };
    if queue.is_some_and(|ticket| retry_in > Duration::from_micros(spec::micros(ticket).div_ceil(3))) {
        return Said::Odd("to look again after more than a third of the ticket's time");
    }
    if busy.owner.is_some() != busy.holder_left.is_some() {
        return Said::Odd("a holder with half of what is known of it");
    }
    let holders = busy.owner.into_iter().zip(busy.holder_left).collect();
    Said::Busy { place: busy.place, queue_length: busy.queue_length, holders }
}

/// One step of a history: when, the verb, its answer, and the waiters it woke.
pub(crate) struct Step {
    pub(crate) now: Now,
    pub(crate) verb: Verb,
    pub(crate) said: Said,
    pub(crate) woken: Vec<LeaseId>,
}

pub(crate) fn ids(of: &[LeaseId]) -> Vec<Id> {
    of.iter().copied().map(Id).collect()
}

pub(crate) fn differ(what: &str, tested: &dyn fmt::Debug, spec: &dyn fmt::Debug) -> String {
    format!("{what} differ\nhere:     {tested:?}\ncontract: {spec:?}")
}

pub(crate) fn from_env(var: &str) -> Option<u64> {
    std::env::var(var).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{var} must be a number")))
}

pub(crate) fn seed() -> u64 {
    from_env("LEASEHOLD_SEED").unwrap_or_else(|| RandomState::new().hash_one("seed"))
}
