//! Builds the arguments of the scripts.

use std::sync::Arc;
use std::time::Duration;

use super::keys;
use super::scripts::{self, Call};
use crate::backend::{Claim, Mode, NewNote, Release, Renewal};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

/// The longest time that a script gets, 31 years in microseconds: sums with the clock stay below 2^53.
const LONGEST: u64 = 1_000_000_000_000_000;

/// Microseconds, rounded up: stores never cut a lease short.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX).min(LONGEST)
}

/// Milliseconds, for keys that expire by themselves: rounded up, plus one, because Redis counts them from a reading of
/// its clock that may be a little older than the script's.
fn millis(duration: Duration) -> u64 {
    micros(duration).div_ceil(1000) + 1
}

/// Formats a number by hand: every call has some, and the standard formatting is slow.
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

fn owner(owner: Option<&Arc<str>>) -> Vec<u8> {
    option(owner, |owner| format!("={owner}").into_bytes())
}

/// `<bytes of the owner>:<owner>`, and then, if there is any, `+<metadata>`.
pub(super) fn label(owner: &str, metadata: Option<&str>) -> Vec<u8> {
    let mut label = number(owner.len() as u64);
    label.push(b':');
    label.extend_from_slice(owner.as_bytes());
    if let Some(metadata) = metadata {
        label.push(b'+');
        label.extend_from_slice(metadata.as_bytes());
    }
    label
}

/// Where to send the wake-up of a claim.
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

/// Several arguments in one, in the format of Lua's `struct`: a double, then texts that end with a zero.
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
    let mut args = vec![
        renewal.id.expose().into(),
        number(micros(renewal.ttl)),
        option(renewal.fence, |fence| number(fence.get())),
        owner(renewal.owner.as_ref()),
        option(renewal.shorten, number),
        option(renewal.mode, mode),
        option(renewal.raise_fence, |fence| number(fence.get())),
    ];
    args.extend(renewal.note.as_ref().map(note));
    let (key, finder) = (keys::of(&renewal.name), finds.then_some(renewal.id));
    Call { script: &scripts::RENEW, key, finder, args }
}

/// The revision, and then the text.
fn note(note: &NewNote) -> Vec<u8> {
    let mut packed = Packed::with(note.revision).0;
    packed.extend_from_slice(note.text.as_bytes());
    packed
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
    let more = release.owner.is_some() || release.unanswered.is_some() || release.nonce.is_some();
    if more || release.note.is_some() {
        args.push(owner(release.owner.as_ref()));
        args.push(option(release.unanswered, |ttl| number(micros(ttl))));
        args.push(option(release.nonce, number));
        args.extend(release.note.as_ref().map(note));
    }
    args
}

pub(super) fn revoke(name: &Name, now: bool, only: Option<Fence>) -> Call {
    let args = vec![Vec::new(), flag(now), option(only, |fence| number(fence.get()))];
    Call { script: &scripts::REVOKE, key: keys::of(name), finder: None, args }
}

pub(super) fn sweep(key: String) -> Call {
    Call { script: &scripts::SWEEP, key, finder: None, args: vec![Vec::new()] }
}

pub(super) fn inspect(name: &Name, id: Option<&LeaseId>) -> Call {
    let id = option(id, |id| id.expose().into());
    Call { script: &scripts::INSPECT, key: keys::of(name), finder: None, args: vec![id] }
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
