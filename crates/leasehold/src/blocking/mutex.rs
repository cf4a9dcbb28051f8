//! The mutex for blocking callers.

use std::time::Duration;

use super::{Guard, Lock};
use crate::backend::Mode;
use crate::error::{Error, Result};
use crate::options::{Options, option_setters};

/// A mutex on a name, as [`leasehold::Mutex`](crate::Mutex). Made by
/// [`Locks::mutex`](super::Locks::mutex).
///
/// ```
/// # let locks = leasehold::blocking::Locks::connect("memory:")?;
/// let mutex = locks.mutex("billing");
/// let guard = mutex.lock()?;
/// assert!(mutex.try_lock()?.is_none(), "it is already held");
/// guard.release()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Mutex {
    pub(super) lock: Lock,
}

impl Mutex {
    /// As [`leasehold::Mutex::name`](crate::Mutex::name).
    pub fn name(&self) -> &str {
        self.lock.0.name()
    }

    /// As [`leasehold::Mutex::lock`](crate::Mutex::lock), blocking.
    pub fn lock(&self) -> Result<Guard> {
        self.lock.wait(Mode::Exclusive)
    }

    /// As [`leasehold::Mutex::try_lock`](crate::Mutex::try_lock), blocking.
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        self.lock.once(Mode::Exclusive)
    }

    /// As [`leasehold::Mutex::try_lock_for`](crate::Mutex::try_lock_for), blocking.
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<Guard>> {
        self.lock.within(Mode::Exclusive, timeout)
    }

    /// Runs the work under the lock: acquires, runs, and always releases, even if the work panics.
    ///
    /// Work that blocks cannot be stopped: call [`Guard::check`] in it before each step that matters. The work's own
    /// error is returned. A release that fails is reported to [`Options::on_release_error`] or the log.
    ///
    /// ```
    /// # let locks = leasehold::blocking::Locks::connect("memory:")?;
    /// let total = locks.mutex("billing").with_lock(|guard| {
    ///     guard.check()?;
    ///     Ok::<_, leasehold::Error>(guard.fence().get())
    /// })?;
    /// # assert!(total > 0);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    /// The work's own error, or this crate's error converted to it: those of [`lock`](Mutex::lock), and `Lost` if the
    /// lease was lost before the work ended, even if the work succeeded. On a store that cannot push, and with none of
    /// `max_wait`, `max_attempts` and `poll` set, it gives up after 10 retries or 5 s.
    pub fn with_lock<T, E>(&self, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        self.lock.with(Mode::Exclusive, work)
    }

    option_setters!();

    fn options_mut(&mut self) -> &mut Options {
        self.lock.0.options_mut()
    }
}
