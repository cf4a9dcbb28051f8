//! The client: one store, the defaults of its locks, and the background work they share.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::acquire::{self, Acquired, Limit, Outcome, Request};
use crate::backend::{Backend, Grant, Info, Mode, Release, Released, Renewal, Renewed, Revoked, Swept};
use crate::bugs::{self, Bug};
use crate::cancel::Cancel;
use crate::cell;
use crate::clock::{Clock, SystemClock, Timer};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::guard::Guard;
use crate::lease::Lease;
use crate::lease_id::LeaseId;
use crate::mutex::Mutex;
use crate::name::Name;
use crate::options::{MIN_TTL, Options, Poll, ReleaseSource, check_ttl, option_setters};
use crate::plain::Leasing;
use crate::renew::{self, ReleaseJob, Renewer};
use crate::reporter;
use crate::rwlock::RwLock;
use crate::semaphore::Semaphore;
use crate::span;
use crate::telemetry;

/// The namespace of names unless another is set.
pub const DEFAULT_NAMESPACE: &str = "leasehold";

/// A client of one store: makes mutexes, reader-writer locks and semaphores by name.
///
/// Cheap to clone; clones are the same client. It has one background thread, started with the store's
/// connections or with the first acquire, that renews what is held and sends the releases of dropped guards. The
/// thread ends when the last clone and the last guard are gone. Log lines and callbacks of that work are told by a
/// second thread, started when there is something to tell, so that a log that blocks delays no renewal. Call
/// [`close`](Locks::close) before the process ends, so that the releases of guards dropped just before are still sent.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Locks::connect("memory:").await?;
/// let guard = locks.mutex("nightly-report").lock().await?;
/// println!("fence {}", guard.fence());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    pub(crate) client: Arc<Client>,
    pub(crate) namespace: Arc<str>,
    pub(crate) options: Arc<Options>,
}

/// What all clones, locks and guards of a client share.
pub(crate) struct Client {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) info: Info,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) renewer: Arc<Renewer>,
    /// No more acquires.
    pub(crate) closed: Cancel,
    home: Home,
    /// The process it was made in. A fork of that has none of its threads.
    process: u32,
}

/// Where the background work runs.
enum Home {
    /// The mutex is held while the thread is started. A start that failed is not kept: the next acquire tries again.
    Thread(OnceLock<(Handle, ThreadId)>, parking_lot::Mutex<()>),
    /// Somebody else's; beside it the thread, if there is one, on which the store's connections live.
    Runtime(Handle, OnceLock<()>, #[allow(dead_code)] Option<Thread>),
}

/// The library's own thread with its runtime, before there is a client to work for. Dropped, it ends.
#[derive(Debug)]
struct Thread {
    runtime: Handle,
    id: ThreadId,
    work: oneshot::Sender<Arc<Renewer>>,
}

impl Client {
    fn is_copy(&self) -> bool {
        std::process::id() != self.process
    }

    /// Starts the background work if it does not run yet.
    pub(crate) fn start(&self) -> Result<&Handle> {
        if self.is_copy() {
            return Err(Error::new(
                ErrorKind::Aborted,
                "the client was made before a fork, and nothing renews its leases in this process; make a new client",
            ));
        }
        match &self.home {
            Home::Runtime(handle, started, _) => {
                started.get_or_init(|| {
                    handle.spawn(Arc::clone(&self.renewer).run(Timer::Naps));
                });
                Ok(handle)
            }
            Home::Thread(own, starting) => {
                if let Some((runtime, _)) = own.get() {
                    return Ok(runtime);
                }
                let _starting = starting.lock();
                if let Some((runtime, _)) = own.get() {
                    return Ok(runtime);
                }
                let thread = Thread::start()?;
                Ok(&own.get_or_init(|| thread.work_for(&self.renewer)).0)
            }
        }
    }

    /// Whether this is the thread of the background work, or the one that tells for it: neither must ever wait for
    /// that work.
    pub(crate) fn is_own_thread(&self) -> bool {
        match &self.home {
            Home::Runtime(..) => false,
            Home::Thread(own, _) => own.get().is_some_and(|(_, id)| {
                *id == std::thread::current().id() || reporter::reports_for() == Some(*id)
            }),
        }
    }

