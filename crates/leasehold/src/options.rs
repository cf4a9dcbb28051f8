//! The options of a lock. A client sets them for all its locks, or a caller for one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Info, Liveness, Mode};
use crate::cancel::Cancel;
use crate::chance;
use crate::engine::limits::DEFAULT_TTL;
use crate::error::{Error, ErrorKind, Result};
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::span;

/// The shortest ttl of a guard. With a shorter one, renewals could not keep up with an ordinary pause of the process.
pub const MIN_GUARD_TTL: Duration = Duration::from_millis(50);
/// The shortest ttl of a plain lease.
pub const MIN_TTL: Duration = Duration::from_millis(1);
/// The most bytes of an owner label.
pub const MAX_OWNER_BYTES: usize = 256;
/// The most bytes of metadata.
pub const MAX_METADATA_BYTES: usize = 4096;

/// The options of a lock. Set them on the client for all locks, or on one lock:
/// `locks.mutex("x").ttl(…).lock()`.
///
/// Constructors and setters accept every value. The first acquire reports a bad one as `InvalidArgument`, before
/// anything is sent.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// How long a lease lasts unless renewed. Default 30 s; for guards 50 ms to 24 h. Session stores ignore it.
    pub ttl: Duration,
    /// A label that tells people which client asks. `host:pid` unless set.
    pub owner: Arc<str>,
    /// Text that is shown with the lease, at most 4 KiB.
    pub metadata: Option<Arc<str>>,
    /// How long `lock()`, `read()`, `write()` and `acquire()` wait at most. For ever unless set. If the store's last
    /// answer is more than a second old by then, the client spends up to 2 s more to find out whether the store is
    /// there. If it is not, that is the error, and not [`Timeout`](ErrorKind::Timeout).
    pub max_wait: Option<Duration>,
    /// The most attempts of one acquire: n retries are n + 1 attempts. No limit unless set.
    pub max_attempts: Option<u32>,
    /// How long a guard may hold the lock in all: renewals stop so that the lease is lost by then. No limit unless
    /// set.
    pub max_hold: Option<Duration>,
    /// How often a guard is renewed. A third of the ttl unless set, at most half of it.
    pub renew_every: Option<Duration>,
    /// The share of its ttl, in percent, that a grant must still have left when it arrives. The client gives back a
    /// grant with less. The store's own value unless set.
    pub min_validity_percent: Option<u8>,
    /// How to poll stores that cannot push.
    pub poll: Option<PollPolicy>,
    /// How long one request to the store may take.
    pub request_timeout: Duration,
    /// How long the client tries to release.
    pub release_timeout: Duration,
    /// Called when a release that no caller awaits has failed. If not set, the failure is logged, without names.
    ///
    /// Calls come one after the other, on a thread of the library's own; after a `with_…` helper, on its caller's
    /// thread. A callback that blocks delays the next one, the client's log lines and [`close`](crate::Locks::close),
    /// but no renewal and no lost signal.
    pub on_release_error: Option<OnReleaseError>,
    /// Cancels a wait from outside: the acquire then returns `Aborted`.
    pub cancel: Option<Cancel>,
    /// Accept leases without fences, from stores that have none.
    pub allow_unfenced: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            ttl: DEFAULT_TTL,
            owner: default_owner(),
            metadata: None,
            max_wait: None,
            max_attempts: None,
            max_hold: None,
            renew_every: None,
            min_validity_percent: None,
            poll: None,
            request_timeout: Duration::from_secs(5),
            release_timeout: Duration::from_secs(5),
            on_release_error: None,
            cancel: None,
            allow_unfenced: false,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("ttl", &self.ttl)
            .field("owner", &self.owner)
            // Metadata may contain what its owner would not want in a log.
            .field("metadata", &self.metadata.as_ref().map(|m| format!("{} bytes", m.len())))
            .field("max_wait", &self.max_wait)
            .field("max_attempts", &self.max_attempts)
            .field("max_hold", &self.max_hold)
            .field("renew_every", &self.renew_every)
            .field("min_validity_percent", &self.min_validity_percent)
            .field("poll", &self.poll)
            .field("request_timeout", &self.request_timeout)
            .field("release_timeout", &self.release_timeout)
            .field("on_release_error", &self.on_release_error.is_some())
            .field("cancel", &self.cancel.is_some())
            .field("allow_unfenced", &self.allow_unfenced)
            .finish()
    }
}

