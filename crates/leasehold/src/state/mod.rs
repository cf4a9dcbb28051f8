//! The promises as a pure function: the lock state machine of one name, without a clock, I/O or async.
//!
//! [`State::apply`] takes two clock readings and a verb. It returns the answer and the waiters to wake.
//! `docs/contract.md` states the same rules in prose. A store that can change one record atomically (a map under a
//! mutex, a row in a transaction, compare-and-swap) is a shell around it.

// One file because every verb settles the name first, by the same private fields; the stored rows are in `rows`.

// What belongs here: every rule of the contract, and nothing that a store does differently. Before changing anything
// here: read `docs/contract.md`, then run `make model` (random histories on each store beside this) and `make zoo`.

mod rows;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{
    Attempt, Busy, Claim, Gone, Grant, HolderInfo, Mode, NameInfo, NewNote, Note, Release, Released, Renewal,
    Renewed, Revoked, SPENT_FOR, Swept, WaiterInfo,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

pub use rows::{LeaseRow, Row, SpentRow, TicketRow};

/// The most waiters that one call wakes; each one that enters wakes the next.
pub const WAKE_LIMIT: usize = 128;

/// The most waiters that an inspection shows.
pub const WAITERS_SHOWN: usize = 100;

/// The most holders that an inspection shows.
pub const HOLDERS_SHOWN: usize = 100;

/// Waiters behind the front try again at most this often when a place before them may have lapsed. Otherwise a crowd
/// of dead waiters would make the live ones try once for each.
const LAPSE_LOOK: u64 = 250_000;

/// How late a takeover may be. If the front waiter is dead, its ticket's time comes on top.
const FRONT_LOOK: u64 = 1_000_000;

/// A reading of the store's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Microseconds on the clock that decides expiry; its start does not matter.
    pub expiry: u64,
    /// Microseconds since 1970: for fences and display.
    pub wall: u64,
}

/// A verb and its data.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Op<'a> {
    /// [`Backend::try_acquire`](crate::Backend::try_acquire)
    Acquire(&'a Claim),
    /// [`Backend::renew`](crate::Backend::renew), one of the batch
    Renew(&'a Renewal),
    /// [`Backend::release`](crate::Backend::release)
    Release(&'a Release),
    /// [`Backend::revoke`](crate::Backend::revoke)
    Revoke {
        /// Free at once.
        now: bool,
        /// Affect only leases with this fence.
        only: Option<Fence>,
    },
    /// [`Backend::sweep`](crate::Backend::sweep), this name's part
    Sweep,
    /// Keeps the place of a claim that waits in the store's own process
    /// ([`Info::keeps_places`](crate::backend::Info::keeps_places)) for another [`Claim::queue`].
    Keep(&'a Claim),
}

/// The answer to an [`Op`], of the same kind.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Answer {
    /// To an acquire.
    Acquired(Attempt),
    /// To a renewal.
    Renewed(Renewed),
    /// To a release.
    Released(Released),
    /// To a revocation.
    Revoked(Revoked),
    /// To a sweep.
    Swept(Swept),
    /// To `Keep`: whether there is such a place.
    Kept(bool),
}

/// One name's leases, queue and counters.
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct State {
    fence: Fence,
    version: u64,
    leases: HashMap<LeaseId, Box<Lease>>,
    /// Most names never have one.
    #[cfg_attr(feature = "serde", serde(default))]
    note: Option<Box<Note>>,
    /// Most names never have these; boxed, so that they do not pay for it.
    crowd: Option<Box<Crowd>>,
    /// Nothing expires, lapses or is forgotten before this. May be too early, never too late.
    due: u64,
}

#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Crowd {
    /// Ordered by arrival number.
    queue: BTreeMap<u64, Ticket>,
    places: HashMap<LeaseId, u64>,
    arrivals: u64,
    spent: HashMap<LeaseId, Spent>,
    /// No ticket lapses before this; like `due`, it may be too early but never too late.
    lapse: u64,
}

#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Lease {
    mode: Mode,
    fence: Fence,
    /// The fence at the time of the grant: a raised one says nothing about the order of grants.
    granted: Fence,
    owner: Arc<str>,
    metadata: Option<Arc<str>>,
    ttl: u64,
    expires: u64,
    acquired_wall: u64,
    renewals: u64,
    nonce: u64,
    repeated: bool,
    revoked: bool,
}

