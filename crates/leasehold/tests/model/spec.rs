//! `docs/contract.md` as code, sentence by sentence and in its order: vectors, linear scans, nothing
//! clever. Read the two side by side. It shares nothing with `state.rs` but the types of its calls.
//!
//! One file because `docs/contract.md` is one page.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Claim, Grant, NewNote, Note, Release, Renewal};
use leasehold::state::{LeaseRow, Now, Op, Row, SpentRow, TicketRow};
use leasehold::{ErrorKind, Fence, Gone, LeaseId, Mode};

use super::{HolderSeen, Id, Said, Seen, WaiterSeen};

const MINUTE: u64 = 60_000_000;
const HIGHEST_FENCE: u64 = 900_000_000_000_000;
/// A day of the clock, as fences count it.
const DAY_OF_FENCES: u64 = 22_118_400_000;
const WALKED: usize = 128;
const SHOWN: usize = 100;

/// One rule altered, to show that the tests can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    Nothing,
    ExpiryIsLate,
    TryOvertakesTheQueue,
    RepeatRearms,
    ReleaseIgnoresTheNonce,
    FenceStays,
    ReaderPassesAWaitingWriter,
    SpentIsForgotten,
    ShortenIgnoresTheCount,
    WakesTwice,
    WakesOnlyTheFirst,
    WalksTooFar,
    OnePermitTooMany,
    RefreshLosesThePlace,
    RevokedRenews,
    RaisedFenceIsForgotten,
    FencesRiseWithoutBound,
    RevokeMeetsAnybody,
    AskingByIdIsCutToo,
    OnlyTheShownAreCounted,
    AnyNoteReplaces,
    RefusalsWriteNotes,
}

// What is kept.

#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    pub(crate) mode: Mode,
    pub(crate) fence: u64,
    /// The fence it was granted with. No rule asks for it: the order of the leases says the same.
    pub(crate) first_fence: u64,
    pub(crate) owner: Arc<str>,
    pub(crate) metadata: Option<Arc<str>>,
    pub(crate) ttl: u64,
    pub(crate) expires: u64,
    pub(crate) granted: u64,
    pub(crate) renewals: u64,
    pub(crate) nonce: u64,
    pub(crate) repeated: bool,
    pub(crate) revoked: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    pub(crate) id: LeaseId,
    pub(crate) mode: Mode,
    pub(crate) owner: Arc<str>,
    pub(crate) ttl: u64,
    pub(crate) lapses: u64,
    pub(crate) since: u64,
    pub(crate) nonce: u64,
    pub(crate) repeated: bool,
    pub(crate) woken: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Spent {
    pub(crate) id: LeaseId,
    pub(crate) until: u64,
    pub(crate) why: Gone,
}

/// What settling dropped.
struct Dropped {
    leases: Vec<LeaseId>,
    tickets: Vec<LeaseId>,
}

#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) last_fence: u64,
    pub(crate) version: u64,
    pub(crate) note: Option<Note>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) tickets: Vec<Ticket>,
    pub(crate) spent: Vec<Spent>,
    /// Whether this verb has granted, renewed, released, revoked or dropped a lease.
    changed: bool,
    /// "A store whose clock can be set back makes `expires` at most now + that ttl."
    pub(crate) clock_can_be_set_back: bool,
    planted: Planted,
    /// How often each rule gave the answer, or did something worth counting.
    pub(crate) reached: BTreeMap<&'static str, u64>,
}