    /// Why nothing can be acquired any more.
    pub(crate) fn closed_error(&self) -> Error {
        let why = if self.renewer.is_dead() {
            "the client's background work has ended: its thread panicked, or the runtime it was given was shut \
             down; make a new client"
        } else {
            "the client is closed"
        };
        Error::new(ErrorKind::Aborted, why)
    }

    /// Where the background work runs, if it was ever needed.
    pub(crate) fn started(&self) -> Option<&Handle> {
        if self.is_copy() {
            return None;
        }
        match &self.home {
            Home::Runtime(handle, started, _) => started.get().map(|()| handle),
            Home::Thread(own, _) => own.get().map(|(handle, _)| handle),
        }
    }

    /// Whether this thread belongs to the runtime that was given for the background work and has one thread to turn
    /// it, which may be this one.
    pub(crate) fn may_block_its_runtime(&self) -> bool {
        let Home::Runtime(runtime, ..) = &self.home else { return false };
        runtime.metrics().num_workers() == 1
            && Handle::try_current().is_ok_and(|here| here.id() == runtime.id())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.is_copy() {
            self.renewer.end();
        }
    }
}

impl Thread {
    fn start() -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Unavailable, "the background thread could not be started")
                .with_source(error)
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (work, renewer) = oneshot::channel::<Arc<Renewer>>();
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new()
            .name("leasehold".into())
            .spawn(move || {
                reporter::keep_off_this_thread();
                runtime.block_on(async {
                    if let Ok(renewer) = renewer.await {
                        let timer = renewer.timer();
                        renewer.run(timer).await;
                    }
                });
            })
            .map_err(failed)?;
        Ok(Thread { runtime: handle, id: thread.thread().id(), work })
    }

    /// Lets it renew and release for a client, until that is gone.
    fn work_for(self, renewer: &Arc<Renewer>) -> (Handle, ThreadId) {
        if let Err(renewer) = self.work.send(Arc::clone(renewer)) {
            renewer.die();
        }
        (self.runtime, self.id)
    }
}

/// Sets up a [`Locks`].
#[derive(Debug)]
pub struct LocksBuilder {
    backend: Arc<dyn Backend>,
    namespace: Option<Arc<str>>,
    options: Options,
    /// The system's unless set.
    clock: Option<Arc<dyn Clock>>,
    runtime: Option<Handle>,
    /// Started before the client, because the store's connections live on it.
    thread: Option<Thread>,
}

impl LocksBuilder {
    /// Sets the namespace of all names. `leasehold` unless set; for stores whose names are shared
    /// with other systems, none.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<Arc<str>>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Puts a layer around the store, for example
    /// [`Telemetry`](crate::layers::telemetry::Telemetry). The last one is outermost.
    #[must_use]
    pub fn layer(mut self, wrap: impl FnOnce(Arc<dyn Backend>) -> Arc<dyn Backend>) -> Self {
        self.backend = wrap(self.backend);
        self
    }

    /// Sets the clock by which deadlines are judged: for tests. The background thread looks at it at least once a
    /// second while there is something to renew; in paused time set [`runtime`](LocksBuilder::runtime) too.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Runs the background work on this runtime instead of a thread of its own: for tests in paused
    /// time. A runtime that is blocked then loses what is held, and so does a log or a callback that blocks it.
    /// When it is shut down, every guard is `Lost`, acquires are `Aborted`, and releases of guards dropped later
    /// are not sent.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    option_setters!();

    fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    /// The client, and its background work for the caller to run: for simulations, which stop and kill it as a
    /// process is stopped and killed.
    #[cfg(feature = "simulation")]
    #[doc(hidden)]
    pub fn build_apart(mut self) -> (Locks, impl Future<Output = ()> + Send + use<>) {
        self.runtime = Some(Handle::current());
        let locks = self.build();
        if let Home::Runtime(_, started, _) = &locks.client.home {
            started.get_or_init(|| ());
        }
        let work = Arc::clone(&locks.client.renewer).run(Timer::Naps);
        (locks, work)
    }

