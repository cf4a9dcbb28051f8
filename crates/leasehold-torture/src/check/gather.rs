//! Puts a run together from its records: acquires, leases, and disturbances with their times.

use std::collections::HashMap;

use super::case::{Acquire, Around, Case, Court, Lease, Lock, Outcome, SLACK};
use super::matter::Matter;
use super::possible::{alone, come_back, likely, passed, possible, possible_of_acquire};
use super::queue;
use super::revokes::Revokes;
use super::windows::Windows;
use crate::history::record::{Face, Kind, Loss, Mode, Record, SESSION};
use crate::history::setting::{Losses, Setting};

pub(super) fn gather<'a>(setting: &'a Setting, histories: &[Vec<Record>]) -> (Case<'a>, Court) {
    let mut court = Court::default();
    let mut matter = Matter::new(setting);
    let mut records = Vec::new();
    let (mut resource, mut left) = (Vec::new(), Vec::new());
    let mut last = 0;
    let mut lists = vec![Vec::new(); setting.names.len()];
    for history in histories {
        let mut revokes: HashMap<(u32, u16), Record> = HashMap::new();
        let mut reader = queue::Reader::default();
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
                Kind::ListCall | Kind::Waiting | Kind::Listed => {
                    lists[usize::from(record.name)].extend(reader.read(record));
                }
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
            lost: Vec::new(),
            two_primaries: Vec::new(),
            revokes: Vec::new(),
            lists,
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
    // The acquires with an id that the caller chose, before one of them was answered.
    for acquire in &mut case.acquires {
        let chosen = case.records[acquire.op as usize].lease;
        let open = acquire.lease.is_none() && acquire.outcome != Outcome::Busy;
        if let Some(lease) = by_id.get(&(acquire.name, chosen)).filter(|_| open && chosen != 0) {
            acquire.lease = Some(*lease);
            case.leases[*lease].ops.push(acquire.op);
            case.leases[*lease].called = case.leases[*lease].called.min(acquire.called);
            // It is unknown since when it was queued.
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
            // A closed client whose acquire was not granted.
            None if record.kind == Kind::Closed => {}
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
        fold(lease, &case.records, case.revokes(lease), struck, session);
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
    use Kind::{AcquireCall, AcquireDropped, AcquireFailed, Busy, Granted, Missing};
    matches!(kind, AcquireCall | AcquireDropped | AcquireFailed | Busy | Granted | Missing)
}

/// Reads the calls to acquire, and opens the leases they got.
fn acquires(
    case: &mut Case<'_>,
    court: &mut Court,
    deaths: &HashMap<u32, u64>,
    by_id: &mut HashMap<(u16, u64), usize>,
    by_claim: &mut HashMap<(u32, u64), usize>,
) {
    let mut open: Option<usize> = None;
    let mut last: Option<usize> = None;
    let mut before: Option<Record> = None;
    for (place, record) in case.records.iter().enumerate() {
        let same = |other: &Record| (other.worker, other.claim) == (record.worker, record.claim);
        match before.filter(same) {
            None => (open, last) = (None, None),
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
                last = open;
                case.acquires.push(Acquire {
                    name: record.name,
                    mode: record.mode,
                    worker: record.worker,
                    called: record.at,
                    wait: record.value,
                    multi: record.fence == Face::Multi as u64,
                    ttl: record.deadline,
                    outcome: Outcome::Unknown,
                    returned: deaths.get(&record.worker).copied().unwrap_or(u64::MAX),
                    lease: None,
                    closed: None,
                    op: place as u32,
                    possible: u64::MAX,
                });
                continue;
            }
            Kind::Granted => Outcome::Granted,
            Kind::Busy => Outcome::Busy,
            Kind::AcquireFailed => Outcome::Failed,
            Kind::AcquireDropped => Outcome::Dropped,
            Kind::Missing => Outcome::Missing,
            Kind::Closed => {
                if let Some(last) = last {
                    case.acquires[last].closed = Some(record.at);
                }
                continue;
            }
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
        // It is unknown since when one of several names was waited for.
        wait: if acquire.multi { 0 } else { acquire.wait },
        from: record.at,
        ttl: 0,
        believes: false,
        believed: record.at,
        deadline: 0,
        downgraded: None,
        shared_by: u64::MAX,
        shortened: None,
        closed: None,
        release_called: None,
        gone: None,
        lost: None,
        revoked: false,
        kept: u64::MAX,
        uncertain: u64::MAX,
        possible: u64::MAX,
        likely: u64::MAX,
    }
}

/// Single calls slower than this are looked at one by one; there are few of them.
const SLOW: u64 = 20_000_000;

/// The operations that are one call to the store each, made while nothing was disturbed: when they were made, and when
/// they returned.
fn single_calls(case: &Case<'_>) -> Vec<(u64, u64)> {
    let answered = |acquire: &&Acquire| {
        acquire.wait == 0 && !acquire.multi && matches!(acquire.outcome, Outcome::Granted | Outcome::Busy)
    };
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

/// Applies the records of a lease, one after the other. The end of a session comes from the client's own end of it:
/// its holder knows at once, and the store frees the lock when it hears of it.
fn fold(lease: &mut Lease, records: &[Record], revokes: &Revokes, struck: &Windows, session: bool) {
    // The ttl that the last shortening asked for.
    let mut shorter = 0;
    let mut granted = false;
    for place in 0..lease.ops.len() {
        let Record { kind, mode, at, deadline, value, fence, worker, .. } =
            records[lease.ops[place] as usize];
        let over = lease.release_called.is_some() || lease.lost.is_some();
        if granted && (mode, lease.mode) == (Mode::Shared, Mode::Exclusive) && kind != Kind::AcquireCall {
            lease.downgraded.get_or_insert(at);
        }
        match kind {
            Kind::AcquireCall => lease.ttl = lease.ttl.max(deadline),
            Kind::Granted if !granted => {
                granted = true;
                (lease.from, lease.mode, lease.fence, lease.worker) = (at, mode, fence, worker);
                // A deadline in the past is only the moment at which the loss was noticed.
                lease.believes = deadline > at;
                (lease.believed, lease.deadline) = (at, if lease.believes { deadline } else { lease.called });
            }
            Kind::Granted | Kind::Held | Kind::Renewed | Kind::Adopted if !over && deadline > at => {
                lease.believed = lease.believed.max(at);
                lease.believes = true;
                lease.deadline = deadline;
            }
            // The store may shorten the lease at any moment from now on.
            Kind::ShortenCall if lease.deadline != SESSION => {
                lease.deadline = lease.deadline.min(at.saturating_add(value));
                shorter = value;
            }
            Kind::Shortened if deadline != SESSION && deadline <= at.saturating_add(shorter) => {
                lease.shortened = Some(shorter);
                if !over && deadline > at {
                    lease.deadline = deadline;
                }
            }
            Kind::ShortenFailed => lease.shortened = None,
            Kind::RenewCall | Kind::AdoptCall if lease.ttl != 0 && value != u64::MAX => {
                lease.ttl = lease.ttl.max(value);
                lease.shortened = lease.shortened.filter(|shortened| value <= *shortened);
            }
            Kind::Downgraded => lease.shared_by = at,
            Kind::Closed => lease.closed = Some(at),
            Kind::Lost | Kind::RenewRefused | Kind::AdoptRefused => {
                let why = match kind {
                    Kind::Lost => Loss::ALL.get(value as usize).copied().unwrap_or(Loss::Other),
                    _ => Loss::Refused,
                };
                lease.lost.get_or_insert((at, why));
                if why == Loss::Refused {
                    // A revoked lease is refused, and lasts until its time is over.
                    lease.revoked |= revokes.revoked(lease, at);
                    if !lease.revoked && !session {
                        lease.gone.get_or_insert(at);
                    }
                }
            }
            Kind::ReleaseCall => drop(lease.release_called.get_or_insert(at)),
            // A release that was retried after its session had ended did nothing the second time.
            Kind::Released if session && struck.meets(lease.release_called.unwrap_or(at), at) => {}
            Kind::Released => drop(lease.gone.get_or_insert(at)),
            Kind::ReleasedNothing if !session => drop(lease.gone.get_or_insert(at)),
            _ => {}
        }
    }
}

/// Finds from when on the hold is uncertain, whatever its holder believed.
fn surely(lease: &mut Lease, case: &Case<'_>) {
    if let Some(begin) = case.revokes(lease).ended(lease) {
        lease.uncertain = begin.max(lease.called);
    }
    if case.setting.promises.losses == Losses::Latest {
        for (begin, end) in case.lost[usize::from(lease.name)].iter() {
            // Later answers came from the next primary.
            if end < lease.called || lease.from > end.saturating_add(SLACK) {
                continue;
            }
            // What its holder had learned before is not lost.
            let before = lease.ops.iter().map(|op| &case.records[*op as usize]).filter(|op| op.at < begin);
            let answers = before.filter(|op| matches!(op.kind, Kind::Granted | Kind::Held | Kind::Renewed));
            let kept = answers.map(|op| op.deadline).max().unwrap_or(0);
            lease.kept = lease.kept.min(begin.max(lease.called).max(kept));
        }
    }
    lease.uncertain = lease.uncertain.min(lease.kept);
    if lease.deadline == SESSION {
        // A look after such a span shows that the lease was held all along.
        let end = lease.end().max(lease.believed);
        if let Some((begin, _)) = case.around(lease.worker).unnoticed.meeting(lease.believed, end) {
            lease.uncertain = lease.uncertain.min(begin.max(lease.called));
        }
    }
}
