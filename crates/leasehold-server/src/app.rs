//! One store with its settings, and the routes over it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request, Response, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::{get, post};
use leasehold::backend::{Backend, Info, Liveness};
use leasehold::{Cancel, Error, ErrorKind, Locks, Name};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::history::History;
use crate::log::Log;
use crate::metrics::Metrics;
use crate::problem::Refusal;
use crate::settings::Settings;
use crate::{acquire, dashboard, findings, gate, history, looking, metrics, openapi, verbs};

/// How long one call to the store may take.
pub(crate) const CALL: Duration = Duration::from_secs(5);

/// A store, as a server has it.
#[derive(Debug)]
pub struct App {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) info: Info,
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) history: History,
    pub(crate) request_ids: gate::RequestIds,
    pub(crate) turns: acquire::Turns,
    pub(crate) readiness: looking::Readiness,
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
            metrics: Metrics::new(info.scheme),
            history: History::default(),
            settings,
            request_ids: gate::RequestIds::new(),
            turns: acquire::Turns::default(),
            readiness: looking::Readiness::default(),
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
        self.ask_for(CALL, op, call).await
    }

    /// The same, with a time of its own.
    pub(crate) async fn ask_for<T>(
        &self,
        time: Duration,
        op: &'static str,
        call: impl Future<Output = leasehold::Result<T>>,
    ) -> leasehold::Result<T> {
        let began = Instant::now();
        let call = async {
            tokio::select! {
                biased;
                answer = call => Some(answer),
                () = self.closing.cancelled() => None,
            }
        };
        let answer = in_time(time, call).await.flatten();
        self.metrics.asked_store(op, began.elapsed());
        answer
            .unwrap_or_else(|| Err(Error::new(ErrorKind::NetworkTimeout, "the store did not answer in time")))
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

    /// Resolves when nothing goes on by itself.
    pub(crate) async fn is_done(&self) {
        self.background.closed().await;
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

/// What a future comes to within this time, if it does. Most are ready at once, and then no timer is made.
pub(crate) async fn in_time<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
        Poll::Ready(output) => Some(output),
        Poll::Pending => tokio::time::timeout(time, future).await.ok(),
    }
}

/// The routes of a server, behind its gate, to be answered by a server of your own; with `/metrics` and the
/// dashboard, unless they have an address of their own.
pub fn app(app: Arc<App>) -> Router {
    let figures = !app.settings.figures_elsewhere;
    let gate = async |State(app): State<Arc<App>>, request: Request<Body>, next: Next| {
        gate::pass(&app, request, |request| next.run(request)).await
    };
    routes(Arc::clone(&app), figures).layer(from_fn_with_state(app, gate))
}

/// The routes without the gate.
pub(crate) fn routes(app: Arc<App>, figures: bool) -> Router {
    let mut routes = reading()
        .route("/v1/locks/{name}/acquire", post(acquire::route))
        .route("/v1/locks/{name}/renew", post(verbs::renew))
        .route("/v1/locks/{name}/release", post(verbs::release))
        .route("/v1/locks/{name}/revoke", post(verbs::revoke))
        .route("/v1/renew", post(verbs::renew_many))
        .route("/v1/sweep", post(verbs::sweep))
        .route("/v1/leases/lookup", post(looking::lookup))
        .route("/v1/findings", get(findings::route))
        .route("/openapi.json", get(openapi::route));
    if figures {
        routes = routes.merge(self::figures());
    }
    routes.fallback(no_route).method_not_allowed_fallback(wrong_method).with_state(app)
}

/// The routes of the address that metrics and the dashboard have for themselves: these, what the dashboard reads, and
/// revoking where who does it is known. Locks are not taken, renewed or released there: it may have been opened to
/// those who only look.
pub(crate) fn figure_routes(app: Arc<App>, revoking: bool) -> Router {
    let revoke = if revoking { post(verbs::revoke) } else { post(not_from_here) };
    let routes = reading().merge(figures()).route("/v1/locks/{name}/revoke", revoke);
    routes.fallback(not_here).method_not_allowed_fallback(wrong_method).with_state(app)
}

/// Health, and what the dashboard reads.
fn reading() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/locks/{name}/history", get(history::route))
        .route("/v1/locks/{name}", get(looking::lock))
        .route("/v1/locks", get(looking::list))
        .route("/v1/capabilities", get(looking::capabilities))
        .route("/healthz", get(looking::healthz))
        .route("/readyz", get(looking::readyz))
}

/// What can have an address of its own.
fn figures() -> Router<Arc<App>> {
    Router::new().route("/metrics", get(metrics::route)).route("/", get(dashboard::route))
}

async fn not_here(State(_): State<Arc<App>>) -> Response<Body> {
    let detail = "this address has metrics, health and the dashboard only; the rest is at the server's own";
    Refusal::new(StatusCode::NOT_FOUND, "NO_ROUTE", detail).response()
}

async fn not_from_here(State(_): State<Arc<App>>) -> Response<Body> {
    Refusal::forbidden(
        "others can reach this address, and without tokens nothing is revoked from it; revoke at the server's own, \
         or start it with --tokens FILE",
    )
    .response()
}

async fn no_route(State(_): State<Arc<App>>, uri: Uri) -> Response<Body> {
    let parts: Vec<&str> = uri.path().split('/').collect();
    if matches!(parts[..], ["", "v1", "locks", ""] | ["", "v1", "locks", "", _]) {
        return Refusal::bad("the lock name must not be empty").response();
    }
    let detail = if matches!(parts[..], ["", "v1", "locks", _, _, ..]) {
        "there is no such route; a slash in a lock name must be written as %2F; see /openapi.json"
    } else {
        "there is no such route; see /openapi.json"
    };
    Refusal::new(StatusCode::NOT_FOUND, "NO_ROUTE", detail).response()
}

async fn wrong_method(method: Method, _: Request<Body>) -> Response<Body> {
    let detail = format!("{method} is not a method of this route; see /openapi.json");
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "WRONG_METHOD", detail).response()
}
