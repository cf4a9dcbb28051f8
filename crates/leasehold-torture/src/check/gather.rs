//! Puts a run together from its records: acquires, leases, and what was the matter when.

use std::collections::HashMap;

use super::case::{Acquire, Around, Case, Court, Lease, Lock, Outcome, SLACK};
use super::matter::Matter;
use super::windows::Windows;
use crate::history::record::{Kind, Loss, Mode, Record, SESSION};
use crate::history::setting::{Losses, Setting};

pub(super) fn gather<'a>(setting: &'a Setting, histories: &[Vec<Record>]) -> (Case<'a>, Court) {
    let mut court = Court::default();
    let mut matter = Matter::new(setting);
    let mut records = Vec::new();
    let (mut resource, mut left) = (Vec::new(), Vec::new());
    let mut last = 0;
    for history in histories {
        let mut revokes: HashMap<(u32, u16), Record> = HashMap::new();
        for record in history {
            last = last.max(record.at);
            if usize::from(record.name) >= setting.names.len() {
                court.contradiction(format!(
                    "worker {} names lock {}, which there is not",
                    record.worker, record.name
                ));
                continue;
            }
            match record.kind {
                Kind::FaultBegin | Kind::FaultEnd | Kind::Stall => matter.note(record),
                Kind::Left => left.push(*record),
                Kind::FencedWrite | Kind::UnfencedWrite => resource.push(*record),
                Kind::Begin => {}
                Kind::End => drop(matter.deaths.insert(record.worker, record.at)),
                Kind::RevokeCall => drop(revokes.insert((record.worker, record.task), *record)),
                Kind::Revoked => match revokes.remove(&(record.worker, record.task)) {
                    Some(call) => matter.revoke(&call, Some(record)),
                    None => {
                        court.contradiction(format!("worker {} has Revoked without a call", record.worker))
                    }
                },
                _ => records.push(*record),
            }
        }
        revokes.values().for_each(|call| matter.revoke(call, None));
    }
    records.sort_by_key(|record| (record.worker, record.claim));
    let stalls = matter.stalls.len() as u64;
    let mut case = matter.case(
        setting,
        Case {
            setting,
            records,
            leases: Vec::new(),
            acquires: Vec::new(),
            locks: setting.names.iter().map(|name| Lock { limit: name.limit, ..Lock::default() }).collect(),
            around: HashMap::new(),
            anybody: Around::default(),
            faults: Vec::new(),
            restarts: Windows::default(),
            paused: Windows::default(),
            ended: Vec::new(),
            lost: Vec::new(),
            two_primaries: Vec::new(),
            revoked: Vec::new(),
            refusing: Vec::new(),
            resource,
            left,
            stalls,
            calls: Vec::new(),
            slow: Vec::new(),
            last,
        },
    );
    put_together(&mut case, &mut court, &matter.deaths);
    (case, court)
}

