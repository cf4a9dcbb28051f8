//! The plan of a run, derived from the seed: the workers, and which fault comes when, to whom, for how long.

use serde::{Serialize, Serializer};

use crate::history::record::Fault;
use crate::store::{Front, Language, Profile, Store};
use leasehold_testbed::dice::Dice;

/// The name of its file in the directory of a run.
pub const FILE: &str = "plan.json";

/// A run, before it begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Everything derives from this, and from the request.
    pub seed: u64,
    /// The store.
    pub store: Store,
    /// What is in front of it.
    pub front: Front,
    /// The profile.
    pub profile: Profile,
    /// How many replicas must confirm a grant, where there are any.
    pub wait_replicas: u32,
    /// How long the run is, in milliseconds.
    pub lasts_ms: u64,
    /// The ttl of leases, in milliseconds.
    pub ttl_ms: u64,
    /// How many locks are hot: held for moments, and always wanted.
    pub hot: u16,
    /// The language of the workers, if it is not Rust.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
    /// The worker processes. The replacement of a killed worker is like it.
    pub workers: Vec<Worker>,
    /// The faults, in time order.
    pub faults: Vec<Planned>,
}

/// A worker process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Worker {
    /// How many tasks take turns in it.
    pub tasks: u16,
    /// The hot locks that further tasks want, each all the time.
    pub wants: Vec<u16>,
    /// Whether they run on several threads.
    pub threads: bool,
}

/// The usual number of hot locks.
pub const HOT: u16 = 3;

/// How many tasks want each hot lock beyond the usual ones.
const CONTENDERS: u16 = 4;

/// One planned fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// When, in milliseconds from the start.
    pub at_ms: u64,
    /// Which fault.
    #[serde(serialize_with = "by_name")]
    pub fault: Fault,
    /// Its target: the index of the worker where the search for a lock holder begins, or a server or proxy.
    pub target: u64,
    /// For how long, in milliseconds.
    pub lasts_ms: u64,
    /// How much: milliseconds of delay, bytes before a cut, seconds of a clock step; 1 for a kill of any worker.
    pub much: i64,
}

fn by_name<S: Serializer>(fault: &Fault, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{fault:?}"))
}

/// Faults of one kind, at about equal intervals.
struct Series<'a> {
    plan: &'a mut Plan,
    dice: Dice,
}

impl Series<'_> {
    fn every(&mut self, ms: u64, mut make: impl FnMut(&mut Dice) -> (Fault, u64, u64, i64)) {
        // Workers get time to start, and to recover at the end.
        let mut at_ms = 300 + self.dice.below(ms);
        while at_ms + 300 < self.plan.lasts_ms {
            let (fault, target, lasts_ms, much) = make(&mut self.dice);
            self.plan.faults.push(Planned { at_ms, fault, target, lasts_ms, much });
            at_ms += ms * 3 / 4 + self.dice.below(ms / 2);
        }
    }
}

