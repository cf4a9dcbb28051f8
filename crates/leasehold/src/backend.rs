//! The contract between the library and a store: the trait [`Backend`] and the plain data it speaks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

/// A store of locks.
///
/// A backend makes **single attempts**: it does not retry, sleep or renew. Waiting, renewing and
/// cancelling exist once, above it. Every method is one atomic step on the store. There are no
/// default methods, so that a wrapper cannot forget one. See `docs/adding-a-backend.md` for how to
/// write one, and [`conformance`](crate::conformance) for a test of each promise.
///
/// # Promises
///
/// 1. A claim is granted only while compatible with every live lease of its name, and only if
///    nobody is queued before it who could not enter together with it. An attempt that does not
///    queue neither overtakes a queue nor joins one.
/// 2. While its lease lives, the same claim again gives the same grant, with the time that is
///    *left*: a repeat does not re-arm it, is never a second grant and never blocked by itself.
/// 3. A lease whose ttl has passed is gone at `now >= expires`, by one predicate in one place.
///    Renewing it says [`Gone`] for ever, even if nobody took the name.
/// 4. Renew and release act only if name, id and, where given, fence and owner match, atomically,
///    however late they arrive. Renew sets `max(old expiry, now + ttl)`; shortening is explicit,
///    names the lease's renewal count, and does nothing if that has moved.
/// 5. Fences of one name strictly increase from grant to grant. Above [`Fence::MAX`] there is an
///    error and no grant. No holder can raise them by more than a day ahead of the store's clock.
/// 6. No lost wake-ups: interest is registered before the queued attempt is sent. `wait` may
///    resolve early, and resolves when its channel breaks or comes back.
/// 7. Durations decide, not timestamps. [`Grant::left`] was measured no earlier than
///    [`Grant::waited`] after the call; stores round up, clients round down.
/// 8. A release sent while an attempt of that id is unanswered says so, and the store refuses that
///    id for max(ttl, [`SPENT_FOR`]): a late duplicate never becomes a ghost holder. A repeat after
///    a lost answer says so too; the lease remembers, and its id is refused likewise however it ends.
/// 9. A release with a nonce acts only if no newer attempt with that id has arrived. Only an
///    attempt's first call sets the nonce; later calls with an old one are
///    [`Gone::Superseded`] and change nothing.
/// 10. A broken store is an `Err`, never [`Attempt::Busy`], and nothing is granted that was not
///     stored.
///
/// # Cancel safety
///
/// Any of these futures may be dropped at any time. The effect of a dropped call is unknown; the
/// caller settles it with a release that says so (promise 8). A dropped `wait` loses nothing.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this store is and can do. Constant, no I/O.
    fn info(&self) -> Info;

    /// One atomic attempt. With [`Claim::queue`] a claim that cannot be granted joins the queue of
    /// its name, or refreshes its place there.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt>;

    /// Waits, after a queued [`Attempt::Busy`], until another attempt makes sense. A hint.
    /// Stores that cannot push stay pending. With [`Info::keeps_places`] the claim's place in the queue is kept
    /// for as long as this is pending; dropped and not called again, it lapses like any other. With
    /// [`Info::tells_loss`] it waits, for a claim that holds a lease, until that is over.
    async fn wait(&self, claim: &Claim) -> Result<Wake>;

    /// Renews leases: one answer each, in the order asked.
    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>>;

    /// Ends a lease, or gives up a place in the queue.
    async fn release(&self, lease: &Release) -> Result<Released>;

    /// Refuses all renewals of the name's leases from here on, so that it passes on when they
    /// expire; with `now` frees it at once and relies on fences to stop the old holders. With `only` it meets
    /// the lease that has this fence and no other: if there is none by now, it counts none and changes nothing.
    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked>;

    /// Looks without changing anything. By this a wait that has come to its limit also learns whether a store that
    /// has said nothing for a while is still there: it asks the store, and does not answer from memory.
    async fn inspect(&self, query: &Query) -> Result<Page>;

    /// Drops what has expired. Never needed for correctness. A store with many names may stop after a while, and go on from
    /// there when it is called again.
    async fn sweep(&self) -> Result<Swept>;
}

/// How long a spent id is refused at least (promise 8): longer than a request can be on its way.
pub const SPENT_FOR: Duration = Duration::from_secs(60);

/// How a lease shares its name with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Mode {
    /// Alone: a mutex, or the write side of a reader-writer lock.
    Exclusive,
    /// Together with others that are shared.
    Shared,
    /// One of `limit` permits of a semaphore.
    Permit {
        /// How many permits there are; the same for all claims of the name.
        limit: u32,
    },
}