#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Ticket {
    id: LeaseId,
    mode: Mode,
    owner: Arc<str>,
    ttl: u64,
    lapses: u64,
    joined: u64,
    nonce: u64,
    repeated: bool,
    woken: bool,
}

#[derive(Debug, Clone, Copy)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Spent {
    until: u64,
    why: Gone,
}

impl Crowd {
    /// How many tickets are before the one with this arrival number.
    fn before(&self, number: u64) -> u64 {
        let (first, last) = (self.queue.first_key_value(), self.queue.last_key_value());
        let (Some((first, _)), Some((last, _))) = (first, last) else { return 0 };
        let length = self.queue.len() as u64;
        // Usually no ticket has left from the middle, and then the numbers give the answer. Otherwise the tickets are
        // counted, from the nearer end, because the waiters in a long queue ask again and again.
        if last - first + 1 == length {
            number - first
        } else if number - first <= last - number {
            self.queue.range(..number).count() as u64
        } else {
            length - self.queue.range(number..).count() as u64
        }
    }
}

/// The one predicate for expiry: whether what ends at `end` is still live at `now`.
fn is_live(end: u64, now: u64) -> bool {
    end > now
}

/// Microseconds, rounded up: stores never cut a lease short.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// When a claim that must wait tries again if no wake-up comes. `holder` is the remaining time and the ttl of the
/// lease in the way, `until_lapse` the time until a place in the queue may lapse; all in microseconds.
///
/// The front waiter tries again when the holder's time ends. The waiters before it wake any other waiter, unless they
/// are dead: it then tries again when their tickets lapse. No message says that a ticket has become the front, so with
/// a short ttl a waiter tries often enough to learn it before the next expiry.
pub(crate) fn look_again(
    claim: &Claim,
    place: Option<u64>,
    holder: Option<(u64, u64)>,
    until_lapse: u64,
) -> Duration {
    let look = match (place, holder) {
        (None | Some(0), Some((left, _))) => left,
        _ => {
            let shortest = holder.map_or(u64::MAX, |(_, ttl)| ttl.min(micros(claim.ttl)));
            until_lapse.max(LAPSE_LOOK).min(shortest.max(FRONT_LOOK))
        }
    };
    let refresh = claim.queue.map_or(u64::MAX, |ticket_ttl| micros(ticket_ttl) / 3);
    Duration::from_micros(look.min(refresh))
}

/// What a walk through the queue must be compatible with: the leases, and the tickets let in so far.
struct Admitted {
    exclusive: bool,
    count: usize,
}

impl Admitted {
    fn admits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.count == 0,
            Mode::Shared => !self.exclusive,
            Mode::Permit { limit } => self.count < limit as usize,
        }
    }

    fn enter(&mut self, mode: Mode) {
        self.exclusive |= mode == Mode::Exclusive;
        self.count += 1;
    }
}

/// Keeps the holders to show: the oldest ones and, in the last place, the requested one if it is not among them.
pub(crate) fn cut_holders<T>(all: &mut Vec<T>, is_asked: impl Fn(&T) -> bool) {
    if let Some(hidden) = all.iter().skip(HOLDERS_SHOWN).position(is_asked) {
        all.swap(HOLDERS_SHOWN - 1, HOLDERS_SHOWN + hidden);
    }
    all.truncate(HOLDERS_SHOWN);
}

/// What settling removed, as far as the verb's answer depends on it.
#[derive(Default)]
struct Settled {
    expired: Vec<LeaseId>,
    tickets: u64,
}

impl State {
    /// A name that has never been used.
    pub fn new() -> Self {
        State::default()
    }

