//! `POST /v1/locks/{name}/acquire`: one attempt, or a wait in the store's queue, for a client that may vanish.
//!
//! What the store is asked is never cut off half way: when the client goes before its answer begins, the work
//! goes on without it to where it can be seen what it got, and gives that back. Every request is an attempt with
//! a number of its own (promise 9), so it never takes away what the same client, come back with the same lease
//! id, has got meanwhile; and it gives back only what it got itself, never a lease that was there before.

mod taking;
mod turn;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use leasehold::backend::{self, Claim, Gone, Grant, Mode};
use leasehold::wire::{self, floor_ms, mode_fields};
use leasehold::{Cancel, MAX_METADATA_BYTES, MAX_OWNER_BYTES};

use crate::app::App;
use crate::gate::{Caller, Told};
use crate::problem::{Refusal, json};
use crate::reading;
use crate::token::{Share, Verb};

use taking::{Outcome, Taking};
pub(crate) use turn::Turns;

/// How long a place is kept without a sign of life, as in the library's own wait loop.
const TICKET_TTL: Duration = Duration::from_secs(10);

/// What is asked for, checked.
#[derive(Debug)]
struct Asked {
    claim: Claim,
    /// The client made the lease id, so it can come back with it.
    own_id: bool,
    /// The client numbers its attempts by itself.
    numbered: bool,
    wait: Duration,
    /// How long the place is kept after an answer that grants nothing.
    keep: Option<Duration>,
}

pub(crate) async fn route(State(app): State<Arc<App>>, mut request: Request<Body>) -> Response<Body> {
    let caller = Caller::of(&mut request);
    let mut told = Told::new("acquire");
    let response = match prepare(&app, &caller, request, &mut told).await {
        Ok(asked) => take(app, caller, asked, &mut told).await,
        Err(refusal) => {
            told.refused(&refusal);
            refusal.response()
        }
    };
    told.onto(response)
}

/// Checks everything before anything is sent.
async fn prepare(
    app: &App,
    caller: &Caller,
    request: Request<Body>,
    told: &mut Told,
) -> Result<Asked, Refusal> {
    let name = reading::name(app, request.uri())?;
    told.name(&name);
    caller.may(Verb::Acquire, name.as_str())?;
    let body: wire::Acquire = reading::body(app, request).await?;
    if body.owner_id.is_empty() {
        return Err(Refusal::bad("owner_id required"));
    }
    if body.owner_id.len() > MAX_OWNER_BYTES {
        return Err(Refusal::bad(format!("owner_id must have at most {MAX_OWNER_BYTES} bytes")));
    }
    told.owner(&body.owner_id);
    if body.metadata.as_ref().is_some_and(|text| text.len() > MAX_METADATA_BYTES) {
        return Err(Refusal::bad(format!("metadata must have at most {MAX_METADATA_BYTES} bytes")));
    }
    let ttl = app.ttl("ttl_ms", body.ttl_ms)?;
    let mode = wire::mode_of(body.mode.unwrap_or(wire::ModeName::Exclusive), body.limit)?;
    check_mode(app, mode)?;
    let wait_ms = body.wait_ms.unwrap_or(0);
    if wait_ms > wire::MAX_WAIT_MS {
        let most = wire::MAX_WAIT_MS;
        return Err(Refusal::bad(format!(
            "wait_ms must be at most {most}; to wait longer, repeat the call with a lease_id of your own"
        )));
    }
    let wait = Duration::from_millis(wait_ms);
    let mut claim = Claim::new(name, mode, ttl, body.owner_id);
    claim.metadata = body.metadata.map(Into::into);
    claim.repeat = body.repeat;
    let own_id = match body.lease_id {
        Some(text) => {
            claim.id = wire::lease_id(&text)?;
            true
        }
        None if body.repeat || body.attempt.is_some() || body.queue.is_some_and(|keep| keep > 0) => {
            return Err(Refusal::bad("repeat, attempt and queue need a lease_id of the client's own"));
        }
        None => false,
    };
    told.lease(claim.id);
    let keep = match body.queue {
        Some(0) => None,
        Some(keep) => Some(Duration::from_millis(keep).min(app.max_ttl())),
        None => (own_id && !wait.is_zero()).then_some(TICKET_TTL),
    };
    if app.info.fifo && (keep.is_some() || !wait.is_zero()) {
        claim.queue = Some(keep.unwrap_or(TICKET_TTL));
    }
    let numbered = body.attempt.is_some();
    match body.attempt {
        Some(attempt) => (claim.nonce, claim.first) = (attempt, body.first.unwrap_or(true)),
        // Nobody else can make an attempt with an id that was made here.
        None => claim.nonce = if own_id { nonce() } else { 1 },
    }
    Ok(Asked { claim, own_id, numbered, wait, keep })
}

fn check_mode(app: &App, mode: Mode) -> Result<(), Refusal> {
    let unsupported = |what: &str| Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "UNSUPPORTED", what));
    match mode {
        Mode::Shared if !app.info.shared => unsupported("the store has no shared locks"),
        Mode::Permit { .. } if app.info.max_permits == 0 => unsupported("the store has no permits"),
        Mode::Permit { limit } if limit > app.info.max_permits => {
            Err(Refusal::bad(format!("limit must be at most {}", app.info.max_permits)))
        }
        _ => Ok(()),
    }
}

/// A number no other attempt has. 53 bits, so that any store can keep it exactly.
fn nonce() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness there are no lease ids either.
    let _ = getrandom::fill(&mut bytes);
    (u64::from_le_bytes(bytes) >> 11).max(1)
}

