//! `POST /v1/locks/{name}/release`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use leasehold::backend::{Release, Released};
use leasehold::{Fence, wire};

use super::{Answer, finish};
use crate::app::App;
use crate::extract;
use crate::gate::{Caller, Told};
use crate::problem::{Refusal, json};
use crate::token::Verb;

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
    told.said(body.owner_id.as_deref(), body.fencing_token);
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
