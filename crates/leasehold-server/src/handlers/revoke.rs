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
    let leases = if let Some(fence) = body.fencing_token {
        operation.said(None, Some(fence));
        match revoke(Some(Fence::new(fence))).await?.leases {
            0 => return Err(Refusal::holder_changed()),
            leases => leases,
        }
    } else {
        match only_holder(app, &name).await {
            // Revoke by fence, so that the history knows for certain whose lease it was.
            Some(fence) if revoke(Some(fence)).await?.leases == 1 => {
                operation.said(None, Some(fence.get()));
                1
            }
            _ => revoke(None).await?.leases,
        }
    };
    Ok(json(StatusCode::OK, &wire::Revoked { revoked: leases, lock_name: name.as_str().into() }))
}

/// The fence of a name's holder, if it has exactly one.
async fn only_holder(app: &App, name: &Name) -> Option<Fence> {
    let page = app.ask("inspect", app.backend.inspect(&Query::Name(name.clone()))).await.ok()?;
    let [holder] = &page.items.first()?.holders[..] else { return None };
    Some(holder.grant.fence).filter(|fence| *fence != Fence::UNFENCED)
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