fn put_together(case: &mut Case<'_>, court: &mut Court, deaths: &HashMap<u32, u64>) {
    let mut by_id: HashMap<(u16, u64), usize> = HashMap::new();
    let mut by_claim: HashMap<(u32, u64), usize> = HashMap::new();
    acquires(case, court, deaths, &mut by_id, &mut by_claim);
    // The acquires of an id that the caller chose before one of them was answered.
    for acquire in &mut case.acquires {
        let chosen = case.records[acquire.op as usize].lease;
        let open = acquire.lease.is_none() && acquire.outcome != Outcome::Busy;
        if let Some(lease) = by_id.get(&(acquire.name, chosen)).filter(|_| open && chosen != 0) {
            acquire.lease = Some(*lease);
            case.leases[*lease].ops.push(acquire.op);
            case.leases[*lease].called = case.leases[*lease].called.min(acquire.called);
            // Nobody knows since when it stood in the queue.
            case.leases[*lease].wait = 0;
        }
    }
    for place in 0..case.records.len() {
        let record = case.records[place];
        if is_acquire(record.kind) {
            continue;
        }
        let lease =
            by_claim.get(&(record.worker, record.claim)).or_else(|| by_id.get(&(record.name, record.lease)));
        match lease {
            Some(lease) => case.leases[*lease].ops.push(place as u32),
            None => court.contradiction(format!(
                "worker {} has {:?} without a grant, claim {}",
                record.worker, record.kind, record.claim
            )),
        }
    }
    let mut calls: HashMap<(u32, u16), Vec<u64>> = HashMap::new();
    for record in case.records.iter().filter(|record| record.kind == Kind::AcquireCall) {
        calls.entry((record.worker, record.task)).or_default().push(record.at);
    }
    calls.values_mut().for_each(|calls| calls.sort_unstable());
    let mut leases = std::mem::take(&mut case.leases);
    for lease in &mut leases {
        lease.ops.sort_by_key(|op| (case.records[*op as usize].at, *op));
        let session = case.setting.promises.session;
        let struck = &case.around(lease.worker).struck;
        fold(lease, &case.records, &case.revoked[usize::from(lease.name)], struck, session);
        surely(lease, case);
        lease.possible = possible(lease, case, deaths, &calls);
        lease.likely = likely(lease, deaths);
    }
    case.leases = leases;
    for acquire in 0..case.acquires.len() {
        case.acquires[acquire].possible = possible_of_acquire(&case.acquires[acquire], case, deaths);
    }
    let alone = alone(case);
    passed(case, deaths, &alone);
    come_back(case, &alone);
    let calls = single_calls(case);
    case.slow = calls.iter().copied().filter(|(called, returned)| returned - called > SLOW).collect();
    case.calls = calls.into_iter().map(|(called, returned)| returned - called).collect();
    case.calls.sort_unstable();
    let fenced = case.fenced();
    for (place, lease) in case.leases.iter().enumerate() {
        case.locks[usize::from(lease.name)].leases.push(place);
    }
    for (place, acquire) in case.acquires.iter().enumerate() {
        case.locks[usize::from(acquire.name)].acquires.push(place);
    }
    for lock in &mut case.locks {
        let key = |lease: &Lease| if fenced { (lease.fence, lease.from) } else { (lease.from, lease.called) };
        lock.leases.sort_by_key(|lease| key(&case.leases[*lease]));
        lock.acquires.sort_by_key(|acquire| case.acquires[*acquire].called);
    }
}

fn is_acquire(kind: Kind) -> bool {
    use Kind::{AcquireCall, AcquireDropped, AcquireFailed, Busy, Granted};
    matches!(kind, AcquireCall | AcquireDropped | AcquireFailed | Busy | Granted)
}

/// Reads the calls to acquire, and opens the leases that came of them.
fn acquires(
    case: &mut Case<'_>,
    court: &mut Court,
    deaths: &HashMap<u32, u64>,
    by_id: &mut HashMap<(u16, u64), usize>,
    by_claim: &mut HashMap<(u32, u64), usize>,
) {
    let mut open: Option<usize> = None;
    let mut before: Option<Record> = None;
    for (place, record) in case.records.iter().enumerate() {
        let same = |other: &Record| (other.worker, other.claim) == (record.worker, record.claim);
        match before.filter(same) {
            None => open = None,
            Some(before) if before.at > record.at => court.contradiction(format!(
                "worker {} wrote {:?} of claim {} after {:?}, but with an earlier time",
                record.worker, record.kind, record.claim, before.kind
            )),
            Some(_) => {}
        }
        before = Some(*record);
        let outcome = match record.kind {
            Kind::AcquireCall => {
                open = Some(case.acquires.len());
                case.acquires.push(Acquire {
                    name: record.name,
                    mode: record.mode,
                    worker: record.worker,
                    called: record.at,
                    wait: record.value,
                    ttl: record.deadline,
                    outcome: Outcome::Unknown,
                    returned: deaths.get(&record.worker).copied().unwrap_or(u64::MAX),
                    lease: None,
                    op: place as u32,
                    possible: u64::MAX,
                });
                continue;
            }
            Kind::Granted => Outcome::Granted,
            Kind::Busy => Outcome::Busy,
            Kind::AcquireFailed => Outcome::Failed,
            Kind::AcquireDropped => Outcome::Dropped,
            _ => continue,
        };
        let Some(number) = open.take() else {
            court.contradiction(format!(
                "worker {} has {:?} without a call, claim {}",
                record.worker, record.kind, record.claim
            ));
            continue;
        };
        let acquire = &mut case.acquires[number];
        (acquire.outcome, acquire.returned) = (outcome, record.at);
        if outcome != Outcome::Granted {
            continue;
        }
        if record.lease == 0 {
            court.contradiction(format!("worker {} was granted a lease without an id", record.worker));
        }
        let lease = *by_id.entry((record.name, record.lease)).or_insert_with(|| {
            case.leases.push(opened(acquire, record));
            case.leases.len() - 1
        });
        by_claim.insert((record.worker, record.claim), lease);
        acquire.lease = Some(lease);
        case.leases[lease].ops.extend([acquire.op, place as u32]);
    }
}

