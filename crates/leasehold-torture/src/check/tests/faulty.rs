//! Histories of a correct lock while everything around it goes wrong: workers die, answers are lost, requests are
//! late, sessions end, leases are revoked. None is accused. Of a lock that lets every claim in, most are.

use super::notation::setting;
use super::random::Random;
use super::search::{Promises, explained};
use crate::check::Invariant::{I1, I2, I5, I6, I9, I12, I13};
use crate::check::{Invariant, Verdict, judge};
use crate::history::record::{Fault, Kind, Loss, Mode, Record, SESSION};

/// Times are in steps of this many nanoseconds: a message arrives within ten of them.
const STEP: u64 = 100_000_000;
const SLACK: u64 = 10;
const TTL: u64 = 30;
const NOTICES: u64 = 10;
const END: u64 = 400;

/// The length of the small histories, which are also searched.
const SMALL: u64 = 60;

/// How many steps a search may take; a longer one is not counted.
const STEPS: u64 = 10_000;

/// Of the histories without a valid order, this many in a hundred may go unnoticed.
const GAPS: u64 = 15;

fn histories() -> u64 {
    std::env::var("LEASEHOLD_CHECK_HISTORIES").ok().and_then(|many| many.parse().ok()).unwrap_or(4_000)
}

/// What reaches the store.
#[derive(Debug, Clone, Copy)]
enum Effect {
    Acquire { worker: usize, id: u64, mode: Mode },
    Renew { worker: usize, id: u64 },
    Release { worker: usize, id: u64 },
    Revoke { worker: usize, now: bool },
    EndSession { worker: usize },
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    worker: usize,
    id: u64,
    mode: Mode,
    ends: u64,
    revoked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// Does nothing until then.
    Rests(u64),
    /// Waits for an answer; until when, and what it called.
    Waits(u64, Kind),
    Holds,
    Dead,
}

#[derive(Debug)]
struct Worker {
    does: Does,
    claim: u64,
    mode: Mode,
    fence: u64,
    deadline: u64,
    sent: u64,
    /// The number of its last call.
    call: u64,
    /// Its route to the store is disturbed from the first moment until the second.
    fault: Option<(u64, u64)>,
    /// Its session has ended in the store; by then it knows.
    cut: Option<u64>,
    answer: Option<(u64, Kind, u64)>,
    history: Vec<Record>,
}

struct World<'a> {
    random: &'a mut Random,
    limit: u32,
    session: bool,
    /// Lets every claim in.
    broken: bool,
    fence: u64,
    leases: Vec<Lease>,
    workers: Vec<Worker>,
    /// When something arrives, and which call it belongs to.
    coming: Vec<(u64, u64, Effect)>,
    supervisor: Vec<Record>,
    end: u64,
}

fn id(worker: usize, claim: u64) -> u64 {
    (worker as u64 + 1) * 1000 + claim
}