impl Options {
    /// Checks everything that a store would reject, before anything is sent.
    pub(crate) fn check(&self, info: &Info, mode: Mode, guarded: bool) -> Result<()> {
        if info.liveness == Liveness::Ttl {
            let least = if guarded { MIN_GUARD_TTL } else { MIN_TTL };
            check_ttl(self.ttl, least, info.max_ttl)?;
        }
        if self.owner.is_empty() {
            return Err(Error::invalid("owner must not be empty"));
        }
        if self.owner.len() > MAX_OWNER_BYTES {
            return Err(Error::invalid(format!(
                "owner has {} bytes; at most {MAX_OWNER_BYTES} are allowed",
                self.owner.len()
            )));
        }
        if let Some(metadata) = self.metadata.as_ref().filter(|m| m.len() > MAX_METADATA_BYTES) {
            return Err(Error::invalid(format!(
                "metadata has {} bytes; at most {MAX_METADATA_BYTES} are allowed",
                metadata.len()
            )));
        }
        if let Some(hold) = self.max_hold.filter(|hold| *hold < MIN_GUARD_TTL) {
            let (hold, least) = (span::show(hold), span::show(MIN_GUARD_TTL));
            return Err(Error::invalid(format!(
                "a max_hold of {hold} is too short: it must be at least {least}"
            )));
        }
        if let Some(every) = self.renew_every.filter(|every| every.is_zero() || *every > self.ttl / 2) {
            return Err(Error::invalid(format!(
                "renew_every is {}: it must be above zero and at most half the ttl of {}, \
                 or a single lost renewal loses the lease",
                span::show(every),
                span::show(self.ttl)
            )));
        }
        if self.min_validity_percent.is_some_and(|percent| percent > 98) {
            return Err(Error::invalid(
                "min_validity_percent must be at most 98: 1 % and 2 ms are kept as a margin",
            ));
        }
        if self.max_attempts == Some(0) {
            return Err(Error::invalid("max_attempts must be at least 1"));
        }
        for (what, time) in
            [("request_timeout", self.request_timeout), ("release_timeout", self.release_timeout)]
        {
            if time.is_zero() {
                return Err(Error::invalid(format!(
                    "{what} must be above zero: the store has to have time to answer"
                )));
            }
        }
        if let Some(poll) = &self.poll {
            poll.check()?;
        }
        self.check_abilities(info, mode)
    }

    fn check_abilities(&self, info: &Info, mode: Mode) -> Result<()> {
        let unsupported = |what: String| Err(Error::new(ErrorKind::Unsupported, what));
        match mode {
            Mode::Shared if !info.shared => unsupported(format!("{}: has no shared locks", info.scheme)),
            Mode::Permit { limit: 0 } => Err(Error::invalid("the limit of a semaphore must be at least 1")),
            Mode::Permit { .. } if info.max_permits == 0 => {
                unsupported(format!("{}: has no semaphores", info.scheme))
            }
            Mode::Permit { limit } if limit > info.max_permits => Err(Error::invalid(format!(
                "a semaphore on {}: can have at most {} permits, not {limit}",
                info.scheme, info.max_permits
            ))),
            _ if !info.fenced && !self.allow_unfenced => unsupported(format!(
                "{}: gives no fences, so a holder that was paused cannot be stopped from writing; \
                 if that is acceptable, say allow_unfenced(true)",
                info.scheme
            )),
            _ => Ok(()),
        }
    }

    /// For a helper that waits: if the store must be polled and nothing limits that, sets limits.
    pub(crate) fn bound_polling(&mut self, info: &Info) {
        let unlimited = self.max_wait.is_none() && self.max_attempts.is_none() && self.poll.is_none();
        if !info.push && unlimited {
            self.max_wait = Some(Duration::from_secs(5));
            self.max_attempts = Some(11);
            self.poll = Some(PollPolicy::new(Duration::from_millis(100), Duration::from_secs(5)));
        }
    }

    pub(crate) fn renewal_interval(&self) -> Duration {
        self.renew_every.unwrap_or(self.ttl / 3)
    }
}

pub(crate) fn check_ttl(ttl: Duration, least: Duration, most: Duration) -> Result<()> {
    if ttl < least || ttl > most {
        let (what, hint) = if ttl < least {
            ("short", "")
        } else {
            ("long", "; it need not outlast the work, because leases can be renewed")
        };
        let (ttl, least, most) = (span::show(ttl), span::show(least), span::show(most));
        let message = format!("a ttl of {ttl} is too {what}: choose one from {least} to {most}{hint}");
        return Err(Error::invalid(message));
    }
    Ok(())
}

