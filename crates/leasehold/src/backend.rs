//! The contract between the library and a store: the [`Backend`] trait and the plain data it takes and returns.

// One file because it is the whole contract: the promises of the trait name all of its types.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

/// A store that keeps locks.
///
/// A backend makes **single attempts**: it does not retry, sleep or renew. The loops that wait, renew and cancel exist
/// once, above the backend. Every method is one atomic step on the store. There are no default methods, so that a
/// wrapper cannot forget one. `docs/adding-a-backend.md` explains how to write a backend, and
/// [`conformance`](crate::conformance) has a test for each promise.
///
/// # Promises
///
/// 1. A claim is granted only while it is compatible with every live lease of its name, and only if every claim queued
///    before it could enter together with it. An attempt that does not queue neither overtakes a queue nor joins one.
/// 2. While a claim's lease lives, the same claim again gets the same grant, with the time that is *left*. A repeat
///    does not restart the ttl, never gives a second grant, and is never blocked by its own lease.
/// 3. A lease whose ttl has passed is gone at `now >= expires`, by one predicate in one place. Renewing it answers
///    [`Gone`] for ever, even if no other client took the name.
/// 4. Renew and release act only if name, id and, where given, fence and owner match. They check and act atomically,
///    however late they arrive. Renew sets `max(old expiry, now + ttl)`. Shortening is explicit: it names the lease's
///    renewal count, and does nothing if that count has moved.
/// 5. Fences of one name strictly increase from grant to grant. Above [`Fence::MAX`] the store returns an error and
///    grants nothing. No holder can raise them by more than a day ahead of the store's clock.
/// 6. No wake-up is lost: a waiter registers its interest before it sends the queued attempt. `wait` may resolve
///    early, and it resolves when its channel breaks or comes back.
/// 7. Durations decide, not timestamps. [`Grant::left`] was measured no earlier than
///    [`Grant::waited`] after the call; stores round up, clients round down.
/// 8. A release that is sent while an attempt of that id is unanswered says so, and the store refuses that id for
///    max(ttl, [`SPENT_FOR`]), so that a late duplicate never becomes a ghost holder. A repeat after a lost answer
///    says so too: the lease remembers it, and the store refuses its id in the same way, however the lease ends.
/// 9. A release with a nonce acts only if no newer attempt with that id has arrived. Only an attempt's first call sets
///    the nonce. Later calls with an old nonce get [`Gone::Superseded`] and change nothing.
/// 10. A broken store is an `Err`, never [`Attempt::Busy`], and nothing is granted that was not
///     stored.
/// 11. A name keeps one [`Note`], until its fence counter is forgotten. Only a live lease writes it, in the same step as
///     its renewal or release; a refused one writes nothing. A note that has a higher fence stays, and so does one
///     with the same fence and a higher revision; the lease is then renewed or released all the same. Readers see
///     whole notes only. A store without notes ([`Info::notes`]) refuses with `Unsupported`, and does nothing.
///
/// # Cancel safety
///
/// Any of these futures may be dropped at any time. The effect of a dropped call is unknown; the caller settles it
/// with a release that says so (promise 8). Dropping `wait` loses nothing.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this store is and can do. The answer is constant and needs no I/O.
    fn info(&self) -> Info;

    /// Makes one atomic attempt. With [`Claim::queue`], a claim that cannot be granted joins the queue of its name, or
    /// refreshes its place there.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt>;

    /// Waits, after a queued [`Attempt::Busy`], until another attempt makes sense. The wake-up is only a hint.
    ///
    /// In a store that cannot push, this stays pending. With [`Info::keeps_places`] the store keeps the claim's place
    /// in the queue while this is pending; if the future is dropped and not called again, the place lapses like any
    /// other. With [`Info::tells_loss`], and for a claim that holds a lease, this waits until that lease is over.
    async fn wait(&self, claim: &Claim) -> Result<Wake>;

    /// Renews leases and returns one answer for each, in the order of the request.
    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>>;

    /// Ends a lease, or gives up a place in the queue.
    async fn release(&self, lease: &Release) -> Result<Released>;

    /// Refuses all later renewals of the name's leases, so that the name becomes free when they expire.
    ///
    /// With `now` it frees the name at once and relies on fences to stop the old holders. With `only` it affects just
    /// the lease that has this fence: if that lease is gone, nothing changes and the count is zero.
    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked>;

    /// Reads without changing anything. It asks the store and never answers from memory, because a wait that has
    /// reached its limit uses it to learn whether a silent store is still there.
    async fn inspect(&self, query: &Query) -> Result<Page>;

    /// Drops what has expired. Correctness never needs it. In a store with many names one call may stop after a while;
    /// the next call goes on from there.
    async fn sweep(&self) -> Result<Swept>;
}