impl World<'_> {
    fn write(&mut self, worker: usize, kind: Kind, at: u64, deadline: u64, value: u64) {
        let Worker { claim, mode, fence, history, .. } = &mut self.workers[worker];
        let call = kind == Kind::AcquireCall;
        let revoke = matches!(kind, Kind::RevokeCall | Kind::Revoked);
        let record = Record {
            claim: *claim,
            mode: *mode,
            lease: if call || revoke { 0 } else { id(worker, *claim) },
            fence: if call || revoke { 0 } else { *fence },
            deadline,
            value,
            // Records of one step are in the order in which they were written.
            at: at * STEP + history.len() as u64,
            ..Record::new(kind, worker as u32 + 1, 0)
        };
        history.push(record);
    }

    fn fault(&mut self, fault: Fault, worker: usize, from: u64, to: u64) {
        let value = worker as u64 + 1;
        let record =
            Record { fault, value, claim: value, ..Record::new(Kind::FaultBegin, 9_999, from * STEP) };
        let end = Record { kind: Kind::FaultEnd, at: to * STEP + STEP - 1, ..record };
        self.supervisor.extend([record, end]);
    }

    /// When a message sent now arrives: late during a disturbance.
    fn arrives(&mut self, worker: usize, now: u64) -> u64 {
        let soon = now + self.random.below(3);
        match self.workers[worker].fault {
            Some((_, to)) if self.random.below(2) == 0 => soon.max(to) + self.random.below(SLACK),
            _ => soon,
        }
    }

    fn send(&mut self, worker: usize, now: u64, kind: Kind, effect: Effect) {
        let at = self.arrives(worker, now);
        let patience = 12;
        let state = &mut self.workers[worker];
        state.call += 1;
        self.coming.push((at, state.call, effect));
        (state.does, state.sent, state.answer) = (Does::Waits(now + patience, kind), now, None);
    }

    fn admits(&self, mode: Mode) -> bool {
        self.broken
            || match mode {
                Mode::Exclusive => self.leases.is_empty(),
                Mode::Shared => self.leases.iter().all(|lease| lease.mode == Mode::Shared),
                Mode::Permit => self.leases.len() < self.limit as usize,
            }
    }

    fn happen(&mut self, now: u64, call: u64, effect: Effect) {
        let ends = if self.session { u64::MAX } else { now + TTL };
        let (worker, answer) = match effect {
            Effect::EndSession { worker } => {
                self.leases.retain(|lease| lease.worker != worker);
                return;
            }
            Effect::Acquire { worker, id, mode } => {
                let granted = self.admits(mode);
                if granted {
                    self.fence += 1;
                    self.leases.push(Lease { worker, id, mode, ends, revoked: false });
                }
                (worker, if granted { (Kind::Granted, self.fence) } else { (Kind::Busy, 0) })
            }
            Effect::Renew { worker, id } => {
                let lease = self.leases.iter_mut().find(|lease| lease.id == id && !lease.revoked);
                let kind = if lease.is_some() { Kind::Renewed } else { Kind::RenewRefused };
                if let Some(lease) = lease {
                    lease.ends = lease.ends.max(ends);
                }
                (worker, (kind, 0))
            }
            Effect::Release { worker, id } => {
                let before = self.leases.len();
                self.leases.retain(|lease| lease.id != id);
                let gone = self.leases.len() == before;
                (worker, (if gone { Kind::ReleasedNothing } else { Kind::Released }, 0))
            }
            Effect::Revoke { worker, now } => {
                self.leases.iter_mut().for_each(|lease| lease.revoked = true);
                self.leases.retain(|_| !now);
                (worker, (Kind::Revoked, 0))
            }
        };
        // During a disturbance an answer may be lost.
        let state = &self.workers[worker];
        let lost =
            state.fault.is_some_and(|(from, to)| from <= now && now <= to) && self.random.below(2) == 0;
        let late = matches!(state.does, Does::Waits(until, _) if now >= until);
        if !lost && !late && state.call == call && matches!(state.does, Does::Waits(..)) {
            self.workers[worker].answer = Some((now + self.random.below(3), answer.0, answer.1));
        }
    }

    fn step(&mut self, worker: usize, now: u64) {
        match self.workers[worker].does {
            Does::Dead => {}
            Does::Rests(until) => {
                if now >= until && now + self.end / 10 < self.end {
                    self.begin(worker, now);
                }
            }
            Does::Waits(until, kind) => match self.workers[worker].answer {
                Some((at, answer, fence)) if at <= now => self.answered(worker, now, answer, fence),
                _ if now >= until => self.unanswered(worker, now, kind),
                _ => {}
            },
            Does::Holds => self.hold(worker, now),
        }
    }

    fn begin(&mut self, worker: usize, now: u64) {
        self.workers[worker].claim += 1;
        if worker == 3 {
            let at_once = self.random.below(2) == 0;
            self.write(worker, Kind::RevokeCall, now, 0, u64::from(at_once));
            return self.send(worker, now, Kind::RevokeCall, Effect::Revoke { worker, now: at_once });
        }
        let mode = match self.random.below(3) {
            _ if self.limit > 0 => Mode::Permit,
            0 => Mode::Shared,
            _ => Mode::Exclusive,
        };
        self.workers[worker].mode = mode;
        let asked = if self.session { 0 } else { TTL * STEP };
        self.write(worker, Kind::AcquireCall, now, asked, 0);
        let id = id(worker, self.workers[worker].claim);
        self.send(worker, now, Kind::AcquireCall, Effect::Acquire { worker, id, mode });
    }

    fn rest(&mut self, worker: usize, now: u64) {
        let pause = if worker == 3 { 30 + self.random.below(60) } else { 1 + self.random.below(6) };
        self.workers[worker].does = Does::Rests(now + pause);
    }

    fn answered(&mut self, worker: usize, now: u64, answer: Kind, fence: u64) {
        let deadline = if self.session { SESSION } else { (self.workers[worker].sent + TTL) * STEP };
        let cut = self.workers[worker].cut.is_some();
        match answer {
            // A client knows that the session on which it asked is over.
            Kind::Granted if cut => {
                self.write(worker, Kind::AcquireFailed, now, 0, 0);
                self.give_back(worker, now);
                self.rest(worker, now);
            }
            Kind::Granted => {
                self.workers[worker].fence = fence;
                self.write(worker, answer, now, deadline, 0);
                (self.workers[worker].does, self.workers[worker].deadline) = (Does::Holds, deadline);
            }
            Kind::Renewed => {
                self.write(worker, answer, now, deadline, 0);
                (self.workers[worker].does, self.workers[worker].deadline) = (Does::Holds, deadline);
            }
            _ => {
                self.write(worker, answer, now, 0, 0);
                self.rest(worker, now);
            }
        }
    }

    /// Gives back what an acquire may have got; the release arrives no earlier than the acquire.
    fn give_back(&mut self, worker: usize, now: u64) {
        let id = id(worker, self.workers[worker].claim);
        let own = |effect: &Effect| matches!(effect, Effect::Acquire { id: other, .. } if *other == id);
        let arrives = self.coming.iter().find(|(.., effect)| own(effect)).map_or(now, |(at, ..)| *at);
        let at = self.arrives(worker, now).max(arrives);
        self.coming.push((at, 0, Effect::Release { worker, id }));
    }

    fn unanswered(&mut self, worker: usize, now: u64, kind: Kind) {
        let (kind, value) = match kind {
            Kind::AcquireCall => (Kind::AcquireFailed, 0),
            Kind::RenewCall => (Kind::RenewFailed, 0),
            Kind::ReleaseCall => (Kind::ReleaseFailed, 0),
            _ => (Kind::Revoked, 1),
        };
        self.write(worker, kind, now, 0, value);
        // What has been sent is in flight all the same.
        if kind == Kind::AcquireFailed {
            self.give_back(worker, now);
        }
        self.rest(worker, now);
    }

    fn hold(&mut self, worker: usize, now: u64) {
        let (claim, deadline) = (self.workers[worker].claim, self.workers[worker].deadline);
        let id = id(worker, claim);
        if self.session && self.workers[worker].cut.is_some_and(|by| now >= by) {
            self.write(worker, Kind::Lost, now, 0, Loss::Refused as u64);
            return self.rest(worker, now);
        }
        match self.random.below(8) {
            0 | 1 => {
                self.write(worker, Kind::ReleaseCall, now, 0, 0);
                self.send(worker, now, Kind::ReleaseCall, Effect::Release { worker, id });
            }
            2 | 3 if !self.session => {
                self.write(worker, Kind::RenewCall, now, 0, TTL * STEP);
                self.send(worker, now, Kind::RenewCall, Effect::Renew { worker, id });
            }
            4 | 5 if now * STEP + STEP < deadline => self.write(worker, Kind::Held, now, deadline, 0),
            _ => {}
        }
    }

    /// A disturbance begins for a worker, or ends.
    fn trouble(&mut self, worker: usize, now: u64) {
        let state = &mut self.workers[worker];
        if state.cut.is_some_and(|by| now > by) {
            state.cut = None;
        }
        if let Some((from, to)) = state.fault {
            if now > to {
                state.fault = None;
                self.fault(Fault::Blackhole, worker, from, to);
            } else if self.session && state.cut.is_none() && self.random.below(6) == 0 {
                self.coming.push((now, 0, Effect::EndSession { worker }));
                self.workers[worker].cut = Some(to.min(now + 3) + self.random.below(NOTICES - 4));
            }
            return;
        }
        if state.does == Does::Dead {
            return;
        }
        match self.random.below(150) {
            0 => {
                self.workers[worker].does = Does::Dead;
                self.fault(Fault::Kill, worker, now, now);
                if self.session {
                    // Together with what it had sent.
                    let own = |effect: &Effect| matches!(effect, Effect::Acquire { worker: other, .. } if *other == worker);
                    let sent = self.coming.iter().filter(|(.., effect)| own(effect)).map(|(at, ..)| *at);
                    let freed = sent.max().unwrap_or(0).max(now + self.random.below(SLACK));
                    self.coming.push((freed, 0, Effect::EndSession { worker }));
                }
            }
            1..12 => self.workers[worker].fault = Some((now, now + 1 + self.random.below(25))),
            _ => {}
        }
    }

    fn run(mut self) -> Vec<Vec<Record>> {
        for now in 0..self.end {
            self.leases.retain(|lease| lease.ends > now);
            for worker in 0..self.workers.len() {
                self.trouble(worker, now);
            }
            let coming = std::mem::take(&mut self.coming);
            let (come, later): (Vec<_>, Vec<_>) = coming.into_iter().partition(|(at, ..)| *at <= now);
            self.coming = later;
            come.into_iter().for_each(|(_, call, effect)| self.happen(now, call, effect));
            for worker in 0..self.workers.len() {
                self.step(worker, now);
            }
        }
        for worker in 0..self.workers.len() {
            if let Some((from, _)) = self.workers[worker].fault {
                self.fault(Fault::Blackhole, worker, from, self.end + SLACK);
            }
        }
        self.workers.into_iter().map(|worker| worker.history).chain([self.supervisor]).collect()
    }
}

