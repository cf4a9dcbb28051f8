//! Operator routes: `POST /v1/locks/{name}/revoke` and `/v1/sweep`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use leasehold::backend::Query;
use leasehold::{Fence, Name, wire};

use super::{Answer, finish};
use crate::app::App;
use crate::extract;
use crate::middleware::{Caller, Operation};
use crate::problem::{Refusal, json};
use crate::token::Verb;

pub(crate) async fn revoke(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    let mut operation = Operation::new("revoke");
    let answer = revoke_one(&app, request, &mut operation).await;
    finish(operation, answer)
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
        let (fences, are_all) = holders(app, &name).await;
        // Each by its fence, so that the history knows for certain whose leases they were.
        for fence in fences {
            let leases = revoke(Some(fence)).await?.leases;
            if leases > 0 {
                operation.revoked(fence);
            }
            revoked += leases;
        }
        // More holders than are shown, without fences, or none of those that were seen is left.
        if !are_all || revoked == 0 {
            let leases = revoke(None).await?.leases;
            if leases > 0 {
                operation.revoked(Fence::UNFENCED);
            }
            revoked += leases;
        }
    }
    Ok(json(StatusCode::OK, &wire::Revoked { revoked, lock_name: name.as_str().into() }))
}

/// The fences of a name's holders, as far as they are shown, and whether these are all of them.
async fn holders(app: &App, name: &Name) -> (Vec<Fence>, bool) {
    let page = app.ask("inspect", app.backend.inspect(&Query::Name(name.clone()))).await;
    let Some(info) = page.ok().and_then(|page| page.items.into_iter().next()) else {
        return (Vec::new(), false);
    };
    let mut fences: Vec<Fence> = info.holders.iter().map(|holder| holder.grant.fence).collect();
    fences.retain(|fence| *fence != Fence::UNFENCED);
    // Readers that a quorum let in at the same moment share a fence.
    fences.dedup();
    let are_all = info.holders.len() as u64 >= info.holder_count
        && info.holders.iter().all(|holder| holder.grant.fence != Fence::UNFENCED);
    (fences, are_all)
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
