//! Sends an event for every operation on a store to a sink, which can never delay the store.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::RwLock;

use crate::backend::{
    Attempt, Backend, Claim, Gone, Info, Page, Query, Release, Released, Renewal, Renewed, Revoked, Swept,
    Wake,
};
use crate::engine::reporter;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

/// How many events may wait for the sink: enough for a burst of renewals, and under a megabyte.
const CAPACITY: usize = 4096;

/// A store that reports every operation as an [`Event`] to your function.
///
/// The layer calls your function on its own thread. However slow it is, it delays no lock: an event that finds 4096
/// others waiting is dropped and [counted](Telemetry::dropped). If the function panics, that is
/// [counted](Telemetry::panicked) too, and the next event comes all the same. Hashes are computed on that thread. When
/// the last clone of the layer is gone, the thread delivers what still waits and ends.
///
/// The layer sees everything that passes the store, including the client's background work: renewals and the releases
/// of dropped guards. Events contain names and lease ids only as hashes, unless you [ask](Telemetry::include_raw) for
/// them.
///
/// # Examples
///
/// ```
/// # fn main() -> leasehold::Result<()> {
/// use leasehold::backends::memory::Memory;
/// use leasehold::blocking::Locks;
/// use leasehold::layers::telemetry::{Event, Telemetry};
///
/// let telemetry = Telemetry::new(Memory::new(), |event: &Event| {
///     println!("{:?} of {:?}: {:?}", event.kind, event.name_hash, event.reason);
/// });
/// let locks = Locks::new(telemetry.clone());
/// locks.mutex("billing").lock()?.release()?;
/// assert_eq!(telemetry.dropped(), 0);
/// # Ok(())
/// # }
/// ```
///
/// Around a store that a URL names:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # use std::sync::Arc;
/// # use leasehold::layers::telemetry::{Event, Telemetry};
/// # let sink = |_: &Event| {};
/// let builder = leasehold::Locks::connect_builder("memory:").await?;
/// let locks = builder.layer(|store| Arc::new(Telemetry::wrap(store, sink))).build();
/// # locks.mutex("billing").lock().await?.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Telemetry {
    backend: Arc<dyn Backend>,
    events: SyncSender<Answered>,
    shared: Arc<Shared>,
}

/// What the layer and its thread share.
#[derive(Default)]
struct Shared {
    raw: RwLock<Raw>,
    dropped: AtomicU64,
    panicked: AtomicU64,
}

/// For which names events show name and lease id unhashed.
#[derive(Default)]
enum Raw {
    #[default]
    Never,
    Always,
    If(Box<dyn Fn(&Name) -> bool + Send + Sync>),
}

/// One operation on the store, after it was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// What was done.
    pub kind: EventKind,
    /// Whether it succeeded: granted, renewed, released, found, revoked.
    pub ok: bool,
    /// Why it did not.
    pub reason: Option<Reason>,
    /// [`Info::scheme`] of the store.
    pub scheme: &'static str,
    /// [`digest_name`](crate::digest_name) of the name, where the operation is about one.
    pub name_hash: Option<String>,
    /// [`LeaseId::hash`] of the lease id, where the operation is about one.
    pub lease_id_hash: Option<String>,
    /// How long the call took; for a queued acquire, including the time it waited.
    pub latency: Duration,
    /// The name itself, only if you asked for it.
    pub name: Option<Name>,
    /// The lease id itself, a secret, only if you asked for it.
    pub lease_id: Option<LeaseId>,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// One attempt, or a wait in the queue that ended in a grant.
    Acquire,
    /// One lease renewed; a batch is an event for each.
    Renew,
    /// A lease released, or a place in the queue given up.
    Release,
    /// A look at a name, a lease id or a list. `is_locked` and `lookup` ask the store the same.
    Lookup,
    /// A name revoked.
    Revoke,
}

/// Why an operation did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Another client holds the name.
    Locked,
    /// The lease's ttl has passed.
    Expired,
    /// There is no such lease, or no client holds the name.
    NotFound,
    /// Another attempt or a higher fence has taken its place.
    Superseded,
    /// The lease was revoked.
    Revoked,
    /// The store failed. Also `Aborted`, if the caller did not wait for the answer: it was cancelled, or its time was
    /// over.
    Error(ErrorKind),
}