/// "A ttl is rounded up to the next microsecond."
pub(crate) fn micros(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// "{Exclusive, Shared} are one kind; permits of one limit are another."
fn same_kind(a: Mode, b: Mode) -> bool {
    match (a, b) {
        (Mode::Permit { limit: a }, Mode::Permit { limit: b }) => a == b,
        (Mode::Permit { .. }, _) | (_, Mode::Permit { .. }) => false,
        _ => true,
    }
}

impl Lease {
    fn grant(&self, now: u64, wall: u64) -> Grant {
        let left = self.expires.saturating_sub(now);
        let mut grant = Grant::new(Fence::new(self.fence), self.mode, Some(Duration::from_micros(left)));
        grant.renewals = self.renewals;
        grant.acquired_at_ms = self.granted / 1000;
        grant.expires_at_ms = Some(wall.saturating_add(left) / 1000);
        grant
    }
}

impl Spec {
    pub(crate) fn new(planted: Planted) -> Self {
        Spec {
            last_fence: 0,
            version: 0,
            note: None,
            leases: Vec::new(),
            tickets: Vec::new(),
            spent: Vec::new(),
            changed: false,
            clock_can_be_set_back: false,
            planted,
            reached: BTreeMap::new(),
        }
    }

    fn wrong(&self, planted: Planted) -> bool {
        self.planted == planted
    }

    fn rule(&mut self, rule: &'static str) {
        *self.reached.entry(rule).or_default() += 1;
    }

    fn by(&mut self, rule: &'static str, said: Said) -> Said {
        self.rule(rule);
        said
    }

    /// "Spending an id with a ttl means: it is spent until now + max(ttl, 60 s) (or later, if it was
    /// already spent until later)." An older why stays.
    fn spend(&mut self, now: u64, id: LeaseId, ttl: u64, why: Gone) {
        if self.wrong(Planted::SpentIsForgotten) {
            return;
        }
        let until = now.saturating_add(ttl.max(MINUTE));
        match self.spent.iter_mut().find(|s| s.id == id) {
            Some(spent) => spent.until = spent.until.max(until),
            None => self.spent.push(Spent { id, until, why }),
        }
    }

    /// When the leases and tickets end.
    pub(crate) fn ends(&self) -> Vec<u64> {
        let leases = self.leases.iter().map(|l| l.expires);
        leases.chain(self.tickets.iter().map(|t| t.lapses)).collect()
    }

    /// What is kept, as rows. The numbers of the tickets say no more than their order.
    pub(crate) fn rows(&self) -> Vec<(LeaseId, Row)> {
        let leases = self.leases.iter().map(|l| {
            let row = LeaseRow {
                mode: l.mode,
                fence: Fence::new(l.fence),
                granted: Fence::new(l.first_fence),
                owner: l.owner.clone(),
                metadata: l.metadata.clone(),
                ttl: l.ttl,
                expires: l.expires,
                acquired_wall: l.granted,
                renewals: l.renewals,
                nonce: l.nonce,
                repeated: l.repeated,
                revoked: l.revoked,
            };
            (l.id, Row::Lease(row))
        });
        let tickets = self.tickets.iter().zip(1..).map(|(t, arrival)| {
            let row = TicketRow {
                arrival,
                mode: t.mode,
                owner: t.owner.clone(),
                ttl: t.ttl,
                lapses: t.lapses,
                joined: t.since,
                nonce: t.nonce,
                repeated: t.repeated,
                woken: t.woken,
            };
            (t.id, Row::Ticket(row))
        });
        let spent = self.spent.iter().map(|s| (s.id, Row::Spent(SpentRow { until: s.until, why: s.why })));
        leases.chain(tickets).chain(spent).collect()
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.leases.is_empty() && self.tickets.is_empty() && self.spent.is_empty()
    }

    /// What a sweep does beyond the contract where counters are stored for a time only: of a name at rest whose fence the
    /// clock has long passed, nothing is kept. Whether there was something.
    pub(crate) fn forget(&mut self, wall: u64) -> bool {
        let passed = Fence::at(wall.saturating_sub(Fence::RETENTION.as_micros() as u64)).get();
        let forgets = self.is_at_rest() && self.version > 0 && self.last_fence < passed;
        if forgets {
            self.rule("sweep: a counter forgotten");
            (self.last_fence, self.version, self.note) = (0, 0, None);
        }
        forgets
    }

    // Every verb.

    pub(crate) fn apply(&mut self, Now { expiry: now, wall }: Now, op: Op<'_>) -> (Said, Vec<LeaseId>) {
        self.changed = false;
        // 1. Settle.
        let dropped = self.settle(now);
        // 2. Act.
        let said = match op {
            Op::Acquire(claim) => self.try_acquire(now, wall, claim),
            Op::Renew(renewal) => self.renew(now, wall, renewal, &dropped),
            Op::Release(release) => self.release(now, release, &dropped),
            Op::Revoke { now: at_once, only } => self.revoke(now, at_once, only),
            Op::Sweep => Said::Swept {
                expired: dropped.leases.len() as u64,
                tickets: dropped.tickets.len() as u64,
                counters: 0,
                held: self.leases.len() as u64,
                waiting: self.tickets.len() as u64,
            },
            // "keep(claim), inside a store": for stores that look after their waiters.
            Op::Keep(claim) => {
                let lapses = now.saturating_add(claim.queue.map_or(0, micros));
                let own = |t: &&mut Ticket| t.id == claim.id && t.nonce == claim.nonce;
                let ticket = self.tickets.iter_mut().find(own);
                Said::Kept(ticket.map(|t| t.lapses = t.lapses.max(lapses)).is_some())
            }
            other => panic!("the contract does not know {other:?}"),
        };
        // 3. Wake, also when the answer is an error.
        let woken = self.wake();
        // "The version rises by one in each verb that granted, renewed, released or revoked a lease,
        // or whose settling dropped one."
        if self.changed {
            self.version += 1;
        }
        (said, woken)
    }

    fn settle(&mut self, now: u64) -> Dropped {
        let late = self.wrong(Planted::ExpiryIsLate);
        let ended = |end: u64| if late { end < now } else { end <= now };
        // Spent ids with `until <= now` are forgotten.
        let (forgotten, spent): (Vec<Spent>, _) =
            take(&mut self.spent).into_iter().partition(|s| ended(s.until));
        self.spent = spent;
        forgotten.iter().for_each(|_| self.rule("settle: spent forgotten"));
        // Leases with `expires <= now` are dropped; a repeated one is spent with its ttl, why: Expired.
        let (leases, live): (Vec<Lease>, _) =
            take(&mut self.leases).into_iter().partition(|l| ended(l.expires));
        self.leases = live;
        for lease in &leases {
            self.changed = true;
            self.rule("settle: lease dropped");
            if lease.repeated {
                self.rule("settle: repeated lease spent");
                self.spend(now, lease.id, lease.ttl, Gone::Expired);
            }
        }
        // Tickets with `lapses <= now` are dropped; a repeated one is spent with its claim's ttl, why: NotFound.
        let (tickets, live): (Vec<Ticket>, _) =
            take(&mut self.tickets).into_iter().partition(|t| ended(t.lapses));
        self.tickets = live;
        for ticket in &tickets {
            self.rule("settle: ticket dropped");
            if ticket.repeated {
                self.rule("settle: repeated ticket spent");
                self.spend(now, ticket.id, ticket.ttl, Gone::NotFound);
            }
        }
        Dropped {
            leases: leases.iter().map(|l| l.id).collect(),
            tickets: tickets.iter().map(|t| t.id).collect(),
        }
    }

    // try_acquire(claim)

    fn try_acquire(&mut self, now: u64, wall: u64, claim: &Claim) -> Said {
        // 1. The id is spent.
        if self.spent.iter().any(|s| s.id == claim.id) {
            return self.by("try_acquire 1: spent", Said::Gone(Gone::Superseded));
        }
        // 2. The name is in use by a lease or ticket (also the claim's own) of another kind.
        if self
            .modes_held()
            .into_iter()
            .chain(self.queue().into_iter().map(|(_, m)| m))
            .any(|m| !same_kind(m, claim.mode))
        {
            return self.by("try_acquire 2: mismatch", Said::Error(ErrorKind::Mismatch));
        }
        // 3. The id has a lease.
        let rearms = self.wrong(Planted::RepeatRearms);
        if let Some(lease) = self.leases.iter_mut().find(|l| l.id == claim.id) {
            if !claim.first && claim.nonce != lease.nonce {
                return self.by("try_acquire 3: superseded", Said::Gone(Gone::Superseded));
            }
            if claim.first {
                lease.nonce = claim.nonce;
            }
            if claim.repeat {
                lease.repeated = true;
            }
            if rearms {
                lease.expires = now.saturating_add(lease.ttl);
            }
            let grant = lease.grant(now, wall);
            return self.by("try_acquire 3: the same grant", Said::Granted(grant));
        }
        // 4. The id has a ticket.
        let ticket = self.tickets.iter().find(|t| t.id == claim.id).cloned();
        if let Some(ticket) = &ticket {
            if !claim.first && claim.nonce != ticket.nonce {
                return self.by("try_acquire 4: superseded", Said::Gone(Gone::Superseded));
            }
            if ticket.mode != claim.mode {
                return self.by("try_acquire 4: other mode", Said::Error(ErrorKind::InvalidArgument));
            }
        }
        // 5. May it enter?
        let may_enter = if ticket.is_some() {
            self.let_in(&self.queue()).contains(&claim.id)
        } else if claim.queue.is_some() {
            let mut queue = self.queue();
            queue.push((claim.id, claim.mode));
            self.let_in(&queue).contains(&claim.id)
        } else {
            let queue_is_empty = self.tickets.is_empty() || self.wrong(Planted::TryOvertakesTheQueue);
            queue_is_empty && self.compatible(claim.mode, &self.modes_held())
        };
        if may_enter {
            let step = if self.wrong(Planted::FenceStays) { 0 } else { 1 };
            let clock = u128::from(wall) * 256 / 1000;
            let fence = u128::from(self.last_fence + step).max(clock);
            if fence > u128::from(HIGHEST_FENCE) {
                return self.by("try_acquire 5: overflow", Said::Error(ErrorKind::Internal));
            }
            self.last_fence = fence as u64;
            self.tickets.retain(|t| t.id != claim.id);
            let ttl = micros(claim.ttl);
            let lease = Lease {
                id: claim.id,
                mode: claim.mode,
                fence: self.last_fence,
                first_fence: self.last_fence,
                owner: claim.owner.clone(),
                metadata: claim.metadata.clone(),
                ttl,
                expires: now.saturating_add(ttl),
                granted: wall,
                renewals: 0,
                nonce: claim.nonce,
                repeated: claim.repeat || ticket.as_ref().is_some_and(|t| t.repeated),
                revoked: false,
            };
            let grant = lease.grant(now, wall);
            self.leases.push(lease);
            self.changed = true;
            let how = match (ticket, claim.queue) {
                (Some(_), _) => "try_acquire 5: granted by its ticket",
                (None, Some(_)) => "try_acquire 5: granted as the last of the queue",
                (None, None) => "try_acquire 5: granted past an empty queue",
            };
            return self.by(how, Said::Granted(grant));
        }
        // 6. It may not.
        if let Some(queue) = claim.queue {
            let lapses = now.saturating_add(micros(queue));
            if ticket.is_none() {
                self.rule("try_acquire 6: joins");
                self.tickets.push(Ticket {
                    id: claim.id,
                    mode: claim.mode,
                    owner: claim.owner.clone(),
                    ttl: micros(claim.ttl),
                    lapses,
                    since: now,
                    nonce: claim.nonce,
                    repeated: claim.repeat,
                    woken: false,
                });
            } else {
                self.rule("try_acquire 6: keeps its place");
                for ticket in self.tickets.iter_mut().filter(|t| t.id == claim.id) {
                    ticket.lapses = lapses;
                }
                if self.wrong(Planted::RefreshLosesThePlace) {
                    self.tickets.sort_by_key(|t| t.id == claim.id);
                }
            }
        }
        // In both cases a first call sets the ticket's nonce, and `repeat` its mark.
        for ticket in self.tickets.iter_mut().filter(|t| t.id == claim.id) {
            if claim.first {
                ticket.nonce = claim.nonce;
            }
            if claim.repeat {
                ticket.repeated = true;
            }
        }
        // The owner of one lease: for a permit the one that expires first, otherwise the one that expires last.
        let ends: Vec<u64> = self.leases.iter().map(|l| l.expires).collect();
        let end =
            if matches!(claim.mode, Mode::Permit { .. }) { ends.iter().min() } else { ends.iter().max() };
        let tied = self.leases.iter().filter(|l| Some(&l.expires) == end);
        let said = Said::Busy {
            place: self.tickets.iter().position(|t| t.id == claim.id).map(|p| p as u64),
            queue_length: self.tickets.len() as u64,
            holders: tied
                .map(|l| (l.owner.clone(), Duration::from_micros(l.expires.saturating_sub(now))))
                .collect(),
        };
        if self.let_in(&self.queue()).len() == WALKED
            && self.tickets.get(WALKED).is_some_and(|t| t.id == claim.id)
        {
            self.rule("try_acquire 5: the 129th, behind 128 who may enter");
        }
        let how = match (ticket, claim.queue) {
            (_, Some(_)) => "try_acquire 6: busy, queued",
            (Some(_), None) => "try_acquire 6: busy, the ticket stays",
            (None, None) => "try_acquire 6: busy, no ticket",
        };
        self.by(how, said)
    }

    // renew(lease), for each of the batch

    fn renew(&mut self, now: u64, wall: u64, renewal: &Renewal, dropped: &Dropped) -> Said {
        let planted = self.planted;
        // 1. No lease with that id.
        let Some(at) = self.leases.iter().position(|l| l.id == renewal.id) else {
            if let Some(why) = self.why(renewal.id) {
                return self.by("renew 1: spent", Said::Gone(why));
            }
            if dropped.leases.contains(&renewal.id) {
                return self.by("renew 1: expired", Said::Gone(Gone::Expired));
            }
            return self.by("renew 1: not found", Said::Gone(Gone::NotFound));
        };
        let lease = &mut self.leases[at];
        // 2. A fence or an owner is given and differs.
        if renewal.fence.is_some_and(|f| f.get() != lease.fence) {
            return self.by("renew 2: other fence", Said::Gone(Gone::NotFound));
        }
        if renewal.owner.as_ref().is_some_and(|o| *o != lease.owner) {
            return self.by("renew 2: other owner", Said::Gone(Gone::NotFound));
        }
        // 3. The lease is revoked.
        if lease.revoked && planted != Planted::RevokedRenews {
            return self.by("renew 3: revoked", Said::Gone(Gone::Revoked));
        }
        // 4. `raise_fence`.
        let tomorrow = u128::from(wall) * 256 / 1000 + u128::from(DAY_OF_FENCES);
        let limit = u128::from(self.last_fence + 1).max(tomorrow).min(u128::from(HIGHEST_FENCE));
        let limit =
            if planted == Planted::FencesRiseWithoutBound { u128::from(HIGHEST_FENCE) } else { limit };
        if renewal.raise_fence.is_some_and(|f| u128::from(f.get()) > limit) {
            return self.by("renew 4: above the limit", Said::Error(ErrorKind::InvalidArgument));
        }
        if renewal.raise_fence.is_some_and(|f| f.get() < lease.fence) {
            return self.by("renew 4: superseded", Said::Gone(Gone::Superseded));
        }
        // 5. `mode` must be the lease's mode, or Shared while the lease is Exclusive.
        let downgrade = lease.mode == Mode::Exclusive && renewal.mode == Some(Mode::Shared);
        if renewal.mode.is_some_and(|m| m != lease.mode) && !downgrade {
            return self.by("renew 5: mismatch", Said::Error(ErrorKind::Mismatch));
        }
        // 6. `shorten` is given and differs from the number of renewals: nothing changes.
        let counts_differ = renewal.shorten.is_some_and(|n| n != lease.renewals);
        if counts_differ && planted == Planted::RefusalsWriteNotes {
            let (fence, grant) = (lease.fence, lease.grant(now, wall));
            self.write(&renewal.note, fence);
            return self.by("renew 6: renewed meanwhile", Said::Held(grant));
        }
        if counts_differ && planted != Planted::ShortenIgnoresTheCount {
            let grant = lease.grant(now, wall);
            return self.by("renew 6: renewed meanwhile", Said::Held(grant));
        }
        // 7. Mode and fence are taken over; the last fence becomes at least that fence.
        lease.mode = renewal.mode.unwrap_or(lease.mode);
        lease.fence = renewal.raise_fence.map_or(lease.fence, Fence::get);
        if planted != Planted::RaisedFenceIsForgotten {
            self.last_fence = self.last_fence.max(lease.fence);
        }
        let ttl = micros(renewal.ttl);
        lease.expires = match renewal.shorten {
            Some(_) => now.saturating_add(ttl),
            None => lease.expires.max(now.saturating_add(ttl)),
        };
        lease.ttl = lease.ttl.max(ttl);
        if self.clock_can_be_set_back {
            lease.expires = lease.expires.min(now.saturating_add(lease.ttl));
        }
        lease.renewals += 1;
        let (fence, grant) = (lease.fence, lease.grant(now, wall));
        self.changed = true;
        self.write(&renewal.note, fence);
        if downgrade {
            self.rule("renew 7: downgraded");
        }
        if renewal.raise_fence.is_some() {
            self.rule("renew 7: fence raised");
        }
        let how = if renewal.shorten.is_some() { "renew 7: shortened" } else { "renew 7: renewed" };
        self.by(how, Said::Held(grant))
    }

    /// "A note stays if its fence is higher, or if its fence is the same and its revision is higher."
    fn write(&mut self, note: &Option<NewNote>, fence: u64) {
        let Some(new) = note else { return };
        let stays = self.note.as_ref().is_some_and(|old| {
            let by = old.fence.get();
            by > fence || by == fence && old.revision > new.revision
        });
        if stays {
            self.rule("note: one that comes later stays");
        } else {
            self.rule("note: written");
        }
        if !stays || self.wrong(Planted::AnyNoteReplaces) {
            self.note = Some(Note::new(new.text.clone(), Fence::new(fence), new.revision));
        }
    }

    // release(lease)

    fn release(&mut self, now: u64, release: &Release, dropped: &Dropped) -> Said {
        let unanswered = release.unanswered.map(micros);
        let lease = self.leases.iter().find(|l| l.id == release.id).cloned();
        let ticket = self.tickets.iter().find(|t| t.id == release.id).cloned();
        // 1. A lease or ticket with that id has another nonce than the one given.
        let nonce = lease.as_ref().map(|l| l.nonce).or(ticket.as_ref().map(|t| t.nonce));
        let differs = release.nonce.is_some() && nonce.is_some() && release.nonce != nonce;
        if differs && !self.wrong(Planted::ReleaseIgnoresTheNonce) {
            return self.by("release 1: superseded", Said::Gone(Gone::Superseded));
        }
        // 2. A lease with that id.
        if let Some(lease) = lease {
            if release.fence.is_some_and(|f| f.get() != lease.fence) {
                return self.by("release 2: other fence", Said::Gone(Gone::NotFound));
            }
            if release.owner.as_ref().is_some_and(|o| *o != lease.owner) {
                return self.by("release 2: other owner", Said::Gone(Gone::NotFound));
            }
            self.leases.retain(|l| l.id != release.id);
            self.changed = true;
            self.write(&release.note, lease.fence);
            if lease.repeated || unanswered.is_some() {
                self.rule("release 2: spent");
                self.spend(now, release.id, lease.ttl.max(unanswered.unwrap_or(0)), Gone::NotFound);
            }
            return self.by("release 2: done", Said::Done);
        }
        // 3. A ticket with that id.
        if let Some(ticket) = ticket {
            if release.fence.is_some() {
                return self.by("release 3: a fence", Said::Gone(Gone::NotFound));
            }
            if release.owner.as_ref().is_some_and(|o| *o != ticket.owner) {
                return self.by("release 3: other owner", Said::Gone(Gone::NotFound));
            }
            self.tickets.retain(|t| t.id != release.id);
            if ticket.repeated || unanswered.is_some() {
                self.rule("release 3: spent");
                self.spend(now, release.id, ticket.ttl.max(unanswered.unwrap_or(0)), Gone::NotFound);
            }
            return self.by("release 3: done", Said::Done);
        }
        // 4. Neither.
        let (how, why) = match self.why(release.id) {
            Some(why) => ("release 4: spent", why),
            None if dropped.leases.contains(&release.id) => ("release 4: expired", Gone::Expired),
            None => ("release 4: not found", Gone::NotFound),
        };
        if let Some(ttl) = unanswered {
            self.rule("release 4: becomes spent");
            self.spend(now, release.id, ttl, Gone::NotFound);
        }
        self.by(how, Said::Gone(why))
    }

    // revoke(now, only)

    fn revoke(&mut self, now: u64, at_once: bool, only: Option<Fence>) -> Said {
        // "With `only` those with exactly this fence."
        let only = if self.wrong(Planted::RevokeMeetsAnybody) { None } else { only };
        let meant: Vec<LeaseId> = self
            .leases
            .iter()
            .filter(|l| only.is_none_or(|fence| fence.get() == l.fence))
            .map(|l| l.id)
            .collect();
        if only.is_some() && meant.is_empty() && !self.leases.is_empty() {
            self.rule("revoke: another holds it");
        } else if only.is_some() && meant.len() < self.leases.len() {
            self.rule("revoke: one of several");
        }
        if !meant.is_empty() {
            self.changed = true;
            self.rule(if at_once { "revoke: ended" } else { "revoke: marked" });
        }
        for id in &meant {
            for lease in take(&mut self.leases) {
                if lease.id != *id {
                    self.leases.push(lease);
                } else if at_once {
                    self.spend(now, lease.id, lease.ttl, Gone::Revoked);
                } else {
                    self.leases.push(Lease { revoked: true, ..lease });
                }
            }
        }
        Said::Revoked { leases: meant.len() as u64 }
    }

    fn why(&self, id: LeaseId) -> Option<Gone> {
        self.spent.iter().find(|s| s.id == id).map(|s| s.why)
    }

    // Who is let in

    fn modes_held(&self) -> Vec<Mode> {
        self.leases.iter().map(|l| l.mode).collect()
    }

    fn queue(&self) -> Vec<(LeaseId, Mode)> {
        self.tickets.iter().map(|t| (t.id, t.mode)).collect()
    }

    /// "Exclusive is compatible with nobody, Shared with Shared, a permit with fewer than `limit` others."
    fn compatible(&self, mode: Mode, others: &[Mode]) -> bool {
        let more = if self.wrong(Planted::OnePermitTooMany) { 1 } else { 0 };
        match mode {
            Mode::Exclusive => others.is_empty(),
            Mode::Shared => others.iter().all(|m| *m == Mode::Shared),
            Mode::Permit { limit } => others.len() < limit as usize + more,
            other => panic!("the contract does not know {other:?}"),
        }
    }

    /// "Walk the tickets from the front, at most 128. Begin with the leases; each ticket that is compatible
    /// with all leases and all tickets let in before it is let in too; the first that is not ends the walk."
    fn let_in(&self, queue: &[(LeaseId, Mode)]) -> Vec<LeaseId> {
        let more = if self.wrong(Planted::WalksTooFar) { 1 } else { 0 };
        let mut inside = self.modes_held();
        let mut let_in = Vec::new();
        for (id, mode) in queue.iter().take(WALKED + more) {
            if self.compatible(*mode, &inside) {
                inside.push(*mode);
                let_in.push(*id);
            } else if !self.wrong(Planted::ReaderPassesAWaitingWriter) {
                break;
            }
        }
        let_in
    }

    /// "Wake does this walk after the act and wakes every ticket that is let in and not marked woken,
    /// and marks it."
    fn wake(&mut self) -> Vec<LeaseId> {
        let mut let_in = self.let_in(&self.queue());
        if self.wrong(Planted::WakesOnlyTheFirst) {
            let_in.truncate(1);
        }
        let again = self.wrong(Planted::WakesTwice);
        let mut woken = Vec::new();
        for ticket in self.tickets.iter_mut().filter(|t| let_in.contains(&t.id)) {
            if !ticket.woken || again {
                ticket.woken = true;
                woken.push(ticket.id);
            }
        }
        woken
    }

    // inspect: "it changes nothing, and shows only leases and tickets that are live at `now`."

    pub(crate) fn see(&self, Now { expiry: now, wall }: Now, probes: &[LeaseId]) -> Seen {
        let late = self.wrong(Planted::ExpiryIsLate);
        let live = |end: u64| if late { end >= now } else { end > now };
        let holders: Vec<&Lease> = self.leases.iter().filter(|l| live(l.expires)).collect();
        let waiters: Vec<&Ticket> = self.tickets.iter().filter(|t| live(t.lapses)).collect();
        // "Holders are listed in the order of their grants, the oldest 100. The lease of an id that was asked for takes the
        // last place if it is younger."
        let shown: Vec<Id> = holders.iter().map(|l| Id(l.id)).take(SHOWN).collect();
        let asked = |id: &LeaseId| {
            let mut shown = shown.clone();
            let hidden = holders[SHOWN..].iter().any(|l| l.id == *id);
            if hidden && !self.wrong(Planted::AskingByIdIsCutToo) {
                shown[SHOWN - 1] = Id(*id);
            }
            shown
        };
        let counted = if self.wrong(Planted::OnlyTheShownAreCounted) { shown.len() } else { holders.len() };
        let knows = |id: &LeaseId| holders.iter().any(|l| l.id == *id) || waiters.iter().any(|t| t.id == *id);
        Seen {
            version: self.version,
            last_fence: Fence::new(self.last_fence),
            note: self.note.clone(),
            queue_length: waiters.len() as u64,
            known: probes.iter().filter(|id| knows(id)).copied().map(Id).collect(),
            at_rest: self.is_at_rest(),
            holder_count: counted as u64,
            asked: probes.iter().filter(|_| holders.len() > SHOWN).map(asked).collect(),
            holders: holders
                .iter()
                .take(SHOWN)
                .map(|l| HolderSeen {
                    id: Id(l.id),
                    owner: l.owner.clone(),
                    metadata: l.metadata.clone(),
                    grant: l.grant(now, wall),
                    revoked: l.revoked,
                })
                .collect(),
            waiters: waiters
                .iter()
                .take(SHOWN)
                .map(|t| WaiterSeen {
                    id: Id(t.id),
                    owner: t.owner.clone(),
                    mode: t.mode,
                    waited: Duration::from_micros(now.saturating_sub(t.since)),
                })
                .collect(),
        }
    }
}
