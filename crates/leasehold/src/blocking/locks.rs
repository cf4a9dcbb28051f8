//! The client for blocking callers.

use std::sync::Arc;
use std::time::Duration;

use super::{Election, Guard, Leasing, Lock, MultiLock, Mutex, RwLock, Semaphore, block_on};
use crate::backend::{Backend, Info, NameInfo, Note, Page, Released, Renewed, Revoked, Swept};
use crate::client::diagnostics::LeaseInfo;
use crate::client::locks::LocksBuilder;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease::Lease;
use crate::lease_id::LeaseId;
use crate::marks::{Checked, WriteFence};
use crate::name::Name;
use crate::options::Options;

/// A client of one store, as [`leasehold::Locks`](crate::Locks), for synchronous callers.
///
/// Cheap to clone; clones are the same client. [`as_async`](Locks::as_async) gives the same client too, so blocking
/// and async callers can share one. To set it up further, build the async client and convert it:
///
/// ```
/// use leasehold::backends::memory::Memory;
/// use leasehold::blocking::Locks;
///
/// let builder = leasehold::Locks::builder(std::sync::Arc::new(Memory::new()));
/// let locks = Locks::from(builder.namespace("billing").owner("worker-7").build());
/// assert!(!locks.is_locked("invoices")?);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Locks(crate::Locks);

impl Locks {
    /// As [`leasehold::Locks::new`](crate::Locks::new).
    pub fn new(backend: impl Backend) -> Self {
        Locks(crate::Locks::new(backend))
    }

    /// As [`leasehold::Locks::connect`](crate::Locks::connect), blocking.
    pub fn connect(url: &str) -> Result<Self> {
        Ok(Locks::connect_builder(url)?.build().into())
    }

    /// As [`connect`](Locks::connect), but returns a builder for further settings; convert what it builds with
    /// `Locks::from`.
    ///
    /// # Errors
    /// As [`connect`](Locks::connect).
    pub fn connect_builder(url: &str) -> Result<LocksBuilder> {
        block_on(None, crate::Locks::connect_builder(url))
    }

    /// The same client for async callers.
    pub fn as_async(&self) -> &crate::Locks {
        &self.0
    }

    /// The same client for async callers.
    pub fn into_async(self) -> crate::Locks {
        self.0
    }

    /// As [`leasehold::Locks::with_options`](crate::Locks::with_options).
    #[must_use]
    pub fn with_options(&self, change: impl FnOnce(&mut Options)) -> Self {
        Locks(self.0.with_options(change))
    }

    /// As [`leasehold::Locks::with_namespace`](crate::Locks::with_namespace).
    #[must_use]
    pub fn with_namespace(&self, namespace: impl Into<Arc<str>>) -> Self {
        Locks(self.0.with_namespace(namespace))
    }

    /// As [`leasehold::Locks::info`](crate::Locks::info).
    pub fn info(&self) -> Info {
        self.0.info()
    }

    /// As [`leasehold::Locks::backend`](crate::Locks::backend).
    pub fn backend(&self) -> &Arc<dyn Backend> {
        self.0.backend()
    }

    /// As [`leasehold::Locks::options`](crate::Locks::options).
    pub fn options(&self) -> &Options {
        self.0.options()
    }

    /// As [`leasehold::Locks::name`](crate::Locks::name).
    pub fn name(&self, name: impl AsRef<str>) -> Result<Name> {
        self.0.name(name)
    }

