//! One store with its settings, and the calls to it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold::backend::{Backend, Info, Liveness};
use leasehold::clock::Clock;
use leasehold::{Cancel, Error, ErrorKind, Locks, Name};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::handlers::health::READINESS;
use crate::history::History;
use crate::log::{FLUSH, Log};
use crate::look::Look;
use crate::metrics::Metrics;
use crate::middleware::RequestIds;
use crate::problem::Refusal;
use crate::settings::Settings;
use crate::turns::Turns;

/// How long a call to the store may still take at shutdown. After that, waiting clients get an error.
const LAST_CALLS: Duration = Duration::from_secs(3);

/// How long it then takes until every client has its answer.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

// Shutdown takes at most five seconds, as `App::drain` and `serve` promise.
const _: () = assert!(LAST_CALLS.as_secs() + LAST_ANSWERS.as_secs() + FLUSH.as_secs() <= 5);

/// A store and everything a server keeps about it.
#[derive(Debug)]
pub struct App {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) info: Info,
    pub(crate) clock: Arc<dyn Clock>,
    /// How long one call to the store may take.
    pub(crate) call: Duration,
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) history: History,
    pub(crate) request_ids: RequestIds,
    pub(crate) turns: Turns,
    /// Whether the store answered the last time it was asked.
    pub(crate) readiness: Look<()>,
    /// The server is shutting down: waiting requests end with an error.
    pub(crate) draining: Cancel,
    /// No call to the store is waited for any more.
    pub(crate) closing: Cancel,
    /// Background work holds a receiver of this, so the server can see when all of it has ended.
    background: watch::Sender<()>,
    /// Keeps the thread alive on which the store's connections live, and knows who keeps marks.
    pub(crate) locks: Locks,
}

impl App {
    /// Creates the server state for this store.
    ///
    /// # Errors
    /// `Unsupported` for a store whose locks end with a session: the server's connection is not the client's.
    pub fn new(locks: Locks, settings: Settings) -> leasehold::Result<Arc<Self>> {
        let info = locks.info();
        if info.liveness != Liveness::Ttl {
            let message = format!(
                "{}: its locks belong to a connection or process, so a server cannot hold them for its clients; \
                 use sqlite:, redis: or postgres:",
                info.scheme
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Name::within(&settings.namespace, "x")?;
        Ok(Arc::new(App {
            backend: Arc::clone(locks.backend()),
            info,
            clock: Arc::clone(locks.clock()),
            call: locks.options().request_timeout,
            metrics: Metrics::new(info.scheme),
            history: History::default(),
            settings,
            request_ids: RequestIds::new(),
            turns: Turns::default(),
            readiness: Look::fresh_for(READINESS),
            draining: Cancel::new(),
            closing: Cancel::new(),
            background: watch::Sender::new(()),
            locks,
        }))
    }

    /// Reads the token file again.
    ///
    /// # Errors
    /// As [`Tokens::read`](crate::Tokens::read); the old tokens then stay in force.
    pub fn reload_tokens(&self) -> leasehold::Result<()> {
        self.settings.tokens.as_ref().map_or(Ok(()), crate::Tokens::reload)
    }

    /// The server's log.
    pub fn log(&self) -> &Log {
        &self.settings.log
    }

    pub(crate) fn name(&self, name: &str) -> leasehold::Result<Name> {
        Name::within(&self.settings.namespace, name)
    }

    pub(crate) fn max_ttl(&self) -> Duration {
        self.settings.max_ttl.min(self.info.max_ttl)
    }

    /// Calls the store within the time limit and measures the call.
    pub(crate) async fn ask<T>(
        &self,
        op: &'static str,
        call: impl Future<Output = leasehold::Result<T>>,
    ) -> leasehold::Result<T> {
        in_time(self.call, self.measured(op, call)).await.unwrap_or_else(|| Err(no_answer_in_time()))
    }

    /// Calls the store and measures the call, also if it is cut off. The call ends when the server ends.
    pub(crate) async fn measured<T>(
        &self,
        op: &'static str,
        call: impl Future<Output = leasehold::Result<T>>,
    ) -> leasehold::Result<T> {
        let _measured = Measured { metrics: &self.metrics, op, began: Instant::now() };
        tokio::select! {
            biased;
            answer = call => answer,
            () = self.closing.cancelled() => Err(no_answer_in_time()),
        }
    }

    /// Runs work that no request waits for any more. Shutdown waits for it, within bounds.
    pub(crate) fn go_on_with(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Option<JoinHandle<()>> {
        let under_way = self.background.subscribe();
        let work = async move {
            work.await;
            drop(under_way);
        };
        // Without a runtime the process is ending, and this work with it.
        tokio::runtime::Handle::try_current().ok().map(|runtime| runtime.spawn(work))
    }

    /// Shuts down: answers waiting clients with a retryable error, gives back what they had in the store, waits for
    /// `connections` to close, and returns after at most five seconds. [`serve`](crate::serve) calls this itself.
    pub async fn drain(&self, connections: impl Future<Output = ()>) {
        self.draining.cancel();
        let all = async {
            connections.await;
            // Waits for the give-backs of waiting clients, even of those already answered.
            self.background.closed().await;
        };
        let mut all = pin!(all);
        if tokio::time::timeout(LAST_CALLS, all.as_mut()).await.is_err() {
            // Stop whatever is still running.
            self.closing.cancel();
            let _ = tokio::time::timeout(LAST_ANSWERS, all).await;
        }
        self.settings.log.flush();
    }

    /// Checks a ttl from a request body.
    pub(crate) fn ttl(&self, field: &str, ms: u64) -> Result<Duration, Refusal> {
        let most = leasehold::wire::floor_ms(self.max_ttl());
        if ms == 0 || ms > most {
            let given = if ms == 0 { "0 or missing".to_owned() } else { ms.to_string() };
            return Err(Refusal::bad(format!(
                "{field} must be in (0, {most}], in milliseconds; it is {given}"
            )));
        }
        Ok(Duration::from_millis(ms))
    }
}

fn no_answer_in_time() -> Error {
    Error::new(ErrorKind::NetworkTimeout, "the store did not answer in time")
}

/// A call to the store in progress.
struct Measured<'a> {
    metrics: &'a Metrics,
    op: &'static str,
    began: Instant,
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        self.metrics.asked_store(self.op, self.began.elapsed());
    }
}

/// The result of a future if it finishes within this time. Most are ready at once, and then no timer is made.
pub(crate) async fn in_time<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
        Poll::Ready(output) => Some(output),
        Poll::Pending => tokio::time::timeout(time, future).await.ok(),
    }
}