async fn take(app: Arc<App>, caller: Caller, asked: Asked, told: &mut Told) -> Response<Body> {
    let waits = !asked.wait.is_zero();
    let share = match caller.share(&asked.claim, waits) {
        Ok(share) => share,
        Err(refusal) => {
            told.refused(&refusal);
            return refusal.response();
        }
    };
    let shown = (asked.claim.clone(), asked.wait);
    let outcome = Handed::over(app.clone(), asked, share).await;
    let (claim, wait) = shown;
    match outcome {
        Outcome::Granted(grant) => {
            told.granted(grant.fence, grant.waited);
            app.metrics.granted(&claim.name, claim.id, waits.then_some(grant.waited));
            acquired(&claim, &grant)
        }
        Outcome::Busy(busy) => {
            told.result("fail", "held");
            let reason = if wait.is_zero() { "HELD" } else { "WAIT_TIMEOUT" };
            held(&claim, reason, &busy)
        }
        Outcome::Gone(gone) => {
            told.result("fail", gone.as_str());
            superseded(&claim, gone)
        }
        Outcome::Failed(error) if error.kind() == leasehold::ErrorKind::Overloaded => {
            told.result("busy", "store overloaded");
            held(&claim, "BUSY_RETRY", &backend::Busy::unknown())
        }
        Outcome::Failed(error) => {
            let refusal = Refusal::from(error);
            told.refused(&refusal);
            refusal.response()
        }
        Outcome::Barred(refusal) => {
            told.refused(&refusal);
            refusal.response()
        }
        Outcome::Draining | Outcome::Left => {
            let refusal = Refusal::draining();
            told.refused(&refusal);
            refusal.response()
        }
    }
}

fn acquired(claim: &Claim, grant: &Grant) -> Response<Body> {
    let (mode, limit) = mode_fields(grant.mode);
    let body = wire::Acquired {
        acquired: true,
        lock_name: claim.name.as_str().into(),
        mode,
        limit,
        owner_id: claim.owner.to_string(),
        lease_id: claim.id.expose().into(),
        fencing_token: grant.fence.get(),
        ttl_ms: floor_ms(claim.ttl),
        expires_in_ms: floor_ms(grant.left.unwrap_or_default()),
        lease_expiry_ms: grant.expires_at_ms.unwrap_or_default(),
        waited_ms: floor_ms(grant.waited),
        renewals: grant.renewals,
        acquired_at_ms: grant.acquired_at_ms,
    };
    json(StatusCode::OK, &body)
}

/// The source document's rule: a quarter of the time that is left, within bounds; a busy store 50.
fn recommended_retry_ms(busy: &backend::Busy, reason: &str) -> u64 {
    match (reason, busy.holder_left) {
        ("BUSY_RETRY", _) => 50,
        (_, Some(left)) => (floor_ms(left) / 4).clamp(25, 1000),
        (_, None) => 25,
    }
}

fn held(claim: &Claim, reason: &'static str, busy: &backend::Busy) -> Response<Body> {
    let left = busy.holder_left.map(floor_ms);
    let retry = recommended_retry_ms(busy, reason);
    let error = match reason {
        "BUSY_RETRY" => "the store is busy; try again soon",
        "WAIT_TIMEOUT" => "somebody else held the lock for all of wait_ms; try again",
        _ => "somebody else holds the lock; try again",
    };
    let refusal = Refusal {
        retryable: true,
        retry_after_ms: Some(retry),
        ..Refusal::new(StatusCode::CONFLICT, reason, error)
    };
    refusal.response_with(&wire::Busy {
        acquired: false,
        lock_name: claim.name.as_str().into(),
        reason: reason.into(),
        current_owner_id: busy.owner.as_ref().map(|owner| owner.to_string()),
        current_expiry_ms: left.map(|left| unix_ms().saturating_add(left)),
        current_expires_in_ms: left,
        queue_length: busy.queue_length,
        queue_place: busy.place,
        recommended_retry_ms: retry,
        problem: refusal.problem(),
    })
}

fn superseded(claim: &Claim, gone: Gone) -> Response<Body> {
    let error = "this lease_id was given up or taken over by a newer call; use a new one";
    let refusal = Refusal::new(StatusCode::GONE, "SUPERSEDED", error);
    refusal.response_with(&wire::LeaseGone {
        acquired: Some(false),
        renewed: None,
        lock_name: claim.name.as_str().into(),
        reason: refusal.code.into(),
        gone: gone.as_str().into(),
        problem: refusal.problem(),
    })
}

fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, floor_ms)
}

/// The work of one request, which goes on by itself when the client has gone.
struct Handed {
    app: Arc<App>,
    work: Option<Pin<Box<dyn Future<Output = Outcome> + Send>>>,
    gone: Cancel,
}

impl Handed {
    fn over(app: Arc<App>, asked: Asked, share: Option<Share>) -> Self {
        let gone = Cancel::new();
        let work = Taking::new(Arc::clone(&app), asked, share, gone.clone()).run();
        Handed { app, work: Some(Box::pin(work)), gone }
    }
}

impl Future for Handed {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Some(work) = &mut self.work else { return Poll::Ready(Outcome::Left) };
        let outcome = work.as_mut().poll(cx);
        if outcome.is_ready() {
            self.work = None;
        }
        outcome
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.gone.cancel();
            self.app.go_on_with(async { drop(work.await) });
        }
    }
}
