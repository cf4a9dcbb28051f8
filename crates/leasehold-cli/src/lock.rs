//! How a lock is shared, and its holder.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Locks, Mode, Result};

use crate::exit::Exit;
use crate::report::Failure;
use crate::store::Store;
use crate::table;

/// How long the store may take to name the holder, and by how much an answer may exceed the wait limit.
pub(crate) const ANSWER: Duration = Duration::from_secs(2);

/// How a lock is shared.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct ModeArgs {
    /// Share the lock with other --shared holders.
    #[arg(short, long)]
    shared: bool,
    /// Hold the lock alone; this is the default.
    #[arg(short = 'x', long, visible_short_alias = 'e', conflicts_with = "shared")]
    exclusive: bool,
    /// Let at most N clients hold the lock at once; all users of the name must give the same N.
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

/// The owner of the lock, or one of several owners.
pub(crate) async fn holder(locks: &Locks, name: &str) -> Result<Option<Arc<str>>> {
    let info = locks.inspect(name).await?;
    Ok(info.holders.first().map(|holder| Arc::clone(&holder.owner)))
}

/// The owner of a holder that keeps a client out that wants the lock in this mode.
pub(crate) async fn blocking(locks: &Locks, name: &str, wanted: Mode) -> Result<Option<Arc<str>>> {
    let info = locks.inspect(name).await?;
    let is_in_the_way = |mode: Mode| match (wanted, mode) {
        (Mode::Shared, Mode::Shared) => false,
        (Mode::Permit { limit }, Mode::Permit { .. }) => info.holder_count >= u64::from(limit),
        _ => true,
    };
    let holder = info.holders.iter().find(|holder| is_in_the_way(holder.grant.mode));
    Ok(holder.map(|holder| Arc::clone(&holder.owner)))
}

/// The holder of a lock that was not free in time, if known: a token may allow taking locks but not looking at them.
/// The store itself has said that the lock is held.
pub(crate) async fn keeper(locks: &Locks, name: &str) -> Option<Arc<str>> {
    tokio::time::timeout(ANSWER, holder(locks, name)).await.ok()?.ok()?
}

/// The error for a lock that is held.
pub(crate) fn held(opened: &Store, name: &str, still: &str, owner: Option<&str>) -> Failure {
    let by = owner.map(|owner| format!(" by {}", table::plain(owner))).unwrap_or_default();
    Failure::Ended(Exit::Busy, format!("{name:?} on {} is {still}held{by}", opened.url.shown()))
}
