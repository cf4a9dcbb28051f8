//! `POST /v1/locks/{name}/release`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use leasehold::backend::{Gone, Release, Released};
use leasehold::{Fence, wire};

use super::renew::no_answer;
use super::{Answer, finish};
use crate::app::App;
use crate::extract;
use crate::middleware::{Caller, Operation};
use crate::problem::json;
use crate::token::Verb;

pub(crate) async fn release(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    let mut operation = Operation::new("release");
    let answer = release_one(&app, request, &mut operation).await;
    finish(operation, answer)
}

async fn release_one(app: &App, mut request: Request<Body>, operation: &mut Operation) -> Answer {
    let caller = Caller::of(&mut request);
    let name = extract::name(app, request.uri())?;
    operation.name(&name);
    caller.may(Verb::Acquire, name.as_str())?;
    let body: wire::Release = extract::body(app, request).await?;
    let id = wire::lease_id(&body.lease_id)?;
    operation.lease(id);
    operation.said(body.owner_id.as_deref(), body.fencing_token);
    let mut release = Release::new(name.clone(), id);
    release.owner = body.owner_id.map(Into::into);
    release.fence = body.fencing_token.map(Fence::new);
    release.unanswered = match body.unanswered {
        Some(ms) => Some(app.ttl("unanswered", ms)?),
        None => None,
    };
    release.nonce = body.attempt;
    release.note = wire::note_of(body.note, body.note_revision)?;
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
        operation.result("fail", gone.as_str());
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
