//! The simplest possible server: one handler that reads and answers JSON of the size of an acquire.

use axum::extract::Path;
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use crate::client::post_request;

/// The role in which this program is the bare server.
pub(crate) const ROLE: &str = "bare-server";

#[derive(Deserialize)]
struct AcquireRequest {
    owner_id: String,
    ttl_ms: u64,
}

#[derive(Serialize)]
struct Answer {
    acquired: bool,
    lock_name: String,
    mode: &'static str,
    owner_id: String,
    lease_id: &'static str,
    fencing_token: u64,
    ttl_ms: u64,
    expires_in_ms: u64,
    lease_expiry_ms: u64,
    waited_ms: u64,
    renewals: u64,
    acquired_at_ms: u64,
}

async fn answer(Path(name): Path<String>, Json(request): Json<AcquireRequest>) -> Json<Answer> {
    Json(Answer {
        acquired: true,
        lock_name: name,
        mode: "exclusive",
        owner_id: request.owner_id,
        lease_id: "AAAAAAAAAAAAAAAAAAAAAA",
        fencing_token: 4_587_520_000_000_001,
        ttl_ms: request.ttl_ms,
        expires_in_ms: request.ttl_ms,
        lease_expiry_ms: 1_793_000_000_000,
        waited_ms: 0,
        renewals: 0,
        acquired_at_ms: 1_793_000_000_000,
    })
}

/// Serves until the process is killed.
pub(crate) async fn serve() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("http://{}", listener.local_addr().expect("an address"));
    let listener = axum::serve::ListenerExt::tap_io(listener, |stream| drop(stream.set_nodelay(true)));
    axum::serve(listener, Router::new().route("/bare/{name}", post(answer))).await.expect("it serves");
}

/// A request to it.
pub(crate) fn request(name: &str) -> Vec<u8> {
    post_request(&format!("/bare/{name}"), r#"{"owner_id":"worker-7","ttl_ms":30000}"#)
}
