//! The crate's one error type: a kind that decides what to do, a message for people, and the source.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::span;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong; each kind calls for a different reaction by the caller.
///
/// Contention is not among them: when another client holds the lock, that is an answer (`Ok(None)`), and only `lock()`
/// with a `max_wait` turns it into [`Timeout`](ErrorKind::Timeout). The loss of a held lease is a signal on the
/// [`Guard`](crate::Guard). It becomes [`Lost`](ErrorKind::Lost) in methods that check for it or stop work because of
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call itself is wrong: a name, an option, a URL. Nothing was sent.
    InvalidArgument,
    /// The store cannot be reached or does not work.
    Unavailable,
    /// The store is too busy; the same call may succeed soon. Never means that another client holds the lock.
    Overloaded,
    /// No answer in time. The call may or may not have taken effect.
    NetworkTimeout,
    /// The store refused the credentials, or did not permit the call.
    AuthFailed,
    /// Too many requests; try again later.
    RateLimited,
    /// An acquire with a time limit did not get its turn in time.
    Timeout,
    /// The call was cancelled, or the client is closed.
    Aborted,
    /// The lease is gone.
    Lost,
    /// The name is in use as another kind of lock, or with another limit.
    Mismatch,
    /// The caller would wait for itself.
    Deadlock,
    /// This store, or this build, cannot do that.
    Unsupported,
    /// A bug, a fence counter at its limit, or foreign data in the store.
    Internal,
}

impl ErrorKind {
    /// The kind in words, as used at the start of an error's `Display`.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::InvalidArgument => "invalid argument",
            ErrorKind::Unavailable => "store unavailable",
            ErrorKind::Overloaded => "store overloaded",
            ErrorKind::NetworkTimeout => "no answer in time",
            ErrorKind::AuthFailed => "not allowed",
            ErrorKind::RateLimited => "rate limited",
            ErrorKind::Timeout => "timed out",
            ErrorKind::Aborted => "aborted",
            ErrorKind::Lost => "lease lost",
            ErrorKind::Mismatch => "mismatch",
            ErrorKind::Deadlock => "deadlock",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Internal => "internal error",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error of this crate.
///
/// `Display` never contains a lock name or a lease id; [`name`](Error::name) and [`lease_id`](Error::lease_id) return
/// them. It prints one line and leaves the [`source`](StdError::source) to the error reporter.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
    waited: Option<Duration>,
    name: Option<Name>,
    lease_id: Option<LeaseId>,
}

impl Error {
    /// Makes an error. The message should say what to do, and must not contain names, ids or secrets.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            source: None,
            waited: None,
            name: None,
            lease_id: None,
        }))
    }

    /// Makes an [`ErrorKind::InvalidArgument`] error.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::InvalidArgument, message)
    }

    /// Makes the [`ErrorKind::Timeout`] error of an acquire that waited in vain. Its message rounds to milliseconds;
    /// the error has the exact time.
    pub(crate) fn timed_out(waited: Duration) -> Self {
        let whole = Duration::from_millis(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
        Error::new(ErrorKind::Timeout, format!("not acquired within {}", span::show(whole)))
            .with_waited(waited)
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Adds how long the caller waited.
    #[must_use]
    pub fn with_waited(mut self, waited: Duration) -> Self {
        self.0.waited = Some(waited);
        self
    }

    /// Adds the name of the lock; `Display` does not show it.
    #[must_use]
    pub fn with_name(mut self, name: Name) -> Self {
        self.0.name = Some(name);
        self
    }

    /// Adds the id of the lease; `Display` does not show it.
    #[must_use]
    pub fn with_lease_id(mut self, id: LeaseId) -> Self {
        self.0.lease_id = Some(id);
        self
    }

    /// What kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message without the kind.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// How long the caller waited, for [`ErrorKind::Timeout`].
    pub fn waited(&self) -> Option<Duration> {
        self.0.waited
    }

    /// The name of the lock, where known. It may be sensitive.
    pub fn name(&self) -> Option<&Name> {
        self.0.name.as_ref()
    }

    /// The id of the lease, where known. It is a secret.
    pub fn lease_id(&self) -> Option<LeaseId> {
        self.0.lease_id
    }

    /// Whether the same call, made again a little later, can succeed without anything being fixed.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Unavailable
                | ErrorKind::Overloaded
                | ErrorKind::NetworkTimeout
                | ErrorKind::RateLimited
        )
    }

    /// Copies the error for a second listener. The source becomes text.
    pub(crate) fn duplicate(&self) -> Self {
        Error(Box::new(Inner {
            kind: self.0.kind,
            message: self.0.message.clone(),
            source: self.0.source.as_ref().map(|s| s.to_string().into()),
            waited: self.0.waited,
            name: self.0.name.clone(),
            lease_id: self.0.lease_id,
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("message", &self.0.message);
        if let Some(waited) = self.0.waited {
            out.field("waited", &waited);
        }
        if let Some(source) = &self.0.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|s| s as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_holds_neither_name_nor_lease_id() {
        let id = LeaseId::random();
        let error = Error::new(ErrorKind::Timeout, "not in time")
            .with_name(Name::new("secret-project").unwrap())
            .with_lease_id(id)
            .with_waited(Duration::from_millis(5));
        for text in [error.to_string(), format!("{error:?}"), format!("{:?}", error.duplicate())] {
            assert!(!text.contains("secret-project") && !text.contains(id.expose()), "{text}");
        }
        assert_eq!(error.name().unwrap().as_str(), "secret-project");
        assert_eq!(error.lease_id(), Some(id));
        assert_eq!(error.to_string(), "timed out: not in time");
    }

    #[test]
    fn only_transient_kinds_are_retryable() {
        use ErrorKind::*;
        let retryable = [Unavailable, Overloaded, NetworkTimeout, RateLimited];
        for kind in [
            InvalidArgument,
            Unavailable,
            Overloaded,
            NetworkTimeout,
            AuthFailed,
            RateLimited,
            Timeout,
            Aborted,
            Lost,
            Mismatch,
            Deadlock,
            Unsupported,
            Internal,
        ] {
            assert_eq!(Error::new(kind, "x").is_retryable(), retryable.contains(&kind), "{kind:?}");
        }
    }
}
