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

use crate::handlers::health::Readiness;
use crate::history::History;
use crate::log::Log;
use crate::metrics::Metrics;
use crate::middleware::RequestIds;
use crate::problem::Refusal;
use crate::settings::Settings;
use crate::turns::Turns;

/// How long a call to the store may take when the server ends. Whoever waits for its answer is told then.
const LAST_CALLS: Duration = Duration::from_secs(3);

/// How long it takes after that until everybody is told: five seconds in all.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// A store, as a server has it.
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
    pub(crate) readiness: Readiness,
    /// The server ends: whoever waits is told so.
    pub(crate) draining: Cancel,
    /// It has ended as far as the store is concerned: no call to it is waited for any more.
    pub(crate) closing: Cancel,
    /// What goes on without a request listens to this, so it can be seen when all of it has ended.
    background: watch::Sender<()>,
    /// The store's connections live on its thread.
    _locks: Locks,
}

impl App {
    /// A server of this store.
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
            readiness: Readiness::default(),
            draining: Cancel::new(),
            closing: Cancel::new(),
            background: watch::Sender::new(()),
            _locks: locks,
        }))
    }

    /// Reads the file of tokens again.
    ///
    /// # Errors
    /// As [`Tokens::read`](crate::Tokens::read); the old tokens stay in force then.
    pub fn reload_tokens(&self) -> leasehold::Result<()> {
        self.settings.tokens.as_ref().map_or(Ok(()), crate::Tokens::reload)
    }

    /// Where its lines go.
    pub fn log(&self) -> &Log {
        &self.settings.log
    }

    pub(crate) fn name(&self, name: &str) -> leasehold::Result<Name> {
        Name::within(&self.settings.namespace, name)
    }

    pub(crate) fn max_ttl(&self) -> Duration {
        self.settings.max_ttl.min(self.info.max_ttl)
    }

    /// A call to the store that ends in time, and is measured.
    pub(crate) async fn ask<T>(
        &self,
        op: &'static str,
        call: impl Future<Output = leasehold::Result<T>>,
    ) -> leasehold::Result<T> {
        in_time(self.call, self.measured(op, call)).await.unwrap_or_else(|| Err(no_answer_in_time()))
    }

    /// A call to the store that is measured, also if it is cut off, and ends with the server.
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

    /// Goes on with something when nobody waits for it any more; the server's end is put off for it, within bounds.
    pub(crate) fn go_on_with(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Option<JoinHandle<()>> {
        let under_way = self.background.subscribe();
        let work = async move {
            work.await;
            drop(under_way);
        };
        // Without a runtime the process ends, and with it everything that could go on.
        tokio::runtime::Handle::try_current().ok().map(|runtime| runtime.spawn(work))
    }

    /// Ends: answers those who wait with an error that can be retried, gives back what they had in the store, waits for
    /// `connections` to close, and returns after at most five seconds. [`serve`](crate::serve) does so by itself.
    pub async fn drain(&self, connections: impl Future<Output = ()>) {
        self.draining.cancel();
        let all = async {
            connections.await;
            // What those who waited had in the store is given back, even if they were answered before.
            self.background.closed().await;
        };
        let mut all = pin!(all);
        if tokio::time::timeout(LAST_CALLS, all.as_mut()).await.is_err() {
            // Whatever is left does not get any further.
            self.closing.cancel();
            let _ = tokio::time::timeout(LAST_ANSWERS, all).await;
        }
        self.settings.log.flush();
    }

    /// A ttl in a body.
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

/// A call to the store that is under way.
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

/// What a future comes to within this time, if it does. Most are ready at once, and then no timer is made.
pub(crate) async fn in_time<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
        Poll::Ready(output) => Some(output),
        Poll::Pending => tokio::time::timeout(time, future).await.ok(),
    }
}
