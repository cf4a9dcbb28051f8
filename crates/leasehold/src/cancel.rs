//! Cancels a wait from outside, for callers that cannot simply drop a future.

use std::fmt;

use tokio_util::sync::CancellationToken;

/// Cancels acquires from outside, for good. Clones share one switch.
///
/// An async caller just drops the future. This is for blocking callers, and for programs that end many waits together.
/// A cancelled acquire returns `Aborted` and leaves nothing behind.
///
/// A program that already has a [`CancellationToken`] can pass that instead: it converts into the same switch.
///
/// ```
/// use tokio_util::sync::CancellationToken;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let shutdown = CancellationToken::new();
/// let locks = leasehold::Locks::connect("memory:").await?;
/// let mutex = locks.mutex("nightly-report").cancel_on(&shutdown);
/// shutdown.cancel();
/// assert_eq!(mutex.lock().await.unwrap_err().kind(), leasehold::ErrorKind::Aborted);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Cancel(CancellationToken);

impl Cancel {
    /// A switch that has not been cancelled.
    pub fn new() -> Self {
        Cancel::default()
    }

    /// Cancels every acquire that was or will be started with this switch.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Resolves when it is cancelled.
    ///
    /// # Cancel safety
    /// Dropping this future loses nothing.
    pub async fn cancelled(&self) {
        self.0.cancelled().await;
    }
}

impl From<CancellationToken> for Cancel {
    fn from(token: CancellationToken) -> Self {
        Cancel(token)
    }
}

impl From<&CancellationToken> for Cancel {
    fn from(token: &CancellationToken) -> Self {
        Cancel(token.clone())
    }
}

impl From<&Cancel> for Cancel {
    fn from(cancel: &Cancel) -> Self {
        cancel.clone()
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}
