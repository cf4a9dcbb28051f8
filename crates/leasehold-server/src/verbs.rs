//! Renewing, releasing, revoking, sweeping.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use leasehold::backend::{Gone, Grant, Release, Released, Renewal, Renewed};
use leasehold::wire::{self, floor_ms, mode_fields};
use leasehold::{Error, ErrorKind, Fence, Name};

use crate::app::App;
use crate::gate::{Caller, Told};
use crate::problem::{Refusal, json};
use crate::reading;
use crate::token::Verb;

type Answer = Result<Response<Body>, Refusal>;

fn finish(mut told: Told, answer: Answer) -> Response<Body> {
    let response = answer.unwrap_or_else(|refusal| {
        told.refused(&refusal);
        refusal.response()
    });
    told.onto(response)
}

pub(crate) async fn renew(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    let mut told = Told::new("renew");
    let answer = renew_one(&app, request, &mut told).await;
    finish(told, answer)
}

async fn renew_one(app: &App, mut request: Request<Body>, told: &mut Told) -> Answer {
    let caller = Caller::of(&mut request);
    let name = reading::name(app, request.uri())?;
    told.name(&name);
    caller.may(Verb::Acquire, name.as_str())?;
    let body: wire::Renew = reading::body(app, request).await?;
    if body.lock_name.is_some() {
        return Err(Refusal::bad("lock_name belongs into a batch; here the path says it"));
    }
    let renewal = renewal(app, name, body)?;
    told.lease(renewal.id);
    let renewed = renew_all(app, &caller, std::slice::from_ref(&renewal)).await.pop();
    let renewed = renewed.unwrap_or_else(|| Err(no_answer()))?;
    Ok(match renewed {
        Renewed::Held(grant) => {
            told.granted(grant.fence, grant.waited);
            json(StatusCode::OK, &held(&renewal.name, &grant))
        }
        Renewed::Gone(gone) => {
            told.result("fail", gone.as_str());
            json(StatusCode::GONE, &lost(&renewal.name, gone))
        }
        _ => return Err(no_answer().into()),
    })
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Internal, "the store gave no answer that this server knows")
}

async fn renew_all(app: &App, caller: &Caller, leases: &[Renewal]) -> Vec<leasehold::Result<Renewed>> {
    let late = || Error::new(ErrorKind::NetworkTimeout, "the store did not answer in time");
    let renewing = caller.renewing(leases);
    let answers = app.ask("renew", async { Ok(app.backend.renew(leases).await) }).await;
    let answers = answers.unwrap_or_else(|_| leases.iter().map(|_| Err(late())).collect());
    renewing.answered(&answers);
    answers
}

fn renewal(app: &App, name: Name, body: wire::Renew) -> Result<Renewal, Refusal> {
    let id = wire::lease_id(&body.lease_id)?;
    let mut renewal = Renewal::new(name, id, app.ttl("extend_by_ms", body.extend_by_ms)?);
    renewal.owner = body.owner_id.map(Into::into);
    renewal.fence = body.fencing_token.map(Fence::new);
    renewal.shorten = body.shorten;
    renewal.raise_fence = body.raise_fencing_token.map(Fence::new);
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

fn lost(name: &Name, gone: Gone) -> wire::LeaseGone {
    wire::LeaseGone {
        acquired: None,
        renewed: Some(false),
        lock_name: name.as_str().into(),
        reason: "NOT_OWNER_OR_EXPIRED".into(),
        gone: gone.as_str().into(),
        error: "the lease is gone; stop work that needs it".into(),
        code: wire::code(ErrorKind::Lost).into(),
        retryable: false,
    }
}

/// `POST /v1/renew`: each of the batch is answered as it would be alone, with its status.
pub(crate) async fn renew_many(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    let mut told = Told::new("renew");
    let answer = renew_batch(&app, request, &mut told).await;
    finish(told, answer)
}

async fn renew_batch(app: &App, mut request: Request<Body>, told: &mut Told) -> Answer {
    let caller = Caller::of(&mut request);
    let body: wire::RenewMany = reading::body(app, request).await?;
    if body.leases.is_empty() || body.leases.len() > wire::MAX_BATCH {
        return Err(Refusal::bad(format!("leases must have 1 to {} items", wire::MAX_BATCH)));
    }
    let mut renewals = Vec::with_capacity(body.leases.len());
    for mut one in body.leases {
        let name = one.lock_name.take().ok_or_else(|| Refusal::bad("lock_name required"))?;
        let name = app.name(&name)?;
        caller.may(Verb::Acquire, name.as_str())?;
        renewals.push(renewal(app, name, one)?);
    }
    let mut answers = renew_all(app, &caller, &renewals).await.into_iter();
    let mut results = Vec::with_capacity(renewals.len());
    for renewal in &renewals {
        results.push(match answers.next().unwrap_or_else(|| Err(no_answer())) {
            Ok(Renewed::Held(grant)) => {
                app.metrics.renewed_in_batch("success");
                with_status(200, &held(&renewal.name, &grant))
            }
            Ok(Renewed::Gone(gone)) => {
                app.metrics.renewed_in_batch("fail");
                with_status(410, &lost(&renewal.name, gone))
            }
            Ok(_) => with_status(500, &problem(no_answer())),
            Err(error) => {
                let busy = error.kind() == ErrorKind::Busy;
                app.metrics.renewed_in_batch(if busy { "busy" } else { "fail" });
                let problem = problem(error);
                with_status(problem.status, &problem)
            }
        });
    }
    // Each was counted by itself.
    told.op = "renew_batch";
    Ok(json(StatusCode::OK, &serde_json::json!({ "results": results })))
}

fn problem(error: Error) -> wire::Problem {
    let refusal = Refusal::from(error);
    wire::Problem {
        kind: "about:blank".into(),
        title: refusal.status.canonical_reason().unwrap_or("Error").into(),
        status: refusal.status.as_u16(),
        detail: refusal.detail.clone(),
        error: refusal.detail,
        code: refusal.code.into(),
        retryable: refusal.retryable,
    }
}

fn with_status(status: u16, body: &impl serde::Serialize) -> serde_json::Value {
    let mut value = serde_json::to_value(body).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("status".into(), status.into());
    }
    value
}

