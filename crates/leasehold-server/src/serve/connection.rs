//! One connection: serves its requests one after the other, until it closes, stays silent too long, or the server
//! ends.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use leasehold::wire::floor_ms;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::unconstrained;
use tokio::time::Instant;

use crate::app::App;
use crate::middleware;

use super::ahead::Ahead;

/// The longest head of a request that is certainly read; hyper buffers at most twice as much before it answers 431. The
/// longest name takes 1.5 KiB, and proxies limit all headers to 8 or 16 KiB.
const MAX_HEAD: usize = 32 << 10;

/// Serves the requests of one connection. Not an `async fn`: that would store the arguments twice.
pub(super) fn speak<S>(app: Arc<App>, router: Router, stream: S) -> impl Future<Output = ()> + Send
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let pace = Arc::new(Pace::new(app.settings.read_timeout));
    let shared = Arc::new((Arc::clone(&app), Arc::clone(&pace), TowerToHyperService::new(router)));
    let service = service_fn(move |request: Request<Incoming>| {
        let shared = Arc::clone(&shared);
        async move {
            let (app, pace, routes) = &*shared;
            pace.begins();
            let routed = async |request| routes.call(request).await.unwrap_or_else(|never| match never {});
            let answer = middleware::pass(app, request.map(Body::new), routed).await;
            pace.rests();
            Ok::<_, Infallible>(answer)
        }
    });
    // The loop below notices silence: a separate timer for every request would cost more than the lock.
    let stream = Ahead::new(stream);
    let ahead = stream.another();
    let connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    // Boxed, so that it is stored once and never moved.
    let mut connection = Box::pin(connection);
    async move {
        // Ignore connection errors: the client disconnected, or does not speak HTTP.
        let drains = {
            let mut silence = pin!(tokio::time::sleep(Duration::ZERO));
            let mut draining = pin!(app.draining.cancelled());
            let (mut armed, mut operation) = (false, None::<Waker>);
            poll_fn(|cx| {
                // Both futures wake this task. Poll them again only if the waker has changed; otherwise every request
                // would pay for it.
                if !operation.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    (armed, operation) = (false, Some(cx.waker().clone()));
                    if is_ready(draining.as_mut(), cx) {
                        return Poll::Ready(true);
                    }
                }
                if app.draining.is_cancelled() {
                    return Poll::Ready(true);
                }
                if armed && silence.is_elapsed() {
                    armed = false;
                    if pace.patience_ends().is_some_and(|end| end <= Instant::now()) {
                        return Poll::Ready(false);
                    }
                }
                if connection.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(false);
                }
                // A client that has disconnected waits for no answer.
                if pace.is_busy() && ahead.poll_gone(cx).is_ready() {
                    return Poll::Ready(false);
                }
                // During a request no other one is awaited; this timer is set when the answer goes out.
                if !armed && let Some(end) = pace.patience_ends() {
                    silence.as_mut().reset(end);
                    armed = true;
                    if is_ready(silence.as_mut(), cx) {
                        cx.waker().wake_by_ref();
                    }
                }
                Poll::Pending
            })
            .await
        };
        if drains {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Whether a future is ready, without tokio's cooperative budget: a forced yield would leave no waker registered.
fn is_ready(future: Pin<&mut impl Future>, cx: &mut Context<'_>) -> bool {
    Pin::new(&mut unconstrained(future)).poll(cx).is_ready()
}

/// Whether a connection waits for a request, and since when.
#[derive(Debug)]
struct Pace {
    opened: Instant,
    /// Milliseconds after `opened`; [`BUSY`] while a request is being answered.
    resting_since: AtomicU64,
    timeout: Duration,
}

const BUSY: u64 = u64::MAX;

impl Pace {
    fn new(timeout: Duration) -> Self {
        Pace { opened: Instant::now(), resting_since: AtomicU64::new(0), timeout }
    }

    fn begins(&self) {
        self.resting_since.store(BUSY, Ordering::Relaxed);
    }

    fn rests(&self) {
        self.resting_since.store(floor_ms(self.opened.elapsed()), Ordering::Relaxed);
    }

    /// Whether a request is being answered.
    fn is_busy(&self) -> bool {
        self.resting_since.load(Ordering::Relaxed) == BUSY
    }

    /// When the head of the next request must have arrived, if one is awaited.
    fn patience_ends(&self) -> Option<Instant> {
        let since = Some(self.resting_since.load(Ordering::Relaxed)).filter(|since| *since != BUSY)?;
        self.opened.checked_add(Duration::from_millis(since))?.checked_add(self.timeout)
    }
}