fn opened(acquire: &Acquire, record: &Record) -> Lease {
    Lease {
        name: record.name,
        mode: record.mode,
        worker: record.worker,
        fence: record.fence,
        ops: Vec::new(),
        called: acquire.called,
        wait: acquire.wait,
        from: record.at,
        ttl: 0,
        believes: false,
        believed: record.at,
        deadline: 0,
        downgraded: None,
        release_called: None,
        gone: None,
        lost: None,
        revoked: false,
        uncertain: u64::MAX,
        possible: u64::MAX,
        likely: u64::MAX,
    }
}

/// Which single calls are worth looking at one by one: far fewer than there are.
const SLOW: u64 = 20_000_000;

/// The calls that are one call to the store each, while nothing was the matter: when they were made, and when they returned.
fn single_calls(case: &Case<'_>) -> Vec<(u64, u64)> {
    let answered =
        |acquire: &&Acquire| acquire.wait == 0 && matches!(acquire.outcome, Outcome::Granted | Outcome::Busy);
    let tries = case
        .acquires
        .iter()
        .filter(answered)
        .map(|acquire| (acquire.worker, acquire.called, acquire.returned));
    let is_answer = |record: &Record| matches!(record.kind, Kind::Renewed | Kind::Released);
    let is_call = |record: &Record| matches!(record.kind, Kind::RenewCall | Kind::ReleaseCall);
    let pairs = case.records.windows(2).filter(|pair| is_call(&pair[0]) && is_answer(&pair[1]));
    let calls = tries.chain(pairs.map(|pair| (pair[0].worker, pair[0].at, pair[1].at)));
    let calm =
        calls.filter(|(worker, called, returned)| !case.around(*worker).disturbed.meets(*called, *returned));
    calm.map(|(_, called, returned)| (called, returned.max(called))).collect()
}

/// What its records say of a lease, one after the other. That a session has ended is the word of its own end: its holder is
/// told at once, and the store frees the lock when it hears of it.
fn fold(lease: &mut Lease, records: &[Record], revoked: &Windows, struck: &Windows, session: bool) {
    let mut granted = false;
    for op in &lease.ops {
        let Record { kind, mode, at, deadline, value, fence, worker, .. } = records[*op as usize];
        let over = lease.release_called.is_some() || lease.lost.is_some();
        if granted && (mode, lease.mode) == (Mode::Shared, Mode::Exclusive) && kind != Kind::AcquireCall {
            lease.downgraded.get_or_insert(at);
        }
        match kind {
            Kind::AcquireCall => lease.ttl = lease.ttl.max(deadline),
            Kind::Granted if !granted => {
                granted = true;
                (lease.from, lease.mode, lease.fence, lease.worker) = (at, mode, fence, worker);
                // One that has passed is only the moment at which that was noticed.
                lease.believes = deadline > at;
                (lease.believed, lease.deadline) = (at, if lease.believes { deadline } else { lease.called });
            }
            Kind::Granted | Kind::Held | Kind::Renewed if !over && deadline > at => {
                lease.believed = lease.believed.max(at);
                lease.believes = true;
                lease.deadline = deadline;
            }
            Kind::RenewCall if lease.ttl != 0 && value != u64::MAX => lease.ttl = lease.ttl.max(value),
            Kind::Lost | Kind::RenewRefused => {
                let why = match kind {
                    Kind::Lost => Loss::ALL.get(value as usize).copied().unwrap_or(Loss::Other),
                    _ => Loss::Refused,
                };
                lease.lost.get_or_insert((at, why));
                if why == Loss::Refused {
                    // One that is revoked is refused, and there until its time is over.
                    lease.revoked |= revoked.meets(lease.called, at);
                    if !lease.revoked && !session {
                        lease.gone.get_or_insert(at);
                    }
                }
            }
            Kind::ReleaseCall => drop(lease.release_called.get_or_insert(at)),
            // One that was tried again when its session had ended did nothing the second time.
            Kind::Released if session && struck.meets(lease.release_called.unwrap_or(at), at) => {}
            Kind::Released => drop(lease.gone.get_or_insert(at)),
            Kind::ReleasedNothing if !session => drop(lease.gone.get_or_insert(at)),
            _ => {}
        }
    }
}