    /// The client. Nothing is sent; bad options show at the first acquire.
    pub fn build(self) -> Locks {
        telemetry::describe();
        let by_system = self.clock.is_none();
        let clock = bugs::clock(self.clock.unwrap_or_else(|| Arc::new(SystemClock)));
        let info = self.backend.info();
        let namespace =
            self.namespace.unwrap_or_else(|| if info.namespaced { DEFAULT_NAMESPACE } else { "" }.into());
        let closed = Cancel::new();
        let renewer = Renewer::new(Arc::clone(&self.backend), Arc::clone(&clock), by_system, closed.clone());
        let renewer = Arc::new(renewer);
        let home = match (self.runtime, self.thread) {
            (Some(handle), thread) => Home::Runtime(handle, OnceLock::new(), thread),
            (None, Some(thread)) => {
                Home::Thread(thread.work_for(&renewer).into(), parking_lot::Mutex::default())
            }
            (None, None) => Home::Thread(OnceLock::new(), parking_lot::Mutex::default()),
        };
        let client =
            Client { backend: self.backend, info, clock, renewer, closed, home, process: std::process::id() };
        Locks { client: Arc::new(client), namespace, options: Arc::new(self.options) }
    }
}

impl Locks {
    /// A client of a backend, with the default options.
    pub fn new(backend: impl Backend) -> Self {
        Locks::builder(Arc::new(backend)).build()
    }

    /// A client of a backend, to be set up.
    pub fn builder(backend: Arc<dyn Backend>) -> LocksBuilder {
        LocksBuilder {
            backend,
            namespace: None,
            options: Options::default(),
            clock: None,
            runtime: None,
            thread: None,
        }
    }

    /// As [`builder`](Locks::builder), for a store that this future opens. It runs on the client's own
    /// thread, and so do the tasks it spawns: connections made there serve renewals and releases also while
    /// the caller's runtime is blocked or gone. [`connect`](Locks::connect) does this by itself.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use leasehold::{Backend, Locks, backends::memory::Memory};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let store = async { Ok(Arc::new(Memory::new()) as Arc<dyn Backend>) };
    /// let locks = Locks::open(store).await?.namespace("billing").build();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropped, the future is dropped too, and the thread ends.
    ///
    /// # Errors
    /// Those of the future; `Unavailable` if no thread can be had.
    pub async fn open(
        store: impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static,
    ) -> Result<LocksBuilder> {
        let thread = Thread::start()?;
        let opened = thread.runtime.spawn(store).await;
        let backend = opened.map_err(|error| {
            Error::new(ErrorKind::Internal, "opening the store panicked").with_source(error)
        })??;
        Ok(LocksBuilder { thread: Some(thread), ..Locks::builder(backend) })
    }

    /// The same client with other defaults. Locks made before keep theirs.
    #[must_use]
    pub fn with_options(&self, change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options::clone(&self.options);
        change(&mut options);
        Locks { options: Arc::new(options), ..self.clone() }
    }

    /// The same client with names in another namespace.
    #[must_use]
    pub fn with_namespace(&self, namespace: impl Into<Arc<str>>) -> Self {
        Locks { namespace: namespace.into(), ..self.clone() }
    }

    /// What the store is and can do.
    pub fn info(&self) -> Info {
        self.client.info
    }