    /// Settles the name, acts, and adds to `wake` the ids of the waiters that can now enter.
    ///
    /// # Errors
    /// `Mismatch`, `InvalidArgument` or `Internal` (fence overflow), as `docs/contract.md` says. The
    /// verb has then changed nothing, but settling and waking have happened.
    pub fn apply(&mut self, now: Now, op: Op<'_>, wake: &mut Vec<LeaseId>) -> Result<Answer> {
        let version = self.version;
        let settled = self.settle(now.expiry);
        let answer = match op {
            Op::Acquire(claim) => self.acquire(now, claim).map(Answer::Acquired),
            Op::Renew(renewal) => self.renew(now, renewal, &settled).map(Answer::Renewed),
            Op::Release(release) => Ok(Answer::Released(self.release(now.expiry, release, &settled))),
            Op::Revoke { now: at_once, only } => Ok(Answer::Revoked(self.revoke(now.expiry, at_once, only))),
            Op::Sweep => Ok(Answer::Swept(Swept {
                expired: settled.expired.len() as u64,
                tickets: settled.tickets,
                held: self.leases.len() as u64,
                waiting: self.queue_length(),
                counters: 0,
            })),
            Op::Keep(claim) => Ok(Answer::Kept(self.keep(now.expiry, claim))),
        };
        if self.version == version && !settled.expired.is_empty() {
            self.version += 1;
        }
        self.wake(wake);
        answer
    }

    /// What an inspection shows at `now`, without changing anything. It always includes the lease of the id `asked`.
    pub fn view(&self, name: &Name, now: Now, asked: Option<&LeaseId>) -> NameInfo {
        let live = self.leases.iter().filter(|(_, lease)| is_live(lease.expires, now.expiry));
        let mut leases: Vec<_> = live.collect();
        leases.sort_unstable_by_key(|(_, lease)| lease.granted);
        let holder_count = leases.len() as u64;
        cut_holders(&mut leases, |(id, _)| asked == Some(*id));
        let holders = leases
            .into_iter()
            .map(|(id, lease)| HolderInfo {
                id: *id,
                owner: lease.owner.clone(),
                metadata: lease.metadata.clone(),
                grant: lease.grant(now),
                revoked: lease.revoked,
            })
            .collect();
        let live = || self.tickets().filter(|ticket| is_live(ticket.lapses, now.expiry));
        let waiters = live()
            .take(WAITERS_SHOWN)
            .map(|ticket| WaiterInfo {
                id: ticket.id,
                owner: ticket.owner.clone(),
                mode: ticket.mode,
                waited: Duration::from_micros(now.expiry.saturating_sub(ticket.joined)),
            })
            .collect();
        NameInfo {
            name: name.clone(),
            version: self.version,
            last_fence: self.fence,
            note: self.note().cloned(),
            holders,
            holder_count,
            waiters,
            queue_length: live().count() as u64,
        }
    }

    /// Whether this id holds a lease or waits at `now`.
    pub fn knows(&self, id: &LeaseId, now: Now) -> bool {
        self.leases.get(id).is_some_and(|lease| is_live(lease.expires, now.expiry))
            || self.ticket(id).is_some_and(|(_, ticket)| is_live(ticket.lapses, now.expiry))
    }

    /// Whether any client holds the name or waits for it at `now`.
    pub fn is_in_use(&self, now: Now) -> bool {
        self.leases.values().any(|lease| is_live(lease.expires, now.expiry))
            || self.tickets().any(|ticket| is_live(ticket.lapses, now.expiry))
    }

    /// Whether nothing is left but the fence counter and the note.
    pub fn is_at_rest(&self) -> bool {
        self.leases.is_empty()
            && self.crowd.as_ref().is_none_or(|crowd| crowd.queue.is_empty() && crowd.spent.is_empty())
    }

    /// How many leases have expired at `now` and are not settled yet. The next verb drops them, and only a sweep
    /// reports them: a caller that counts all expired leases calls this before each verb.
    pub fn expired(&self, now: Now) -> u64 {
        if is_live(self.due, now.expiry) {
            return 0;
        }
        self.leases.values().filter(|lease| !is_live(lease.expires, now.expiry)).count() as u64
    }

    /// The fence of the latest grant.
    pub fn last_fence(&self) -> Fence {
        self.fence
    }

