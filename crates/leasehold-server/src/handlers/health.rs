//! Capabilities, liveness (`/healthz`) and readiness (`/readyz`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use leasehold::backend::{Query, TimeAuthority};
use leasehold::wire::{self, floor_ms};
use leasehold::{Error, ErrorKind};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::respond;
use crate::app::App;
use crate::problem::{Refusal, json};

pub(crate) async fn capabilities(State(app): State<Arc<App>>) -> Response<Body> {
    let info = &app.info;
    let body = wire::Capabilities {
        server: "leasehold".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        store: info.scheme.into(),
        time: if info.time == TimeAuthority::Client { "client" } else { "store" }.into(),
        fenced: info.fenced,
        fifo: info.fifo,
        shared: info.shared,
        max_permits: info.max_permits,
        downgrade: info.downgrade,
        find_by_id: info.find_by_id,
        revoke: info.revoke,
        detects_loss: info.detects_loss,
        min_validity_percent: info.min_validity_percent,
        max_ttl_ms: floor_ms(app.max_ttl()),
        max_wait_ms: wire::MAX_WAIT_MS,
    };
    json(StatusCode::OK, &body)
}

/// The process is alive.
pub(crate) async fn healthz() -> Response<Body> {
    json(StatusCode::OK, &serde_json::json!({ "status": "ok" }))
}

/// Whether the store answered the last time it was asked. Anybody may ask the server; the server asks the store at
/// most once a second.
///
/// One look serves everybody who asks meanwhile. It runs to its end in a task of its own, so that clients which connect
/// and go away cause no further looks.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<watch::Receiver<Look>>>);

/// When the store answered the look, and how. `None` while it is under way.
type Look = Option<(Instant, Result<(), Refusal>)>;

/// How long a readiness answer is reused.
const FRESH: Duration = Duration::from_secs(1);

impl Readiness {
    async fn look(&self, app: &Arc<App>) -> Result<(), Refusal> {
        let mut look = {
            let mut last = self.0.lock();
            match &*last {
                Some(look) if is_of_use(look) => look.clone(),
                _ => last.insert(start(Arc::clone(app))).clone(),
            }
        };
        match look.wait_for(Option::is_some).await.as_deref() {
            Ok(Some((_, answer))) => answer.clone(),
            _ => Err(Error::new(ErrorKind::Internal, "the look at the store broke off").into()),
        }
    }
}

/// Whether a look is under way or fresh.
fn is_of_use(look: &watch::Receiver<Look>) -> bool {
    match &*look.borrow() {
        Some((at, _)) => at.elapsed() < FRESH,
        // Its task may have panicked.
        None => look.has_changed().is_ok(),
    }
}

fn start(app: Arc<App>) -> watch::Receiver<Look> {
    let (tell, look) = watch::channel(None);
    let asking = Arc::clone(&app);
    app.go_on_with(async move {
        let answer = async {
            let name = asking.name("leasehold readiness")?;
            asking.ask("inspect", asking.backend.inspect(&Query::Name(name))).await?;
            Ok(())
        };
        let answer = answer.await;
        tell.send_replace(Some((Instant::now(), answer)));
    });
    look
}

/// Ready if the store answers and the server is not shutting down.
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Response<Body> {
    if app.draining.is_cancelled() {
        return Refusal::draining().response();
    }
    let ready = app.readiness.look(&app).await;
    respond(ready.map(|()| json(StatusCode::OK, &serde_json::json!({ "status": "ready" }))))
}