/// The shortest time for which a spent id is refused (promise 8): longer than a request can be in transit.
pub const SPENT_FOR: Duration = Duration::from_secs(60);

/// The most bytes of a note.
pub const MAX_NOTE_BYTES: usize = 1024;

/// How a lease shares its name with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Mode {
    /// One holder alone: a mutex, or the write side of a reader-writer lock.
    Exclusive,
    /// Together with other shared leases.
    Shared,
    /// One of `limit` permits of a semaphore.
    Permit {
        /// How many permits there are; the same for all claims of the name.
        limit: u32,
    },
}

impl Mode {
    /// Whether both modes can be used on one name. Exclusive and Shared are one kind; permits with the same limit are
    /// another.
    pub fn is_same_kind(self, other: Mode) -> bool {
        match (self, other) {
            (Mode::Permit { limit: a }, Mode::Permit { limit: b }) => a == b,
            (Mode::Permit { .. }, _) | (_, Mode::Permit { .. }) => false,
            _ => true,
        }
    }

    /// The [`ErrorKind::Mismatch`] error for two kinds on one name.
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
    /// How to share the name.
    pub mode: Mode,
    /// How long the lease lasts unless renewed.
    pub ttl: Duration,
    /// A label that tells people which client asks.
    pub owner: Arc<str>,
    /// Text of the caller's choice that is shown with the lease.
    pub metadata: Option<Arc<str>>,
    /// Join the queue, or keep a place in it, for this long. `None` does neither.
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

    /// The same claim, which also queues and keeps its place for this long.
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
    /// The claim was granted.
    Granted(Grant),
    /// Another client is in the way.
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
    /// The mode in which it is held; after a downgrade, not the claimed one.
    pub mode: Mode,
    /// How long it lasts from the moment of measurement. `None`: as long as the session.
    pub left: Option<Duration>,
    /// The least time between the call and the measurement of `left`; above zero where the store itself waited.
    pub waited: Duration,
    /// How often it was renewed. A renewal that shortens must name this count (promise 4).
    pub renewals: u64,
    /// When it was granted, milliseconds since 1970 by the store's wall clock: for display.
    pub acquired_at_ms: u64,
    /// When it will expire, by the same clock; `None` for session locks.
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
    /// When to try again if no wake-up comes before; `None` if the store cannot say.
    pub retry_in: Option<Duration>,
    /// How many claims are before this one in the queue; `None` if it does not queue.
    pub place: Option<u64>,
    /// How many claims wait in all.
    pub queue_length: u64,
    /// The owner label of the holder, or of one of them.
    pub owner: Option<Arc<str>>,
    /// How long that holder's lease lasts unless renewed.
    pub holder_left: Option<Duration>,
}

impl Busy {
    /// Busy, with nothing else known.
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
    /// The store, or its shell in this process, made the attempt itself and was granted the claim.
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
    /// How long the lease is to last from now; it never gets shorter unless `shorten` says so.
    pub ttl: Duration,
    /// Act only if the lease has this fence.
    pub fence: Option<Fence>,
    /// Act only if the lease has this owner.
    pub owner: Option<Arc<str>>,
    /// Let the lease end at now + ttl even if that is sooner, provided it was renewed exactly this often.
    pub shorten: Option<u64>,
    /// Downgrade to this mode: an Exclusive lease to Shared.
    pub mode: Option<Mode>,
    /// Raise the fence of the lease and of the name to at least this. `Gone` if the lease's own fence is higher. It
    /// may be at most a day ahead of the store's clock, or one above the name's last fence; otherwise the answer is
    /// `InvalidArgument` and nothing changes.
    pub raise_fence: Option<Fence>,
    /// Write this as the note of the name (promise 11), unless `shorten` makes this do nothing. It gets the lease's
    /// fence, after it was raised.
    pub note: Option<NewNote>,
}