    /// The note of the name, also if it was cleared.
    pub fn note(&self) -> Option<&Note> {
        self.note.as_deref()
    }

    fn settle(&mut self, now: u64) -> Settled {
        let mut settled = Settled::default();
        if is_live(self.due, now) {
            return settled;
        }
        if let Some(crowd) = &mut self.crowd {
            crowd.spent.retain(|_, spent| is_live(spent.until, now));
        }
        let mut to_spend = Vec::new();
        self.leases.retain(|id, lease| {
            let live = is_live(lease.expires, now);
            if !live {
                settled.expired.push(*id);
                if lease.repeated {
                    to_spend.push((*id, lease.ttl, Gone::Expired));
                }
            }
            live
        });
        if let Some(crowd) = &mut self.crowd {
            let places = &mut crowd.places;
            crowd.queue.retain(|_, ticket| {
                let live = is_live(ticket.lapses, now);
                if !live {
                    places.remove(&ticket.id);
                    settled.tickets += 1;
                    if ticket.repeated {
                        to_spend.push((ticket.id, ticket.ttl, Gone::NotFound));
                    }
                }
                live
            });
        }
        self.find_due();
        if self.crowd.as_ref().is_some_and(|crowd| crowd.queue.is_empty() && crowd.spent.is_empty()) {
            self.crowd = None;
        }
        for (id, ttl, why) in to_spend {
            self.spend(id, ttl, why, now);
        }
        settled
    }

    /// Finds exactly when something ends next.
    fn find_due(&mut self) {
        self.due = self.leases.values().map(|lease| lease.expires).min().unwrap_or(u64::MAX);
        if let Some(crowd) = &mut self.crowd {
            crowd.lapse = crowd.queue.values().map(|ticket| ticket.lapses).min().unwrap_or(u64::MAX);
            let spent = crowd.spent.values().map(|spent| spent.until).min().unwrap_or(u64::MAX);
            self.due = self.due.min(crowd.lapse).min(spent);
        }
    }

    fn acquire(&mut self, now: Now, claim: &Claim) -> Result<Attempt> {
        if self.spent(&claim.id).is_some() {
            return Ok(Attempt::Gone(Gone::Superseded));
        }
        if let Some(mode) = self.mode_in_use().filter(|mode| !mode.is_same_kind(claim.mode)) {
            return Err(claim.mode.mismatch(mode));
        }
        if let Some(lease) = self.leases.get_mut(&claim.id) {
            if !claim.first && lease.nonce != claim.nonce {
                return Ok(Attempt::Gone(Gone::Superseded));
            }
            lease.nonce = claim.nonce;
            lease.repeated |= claim.repeat;
            return Ok(Attempt::Granted(lease.grant(now)));
        }
        let ticket = self.ticket(&claim.id);
        let arrival = ticket.map(|(arrival, _)| arrival);
        let mut repeated = claim.repeat;
        if let Some((_, ticket)) = ticket {
            if !claim.first && ticket.nonce != claim.nonce {
                return Ok(Attempt::Gone(Gone::Superseded));
            }
            if ticket.mode != claim.mode {
                return Err(Error::invalid(
                    "this lease id already waits for another mode; ids are never used twice",
                ));
            }
            repeated |= ticket.repeated;
        }
        if !self.lets_in(claim, arrival) {
            return Ok(Attempt::Busy(self.queue_up(now.expiry, claim, arrival)));
        }
        self.fence = self.fence.next(now.wall)?;
        if let (Some(arrival), Some(crowd)) = (arrival, &mut self.crowd) {
            crowd.queue.remove(&arrival);
            crowd.places.remove(&claim.id);
        }
        let ttl = micros(claim.ttl);
        let lease = Lease {
            mode: claim.mode,
            fence: self.fence,
            granted: self.fence,
            owner: claim.owner.clone(),
            metadata: claim.metadata.clone(),
            ttl,
            expires: now.expiry.saturating_add(ttl),
            acquired_wall: now.wall,
            renewals: 0,
            nonce: claim.nonce,
            repeated,
            revoked: false,
        };
        let grant = lease.grant(now);
        self.due = self.due.min(lease.expires);
        self.leases.insert(claim.id, Box::new(lease));
        self.version += 1;
        Ok(Attempt::Granted(grant))
    }

