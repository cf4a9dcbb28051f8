//! Rules that hold whatever the contract says, judged only by what any caller can see.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use leasehold::state::Now;
use leasehold::{Gone, LeaseId, Mode};

use crate::Tested;
use crate::contract::history::Verb;
use crate::contract::spec::micros;
use crate::contract::{Id, Said, Seen, Step};

const MINUTE: u64 = 60_000_000;

/// Remembers what was seen of one name.
#[derive(Default)]
pub(crate) struct Watch {
    highest_fence: u64,
    /// When each lease will end, by the last answer about it.
    ends: HashMap<LeaseId, u64>,
    /// Ids that are refused, at least until then.
    refused: HashMap<LeaseId, u64>,
    /// Ids of leases and tickets that are refused when they end.
    repeated: HashSet<LeaseId>,
    /// Ids that were woken, and have not entered yet.
    woken: HashSet<LeaseId>,
}

type Verdict = Result<(), String>;

fn must(ok: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if ok { Ok(()) } else { Err(otherwise()) }
}

/// Whether all of these can hold the name together.
fn fit_together(modes: &[Mode]) -> bool {
    match modes {
        [] => true,
        [Mode::Exclusive] => true,
        [Mode::Permit { limit }, rest @ ..] => {
            modes.len() <= *limit as usize && rest.iter().all(|m| *m == Mode::Permit { limit: *limit })
        }
        _ => modes.iter().all(|m| *m == Mode::Shared),
    }
}

impl Watch {
    /// Before and after each verb: what has ended until now.
    pub(crate) fn forget_ended(&mut self, now: Now, tested: &dyn Tested) {
        let ended: Vec<LeaseId> = self.repeated.iter().filter(|id| !tested.knows(id, now)).copied().collect();
        for id in ended {
            self.repeated.remove(&id);
            self.refuse(now, id, 0);
        }
        self.woken.retain(|id| tested.knows(id, now));
        self.refused.retain(|_, until| *until > now.expiry);
    }

    fn refuse(&mut self, now: Now, id: LeaseId, ttl: u64) {
        let until = now.expiry.saturating_add(ttl.max(MINUTE));
        let refused = self.refused.entry(id).or_default();
        *refused = until.max(*refused);
    }

    /// After the verb: whether everything that was seen may be so.
    pub(crate) fn after(&mut self, step: &Step, before: &Seen, after: &Seen, tested: &dyn Tested) -> Verdict {
        let Step { now, verb, said, woken } = step;
        let now = *now;
        holders_fit(after)?;
        must(after.version == before.version || after.version == before.version + 1, || {
            "the version rose by more than one, or fell".into()
        })?;
        must(after.last_fence >= before.last_fence, || "the last fence fell".into())?;
        self.refused_ids_stay_out(verb, said, after)?;
        if let (Verb::Acquire(claim), Said::Granted(grant)) = (verb, said) {
            if holds(before, Id(claim.id)) {
                let end = now.expiry.saturating_add(grant.left.map_or(0, micros));
                must(self.ends.get(&claim.id) == Some(&end), || "a repeat re-armed the lease".into())?;
            } else {
                must(grant.fence.get() > self.highest_fence, || {
                    format!(
                        "the fence {} is not above {}, which was seen before",
                        grant.fence, self.highest_fence
                    )
                })?;
                nobody_is_overtaken(claim.id, claim.mode, claim.queue, before)?;
            }
        }
        if let (Verb::Acquire(claim), Said::Busy { .. }) = (verb, said) {
            must(!self.woken.contains(&claim.id), || "one who was woken was kept out".into())?;
        }
        if let (Verb::Renew(renewal), Said::Held(_)) = (verb, said) {
            must(self.ends.get(&renewal.id).is_some_and(|end| now.expiry < *end), || {
                "a lease was renewed after its end".into()
            })?;
        }
        self.remember(now, verb, said, before);
        self.highest_fence =
            after.holders.iter().map(|h| h.grant.fence.get()).fold(self.highest_fence, u64::max);
        self.wakes_are_due(woken, after)?;
        // A lease that ends at the very moment it begins is not seen, but blocks others until the next verb.
        let unseen = match verb {
            Verb::Acquire(claim) => claim.ttl.is_zero() || claim.queue == Some(Duration::ZERO),
            Verb::Renew(renewal) => renewal.ttl.is_zero(),
            _ => false,
        };
        if !unseen && !matches!(verb, Verb::Look) {
            self.forget_ended(now, tested);
            self.no_wake_is_lost(after)?;
        }
        Ok(())
    }