impl Renewal {
    /// A plain renewal.
    pub fn new(name: Name, id: LeaseId, ttl: Duration) -> Self {
        Renewal {
            name,
            id,
            ttl,
            fence: None,
            owner: None,
            shorten: None,
            mode: None,
            raise_fence: None,
            note: None,
        }
    }
}

/// The answer to a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewed {
    /// Still held, for this long.
    Held(Grant),
    /// No longer held, and never again.
    Gone(Gone),
}

/// Why a lease is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Gone {
    /// Its ttl passed.
    Expired,
    /// There is no such lease: it was released, expired some time ago, or never existed; or its fence or owner did not
    /// match.
    NotFound,
    /// Another attempt or a higher fence has taken its place.
    Superseded,
    /// It was revoked.
    Revoked,
}

impl Gone {
    /// The word that HTTP and the command line print.
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
    /// If this ends a lease, write this as the note of the name (promise 11). A place in the queue writes none.
    pub note: Option<NewNote>,
}

impl Release {
    /// A plain release.
    pub fn new(name: Name, id: LeaseId) -> Self {
        Release { name, id, fence: None, owner: None, unanswered: None, nonce: None, note: None }
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

/// The note of a name: a text that a holder left there, for the next holders and for everybody who looks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Note {
    /// What the holder wrote. Empty: the note was cleared.
    pub text: Arc<str>,
    /// The fence of the lease that wrote it.
    pub fence: Fence,
    /// Orders the notes that this lease wrote.
    pub revision: u64,
}

impl Note {
    /// A note, as a store has kept it.
    pub fn new(text: impl Into<Arc<str>>, fence: Fence, revision: u64) -> Self {
        Note { text: text.into(), fence, revision }
    }

    /// Whether this note stays when a lease with that fence writes a note with that revision (promise 11).
    pub fn outranks(&self, fence: Fence, revision: u64) -> bool {
        (self.fence, self.revision) > (fence, revision)
    }

    /// The later of two notes of one name.
    pub(crate) fn later(self, other: Note) -> Note {
        if self.outranks(other.fence, other.revision) { self } else { other }
    }
}

/// A note to write together with a renewal or a release.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewNote {
    /// At most [`MAX_NOTE_BYTES`] bytes, without NUL characters. Empty: clear the note.
    pub text: Arc<str>,
    /// Orders the notes that one lease writes: a late duplicate of an earlier write must not replace a later one. With
    /// the same revision, the one that arrives last stays.
    pub revision: u64,
}

impl NewNote {
    /// A note to write; a lease that writes several gives each a higher revision than the one before.
    ///
    /// # Errors
    /// `InvalidArgument` for a text that is too long or contains a NUL character.
    pub fn new(text: impl Into<Arc<str>>, revision: u64) -> Result<Self> {
        let text = text.into();
        if text.len() > MAX_NOTE_BYTES {
            let length = text.len();
            return Err(Error::invalid(format!(
                "a note of {length} bytes is too long: write at most {MAX_NOTE_BYTES} bytes, and keep the rest elsewhere"
            )));
        }
        if text.contains('\0') {
            return Err(Error::invalid(
                "a note must not contain a NUL character: leave it out, or encode it",
            ));
        }
        if revision > MAX_NOTE_REVISION {
            return Err(Error::invalid(format!(
                "the revision of a note must be at most {MAX_NOTE_REVISION}"
            )));
        }
        Ok(NewNote { text, revision })
    }
}

/// The highest revision of a note: stores that keep numbers as doubles keep it exactly.
pub const MAX_NOTE_REVISION: u64 = (1 << 53) - 1;

/// The answer to a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Revoked {
    /// How many leases it affected.
    pub leases: u64,
}

/// What to look at.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Query {
    /// One name: always one item, even if the name was never used.
    Name(Name),
    /// The name on which this id holds a lease or waits: one item or none. The lease of this id is always among the
    /// holders shown, however many there are.
    LeaseId(LeaseId),
    /// All names in use (held or waited for) whose stored form begins with this, ordered by that form.
    Prefix {
        /// The beginning of [`Name::stored`].
        stored: String,
        /// The most items to return, at least 1: a store refuses 0 as `InvalidArgument`. It may return fewer, or none,
        /// and still a [`Page::next`].
        limit: usize,
        /// The [`Page::next`] of the previous page.
        cursor: Option<String>,
    },
}

