//! Capabilities, liveness (`/healthz`) and readiness (`/readyz`).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use leasehold::backend::{Query, TimeAuthority};
use leasehold::wire::{self, floor_ms};

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
        notes: info.notes,
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

/// How long a readiness answer is reused: anybody may ask the server, and the server asks the store at most this often.
pub(crate) const READINESS: Duration = Duration::from_secs(1);

async fn ask(app: Arc<App>) -> Result<(), Refusal> {
    let name = app.name("leasehold readiness")?;
    app.ask("inspect", app.backend.inspect(&Query::Name(name))).await?;
    Ok(())
}

/// Ready if the store answers and the server is not shutting down.
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Response<Body> {
    if app.draining.is_cancelled() {
        return Refusal::draining().response();
    }
    let ready = app.readiness.answer(&app, || ask(Arc::clone(&app))).await;
    respond(ready.map(|()| json(StatusCode::OK, &serde_json::json!({ "status": "ready" }))))
}