fn default_owner() -> Arc<str> {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    let host: String = host.chars().take(64).collect();
    format!("{}:{}", if host.is_empty() { "localhost" } else { &host }, std::process::id()).into()
}

/// How to poll a store that cannot push: delays grow from `min` to `max` and are randomised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PollPolicy {
    /// The first delay.
    pub min: Duration,
    /// The longest delay.
    pub max: Duration,
    /// How delays grow.
    pub backoff: Backoff,
    /// How delays are randomised.
    pub jitter: Jitter,
}

impl Default for PollPolicy {
    fn default() -> Self {
        PollPolicy {
            min: Duration::from_millis(10),
            max: Duration::from_millis(200),
            backoff: Backoff::Exponential,
            jitter: Jitter::Equal,
        }
    }
}

impl PollPolicy {
    /// Delays from `min` to `max`.
    pub fn new(min: Duration, max: Duration) -> Self {
        PollPolicy { min, max, ..PollPolicy::default() }
    }

    /// Sets how delays grow.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets how delays are randomised.
    #[must_use]
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    fn check(&self) -> Result<()> {
        if self.min.is_zero() || self.min > self.max {
            let (min, max) = (span::show(self.min), span::show(self.max));
            let message = format!("poll is from {min} to {max}: min must be above zero and not above max");
            return Err(Error::invalid(message));
        }
        Ok(())
    }

    /// The delay before retry number `n`, counted from 0.
    pub fn delay(&self, n: u32) -> Duration {
        let full = match self.backoff {
            Backoff::Fixed => self.min,
            Backoff::Exponential => self.min.saturating_mul(1 << n.min(20)).min(self.max),
        };
        match self.jitter {
            Jitter::None => full,
            Jitter::Equal => full / 2 + random_part(full / 2),
            Jitter::Full => random_part(full),
        }
    }
}

/// How delays grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backoff {
    /// Every delay is `min`.
    Fixed,
    /// Each delay is twice the one before.
    Exponential,
}

/// How delays are randomised, so that waiters do not all come back at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Jitter {
    /// Not at all.
    None,
    /// Half of the delay is fixed, half is random.
    Equal,
    /// A random time from zero to the delay.
    Full,
}

/// A random duration below `of`, to spread load; nothing secret is made from it.
pub(crate) fn random_part(of: Duration) -> Duration {
    of.mul_f64((chance::number() >> 11) as f64 / (1u64 << 53) as f64)
}

/// Describes the release that failed, for [`Options::on_release_error`].
#[derive(Debug)]
#[non_exhaustive]
pub struct ReleaseFailure<'a> {
    /// The name that was to be released.
    pub name: &'a Name,
    /// The lease id: a secret.
    pub lease_id: LeaseId,
    /// Why it was to be released.
    pub source: ReleaseSource,
}

/// Why a release was sent that no caller awaits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReleaseSource {
    /// A guard was dropped.
    Drop,
    /// The work of a `with_…` helper ended.
    With,
    /// An acquire was cancelled or gave up.
    GiveBack,
}

impl ReleaseSource {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ReleaseSource::Drop => "drop",
            ReleaseSource::With => "with",
            ReleaseSource::GiveBack => "give_back",
        }
    }
}