/// About how many bytes a holder or waiter takes beside its owner and metadata.
const SHOWN_BYTES: usize = 256;

/// A page of a list with this many bytes is full, although it has fewer names than it may have: as many as a thousand
/// holders take that have all the metadata they may have.
const FULL_PAGE: usize = 1000 * (crate::options::MAX_METADATA_BYTES + SHOWN_BYTES);

/// One page of an answer to a [`Query`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Page {
    /// What was found.
    pub items: Vec<NameInfo>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<String>,
    /// How long ago the store listed the names: a name that was taken since may be missing. What is reported of each
    /// name is current. `None`: the list of names is current too.
    pub age: Option<Duration>,
}

impl Page {
    /// A page whose names are current, and where the next page begins.
    pub(crate) fn new(items: Vec<NameInfo>, next: Option<String>) -> Self {
        Page { items, next, age: None }
    }
}

/// Refuses a page without room for a name: it could not say where the next one begins.
pub(crate) fn check_page_limit(limit: usize) -> Result<()> {
    match limit {
        0 => Err(Error::invalid("the size of a page must be at least 1")),
        _ => Ok(()),
    }
}

/// Makes one page of a list, for stores whose cursor is the stored form of the last name.
#[derive(Debug)]
pub(crate) struct PageBuilder {
    page: Page,
    limit: usize,
    /// About how many bytes the items take.
    bytes: usize,
}

impl PageBuilder {
    /// A page of at most this many names.
    pub(crate) fn new(limit: usize) -> Result<Self> {
        check_page_limit(limit)?;
        Ok(PageBuilder { page: Page::default(), limit, bytes: 0 })
    }

    /// How many more names the page may have.
    pub(crate) fn room(&self) -> usize {
        self.limit - self.page.items.len()
    }

    /// Adds the next name of the list. Returns false if the page is full: then it ends with the name before.
    pub(crate) fn take(&mut self, info: NameInfo) -> bool {
        let is_full = self.room() == 0 || self.bytes >= FULL_PAGE;
        if is_full {
            self.page.next = self.page.items.last().map(|info| info.name.stored().to_owned());
        } else {
            self.bytes += info.size();
            self.page.items.push(info);
        }
        !is_full
    }

    /// The page. Unless a name did not fit, it is the last one.
    pub(crate) fn finish(self) -> Page {
        self.page
    }
}

/// Everything about one name, including lease ids: do not log it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameInfo {
    /// The name.
    pub name: Name,
    /// Counts every change of the name.
    pub version: u64,
    /// The fence of the latest grant.
    pub last_fence: Fence,
    /// The note of the name, also when it was cleared: then its text is empty.
    pub note: Option<Note>,
    /// The oldest hundred holders, oldest grant first. The lease that [`Query::LeaseId`] asks for takes the last place
    /// if it is younger.
    pub holders: Vec<HolderInfo>,
    /// How many leases hold the name.
    pub holder_count: u64,
    /// The waiters, in order; stores may show only the first hundred.
    pub waiters: Vec<WaiterInfo>,
    /// How many claims wait for the name.
    pub queue_length: u64,
}

impl NameInfo {
    /// About how many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        let holder = |one: &HolderInfo| one.owner.len() + one.metadata.as_ref().map_or(0, |text| text.len());
        let holders: usize = self.holders.iter().map(holder).sum();
        let waiters: usize = self.waiters.iter().map(|one| one.owner.len()).sum();
        let note = self.note.as_ref().map_or(0, |note| note.text.len());
        note + holders + waiters + (self.holders.len() + self.waiters.len()) * SHOWN_BYTES
    }

    /// The answer for a name that is not in use.
    pub fn unused(name: Name) -> Self {
        NameInfo {
            name,
            version: 0,
            last_fence: Fence::UNFENCED,
            note: None,
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
    /// The owner label of the holder.
    pub owner: Arc<str>,
    /// The text that the holder attached.
    pub metadata: Option<Arc<str>>,
    /// The lease itself.
    pub grant: Grant,
    /// Whether the store refuses to renew it.
    pub revoked: bool,
}

/// One waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// The id that its lease will have: a secret.
    pub id: LeaseId,
    /// The owner label of the waiter.
    pub owner: Arc<str>,
    /// The mode it waits for.
    pub mode: Mode,
    /// How long it has waited.
    pub waited: Duration,
}

