//! The disturbances of a run: faults, stalls, revokes, and the ends of processes.

use std::collections::{BTreeSet, HashMap};

use super::case::{Around, Case, SLACK};
use super::revokes::{Revoke, Revokes};
use super::windows::Windows;
use crate::history::record::{Fault, Kind, Record};
use crate::history::setting::{Losses, Setting};

/// How long after its end a fault still explains a delay: clients reconnect, pauses between tries have grown, waiters
/// queue again.
const EXPLAINS: u64 = 2_000_000_000;

/// How far a replica can lag behind its primary while nothing is disturbed.
const BEHIND: u64 = SLACK;

/// Whom a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Everybody,
    /// Workers that reach the store by one route.
    Side(u64),
    Worker(u64),
}

impl Reach {
    fn of(record: &Record) -> Self {
        let of_worker = matches!(record.fault, Fault::Kill | Fault::Pause | Fault::Descriptors);
        match (record.claim, record.fence) {
            (0, 0) if of_worker && record.value != 0 => Reach::Worker(record.value),
            (0, 0) => Reach::Everybody,
            (0, side) => Reach::Side(side - 1),
            (worker, _) => Reach::Worker(worker),
        }
    }

    pub(super) fn hits(self, worker: u32, sides: u32) -> bool {
        match self {
            Reach::Everybody => true,
            Reach::Side(side) => {
                u64::from(worker).checked_rem(u64::from(sides)).is_none_or(|own| own == side)
            }
            Reach::Worker(hit) => hit == u64::from(worker),
        }
    }
}

/// Disturbances while they are being collected.
pub(super) struct Matter {
    open: HashMap<(Fault, u64), Vec<(u64, Reach)>>,
    faults: Vec<(Fault, Reach, u64, u64)>,
    /// Events in a part of the store that failed over: kind, part, from when, until when.
    parts: Vec<(Fault, u64, u64, u64)>,
    pub(super) stalls: Vec<(u64, u64)>,
    /// By name: `until` is when each had returned, if it did.
    revokes: Vec<Vec<Revoke>>,
    /// The last moment at which a process can have been alive.
    pub(super) deaths: HashMap<u32, u64>,
    sides: u32,
    /// There is no server: a process stopped in the middle of changing the file blocks everybody.
    one_file: bool,
}

impl Matter {
    pub(super) fn new(setting: &Setting) -> Self {
        Matter {
            open: HashMap::new(),
            faults: Vec::new(),
            parts: Vec::new(),
            stalls: Vec::new(),
            revokes: vec![Vec::new(); setting.names.len()],
            deaths: HashMap::new(),
            sides: setting.sides,
            one_file: matches!(setting.store.as_str(), "sqlite" | "file"),
        }
    }

    pub(super) fn note(&mut self, record: &Record) {
        let key = (record.fault, record.value);
        match record.kind {
            Kind::FaultBegin => self.open.entry(key).or_default().push((record.at, Reach::of(record))),
            Kind::FaultEnd => {
                let begun = self.open.get_mut(&key).and_then(Vec::pop);
                let (begin, reach) = begun.unwrap_or((record.at, Reach::of(record)));
                self.faults.push((record.fault, reach, begin, record.at));
                self.parts.push((record.fault, record.value, begin, record.at));
                if record.fault == Fault::Kill {
                    self.deaths.insert(record.value as u32, record.at);
                }
            }
            _ => self.stalls.push((record.value, record.at)),
        }
    }

    /// A revoke of a name, and when its answer came; if it failed, it may still take effect later.
    pub(super) fn revoke(&mut self, call: &Record, answer: Option<&Record>) {
        let Record { worker, at: called, .. } = *call;
        self.revokes[usize::from(call.name)].push(Revoke {
            worker,
            called,
            until: answer.map_or(u64::MAX, |answer| answer.at),
            answered: answer.is_some_and(|answer| answer.value != 1),
            now: call.value == 1,
            only: (call.fence != 0).then_some(call.fence),
            met: answer.and_then(|answer| answer.deadline.checked_sub(1)),
        });
    }

    /// When a part of the store gave answers that a fail-over may lose, and when two primaries answered for it.
    fn losses(&self, losses: Losses, part: u64) -> (Windows, Windows) {
        if losses == Losses::Nothing {
            return Default::default();
        }
        let here = self.parts.iter().filter(|(_, of, ..)| *of == part);
        let spans = |wanted: Fault, before: u64| -> Vec<(u64, u64)> {
            let wanted = here.clone().filter(|(what, ..)| *what == wanted);
            wanted.map(|(_, _, from, to)| (from.saturating_sub(before), *to)).collect()
        };
        let two = spans(Fault::TwoPrimaries, 0);
        let mut lost = spans(Fault::LosesLatest, BEHIND);
        lost.extend(&two);
        (Windows::new(lost, 0), Windows::new(two, 0))
    }

