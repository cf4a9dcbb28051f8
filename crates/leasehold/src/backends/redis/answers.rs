//! Reads the answers of the scripts.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::calls::micros;
use super::fault;
use crate::backend::{
    Attempt, Busy, Claim, Gone, Grant, HolderInfo, Mode, NameInfo, Note, Released, Renewed, Revoked, Swept,
    WaiterInfo,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

/// An answer, read from the front.
pub(super) struct Answer {
    items: std::vec::IntoIter<Value>,
    /// Expired leases that the call found and dropped.
    pub(super) expired: u64,
}

impl Answer {
    pub(super) fn new(value: Value) -> Result<Self> {
        let mut answer = Answer::inner(value)?;
        // If a word comes first, the answer itself is inside.
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
            // Only the time.
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

    /// The last item of every answer: the server's time, in microseconds.
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
        // The same message as for every other store.
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
        5 => Err(Fence::too_high()),
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

/// The stored form of a lease or ticket: a letter, texts that end with a zero, numbers as doubles, and the label.
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

/// The stored form of a note: a letter, fence and revision as doubles, and the text.
fn read_note(row: &[u8]) -> Result<Option<Note>> {
    if row.is_empty() {
        return Ok(None);
    }
    let mut row = Row::new(row, b'N')?;
    let (fence, revision) = (Fence::new(row.number()?), row.number()?);
    let text = std::str::from_utf8(row.0).map_err(|_| fault::strange())?;
    Ok(Some(Note::new(text, fence, revision)))
}

/// What an inspection saw of a name.
pub(super) struct Seen {
    pub(super) info: NameInfo,
    /// Whether the requested id is there.
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
    info.holder_count = answer.count()?;
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
    let known = answer.count()? == 1;
    info.note = read_note(&answer.bytes()?)?;
    Ok(Seen { info, known, time: now })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_redis_answers() {
        let name = Name::new("name").expect("a name");
        let claim = Claim::new(name.clone(), Mode::Exclusive, Duration::from_secs(30), "owner");
        testkit::fuzz::fuzz(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/redis_answers.txt"), |input| {
            let Ok(value) = redis::parse_redis_value(input) else { return };
            let answer = || Answer::new(value.clone());
            if let Ok(mut answer) = answer() {
                let _ = (answer.time(), acquired(&mut answer, &claim));
            }
            let _ = answer().and_then(|mut answer| renewed(&mut answer));
            let _ = answer().and_then(|mut answer| released(&mut answer));
            let _ = answer().and_then(|mut answer| revoked(&mut answer));
            let _ = answer().and_then(|mut answer| swept(&mut answer));
            if let Ok(seen) = inspected(value, &name) {
                assert_eq!(seen.info.name, name);
            }
        });
    }

    #[test]
    fn fuzz_redis_labels() {
        testkit::fuzz::fuzz(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/redis_labels.txt"), |input| {
            let text = String::from_utf8_lossy(input);
            let (owner, metadata) =
                text.split_once('|').map_or((&*text, None), |(one, two)| (one, Some(two)));
            let written = String::from_utf8(super::super::calls::label(owner, metadata)).expect("it is text");
            let (read_owner, read_metadata) = read_label(&written).expect("what was written");
            assert_eq!((&*read_owner, read_metadata.as_deref()), (owner, metadata));
            if let Ok((owner, metadata)) = read_label(&text) {
                let again = super::super::calls::label(&owner, metadata.as_deref());
                let again = String::from_utf8(again).expect("it is text");
                assert_eq!(read_label(&again).expect("what was written"), (owner, metadata));
            }
        });
    }
}
