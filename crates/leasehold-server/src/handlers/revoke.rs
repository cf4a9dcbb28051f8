//! Operator routes: `POST /v1/locks/{name}/revoke` and `/v1/sweep`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use leasehold::backend::Query;
use leasehold::{Fence, Name, wire};
use tokio::sync::oneshot;

use super::renew::no_answer;
use super::{Answer, finish};
use crate::app::App;
use crate::extract;
use crate::middleware::{Caller, Operation, Record};
use crate::problem::{Refusal, json};
use crate::token::Verb;

/// Revoking a name with at most this many holders records whose leases ended. More holders are revoked in one step.
const FEW: usize = 8;

/// Revokes in a task of its own, because a revocation that took effect must be logged and remembered, also if the
/// client leaves before the answer.
pub(crate) async fn revoke(State(app): State<Arc<App>>, mut request: Request<Body>) -> Response<Body> {
    let record = Record::of(&mut request);
    let (tell, answer) = oneshot::channel();
    let asking = Arc::clone(&app);
    app.go_on_with(async move {
        let mut operation = Operation::new("revoke");
        let answer = revoke_one(&asking, request, &mut operation).await;
        let response = record.conclude_early(&asking, finish(operation, answer));
        // If the client has left, nobody reads it.
        let _ = tell.send(response);
    });
    answer.await.unwrap_or_else(|_| Refusal::from(no_answer()).response())
}

async fn revoke_one(app: &App, mut request: Request<Body>, operation: &mut Operation) -> Answer {
    let caller = Caller::of(&mut request);
    let name = extract::name(app, request.uri())?;
    operation.name(&name);
    caller.may(Verb::Admin, name.as_str())?;
    let body: wire::Revoke = extract::body(app, request).await?;
    let revoke = |only| app.ask("revoke", app.backend.revoke(&name, body.now, only));
    let mut revoked = 0;
    if let Some(fence) = body.fencing_token.map(Fence::new) {
        operation.said(None, Some(fence.get()));
        revoked = revoke(Some(fence)).await?.leases;
        if revoked == 0 {
            return Err(Refusal::holder_changed());
        }
        operation.revoked(fence);
    } else {
        // Each by its fence, so that the history knows for certain whose leases they were.
        for fence in few_holders(app, &name).await {
            let leases = revoke(Some(fence)).await?.leases;
            if leases > 0 {
                operation.revoked(fence);
            }
            revoked += leases;
        }
        // Many holders, or without fences, or none of those that were seen is left.
        if revoked == 0 {
            revoked = revoke(None).await?.leases;
            if revoked > 0 {
                operation.revoked(Fence::UNFENCED);
            }
        }
    }
    Ok(json(StatusCode::OK, &wire::Revoked { revoked, lock_name: name.as_str().into() }))
}

/// The fences of a name's holders, if all of them are known and they are few. Otherwise none: with many holders, one
/// call for each would take too long, and clients that come meanwhile would be hit too.
async fn few_holders(app: &App, name: &Name) -> Vec<Fence> {
    let page = app.ask("inspect", app.backend.inspect(&Query::Name(name.clone()))).await;
    let Some(info) = page.ok().and_then(|page| page.items.into_iter().next()) else { return Vec::new() };
    let mut fences: Vec<Fence> = info.holders.iter().map(|holder| holder.grant.fence).collect();
    if info.holder_count > fences.len() as u64 || fences.len() > FEW || fences.contains(&Fence::UNFENCED) {
        return Vec::new();
    }
    // Readers that a quorum let in at the same moment share a fence.
    fences.dedup();
    fences
}

/// `POST /v1/sweep`: asks the store to sweep now. Never needed for correctness.
pub(crate) async fn sweep(State(app): State<Arc<App>>, mut request: Request<Body>) -> Response<Body> {
    let operation = Operation::new("sweep");
    let caller = Caller::of(&mut request);
    let answer = async {
        caller.may(Verb::Admin, "")?;
        let _: wire::NoFields = extract::body(&app, request).await?;
        let swept = crate::sweep::once(&app).await?;
        let body = wire::Swept {
            expired: swept.expired,
            tickets: swept.tickets,
            counters: swept.counters,
            held: swept.held,
            waiting: swept.waiting,
        };
        Ok(json(StatusCode::OK, &body))
    };
    let answer = answer.await;
    finish(operation, answer)
}
