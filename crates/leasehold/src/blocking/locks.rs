//! The client, blocking.

use std::sync::Arc;
use std::time::Duration;

use super::{Guard, Leasing, Lock, Mutex, RwLock, Semaphore, block_on};
use crate::backend::{Backend, Info, NameInfo, Page, Released, Renewed, Revoked, Swept};
use crate::client::diagnostics::LeaseInfo;
use crate::client::locks::LocksBuilder;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease::Lease;
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::options::Options;

/// A client of one store, as [`leasehold::Locks`](crate::Locks), for synchronous callers.
///
/// Cheap to clone; clones are the same client, and so is what [`as_async`](Locks::as_async) gives:
/// both kinds of callers can share one. To set it up further, build the async one and convert it:
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
    /// A client of a backend, with the default options.
    pub fn new(backend: impl Backend) -> Self {
        Locks(crate::Locks::new(backend))
    }

    /// A client of the store that a URL names: see [`leasehold::Locks::connect`](crate::Locks::connect).
    ///
    /// # Errors
    /// `InvalidArgument` for a URL that cannot be one; `Unsupported` for a store that this build does
    /// not have; faults of the store. The URL itself, which may hold a password, is in no error.
    pub fn connect(url: &str) -> Result<Self> {
        Ok(Locks::connect_builder(url)?.build().into())
    }

    /// As [`connect`](Locks::connect), to be set up further; `Locks::from` what it builds.
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

    /// The same client with other defaults. Locks made before keep theirs.
    #[must_use]
    pub fn with_options(&self, change: impl FnOnce(&mut Options)) -> Self {
        Locks(self.0.with_options(change))
    }

    /// The same client with names in another namespace.
    #[must_use]
    pub fn with_namespace(&self, namespace: impl Into<Arc<str>>) -> Self {
        Locks(self.0.with_namespace(namespace))
    }

    /// What the store is and can do; its [`scheme`](Info::scheme) is a label that never changes.
    pub fn info(&self) -> Info {
        self.0.info()
    }

    /// The store itself.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        self.0.backend()
    }

    /// The defaults of this client's locks.
    pub fn options(&self) -> &Options {
        self.0.options()
    }

    /// A name in this client's namespace.
    ///
    /// # Errors
    /// `InvalidArgument`, as [`Name::within`].
    pub fn name(&self, name: impl AsRef<str>) -> Result<Name> {
        self.0.name(name)
    }

    /// A mutex: one holder at a time. It is the write side of the [`rwlock`](Locks::rwlock) of that name.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex { lock: Lock(self.0.mutex(name).lock) }
    }

    /// A reader-writer lock: many readers, or one writer.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock { lock: Lock(self.0.rwlock(name).lock) }
    }

    /// A semaphore: at most `max_count` holders at a time. All users of the name must say the same number.
    pub fn semaphore(&self, name: impl AsRef<str>, max_count: u32) -> Semaphore {
        Semaphore { lock: Lock(self.0.semaphore(name, max_count).lock), max_count }
    }

    /// Leases as plain data, for callers that renew by themselves. Exclusive unless told otherwise.
    pub fn leasing(&self, name: impl AsRef<str>) -> Leasing {
        Leasing(self.0.leasing(name))
    }

    /// Renews a plain lease for its ttl.
    ///
    /// # Errors
    /// Faults of the store. That the lease is gone is an answer.
    pub fn renew(&self, lease: &Lease) -> Result<Renewed> {
        self.block_on(self.0.renew(lease))
    }

    /// Renews a lease of which only the id is known, on stores that can find it.
    ///
    /// # Errors
    /// Faults of the store; `Unsupported` where it cannot find a lease by its id.
    pub fn renew_by_id(&self, id: LeaseId, ttl: Duration) -> Result<Renewed> {
        self.block_on(self.0.renew_by_id(id, ttl))
    }

    /// Releases a plain lease. Acts only on this very lease, never on a later one of the name.
    ///
    /// # Errors
    /// Faults of the store. That the lease is gone is an answer.
    pub fn release(&self, lease: &Lease) -> Result<Released> {
        self.block_on(self.0.release(lease))
    }

    /// Releases a lease of which only the id is known, on stores that can find it.
    ///
    /// # Errors
    /// Faults of the store; `Unsupported` where it cannot find a lease by its id.
    pub fn release_by_id(&self, id: LeaseId) -> Result<Released> {
        self.block_on(self.0.release_by_id(id))
    }

    /// Makes a guard of a plain lease: from another process, or from [`Guard::into_lease`]. It is
    /// renewed first, and the guard's deadline comes from that answer only.
    ///
    /// # Errors
    /// `Lost` if the lease is gone; `Aborted` after [`close`](Locks::close); faults of the store.
    pub fn adopt(&self, lease: Lease) -> Result<Guard> {
        self.block_on(self.0.adopt(lease)).map(Guard)
    }

    /// Refuses all renewals of a name's leases, so that it passes on when they expire; with `now`
    /// frees it at once and relies on fences to stop the old holders.
    ///
    /// # Errors
    /// Faults of the store; `Unsupported` where leases cannot be revoked.
    pub fn revoke(&self, name: impl AsRef<str>, now: bool) -> Result<Revoked> {
        self.block_on(self.0.revoke(name, now))
    }

    /// As [`revoke`](Locks::revoke), but of one lease only: the one that has this fence. If it is gone by now,
    /// nothing is changed, whoever holds the name, and no lease is counted.
    ///
    /// # Errors
    /// As [`revoke`](Locks::revoke).
    pub fn revoke_only(&self, name: impl AsRef<str>, fence: Fence, now: bool) -> Result<Revoked> {
        self.block_on(self.0.revoke_only(name, fence, now))
    }

    /// Drops what has expired. Never needed for correctness.
    ///
    /// # Errors
    /// Faults of the store.
    pub fn sweep(&self) -> Result<Swept> {
        self.block_on(self.0.sweep())
    }

    /// Ends the client: waiting and new acquires are `Aborted`, and when this returns every release
    /// of a dropped guard, and of what an aborted acquire may have got, has been sent or has failed. Held guards
    /// stay renewed until they are released.
    ///
    /// Where a blocking call is a `Deadlock` it does not wait, because the releases would wait for it.
    pub fn close(&self) {
        let client = &self.0.client;
        client.closed.cancel();
        // A client that was never used need not start its thread for this.
        if client.started().is_some() {
            // Refused where this thread would wait for itself.
            let _ = client.block_on(async {
                self.0.close().await;
                Ok(())
            });
        }
    }

    /// Whether anybody holds the name at this moment. Read only; by the time you look at the answer it
    /// may have changed.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad name; faults of the store.
    pub fn is_locked(&self, name: impl AsRef<str>) -> Result<bool> {
        self.block_on(self.0.is_locked(name))
    }

    /// The lease that holds the name, with nothing secret in it; the oldest if there are several.
    /// `None` for an expired lease and for none alike.
    ///
    /// # Errors
    /// As [`is_locked`](Locks::is_locked).
    pub fn lookup(&self, name: impl AsRef<str>) -> Result<Option<LeaseInfo>> {
        self.block_on(self.0.lookup(name))
    }

    /// The lease of an id, with nothing secret in it. `None` for an expired lease and for none alike.
    ///
    /// # Errors
    /// Faults of the store; `Unsupported` where it cannot find a lease by its id.
    pub fn lookup_by_id(&self, id: LeaseId) -> Result<Option<LeaseInfo>> {
        self.block_on(self.0.lookup_by_id(id))
    }

    /// Whether this id holds a lease at this moment: a diagnosis, not a reason to write. Use
    /// [`Guard::check`] and fences for that.
    ///
    /// # Errors
    /// As [`lookup_by_id`](Locks::lookup_by_id).
    pub fn owns(&self, id: LeaseId) -> Result<bool> {
        self.block_on(self.0.owns(id))
    }

    /// Everything about a name, lease ids included: for debugging, not for logs.
    ///
    /// # Errors
    /// As [`is_locked`](Locks::is_locked).
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<NameInfo> {
        self.block_on(self.0.inspect(name))
    }

    /// Everything about the name on which an id holds a lease or waits: for debugging, not for logs.
    ///
    /// # Errors
    /// As [`lookup_by_id`](Locks::lookup_by_id).
    pub fn find(&self, id: LeaseId) -> Result<Option<NameInfo>> {
        self.block_on(self.0.find(id))
    }

    /// The names in use, in this client's namespace, that begin with `prefix`: a page of at most
    /// `limit`, from where `cursor`, the [`Page::next`] of the page before, says. A page may have fewer names, or none,
    /// and a next one all the same.
    ///
    /// # Errors
    /// `InvalidArgument` for a limit of zero; faults of the store.
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