impl From<Gone> for Reason {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::Expired => Reason::Expired,
            Gone::NotFound => Reason::NotFound,
            Gone::Superseded => Reason::Superseded,
            Gone::Revoked => Reason::Revoked,
        }
    }
}

impl From<&Error> for Reason {
    fn from(error: &Error) -> Self {
        Reason::Error(error.kind())
    }
}

impl Telemetry {
    /// Wraps a store.
    pub fn new(backend: impl Backend, sink: impl FnMut(&Event) + Send + 'static) -> Self {
        Telemetry::wrap(Arc::new(backend), sink)
    }

    /// As [`new`](Telemetry::new), around a store that is already shared: for
    /// [`LocksBuilder::layer`](crate::LocksBuilder::layer).
    pub fn wrap(backend: Arc<dyn Backend>, sink: impl FnMut(&Event) + Send + 'static) -> Self {
        let (events, answered) = sync_channel(CAPACITY);
        let shared = Arc::new(Shared::default());
        let (scheme, shared_too) = (backend.info().scheme, Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("leasehold-events".into())
            .spawn(move || deliver(answered, scheme, &shared_too, sink));
        if let Err(error) = thread {
            // The channel is then closed, and every event counts as dropped.
            reporter::log(move || tracing::warn!(%error, "no thread for telemetry: there will be no events"));
        }
        Telemetry { backend, events, shared }
    }

    /// Sets whether events show names and lease ids unhashed. Default no.
    #[must_use]
    pub fn include_raw(self, include: bool) -> Self {
        self.set_raw(if include { Raw::Always } else { Raw::Never })
    }

    /// Lets events of some names show name and lease id unhashed. The sink's thread calls `include`. A search by lease
    /// id, which is about no name, stays hashed.
    #[must_use]
    pub fn include_raw_if(self, include: impl Fn(&Name) -> bool + Send + Sync + 'static) -> Self {
        self.set_raw(Raw::If(Box::new(include)))
    }

    fn set_raw(self, raw: Raw) -> Self {
        *self.shared.raw.write() = raw;
        self
    }

    /// How many events were dropped because the sink was too slow.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// How often the sink panicked.
    pub fn panicked(&self) -> u64 {
        self.shared.panicked.load(Ordering::Relaxed)
    }

    fn call(&self, kind: EventKind, name: Option<&Name>, id: Option<LeaseId>) -> Call<'_> {
        Call { layer: self, kind, name: name.cloned(), id, started: Instant::now(), answered: false }
    }
}

/// A call to the store that must be reported, however it ends.
struct Call<'a> {
    layer: &'a Telemetry,
    kind: EventKind,
    name: Option<Name>,
    id: Option<LeaseId>,
    started: Instant,
    answered: bool,
}

impl Call<'_> {
    fn end(mut self, reason: Option<Reason>) {
        self.tell(reason);
    }

    fn tell(&mut self, reason: Option<Reason>) {
        self.answered = true;
        let answered = Answered {
            kind: self.kind,
            reason,
            name: self.name.take(),
            id: self.id,
            latency: self.started.elapsed(),
        };
        if self.layer.events.try_send(answered).is_err() {
            self.layer.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.tell(Some(Reason::Error(ErrorKind::Aborted)));
        }
    }
}

/// The data that becomes an [`Event`] on the sink's thread.
struct Answered {
    kind: EventKind,
    reason: Option<Reason>,
    name: Option<Name>,
    id: Option<LeaseId>,
    latency: Duration,
}

impl Answered {
    fn into_event(self, scheme: &'static str, shared: &Shared) -> Event {
        let Answered { kind, reason, name, id, latency } = self;
        let include = match &*shared.raw.read() {
            Raw::Never => false,
            Raw::Always => true,
            Raw::If(include) => name.as_ref().is_some_and(include),
        };
        Event {
            kind,
            ok: reason.is_none(),
            reason,
            scheme,
            name_hash: name.as_ref().map(Name::hash),
            lease_id_hash: id.map(|id| id.hash()),
            latency,
            name: name.filter(|_| include),
            lease_id: id.filter(|_| include),
        }
    }
}