impl Mode {
    /// Whether both can be used on one name: {Exclusive, Shared} are one kind, permits of one
    /// limit another.
    pub fn is_same_kind(self, other: Mode) -> bool {
        match (self, other) {
            (Mode::Permit { limit: a }, Mode::Permit { limit: b }) => a == b,
            (Mode::Permit { .. }, _) | (_, Mode::Permit { .. }) => false,
            _ => true,
        }
    }

    /// The [`ErrorKind::Mismatch`] of two kinds on one name.
    pub(crate) fn mismatch(self, other: Mode) -> Error {
        let message = match (self, other) {
            (Mode::Permit { limit }, Mode::Permit { limit: other }) => {
                format!("the name is in use as a semaphore with limit {other}, and this claim says {limit}")
            }
            (Mode::Permit { .. }, _) => {
                "the name is in use as a mutex or reader-writer lock, not as a semaphore".into()
            }
            _ => "the name is in use as a semaphore, not as a mutex or reader-writer lock".into(),
        };
        Error::new(ErrorKind::Mismatch, message)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("exclusive"),
            Mode::Shared => f.write_str("shared"),
            Mode::Permit { limit } => write!(f, "permit of {limit}"),
        }
    }
}

/// A request for a name, made by the caller with its own random id.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Claim {
    /// What to lock.
    pub name: Name,
    /// The id the lease will have. New for every acquisition.
    pub id: LeaseId,
    /// How to share it.
    pub mode: Mode,
    /// How long the lease lasts unless renewed.
    pub ttl: Duration,
    /// Who asks: a label for people.
    pub owner: Arc<str>,
    /// Whatever the caller wants to be seen with the lease.
    pub metadata: Option<Arc<str>>,
    /// Join the queue, or keep a place in it, for this long. `None`: neither.
    pub queue: Option<Duration>,
    /// An earlier attempt with this id got no answer (promise 8).
    pub repeat: bool,
    /// Which attempt this call belongs to (promise 9). Zero for callers that make one attempt per id.
    pub nonce: u64,
    /// Whether this is the first call of that attempt.
    pub first: bool,
}

impl Claim {
    /// A claim that does not queue.
    pub fn new(name: Name, mode: Mode, ttl: Duration, owner: impl Into<Arc<str>>) -> Self {
        Claim {
            name,
            id: LeaseId::random(),
            mode,
            ttl,
            owner: owner.into(),
            metadata: None,
            queue: None,
            repeat: false,
            nonce: 0,
            first: true,
        }
    }

    /// The same claim, queued for this long at a time.
    #[must_use]
    pub fn queued(mut self, ticket_ttl: Duration) -> Self {
        self.queue = Some(ticket_ttl);
        self
    }
}

/// The answer to one attempt.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Attempt {
    /// The lease is held.
    Granted(Grant),
    /// Somebody else is in the way.
    Busy(Busy),
    /// This id will never be granted: it was given up, or a newer attempt took it over.
    Gone(Gone),
}

/// A lease, as the store sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The fencing token; [`Fence::UNFENCED`] where the store has none.
    pub fence: Fence,
    /// The mode it is held in; not what was claimed if it was downgraded since.
    pub mode: Mode,
    /// How long it lasts from when this was measured. `None`: as long as the session.
    pub left: Option<Duration>,
    /// How long after the call `left` was measured, at least; where the store itself waited.
    pub waited: Duration,
    /// How often it was renewed: what a shortening renewal must name (promise 4).
    pub renewals: u64,
    /// When it was granted, milliseconds since 1970 by the store's wall clock: for display.
    pub acquired_at_ms: u64,
    /// When it will expire, likewise; `None` for session locks.
    pub expires_at_ms: Option<u64>,
}

impl Grant {
    /// A fresh grant.
    pub fn new(fence: Fence, mode: Mode, left: Option<Duration>) -> Self {
        Grant {
            fence,
            mode,
            left,
            waited: Duration::ZERO,
            renewals: 0,
            acquired_at_ms: 0,
            expires_at_ms: None,
        }
    }
}

/// Why an attempt was not granted, and what to do meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// When another look makes sense if nothing was pushed before; `None`: the store cannot say.
    pub retry_in: Option<Duration>,
    /// How many are before this claim in the queue; `None` if it does not queue.
    pub place: Option<u64>,
    /// How many wait in all.
    pub queue_length: u64,
    /// Who holds it, or one of those who do.
    pub owner: Option<Arc<str>>,
    /// How long that holder's lease lasts unless renewed.
    pub holder_left: Option<Duration>,
}

impl Busy {
    /// Busy, and nothing else is known.
    pub fn unknown() -> Self {
        Busy { retry_in: None, place: None, queue_length: 0, owner: None, holder_left: None }
    }
}

/// Why `wait` came back.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Wake {
    /// Try again now.
    Retry,
    /// The store, or its shell in this process, made the attempt itself.
    Granted(Grant),
}

