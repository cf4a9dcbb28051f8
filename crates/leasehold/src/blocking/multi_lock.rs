//! Several names at once, for blocking callers.

use std::time::Duration;

use super::{Guard, block_on};
use crate::coordination::multi_lock::AnyLost;
use crate::engine::held::GuardState;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::options::{Options, option_setters};

/// Several names that are locked together, all of them or none, as [`leasehold::MultiLock`](crate::MultiLock). Made by
/// [`Locks::all`](super::Locks::all).
///
/// ```
/// # let locks = leasehold::blocking::Locks::connect("memory:")?;
/// let guard = locks.all(["account-7", "account-3"]).lock()?;
/// assert!(locks.mutex("account-3").try_lock()?.is_none(), "it is held");
/// guard.release()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct MultiLock(pub(super) crate::MultiLock);

impl MultiLock {
    /// As [`leasehold::MultiLock::also`](crate::MultiLock::also).
    #[must_use]
    pub fn also(self, name: impl AsRef<str>) -> Self {
        MultiLock(self.0.also(name))
    }

    /// As [`leasehold::MultiLock::also_read`](crate::MultiLock::also_read).
    #[must_use]
    pub fn also_read(self, name: impl AsRef<str>) -> Self {
        MultiLock(self.0.also_read(name))
    }

    /// As [`leasehold::MultiLock::also_permit`](crate::MultiLock::also_permit).
    #[must_use]
    pub fn also_permit(self, name: impl AsRef<str>, max_count: u32) -> Self {
        MultiLock(self.0.also_permit(name, max_count))
    }

    /// As [`leasehold::MultiLock::lock`](crate::MultiLock::lock), blocking.
    pub fn lock(&self) -> Result<MultiGuard> {
        self.0.client().block_on(self.0.lock()).map(MultiGuard)
    }

    /// As [`leasehold::MultiLock::try_lock`](crate::MultiLock::try_lock), blocking.
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        Ok(self.0.client().block_on(self.0.try_lock())?.map(MultiGuard))
    }

    /// As [`leasehold::MultiLock::try_lock_for`](crate::MultiLock::try_lock_for), blocking.
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<MultiGuard>> {
        Ok(self.0.client().block_on(self.0.try_lock_for(timeout))?.map(MultiGuard))
    }

    /// Runs the work while it holds all names, and always releases, even if the work panics. See
    /// [`Mutex::with_lock`](super::Mutex::with_lock).
    ///
    /// # Errors
    /// The work's own error, or this crate's error converted to it: those of [`lock`](MultiLock::lock), and `Lost` if
    /// one of the leases was lost before the work ended, even if the work succeeded.
    pub fn with_lock<T, E>(&self, work: impl FnOnce(&MultiGuard) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        let guard = MultiLock(self.0.bounded()).lock()?;
        let result = work(&guard);
        let held = guard.check();
        guard.release_after_work();
        let output = result?;
        held?;
        Ok(output)
    }

    option_setters!();

    fn options_mut(&mut self) -> &mut Options {
        self.0.options_mut()
    }
}

/// Proof that all names of a [`MultiLock`] were granted, as [`leasehold::MultiGuard`](crate::MultiGuard).
///
/// **Before each step that matters, look at [`check`](MultiGuard::check), and pass the [`fence`](MultiGuard::fence) of
/// each name to what that name protects.** Dropping a guard releases all names without blocking.
#[must_use = "the locks are released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct MultiGuard(crate::MultiGuard);

impl MultiGuard {
    /// As [`leasehold::MultiGuard::fence`](crate::MultiGuard::fence).
    pub fn fence(&self, name: impl AsRef<str>) -> Option<Fence> {
        self.0.fence(name)
    }

    /// As [`leasehold::MultiGuard::waited`](crate::MultiGuard::waited).
    pub fn waited(&self) -> Duration {
        self.0.waited()
    }

    /// As [`leasehold::MultiGuard::state`](crate::MultiGuard::state).
    pub fn state(&self) -> GuardState {
        self.0.state()
    }

    /// As [`leasehold::MultiGuard::valid_for`](crate::MultiGuard::valid_for).
    pub fn valid_for(&self) -> Option<Duration> {
        self.0.valid_for()
    }

    /// As [`leasehold::MultiGuard::check`](crate::MultiGuard::check).
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// A signal of the first loss, which any thread can [read](AnyLost::now) and any task can await.
    pub fn lost(&self) -> AnyLost {
        self.0.lost()
    }

    /// As [`leasehold::MultiGuard::into_guards`](crate::MultiGuard::into_guards).
    pub fn into_guards(self) -> Vec<Guard> {
        self.0.into_guards().into_iter().map(Guard).collect()
    }

    /// The same guard for async callers.
    pub fn into_async(self) -> crate::MultiGuard {
        self.0
    }

    /// As [`leasehold::MultiGuard::release`](crate::MultiGuard::release), blocking.
    pub fn release(self) -> Result<GuardState> {
        if self.0.guards().iter().any(crate::Guard::is_copy) {
            return Ok(GuardState::Lost);
        }
        let client = self.0.client().clone();
        client.block_on(self.0.release())
    }

    fn release_after_work(self) {
        let client = self.0.client().clone();
        // Never runs on the library's own thread: acquiring is refused there.
        block_on(client.start().ok(), self.0.release_after_work());
    }
}
