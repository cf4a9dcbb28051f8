//! What was the matter when: faults, stalls, revokes, and the ends of processes.

use std::collections::HashMap;

use super::case::{Case, SLACK};
use super::windows::Windows;
use crate::history::record::{Fault, Kind, Record};
use crate::history::setting::Setting;

/// How long after a fault it still explains that something took long: connections are made again, pauses between
/// tries have grown, places in queues are taken again.
const EXPLAINS: u64 = 2_000_000_000;

/// What was the matter, as it is noted.
pub(super) struct Matter {
    open: HashMap<(Fault, u64), Vec<u64>>,
    faults: Vec<(Fault, u64, u64)>,
    pub(super) stalls: Vec<(u64, u64)>,
    /// By name: spans, and whether they end leases at once.
    revokes: Vec<Vec<(u64, u64, bool)>>,
    /// The last moment a process can have lived.
    pub(super) deaths: HashMap<u32, u64>,
}

impl Matter {
    pub(super) fn new(names: usize) -> Self {
        Matter {
            open: HashMap::new(),
            faults: Vec::new(),
            stalls: Vec::new(),
            revokes: vec![Vec::new(); names],
            deaths: HashMap::new(),
        }
    }

    pub(super) fn note(&mut self, record: &Record) {
        let key = (record.fault, record.value);
        match record.kind {
            Kind::FaultBegin => self.open.entry(key).or_default().push(record.at),
            Kind::FaultEnd => {
                let begin = self.open.get_mut(&key).and_then(Vec::pop).unwrap_or(record.at);
                self.faults.push((record.fault, begin, record.at));
                if record.fault == Fault::Kill {
                    self.deaths.insert(record.value as u32, record.at);
                }
            }
            _ => self.stalls.push((record.value, record.at)),
        }
    }

    pub(super) fn revoke(&mut self, call: &Record, until: u64) {
        self.revokes[usize::from(call.name)].push((call.at, until, call.value == 1));
    }

    fn spans(&self, which: impl Fn(Fault) -> bool) -> Vec<(u64, u64)> {
        self.faults.iter().filter(|(fault, ..)| which(*fault)).map(|(_, from, to)| (*from, *to)).collect()
    }

    pub(super) fn case<'a>(&mut self, setting: &Setting, mut case: Case<'a>) -> Case<'a> {
        for ((fault, target), begins) in std::mem::take(&mut self.open) {
            if let (Fault::Kill, Some(begin)) = (fault, begins.first()) {
                self.deaths.insert(target as u32, begin.saturating_add(SLACK));
            }
            self.faults.extend(begins.into_iter().map(|begin| (fault, begin, u64::MAX)));
        }
        let promises = &setting.promises;
        let clock = self.spans(|fault| fault == Fault::ClockStore && !promises.steady);
        let mut disturbing = self.spans(disturbs);
        disturbing.extend(&self.stalls);
        // A step back prolongs leases, nobody knows for how long.
        disturbing.extend(clock.iter().map(|(from, _)| (*from, u64::MAX)));
        let longer = disturbing.iter().map(|(from, to)| (*from, to.saturating_add(EXPLAINS))).collect();
        case.explained = Windows::new(longer, 0);
        case.disturbed = Windows::new(disturbing, SLACK);
        case.restarts = Windows::new(self.spans(|fault| fault == Fault::RestartStore), 0);
        case.paused = Windows::new(self.spans(|fault| fault == Fault::PauseStore), 0);

        let within = promises.notices_within;
        let noticed = |(from, to): &(u64, u64)| (*from, to.saturating_add(within));
        // A store that stands still ends no session; a client that gives one up for that knows it.
        let ends = |fault| disturbs(fault) && !matches!(fault, Fault::Pause | Fault::PauseStore);
        let mut cut: Vec<_> = self.spans(ends).iter().map(noticed).collect();
        let cuts = Windows::new(cut.clone(), 0);
        // Who stands still meanwhile notices later.
        let mut still = self.spans(|fault| fault == Fault::Pause);
        still.extend(&self.stalls);
        cut.extend(still.iter().filter(|(from, to)| cuts.meets(*from, *to)).map(noticed));
        case.unnoticed = Windows::new(cut, 0);

        let mut unpromised = clock;
        if !promises.durable {
            unpromised.extend(self.spans(|fault| fault == Fault::RestartStore));
        }
        for revokes in &self.revokes {
            let mut ended = unpromised.clone();
            ended.extend(revokes.iter().filter(|(.., now)| *now).map(|(from, to, _)| (*from, *to)));
            case.ended.push(Windows::new(ended, 0));
            let mut answered: Vec<(u64, u64)> = revokes
                .iter()
                .filter(|(_, to, _)| *to != u64::MAX)
                .map(|(from, to, _)| (*from, *to))
                .collect();
            answered.sort_unstable();
            let mut first = u64::MAX;
            for (_, returned) in answered.iter_mut().rev() {
                first = first.min(*returned);
                *returned = first;
            }
            case.refusing.push(answered);
            case.revoked.push(Windows::new(revokes.iter().map(|(from, to, _)| (*from, *to)).collect(), 0));
        }
        case
    }
}

/// Whether a fault delays requests, or those who send them.
fn disturbs(fault: Fault) -> bool {
    !matches!(fault, Fault::None | Fault::Kill | Fault::ClockWorker | Fault::ClockStore)
}