    /// Whether the claim may enter: by its ticket, at the end of the queue, or with no queue.
    fn lets_in(&self, claim: &Claim, arrival: Option<u64>) -> bool {
        let mut admitted = self.admitted();
        let Some(crowd) = self.crowd.as_ref().filter(|crowd| !crowd.queue.is_empty()) else {
            return admitted.admits(claim.mode);
        };
        let joins = arrival.is_none() && claim.queue.is_some();
        if (arrival.is_none() && !joins) || (joins && crowd.queue.len() >= WAKE_LIMIT) {
            return false;
        }
        for (number, ticket) in crowd.queue.iter().take(WAKE_LIMIT) {
            if !admitted.admits(ticket.mode) {
                return false;
            }
            if Some(*number) == arrival {
                return true;
            }
            admitted.enter(ticket.mode);
        }
        joins && admitted.admits(claim.mode)
    }

    /// Joins the queue or refreshes the place, if the claim asks for it. Returns what is in the way.
    fn queue_up(&mut self, now: u64, claim: &Claim, arrival: Option<u64>) -> Busy {
        // A blocked permit waits for the first lease to end, other modes for the last.
        let holder = match claim.mode {
            Mode::Permit { .. } => self.leases.values().min_by_key(|lease| (lease.expires, lease.granted)),
            _ => self.leases.values().max_by_key(|lease| (lease.expires, lease.granted)),
        };
        let owner = holder.map(|lease| lease.owner.clone());
        let holder_left = holder.map(|lease| lease.expires - now);
        let holder_ttl = holder.map(|lease| lease.ttl);

        let mut arrival = arrival;
        if let Some(ticket_ttl) = claim.queue {
            let crowd = self.crowd.get_or_insert_default();
            let lapses = now.saturating_add(micros(ticket_ttl));
            if crowd.queue.is_empty() {
                crowd.lapse = lapses;
            }
            crowd.lapse = crowd.lapse.min(lapses);
            self.due = self.due.min(lapses);
            let number = *arrival.get_or_insert_with(|| {
                crowd.arrivals += 1;
                crowd.places.insert(claim.id, crowd.arrivals);
                crowd.arrivals
            });
            let ticket = crowd.queue.entry(number).or_insert_with(|| Ticket {
                id: claim.id,
                mode: claim.mode,
                owner: claim.owner.clone(),
                ttl: micros(claim.ttl),
                lapses,
                joined: now,
                nonce: claim.nonce,
                repeated: false,
                woken: false,
            });
            ticket.lapses = lapses;
        }
        if let (Some(number), Some(crowd)) = (arrival, &mut self.crowd)
            && let Some(ticket) = crowd.queue.get_mut(&number)
        {
            ticket.nonce = claim.nonce; // a later call has the same nonce, or it was refused
            ticket.repeated |= claim.repeat;
        }

        let (place, queue_length, lapse) = match &self.crowd {
            Some(crowd) => {
                let length = crowd.queue.len() as u64;
                let place = arrival.map(|number| crowd.before(number));
                (place, length, crowd.lapse)
            }
            None => (None, 0, u64::MAX),
        };
        let holder = holder_left.zip(holder_ttl);
        Busy {
            retry_in: Some(look_again(claim, place, holder, lapse.saturating_sub(now))),
            place,
            queue_length,
            owner,
            holder_left: holder_left.map(Duration::from_micros),
        }
    }

    /// Keeps an existing place. It neither joins the queue nor enters.
    fn keep(&mut self, now: u64, claim: &Claim) -> bool {
        let Some(crowd) = &mut self.crowd else { return false };
        let ticket = crowd.places.get(&claim.id).and_then(|arrival| crowd.queue.get_mut(arrival));
        let Some(ticket) = ticket.filter(|ticket| ticket.nonce == claim.nonce) else { return false };
        let lapses = now.saturating_add(micros(claim.queue.unwrap_or_default()));
        ticket.lapses = ticket.lapses.max(lapses);
        true
    }

