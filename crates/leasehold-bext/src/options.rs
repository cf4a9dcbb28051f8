//! What the host decides once for all locks of a plugin.

use std::time::Duration;

use leasehold::backend::{Info, Liveness};
use leasehold::{Error, ErrorKind, MIN_GUARD_TTL, MIN_TTL, Result};

/// The options of a [`LeaseholdPlugin`](crate::LeaseholdPlugin). All nodes of a cluster should use the same.
///
/// ```
/// use std::time::Duration;
/// use leasehold_bext::PluginOptions;
///
/// let options = PluginOptions::default()
///     .keep_alive(Duration::from_secs(3600)) // renew while a job runs, for an hour at most
///     .min_hold(Duration::from_secs(10)); // no second run by a node whose clock is late
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PluginOptions {
    /// Renew each lock until its release, but hold it for at most this long in all. If not set, nothing but the host's
    /// calls of `renew` keeps a lock beyond its ttl.
    pub keep_alive: Option<Duration>,
    /// How long a lock stays taken after its release. Zero unless set.
    pub min_hold: Duration,
    /// What `LockingPlugin::name` returns. Unless set, the store: `memory`, `redis`, `pg`, `sqlite`, `quorum`, `http`.
    pub name: Option<String>,
}

impl PluginOptions {
    /// Makes the plugin renew each lock in the background until its release, but hold it for at most `max_hold` in all
    /// (or its ttl, if that is longer), so that a job that hangs does not keep its lock for ever.
    ///
    /// Renewing ends when the handle is released, by any process, or when this process ends. The lock is then free
    /// after its ttl at the latest.
    #[must_use]
    pub fn keep_alive(mut self, max_hold: Duration) -> Self {
        self.keep_alive = Some(max_hold);
        self
    }

    /// Makes a released lock stay taken for this long after its release.
    ///
    /// A scheduler locks a key for the run of a tick. If the run is short, the lock is free again before a node whose
    /// clock is late comes to the same tick, and that node runs it a second time. Choose more than the clocks of the
    /// nodes differ (with the jitter of the schedule), and less than the schedule's interval minus that.
    #[must_use]
    pub fn min_hold(mut self, time: Duration) -> Self {
        self.min_hold = time;
        self
    }

    /// Sets what `LockingPlugin::name` returns.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Checks that the store can do what they ask for.
    pub(crate) fn check(&self, info: &Info) -> Result<()> {
        let scheme = info.scheme;
        let unsupported = |what: &str| Err(Error::new(ErrorKind::Unsupported, format!("{scheme}: {what}")));
        if info.liveness != Liveness::Ttl {
            return unsupported(
                "keeps a lock until its process or session ends, and bext's locks need a ttl; use memory:, sqlite:, \
                 redis:, postgres:, quorum: or a leasehold server",
            );
        }
        if !self.min_hold.is_zero() {
            if !info.fenced {
                return unsupported("gives no fences, which `min_hold` needs");
            }
            if self.min_hold < MIN_TTL || self.min_hold > info.max_ttl {
                let (given, most) = (self.min_hold, info.max_ttl);
                let message =
                    format!("`min_hold` is {given:?}: on {scheme}: choose from {MIN_TTL:?} to {most:?}");
                return Err(Error::invalid(message));
            }
        }
        if let Some(most) = self.keep_alive.filter(|most| *most < MIN_GUARD_TTL) {
            let message = format!("`keep_alive` is {most:?}: it must be at least {MIN_GUARD_TTL:?}");
            return Err(Error::invalid(message));
        }
        if self.name.as_deref() == Some("") {
            return Err(Error::invalid("`name` must not be empty"));
        }
        Ok(())
    }

    /// The plugin's name: the words that bext uses for its own plugins.
    pub(crate) fn label(&self, info: &Info) -> String {
        let of_store = if info.scheme == "postgres" { "pg" } else { info.scheme };
        self.name.clone().unwrap_or_else(|| of_store.to_owned())
    }
}
