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

/// Milliseconds, for keys that expire by themselves: rounded up, and one more because Redis counts them from a reading
/// of its clock that may be a little older than the script's.
fn millis(duration: Duration) -> u64 {
    micros(duration).div_ceil(1000) + 1
}

/// Its digits, without the machinery of formatting: every call has some.
fn number(mut number: u64) -> Vec<u8> {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return digits[first..].to_vec();
        }
    }
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
    let mut label = number(owner.len() as u64);
    label.push(b':');
    label.extend_from_slice(owner.as_bytes());
    if let Some(metadata) = metadata {
        label.push(b'+');
        label.extend_from_slice(metadata.as_bytes());
    }
    label
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

/// Where a woken claim is told so.
pub(super) struct Wakeable<'a> {
    pub(super) channel: &'a str,
    pub(super) number: u64,
}

pub(super) fn acquire(claim: &Claim, finds: bool, wakeable: &Wakeable<'_>) -> Call {
    Call {
        script: &scripts::ACQUIRE,
        key: keys::of(&claim.name),
        finder: finds.then_some(claim.id),
        args: acquire_args(claim, wakeable),
    }
}

fn acquire_args(claim: &Claim, wakeable: &Wakeable<'_>) -> Vec<Vec<u8>> {
    let flags = match (claim.repeat, claim.first) {
        (true, true) => "rf",
        (true, false) => "r",
        (false, true) => "f",
        (false, false) => "",
    };
    let mut what = Packed::with(micros(claim.ttl));
    what.text(&mode(claim.mode)).text(flags.as_bytes()).number(claim.nonce).number(millis(claim.ttl));
    what.0.extend_from_slice(&label(&claim.owner, claim.metadata.as_deref()));
    let mut args = vec![claim.id.expose().into(), what.0];
    args.extend(claim.queue.map(|ticket_ttl| {
        let mut place = Packed::with(micros(ticket_ttl));
        place.number(millis(ticket_ttl)).text(wakeable.channel.as_bytes()).number(wakeable.number);
        place.0
    }));
    args
}

/// Arguments in one, as Lua's `struct` reads them: a double, then texts that end with a zero.
struct Packed(Vec<u8>);

impl Packed {
    fn with(number: u64) -> Self {
        let mut packed = Vec::with_capacity(128);
        // Below 2^53, and so exact.
        packed.extend_from_slice(&(number as f64).to_be_bytes());
        Packed(packed)
    }

    fn text(&mut self, text: &[u8]) -> &mut Self {
        self.0.extend_from_slice(text);
        self.0.push(0);
        self
    }

    fn number(&mut self, digits: u64) -> &mut Self {
        self.text(&number(digits))
    }
}

pub(super) fn renew(renewal: &Renewal, finds: bool) -> Call {
    Call {
        script: &scripts::RENEW,
        key: keys::of(&renewal.name),
        finder: finds.then_some(renewal.id),
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
        key: keys::of(&release.name),
        finder: finds.then_some(release.id),
        args: release_args(release),
    }
}

fn release_args(release: &Release) -> Vec<Vec<u8>> {
    let mut args = vec![release.id.expose().into(), option(release.fence, |fence| number(fence.get()))];
    if release.owner.is_some() || release.unanswered.is_some() || release.nonce.is_some() {
        args.push(owner(release.owner.as_ref()));
        args.push(option(release.unanswered, |ttl| number(micros(ttl))));
        args.push(option(release.nonce, number));
    }
    args
}

pub(super) fn revoke(name: &Name, now: bool) -> Call {
    Call { script: &scripts::REVOKE, key: keys::of(name), finder: None, args: vec![Vec::new(), flag(now)] }
}

pub(super) fn sweep(key: String) -> Call {
    Call { script: &scripts::SWEEP, key, finder: None, args: vec![Vec::new()] }
}

pub(super) fn inspect(name: &Name, id: Option<&LeaseId>) -> Call {
    let id = option(id, |id| id.expose().into());
    Call { script: &scripts::INSPECT, key: keys::of(name), finder: None, args: vec![id] }
}

/// An answer, read from the front.
pub(super) struct Answer {
    items: std::vec::IntoIter<Value>,
    /// Leases that the call found expired, and dropped.
    pub(super) expired: u64,
}

impl Answer {
    pub(super) fn new(value: Value) -> Result<Self> {
        let mut answer = Answer::inner(value)?;
        // With a word before it, the answer itself is inside.
        if let Some(Value::BulkString(_)) = answer.items.as_slice().first() {
            answer.items.next();
            let expired = answer.count()?;
            return Ok(Answer { expired, ..answer.list()? });
        }
        Ok(answer)
    }

    fn inner(value: Value) -> Result<Self> {
        let items = match value {
            Value::Array(items) => items,
            // Nothing but the time.
            Value::Int(_) => vec![value],
            _ => return Err(fault::strange()),
        };
        Ok(Answer { items: items.into_iter(), expired: 0 })
    }

