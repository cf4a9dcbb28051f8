//! What a token uses of one server: its leases, its waiting requests and its queue places.
//!
//! The table records what the store has answered and which requests are running. A request reserves its room before
//! the store is asked, so no number of simultaneous requests exceeds a limit. If an answer leaves open whether a lease
//! or a place still exists, it stays counted until its time has passed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use leasehold::backend::Grant;
use leasehold::{Fence, LeaseId, Name};

use super::Limits;

/// A lease id alone is not enough: a store lets one id have a lease on each name.
pub(super) type Key = (Name, LeaseId);

/// The limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    Leases,
    Waiters,
}

/// Counted even without a limit, because one may be set while the server runs.
#[derive(Debug, Default)]
pub(super) struct Usage {
    entries: HashMap<Key, Used>,
    /// At this many entries, expired ones are removed.
    full: usize,
}

/// Fewer entries than this are not worth cleaning up.
const FEW: usize = 64;

#[derive(Debug, Default)]
struct Used {
    /// Running requests that may get the lease; together they get one.
    takers: u64,
    /// How many of them wait, or may leave a place behind.
    waiters: u64,
    lease: Option<Lease>,
    /// Until when the queue place is kept if no request refreshes it.
    place: Option<Instant>,
    /// When the store last reported that it gave the lease or the place.
    given: Option<Instant>,
}

#[derive(Debug)]
struct Lease {
    /// Orders answers that overtake each other: this rises within a lease and from one lease to the next.
    age: (Fence, u64),
    until: Instant,
}

impl Used {
    fn has_lease(&self, now: Instant) -> bool {
        self.takers > 0 || self.lease.as_ref().is_some_and(|lease| lease.until > now)
    }

    fn has_place(&self, now: Instant) -> bool {
        self.place.is_some_and(|until| until > now)
    }

    /// A place and the request that waits at it count as one.
    fn waiting(&self, now: Instant) -> u64 {
        self.waiters.max(self.has_place(now).into())
    }
}

impl Usage {
    /// Reserves room for a request, until it [leaves](Usage::leave).
    pub(super) fn enter(
        &mut self,
        key: &Key,
        waits: bool,
        limits: &Limits,
        now: Instant,
    ) -> Result<(), Full> {
        // What a repeated request may get is already counted.
        let known = self.entries.get(key);
        let (has_lease, waiting) = known.map_or((false, 0), |used| (used.has_lease(now), used.waiting(now)));
        if let Some(most) = limits.leases
            && !has_lease
            && self.entries.len() as u64 >= most
        {
            self.forget_the_past(now);
            if self.entries.values().filter(|used| used.has_lease(now)).count() as u64 >= most {
                return Err(Full::Leases);
            }
        }
        if let Some(most) = limits.waiters
            && waits
        {
            self.forget_the_past(now);
            let all: u64 = self.entries.values().map(|used| used.waiting(now)).sum();
            let then = waiting.max(self.entries.get(key).map_or(0, |used| used.waiters) + 1);
            if all - waiting + then > most {
                return Err(Full::Waiters);
            }
        }
        let used = self.of(key, now);
        used.takers += 1;
        used.waiters += u64::from(waits);
        Ok(())
    }

    /// A request has ended. The place it leaves behind is kept at most this long from now.
    pub(super) fn leave(&mut self, key: &Key, waits: bool, kept_for: Duration, now: Instant) {
        let Some(used) = self.entries.get_mut(key) else { return };
        used.takers = used.takers.saturating_sub(1);
        used.waiters = used.waiters.saturating_sub(waits.into());
        used.place = used.place.map(|until| until.max(now + kept_for));
        self.forget_if_past(key, now);
    }

    /// The store granted the lease.
    pub(super) fn granted(&mut self, key: &Key, grant: &Grant, now: Instant) {
        self.lasts(key, grant, now);
        if let Some(used) = self.entries.get_mut(key) {
            (used.place, used.given) = (None, Some(now));
        }
    }

