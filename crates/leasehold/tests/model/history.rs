//! Random histories: what a test asks of a name, and when. The spec's state guides them, so that calls are often
//! exactly right, exactly wrong or exactly on time.
//!
//! One file because the profiles and the choices that read their weights are tuned together.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Claim, NewNote, Release, Renewal};
use leasehold::state::{Now, Op};
use leasehold::{Fence, LeaseId, Mode, Name};

use super::Id;
use super::spec::{Lease, Spec, Ticket};

const HOUR: u64 = 3_600_000_000;
/// The wall clock of the start: in the year 2026.
const START: u64 = 1_790_000_000_000_000;
/// The clock of the start where one clock decides everything: so far ahead that no real server sees these times pass.
const START_OF_ONE: u64 = 2_840_000_000_000_000;
/// A wall clock an hour before its fences reach the limit.
const NEAR_THE_LIMIT: u64 = 3_515_625_000_000_000 - HOUR;
/// A wall clock whose fences are above the limit.
const FAR_FUTURE: u64 = 3_600_000_000_000_000;

/// SplitMix64.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64, profile: usize, history: usize) -> Self {
        let mut rng = Rng(seed ^ (profile as u64) << 56 ^ (history as u64) << 32);
        rng.next();
        rng
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random number below `end`; 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in this many of a thousand cases.
    pub(crate) fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len() as u64) as usize)
    }

    /// A random index, with these weights.
    fn weighted<const N: usize>(&mut self, weights: [u64; N]) -> usize {
        let mut at = self.below(weights.iter().sum());
        for (i, weight) in weights.into_iter().enumerate() {
            if at < weight {
                return i;
            }
            at -= weight;
        }
        0
    }
}

/// One sort of history.
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    /// Its share of all steps.
    pub(crate) share: usize,
    /// Steps in one history.
    pub(crate) length: usize,
    /// The limits of a semaphore, one of them for each history; none for exclusive and shared claims.
    pub(crate) limits: &'static [u32],
    /// How many of a thousand claims are exclusive, if it is no semaphore.
    pub(crate) writers: u64,
    /// How many claims of a thousand are of any mode at all.
    pub(crate) strangers: u64,
    /// How many lease ids are in play.
    pub(crate) pool: usize,
    /// How many claims of a thousand queue.
    pub(crate) queued: u64,
    /// How many steps of a thousand take no time.
    pub(crate) still: u64,
    /// Weights of microseconds, milliseconds, seconds, hours: of leases and of tickets.
    pub(crate) ttls: [u64; 4],
    pub(crate) tickets: [u64; 4],
    /// How long the queue grows before it shrinks again; 0: no limit.
    pub(crate) depth: usize,
    /// Whether fences are driven to their limit.
    pub(crate) near_the_limit: bool,
}

const USUAL: Profile = Profile {
    name: "a mutex",
    share: 4,
    length: 600,
    limits: &[],
    writers: 1000,
    strangers: 20,
    pool: 8,
    queued: 700,
    still: 500,
    ttls: [1, 3, 5, 4],
    tickets: [1, 3, 5, 2],
    depth: 0,
    near_the_limit: false,
};

const LONG_QUEUE: Profile = Profile {
    name: "a long queue of readers and writers",
    share: 1,
    length: 4000,
    writers: 3,
    strangers: 3,
    pool: 260,
    queued: 950,
    still: 990,
    ttls: [0, 0, 1, 9],
    tickets: [0, 0, 1, 60],
    depth: 150,
    ..USUAL
};

