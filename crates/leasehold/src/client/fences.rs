//! Checking fences for resources that cannot compare them themselves.

use std::sync::Arc;

use super::locks::{Locks, LocksBuilder};
use crate::error::{Error, ErrorKind, Result};
use crate::marks::{Checked, Marks, WriteFence};

impl LocksBuilder {
    /// Sets who keeps the marks for [`Locks::check_fence`]. A store that was opened by its URL keeps them itself, if it
    /// can; a store of your own type needs this: [`Memory`](crate::backends::memory::Memory), `Sqlite`, `Redis` and
    /// `Postgres` are [`Marks`] too.
    #[must_use]
    pub fn marks(mut self, marks: Arc<dyn Marks>) -> Self {
        self.marks = Some(marks);
        self
    }
}

impl Locks {
    /// Compares a fence with the highest that this resource has seen, and raises that mark to it, in one step. The mark
    /// is kept in the store, also after all leases have ended: nothing forgets it.
    ///
    /// This is for resources that cannot compare fences themselves. The check is apart from the write, so a writer that
    /// is paused between the two still writes; `docs/fencing.md` says what that can and cannot protect.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::Checked;
    ///
    /// let locks = leasehold::Locks::connect("memory:").await?;
    /// let guard = locks.mutex("report").lock().await?;
    /// match locks.check_fence("report", guard.write_fence()?).await? {
    ///     Checked::Stale(stale) => eprintln!("too late: {stale}"),
    ///     _ => println!("write now"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If dropped, the mark may be raised or not. Checking again is harmless.
    ///
    /// # Errors
    /// Faults of the store; `Unsupported` where it keeps no marks: `file:`, `postgres+advisory:`, `quorum:`, and a
    /// backend that was not opened by its URL, unless [`LocksBuilder::marks`] was called.
    pub async fn check_fence(&self, resource: impl AsRef<str>, fence: WriteFence) -> Result<Checked> {
        let resource = self.name(resource)?;
        self.within(self.options.request_timeout, self.marks()?.check(&resource, fence)).await?
    }

    /// Who keeps marks for this client.
    #[doc(hidden)]
    pub fn marks(&self) -> Result<&Arc<dyn Marks>> {
        self.client.marks.as_ref().ok_or_else(|| {
            let message = format!(
                "{}: keeps no marks; use memory:, sqlite:, redis: or postgres:, opened by its URL or with \
                 `LocksBuilder::marks`",
                self.client.info.scheme
            );
            Error::new(ErrorKind::Unsupported, message)
        })
    }
}