    fn renew(&mut self, now: Now, renewal: &Renewal, settled: &Settled) -> Result<Renewed> {
        let Some(lease) = self.leases.get_mut(&renewal.id) else {
            return Ok(Renewed::Gone(self.why_gone(&renewal.id, settled)));
        };
        if !lease.matches(renewal.fence, renewal.owner.as_deref()) {
            return Ok(Renewed::Gone(Gone::NotFound));
        }
        if lease.revoked {
            return Ok(Renewed::Gone(Gone::Revoked));
        }
        if let Some(raised) = renewal.raise_fence {
            if raised > self.fence.raise_limit(now.wall) {
                return Err(Fence::too_high());
            }
            if lease.fence > raised {
                return Ok(Renewed::Gone(Gone::Superseded));
            }
        }
        let mode = renewal.mode.unwrap_or(lease.mode);
        if mode != lease.mode && (lease.mode, mode) != (Mode::Exclusive, Mode::Shared) {
            return Err(Error::new(
                ErrorKind::Mismatch,
                "only an exclusive lease can change its mode, and only to shared",
            ));
        }
        if renewal.shorten.is_some_and(|renewals| renewals != lease.renewals) {
            return Ok(Renewed::Held(lease.grant(now)));
        }
        lease.mode = mode;
        if let Some(raised) = renewal.raise_fence {
            lease.fence = raised;
            self.fence = self.fence.max(raised);
        }
        let fence = lease.fence;
        let ttl = micros(renewal.ttl);
        let asked = now.expiry.saturating_add(ttl);
        lease.expires = if renewal.shorten.is_some() { asked } else { asked.max(lease.expires) };
        lease.ttl = lease.ttl.max(ttl);
        lease.renewals += 1;
        let grant = lease.grant(now);
        self.due = self.due.min(lease.expires);
        self.version += 1;
        self.write_note(renewal.note.as_ref(), fence);
        Ok(Renewed::Held(grant))
    }

    /// Writes a note for a lease with this fence, unless the one that is there comes after it.
    fn write_note(&mut self, new: Option<&NewNote>, fence: Fence) {
        let Some(new) = new else { return };
        if self.note().is_none_or(|note| !note.outranks(fence, new.revision)) {
            self.note = Some(Box::new(Note::new(Arc::clone(&new.text), fence, new.revision)));
        }
    }

    fn release(&mut self, now: u64, release: &Release, settled: &Settled) -> Released {
        let id = release.id;
        let newer = |nonce: u64| release.nonce.is_some_and(|given| given != nonce);
        let unanswered = release.unanswered.map(micros);
        let (ttl, repeated) = if let Some(lease) = self.leases.get(&id) {
            if newer(lease.nonce) {
                return Released::Gone(Gone::Superseded);
            }
            if !lease.matches(release.fence, release.owner.as_deref()) {
                return Released::Gone(Gone::NotFound);
            }
            let (found, fence) = ((lease.ttl, lease.repeated), lease.fence);
            self.leases.remove(&id);
            self.version += 1;
            self.write_note(release.note.as_ref(), fence);
            found
        } else if let Some((arrival, ticket)) = self.ticket(&id) {
            if newer(ticket.nonce) {
                return Released::Gone(Gone::Superseded);
            }
            let other = release.owner.as_deref().is_some_and(|owner| *owner != *ticket.owner);
            if other || release.fence.is_some() {
                return Released::Gone(Gone::NotFound);
            }
            let found = (ticket.ttl, ticket.repeated);
            if let Some(crowd) = &mut self.crowd {
                crowd.queue.remove(&arrival);
                crowd.places.remove(&id);
            }
            found
        } else {
            let why = self.why_gone(&id, settled);
            if let Some(ttl) = unanswered {
                self.spend(id, ttl, Gone::NotFound, now);
            }
            return Released::Gone(why);
        };
        if repeated || unanswered.is_some() {
            self.spend(id, ttl.max(unanswered.unwrap_or(0)), Gone::NotFound, now);
        }
        Released::Done
    }