/// A callback for failed releases.
pub type OnReleaseError = Arc<dyn Fn(&Error, &ReleaseFailure<'_>) + Send + Sync>;

/// The setters of [`Options`], for any type that has `fn options_mut(&mut self) -> &mut Options`.
macro_rules! option_setters {
    () => {
        /// Sets how long a lease lasts unless renewed. See [`Options::ttl`](crate::Options::ttl).
        #[must_use]
        pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
            self.options_mut().ttl = ttl;
            self
        }

        /// Sets the owner label. See [`Options::owner`](crate::Options::owner).
        #[must_use]
        pub fn owner(mut self, owner: impl Into<std::sync::Arc<str>>) -> Self {
            self.options_mut().owner = owner.into();
            self
        }

        /// Sets the text that is shown with the lease. See [`Options::metadata`](crate::Options::metadata).
        #[must_use]
        pub fn metadata(mut self, metadata: impl Into<std::sync::Arc<str>>) -> Self {
            self.options_mut().metadata = Some(metadata.into());
            self
        }

        /// Sets how long `lock()` and the other waiting methods wait at most. See
        /// [`Options::max_wait`](crate::Options::max_wait).
        #[must_use]
        pub fn max_wait(mut self, max_wait: std::time::Duration) -> Self {
            self.options_mut().max_wait = Some(max_wait);
            self
        }

        /// Sets how many attempts an acquire makes at most. See
        /// [`Options::max_attempts`](crate::Options::max_attempts).
        #[must_use]
        pub fn max_attempts(mut self, max_attempts: u32) -> Self {
            self.options_mut().max_attempts = Some(max_attempts);
            self
        }

        /// Sets how long a guard may hold the lock in all. See [`Options::max_hold`](crate::Options::max_hold).
        #[must_use]
        pub fn max_hold(mut self, max_hold: std::time::Duration) -> Self {
            self.options_mut().max_hold = Some(max_hold);
            self
        }

        /// Sets how often a guard is renewed. See [`Options::renew_every`](crate::Options::renew_every).
        #[must_use]
        pub fn renew_every(mut self, renew_every: std::time::Duration) -> Self {
            self.options_mut().renew_every = Some(renew_every);
            self
        }

        /// Sets how much of its ttl a grant must still have. See
        /// [`Options::min_validity_percent`](crate::Options::min_validity_percent).
        #[must_use]
        pub fn min_validity_percent(mut self, percent: u8) -> Self {
            self.options_mut().min_validity_percent = Some(percent);
            self
        }

        /// Sets how to poll stores that cannot push. See [`Options::poll`](crate::Options::poll).
        #[must_use]
        pub fn poll(mut self, poll: crate::options::PollPolicy) -> Self {
            self.options_mut().poll = Some(poll);
            self
        }

        /// Sets how long one request may take. See [`Options::request_timeout`](crate::Options::request_timeout).
        #[must_use]
        pub fn request_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.options_mut().request_timeout = timeout;
            self
        }

        /// Sets how long the client tries to release. See
        /// [`Options::release_timeout`](crate::Options::release_timeout).
        #[must_use]
        pub fn release_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.options_mut().release_timeout = timeout;
            self
        }

        /// Sets the callback for a failed release that no caller awaits. See
        /// [`Options::on_release_error`](crate::Options::on_release_error).
        #[must_use]
        pub fn on_release_error(
            mut self,
            callback: impl Fn(&crate::Error, &crate::options::ReleaseFailure<'_>) + Send + Sync + 'static,
        ) -> Self {
            self.options_mut().on_release_error = Some(std::sync::Arc::new(callback));
            self
        }

        /// Lets the program cancel a wait from outside, with a [`Cancel`](crate::Cancel) or a
        /// [`CancellationToken`](tokio_util::sync::CancellationToken).
        #[must_use]
        pub fn cancel_on(mut self, cancel: impl Into<crate::Cancel>) -> Self {
            self.options_mut().cancel = Some(cancel.into());
            self
        }

        /// Accepts leases without fences. See [`Options::allow_unfenced`](crate::Options::allow_unfenced).
        #[must_use]
        pub fn allow_unfenced(mut self, allow: bool) -> Self {
            self.options_mut().allow_unfenced = allow;
            self
        }
    };
}
pub(crate) use option_setters;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_stay_in_range_and_never_overflow() {
        let poll = PollPolicy::default();
        for n in [0, 1, 5, 40, u32::MAX] {
            let delay = poll.delay(n);
            assert!(delay >= poll.min / 2 && delay <= poll.max, "{n}: {delay:?}");
        }
        let none = PollPolicy::new(Duration::from_millis(3), Duration::from_millis(20)).jitter(Jitter::None);
        let delays: Vec<_> = (0..5).map(|n| none.delay(n).as_millis()).collect();
        assert_eq!(delays, [3, 6, 12, 20, 20]);
        assert_eq!(none.backoff(Backoff::Fixed).delay(9).as_millis(), 3);
        let huge = PollPolicy::new(Duration::MAX, Duration::MAX);
        assert!(huge.delay(u32::MAX) <= Duration::MAX);
    }

    #[test]
    fn debug_does_not_show_metadata() {
        let options = Options { metadata: Some("token=abc".into()), ..Options::default() };
        assert!(!format!("{options:?}").contains("token=abc"));
    }
}
