//! Sends a release and retries it until the store has answered: for guards that end, and for what a claim may have
//! got.

use std::time::Duration;

use crate::backend::{Release, Released};
use crate::clock::Clock;
use crate::engine::limits::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::error::{Error, ErrorKind, Result};
use crate::options::PollPolicy;

/// The time limits of a release.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// For one call to the store.
    pub call: Duration,
    /// For all tries together.
    pub total: Duration,
}

/// Sends a release with `call`, and again while the store does not answer.
///
/// `held` says that the lease was held until now. If the store then answers `Gone` after an unanswered try, this
/// counts as released, since that try may have done it.
///
/// # Errors
/// The last error of the store.
pub async fn release<F: Future<Output = Result<Released>>>(
    release: &Release,
    held: bool,
    times: Times,
    clock: &dyn Clock,
    mut call: impl FnMut() -> F,
) -> Result<Released> {
    let end = clock.now() + times.total;
    let pauses = PollPolicy::new(FIRST_PAUSE, LONGEST_PAUSE);
    let (mut tries, mut unanswered) = (0, false);
    loop {
        let time = times.call.min(end.since(clock.now()));
        let error = match tokio::time::timeout(time, call()).await {
            Ok(Ok(Released::Gone(_))) if held && unanswered => return Ok(Released::Done),
            Ok(Ok(released)) => return Ok(released),
            Ok(Err(error)) if !error.is_retryable() => return Err(error),
            Ok(Err(error)) => error,
            Err(_) => Error::new(ErrorKind::NetworkTimeout, "the store did not answer the release in time"),
        };
        // An overloaded store has answered, and did nothing.
        unanswered |= matches!(error.kind(), ErrorKind::NetworkTimeout | ErrorKind::Unavailable);
        let pause = pauses.delay(tries);
        tries += 1;
        if clock.now() + pause >= end {
            return Err(error.with_name(release.name.clone()).with_lease_id(release.id));
        }
        tokio::time::sleep(pause).await;
    }
}
