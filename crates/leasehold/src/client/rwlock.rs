//! The reader-writer lock: many readers, or one writer.

use std::time::Duration;

use crate::backend::Mode;
use crate::client::guard::{self, Guard};
use crate::client::lock::Lock;
use crate::error::{Error, Result};
use crate::options::{Options, option_setters};

/// A reader-writer lock on a name. Cheap to clone; made by [`Locks::rwlock`](crate::Locks::rwlock).
///
/// Readers and writers share one queue, first come first served, so neither starves: readers next to each other in the
/// queue enter together, and a reader that came after a waiting writer stays behind it. Every reader has its own lease
/// and ttl. A writer can become a reader with [`Guard::downgrade`]; there is no upgrade, because two readers that
/// upgrade would wait for each other.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let locks = leasehold::Locks::connect("memory:").await?;
/// let config = locks.rwlock("config");
/// let (a, b) = (config.read().await?, config.read().await?);
/// assert!(config.try_write().await?.is_none());
/// # drop((a, b));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RwLock {
    pub(crate) lock: Lock,
}

impl RwLock {
    /// The name that is locked.
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Waits for its turn to read, at most [`Options::max_wait`].
    ///
    /// # Cancel safety
    /// If dropped, it leaves the queue and gives back what it may have got.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read(&self) -> Result<Guard> {
        self.lock.wait(Mode::Shared).await
    }

    /// Waits for its turn to write, at most [`Options::max_wait`].
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn write(&self) -> Result<Guard> {
        self.lock.wait(Mode::Exclusive).await
    }

    /// Makes one attempt to read: `None` if a writer holds the lock, or any client waits for it.
    ///
    /// # Cancel safety
    /// If dropped, it gives back what it may have got.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.lock.once(Mode::Shared).await
    }

    /// Makes one attempt to write: `None` if any client holds the lock or waits for it.
    ///
    /// # Cancel safety
    /// As [`try_read`](RwLock::try_read).
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.lock.once(Mode::Exclusive).await
    }

    /// Waits for its turn to read, for at most `timeout`. Zero means one attempt.
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_read_for(&self, timeout: Duration) -> Result<Option<Guard>> {
        self.lock.within(Mode::Shared, timeout).await
    }

    /// Waits for its turn to write, for at most `timeout`. Zero means one attempt.
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_write_for(&self, timeout: Duration) -> Result<Option<Guard>> {
        self.lock.within(Mode::Exclusive, timeout).await
    }

    /// Runs the work as a reader. See [`Mutex::with_lock`](crate::Mutex::with_lock).
    ///
    /// # Cancel safety
    /// If dropped, the work is dropped and the lock is released in the background.
    ///
    /// # Errors
    /// As [`Mutex::with_lock`](crate::Mutex::with_lock).
    pub async fn with_read<T, E, W>(&self, work: W) -> Result<T, E>
    where
        E: From<Error>,
        W: AsyncFnOnce(&Guard) -> Result<T, E>,
    {
        guard::with(self.lock.bounded().wait(Mode::Shared).await?, work).await
    }

    /// Runs the work as the writer. See [`Mutex::with_lock`](crate::Mutex::with_lock).
    ///
    /// # Cancel safety
    /// If dropped, the work is dropped and the lock is released in the background.
    ///
    /// # Errors
    /// As [`Mutex::with_lock`](crate::Mutex::with_lock).
    pub async fn with_write<T, E, W>(&self, work: W) -> Result<T, E>
    where
        E: From<Error>,
        W: AsyncFnOnce(&Guard) -> Result<T, E>,
    {
        guard::with(self.lock.bounded().wait(Mode::Exclusive).await?, work).await
    }

    option_setters!();

    fn options_mut(&mut self) -> &mut Options {
        self.lock.options_mut()
    }
}