/// One lease to renew.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Renewal {
    /// The name it is on.
    pub name: Name,
    /// Its id.
    pub id: LeaseId,
    /// How long it shall last from now; never shortens unless `shorten` says so.
    pub ttl: Duration,
    /// Act only if the lease has this fence.
    pub fence: Option<Fence>,
    /// Act only if the lease has this owner.
    pub owner: Option<Arc<str>>,
    /// Let it end at now + ttl even if that is sooner, provided it was renewed exactly this often.
    pub shorten: Option<u64>,
    /// Downgrade to this mode: Shared, of an Exclusive lease.
    pub mode: Option<Mode>,
    /// Raise the fence of lease and name to at least this; Gone if the lease's own is higher. At most a day ahead
    /// of the store's clock, or one above the name's last fence; else `InvalidArgument`, and nothing changes.
    pub raise_fence: Option<Fence>,
}

impl Renewal {
    /// A plain renewal.
    pub fn new(name: Name, id: LeaseId, ttl: Duration) -> Self {
        Renewal { name, id, ttl, fence: None, owner: None, shorten: None, mode: None, raise_fence: None }
    }
}

/// The answer to a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewed {
    /// Still held, for this long.
    Held(Grant),
    /// No longer held, for ever.
    Gone(Gone),
}

/// Why a lease is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Gone {
    /// Its ttl passed.
    Expired,
    /// There is no such lease: it was released, expired some time ago, or never was. Also where
    /// fence or owner did not match.
    NotFound,
    /// Another attempt or a higher fence has taken its place.
    Superseded,
    /// It was revoked.
    Revoked,
}

impl Gone {
    /// In words, as HTTP and the command line print it.
    pub fn as_str(self) -> &'static str {
        match self {
            Gone::Expired => "expired",
            Gone::NotFound => "not_found",
            Gone::Superseded => "superseded",
            Gone::Revoked => "revoked",
        }
    }
}

/// A lease to end, or a place in the queue to give up.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Release {
    /// The name it is on.
    pub name: Name,
    /// Its id.
    pub id: LeaseId,
    /// Act only if the lease has this fence.
    pub fence: Option<Fence>,
    /// Act only if the lease has this owner.
    pub owner: Option<Arc<str>>,
    /// An attempt with this id and this ttl is still unanswered: refuse the id from here on (promise 8).
    pub unanswered: Option<Duration>,
    /// Act only if this is still the latest attempt with that id (promise 9).
    pub nonce: Option<u64>,
}

impl Release {
    /// A plain release.
    pub fn new(name: Name, id: LeaseId) -> Self {
        Release { name, id, fence: None, owner: None, unanswered: None, nonce: None }
    }
}

/// The answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Released {
    /// This call ended the lease or gave up the place.
    Done,
    /// There was nothing to end.
    Gone(Gone),
}

/// The answer to a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Revoked {
    /// How many leases it met.
    pub leases: u64,
}

/// What to look at.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Query {
    /// One name: always one item, also for a name nobody ever used.
    Name(Name),
    /// The name on which this id holds a lease or waits: one item or none. A lease of this id is always among its
    /// holders, however many there are.
    LeaseId(LeaseId),
    /// All names in use (held or waited for) whose stored form begins with this, in order of that form.
    Prefix {
        /// The beginning of [`Name::stored`].
        stored: String,
        /// Items at most; a store may give fewer, or none, and a [`Page::next`] all the same.
        limit: usize,
        /// [`Page::next`] of the page before.
        cursor: Option<String>,
    },
}

/// One page of an answer to a [`Query`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Page {
    /// What was found.
    pub items: Vec<NameInfo>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<String>,
    /// How long ago the names were looked for: one that others have taken since may be missing. What is told of each is
    /// as of now. `None`: the names are as of now, too.
    pub age: Option<Duration>,
}

impl Page {
    /// Names as of now, and where the next page begins.
    pub(crate) fn new(items: Vec<NameInfo>, next: Option<String>) -> Self {
        Page { items, next, age: None }
    }
}

/// Everything about one name, with lease ids: not for logs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameInfo {
    /// The name.
    pub name: Name,
    /// Counts every change of the name.
    pub version: u64,
    /// The fence of the latest grant.
    pub last_fence: Fence,
    /// Who holds it, oldest grant first: the oldest hundred. The lease that [`Query::LeaseId`] asks for takes the last
    /// place if it is younger.
    pub holders: Vec<HolderInfo>,
    /// How many hold it.
    pub holder_count: u64,
    /// Who waits, in order; stores may show only the first hundred.
    pub waiters: Vec<WaiterInfo>,
    /// How many wait.
    pub queue_length: u64,
}

