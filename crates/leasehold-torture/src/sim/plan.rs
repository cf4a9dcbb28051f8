//! What a seed makes of a simulation: the store, the locks, how much goes wrong.

use std::time::Duration;

use super::chance::Chance;
use crate::history::setting::Name;

/// How the store lets clients wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// It wakes the clients that may enter, over a channel beside the calls (as Redis and PostgreSQL).
    Push,
    /// It answers a long poll when the lease is granted, and keeps the places of the waiters (as SQLite and the
    /// server).
    LongPoll,
    /// Not at all: clients retry by themselves, in no order (as a quorum).
    Poll,
}

/// One simulation. Shares are in thousandths.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) waits: Waits,
    /// Leases end with the session of their process, and not with a ttl.
    pub(crate) session: bool,
    /// Expiry does not depend on the store's wall clock.
    pub(crate) steady: bool,
    pub(crate) names: Vec<Name>,
    pub(crate) processes: u32,
    pub(crate) tasks: u16,
    pub(crate) ttl: Duration,
    pub(crate) span: Duration,
    pub(crate) request_timeout: Duration,
    /// The greatest delay of a message without a fault, in milliseconds.
    pub(crate) delay: u64,
    /// The greatest clock drift of a machine, in millionths.
    pub(crate) drift: i64,
    /// Requests that never arrive.
    pub(crate) lost_requests: u64,
    /// Answers that never arrive.
    pub(crate) lost_answers: u64,
    /// Requests that arrive much later.
    pub(crate) held: u64,
    /// Answers that arrive much later.
    pub(crate) late_answers: u64,
    /// Answers that are errors.
    pub(crate) errors: u64,
    /// Wake-ups that never arrive, and as many that are late.
    pub(crate) lost_wakes: u64,
    /// Futures that are dropped.
    pub(crate) cancels: u64,
    /// Acquires that are one bare attempt on the backend, perhaps repeated.
    pub(crate) bare: u64,
    /// Acquires that take several names.
    pub(crate) multi: u64,
    /// Acquires that go through the server.
    pub(crate) served: u64,
    /// Holders that stay longer than their ttl.
    pub(crate) long_holds: u64,
    /// Claims of a reader-writer lock that are shared.
    pub(crate) shared: u64,
    /// Rounds that revoke instead of acquire.
    pub(crate) revokes: u64,
    /// The average time between two faults of processes and the store, in milliseconds; 0: no faults.
    pub(crate) faults_every: u64,
    /// Their weights: kill, pause, blackhole, pause of the store, restart of the store, clock of a process, clock of
    /// the store.
    pub(crate) weights: [u64; 7],
}

impl Plan {
    pub(crate) fn new(chance: &mut Chance, multi_chance: &mut Chance, through_server: bool) -> Self {
        let waits = *chance.pick(&[Waits::Push, Waits::Push, Waits::LongPoll, Waits::LongPoll, Waits::Poll]);
        let names: Vec<_> = (0..chance.between(1, 3))
            .map(|n| {
                let limit = if chance.per_mille(300) { chance.between(2, 3) as u32 } else { 0 };
                Name { name: format!("lock-{n}"), limit, part: 0 }
            })
            .collect();
        // Leases that outlast the time bounds show their waiters; with kills alone, nothing else explains a delay.
        let long = chance.per_mille(150);
        let kills_only = chance.per_mille(if long { 500 } else { 100 });
        // Each kind of trouble is on or off, so that each is also seen alone.
        let (calm_network, calm_processes) = (kills_only || chance.per_mille(300), chance.per_mille(300));
        let mut network = |most: u64| match chance.per_mille(500) && !calm_network {
            true => chance.between(1, most),
            false => 0,
        };
        let (lost_requests, lost_answers, held, late_answers) =
            (network(40), network(60), network(40), network(40));
        let (errors, lost_wakes) = (network(40), network(200));
        let mut some = |most: u64| if chance.per_mille(500) { chance.between(1, most) } else { 0 };
        let (cancels, revokes) = (some(300), some(20));
        let weights = [some(3), some(6), some(4), some(3), some(3), some(2), some(2)];
        let weights = if kills_only { [1, 0, 0, 0, 0, 0, 0] } else { weights };
        let slow = chance.per_mille(100);
        // A server cannot hold session locks.
        let session = chance.per_mille(150) && !through_server;
        let steady = session || !chance.per_mille(200);
        let multi = *multi_chance.pick(&[0, 0, 0, 200, 500]);
        Plan {
            waits,
            session,
            steady,
            multi: if names.len() > 1 { multi } else { 0 },
            names,
            processes: chance.between(2, 4) as u32,
            tasks: chance.between(1, 3) as u16,
            ttl: if long { chance.millis(1000, 2500) } else { chance.millis(60, 400) },
            span: if long { chance.millis(10_000, 20_000) } else { chance.millis(3000, 9000) },
            request_timeout: chance.millis(50, 600),
            delay: if slow { chance.between(9, 12) } else { chance.between(0, 8) },
            drift: if chance.per_mille(500) { 4_000 } else { 0 },
            lost_requests,
            lost_answers,
            held,
            late_answers,
            errors,
            lost_wakes,
            cancels,
            bare: if chance.per_mille(500) && !session { 150 } else { 0 },
            served: if through_server { *chance.pick(&[500, 1000]) } else { 0 },
            long_holds: chance.between(0, if long { 500 } else { 200 }),
            shared: *chance.pick(&[400, 400, 800]),
            revokes: if chance.per_mille(300) && !session { revokes } else { 0 },
            faults_every: match (calm_processes, long) {
                (true, _) => 0,
                (_, true) => chance.between(1000, 6000),
                _ => chance.between(100, 1500),
            },
            weights,
        }
    }
}
