//! Leases as plain data, for callers that renew by themselves or pass leases between processes.

use std::time::Duration;

use crate::backend::Mode;
use crate::client::lock::Lock;
use crate::engine::wait::Limit;
use crate::error::Result;
use crate::lease::Lease;
use crate::options::{Options, option_setters};

/// Acquires [`Lease`]s on a name. Made by [`Locks::leasing`](crate::Locks::leasing).
///
/// Nothing renews a plain lease: call [`Locks::renew`](crate::Locks::renew) before its ttl passes, and
/// [`Locks::release`](crate::Locks::release) at the end.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # use std::time::Duration;
/// use leasehold::backend::{Released, Renewed};
/// # let locks = leasehold::Locks::connect("memory:").await?;
/// let Some(lease) = locks.leasing("tick-42").ttl(Duration::from_secs(5)).try_acquire().await? else {
///     return Ok(()); // another node does it
/// };
/// assert!(matches!(locks.renew(&lease).await?, Renewed::Held(_)));
/// assert_eq!(locks.release(&lease).await?, Released::Done);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Leasing {
    pub(crate) lock: Lock,
    pub(crate) mode: Mode,
}

impl Leasing {
    /// Sets how the name is shared.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

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
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn acquire(&self) -> Result<Lease> {
        let limit = Limit::from_max_wait(self.lock.options().max_wait);
        self.lock.lease(self.mode, limit).await?.map_err(|waited| self.lock.timed_out(waited))
    }

    /// Makes one attempt: `None` if another client holds the name.
    ///
    /// # Cancel safety
    /// If dropped, it gives back what it may have got.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_acquire(&self) -> Result<Option<Lease>> {
        self.try_acquire_for(Duration::ZERO).await
    }

    /// Waits for its turn, for at most `timeout`. Zero means one attempt.
    ///
    /// # Cancel safety
    /// As [`acquire`](Leasing::acquire).
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_acquire_for(&self, timeout: Duration) -> Result<Option<Lease>> {
        Ok(self.lock.lease(self.mode, Limit::from_max_wait(Some(timeout))).await?.ok())
    }

    option_setters!();

    fn options_mut(&mut self) -> &mut Options {
        self.lock.options_mut()
    }
}