    /// The store itself.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.client.backend
    }

    /// The defaults of this client's locks.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// A name in this client's namespace.
    ///
    /// # Errors
    /// `InvalidArgument`, as [`Name::within`].
    pub fn name(&self, name: impl AsRef<str>) -> Result<Name> {
        Name::within(&self.namespace, name.as_ref())
    }

    /// A mutex: one holder at a time. It is the write side of the [`rwlock`](Locks::rwlock) of that name.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex { lock: Lock::new(self, name.as_ref()) }
    }

    /// A reader-writer lock: many readers, or one writer.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock { lock: Lock::new(self, name.as_ref()) }
    }

    /// A semaphore: at most `max_count` holders at a time. All users of the name must say the same number.
    pub fn semaphore(&self, name: impl AsRef<str>, max_count: u32) -> Semaphore {
        Semaphore { lock: Lock::new(self, name.as_ref()), max_count }
    }

    /// Leases as plain data, for callers that renew by themselves. Exclusive unless told otherwise.
    pub fn leasing(&self, name: impl AsRef<str>) -> Leasing {
        Leasing { lock: Lock::new(self, name.as_ref()), mode: Mode::Exclusive }
    }

    /// Renews a plain lease for its ttl.
    ///
    /// # Cancel safety
    /// Dropped, it may or may not have renewed; renewing again is harmless.
    ///
    /// # Errors
    /// Faults of the store. That the lease is gone is an answer.
    pub async fn renew(&self, lease: &Lease) -> Result<Renewed> {
        check_ttl(lease.ttl, MIN_TTL, self.client.info.max_ttl)?;
        self.renew_one(lease.renewal()).await
    }

    /// Renews a lease of which only the id is known, on stores that can find it.
    ///
    /// # Cancel safety
    /// As [`renew`](Locks::renew).
    ///
    /// # Errors
    /// Faults of the store; `Unsupported` where it cannot find a lease by its id.
    pub async fn renew_by_id(&self, id: LeaseId, ttl: Duration) -> Result<Renewed> {
        check_ttl(ttl, MIN_TTL, self.client.info.max_ttl)?;
        match self.find(id).await? {
            // Name and id are compared again in the same step as the renewal; ids are never reused.
            Some(found) => self.renew_one(Renewal::new(found.name, id, ttl)).await,
            None => Ok(Renewed::Gone(crate::Gone::NotFound)),
        }
    }

    pub(crate) async fn renew_one(&self, renewal: Renewal) -> Result<Renewed> {
        renew::renew_one(&*self.client.backend, &renewal, self.options.request_timeout).await
    }

    /// Releases a plain lease.
    ///
    /// # Cancel safety
    /// Dropped, it may or may not have released; releasing again is harmless.
    ///
    /// # Errors
    /// Faults of the store. That the lease is gone is an answer.
    pub async fn release(&self, lease: &Lease) -> Result<Released> {
        self.release_one(lease.release()).await
    }

    /// Releases a lease of which only the id is known, on stores that can find it.
    ///
    /// # Cancel safety
    /// As [`release`](Locks::release).
    ///
    /// # Errors
    /// Faults of the store; `Unsupported` where it cannot find a lease by its id.
    pub async fn release_by_id(&self, id: LeaseId) -> Result<Released> {
        match self.find(id).await? {
            Some(found) => self.release_one(Release::new(found.name, id)).await,
            None => Ok(Released::Gone(crate::Gone::NotFound)),
        }
    }

    async fn release_one(&self, release: Release) -> Result<Released> {
        let Client { backend, clock, .. } = &*self.client;
        let job = ReleaseJob::new(release, &self.options, ReleaseSource::Drop);
        let answer = renew::release(&**backend, &**clock, &job).await;
        telemetry::released(&job.release.name, &answer, None);
        answer
    }

    /// Makes a guard of a plain lease: from another process, or from [`Guard::into_lease`].
    ///
    /// It is renewed first, and the guard's deadline comes from that answer only.
    ///
    /// # Cancel safety
    /// Dropped, the lease stays as it was or is renewed once; it is not released.
    ///
    /// # Errors
    /// `Lost` if the lease is gone; `Aborted` after [`close`](Locks::close); `InvalidArgument` for options
    /// that no acquire would accept; faults of the store.
    pub async fn adopt(&self, lease: Lease) -> Result<Guard> {
        if self.client.closed.is_cancelled() {
            return Err(self.client.closed_error());
        }
        let mut options = Options::clone(&self.options);
        options.ttl = lease.ttl;
        options.owner = Arc::clone(&lease.owner);
        options.renew_every = options.renew_every.filter(|every| *every <= lease.ttl / 2);
        options.check(&self.client.info, lease.mode, true)?;
        self.client.start()?;
        let mut renewal = lease.renewal();
        renewal.ttl = options.max_hold.map_or(lease.ttl, |hold| lease.ttl.min(hold));
        let sent = self.client.clock.now();
        let mut renewed = self.renew_one(renewal).await?;
        if bugs::on(Bug::GoneAdopted) && matches!(renewed, Renewed::Gone(_)) {
            renewed = Renewed::Held(Grant::new(lease.fence, lease.mode, Some(lease.ttl)));
        }
        match renewed {
            Renewed::Held(grant)
                if cell::deadline(sent, &grant, lease.ttl)
                    .is_some_and(|end| self.client.clock.now() >= end) =>
            {
                // No guard: dropping it would release a lease that may still be of use to somebody.
                Err(Error::new(
                    ErrorKind::NetworkTimeout,
                    "the store renewed the lease, but answered too late",
                ))
            }
            Renewed::Held(grant) => {
                let mut claim = crate::backend::Claim::new(lease.name, lease.mode, lease.ttl, lease.owner);
                claim.id = lease.id;
                let acquired = Acquired { claim, grant, sent, waited: Duration::ZERO, attempts: 1 };
                Ok(Guard::new(Arc::clone(&self.client), Arc::new(options), acquired))
            }
            Renewed::Gone(gone) => {
                Err(Error::new(ErrorKind::Lost, format!("the lease cannot be adopted: {}", gone.as_str()))
                    .with_name(lease.name)
                    .with_lease_id(lease.id))
            }
        }
    }

    /// Refuses all renewals of a name's leases, so that it passes on when they expire; with `now`
    /// frees it at once and relies on fences to stop the old holders.
    ///
    /// # Cancel safety
    /// Dropped, it may or may not have happened.
    ///
    /// # Errors
    /// Faults of the store; `Unsupported` where leases cannot be revoked.
    pub async fn revoke(&self, name: impl AsRef<str>, now: bool) -> Result<Revoked> {
        let name = self.name(name)?;
        self.within(self.options.request_timeout, self.client.backend.revoke(&name, now, None)).await?
    }

    /// As [`revoke`](Locks::revoke), but of one lease only: the one that has this fence, as
    /// [`inspect`](Locks::inspect) shows it. If it is gone by now, nothing is changed, whoever holds the name, and no
    /// lease is counted.
    ///
    /// # Cancel safety
    /// Dropped, it may or may not have happened.
    ///
    /// # Errors
    /// As [`revoke`](Locks::revoke).
    pub async fn revoke_only(&self, name: impl AsRef<str>, fence: Fence, now: bool) -> Result<Revoked> {
        let name = self.name(name)?;
        self.within(self.options.request_timeout, self.client.backend.revoke(&name, now, Some(fence))).await?
    }

    /// Drops what has expired. Never needed for correctness. Where there are very many names, one call drops a part, and
    /// the next goes on from there.
    ///
    /// # Cancel safety
    /// Dropped, it may be half done, which harms nothing.
    ///
    /// # Errors
    /// Faults of the store.
    pub async fn sweep(&self) -> Result<Swept> {
        self.client.backend.sweep().await
    }

    /// Ends the client: waiting and new acquires are `Aborted`, and when this resolves every release
    /// of a dropped guard, and of what an aborted acquire may have got, has been sent or has failed. Held guards
    /// stay renewed until they are released.
    ///
    /// An aborted acquire ends when it is next polled. One that is not polled, because its future was put aside or its
    /// runtime is blocked, is waited for up to 5 s.
    ///
    /// # Cancel safety
    /// Dropped, the client is closed all the same.
    pub async fn close(&self) {
        self.client.closed.cancel();
        if let Some(runtime) = self.client.started() {
            self.client.renewer.settled(runtime).await;
        }
    }

    pub(crate) async fn within<T>(&self, time: Duration, call: impl Future<Output = T>) -> Result<T> {
        tokio::time::timeout(time, call)
            .await
            .map_err(|_| Error::new(ErrorKind::NetworkTimeout, "the store did not answer in time"))
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("scheme", &self.client.info.scheme)
            .field("namespace", &self.namespace)
            .field("options", &self.options)
            .finish()
    }
}

