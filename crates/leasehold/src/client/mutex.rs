//! The mutex: one holder at a time.

use std::time::Duration;

use crate::backend::Mode;
use crate::client::guard::{self, Guard};
use crate::client::lock::Lock;
use crate::error::{Error, Result};
use crate::options::{Options, option_setters};

/// A mutex on a name. Cheap to clone; made by [`Locks::mutex`](crate::Locks::mutex).
///
/// It holds no data, and it is not re-entrant: two guards from one object are two holders. It is the write side of the
/// reader-writer lock with the same name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let locks = leasehold::Locks::connect("memory:").await?;
/// let mutex = locks.mutex("billing");
/// let guard = mutex.lock().await?;
/// assert!(mutex.try_lock().await?.is_none(), "it is already held");
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Mutex {
    pub(crate) lock: Lock,
}

impl Mutex {
    /// The name that is locked.
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Waits for its turn, at most [`Options::max_wait`].
    ///
    /// # Cancel safety
    /// If dropped, it leaves the queue and gives back what it may have got.
    ///
    /// # Errors
    /// `Timeout` after `max_wait`, with [`Error::waited`](crate::Error::waited); `InvalidArgument` before anything is
    /// sent; `Aborted` by a [`Cancel`](crate::Cancel) or a closed client; faults of the store, once it has had 10 s to
    /// recover.
    pub async fn lock(&self) -> Result<Guard> {
        self.lock.wait(Mode::Exclusive).await
    }

    /// Makes one attempt: `None` if another client holds the lock or waits for it.
    ///
    /// # Cancel safety
    /// If dropped, it gives back what it may have got.
    ///
    /// # Errors
    /// As [`lock`](Mutex::lock), but never `Timeout`.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.lock.once(Mode::Exclusive).await
    }

    /// Waits for its turn, for at most `timeout`: `None` if the turn did not come. Zero means one attempt.
    ///
    /// # Cancel safety
    /// As [`lock`](Mutex::lock).
    ///
    /// # Errors
    /// As [`lock`](Mutex::lock), but never `Timeout`.
    pub async fn try_lock_for(&self, timeout: Duration) -> Result<Option<Guard>> {
        self.lock.within(Mode::Exclusive, timeout).await
    }

    /// Runs the work under the lock: acquires, stops the work if the lease is lost, and always releases.
    ///
    /// The work's own error is returned. A release that fails is reported to [`Options::on_release_error`] or the log.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let locks = leasehold::Locks::connect("memory:").await?;
    /// let total = locks
    ///     .mutex("billing")
    ///     .with_lock(async |guard| Ok::<_, leasehold::Error>(guard.fence().get()))
    ///     .await?;
    /// # assert!(total > 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If dropped, the work is dropped and the lock is released in the background.
    ///
    /// # Errors
    /// The work's own error, or this crate's error converted to it: those of [`lock`](Mutex::lock), and `Lost` if the
    /// lease was lost before the work ended, even if the work succeeded. On a store that cannot push, and with none of
    /// `max_wait`, `max_attempts` and `poll` set, it gives up after 10 retries or 5 s.
    pub async fn with_lock<T, E, W>(&self, work: W) -> Result<T, E>
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