    /// The store said how long the lease lasts.
    pub(super) fn lasts(&mut self, key: &Key, grant: &Grant, now: Instant) {
        let age = (grant.fence, grant.renewals);
        let until = now + grant.left.unwrap_or_default();
        let used = self.of(key, now);
        match &mut used.lease {
            Some(lease) if age <= lease.age => lease.until = lease.until.max(until),
            lease => *lease = Some(Lease { age, until }),
        }
    }

    /// The lease may last until then; no answer says how long.
    pub(super) fn may_last(&mut self, key: &Key, until: Instant) {
        if let Some(lease) = self.entries.get_mut(key).and_then(|used| used.lease.as_mut()) {
            lease.until = lease.until.max(until);
        }
    }

    /// Keeps the entry counted until the call about it [leaves](Usage::leave). Returns whether anything was counted.
    pub(super) fn stays(&mut self, key: &Key) -> bool {
        self.entries.get_mut(key).map(|used| used.takers += 1).is_some()
    }

    /// The store gave a queue place, or still keeps it.
    pub(super) fn placed(&mut self, key: &Key, kept_for: Duration, now: Instant) {
        let used = self.of(key, now);
        (used.place, used.given) = (Some(now + kept_for), Some(now));
    }

    /// The store said, in answer to a call sent at that time, that it has neither lease nor place. Ignored if the
    /// store gave one since.
    pub(super) fn ended(&mut self, key: &Key, sent: Instant, now: Instant) {
        let Some(used) = self.entries.get_mut(key) else { return };
        if used.given.is_none_or(|given| given < sent) {
            (used.lease, used.place) = (None, None);
            self.forget_if_past(key, now);
        }
    }

    /// The entry of this key, created if missing.
    fn of(&mut self, key: &Key, now: Instant) -> &mut Used {
        // Clean up when the number has doubled, so that each entry is looked at only a few times.
        if self.entries.len() >= self.full.max(FEW) {
            self.forget_the_past(now);
            self.full = 2 * self.entries.len();
        }
        self.entries.entry(key.clone()).or_default()
    }

    fn forget_if_past(&mut self, key: &Key, now: Instant) {
        if self.entries.get(key).is_some_and(|used| !used.has_lease(now) && !used.has_place(now)) {
            self.entries.remove(key);
        }
    }

