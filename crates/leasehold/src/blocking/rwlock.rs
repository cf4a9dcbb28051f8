//! The reader-writer lock for blocking callers.

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
    /// As [`leasehold::RwLock::name`](crate::RwLock::name).
    pub fn name(&self) -> &str {
        self.lock.0.name()
    }

    /// As [`leasehold::RwLock::read`](crate::RwLock::read), blocking.
    pub fn read(&self) -> Result<Guard> {
        self.lock.wait(Mode::Shared)
    }

    /// As [`leasehold::RwLock::write`](crate::RwLock::write), blocking.
    pub fn write(&self) -> Result<Guard> {
        self.lock.wait(Mode::Exclusive)
    }

    /// As [`leasehold::RwLock::try_read`](crate::RwLock::try_read), blocking.
    pub fn try_read(&self) -> Result<Option<Guard>> {
        self.lock.once(Mode::Shared)
    }

    /// As [`leasehold::RwLock::try_write`](crate::RwLock::try_write), blocking.
    pub fn try_write(&self) -> Result<Option<Guard>> {
        self.lock.once(Mode::Exclusive)
    }

    /// As [`leasehold::RwLock::try_read_for`](crate::RwLock::try_read_for), blocking.
    pub fn try_read_for(&self, timeout: Duration) -> Result<Option<Guard>> {
        self.lock.within(Mode::Shared, timeout)
    }

    /// As [`leasehold::RwLock::try_write_for`](crate::RwLock::try_write_for), blocking.
    pub fn try_write_for(&self, timeout: Duration) -> Result<Option<Guard>> {
        self.lock.within(Mode::Exclusive, timeout)
    }

    /// As [`Mutex::with_lock`](super::Mutex::with_lock), as a reader.
    pub fn with_read<T, E>(&self, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        self.lock.with(Mode::Shared, work)
    }

    /// As [`Mutex::with_lock`](super::Mutex::with_lock), as the writer.
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
