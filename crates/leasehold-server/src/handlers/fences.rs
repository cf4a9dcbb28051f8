//! `POST /v1/fences/{resource}/check`: compares a fence with the highest that the resource has seen.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use leasehold::{Checked, Fence, StaleFence, WriteFence, wire};

use super::{Answer, finish};
use crate::app::App;
use crate::extract;
use crate::middleware::{Caller, Operation};
use crate::problem::{Refusal, json};
use crate::token::Verb;

/// How far ahead of this server's clock a fence may be. One request with a far higher one would lock all writers out
/// for ever; clocks differ by less, and no holder can raise a fence further.
const AHEAD_MICROS: u64 = 24 * 3600 * 1_000_000;

pub(crate) async fn check(State(app): State<Arc<App>>, mut request: Request<Body>) -> Response<Body> {
    let mut operation = Operation::new("check_fence");
    let caller = Caller::of(&mut request);
    let answer = check_one(&app, &caller, request, &mut operation).await;
    finish(operation, answer)
}

async fn check_one(app: &App, caller: &Caller, request: Request<Body>, operation: &mut Operation) -> Answer {
    // Resources are names: the same rules, the same namespace, the same scopes.
    let resource = extract::name(app, request.uri())?;
    operation.name(&resource);
    // It changes what later writers may do, so a token that may only read is not enough.
    caller.may(Verb::Acquire, resource.as_str())?;
    let body: wire::CheckFence = extract::body(app, request).await?;
    operation.said(None, Some(body.fencing_token));
    let fence = Fence::new(body.fencing_token);
    if fence > Fence::at(app.clock.wall_micros().saturating_add(AHEAD_MICROS)) && fence <= Fence::MAX {
        return Err(Refusal::bad(
            "fencing_token is more than a day ahead of this server's clock; no store gives such a fence, unless a clock \
             is wrong",
        ));
    }
    let fence = WriteFence::received(fence)?;
    let marks = app.locks.marks()?;
    let checked = app.ask("check_fence", marks.check(&resource, fence)).await?;
    if let Checked::Stale(stale) = checked {
        return Ok(refused(resource.as_str(), &stale, operation));
    }
    let body = wire::FenceCurrent {
        current: true,
        resource: resource.as_str().into(),
        fencing_token: fence.get().get(),
    };
    Ok(json(StatusCode::OK, &body))
}

fn refused(resource: &str, stale: &StaleFence, operation: &mut Operation) -> Response<Body> {
    let detail = "the fence is stale: the resource has seen a higher one; the writer has lost its lock";
    let refusal = Refusal::new(StatusCode::CONFLICT, wire::STALE_FENCE, detail);
    operation.refused(&refusal);
    refusal.response_with(&wire::FenceStale {
        current: false,
        resource: resource.into(),
        fencing_token: stale.fence.get(),
        highest_fencing_token: stale.highest.get(),
        problem: refusal.problem(),
    })
}