pub(crate) const PROFILES: &[Profile] = &[
    USUAL,
    Profile { name: "readers and writers", writers: 350, pool: 14, ..USUAL },
    Profile { name: "a crowd of readers", writers: 60, pool: 50, share: 3, ..USUAL },
    Profile { name: "a semaphore", limits: &[1, 2, 3, 7], pool: 16, ..USUAL },
    Profile { name: "try only", writers: 500, pool: 6, queued: 60, share: 2, ..USUAL },
    Profile {
        name: "every kind at once",
        writers: 500,
        strangers: 350,
        pool: 6,
        share: 2,
        still: 300,
        ..USUAL
    },
    Profile { name: "the highest fence", writers: 350, share: 2, length: 120, near_the_limit: true, ..USUAL },
    LONG_QUEUE,
    Profile { name: "a long queue for a semaphore", limits: &[2], pool: 300, ..LONG_QUEUE },
    Profile { name: "a crowd of permits", limits: &[150], pool: 420, ..LONG_QUEUE },
];

/// What is asked.
#[derive(Clone)]
pub(crate) enum Verb {
    Acquire(Claim),
    Renew(Renewal),
    Release(Release),
    Revoke {
        now: bool,
        only: Option<Fence>,
    },
    Sweep,
    /// No verb: time passes, and the test looks.
    Look,
}

impl Verb {
    pub(crate) fn op(&self) -> Option<Op<'_>> {
        match self {
            Verb::Acquire(claim) => Some(Op::Acquire(claim)),
            Verb::Renew(renewal) => Some(Op::Renew(renewal)),
            Verb::Release(release) => Some(Op::Release(release)),
            Verb::Revoke { now, only } => Some(Op::Revoke { now: *now, only: *only }),
            Verb::Sweep => Some(Op::Sweep),
            Verb::Look => None,
        }
    }

    pub(crate) fn id(&self) -> Option<LeaseId> {
        match self {
            Verb::Acquire(claim) => Some(claim.id),
            Verb::Renew(renewal) => Some(renewal.id),
            Verb::Release(release) => Some(release.id),
            Verb::Revoke { .. } | Verb::Sweep | Verb::Look => None,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only what is given.
        let mut given = |what: &str, value: Option<String>| match value {
            Some(value) => write!(f, "{what}{value}"),
            None => Ok(()),
        };
        let shown = |id: LeaseId| Some(format!("{:?}", Id(id)));
        match self {
            Verb::Acquire(c) => {
                given("try_acquire ", shown(c.id))?;
                given(" ", Some(format!("{} for {:?} by {}", c.mode, c.ttl, c.owner)))?;
                given(" queue ", c.queue.map(|q| format!("{q:?}")))?;
                given(" nonce ", Some(c.nonce.to_string()))?;
                given(" ", c.first.then(|| "first".into()))?;
                given(" ", c.repeat.then(|| "repeat".into()))
            }
            Verb::Renew(r) => {
                given("renew ", shown(r.id))?;
                given(" for ", Some(format!("{:?}", r.ttl)))?;
                given(" fence ", r.fence.map(|f| f.to_string()))?;
                given(" owner ", r.owner.as_ref().map(|o| o.to_string()))?;
                given(" shorten ", r.shorten.map(|n| n.to_string()))?;
                given(" mode ", r.mode.map(|m| m.to_string()))?;
                given(" raise_fence ", r.raise_fence.map(|f| f.to_string()))?;
                given(" note ", r.note.as_ref().map(|n| format!("{} {:?}", n.revision, n.text)))
            }
            Verb::Release(r) => {
                given("release ", shown(r.id))?;
                given(" fence ", r.fence.map(|f| f.to_string()))?;
                given(" owner ", r.owner.as_ref().map(|o| o.to_string()))?;
                given(" unanswered ", r.unanswered.map(|t| format!("{t:?}")))?;
                given(" nonce ", r.nonce.map(|n| n.to_string()))?;
                given(" note ", r.note.as_ref().map(|n| format!("{} {:?}", n.revision, n.text)))
            }
            Verb::Revoke { now, only } => {
                given("revoke now: ", Some(now.to_string()))?;
                given(" only ", only.map(|f| f.to_string()))
            }
            Verb::Sweep => given("sweep", Some(String::new())),
            Verb::Look => given("look", Some(String::new())),
        }
    }
}

