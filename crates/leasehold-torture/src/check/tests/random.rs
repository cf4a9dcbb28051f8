//! Random small histories of a correct lock, and the same with a few changes.

use crate::history::record::{Kind, Loss, Mode, Record};

/// A small random generator, the same everywhere.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, below: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}

const TTL: u64 = 16;
pub(super) const OPERATIONS: usize = 10;

/// What a worker is about to do.
#[derive(Debug, Clone, Copy)]
struct Plan {
    call: u64,
    effect: u64,
    answer: u64,
    kind: Kind,
}

#[derive(Debug)]
struct Worker {
    number: u32,
    claim: u64,
    mode: Mode,
    /// The deadline that it knows, while it has a lease.
    deadline: Option<u64>,
    fence: u64,
    over: bool,
    plan: Plan,
    history: Vec<Record>,
}

/// A correct lock, by its own clock.
#[derive(Debug, Default)]
struct Store {
    limit: u32,
    fence: u64,
    leases: Vec<(u64, Mode, u64)>,
}

impl Store {
    fn settle(&mut self, now: u64) {
        self.leases.retain(|(_, _, expires)| *expires > now);
    }

    fn admits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.leases.is_empty(),
            Mode::Shared => self.leases.iter().all(|(_, mode, _)| *mode == Mode::Shared),
            Mode::Permit => self.leases.len() < self.limit as usize,
        }
    }
}

/// A history of a correct lock.
pub(super) fn good(random: &mut Random, limit: u32) -> Vec<Vec<Record>> {
    let mut store = Store { limit, fence: random.below(5) + 1, ..Store::default() };
    let mut workers: Vec<Worker> = (1..=3).map(|number| Worker::new(number, limit, random)).collect();
    for _ in 0..OPERATIONS {
        let next = workers.iter_mut().filter(|worker| !worker.over).min_by_key(|worker| worker.plan.effect);
        let Some(worker) = next else { break };
        worker.act(&mut store, random);
        worker.plan(random);
    }
    workers.into_iter().map(|worker| worker.history).collect()
}

impl Worker {
    fn new(number: u32, limit: u32, random: &mut Random) -> Self {
        let mode = if limit > 0 { Mode::Permit } else { Mode::Exclusive };
        let plan = Plan { call: 0, effect: 0, answer: 0, kind: Kind::AcquireCall };
        let mut worker = Worker {
            number,
            claim: 0,
            mode,
            deadline: None,
            fence: 0,
            over: false,
            plan,
            history: Vec::new(),
        };
        worker.plan(random);
        worker
    }

    fn id(&self) -> u64 {
        u64::from(self.number) * 1000 + self.claim
    }

    fn plan(&mut self, random: &mut Random) {
        let call = self.plan.answer + 1 + random.below(4);
        let effect = call + random.below(6);
        let mut plan = Plan { call, effect, answer: effect + random.below(6), kind: Kind::AcquireCall };
        match self.deadline {
            None => {
                self.claim += 1;
                if self.mode != Mode::Permit {
                    self.mode = if random.chance(3) { Mode::Shared } else { Mode::Exclusive };
                }
            }
            Some(deadline) => {
                plan.kind = match random.below(5) {
                    0 | 1 if call < deadline => Kind::Held,
                    2 => Kind::RenewCall,
                    _ => Kind::ReleaseCall,
                };
                if plan.kind == Kind::Held {
                    (plan.effect, plan.answer) = (call, call);
                }
            }
        }
        self.plan = plan;
    }

    fn write(&mut self, kind: Kind, at: u64, deadline: u64) {
        let lease = if kind == Kind::AcquireCall { 0 } else { self.id() };
        let fence = if deadline > 0 && kind != Kind::AcquireCall { self.fence } else { 0 };
        let record = Record {
            claim: self.claim,
            mode: self.mode,
            lease,
            fence,
            deadline,
            ..Record::new(kind, self.number, at)
        };
        self.history.push(record);
    }