    fn int(&mut self) -> Result<i64> {
        match self.items.next() {
            Some(Value::Int(int)) => Ok(int),
            _ => Err(fault::strange()),
        }
    }

    fn count(&mut self) -> Result<u64> {
        u64::try_from(self.int()?).map_err(|_| fault::strange())
    }

    fn bytes(&mut self) -> Result<Vec<u8>> {
        match self.items.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            _ => Err(fault::strange()),
        }
    }

    fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?).map_err(|_| fault::strange())
    }

    fn list(&mut self) -> Result<Answer> {
        self.items.next().map_or_else(|| Err(fault::strange()), Answer::inner)
    }

    /// The last item of every answer: the time it was given at, in microseconds.
    pub(super) fn time(&self) -> Option<u64> {
        match self.items.as_slice().last() {
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
    let anew = |fence, now: u64| {
        let left = micros(claim.ttl);
        let mut grant = Grant::new(fence, claim.mode, Some(Duration::from_micros(left)));
        grant.acquired_at_ms = now / 1000;
        grant.expires_at_ms = Some((now + left) / 1000);
        Ok(Attempt::Granted(grant))
    };
    if answer.items.len() == 1 {
        let now = answer.count()?;
        return anew(Fence::at(now), now);
    }
    match answer.int()? {
        0 => anew(Fence::new(answer.count()?), answer.count()?),
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
    if answer.items.len() == 1 {
        return Ok(Released::Done);
    }
    match answer.int()? {
        3 => Ok(Released::Gone(gone(&answer.text()?)?)),
        _ => Err(fault::strange()),
    }
}

pub(super) fn revoked(answer: &mut Answer) -> Result<Revoked> {
    Ok(Revoked { leases: answer.count()? })
}

pub(super) fn swept(answer: &mut Answer) -> Result<Swept> {
    let (expired, tickets) = (answer.expired, answer.count()?);
    Ok(Swept { expired, tickets, counters: 0, held: answer.count()?, waiting: answer.count()? })
}

/// What is kept of a lease or ticket: a letter, texts that end with a zero, numbers as doubles, and the label.
struct Row<'a>(&'a [u8]);

impl<'a> Row<'a> {
    fn new(row: &'a [u8], letter: u8) -> Result<Self> {
        row.strip_prefix(&[letter]).map(Row).ok_or_else(fault::strange)
    }

    fn text(&mut self) -> Result<&'a str> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or_else(fault::strange)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        std::str::from_utf8(text).map_err(|_| fault::strange())
    }

    fn number(&mut self) -> Result<u64> {
        let (number, rest) = self.0.split_first_chunk().ok_or_else(fault::strange)?;
        self.0 = rest;
        // Below 2^53, and so exact.
        Ok(f64::from_be_bytes(*number) as u64)
    }

    fn label(self) -> Result<(Arc<str>, Option<Arc<str>>)> {
        read_label(std::str::from_utf8(self.0).map_err(|_| fault::strange())?)
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
    while !rows.items.as_slice().is_empty() {
        let (id, row) = (LeaseId::parse(&rows.text()?)?, rows.bytes()?);
        let mut row = Row::new(&row, b'L')?;
        let mode = read_mode(row.text()?)?;
        let (fence, granted) = (Fence::new(row.number()?), row.number()?);
        let (_ttl, expires, since) = (row.number()?, row.number()?, row.number()?);
        let left = expires.saturating_sub(now);
        let mut grant = Grant::new(fence, mode, Some(Duration::from_micros(left)));
        grant.renewals = row.number()?;
        grant.acquired_at_ms = since / 1000;
        grant.expires_at_ms = Some((now + left) / 1000);
        let _nonce = row.text()?;
        let revoked = row.text()?.contains('v');
        let (owner, metadata) = row.label()?;
        holders.push((granted, HolderInfo { id, owner, metadata, grant, revoked }));
    }
    holders.sort_by_key(|(granted, _)| *granted);
    info.holders = holders.into_iter().map(|(_, holder)| holder).collect();
    let mut rows = answer.list()?;
    while !rows.items.as_slice().is_empty() {
        let (id, row) = (LeaseId::parse(&rows.text()?)?, rows.bytes()?);
        let mut row = Row::new(&row, b'T')?;
        let mode = read_mode(row.text()?)?;
        let (_ttl, _lapses, joined) = (row.number()?, row.number()?, row.number()?);
        let waited = Duration::from_micros(now.saturating_sub(joined));
        for _nonce_marks_channel_number in 0..4 {
            row.text()?;
        }
        info.waiters.push(WaiterInfo { id, owner: row.label()?.0, mode, waited });
    }
    info.queue_length = answer.count()?;
    Ok(Seen { info, known: answer.count()? == 1, time: now })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_their_digits() {
        for of in [0, 7, 10, 459_469_568_000_123, u64::MAX] {
            assert_eq!(number(of), of.to_string().into_bytes());
        }
    }
}
