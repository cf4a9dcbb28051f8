//! Taking a lock in the way the arguments say.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Guard, Locks, Mode, Result};

use crate::exit::Exit;
use crate::report::Failure;
use crate::store::Store;
use crate::table;

/// How long a lease lasts unless renewed or told otherwise.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// How long the store may take to say who holds what was not had, and how much longer than a limit it may keep us.
pub(crate) const ANSWER: Duration = Duration::from_secs(2);

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

/// Who holds what was not had in time, if that can be known: a token may let its owner take locks and not look at them.
/// That somebody does has been said by the store itself.
pub(crate) async fn keeper(locks: &Locks, name: &str) -> Option<Arc<str>> {
    tokio::time::timeout(ANSWER, holder(locks, name)).await.ok()?.ok()?
}

/// That somebody holds it, in words.
pub(crate) fn held(opened: &Store, name: &str, still: &str, owner: Option<&str>) -> Failure {
    let by = owner.map(|owner| format!(" by {}", table::plain(owner))).unwrap_or_default();
    Failure::Ended(Exit::Busy, format!("{name:?} on {} is {still}held{by}", opened.url.shown()))
}