/// What every face is made of: a client, a name, options.
#[derive(Clone)]
pub(crate) struct Lock {
    locks: Locks,
    /// Faces are made without a result; a bad name shows at the first acquire.
    name: std::result::Result<Name, Arc<str>>,
    /// As it was given, for `name()`.
    given: Arc<str>,
}

impl Lock {
    fn new(locks: &Locks, given: &str) -> Self {
        let name = locks.name(given).map_err(|error| error.message().into());
        let given = name.as_ref().map_or_else(|_| given.into(), |name| name.as_str().into());
        Lock { locks: locks.clone(), name, given }
    }

    pub(crate) fn name(&self) -> &str {
        &self.given
    }

    pub(crate) fn client(&self) -> &Client {
        &self.locks.client
    }

    pub(crate) fn options(&self) -> &Options {
        &self.locks.options
    }

    pub(crate) fn options_mut(&mut self) -> &mut Options {
        Arc::make_mut(&mut self.locks.options)
    }

    /// Checks everything, then runs the wait loop.
    async fn acquire<T>(
        &self,
        mode: Mode,
        limit: Limit,
        guarded: bool,
        accept: impl FnOnce(Acquired) -> T,
    ) -> Result<Outcome<T>> {
        let client = &self.locks.client;
        let name = self.name.clone().map_err(|message| Error::invalid(message.to_string()))?;
        self.locks.options.check(&client.info, mode, guarded)?;
        client.start()?;
        let request = Request { client, name, mode, options: &self.locks.options, limit, guarded };
        acquire::acquire(request, accept).await
    }

