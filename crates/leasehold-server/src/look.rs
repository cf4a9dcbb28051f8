//! A look at the store whose answer is reused, so that clients who ask often cause few looks.

use std::fmt;
use std::time::{Duration, Instant};

use leasehold::{Error, ErrorKind};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::app::App;
use crate::problem::Refusal;

/// What a look found, or why it failed.
type Found<T> = Result<T, Refusal>;

/// When the store answered the look, and how. `None` while it is under way.
type Latest<T> = Option<(Instant, Found<T>)>;

/// The last look at the store.
///
/// One look serves every client that asks meanwhile. It runs to its end in a task of its own, so that clients which
/// connect and go away cause no further looks. A failure is reused like any other answer.
pub(crate) struct Look<T> {
    /// How long an answer is reused.
    fresh: Duration,
    last: Mutex<Option<watch::Receiver<Latest<T>>>>,
}

impl<T> fmt::Debug for Look<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Look").field("fresh", &self.fresh).finish_non_exhaustive()
    }
}

impl<T: Clone + Send + Sync + 'static> Look<T> {
    pub(crate) fn fresh_for(fresh: Duration) -> Self {
        Look { fresh, last: Mutex::default() }
    }

    /// The last answer if it is fresh, or that of the look under way, or that of a new look.
    pub(crate) async fn answer<F>(&self, app: &App, look: impl FnOnce() -> F) -> Found<T>
    where
        F: Future<Output = Found<T>> + Send + 'static,
    {
        let mut latest = {
            let mut last = self.last.lock();
            match &*last {
                Some(latest) if self.is_of_use(latest) => latest.clone(),
                _ => last.insert(start(app, look())).clone(),
            }
        };
        match latest.wait_for(Option::is_some).await.as_deref() {
            Ok(Some((_, found))) => found.clone(),
            _ => Err(Error::new(ErrorKind::Internal, "the look at the store broke off").into()),
        }
    }

    /// Whether a look is under way or fresh.
    fn is_of_use(&self, latest: &watch::Receiver<Latest<T>>) -> bool {
        match &*latest.borrow() {
            Some((at, _)) => at.elapsed() < self.fresh,
            // Its task may have panicked.
            None => latest.has_changed().is_ok(),
        }
    }
}

fn start<T: Send + Sync + 'static>(
    app: &App,
    look: impl Future<Output = Found<T>> + Send + 'static,
) -> watch::Receiver<Latest<T>> {
    let (tell, latest) = watch::channel(None);
    let closing = app.closing.clone();
    app.go_on_with(async move {
        tokio::select! {
            biased;
            found = look => drop(tell.send_replace(Some((Instant::now(), found)))),
            () = closing.cancelled() => {}
        }
    });
    latest
}