/// Whether the name just now fills, empties, or neither.
#[derive(Clone, Copy, PartialEq)]
enum Tide {
    Fills,
    Empties,
    Neither,
}

/// The script of one history.
pub(crate) struct History<'a> {
    profile: &'a Profile,
    pub(crate) rng: Rng,
    name: Name,
    limit: Option<u32>,
    pool: Vec<LeaseId>,
    made: u64,
    tide: Tide,
    now: u64,
    wall: u64,
    /// The wall clock shows the far future.
    far: bool,
    clocks: Clocks,
}

/// The clocks that the tested side uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clocks {
    /// One that decides expiry and only runs forward, and the wall clock, which jumps.
    Two,
    /// The wall clock for everything, which is set back now and then.
    One,
}

impl<'a> History<'a> {
    pub(crate) fn new(profile: &'a Profile, name: Name, mut rng: Rng, clocks: Clocks) -> Self {
        let limit = rng.pick(profile.limits).copied();
        let late = profile.near_the_limit && rng.chance(700);
        let start = match clocks {
            _ if late => NEAR_THE_LIMIT,
            Clocks::One => START_OF_ONE,
            Clocks::Two => START,
        };
        let now = rng.below(2 * HOUR);
        let mut history = History {
            profile,
            rng,
            name,
            limit,
            pool: Vec::new(),
            made: 0,
            tide: Tide::Fills,
            now: if clocks == Clocks::One { start } else { now },
            wall: start,
            far: false,
            clocks,
        };
        for _ in 0..profile.pool {
            let id = history.fresh();
            history.pool.push(id);
        }
        history
    }

    fn fresh(&mut self) -> LeaseId {
        self.made += 1;
        // The ids of two names differ: a store may find a name by one.
        let name = self.name.stored().len() % 10;
        LeaseId::parse(&format!("{name}{:021}", self.made)).expect("22 digits")
    }

    // Time.

    /// An instant from now on, often one at which something ends, or just before or after it.
    fn instant(&mut self, spec: &Spec) -> u64 {
        let mut ends: Vec<u64> = spec.ends().into_iter().filter(|end| *end > self.now).collect();
        let soonest = ends.iter().min().copied();
        // Ids stay spent for long: waiting for that ends nearly everything else.
        if self.rng.chance(60) {
            ends.extend(spec.spent.iter().map(|s| s.until));
        }
        let end = if self.rng.chance(850) { soonest } else { self.rng.pick(&ends).copied() };
        let step = match (self.rng.weighted([25, 5, 5, 40, 25]), end) {
            (0, Some(end)) => end.saturating_sub(self.now),
            (1, Some(end)) => end.saturating_sub(self.now + 1),
            (2, Some(end)) => end.saturating_sub(self.now) + 1,
            (3, Some(end)) => self.rng.below(end.saturating_sub(self.now)),
            _ => self.rng.below(20),
        };
        // What never ends is not waited for.
        self.now + if step > 30 * HOUR { 1 } else { step }
    }

    pub(crate) fn now(&self) -> Now {
        self.time(self.now)
    }

    /// Lets some time pass, or none, and tells the time.
    pub(crate) fn pass(&mut self, spec: &Spec) -> Now {
        if !self.rng.chance(self.profile.still) {
            let then = self.instant(spec);
            self.wall += then - self.now;
            self.now = then;
        }
        if self.clocks == Clocks::One {
            if self.rng.chance(20) {
                let (unit, most) = [(1, 9), (1000, 900), (1_000_000, 90)][self.rng.weighted([1, 2, 2])];
                self.now -= self.rng.between(unit, most * unit);
            }
            self.wall = self.now;
            return self.now();
        }
        if self.rng.chance(40) {
            let jump = self.rng.below(HOUR);
            self.wall = if self.rng.chance(500) { self.wall + jump } else { self.wall - jump };
        }
        self.far = self.profile.near_the_limit && self.rng.chance(20);
        self.now()
    }