    fn guard(&self, acquired: Acquired) -> Guard {
        Guard::new(Arc::clone(&self.locks.client), Arc::clone(&self.locks.options), acquired)
    }

    /// Waits up to `max_wait`, for ever if there is none.
    pub(crate) async fn wait(&self, mode: Mode) -> Result<Guard> {
        let limit = Limit::from_max_wait(self.options().max_wait);
        match self.acquire(mode, limit, true, |acquired| self.guard(acquired)).await? {
            Outcome::Acquired(guard) => Ok(guard),
            Outcome::Busy { waited } => Err(self.timed_out(waited)),
        }
    }

    /// One attempt.
    pub(crate) async fn once(&self, mode: Mode) -> Result<Option<Guard>> {
        self.within(mode, Duration::ZERO).await
    }

    /// Waits up to `timeout`.
    pub(crate) async fn within(&self, mode: Mode, timeout: Duration) -> Result<Option<Guard>> {
        let limit = Limit::from_max_wait(Some(timeout));
        match self.acquire(mode, limit, true, |acquired| self.guard(acquired)).await? {
            Outcome::Acquired(guard) => Ok(Some(guard)),
            Outcome::Busy { .. } => Ok(None),
        }
    }

    /// A plain lease, or how long was waited in vain.
    pub(crate) async fn lease(&self, mode: Mode, limit: Limit) -> Result<Result<Lease, Duration>> {
        let accept = |acquired: Acquired| Lease::granted(acquired.claim, &acquired.grant);
        match self.acquire(mode, limit, false, accept).await? {
            Outcome::Acquired(lease) => Ok(Ok(lease)),
            Outcome::Busy { waited } => Ok(Err(waited)),
        }
    }

    /// The lock as the `with_…` helpers use it: where it has to poll, and nobody said how long,
    /// with an end in sight.
    pub(crate) fn bounded(&self) -> Lock {
        let mut lock = self.clone();
        let Options { max_wait, max_attempts, poll, .. } = *lock.options();
        if !lock.locks.client.info.push && max_wait.is_none() && max_attempts.is_none() && poll.is_none() {
            let options = lock.options_mut();
            options.max_wait = Some(Duration::from_secs(5));
            options.max_attempts = Some(11);
            options.poll = Some(Poll::new(Duration::from_millis(100), Duration::from_secs(5)));
        }
        lock
    }

    pub(crate) fn timed_out(&self, waited: Duration) -> Error {
        // Nobody wants to read nanoseconds; they are in the error.
        let whole = Duration::from_millis(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
        let message = format!("not acquired within {}", span::show(whole));
        let error = Error::new(ErrorKind::Timeout, message).with_waited(waited);
        match &self.name {
            Ok(name) => error.with_name(name.clone()),
            Err(_) => error,
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.given).field("locks", &self.locks).finish()
    }
}