pub(crate) async fn release(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    let mut told = Told::new("release");
    let answer = release_one(&app, request, &mut told).await;
    finish(told, answer)
}

async fn release_one(app: &App, mut request: Request<Body>, told: &mut Told) -> Answer {
    let caller = Caller::of(&mut request);
    let name = reading::name(app, request.uri())?;
    told.name(&name);
    caller.may(Verb::Acquire, name.as_str())?;
    let body: wire::Release = reading::body(app, request).await?;
    let id = wire::lease_id(&body.lease_id)?;
    told.lease(id);
    let mut release = Release::new(name.clone(), id);
    release.owner = body.owner_id.map(Into::into);
    release.fence = body.fencing_token.map(Fence::new);
    release.unanswered = match body.unanswered {
        Some(ms) => Some(app.ttl("unanswered", ms)?),
        None => None,
    };
    release.nonce = body.attempt;
    app.metrics.releasing(&name);
    let sent = Instant::now();
    let answer = app.ask("release", app.backend.release(&release)).await;
    app.metrics.released(&name, id, matches!(answer, Ok(Released::Done)));
    let released = answer?;
    caller.released(&release, sent, &released);
    let gone = match released {
        Released::Done => None,
        Released::Gone(gone) => Some(gone),
        _ => return Err(no_answer().into()),
    };
    if let Some(gone) = gone {
        told.result("fail", gone.as_str());
    }
    let reason = gone.map(|gone| if gone == Gone::Expired { "EXPIRED" } else { "NOT_OWNER" });
    let body = wire::Released {
        released: gone.is_none(),
        lock_name: name.as_str().into(),
        reason: reason.map(Into::into),
        gone: gone.map(|gone| gone.as_str().into()),
    };
    Ok(json(StatusCode::OK, &body))
}

pub(crate) async fn revoke(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    let mut told = Told::new("revoke");
    let answer = revoke_one(&app, request, &mut told).await;
    finish(told, answer)
}

async fn revoke_one(app: &App, mut request: Request<Body>, told: &mut Told) -> Answer {
    let caller = Caller::of(&mut request);
    let name = reading::name(app, request.uri())?;
    told.name(&name);
    caller.may(Verb::Admin, name.as_str())?;
    let body: wire::Revoke = reading::body(app, request).await?;
    let revoked = app.ask("revoke", app.backend.revoke(&name, body.now)).await?;
    let body = wire::Revoked { revoked: revoked.leases, lock_name: name.as_str().into() };
    Ok(json(StatusCode::OK, &body))
}

/// `POST /v1/sweep`: never needed, but a store can be told to.
pub(crate) async fn sweep(State(app): State<Arc<App>>, mut request: Request<Body>) -> Response<Body> {
    let told = Told::new("sweep");
    let caller = Caller::of(&mut request);
    let answer = async {
        caller.may(Verb::Admin, "")?;
        let _: wire::NoFields = reading::body(&app, request).await?;
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
    finish(told, answer)
}