    fn forget_the_past(&mut self, now: Instant) {
        self.entries.retain(|_, used| used.has_lease(now) || used.has_place(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::backend::Mode;

    const SECOND: Duration = Duration::from_secs(1);

    fn key(name: &str) -> Key {
        (Name::within("n", name).unwrap(), LeaseId::random())
    }

    fn grant(fence: u64, renewals: u64, left: Duration) -> Grant {
        let mut grant = Grant::new(Fence::new(fence), Mode::Exclusive, Some(left));
        grant.renewals = renewals;
        grant
    }

    fn limits(leases: u64, waiters: u64) -> Limits {
        Limits { leases: Some(leases), waiters: Some(waiters), requests_per_second: None }
    }

    #[test]
    fn a_request_reserves_room_first_and_frees_it_at_its_end() {
        let (mut usage, now, most) = (Usage::default(), Instant::now(), limits(1, 9));
        let (a, b) = (key("a"), key("b"));
        usage.enter(&a, false, &most, now).unwrap();
        assert_eq!(usage.enter(&b, false, &most, now), Err(Full::Leases));
        usage.enter(&a, true, &most, now).expect("together they get one lease");
        usage.leave(&a, false, SECOND, now);
        assert_eq!(usage.enter(&b, false, &most, now), Err(Full::Leases));
        usage.leave(&a, true, SECOND, now);
        usage.enter(&b, false, &most, now).unwrap();
        usage.leave(&b, false, SECOND, now);
        assert!(usage.entries.is_empty());
    }

    #[test]
    fn a_lease_counts_until_it_expires_and_one_id_counts_per_name() {
        let (mut usage, now, most) = (Usage::default(), Instant::now(), limits(1, 9));
        let a = key("a");
        let elsewhere = (key("b").0, a.1);
        usage.enter(&a, false, &most, now).unwrap();
        usage.granted(&a, &grant(1, 0, SECOND), now);
        usage.leave(&a, false, SECOND, now);
        assert_eq!(usage.enter(&elsewhere, false, &most, now), Err(Full::Leases));
        usage.ended(&elsewhere, now + SECOND / 2, now + SECOND / 2);
        assert_eq!(usage.enter(&elsewhere, false, &most, now + SECOND / 2), Err(Full::Leases));
        usage.enter(&a, false, &most, now).expect("a repeat needs no more");
        usage.leave(&a, false, SECOND, now);
        usage.enter(&elsewhere, false, &most, now + SECOND).unwrap();
    }

    #[test]
    fn answers_out_of_order_do_not_shorten_what_is_counted() {
        let (mut usage, now, most) = (Usage::default(), Instant::now(), limits(1, 9));
        let a = key("a");
        let is_counted = |usage: &mut Usage, after: Duration| {
            let other = key("other");
            let full = usage.enter(&other, false, &most, now + after).is_err();
            usage.leave(&other, false, SECOND, now + after);
            full
        };
        usage.granted(&a, &grant(7, 0, SECOND), now);
        usage.lasts(&a, &grant(7, 2, 9 * SECOND), now);
        usage.lasts(&a, &grant(7, 1, 2 * SECOND), now);
        usage.granted(&a, &grant(7, 0, SECOND), now);
        assert!(is_counted(&mut usage, 8 * SECOND));
        // A lease that was shortened.
        usage.lasts(&a, &grant(7, 3, 3 * SECOND), now);
        assert!(is_counted(&mut usage, 2 * SECOND) && !is_counted(&mut usage, 3 * SECOND));
    }

    #[test]
    fn an_answer_does_not_end_what_was_granted_after_its_question() {
        let (mut usage, now, most) = (Usage::default(), Instant::now(), limits(1, 1));
        let (a, b) = (key("a"), key("b"));
        usage.granted(&a, &grant(1, 0, 60 * SECOND), now + SECOND);
        usage.ended(&a, now, now + SECOND);
        assert_eq!(usage.enter(&b, false, &most, now + SECOND), Err(Full::Leases));
        usage.ended(&a, now + 2 * SECOND, now + 2 * SECOND);
        usage.enter(&b, false, &most, now + 2 * SECOND).unwrap();
    }

    #[test]
    fn what_has_passed_is_forgotten_also_where_nothing_is_bounded() {
        let (mut usage, now) = (Usage::default(), Instant::now());
        for number in 0..10_000 {
            let (one, now) = (key("a"), now + number * SECOND);
            usage.enter(&one, false, &Limits::default(), now).unwrap();
            usage.granted(&one, &grant(1, 0, 10 * SECOND), now);
            usage.leave(&one, false, SECOND, now);
            assert!(usage.entries.len() <= FEW + 1, "{}", usage.entries.len());
        }
    }

    #[test]
    fn a_queue_place_counts_until_given_up_granted_or_lapsed() {
        let (now, most) = (Instant::now(), limits(9, 1));
        let (a, b) = (key("a"), key("b"));
        let kept = || {
            let mut usage = Usage::default();
            usage.enter(&a, true, &most, now).unwrap();
            usage.placed(&a, 5 * SECOND, now);
            // However long the request waited there.
            usage.leave(&a, true, 5 * SECOND, now + 50 * SECOND);
            usage
        };
        let later = now + 54 * SECOND;
        assert_eq!(kept().enter(&b, true, &most, later), Err(Full::Waiters));
        kept().enter(&b, false, &most, later).unwrap();
        kept().enter(&b, true, &most, now + 55 * SECOND).expect("it has lapsed");
        kept().enter(&a, true, &most, later).expect("who comes back has its place already");
        let mut usage = kept();
        usage.ended(&a, later, later);
        usage.enter(&b, true, &most, later).unwrap();
        let mut usage = kept();
        usage.granted(&a, &grant(1, 0, SECOND), later);
        usage.enter(&b, true, &most, later).unwrap();
        // Two requests at one place count as two.
        let mut usage = kept();
        usage.enter(&a, true, &most, later).unwrap();
        assert_eq!(usage.enter(&a, true, &most, later), Err(Full::Waiters));
    }
}
