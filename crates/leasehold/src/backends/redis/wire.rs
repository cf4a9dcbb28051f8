//! What goes into the scripts, and what their answers mean.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::scripts::{self, Call};
use super::{fault, keys};
use crate::backend::{
    Attempt, Busy, Claim, Gone, Grant, HolderInfo, Mode, NameInfo, Release, Released, Renewal, Renewed,
    Revoked, Swept, WaiterInfo,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

/// The longest time a script is told, 31 years in microseconds: sums with the clock stay below 2^53.
const LONGEST: u64 = 1_000_000_000_000_000;

/// Microseconds, rounded up: stores never cut a lease short.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX).min(LONGEST)
}

fn number(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn flag(flag: bool) -> Vec<u8> {
    number(flag.into())
}

fn option<T>(value: Option<T>, write: impl FnOnce(T) -> Vec<u8>) -> Vec<u8> {
    value.map(write).unwrap_or_default()
}

fn mode(mode: Mode) -> Vec<u8> {
    match mode {
        Mode::Exclusive => b"x".to_vec(),
        Mode::Shared => b"s".to_vec(),
        Mode::Permit { limit } => format!("p{limit}").into_bytes(),
    }
}

fn read_mode(text: &str) -> Result<Mode> {
    match text {
        "x" | "rw" => Ok(Mode::Exclusive),
        "s" => Ok(Mode::Shared),
        _ => match text.strip_prefix('p').and_then(|limit| limit.parse().ok()) {
            Some(limit) => Ok(Mode::Permit { limit }),
            None => Err(fault::strange()),
        },
    }
}

fn owner(owner: Option<&Arc<str>>) -> Vec<u8> {
    option(owner, |owner| format!("={owner}").into_bytes())
}

/// `<bytes of the owner>:<owner>`, and then, if there is any, `+<metadata>`.
fn label(owner: &str, metadata: Option<&str>) -> Vec<u8> {
    let mut label = format!("{}:{owner}", owner.len());
    if let Some(metadata) = metadata {
        label.push('+');
        label.push_str(metadata);
    }
    label.into_bytes()
}

fn read_label(label: &str) -> Result<(Arc<str>, Option<Arc<str>>)> {
    let read = || {
        let (length, rest) = label.split_once(':')?;
        let (owner, rest) = rest.split_at_checked(length.parse().ok()?)?;
        Some((owner.into(), rest.strip_prefix('+').map(Arc::from)))
    };
    read().ok_or_else(fault::strange)
}

fn gone(text: &str) -> Result<Gone> {
    [Gone::Expired, Gone::NotFound, Gone::Superseded, Gone::Revoked]
        .into_iter()
        .find(|gone| gone.as_str() == text)
        .ok_or_else(fault::strange)
}

/// The keys of a name and, where ids can be found, of an id.
fn keys(name: &Name, id: Option<&LeaseId>) -> Vec<String> {
    let mut keys = keys::all(keys::of(name)).to_vec();
    keys.extend(id.map(keys::finder));
    keys
}

/// Where a woken claim is told so.
pub(super) struct Wakeable<'a> {
    pub(super) channel: &'a str,
    pub(super) number: u64,
}

pub(super) fn acquire(claim: &Claim, finds: bool, wakeable: &Wakeable<'_>) -> Call {
    Call {
        script: &scripts::ACQUIRE,
        keys: keys(&claim.name, finds.then_some(&claim.id)),
        args: vec![
            claim.id.expose().into(),
            mode(claim.mode),
            number(micros(claim.ttl)),
            label(&claim.owner, claim.metadata.as_deref()),
            option(claim.queue, |ticket_ttl| number(micros(ticket_ttl))),
            flag(claim.repeat),
            number(claim.nonce),
            flag(claim.first),
            wakeable.channel.into(),
            number(wakeable.number),
        ],
    }
}