    /// As [`leasehold::Locks::mutex`](crate::Locks::mutex).
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex { lock: Lock(self.0.mutex(name).lock) }
    }

    /// As [`leasehold::Locks::rwlock`](crate::Locks::rwlock).
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock { lock: Lock(self.0.rwlock(name).lock) }
    }

    /// As [`leasehold::Locks::semaphore`](crate::Locks::semaphore).
    pub fn semaphore(&self, name: impl AsRef<str>, max_count: u32) -> Semaphore {
        Semaphore { lock: Lock(self.0.semaphore(name, max_count).lock), max_count }
    }

    /// As [`leasehold::Locks::all`](crate::Locks::all).
    pub fn all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock(self.0.all(names))
    }

    /// As [`leasehold::Locks::election`](crate::Locks::election).
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election(self.0.election(name))
    }

    /// As [`leasehold::Locks::once`](crate::Locks::once).
    #[cfg(feature = "schedule")]
    pub fn once(&self, name: impl AsRef<str>, tick: impl Into<crate::Tick>) -> super::Once {
        super::Once(self.0.once(name, tick))
    }

    /// As [`leasehold::Locks::tick_record`](crate::Locks::tick_record), blocking.
    #[cfg(feature = "schedule")]
    pub fn tick_record(&self, name: impl AsRef<str>) -> Result<crate::TickRecord> {
        self.block_on(self.0.tick_record(name))
    }

    /// As [`leasehold::Locks::leasing`](crate::Locks::leasing).
    pub fn leasing(&self, name: impl AsRef<str>) -> Leasing {
        Leasing(self.0.leasing(name))
    }

    /// As [`leasehold::Locks::renew`](crate::Locks::renew), blocking.
    pub fn renew(&self, lease: &Lease) -> Result<Renewed> {
        self.block_on(self.0.renew(lease))
    }

    /// As [`leasehold::Locks::renew_by_id`](crate::Locks::renew_by_id), blocking.
    pub fn renew_by_id(&self, id: LeaseId, ttl: Duration) -> Result<Renewed> {
        self.block_on(self.0.renew_by_id(id, ttl))
    }

    /// As [`leasehold::Locks::release`](crate::Locks::release), blocking.
    pub fn release(&self, lease: &Lease) -> Result<Released> {
        self.block_on(self.0.release(lease))
    }

    /// As [`leasehold::Locks::release_after`](crate::Locks::release_after), blocking.
    pub fn release_after(&self, lease: &Lease, stays: Duration) -> Result<Released> {
        self.block_on(self.0.release_after(lease, stays))
    }

    /// As [`leasehold::Locks::release_by_id`](crate::Locks::release_by_id), blocking.
    pub fn release_by_id(&self, id: LeaseId) -> Result<Released> {
        self.block_on(self.0.release_by_id(id))
    }

    /// As [`leasehold::Locks::adopt`](crate::Locks::adopt), blocking.
    pub fn adopt(&self, lease: Lease) -> Result<Guard> {
        self.block_on(self.0.adopt(lease)).map(Guard)
    }

    /// As [`leasehold::Locks::revoke`](crate::Locks::revoke), blocking.
    pub fn revoke(&self, name: impl AsRef<str>, now: bool) -> Result<Revoked> {
        self.block_on(self.0.revoke(name, now))
    }

    /// As [`leasehold::Locks::revoke_only`](crate::Locks::revoke_only), blocking.
    pub fn revoke_only(&self, name: impl AsRef<str>, fence: Fence, now: bool) -> Result<Revoked> {
        self.block_on(self.0.revoke_only(name, fence, now))
    }

    /// As [`leasehold::Locks::check_fence`](crate::Locks::check_fence), blocking.
    ///
    /// ```
    /// use leasehold::{Checked, blocking::Locks};
    ///
    /// let locks = Locks::connect("memory:")?;
    /// let guard = locks.mutex("report").lock()?;
    /// assert_eq!(locks.check_fence("report", guard.write_fence()?)?, Checked::Current);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn check_fence(&self, resource: impl AsRef<str>, fence: WriteFence) -> Result<Checked> {
        self.block_on(self.0.check_fence(resource, fence))
    }

    /// As [`leasehold::Locks::sweep`](crate::Locks::sweep), blocking.
    pub fn sweep(&self) -> Result<Swept> {
        self.block_on(self.0.sweep())
    }

    /// Closes the client: acquires that wait, and new ones, fail with `Aborted`.
    ///
    /// When this returns, every release of a dropped guard, and of anything that an aborted acquire may have got, has
    /// been sent or has failed. Held guards stay renewed until they are released.
    ///
    /// Where a blocking call would fail with `Deadlock`, this does not wait, because the releases would wait for this
    /// thread.
    pub fn close(&self) {
        let client = &self.0.client;
        client.closed.cancel();
        // A client that was never used need not start its thread just to close.
        if client.started().is_some() {
            // Refused on a thread that would wait for itself.
            let _ = client.block_on(async {
                self.0.close().await;
                Ok(())
            });
        }
    }

    /// As [`leasehold::Locks::is_locked`](crate::Locks::is_locked), blocking.
    pub fn is_locked(&self, name: impl AsRef<str>) -> Result<bool> {
        self.block_on(self.0.is_locked(name))
    }

    /// As [`leasehold::Locks::lookup`](crate::Locks::lookup), blocking.
    pub fn lookup(&self, name: impl AsRef<str>) -> Result<Option<LeaseInfo>> {
        self.block_on(self.0.lookup(name))
    }

    /// As [`leasehold::Locks::lookup_by_id`](crate::Locks::lookup_by_id), blocking.
    pub fn lookup_by_id(&self, id: LeaseId) -> Result<Option<LeaseInfo>> {
        self.block_on(self.0.lookup_by_id(id))
    }

    /// As [`leasehold::Locks::owns`](crate::Locks::owns), blocking.
    pub fn owns(&self, id: LeaseId) -> Result<bool> {
        self.block_on(self.0.owns(id))
    }

    /// As [`leasehold::Locks::inspect`](crate::Locks::inspect), blocking.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<NameInfo> {
        self.block_on(self.0.inspect(name))
    }

    /// As [`leasehold::Locks::note`](crate::Locks::note), blocking.
    pub fn note(&self, name: impl AsRef<str>) -> Result<Option<Note>> {
        self.block_on(self.0.note(name))
    }

    /// As [`leasehold::Locks::find`](crate::Locks::find), blocking.
    pub fn find(&self, id: LeaseId) -> Result<Option<NameInfo>> {
        self.block_on(self.0.find(id))
    }

    /// As [`leasehold::Locks::list`](crate::Locks::list), blocking.
    pub fn list(&self, prefix: &str, limit: usize, cursor: Option<String>) -> Result<Page> {
        self.block_on(self.0.list(prefix, limit, cursor))
    }

    fn block_on<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.0.client.block_on(future)
    }
}

impl From<crate::Locks> for Locks {
    fn from(locks: crate::Locks) -> Self {
        Locks(locks)
    }
}

impl From<Locks> for crate::Locks {
    fn from(locks: Locks) -> Self {
        locks.0
    }
}