    fn refused_ids_stay_out(&self, verb: &Verb, said: &Said, after: &Seen) -> Verdict {
        if let Verb::Acquire(claim) = verb {
            let refused = self.refused.contains_key(&claim.id);
            must(!refused || *said == Said::Gone(Gone::Superseded), || "a spent id was not refused".into())?;
        }
        let held = after.holders.iter().find(|h| self.refused.contains_key(&h.id.0));
        must(held.is_none(), || format!("the spent id {held:?} holds a lease"))
    }

    fn remember(&mut self, now: Now, verb: &Verb, said: &Said, before: &Seen) {
        if let (Some(id), Said::Granted(grant) | Said::Held(grant)) = (verb.id(), said) {
            self.ends.insert(id, now.expiry.saturating_add(grant.left.map_or(0, micros)));
            self.highest_fence = self.highest_fence.max(grant.fence.get());
        }
        match (verb, said) {
            (Verb::Acquire(claim), Said::Granted(_)) => {
                self.woken.remove(&claim.id);
                if claim.repeat {
                    self.repeated.insert(claim.id);
                }
            }
            (Verb::Acquire(claim), Said::Busy { .. }) if claim.repeat && claim.queue.is_some() => {
                self.repeated.insert(claim.id);
            }
            (Verb::Release(release), _) => {
                let ended = *said == Said::Done || !before.known.contains(&Id(release.id));
                if let Some(ttl) = release.unanswered.filter(|_| ended) {
                    self.refuse(now, release.id, micros(ttl));
                }
            }
            (Verb::Revoke { now: true, only }, _) => {
                let meant = before.holders.iter().filter(|h| only.is_none_or(|fence| fence == h.grant.fence));
                meant.for_each(|h| self.refuse(now, h.id.0, 0))
            }
            _ => {}
        }
    }

    /// Checks that each woken waiter can enter, together with all before it, and was not woken before.
    fn wakes_are_due(&mut self, woken: &[LeaseId], after: &Seen) -> Verdict {
        must(woken.len() <= 128, || format!("{} were woken at once", woken.len()))?;
        for id in woken {
            must(self.woken.insert(*id), || format!("{:?} was woken twice", Id(*id)))?;
            let shown = after.waiters.iter().position(|w| w.id == Id(*id));
            let hidden = after.queue_length as usize > after.waiters.len();
            must(shown.is_some() || hidden, || format!("{:?} was woken and does not wait", Id(*id)))?;
            let front = &after.waiters[..shown.map_or(after.waiters.len(), |p| p + 1)];
            let modes: Vec<Mode> = modes_held(after).chain(front.iter().map(|w| w.mode)).collect();
            must(fit_together(&modes), || format!("{:?} was woken before its turn", Id(*id)))?;
        }
        Ok(())
    }

    /// Checks that every waiter that could enter now was woken.
    fn no_wake_is_lost(&self, after: &Seen) -> Verdict {
        let mut modes: Vec<Mode> = modes_held(after).collect();
        for waiter in &after.waiters {
            modes.push(waiter.mode);
            if !fit_together(&modes) {
                break;
            }
            must(self.woken.contains(&waiter.id.0), || {
                format!("{:?} could go in and was not woken", waiter.id)
            })?;
        }
        Ok(())
    }
}

/// Whether the id, which was asked about, has a lease.
fn holds(seen: &Seen, id: Id) -> bool {
    seen.holders.iter().map(|h| h.id).chain(seen.asked.iter().flatten().copied()).any(|held| held == id)
}

/// Those that are not shown have the mode of the others.
fn modes_held(seen: &Seen) -> impl Iterator<Item = Mode> {
    let hidden = seen.holder_count as usize - seen.holders.len();
    let last = seen.holders.last().map(|h| h.grant.mode);
    let hidden = std::iter::repeat_n(last, hidden).flatten();
    seen.holders.iter().map(|h| h.grant.mode).chain(hidden)
}

/// No two live leases conflict.
pub(crate) fn holders_fit(seen: &Seen) -> Verdict {
    let modes: Vec<Mode> = modes_held(seen).collect();
    must(fit_together(&modes), || format!("these leases conflict: {:?}", seen.holders))
}

/// Checks that a claim enters only together with all that were before it, and without queueing only if there is no
/// queue.
fn nobody_is_overtaken(id: LeaseId, mode: Mode, queue: Option<Duration>, before: &Seen) -> Verdict {
    let place = before.waiters.iter().position(|w| w.id == Id(id));
    let older = &before.waiters[..place.unwrap_or(before.waiters.len())];
    let queued = queue.is_some() || before.known.contains(&Id(id));
    must(queued || older.is_empty(), || "an attempt that does not queue overtook the queue".into())?;
    let modes: Vec<Mode> = modes_held(before).chain(older.iter().map(|w| w.mode)).chain([mode]).collect();
    must(fit_together(&modes), || format!("{:?} was granted before its turn", Id(id)))
}
