//! `POST /v1/locks/{name}/renew` and `/v1/renew`: one lease, or many.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use leasehold::backend::{Gone, Grant, Renewal, Renewed};
use leasehold::wire::{self, floor_ms, mode_fields};
use leasehold::{Error, ErrorKind, Fence, Name};
use serde_json::value::RawValue;

use super::{Answer, finish};
use crate::app::App;
use crate::extract;
use crate::middleware::{Caller, Operation, Operations};
use crate::problem::{Refusal, json};
use crate::token::Verb;

pub(crate) async fn renew(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    let mut operation = Operation::new("renew");
    let answer = renew_one(&app, request, &mut operation).await;
    finish(operation, answer)
}

async fn renew_one(app: &App, mut request: Request<Body>, operation: &mut Operation) -> Answer {
    let caller = Caller::of(&mut request);
    let name = extract::name(app, request.uri())?;
    operation.name(&name);
    caller.may(Verb::Acquire, name.as_str())?;
    let body: wire::Renew = extract::body(app, request).await?;
    if body.lock_name.is_some() {
        return Err(Refusal::bad(
            "`lock_name` is only valid in a batch; on this route the name comes from the path",
        ));
    }
    let renewal = renewal(app, name, body, operation)?;
    let renewed = renew_all(app, &caller, std::slice::from_ref(&renewal)).await.pop();
    Ok(match fate(&renewal, renewed, operation)? {
        Fate::Held(held) => json(StatusCode::OK, &held),
        Fate::Lost(refusal, lost) => refusal.response_with(&lost),
    })
}

/// The outcome of a renewal that the store answered.
enum Fate {
    Held(wire::Renewed),
    Lost(Refusal, wire::LeaseGone),
}

fn fate(
    renewal: &Renewal,
    answer: Option<leasehold::Result<Renewed>>,
    operation: &mut Operation,
) -> Result<Fate, Refusal> {
    match answer.unwrap_or_else(|| Err(no_answer()))? {
        Renewed::Held(grant) => {
            operation.granted(grant.fence, grant.waited);
            Ok(Fate::Held(held(&renewal.name, &grant)))
        }
        Renewed::Gone(gone) => {
            operation.result("fail", gone.as_str());
            Ok(lost(&renewal.name, gone))
        }
        _ => Err(no_answer().into()),
    }
}

pub(super) fn no_answer() -> Error {
    Error::new(ErrorKind::Internal, "the store gave an unknown answer")
}

async fn renew_all(app: &App, caller: &Caller, leases: &[Renewal]) -> Vec<leasehold::Result<Renewed>> {
    let late = || Error::new(ErrorKind::NetworkTimeout, "the store did not answer in time");
    let renewing = caller.renewing(leases);
    let answers = app.ask("renew", async { Ok(app.backend.renew(leases).await) }).await;
    let answers = answers.unwrap_or_else(|_| leases.iter().map(|_| Err(late())).collect());
    renewing.answered(&answers);
    answers
}

fn renewal(app: &App, name: Name, body: wire::Renew, operation: &mut Operation) -> Result<Renewal, Refusal> {
    let id = wire::lease_id(&body.lease_id)?;
    operation.lease(id);
    operation.said(body.owner_id.as_deref(), body.fencing_token);
    let mut renewal = Renewal::new(name, id, app.ttl("extend_by_ms", body.extend_by_ms)?);
    renewal.owner = body.owner_id.map(Into::into);
    renewal.fence = body.fencing_token.map(Fence::new);
    renewal.shorten = body.shorten;
    renewal.raise_fence = body.raise_fencing_token.map(Fence::new);
    renewal.note = wire::note_of(body.note, body.note_revision)?;
    renewal.mode = match (body.mode, body.limit) {
        (Some(mode), limit) => Some(wire::mode_of(mode, limit)?),
        (None, Some(_)) => return Err(Refusal::bad("limit goes with mode permit only")),
        (None, None) => None,
    };
    Ok(renewal)
}