    fn revoke(&mut self, now: u64, at_once: bool, only: Option<Fence>) -> Revoked {
        let is_meant = |lease: &Lease| only.is_none_or(|fence| fence == lease.fence);
        let meant = self.leases.iter_mut().filter(|(_, lease)| is_meant(lease));
        let mut ids = Vec::new();
        for (id, lease) in meant {
            ids.push(*id);
            lease.revoked |= !at_once;
        }
        if !ids.is_empty() {
            self.version += 1;
        }
        for id in ids.iter().filter(|_| at_once) {
            if let Some(lease) = self.leases.remove(id) {
                self.spend(*id, lease.ttl, Gone::Revoked, now);
            }
        }
        Revoked { leases: ids.len() as u64 }
    }

    fn wake(&mut self, wake: &mut Vec<LeaseId>) {
        let mut admitted = self.admitted();
        let Some(crowd) = &mut self.crowd else { return };
        for ticket in crowd.queue.values_mut().take(WAKE_LIMIT) {
            if !admitted.admits(ticket.mode) {
                break;
            }
            admitted.enter(ticket.mode);
            if !ticket.woken {
                ticket.woken = true;
                wake.push(ticket.id);
            }
        }
    }

    fn spend(&mut self, id: LeaseId, ttl: u64, why: Gone, now: u64) {
        let until = now.saturating_add(ttl.max(micros(SPENT_FOR)));
        let spent = self.crowd.get_or_insert_default().spent.entry(id).or_insert(Spent { until, why });
        spent.until = spent.until.max(until);
        self.due = self.due.min(until);
    }

    fn why_gone(&self, id: &LeaseId, settled: &Settled) -> Gone {
        match self.spent(id) {
            Some(spent) => spent.why,
            None if settled.expired.contains(id) => Gone::Expired,
            None => Gone::NotFound,
        }
    }

    fn admitted(&self) -> Admitted {
        // An exclusive lease is always alone.
        let exclusive =
            self.leases.len() == 1 && self.leases.values().any(|lease| lease.mode == Mode::Exclusive);
        Admitted { exclusive, count: self.leases.len() }
    }

    /// The mode of any lease or ticket: all are of one kind.
    fn mode_in_use(&self) -> Option<Mode> {
        let lease = self.leases.values().next().map(|lease| lease.mode);
        lease.or_else(|| self.tickets().next().map(|ticket| ticket.mode))
    }

    fn tickets(&self) -> impl Iterator<Item = &Ticket> {
        self.crowd.iter().flat_map(|crowd| crowd.queue.values())
    }

    fn ticket(&self, id: &LeaseId) -> Option<(u64, &Ticket)> {
        let crowd = self.crowd.as_ref()?;
        let arrival = *crowd.places.get(id)?;
        Some((arrival, crowd.queue.get(&arrival)?))
    }

    fn spent(&self, id: &LeaseId) -> Option<&Spent> {
        self.crowd.as_ref()?.spent.get(id)
    }

    /// Whether this id has a ticket, live or not.
    pub fn is_queued(&self, id: &LeaseId) -> bool {
        self.ticket(id).is_some()
    }

    /// How many tickets there are, live or not.
    pub fn queue_length(&self) -> u64 {
        self.crowd.as_ref().map_or(0, |crowd| crowd.queue.len() as u64)
    }
}

impl Lease {
    fn grant(&self, now: Now) -> Grant {
        let left = self.expires.saturating_sub(now.expiry);
        Grant {
            fence: self.fence,
            mode: self.mode,
            left: Some(Duration::from_micros(left)),
            waited: Duration::ZERO,
            renewals: self.renewals,
            acquired_at_ms: self.acquired_wall / 1000,
            expires_at_ms: Some(now.wall.saturating_add(left) / 1000),
        }
    }

    fn matches(&self, fence: Option<Fence>, owner: Option<&str>) -> bool {
        fence.is_none_or(|fence| fence == self.fence) && owner.is_none_or(|owner| owner == &*self.owner)
    }
}