/// What a sweep found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Swept {
    /// Expired leases that were dropped: by this sweep and, where the store reports them, by this client's other calls
    /// since the sweep before. `docs/server.md` says which stores do.
    pub expired: u64,
    /// Places in queues that had lapsed.
    pub tickets: u64,
    /// Fence counters that were no longer needed.
    pub counters: u64,
    /// Live leases after the sweep. Where one call sweeps only some of the names, the count of the last complete pass.
    pub held: u64,
    /// Live waiters, counted in the same way.
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

/// When a store frees the lease of a holder that died.
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
    /// The clients' clocks, which must agree.
    Client,
    /// None: leases do not expire.
    None,
}

/// What a store is and can do. [`conformance`](crate::conformance) tests exactly what this claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The scheme of its URLs, which is also its name in logs and metrics.
    pub scheme: &'static str,
    /// When the lease of a dead holder ends.
    pub liveness: Liveness,
    /// Whose clock decides that a lease has expired.
    pub time: TimeAuthority,
    /// Whether grants carry fences.
    pub fenced: bool,
    /// Whether waiting is first come, first served.
    pub fifo: bool,
    /// Whether the store wakes `wait`; otherwise the wait loop polls.
    pub push: bool,
    /// Whether the store looks after claims whose `wait` is pending: it keeps their places in the queue, and notices
    /// by itself when a lease or a place before them has ended. The wait loop then tries again on its own only about
    /// once a minute; otherwise it does so after [`Busy::retry_in`], and in time to keep its place.
    pub keeps_places: bool,
    /// Whether `inspect` shows lease ids; otherwise it shows their [digests](LeaseId::digest).
    pub shows_ids: bool,
    /// Whether Shared can be claimed.
    pub shared: bool,
    /// The highest limit of permits; 0 if the store has no permits.
    pub max_permits: u32,
    /// Whether an Exclusive lease can become Shared without a gap.
    pub downgrade: bool,
    /// Whether [`Query::LeaseId`] works.
    pub find_by_id: bool,
    /// Whether `revoke` works.
    pub revoke: bool,
    /// Whether the client can notice a loss at all; if not, a guard's lost signal never comes.
    pub detects_loss: bool,
    /// Whether names keep notes (promise 11). Only with `fenced`, because fences put them in order.
    pub notes: bool,
    /// Whether `wait`, called for a claim that holds a lease, stays pending until that lease is over. The client then
    /// learns of a loss as it happens, not only when the renewal loop next asks.
    pub tells_loss: bool,
    /// How often the renewal loop asks whether a lease that has no ttl is still there; `None`: never.
    pub check_every: Option<Duration>,
    /// Whether names get the client's namespace unless the user says otherwise.
    pub namespaced: bool,
    /// The longest ttl.
    pub max_ttl: Duration,
    /// The share of its ttl, in percent, that a grant must still have left to be usable.
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
            notes: true,
            tells_loss: false,
            check_every: None,
            namespaced: true,
            max_ttl: Duration::from_secs(24 * 3600),
            min_validity_percent: 0,
        }
    }

    /// Refuses to write or read a note where the store keeps none.
    pub(crate) fn require_notes(&self) -> Result<()> {
        if self.notes { Ok(()) } else { Err(no_notes(self.scheme)) }
    }
}

fn no_notes(scheme: &str) -> Error {
    let message = format!("{scheme}: keeps no notes; use a store that does, which docs/guarantees.md lists");
    Error::new(ErrorKind::Unsupported, message)
}

/// Refuses to write a note, for stores that keep none.
#[cfg(any(feature = "file", feature = "postgres"))]
pub(crate) fn refuse_note(scheme: &str, note: Option<&NewNote>) -> Result<()> {
    if note.is_some() { Err(no_notes(scheme)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_long_page_takes_no_longer_for_each_name() {
        let mut page = PageBuilder::new(usize::MAX).unwrap();
        let began = Instant::now();
        // They take no bytes, so the page never gets full.
        for n in 0..20_000 {
            assert!(page.take(NameInfo::unused(Name::new(&n.to_string()).unwrap())));
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert_eq!(page.finish().items.len(), 20_000);
    }
}