impl Plan {
    /// The plan for a store and a profile that suit each other. `owned`: it is a temporary store, which may be harmed.
    pub fn new(
        seed: u64,
        (store, front): (Store, Front),
        owned: bool,
        profile: Profile,
        lasts_ms: u64,
        workers: usize,
    ) -> Self {
        let ttl_ms = match (profile, store) {
            // A leaked lease lasts for longer than anybody waits.
            (Profile::Leak, _) => 10_000,
            // So many clients share one machine: a renewal may be late, but not by a second.
            (Profile::Crowd, _) => 2_000,
            // A loss is noticed only by holders that still rely on their lease when the replica has taken over.
            (Profile::Failover, _) => 3_000,
            // 90 % of a quorum's ttl must be left when the grant arrives.
            _ if store.is_quorum() => 800,
            _ => 400,
        };
        // A worker with a single task is to be hit while it holds a lock, not in a queue, where its death would delay
        // everybody until its ticket lapses.
        let lonely = matches!(profile, Profile::Kill | Profile::Pause | Profile::All);
        let worker = |place: usize| Worker {
            tasks: if profile == Profile::Crowd {
                // With twelve workers: 60 clients in the crowd, and 54 quiet ones.
                if place < workers.div_ceil(2) { 10 } else { 9 }
            } else if profile == Profile::Logs && place < workers.div_ceil(2) {
                // A blocked log delays the whole process.
                1
            } else if lonely && place < workers.div_ceil(2) {
                1
            } else {
                1 + (place % 4) as u16
            },
            wants: Vec::new(),
            threads: place % 3 == 2,
        };
        let workers = (0..workers).map(worker).collect();
        let faults = Vec::new();
        let wait_replicas = 0;
        let (hot, language) = (HOT, None);
        let mut plan = Plan {
            seed,
            store,
            front,
            profile,
            wait_replicas,
            lasts_ms,
            ttl_ms,
            hot,
            language,
            workers,
            faults,
        };
        let places = plan.workers.len() as u64;
        let mut number = 0;
        let mut series = |plan: &mut Plan, every: u64, make: &dyn Fn(&mut Dice) -> (Fault, u64, u64, i64)| {
            number += 1;
            Series { plan, dice: Dice::fork(seed, number) }.every(every, make);
        };
        // One kill in forty hits any worker: a waiter that dies delays the others until its ticket lapses, half a run
        // long.
        let kill = |dice: &mut Dice| (Fault::Kill, dice.below(places), 0, i64::from(dice.once_in(40)));
        let pause =
            |dice: &mut Dice| (Fault::Pause, dice.below(places), dice.between(ttl_ms / 2, ttl_ms * 3), 0);
        let restart = |dice: &mut Dice| (Fault::RestartStore, dice.roll() >> 32, 0, 0);
        let freeze =
            |dice: &mut Dice| (Fault::PauseStore, dice.roll() >> 32, dice.between(50, ttl_ms * 2), 0);
        let worker_clock = |dice: &mut Dice| (Fault::ClockWorker, 0, dice.between(200, 1_500), step(dice));
        let store_clock = |dice: &mut Dice| (Fault::ClockStore, 0, dice.between(300, 2_000), step(dice));
        match profile {
            Profile::Calm | Profile::Cancel | Profile::Crowd | Profile::Many => {}
            Profile::Logs => series(&mut plan, 2_500, &pause),
            Profile::Kill => series(&mut plan, 200, &kill),
            Profile::Pause => series(&mut plan, 180, &pause),
            // Often: most of what is lost on the way is recovered, and then no call's outcome stays unknown. Sessions
            // are judged only between the faults of their route, and with TLS each fault costs new connections.
            Profile::Net => {
                let seldom = store == Store::Advisory || front == Front::Tls;
                series(&mut plan, if seldom { 150 } else { 60 }, &net);
            }
            Profile::Restart => {
                series(&mut plan, 2_500, &restart);
                series(&mut plan, 1_800, &freeze);
            }
            Profile::Clock => {
                series(&mut plan, 900, &worker_clock);
                if store.has_server() {
                    series(&mut plan, 2_500, &store_clock);
                }
            }
            // One after the other, each when everything works again: as many as there is time for.
            Profile::Failover => series(&mut plan, 1_500, &failover),
            Profile::Leak if owned && store.has_server() && !store.is_found_by_others() => {
                // Less than any call may take.
                let late = |dice: &mut Dice| {
                    let target = dice.roll() >> 32;
                    (Fault::Delay, target, dice.between(100, 800), dice.between(5, 100) as i64)
                };
                series(&mut plan, 300, &late);
            }
            Profile::Leak => {}
            Profile::Resources => {
                let descriptors =
                    |dice: &mut Dice| (Fault::Descriptors, dice.below(places), dice.between(200, 1_000), 0);
                series(&mut plan, 500, &descriptors);
                if matches!(store, Store::Redis | Store::Quorum | Store::MixedQuorum) {
                    let memory =
                        |dice: &mut Dice| (Fault::Memory, dice.roll() >> 32, dice.between(200, 1_500), 1);
                    series(&mut plan, 2_500, &memory);
                }
                if matches!(store, Store::Sqlite | Store::File | Store::Http) {
                    let full = |dice: &mut Dice| (Fault::DiskFull, 0, dice.between(200, 1_500), 0);
                    series(&mut plan, 2_500, &full);
                }
            }
            Profile::All => {
                series(&mut plan, 500, &kill);
                series(&mut plan, 450, &pause);
                if owned && store.has_server() {
                    series(&mut plan, 400, &net);
                    series(&mut plan, 4_000, &freeze);
                    if store.survives_restart() {
                        series(&mut plan, 4_500, &restart);
                    }
                }
            }
        }
        plan.faults.sort_by_key(|fault| fault.at_ms);
        plan
    }