    fn act(&mut self, store: &mut Store, random: &mut Random) {
        let Plan { call, effect, answer, kind } = self.plan;
        store.settle(effect);
        let id = self.id();
        // Killed before the answer: the call took effect or not.
        let killed = kind != Kind::Held && random.chance(12);
        let happens = !killed || random.chance(2);
        match kind {
            Kind::AcquireCall => {
                self.write(kind, call, TTL);
                let admits = happens && store.admits(self.mode);
                if admits {
                    store.fence += 1 + random.below(2);
                    store.leases.push((id, self.mode, effect + TTL));
                    (self.fence, self.deadline) = (store.fence, Some(call + TTL));
                }
                if !killed {
                    self.write(
                        if admits { Kind::Granted } else { Kind::Busy },
                        answer,
                        if admits { call + TTL } else { 0 },
                    );
                }
            }
            Kind::Held => self.write(kind, call, self.deadline.unwrap_or(0)),
            Kind::RenewCall => {
                self.write(kind, call, 0);
                let lease = store.leases.iter_mut().find(|(other, ..)| *other == id).filter(|_| happens);
                let there = lease.is_some();
                if let Some(lease) = lease {
                    lease.2 = lease.2.max(effect + TTL);
                }
                self.deadline = there.then_some(call + TTL);
                if !killed {
                    self.write(
                        if there { Kind::Renewed } else { Kind::RenewRefused },
                        answer,
                        if there { call + TTL } else { 0 },
                    );
                }
            }
            _ => {
                self.write(kind, call, 0);
                let before = store.leases.len();
                store.leases.retain(|(other, ..)| *other != id || !happens);
                self.deadline = None;
                if !killed {
                    let there = store.leases.len() < before;
                    self.write(if there { Kind::Released } else { Kind::ReleasedNothing }, answer, 0);
                }
            }
        }
        self.over |= killed;
    }
}

/// Makes one or two changes that leave it a history: each process in the order of its times, answers after calls.
pub(super) fn mutate(random: &mut Random, histories: &mut [Vec<Record>]) {
    for _ in 0..1 + random.below(4) {
        let history = &mut histories[random.below(3) as usize];
        if history.is_empty() {
            continue;
        }
        let place = random.below(history.len() as u64) as usize;
        let before = place.checked_sub(1).map_or(0, |before| history[before].at);
        let after = history.get(place + 1).map_or(history[place].at + 12, |next| next.at);
        let record = &mut history[place];
        match random.below(6) {
            0 | 1 => record.at = before + random.below(after - before + 1),
            2 if record.kind == Kind::Granted => {
                record.fence = (record.fence + random.below(5)).saturating_sub(2).max(1)
            }
            3 if matches!(record.kind, Kind::Granted | Kind::Held | Kind::Renewed) => {
                record.deadline = (record.deadline + random.below(9)).saturating_sub(4);
            }
            4 => {
                let (claim, fence) = (record.claim, record.fence);
                let grant = Record {
                    lease: u64::from(record.worker) * 1000 + claim,
                    fence: 1 + random.below(12),
                    deadline: record.at + TTL / 2,
                    ..*record
                };
                let kind = match record.kind {
                    Kind::Released => Kind::ReleasedNothing,
                    Kind::ReleasedNothing => Kind::Released,
                    Kind::Renewed => Kind::RenewRefused,
                    Kind::Busy => {
                        *record = Record { kind: Kind::Granted, ..grant };
                        continue;
                    }
                    Kind::Granted => {
                        history.retain(|other| {
                            other.claim != claim
                                || other.kind == Kind::AcquireCall
                                || (other.kind, other.fence) == (Kind::Granted, fence)
                        });
                        history
                            .iter_mut()
                            .filter(|other| other.claim == claim && other.kind == Kind::Granted)
                            .for_each(|other| other.kind = Kind::Busy);
                        continue;
                    }
                    Kind::Held => {
                        record.value = Loss::Refused as u64;
                        Kind::Lost
                    }
                    kind => kind,
                };
                record.kind = kind;
            }
            5 => {
                let kind = record.kind;
                let answer = matches!(kind, Kind::Released | Kind::ReleasedNothing | Kind::Renewed);
                if answer && random.chance(2) {
                    history.remove(place);
                } else if kind == Kind::Released {
                    // A second release, with any answer.
                    let at = record.at;
                    let again = Record { kind: Kind::ReleaseCall, ..*record };
                    let told = if random.chance(2) { Kind::Released } else { Kind::ReleasedNothing };
                    let answer = Record { kind: told, at: at + random.below(after - at + 1), ..*record };
                    history.splice(place + 1..place + 1, [again, answer]);
                } else if matches!(kind, Kind::Granted | Kind::Renewed) {
                    // Killed here.
                    history.truncate(place);
                }
            }
            _ => {}
        }
    }
}