/// The sink's thread, which runs until the last layer is gone and the channel is empty.
fn deliver(
    answered: Receiver<Answered>,
    scheme: &'static str,
    shared: &Shared,
    mut sink: impl FnMut(&Event),
) {
    for answered in answered {
        let told = catch_unwind(AssertUnwindSafe(|| sink(&answered.into_event(scheme, shared))));
        if told.is_err() {
            shared.panicked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[async_trait]
impl Backend for Telemetry {
    fn info(&self) -> Info {
        self.backend.info()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let call = self.call(EventKind::Acquire, Some(&claim.name), Some(claim.id));
        let answer = self.backend.try_acquire(claim).await;
        call.end(match &answer {
            Ok(Attempt::Granted(_)) => None,
            Ok(Attempt::Busy(_)) => Some(Reason::Locked),
            Ok(Attempt::Gone(gone)) => Some((*gone).into()),
            Err(error) => Some(error.into()),
        });
        answer
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let started = Instant::now();
        let answer = self.backend.wait(claim).await;
        // A wake-up to try again is not an attempt, and neither is a wait that is given up.
        let reason = match &answer {
            Ok(Wake::Retry) => return answer,
            Ok(Wake::Granted(_)) => None,
            Err(error) => Some(error.into()),
        };
        let mut call = self.call(EventKind::Acquire, Some(&claim.name), Some(claim.id));
        call.started = started;
        call.end(reason);
        answer
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        let call = |lease: &Renewal| self.call(EventKind::Renew, Some(&lease.name), Some(lease.id));
        let calls: Vec<_> = leases.iter().map(call).collect();
        let answers = self.backend.renew(leases).await;
        let mut each = answers.iter();
        for call in calls {
            call.end(match each.next() {
                Some(Ok(Renewed::Held(_))) => None,
                Some(Ok(Renewed::Gone(gone))) => Some((*gone).into()),
                Some(Err(error)) => Some(error.into()),
                None => Some(Reason::Error(ErrorKind::Internal)),
            });
        }
        answers
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        let call = self.call(EventKind::Release, Some(&lease.name), Some(lease.id));
        let answer = self.backend.release(lease).await;
        call.end(match &answer {
            Ok(Released::Done) => None,
            Ok(Released::Gone(gone)) => Some((*gone).into()),
            Err(error) => Some(error.into()),
        });
        answer
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        let call = self.call(EventKind::Revoke, Some(name), None);
        let answer = self.backend.revoke(name, now, only).await;
        call.end(match &answer {
            Ok(Revoked { leases: 0 }) => Some(Reason::NotFound),
            Ok(_) => None,
            Err(error) => Some(error.into()),
        });
        answer
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let call = match query {
            Query::Name(name) => self.call(EventKind::Lookup, Some(name), None),
            Query::LeaseId(id) => self.call(EventKind::Lookup, None, Some(*id)),
            Query::Prefix { .. } => self.call(EventKind::Lookup, None, None),
        };
        let answer = self.backend.inspect(query).await;
        let nothing = |page: &Page| match query {
            Query::Name(_) => page.items.iter().all(|item| item.holders.is_empty()),
            Query::LeaseId(id) => !page.items.iter().flat_map(|item| &item.holders).any(|it| it.id == *id),
            // A list may be empty without anything missing.
            Query::Prefix { .. } => false,
        };
        call.end(match &answer {
            Ok(page) if nothing(page) => Some(Reason::NotFound),
            Ok(_) => None,
            Err(error) => Some(error.into()),
        });
        answer
    }

    async fn sweep(&self) -> Result<Swept> {
        self.backend.sweep().await
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry")
            .field("backend", &self.backend)
            .field("dropped", &self.dropped())
            .field("panicked", &self.panicked())
            .finish_non_exhaustive()
    }
}