    /// Makes this many locks hot. The tasks that are there anyway share all of them; each beyond the usual ones gets
    /// more tasks, in different processes.
    pub fn with_hot(mut self, hot: u16) -> Self {
        self.hot = hot;
        let several = |worker: &Worker| worker.tasks > 1;
        // A worker with a single task is to be hit while it holds a lock.
        let all = self.workers.iter().filter(|worker| several(worker)).count() < usize::from(CONTENDERS);
        let mut workers: Vec<_> = self.workers.iter_mut().filter(|worker| all || several(worker)).collect();
        let count = workers.len();
        for lock in HOT..hot {
            for contender in 0..CONTENDERS {
                workers[usize::from(lock + contender) % count].wants.push(lock);
            }
        }
        self
    }
}

fn net(dice: &mut Dice) -> (Fault, u64, u64, i64) {
    let target = dice.roll() >> 32;
    match dice.below(10) {
        0 | 1 => (Fault::Delay, target, dice.between(100, 800), dice.between(5, 300) as i64),
        2 | 3 => (Fault::Reset, target, 0, 0),
        4 => (Fault::Blackhole, target, dice.between(100, 1_200), 0),
        5 | 6 => (Fault::Cut, target, 500, dice.between(1, 3_000) as i64),
        7 | 8 => (Fault::Swallow, target, 500, 0),
        _ => (Fault::Hold, target, dice.between(50, 2_000), 0),
    }
}

/// The kinds are shuffled, so that a few fail-overs include all of them. Also chooses for how long nothing reaches the
/// replica before a crash, or an old primary serves beside the new one.
fn failover(dice: &mut Dice) -> (Fault, u64, u64, i64) {
    let part = dice.below(3);
    let lasts = dice.between(200, 800);
    match dice.below(5) {
        0 => (Fault::CrashPrimary, part, 0, 0),
        1 | 2 => (Fault::CrashPrimary, part, lasts, 0),
        3 => (Fault::FreezePrimary, part, lasts, 0),
        _ => (Fault::SwitchPrimary, part, 0, 0),
    }
}

/// A clock step from a second to an hour, forwards or back, in seconds.
fn step(dice: &mut Dice) -> i64 {
    let seconds = [1, 5, 60, 600, 3_600][dice.below(5) as usize];
    if dice.once_in(2) { seconds } else { -seconds }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_plan_and_another_gives_another() {
        for profile in Profile::ALL {
            let plan = |seed| Plan::new(seed, (Store::Redis, Front::None), true, *profile, 20_000, 12);
            assert_eq!(plan(7), plan(7));
            let calm = matches!(profile, Profile::Calm | Profile::Cancel | Profile::Crowd | Profile::Many);
            assert_eq!(plan(7).faults == plan(8).faults, calm, "{profile}");
            assert_eq!(plan(7).faults.is_empty(), calm, "{profile}");
        }
    }

    #[test]
    fn contenders_of_a_hot_lock_are_in_different_processes() {
        for profile in [Profile::Calm, Profile::Kill] {
            let plan = Plan::new(7, (Store::Redis, Front::None), true, profile, 20_000, 12).with_hot(40);
            for lock in HOT..40 {
                let of = |worker: &Worker| worker.wants.iter().filter(|wanted| **wanted == lock).count();
                let most = plan.workers.iter().map(of).max();
                let all: usize = plan.workers.iter().map(of).sum();
                assert_eq!((all, most), (usize::from(CONTENDERS), Some(1)), "{profile}, lock {lock}");
            }
            assert!(
                plan.workers
                    .iter()
                    .all(|worker| profile == Profile::Calm || worker.tasks > 1 || worker.wants.is_empty())
            );
        }
    }

    #[test]
    fn every_fault_of_the_network_is_in_a_plan_of_twenty_seconds() {
        for seed in 0..20 {
            let plan = Plan::new(seed, (Store::Redis, Front::None), true, Profile::Net, 20_000, 12);
            use Fault::{Blackhole, Cut, Delay, Hold, Reset, Swallow};
            for fault in [Delay, Reset, Blackhole, Cut, Swallow, Hold] {
                assert!(
                    plan.faults.iter().any(|planned| planned.fault == fault),
                    "seed {seed}: no {fault:?}"
                );
            }
        }
    }
}