    /// Time has passed in another name's history.
    pub(crate) fn join(&mut self, other: &History<'_>) {
        (self.now, self.wall, self.far) = (other.now, other.wall, other.far);
    }

    fn time(&self, now: u64) -> Now {
        Now { expiry: now, wall: if self.far { FAR_FUTURE } else { self.wall + (now - self.now) } }
    }

    /// Sometimes a later time, only to look at.
    pub(crate) fn later(&mut self, spec: &Spec) -> Option<Now> {
        let then = self.rng.chance(300).then(|| self.instant(spec));
        then.map(|then| self.time(then))
    }

    /// Ids to ask about: that of the verb, and a few others.
    pub(crate) fn probes(&mut self, verb: &Verb) -> Vec<LeaseId> {
        let others: Vec<LeaseId> = (0..3).filter_map(|_| self.rng.pick(&self.pool).copied()).collect();
        verb.id().into_iter().chain(others).collect()
    }

    // Verbs.

    /// Turns the tide.
    fn turn(&mut self, spec: &Spec) {
        if self.profile.depth > 0 {
            let crowd = self.limit.map_or(self.profile.depth / 2, |limit| limit as usize);
            if spec.tickets.len() > self.profile.depth || spec.leases.len() > crowd {
                self.tide = Tide::Empties;
            } else if spec.tickets.len() + spec.leases.len() < 10 {
                self.tide = Tide::Fills;
            }
        } else if self.rng.chance(1 + 350 / self.profile.pool as u64) {
            self.tide = [Tide::Fills, Tide::Empties, Tide::Neither][self.rng.weighted([4, 3, 3])];
        }
    }

    pub(crate) fn verb(&mut self, spec: &Spec) -> Verb {
        self.turn(spec);
        if self.rng.chance(80) {
            let fresh = self.fresh();
            let slot = self.rng.below(self.pool.len() as u64) as usize;
            self.pool[slot] = fresh;
        }
        let weights = match self.tide {
            Tide::Fills if self.profile.depth > 0 => [960, 20, 0, 0, 10, 10],
            Tide::Fills => [845, 90, 25, 8, 16, 16],
            Tide::Empties => [440, 100, 400, 20, 20, 20],
            Tide::Neither => [480, 300, 160, 20, 20, 20],
        };
        match self.rng.weighted(weights) {
            0 => Verb::Acquire(self.claim(spec)),
            1 => Verb::Renew(self.renewal(spec)),
            2 => Verb::Release(self.release(spec)),
            3 => self.revocation(spec),
            4 => Verb::Sweep,
            _ => Verb::Look,
        }
    }

    /// Of every lease, of one, or of one that is not there.
    fn revocation(&mut self, spec: &Spec) -> Verb {
        let now = self.rng.chance(500);
        let only = match self.rng.weighted([40, 35, 25]) {
            0 => None,
            1 => self.rng.pick(&spec.leases).map(|l| Fence::new(l.fence)),
            // Above and below the last one, which is often that of the holder.
            _ => Some(Fence::new(
                (spec.last_fence + 1 + self.rng.below(3)).saturating_sub(2 * self.rng.below(3)),
            )),
        };
        Verb::Revoke { now, only }
    }

    /// An id that holds a lease, was woken, waits, is spent, or any of the pool, with these weights.
    fn id(&mut self, spec: &Spec, weights: [u64; 5]) -> LeaseId {
        let ids: Vec<LeaseId> = match self.rng.weighted(weights) {
            0 => spec.leases.iter().map(|l| l.id).collect(),
            1 => spec.tickets.iter().filter(|t| t.woken).map(|t| t.id).collect(),
            2 => spec.tickets.iter().map(|t| t.id).collect(),
            3 => spec.spent.iter().map(|s| s.id).collect(),
            _ => Vec::new(),
        };
        let id = self.rng.pick(&ids).or(self.rng.pick(&self.pool)).copied();
        id.expect("the pool is not empty")
    }