    fn spans(&self, which: impl Fn(Fault) -> bool) -> Vec<(u64, u64)> {
        self.hitting(|fault, _| which(fault))
    }

    fn hitting(&self, which: impl Fn(Fault, Reach) -> bool) -> Vec<(u64, u64)> {
        let faults = self.faults.iter().filter(|(fault, reach, ..)| which(*fault, *reach));
        faults.map(|(_, _, from, to)| (*from, *to)).collect()
    }

    /// The disturbances of the workers that certain faults hit.
    fn around(&self, hits: impl Fn(Reach) -> bool, clock: &[(u64, u64)], within: u64) -> Around {
        let delayed = |reach: Reach| hits(reach) || self.one_file;
        let mut struck = self.hitting(|fault, reach| disturbs(fault) && delayed(reach));
        struck.extend(&self.stalls);
        // A step back of the clock prolongs leases for an unknown time.
        struck.extend(clock.iter().map(|(from, _)| (*from, u64::MAX)));
        let longer = struck.iter().map(|(from, to)| (*from, to.saturating_add(EXPLAINS))).collect();
        let mut still = self.hitting(|fault, reach| fault == Fault::Pause && hits(reach));
        still.extend(&self.stalls);

        let noticed = |(from, to): &(u64, u64)| (*from, to.saturating_add(within));
        let mut cut: Vec<_> =
            self.hitting(|fault, reach| ends_sessions(fault) && hits(reach)).iter().map(noticed).collect();
        let cuts = Windows::new(cut.clone(), 0);
        // A stopped process notices later.
        cut.extend(still.iter().filter(|(from, to)| cuts.meets(*from, *to)).map(noticed));
        Around {
            disturbed: Windows::new(struck.clone(), SLACK),
            explained: Windows::new(longer, 0),
            struck: Windows::new(struck, 0),
            still: Windows::new(still, 0),
            unnoticed: Windows::new(cut, 0),
        }
    }

    pub(super) fn case<'a>(&mut self, setting: &Setting, mut case: Case<'a>) -> Case<'a> {
        for ((fault, target), begins) in std::mem::take(&mut self.open) {
            if let (Fault::Kill, Some((begin, _))) = (fault, begins.first()) {
                self.deaths.insert(target as u32, begin.saturating_add(SLACK));
            }
            self.parts.extend(begins.iter().map(|(begin, _)| (fault, target, *begin, u64::MAX)));
            self.faults.extend(begins.into_iter().map(|(begin, reach)| (fault, reach, begin, u64::MAX)));
        }
        let promises = &setting.promises;
        let clock = self.spans(|fault| fault == Fault::ClockStore && !promises.steady);
        let within = promises.notices_within;
        case.anybody = self.around(|_| true, &clock, within);
        let revoking = self.revokes.iter().flatten().map(|revoke| revoke.worker);
        let workers: BTreeSet<u32> =
            case.records.iter().map(|record| record.worker).chain(revoking).collect();
        for worker in workers {
            let around = self.around(|reach| reach.hits(worker, self.sides), &clock, within);
            case.around.insert(worker, around);
        }
        case.faults.clone_from(&self.faults);
        case.restarts =
            Windows::new(self.spans(|fault| fault == Fault::RestartStore || fault.is_failover()), 0);
        case.paused = Windows::new(self.spans(|fault| fault == Fault::PauseStore), 0);

        let mut unpromised = clock;
        if !promises.durable {
            unpromised.extend(self.spans(|fault| fault == Fault::RestartStore));
        }
        for name in &setting.names {
            let (lost, two_primaries) = self.losses(promises.losses, name.part);
            case.lost.push(lost);
            case.two_primaries.push(two_primaries);
        }
        for revokes in &self.revokes {
            // An unanswered revoke takes effect before everything sent has arrived, or never.
            let until = |revoke: &Revoke| {
                let died = self.deaths.get(&revoke.worker).copied().unwrap_or(case.last);
                let sent = revoke.until.min(died.max(revoke.called));
                if revoke.answered { sent } else { case.settled(revoke.worker, sent).0 }
            };
            let revokes = revokes.iter().map(|revoke| Revoke { until: until(revoke), ..*revoke }).collect();
            case.revokes.push(Revokes::new(revokes, Windows::new(unpromised.clone(), 0), case.quorum()));
        }
        case
    }
}

/// Whether a fault delays requests, or their senders.
fn disturbs(fault: Fault) -> bool {
    !matches!(fault, Fault::None | Fault::Kill | Fault::ClockWorker | Fault::ClockStore)
}

/// Whether a fault may end a session before its holder knows. A stopped store ends none, nor does a full disk or
/// memory: a client that gives up a session for that knows it.
fn ends_sessions(fault: Fault) -> bool {
    let none = matches!(fault, Fault::Pause | Fault::PauseStore | Fault::DiskFull | Fault::Memory);
    disturbs(fault) && !none
}