/// From when on its hold is uncertain, whatever its holder believed.
fn surely(lease: &mut Lease, case: &Case<'_>) {
    if let Some((begin, _)) = case.ended[usize::from(lease.name)].from(lease.called) {
        lease.uncertain = begin.max(lease.called);
    }
    if case.setting.promises.losses == Losses::Latest {
        for (begin, end) in case.lost[usize::from(lease.name)].iter() {
            // What was answered later is the next primary's.
            if end < lease.called || lease.from > end.saturating_add(SLACK) {
                continue;
            }
            // What its holder had been told before is not lost.
            let before = lease.ops.iter().map(|op| &case.records[*op as usize]).filter(|op| op.at < begin);
            let answers = before.filter(|op| matches!(op.kind, Kind::Granted | Kind::Held | Kind::Renewed));
            let kept = answers.map(|op| op.deadline).max().unwrap_or(0);
            lease.uncertain = lease.uncertain.min(begin.max(lease.called).max(kept));
        }
    }
    if lease.deadline == SESSION {
        // A look after such a time shows that it was held all along.
        let end = lease.end().max(lease.believed);
        if let Some((begin, _)) = case.around(lease.worker).unnoticed.meeting(lease.believed, end) {
            lease.uncertain = lease.uncertain.min(begin.max(lease.called));
        }
    }
}

fn died(worker: u32, case: &Case<'_>, deaths: &HashMap<u32, u64>) -> u64 {
    deaths.get(&worker).copied().unwrap_or(case.last)
}

/// When a lease is likely to have ended.
fn likely(lease: &Lease, deaths: &HashMap<u32, u64>) -> u64 {
    let released = lease.release_called.unwrap_or(u64::MAX);
    if lease.deadline != SESSION {
        return released.min(lease.deadline);
    }
    let lost = lease.lost.map_or(u64::MAX, |(at, _)| at);
    let died = deaths.get(&lease.worker).copied().unwrap_or(lease.believed);
    if released.min(lost) == u64::MAX { died.max(lease.believed) } else { released.min(lost) }
}

/// Until when a lease can have held the lock.
fn possible(
    lease: &Lease,
    case: &Case<'_>,
    deaths: &HashMap<u32, u64>,
    calls: &HashMap<(u32, u16), Vec<u64>>,
) -> u64 {
    if let Some(gone) = lease.gone {
        // Of a quorum it is a majority that said so; the others follow.
        return match case.settled(lease.worker, gone) {
            _ if !case.quorum() => gone,
            (by, true) => by,
            (by, false) => by.saturating_add(lease.ttl),
        };
    }
    let Some(last) = lease.ops.last().map(|op| case.records[*op as usize]) else { return u64::MAX };
    // It may have gone to another process.
    let mut died = died(lease.worker, case, deaths).max(died(last.worker, case, deaths));
    // A task that makes another acquire has left it to expire.
    if let Some(calls) = calls.get(&(last.worker, last.task)) {
        died = calls.get(calls.partition_point(|call| *call <= last.at)).map_or(died, |call| died.min(*call));
    }
    let last_sent = lease.release_called.or(lease.lost.map(|(at, _)| at)).unwrap_or(died);
    let (by, calm) = case.settled(last.worker, last_sent);
    if calm && lease.release_called.is_some() && died > by {
        return by;
    }
    // A renewal may have been the last thing to arrive.
    match (lease.deadline, lease.ttl) {
        (SESSION, _) => by.saturating_add(case.setting.promises.notices_within),
        (_, 0) => u64::MAX,
        (_, ttl) => by.saturating_add(ttl),
    }
}

/// By name: calls of those who were let in alone, and the first answer to any of so many of the last of them.
type Alone = HashMap<u16, Vec<(u64, u64)>>;