    fn duration(&mut self, weights: [u64; 4]) -> Duration {
        if self.rng.chance(10) {
            return [
                Duration::ZERO,
                Duration::from_nanos(1),
                Duration::from_nanos(1001),
                Duration::from_secs(1 << 40),
                Duration::MAX,
            ][self.rng.weighted([2, 3, 3, 1, 1])];
        }
        let (unit, most) = [(1, 9), (1000, 50), (1_000_000, 90), (HOUR / 2, 4)][self.rng.weighted(weights)];
        // Round numbers, so that many end together, or not.
        let round = self.rng.chance(400);
        let micros =
            if round { self.rng.between(1, most) * unit } else { self.rng.between(unit, most * unit) };
        Duration::from_micros(micros)
    }

    fn owner(&mut self) -> Arc<str> {
        ["ann", "b:o=b", "cl\0eo\u{1}"][self.rng.below(3) as usize].into()
    }

    fn any_mode(&mut self) -> Mode {
        let permit = Mode::Permit { limit: [0, 1, 2, 7][self.rng.weighted([3, 2, 2, 2])] };
        [Mode::Exclusive, Mode::Shared, permit][self.rng.weighted([4, 4, 7])]
    }

    fn claim(&mut self, spec: &Spec) -> Claim {
        let id = match self.tide {
            Tide::Fills => self.id(spec, [3, 5, 8, 3, 81]),
            Tide::Empties => self.id(spec, [10, 60, 10, 10, 10]),
            Tide::Neither => self.id(spec, [20, 25, 20, 10, 25]),
        };
        // A ticket behind 128 that are let in stays out, by a rule that applies nowhere else.
        let id = spec.tickets.get(128).filter(|_| self.rng.chance(100)).map_or(id, |t| t.id);
        let own = spec.tickets.iter().find(|t| t.id == id);
        let mode = if self.rng.chance(self.profile.strangers) {
            self.any_mode()
        } else if let Some(limit) = self.limit {
            Mode::Permit { limit }
        } else {
            // A long queue needs a holder to wait for.
            let first = self.profile.depth > 0 && spec.leases.is_empty();
            let any =
                if first || self.rng.chance(self.profile.writers) { Mode::Exclusive } else { Mode::Shared };
            own.filter(|_| self.rng.chance(930)).map_or(any, |t| t.mode)
        };
        let ttl = self.duration(self.profile.ttls);
        let mut claim = Claim::new(self.name.clone(), mode, ttl, self.owner());
        claim.id = id;
        claim.metadata = match self.rng.weighted([7, 1, 1, 1]) {
            1 => Some("seen".into()),
            2 => Some("+5:x\0".into()),
            3 => Some("".into()),
            _ => None,
        };
        claim.queue = self.rng.chance(self.profile.queued).then(|| self.duration(self.profile.tickets));
        claim.repeat = self.rng.chance(120);
        claim.first = self.rng.chance(400);
        claim.nonce = self.nonce();
        if let Some(nonce) = nonce_of(spec, id).filter(|_| !claim.first && self.rng.chance(800)) {
            claim.nonce = nonce;
        }
        claim
    }

    /// Few, so that they are often the same, and some that a signed number cannot be.
    fn nonce(&mut self) -> u64 {
        [0, 1, 2, u64::MAX, 1 << 63][self.rng.weighted([3, 3, 2, 1, 1])]
    }

