//! The semaphore: at most a fixed number of holders at a time.

use std::time::Duration;

use crate::backend::Mode;
use crate::client::guard::{self, Guard};
use crate::client::lock::Lock;
use crate::error::{Error, Result};
use crate::options::{Options, option_setters};

/// A semaphore on a name. Cheap to clone; made by [`Locks::semaphore`](crate::Locks::semaphore).
///
/// Each guard is one permit. The permit of a holder that died comes back when its ttl passes. While the name is in
/// use, another limit, or using it as a mutex, is a `Mismatch`. Fences of permits are unique and increase, but they do
/// not order holders that hold permits at the same time.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let locks = leasehold::Locks::connect("memory:").await?;
/// let gpus = locks.semaphore("gpu", 2);
/// let (a, b) = (gpus.acquire().await?, gpus.acquire().await?);
/// assert!(gpus.try_acquire().await?.is_none());
/// # drop((a, b));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Semaphore {
    pub(crate) lock: Lock,
    pub(crate) max_count: u32,
}

impl Semaphore {
    fn mode(&self) -> Mode {
        Mode::Permit { limit: self.max_count }
    }

    /// The name of the semaphore.
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// How many permits there are.
    pub fn max_count(&self) -> u32 {
        self.max_count
    }

    /// Waits for a permit, at most [`Options::max_wait`].
    ///
    /// # Cancel safety
    /// If dropped, it leaves the queue and gives back what it may have got.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock); `Mismatch` if the name is in use with another limit or
    /// as another kind.
    pub async fn acquire(&self) -> Result<Guard> {
        self.lock.wait(self.mode()).await
    }

    /// Makes one attempt: `None` if no permit is free, or any client waits for one.
    ///
    /// # Cancel safety
    /// If dropped, it gives back what it may have got.
    ///
    /// # Errors
    /// As [`acquire`](Semaphore::acquire), but never `Timeout`.
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.lock.once(self.mode()).await
    }

    /// Waits for a permit, for at most `timeout`. Zero means one attempt.
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Semaphore::acquire), but never `Timeout`.
    pub async fn try_acquire_for(&self, timeout: Duration) -> Result<Option<Guard>> {
        self.lock.within(self.mode(), timeout).await
    }

    /// Runs the work with a permit. See [`Mutex::with_lock`](crate::Mutex::with_lock).
    ///
    /// # Cancel safety
    /// If dropped, the work is dropped and the permit is released in the background.
    ///
    /// # Errors
    /// As [`Mutex::with_lock`](crate::Mutex::with_lock), and `Mismatch`.
    pub async fn with_permit<T, E, W>(&self, work: W) -> Result<T, E>
    where
        E: From<Error>,
        W: AsyncFnOnce(&Guard) -> Result<T, E>,
    {
        guard::with(self.lock.bounded().wait(self.mode()).await?, work).await
    }

    option_setters!();

    fn options_mut(&mut self) -> &mut Options {
        self.lock.options_mut()
    }
}
