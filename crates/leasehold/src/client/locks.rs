//! The client: one store, the default options of its locks, and the background work they share.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::{Backend, Claim, Info, Mode, Release, Released, Renewal, Renewed, Revoked, Swept};
use crate::cancel::Cancel;
use crate::client::acquire::Acquired;
use crate::client::guard::Guard;
use crate::client::home::{Client, Home, Thread};
use crate::client::leasing::Leasing;
use crate::client::lock::Lock;
use crate::client::mutex::Mutex;
use crate::client::rwlock::RwLock;
use crate::client::semaphore::Semaphore;
#[cfg(feature = "__simulation")]
use crate::clock::Timer;
use crate::clock::{Clock, SystemClock};
use crate::coordination::election::Election;
use crate::coordination::multi_lock::MultiLock;
use crate::engine::renew::{self, ReleaseJob, Renewer};
use crate::engine::{held, telemetry};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease::Lease;
use crate::lease_id::LeaseId;
use crate::marks::Marks;
use crate::name::Name;
use crate::options::{MIN_TTL, Options, ReleaseSource, check_ttl, option_setters};
use crate::stores::Examiner;

/// The namespace of names, unless the builder sets another.
pub const DEFAULT_NAMESPACE: &str = "leasehold";

/// A client of one store. It makes mutexes, reader-writer locks and semaphores by name.
///
/// Cheap to clone; clones are the same client. It has one background thread, started with the store's connections or
/// with the first acquire. That thread renews leases and sends the releases of dropped guards, and ends when the last
/// clone and the last guard are gone. A second thread, started when there is something to report, writes the log lines
/// and metrics and runs the callbacks of that work, so that a log that blocks delays no renewal. Call
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

/// Sets up a [`Locks`].
#[derive(Debug)]
pub struct LocksBuilder {
    backend: Arc<dyn Backend>,
    namespace: Option<Arc<str>>,
    options: Options,
    /// The system's clock unless set.
    clock: Option<Arc<dyn Clock>>,
    runtime: Option<Handle>,
    /// Started before the client, because the store's connections live on it.
    pub(crate) thread: Option<Thread>,
    /// For a store that was opened by its URL.
    pub(crate) examiner: Option<Examiner>,
    /// Who keeps marks: the store itself, if it was opened by its URL and can.
    pub(crate) marks: Option<Arc<dyn Marks>>,
}

impl LocksBuilder {
    /// Sets the namespace of all names. The default is `leasehold`; for stores whose names are shared with other
    /// systems, none.
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

    /// Sets the clock that judges deadlines, for tests. The background thread reads it at least once a second while
    /// there is something to renew. In paused time set [`runtime`](LocksBuilder::runtime) too.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Runs the background work on this runtime instead of a thread of its own, for tests in paused time. If that
    /// runtime is blocked, also by a log or a callback, held leases are lost. When it is shut down, every guard is
    /// `Lost`, acquires are `Aborted`, and releases of guards dropped later are not sent.
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

    /// Builds the client and returns its background work for the caller to run. For simulations, which stop and kill
    /// that work as a process is stopped and killed.
    #[cfg(feature = "__simulation")]
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

    /// Builds the client. It sends nothing; the first acquire reports bad options.
    pub fn build(self) -> Locks {
        telemetry::describe();
        let by_system = self.clock.is_none();
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock));
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
        let client = Client {
            backend: self.backend,
            examiner: self.examiner,
            marks: self.marks,
            info,
            clock,
            renewer,
            closed,
            home,
            process: std::process::id(),
        };
        Locks { client: Arc::new(client), namespace, options: Arc::new(self.options) }
    }
}

impl Locks {
    /// Makes a client of a backend, with the default options.
    pub fn new(backend: impl Backend) -> Self {
        Locks::builder(Arc::new(backend)).build()
    }