    pub(crate) fn renewal(&mut self, spec: &Spec) -> Renewal {
        let id = self.id(spec, [80, 2, 3, 5, 10]);
        let lease = spec.leases.iter().find(|l| l.id == id);
        let ttl = self.duration(self.profile.ttls);
        let mut renewal = Renewal::new(self.name.clone(), id, ttl);
        renewal.fence = self.fence(lease);
        renewal.owner = self.owner_check(lease.map(|l| &l.owner));
        if self.rng.chance(250) {
            let renewals = lease.map_or(0, |l| l.renewals);
            renewal.shorten =
                Some(if self.rng.chance(650) { renewals } else { self.rng.below(renewals + 3) });
            if self.rng.chance(40) {
                renewal.ttl = Duration::ZERO;
            }
        }
        renewal.mode = match (self.rng.weighted([75, 5, 15, 5]), lease) {
            (1, Some(lease)) => Some(lease.mode),
            (2, _) => Some(Mode::Shared),
            (3, _) => Some(self.any_mode()),
            _ => None,
        };
        if self.rng.chance(120) {
            renewal.raise_fence = Some(self.raised(spec, lease));
        }
        renewal.note = self.note();
        renewal
    }

    /// Revisions are few, so that they are often the same. Some texts are like numbers, quoted, or empty.
    fn note(&mut self) -> Option<NewNote> {
        if !self.rng.chance(200) {
            return None;
        }
        let texts = ["", "7", "N\u{1}", "it's {\"done\": [1]}", "\u{e9}\u{1f600}", "a \\ b"];
        let text = texts[self.rng.below(texts.len() as u64) as usize];
        let revision = [0, 1, 2, 3, (1 << 53) - 1][self.rng.weighted([3, 3, 2, 1, 1])];
        Some(NewNote::new(text, revision).expect("a good note"))
    }

    fn raised(&mut self, spec: &Spec, lease: Option<&Lease>) -> Fence {
        let own = lease.map_or(1, |l| l.fence);
        let limit = Fence::MAX.get();
        let tomorrow = Fence::at(self.now().wall).get() + 24 * 3600 * 256_000;
        let top = if self.profile.near_the_limit { 50 } else { 0 };
        Fence::new(match self.rng.weighted([15, 15, 20, 25, 8, 20, top]) {
            0 => own - self.rng.between(1, 3).min(own),
            1 => own,
            2 => own.saturating_add(self.rng.between(1, 9)),
            3 => spec.last_fence.saturating_add(self.rng.between(1, 9)),
            4 => [limit + 1, u64::MAX][self.rng.below(2) as usize],
            5 => tomorrow - 2 + self.rng.below(5),
            _ => limit - self.rng.below(9),
        })
    }

    fn release(&mut self, spec: &Spec) -> Release {
        let id = self.id(spec, [64, 5, 14, 7, 10]);
        let lease = spec.leases.iter().find(|l| l.id == id);
        let ticket = spec.tickets.iter().find(|t| t.id == id);
        let mut release = Release::new(self.name.clone(), id);
        release.fence = self.fence(lease);
        release.owner = self.owner_check(lease.map(|l| &l.owner).or(ticket.map(|t: &Ticket| &t.owner)));
        release.unanswered = self.rng.chance(150).then(|| self.duration(self.profile.ttls));
        if self.rng.chance(300) {
            let right = nonce_of(spec, id).filter(|_| self.rng.chance(700));
            release.nonce = Some(right.unwrap_or_else(|| self.nonce()));
        }
        release.note = self.note();
        release
    }

    /// No fence, the right one, or a wrong one.
    fn fence(&mut self, lease: Option<&Lease>) -> Option<Fence> {
        let own = lease.map_or(1, |l| l.fence);
        match self.rng.weighted([75, 20, 3, 2]) {
            0 => None,
            1 => Some(Fence::new(own)),
            2 => Some(Fence::new(own + 1)),
            _ => Some(Fence::new(own - 1)),
        }
    }

    fn owner_check(&mut self, own: Option<&Arc<str>>) -> Option<Arc<str>> {
        match self.rng.weighted([75, 18, 7]) {
            0 => None,
            1 => own.cloned(),
            _ => Some(self.owner()),
        }
    }
}

fn nonce_of(spec: &Spec, id: LeaseId) -> Option<u64> {
    let lease = spec.leases.iter().find(|l| l.id == id).map(|l| l.nonce);
    lease.or(spec.tickets.iter().find(|t| t.id == id).map(|t| t.nonce))
}
