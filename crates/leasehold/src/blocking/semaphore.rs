//! The semaphore for blocking callers.

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

    /// As [`leasehold::Semaphore::name`](crate::Semaphore::name).
    pub fn name(&self) -> &str {
        self.lock.0.name()
    }

    /// As [`leasehold::Semaphore::max_count`](crate::Semaphore::max_count).
    pub fn max_count(&self) -> u32 {
        self.max_count
    }

    /// As [`leasehold::Semaphore::acquire`](crate::Semaphore::acquire), blocking.
    pub fn acquire(&self) -> Result<Guard> {
        self.lock.wait(self.mode())
    }

    /// As [`leasehold::Semaphore::try_acquire`](crate::Semaphore::try_acquire), blocking.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        self.lock.once(self.mode())
    }

    /// As [`leasehold::Semaphore::try_acquire_for`](crate::Semaphore::try_acquire_for), blocking.
    pub fn try_acquire_for(&self, timeout: Duration) -> Result<Option<Guard>> {
        self.lock.within(self.mode(), timeout)
    }

    /// As [`Mutex::with_lock`](super::Mutex::with_lock), with a permit; also `Mismatch`, as [`acquire`](Semaphore::acquire).
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