impl NameInfo {
    /// A name nobody uses.
    pub fn unused(name: Name) -> Self {
        NameInfo {
            name,
            version: 0,
            last_fence: Fence::UNFENCED,
            holders: Vec::new(),
            holder_count: 0,
            waiters: Vec::new(),
            queue_length: 0,
        }
    }
}

/// One live lease.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// Its id: a secret.
    pub id: LeaseId,
    /// Who holds it.
    pub owner: Arc<str>,
    /// What the holder wanted to be seen.
    pub metadata: Option<Arc<str>>,
    /// The lease itself.
    pub grant: Grant,
    /// Whether its renewals are refused.
    pub revoked: bool,
}

/// One who waits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// The id it will have: a secret.
    pub id: LeaseId,
    /// Who waits.
    pub owner: Arc<str>,
    /// For what.
    pub mode: Mode,
    /// Since when.
    pub waited: Duration,
}

/// What a sweep found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Swept {
    /// Leases that had expired and were dropped: by this sweep, and since the one before by other calls of this
    /// client, where the store tells of them; `docs/server.md` says which do.
    pub expired: u64,
    /// Places in queues that had lapsed.
    pub tickets: u64,
    /// Fence counters that were no longer needed.
    pub counters: u64,
    /// Live leases after it; where a sweep is a part of a longer way through all names, as of the last complete one.
    pub held: u64,
    /// Live waiters, likewise.
    pub waiting: u64,
}

impl std::ops::AddAssign for Swept {
    fn add_assign(&mut self, other: Swept) {
        self.expired += other.expired;
        self.tickets += other.tickets;
        self.counters += other.counters;
        self.held += other.held;
        self.waiting += other.waiting;
    }
}

/// How a store lets go of a holder that died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Liveness {
    /// When the ttl passes.
    Ttl,
    /// When its process or connection ends.
    Session,
}

/// Whose clock decides that a lease has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimeAuthority {
    /// The store's.
    Store,
    /// The clients', which must agree.
    Client,
    /// None: leases do not expire.
    None,
}

/// What a store is and can do. [`conformance`](crate::conformance) tests exactly what is claimed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The scheme of its URLs, which is also its name in logs and metrics.
    pub scheme: &'static str,
    /// When a dead holder's lease ends.
    pub liveness: Liveness,
    /// Whose clock decides.
    pub time: TimeAuthority,
    /// Whether grants carry fences.
    pub fenced: bool,
    /// Whether waiting is first come, first served.
    pub fifo: bool,
    /// Whether `wait` is woken; otherwise the wait loop polls.
    pub push: bool,
    /// Whether the store looks after those whose `wait` is pending: it keeps their places in the queue, and
    /// notices by itself when a lease or a place before them has ended. The wait loop then comes back of its
    /// own accord only about once a minute; otherwise after [`Busy::retry_in`], and in time to keep its place.
    pub keeps_places: bool,
    /// Whether inspecting shows lease ids; otherwise their [digests](LeaseId::digest).
    pub shows_ids: bool,
    /// Whether Shared can be claimed.
    pub shared: bool,
    /// The highest limit of permits; 0: none.
    pub max_permits: u32,
    /// Whether an Exclusive lease can become Shared without a gap.
    pub downgrade: bool,
    /// Whether [`Query::LeaseId`] works.
    pub find_by_id: bool,
    /// Whether `revoke` works.
    pub revoke: bool,
    /// Whether a loss can be noticed at all; if not, a guard's lost signal never comes.
    pub detects_loss: bool,
    /// Whether `wait`, called for a claim that holds a lease, stays pending until that lease is over: then a loss
    /// is noticed as it happens, and not when the renewal loop next asks.
    pub tells_loss: bool,
    /// How often the renewal loop asks whether a lease that has no ttl is still there; `None`: never.
    pub check_every: Option<Duration>,
    /// Whether names get the client's namespace unless the user says otherwise.
    pub namespaced: bool,
    /// The longest ttl.
    pub max_ttl: Duration,
    /// The part of its ttl, in percent, that a grant must still have to be of use.
    pub min_validity_percent: u8,
}

impl Info {
    /// A store with ttl, its own clock, and every ability.
    pub const fn new(scheme: &'static str) -> Self {
        Info {
            scheme,
            liveness: Liveness::Ttl,
            time: TimeAuthority::Store,
            fenced: true,
            fifo: true,
            push: true,
            keeps_places: false,
            shows_ids: true,
            shared: true,
            max_permits: u32::MAX,
            downgrade: true,
            find_by_id: true,
            revoke: true,
            detects_loss: true,
            tells_loss: false,
            check_every: None,
            namespaced: true,
            max_ttl: Duration::from_secs(24 * 3600),
            min_validity_percent: 0,
        }
    }
}