fn is_session(seed: u64) -> bool {
    seed % 3 == 1
}

fn verdict(seed: u64, broken: bool, end: u64) -> (Verdict, Vec<Vec<Record>>) {
    let (limit, session) = (if seed.is_multiple_of(4) { 2 } else { 0 }, is_session(seed));
    let workers = if session { 3 } else { 4 };
    let worker = |place: u64| Worker {
        does: Does::Rests(1 + place * 2),
        claim: 0,
        mode: Mode::Exclusive,
        fence: 0,
        deadline: 0,
        sent: 0,
        call: 0,
        fault: None,
        cut: None,
        answer: None,
        history: Vec::new(),
    };
    let random = &mut Random(seed ^ 0xfa_0175);
    let world = World {
        random,
        limit,
        session,
        broken,
        fence: 0,
        leases: Vec::new(),
        workers: (0..workers).map(worker).collect(),
        coming: Vec::new(),
        supervisor: Vec::new(),
        end,
    };
    let histories = world.run();
    let mut setting = setting();
    setting.names.truncate(1);
    (setting.names[0].limit, setting.span) = (limit, (0, end * STEP));
    setting.promises.fifo = false;
    setting.promises.session = session;
    setting.promises.notices_within = if session { NOTICES * STEP } else { 0 };
    let mut verdict = judge(&setting, &histories);
    let of_order: &[Invariant] = &[I1, I2, I5, I6, I9, I12, I13, Invariant::History];
    verdict.violations.retain(|violation| of_order.contains(&violation.invariant));
    (verdict, histories)
}

