//! What the histories must reach: a rule that no step reached was not tested, and the run fails.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::{LeaseId, Mode};

use super::history::Verb;
use super::spec::Spec;
use super::{Said, Seen};

/// How often each thing happened.
pub(crate) type Reached = BTreeMap<&'static str, u64>;

pub(crate) fn add(reached: &mut Reached, what: &'static str, count: u64) {
    *reached.entry(what).or_default() += count;
}

pub(crate) fn count(reached: &mut Reached, after: &Seen, woken: &[LeaseId], spec: &Spec) {
    let called = spec.tickets.iter().filter(|t| t.woken).count();
    let mode = after.holders.first().map(|h| h.grant.mode);
    let permits = Mode::Permit { limit: after.holder_count as u32 };
    add(reached, "steps", 1);
    add(reached, "woken", woken.len() as u64);
    add(reached, "several woken at once", u64::from(woken.len() > 1));
    add(reached, "dozens woken at once", u64::from(woken.len() > 24));
    add(reached, "128 woken and more wait", u64::from(called == 128 && spec.tickets.len() > 128));
    add(reached, "a queue of more than 128", u64::from(after.queue_length > 128));
    add(reached, "ten readers at once", u64::from(mode == Some(Mode::Shared) && after.holders.len() >= 10));
    add(reached, "more than 100 holders", u64::from(after.holder_count > 100));
    add(reached, "all permits taken", u64::from(mode == Some(permits)));
    add(reached, "at rest", u64::from(after.at_rest));
}

/// What is special about a verb.
pub(crate) fn count_verb(reached: &mut Reached, verb: &Verb, said: &Said) {
    let times = match verb {
        Verb::Acquire(claim) => vec![Some(claim.ttl), claim.queue],
        Verb::Renew(renewal) => vec![Some(renewal.ttl)],
        Verb::Release(release) => vec![release.unanswered],
        _ => Vec::new(),
    };
    let any = |is: fn(Duration) -> bool| u64::from(times.iter().flatten().any(|time| is(*time)));
    add(reached, "a time of nothing", any(|time| time.is_zero()));
    add(reached, "a part of a microsecond", any(|time| time.subsec_nanos() % 1000 != 0));
    add(reached, "a time without end", any(|time| time > Duration::from_secs(1 << 39)));
    let nonce = match verb {
        Verb::Acquire(claim) => Some(claim.nonce),
        Verb::Release(release) => release.nonce,
        _ => None,
    };
    let large = nonce.is_some_and(|nonce| nonce > u64::MAX / 2) && !matches!(said, Said::Gone(_));
    add(reached, "a nonce that is no signed number", u64::from(large));
    if let (Verb::Renew(renewal), Said::Held(grant)) = (verb, said) {
        let late = renewal.shorten.is_some_and(|count| count >= 2 && grant.renewals == count + 1);
        add(reached, "shortened after two renewals", u64::from(late));
    }
    if let (Verb::Acquire(claim), Said::Busy { .. }) = (verb, said) {
        let nobody = claim.mode == Mode::Permit { limit: 0 };
        add(reached, "a semaphore without permits", u64::from(nobody));
    }
}

/// How often each thing must have happened in a run: what was never reached was never tested.
pub(crate) const LEAST: &[(&str, u64)] = &[
    ("a nonce that is no signed number", 500),
    ("a part of a microsecond", 200),
    ("a place is kept", 1000),
    ("a semaphore without permits", 50),
    ("a time of nothing", 100),
    ("a time without end", 100),
    ("shortened after two renewals", 100),
    ("128 woken and more wait", 20),
    ("a queue of more than 128", 500),
    ("all permits taken", 3000),
    ("at rest", 500),
    ("note: one that comes later stays", 50),
    ("note: written", 300),
    ("dozens woken at once", 2),
    ("more than 100 holders", 500),
    ("release 1: superseded", 200),
    ("release 2: done", 2000),
    ("release 2: other fence", 100),
    ("release 2: other owner", 100),
    ("release 2: spent", 500),
    ("release 3: a fence", 100),
    ("release 3: done", 300),
    ("release 3: other owner", 10),
    ("release 3: spent", 100),
    ("release 4: becomes spent", 500),
    ("release 4: expired", 300),
    ("release 4: not found", 3000),
    ("release 4: spent", 1000),
    ("renew 1: expired", 300),
    ("renew 1: not found", 2000),
    ("renew 1: spent", 500),
    ("renew 2: other fence", 100),
    ("renew 2: other owner", 100),
    ("renew 3: revoked", 100),
    ("renew 4: above the limit", 30),
    ("renew 4: superseded", 50),
    ("renew 5: mismatch", 200),
    ("renew 6: renewed meanwhile", 100),
    ("renew 7: downgraded", 100),
    ("renew 7: fence raised", 200),
    ("renew 7: renewed", 2000),
    ("renew 7: shortened", 500),
    ("revoke: another holds it", 30),
    ("revoke: ended", 100),
    ("revoke: marked", 100),
    ("revoke: one of several", 30),
    ("settle: lease dropped", 5000),
    ("settle: repeated lease spent", 500),
    ("settle: repeated ticket spent", 500),
    ("settle: spent forgotten", 3000),
    ("settle: ticket dropped", 3000),
    ("several woken at once", 100),
    ("something ends in this instant", 1000),
    ("steps", 100_000),
    ("ten readers at once", 2000),
    ("the wall clock falls", 300),
    ("try_acquire 1: spent", 3000),
    ("try_acquire 2: mismatch", 500),
    ("try_acquire 3: superseded", 300),
    ("try_acquire 3: the same grant", 3000),
    ("try_acquire 4: other mode", 100),
    ("try_acquire 4: superseded", 500),
    ("try_acquire 5: granted as the last of the queue", 5000),
    ("try_acquire 5: granted by its ticket", 1000),
    ("try_acquire 5: granted past an empty queue", 2000),
    ("try_acquire 5: overflow", 100),
    ("try_acquire 5: the 129th, behind 128 who may enter", 5),
    ("try_acquire 6: busy, no ticket", 3000),
    ("try_acquire 6: busy, queued", 5000),
    ("try_acquire 6: busy, the ticket stays", 500),
    ("try_acquire 6: joins", 5000),
    ("try_acquire 6: keeps its place", 2000),
    ("woken", 2000),
];

/// The things that happened less often than they must.
pub(crate) fn too_rare(reached: &Reached, least: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
    let count = |what| reached.get(what).copied().unwrap_or(0);
    least.iter().filter(|(what, least)| count(what) < *least).map(|(what, _)| (*what, count(what))).collect()
}