pub(super) fn renew(renewal: &Renewal, finds: bool) -> Call {
    Call {
        script: &scripts::RENEW,
        keys: keys(&renewal.name, finds.then_some(&renewal.id)),
        args: vec![
            renewal.id.expose().into(),
            number(micros(renewal.ttl)),
            option(renewal.fence, |fence| number(fence.get())),
            owner(renewal.owner.as_ref()),
            option(renewal.shorten, number),
            option(renewal.mode, mode),
            option(renewal.raise_fence, |fence| number(fence.get())),
        ],
    }
}

pub(super) fn release(release: &Release, finds: bool) -> Call {
    Call {
        script: &scripts::RELEASE,
        keys: keys(&release.name, finds.then_some(&release.id)),
        args: vec![
            release.id.expose().into(),
            option(release.fence, |fence| number(fence.get())),
            owner(release.owner.as_ref()),
            option(release.unanswered, |ttl| number(micros(ttl))),
            option(release.nonce, number),
        ],
    }
}

pub(super) fn revoke(name: &Name, now: bool) -> Call {
    Call { script: &scripts::REVOKE, keys: keys(name, None), args: vec![Vec::new(), flag(now)] }
}

pub(super) fn sweep(key: String) -> Call {
    Call { script: &scripts::SWEEP, keys: keys::all(key).to_vec(), args: vec![Vec::new()] }
}

pub(super) fn inspect(name: &Name, id: Option<&LeaseId>) -> Call {
    let id = option(id, |id| id.expose().into());
    Call { script: &scripts::INSPECT, keys: keys(name, None), args: vec![id] }
}

/// An answer, read from the front.
pub(super) struct Answer(std::vec::IntoIter<Value>);

impl Answer {
    pub(super) fn new(value: Value) -> Result<Self> {
        match value {
            Value::Array(items) => Ok(Answer(items.into_iter())),
            _ => Err(fault::strange()),
        }
    }

    fn int(&mut self) -> Result<i64> {
        match self.0.next() {
            Some(Value::Int(int)) => Ok(int),
            _ => Err(fault::strange()),
        }
    }

    fn count(&mut self) -> Result<u64> {
        u64::try_from(self.int()?).map_err(|_| fault::strange())
    }

    fn text(&mut self) -> Result<String> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => String::from_utf8(bytes).map_err(|_| fault::strange()),
            _ => Err(fault::strange()),
        }
    }

    fn list(&mut self) -> Result<Answer> {
        self.0.next().map_or_else(|| Err(fault::strange()), Answer::new)
    }

    /// The last item of every answer: the time it was given at, in microseconds.
    pub(super) fn time(&self) -> Option<u64> {
        match self.0.as_slice().last() {
            Some(Value::Int(time)) => u64::try_from(*time).ok(),
            _ => None,
        }
    }

    fn grant(&mut self) -> Result<Grant> {
        let fence = Fence::new(self.count()?);
        let mut grant = Grant::new(fence, read_mode(&self.text()?)?, None);
        let left = self.count()?;
        grant.left = Some(Duration::from_micros(left));
        grant.renewals = self.count()?;
        grant.acquired_at_ms = self.count()? / 1000;
        grant.expires_at_ms = Some((self.count()? + left) / 1000);
        Ok(grant)
    }
}

pub(super) fn acquired(answer: &mut Answer, claim: &Claim) -> Result<Attempt> {
    match answer.int()? {
        1 => answer.grant().map(Attempt::Granted),
        2 => {
            let retry_in = u64::try_from(answer.int()?).unwrap_or(u64::MAX);
            let place = u64::try_from(answer.int()?).ok();
            let queue_length = answer.count()?;
            let left = u64::try_from(answer.int()?).ok();
            let label = answer.text()?;
            Ok(Attempt::Busy(Busy {
                retry_in: Some(Duration::from_micros(retry_in)),
                place,
                queue_length,
                owner: if label.is_empty() { None } else { Some(read_label(&label)?.0) },
                holder_left: left.map(Duration::from_micros),
            }))
        }
        3 => Ok(Attempt::Gone(Gone::Superseded)),
        4 => Err(claim.mode.mismatch(read_mode(&answer.text()?)?)),
        5 => Err(Error::invalid("this lease id already waits for another mode; ids are never used twice")),
        // The same words as everywhere.
        6 => Err(match Fence::MAX.next(0) {
            Err(error) => error,
            Ok(_) => fault::strange(),
        }),
        _ => Err(fault::strange()),
    }
}