    /// Returns a builder for a client of a backend.
    pub fn builder(backend: Arc<dyn Backend>) -> LocksBuilder {
        LocksBuilder {
            backend,
            namespace: None,
            options: Options::default(),
            clock: None,
            runtime: None,
            thread: None,
            examiner: None,
            marks: None,
        }
    }

    /// As [`builder`](Locks::builder), for a store that this future opens. The future runs on the client's own thread,
    /// and so do the tasks it spawns: connections made there serve renewals and releases even while the caller's
    /// runtime is blocked or gone. [`connect`](Locks::connect) does this by itself.
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
    /// If dropped, the future is dropped too, and the thread ends.
    ///
    /// # Errors
    /// The future's errors; `Unavailable` if no thread can be started.
    pub async fn open(
        store: impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static,
    ) -> Result<LocksBuilder> {
        let (backend, thread) = Locks::on_a_thread(store).await?;
        Ok(LocksBuilder { thread: Some(thread), ..Locks::builder(backend) })
    }

    /// Opens a store on a client's thread, which it starts.
    pub(crate) async fn on_a_thread<T: Send + 'static>(
        store: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<(T, Thread)> {
        let thread = Thread::start()?;
        let opened = thread.runtime.spawn(store).await;
        let opened = opened.map_err(|error| {
            Error::new(ErrorKind::Internal, "opening the store panicked").with_source(error)
        })??;
        Ok((opened, thread))
    }

    /// The same client with other default options. Locks made before keep theirs.
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