fn alone(case: &Case<'_>) -> Alone {
    let mut alone: HashMap<u16, Vec<(u64, u64)>> = HashMap::new();
    for lease in case.leases.iter().filter(|lease| lease.mode == Mode::Exclusive) {
        alone.entry(lease.name).or_default().push((lease.called, lease.from));
    }
    for calls in alone.values_mut() {
        calls.sort_unstable();
        let mut first = u64::MAX;
        for (_, answered) in calls.iter_mut().rev() {
            first = first.min(*answered);
            *answered = first;
        }
    }
    alone
}

/// When the first was answered that was let in alone and had called after a moment.
fn first_alone(alone: &Alone, name: u16, moment: u64) -> Option<u64> {
    let calls = alone.get(&name)?;
    calls.get(calls.partition_point(|(called, _)| *called <= moment)).map(|(_, answered)| *answered)
}

/// What a fail-over has lost the end of may be back, until its time is over or somebody is let in alone.
fn come_back(case: &mut Case<'_>, alone: &Alone) {
    let ticket = case.setting.promises.ticket;
    let until = |name: u16, from: u64, to: u64, ttl: u64| {
        let (_, end) = case.lost[usize::from(name)].iter().take_while(|(begin, _)| *begin <= to).last()?;
        let over = end.saturating_add(SLACK + ttl.max(ticket));
        (end >= from).then(|| over.min(first_alone(alone, name, end).unwrap_or(u64::MAX)))
    };
    let leases = case.leases.iter().map(|lease| {
        let ended = lease.gone.or(lease.release_called).unwrap_or(lease.possible);
        until(lease.name, lease.called, ended, lease.ttl)
    });
    let leases: Vec<_> = leases.collect();
    let acquires =
        case.acquires.iter().map(|one| until(one.name, one.called, one.returned.min(one.possible), one.ttl));
    let acquires: Vec<_> = acquires.collect();
    for (lease, until) in case.leases.iter_mut().zip(leases) {
        lease.possible = lease.possible.max(until.unwrap_or(0));
    }
    for (acquire, until) in case.acquires.iter_mut().zip(acquires) {
        acquire.possible = acquire.possible.max(until.unwrap_or(0));
    }
}

/// Who was let in alone shows that nothing is left of an acquire that had arrived before it called: neither a lease nor a
/// place in the queue, which would have been before its own.
fn passed(case: &mut Case<'_>, deaths: &HashMap<u32, u64>, alone: &Alone) {
    if case.quorum() {
        return;
    }
    for number in 0..case.acquires.len() {
        let acquire = &case.acquires[number];
        if acquire.lease.is_some() || matches!(acquire.outcome, Outcome::Granted) {
            continue;
        }
        let died = died(acquire.worker, case, deaths);
        let (by, _) = case.settled(acquire.worker, acquire.returned.min(died.max(acquire.called)));
        if let Some(answered) = first_alone(alone, acquire.name, by) {
            let possible = acquire.possible.min(answered.max(by));
            case.acquires[number].possible = possible;
        }
    }
}

/// Until when an acquire can have held the lock or a place in its queue.
fn possible_of_acquire(acquire: &Acquire, case: &Case<'_>, deaths: &HashMap<u32, u64>) -> u64 {
    // An attempt of one that waits may have been granted, and given back, before the one that it returned with.
    let again =
        acquire.wait > 0 && case.around(acquire.worker).disturbed.meets(acquire.called, acquire.returned);
    if (acquire.outcome == Outcome::Granted && !again)
        || (acquire.outcome, acquire.wait) == (Outcome::Busy, 0)
    {
        return acquire.returned;
    }
    let died = died(acquire.worker, case, deaths);
    let (by, calm) = case.settled(acquire.worker, acquire.returned.min(died.max(acquire.called)));
    if calm && acquire.outcome != Outcome::Unknown && died > by {
        return by;
    }
    let promises = &case.setting.promises;
    match (promises.session, acquire.ttl) {
        (true, _) => by.saturating_add(promises.notices_within.max(promises.ticket)),
        (_, 0) => u64::MAX,
        (_, ttl) => by.saturating_add(ttl.max(promises.ticket)),
    }
}
