//! The semaphore, blocking.

use std::time::Duration;

use super::{Guard, Lock};
use crate::backend::Mode;
use crate::error::{Error, Result};
use crate::options::{Options, option_setters};

/// A semaphore on a name, as [`leasehold::Semaphore`](crate::Semaphore). Made by
/// [`Locks::semaphore`](super::Locks::semaphore).
///
/// ```
/// # let locks = leasehold::blocking::Locks::connect("memory:")?;
/// let gpus = locks.semaphore("gpu", 2);
/// let (a, b) = (gpus.acquire()?, gpus.acquire()?);
/// assert!(gpus.try_acquire()?.is_none());
/// # drop((a, b));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Semaphore {
    pub(super) lock: Lock,
    pub(super) max_count: u32,
}

impl Semaphore {
    fn mode(&self) -> Mode {
        Mode::Permit { limit: self.max_count }
    }

    /// The name of the semaphore.
    pub fn name(&self) -> &str {
        self.lock.0.name()
    }

    /// How many permits there are.
    pub fn max_count(&self) -> u32 {
        self.max_count
    }

    /// Waits for a permit, at most [`Options::max_wait`].
    ///
    /// # Errors
    /// As [`Mutex::lock`](super::Mutex::lock); `Mismatch` if the name is in use with another limit or
    /// as another kind.
    pub fn acquire(&self) -> Result<Guard> {
        self.lock.wait(self.mode())
    }

    /// One attempt: `None` if no permit is free, or anybody waits.
    ///
    /// # Errors
    /// As [`acquire`](Semaphore::acquire), but never `Timeout`.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        self.lock.once(self.mode())
    }

    /// Waits for a permit for at most `timeout`. Zero is one attempt.
    ///
    /// # Errors
    /// As [`acquire`](Semaphore::acquire), but never `Timeout`.
    pub fn try_acquire_for(&self, timeout: Duration) -> Result<Option<Guard>> {
        self.lock.within(self.mode(), timeout)
    }

    /// Runs the work with a permit. See [`Mutex::with_lock`](super::Mutex::with_lock).
    ///
    /// # Errors
    /// As [`Mutex::with_lock`](super::Mutex::with_lock), and `Mismatch`.
    pub fn with_permit<T, E>(&self, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        self.lock.with(self.mode(), work)
    }

    option_setters!();

    fn options_mut(&mut self) -> &mut Options {
        self.lock.0.options_mut()
    }
}