fn held(name: &Name, grant: &Grant) -> wire::Renewed {
    let (mode, limit) = mode_fields(grant.mode);
    wire::Renewed {
        renewed: true,
        lock_name: name.as_str().into(),
        lease_expiry_ms: grant.expires_at_ms.unwrap_or_default(),
        expires_in_ms: floor_ms(grant.left.unwrap_or_default()),
        fencing_token: grant.fence.get(),
        mode,
        limit,
        renewals: grant.renewals,
        acquired_at_ms: grant.acquired_at_ms,
    }
}

fn lost(name: &Name, gone: Gone) -> Fate {
    let error = "the lease is gone; stop work that needs it";
    let refusal = Refusal::new(StatusCode::GONE, wire::code(ErrorKind::Lost), error);
    let body = wire::LeaseGone {
        acquired: None,
        renewed: Some(false),
        lock_name: name.as_str().into(),
        reason: "NOT_OWNER_OR_EXPIRED".into(),
        gone: gone.as_str().into(),
        problem: refusal.problem(),
    };
    Fate::Lost(refusal, body)
}

/// [`wire::RenewMany`] with its leases parsed one by one, so that an error in one does not affect the others.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch {
    leases: Vec<Box<RawValue>>,
}

/// `POST /v1/renew`: checks, answers, counts and logs each renewal of the batch as if it had come alone.
pub(crate) async fn renew_many(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    match renew_batch(&app, request).await {
        Ok((response, each)) => each.onto(response),
        Err(refusal) => finish(Operation::new("renew"), Err(refusal)),
    }
}

async fn renew_batch(app: &App, mut request: Request<Body>) -> Result<(Response<Body>, Operations), Refusal> {
    let caller = Caller::of(&mut request);
    let body: Batch = extract::body(app, request).await?;
    if body.leases.is_empty() || body.leases.len() > wire::MAX_BATCH {
        return Err(Refusal::bad(format!("leases must have 1 to {} items", wire::MAX_BATCH)));
    }
    let mut renewals = Vec::with_capacity(body.leases.len());
    let judged = body.leases.iter().map(|lease| {
        let mut operation = Operation::new("renew");
        let judged = one_of_many(app, &caller, lease, &mut operation).map(|renewal| renewals.push(renewal));
        (judged, operation)
    });
    let judged: Vec<_> = judged.collect();
    let mut answers = match &renewals[..] {
        [] => Vec::new().into_iter(),
        some => renew_all(app, &caller, some).await.into_iter(),
    };
    let (mut renewals, mut each) = (renewals.iter(), Operations::default());
    let mut results = Vec::with_capacity(judged.len());
    for (judged, mut operation) in judged {
        let fate = judged.and_then(|()| {
            let renewal = renewals.next().ok_or_else(no_answer)?;
            fate(renewal, answers.next(), &mut operation)
        });
        let (status, body) = match fate {
            Ok(Fate::Held(held)) => (StatusCode::OK, serde_json::to_value(held)),
            Ok(Fate::Lost(refusal, lost)) => (refusal.status, serde_json::to_value(lost)),
            Err(refusal) => {
                operation.refused(&refusal);
                (refusal.status, serde_json::to_value(refusal.problem()))
            }
        };
        // Our own types of strings and numbers always serialise. Errors already carry their status.
        let mut body = body.unwrap_or_default();
        body["status"] = status.as_u16().into();
        results.push(body);
        each.add(operation, status);
    }
    Ok((json(StatusCode::OK, &serde_json::json!({ "results": results })), each))
}

fn one_of_many(
    app: &App,
    caller: &Caller,
    lease: &RawValue,
    operation: &mut Operation,
) -> Result<Renewal, Refusal> {
    let mut body: wire::Renew = extract::object(lease.get().as_bytes())?;
    let name = body.lock_name.take().ok_or_else(|| Refusal::bad("lock_name required"))?;
    let name = app.name(&name)?;
    operation.name(&name);
    caller.may(Verb::Acquire, name.as_str())?;
    renewal(app, name, body, operation)
}
