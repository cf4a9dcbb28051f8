//! The reader-writer lock, blocking.

use std::time::Duration;

use super::{Guard, Lock};
use crate::backend::Mode;
use crate::error::{Error, Result};
use crate::options::{Options, option_setters};

/// A reader-writer lock on a name, as [`leasehold::RwLock`](crate::RwLock). Made by
/// [`Locks::rwlock`](super::Locks::rwlock).
///
/// ```
/// # let locks = leasehold::blocking::Locks::connect("memory:")?;
/// let config = locks.rwlock("config");
/// let (a, b) = (config.read()?, config.read()?);
/// assert!(config.try_write()?.is_none());
/// # drop((a, b));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct RwLock {
    pub(super) lock: Lock,
}

impl RwLock {
    /// The name that is locked.
    pub fn name(&self) -> &str {
        self.lock.0.name()
    }

    /// Waits its turn to read, at most [`Options::max_wait`].
    ///
    /// # Errors
    /// As [`Mutex::lock`](super::Mutex::lock).
    pub fn read(&self) -> Result<Guard> {
        self.lock.wait(Mode::Shared)
    }

    /// Waits its turn to write, at most [`Options::max_wait`].
    ///
    /// # Errors
    /// As [`Mutex::lock`](super::Mutex::lock).
    pub fn write(&self) -> Result<Guard> {
        self.lock.wait(Mode::Exclusive)
    }

    /// One attempt to read: `None` if a writer holds it, or anybody waits.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](super::Mutex::try_lock).
    pub fn try_read(&self) -> Result<Option<Guard>> {
        self.lock.once(Mode::Shared)
    }

    /// One attempt to write: `None` if anybody holds it or waits.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](super::Mutex::try_lock).
    pub fn try_write(&self) -> Result<Option<Guard>> {
        self.lock.once(Mode::Exclusive)
    }

    /// Waits its turn to read for at most `timeout`. Zero is one attempt.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](super::Mutex::try_lock).
    pub fn try_read_for(&self, timeout: Duration) -> Result<Option<Guard>> {
        self.lock.within(Mode::Shared, timeout)
    }

    /// Waits its turn to write for at most `timeout`. Zero is one attempt.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](super::Mutex::try_lock).
    pub fn try_write_for(&self, timeout: Duration) -> Result<Option<Guard>> {
        self.lock.within(Mode::Exclusive, timeout)
    }

    /// Runs the work as a reader. See [`Mutex::with_lock`](super::Mutex::with_lock).
    ///
    /// # Errors
    /// As [`Mutex::with_lock`](super::Mutex::with_lock).
    pub fn with_read<T, E>(&self, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        self.lock.with(Mode::Shared, work)
    }

    /// Runs the work as the writer. See [`Mutex::with_lock`](super::Mutex::with_lock).
    ///
    /// # Errors
    /// As [`Mutex::with_lock`](super::Mutex::with_lock).
    pub fn with_write<T, E>(&self, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<T, E>
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