    /// The clock that judges deadlines.
    #[doc(hidden)]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.client.clock
    }

    /// The store itself.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.client.backend
    }

    /// The default options of this client's locks.
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

    /// A semaphore: at most `max_count` holders at a time. All clients must use the same number for a name.
    pub fn semaphore(&self, name: impl AsRef<str>, max_count: u32) -> Semaphore {
        Semaphore { lock: Lock::new(self, name.as_ref()), max_count }
    }

    /// Several names that are locked together, all of them or none.
    pub fn all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::new(self, names)
    }

    /// An election: one of its candidates leads at a time.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self, name.as_ref())
    }

    /// Leases as plain data, for callers that renew by themselves. Exclusive unless [`Leasing::mode`] sets another
    /// mode.
    pub fn leasing(&self, name: impl AsRef<str>) -> Leasing {
        Leasing { lock: Lock::new(self, name.as_ref()), mode: Mode::Exclusive }
    }

    /// Renews a plain lease for its ttl.
    ///
    /// # Cancel safety
    /// If dropped, it may or may not have renewed; renewing again is harmless.
    ///
    /// # Errors
    /// Faults of the store. A lease that is gone is an answer, not an error.
    pub async fn renew(&self, lease: &Lease) -> Result<Renewed> {
        check_ttl(lease.ttl, MIN_TTL, self.client.info.max_ttl)?;
        self.renew_one(lease.renewal()).await
    }

    /// Renews a lease when only its id is known, on stores that can find it.
    ///
    /// # Cancel safety
    /// As [`renew`](Locks::renew).
    ///
    /// # Errors
    /// Faults of the store; `Unsupported` where it cannot find a lease by its id; `AuthFailed` from a leasehold server if
    /// the token may not read the lock.
    pub async fn renew_by_id(&self, id: LeaseId, ttl: Duration) -> Result<Renewed> {
        check_ttl(ttl, MIN_TTL, self.client.info.max_ttl)?;
        match self.find(id).await? {
            // The store compares name and id again in the same step as the renewal; ids are never reused.
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
    /// If dropped, it may or may not have released; releasing again is harmless.
    ///
    /// # Errors
    /// Faults of the store. A lease that is gone is an answer, not an error.
    pub async fn release(&self, lease: &Lease) -> Result<Released> {
        self.release_one(lease.release()).await
    }

    /// Releases a lease when only its id is known, on stores that can find it.
    ///
    /// # Cancel safety
    /// As [`release`](Locks::release).
    ///
    /// # Errors
    /// Faults of the store; `Unsupported` where it cannot find a lease by its id; `AuthFailed` from a leasehold server if
    /// the token may not read the lock.
    pub async fn release_by_id(&self, id: LeaseId) -> Result<Released> {
        match self.find(id).await? {
            Some(found) => self.release_one(Release::new(found.name, id)).await,
            None => Ok(Released::Gone(crate::Gone::NotFound)),
        }
    }

    async fn release_one(&self, release: Release) -> Result<Released> {
        let Client { backend, clock, .. } = &*self.client;
        let job = ReleaseJob::new(release, &self.options, ReleaseSource::Drop);
        let answer = job.send(&**backend, &**clock).await;
        telemetry::released(&job.release.name, &answer, None);
        answer
    }

    /// Makes a guard from a plain lease: one from another process, or from [`Guard::into_lease`].
    ///
    /// It renews the lease first, and sets the guard's deadline from that answer only.
    ///
    /// # Cancel safety
    /// If dropped, the lease stays as it was or is renewed once; it is not released.
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
        match self.renew_one(renewal).await? {
            Renewed::Held(grant)
                if held::deadline(sent, &grant, lease.ttl)
                    .is_some_and(|end| self.client.clock.now() >= end) =>
            {
                // Make no guard here: dropping it would release a lease that another process may still use.
                Err(Error::new(
                    ErrorKind::NetworkTimeout,
                    "the store renewed the lease, but answered too late",
                ))
            }
            Renewed::Held(grant) => {
                let mut claim = Claim::new(lease.name, lease.mode, lease.ttl, lease.owner);
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

    /// Refuses all renewals of a name's leases, so that the name becomes free when they expire. With `now` it frees
    /// the name at once and relies on fences to stop the old holders.
    ///
    /// # Cancel safety
    /// If dropped, it may or may not have happened.
    ///
    /// # Errors
    /// Faults of the store; `Unsupported` where leases cannot be revoked.
    pub async fn revoke(&self, name: impl AsRef<str>, now: bool) -> Result<Revoked> {
        let name = self.name(name)?;
        self.within(self.options.request_timeout, self.client.backend.revoke(&name, now, None)).await?
    }

    /// As [`revoke`](Locks::revoke), but for one lease only: the one with this fence, as [`inspect`](Locks::inspect)
    /// shows it. If that lease is gone, nothing changes, no matter which client holds the name, and the count is zero.
    ///
    /// # Cancel safety
    /// If dropped, it may or may not have happened.
    ///
    /// # Errors
    /// As [`revoke`](Locks::revoke).
    pub async fn revoke_only(&self, name: impl AsRef<str>, fence: Fence, now: bool) -> Result<Revoked> {
        let name = self.name(name)?;
        self.within(self.options.request_timeout, self.client.backend.revoke(&name, now, Some(fence))).await?
    }

    /// Drops what has expired. Correctness never needs it. With very many names, one call drops a part, and the next
    /// call goes on from there.
    ///
    /// # Cancel safety
    /// If dropped, it may be half done, which does no harm.
    ///
    /// # Errors
    /// Faults of the store.
    pub async fn sweep(&self) -> Result<Swept> {
        self.client.backend.sweep().await
    }

    /// Closes the client: acquires that wait, and new ones, fail with `Aborted`.
    ///
    /// When this resolves, every release of a dropped guard, and of anything that an aborted acquire may have got, has
    /// been sent or has failed. Held guards stay renewed until they are released.
    ///
    /// An aborted acquire ends when it is next polled. If it is not polled, because its future was put aside or its
    /// runtime is blocked, this waits up to 5 s for it. Each release ends within its
    /// [`release_timeout`](crate::Options::release_timeout). At the end this waits until the program has taken what was
    /// reported about them: log lines, metrics and
    /// [`on_release_error`](crate::Options::on_release_error). If one of these blocks, it waits up to 5 s.
    ///
    /// # Cancel safety
    /// If dropped, the client is closed all the same.
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