pub(super) fn renewed(answer: &mut Answer) -> Result<Renewed> {
    match answer.int()? {
        1 => answer.grant().map(Renewed::Held),
        3 => Ok(Renewed::Gone(gone(&answer.text()?)?)),
        4 => Err(Error::new(
            ErrorKind::Mismatch,
            "only an exclusive lease can change its mode, and only to shared",
        )),
        5 => Err(Error::invalid(format!("a fence cannot be raised above {}", Fence::MAX))),
        _ => Err(fault::strange()),
    }
}

pub(super) fn released(answer: &mut Answer) -> Result<Released> {
    match answer.int()? {
        1 => Ok(Released::Done),
        3 => Ok(Released::Gone(gone(&answer.text()?)?)),
        _ => Err(fault::strange()),
    }
}

pub(super) fn revoked(answer: &mut Answer) -> Result<Revoked> {
    Ok(Revoked { leases: answer.count()? })
}

pub(super) fn swept(answer: &mut Answer) -> Result<Swept> {
    let (expired, tickets) = (answer.count()?, answer.count()?);
    Ok(Swept { expired, tickets, counters: 0, held: answer.count()?, waiting: answer.count()? })
}

/// What is kept of a lease or ticket is words, separated by spaces.
struct Words<'a>(std::str::Split<'a, char>);

impl<'a> Words<'a> {
    fn text(&mut self) -> Result<&'a str> {
        self.0.next().ok_or_else(fault::strange)
    }

    fn number(&mut self) -> Result<u64> {
        self.text()?.parse().map_err(|_| fault::strange())
    }
}

/// What was seen of a name.
pub(super) struct Seen {
    pub(super) info: NameInfo,
    /// Whether the id that was asked for is there.
    pub(super) known: bool,
    pub(super) time: u64,
}

pub(super) fn inspected(value: Value, name: &Name) -> Result<Seen> {
    let answer = &mut Answer::new(value)?;
    let now = answer.count()?;
    let mut info = NameInfo::unused(name.clone());
    info.last_fence = Fence::new(answer.count()?);
    info.version = answer.count()?;
    let mut holders = Vec::new();
    let mut rows = answer.list()?;
    while !rows.0.as_slice().is_empty() {
        let (id, lease, label) = (LeaseId::parse(&rows.text()?)?, rows.text()?, rows.text()?);
        let mut words = Words(lease.split(' '));
        let mode = read_mode(words.text()?)?;
        let (fence, granted) = (Fence::new(words.number()?), words.number()?);
        let (_ttl, expires, since) = (words.number()?, words.number()?, words.number()?);
        let left = expires.saturating_sub(now);
        let mut grant = Grant::new(fence, mode, Some(Duration::from_micros(left)));
        grant.renewals = words.number()?;
        grant.acquired_at_ms = since / 1000;
        grant.expires_at_ms = Some((now + left) / 1000);
        let _nonce = words.number()?;
        let revoked = words.text()?.contains('v');
        let (owner, metadata) = read_label(&label)?;
        holders.push((granted, HolderInfo { id, owner, metadata, grant, revoked }));
    }
    holders.sort_by_key(|(granted, _)| *granted);
    info.holders = holders.into_iter().map(|(_, holder)| holder).collect();
    let mut rows = answer.list()?;
    while !rows.0.as_slice().is_empty() {
        let (id, ticket, label) = (LeaseId::parse(&rows.text()?)?, rows.text()?, rows.text()?);
        let mut words = Words(ticket.split(' '));
        let mode = read_mode(words.text()?)?;
        let (_ttl, _lapses, joined) = (words.number()?, words.number()?, words.number()?);
        let waited = Duration::from_micros(now.saturating_sub(joined));
        info.waiters.push(WaiterInfo { id, owner: read_label(&label)?.0, mode, waited });
    }
    info.queue_length = answer.count()?;
    Ok(Seen { info, known: answer.count()? == 1, time: now })
}