#[test]
fn a_correct_lock_is_not_accused_whatever_goes_wrong() {
    for seed in 0..histories() {
        let (verdict, histories) = verdict(seed, false, END);
        let told: Vec<_> = verdict.violations.iter().map(ToString::to_string).collect();
        let faults: Vec<_> = histories.last().into_iter().flatten().collect();
        assert!(told.is_empty(), "seed {seed}: {}\n{faults:#?}", told.join("\n"));
    }
}

#[test]
fn a_lock_that_admits_everyone_is_accused_whatever_goes_wrong() {
    let many = histories() / 4;
    // Histories with sessions, and histories with a ttl and revokes: some end before two holders can have met.
    for (session, percent) in [(true, 55), (false, 75)] {
        let seeds: Vec<u64> = (0..many).filter(|seed| is_session(*seed) == session).collect();
        let accused = seeds.iter().filter(|seed| !verdict(**seed, true, END).0.violations.is_empty()).count();
        println!("{accused} of {} are accused, sessions: {session}", seeds.len());
        assert!(accused * 100 >= seeds.len() * percent, "only {accused} of {}", seeds.len());
    }
}

/// What the search finds, and what the checker says about the same small history.
fn both(seed: u64, broken: bool) -> (Option<bool>, Vec<Invariant>, String) {
    let (verdict, histories) = verdict(seed, broken, SMALL);
    let session = is_session(seed);
    let promises = Promises { arrives: SLACK * STEP, notices: session.then_some(NOTICES * STEP) };
    let right = explained(&histories, if seed.is_multiple_of(4) { 2 } else { 0 }, promises, STEPS);
    // Possible holders are another question (I13): the search lets an unknown acquire hold for ever.
    let accused = verdict.violations.iter().filter(|violation| violation.invariant != I13);
    let told: String = accused.clone().map(|violation| format!("{violation}\n")).collect();
    (right, accused.map(|violation| violation.invariant).collect(), told)
}

#[test]
fn search_and_checker_agree_among_faults_and_revokes() {
    let (mut bad, mut missed, mut unknown) = ([0_u64; 2], [0_u64; 2], 0);
    let many = histories() / 16;
    for (seed, broken) in (0..many).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (right, accused, told) = both(seed, broken);
        assert!(
            broken || right != Some(false),
            "seed {seed}: the search finds no order for a lock that is right"
        );
        assert!(right != Some(true) || accused.is_empty(), "seed {seed} is accused without reason: {told}");
        unknown += u64::from(right.is_none());
        if right == Some(false) {
            let kind = usize::from(is_session(seed));
            bad[kind] += 1;
            missed[kind] += u64::from(accused.is_empty());
        }
    }
    println!("without an order, by ttl and by session: {bad:?}, missed {missed:?}; {unknown} not found out");
    assert!(bad.iter().all(|bad| *bad * 10 > many / 4), "too few have no order: {bad:?}");
    assert!(unknown * 5 < many * 2, "{unknown} of {} take too long", many * 2);
    for (bad, missed) in bad.into_iter().zip(missed) {
        assert!(missed * 100 <= bad * GAPS, "{missed} of {bad} were missed");
    }
}
