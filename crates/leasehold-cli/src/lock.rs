//! Taking a lock in the way the arguments say.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Guard, Locks, Mode, Result};

/// How long a lease lasts unless renewed or told otherwise.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// How a lock is shared.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct ModeArgs {
    /// Share it with others that share it.
    #[arg(short, long)]
    shared: bool,
    /// Hold it alone, which is what happens unless told otherwise.
    #[arg(short = 'x', long, visible_short_alias = 'e', conflicts_with = "shared")]
    exclusive: bool,
    /// Let at most N hold it at a time; all users of the name must say the same number.
    #[arg(long, value_name = "N", conflicts_with_all = ["shared", "exclusive"])]
    limit: Option<u32>,
}

impl ModeArgs {
    pub(crate) fn mode(self) -> Mode {
        match self.limit {
            Some(limit) => Mode::Permit { limit },
            None if self.shared => Mode::Shared,
            None => Mode::Exclusive,
        }
    }
}

/// A guard, or `None` if it was not had in time. No time: for ever.
pub(crate) async fn acquire(
    locks: &Locks,
    name: &str,
    mode: Mode,
    wait: Option<Duration>,
) -> Result<Option<Guard>> {
    match (mode, wait) {
        (Mode::Permit { limit }, None) => locks.semaphore(name, limit).acquire().await.map(Some),
        (Mode::Permit { limit }, Some(wait)) => locks.semaphore(name, limit).try_acquire_for(wait).await,
        (Mode::Shared, None) => locks.rwlock(name).read().await.map(Some),
        (Mode::Shared, Some(wait)) => locks.rwlock(name).try_read_for(wait).await,
        (_, None) => locks.mutex(name).lock().await.map(Some),
        (_, Some(wait)) => locks.mutex(name).try_lock_for(wait).await,
    }
}

/// Who holds the name, or one of those who do.
pub(crate) async fn holder(locks: &Locks, name: &str) -> Result<Option<Arc<str>>> {
    let info = locks.inspect(name).await?;
    Ok(info.holders.first().map(|holder| Arc::clone(&holder.owner)))
}
