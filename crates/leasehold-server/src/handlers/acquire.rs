//! `POST /v1/locks/{name}/acquire`: one attempt, or a wait in the store's queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use leasehold::backend::{self, Claim, Gone, Grant, Mode};
use leasehold::engine::limits::TICKET_TTL;
use leasehold::wire::{self, floor_ms, mode_fields};
use leasehold::{MAX_METADATA_BYTES, MAX_OWNER_BYTES};

use crate::acquisition::{AcquireRequest, Detached, Outcome};
use crate::app::App;
use crate::extract;
use crate::middleware::{Caller, Operation};
use crate::problem::{Refusal, json};
use crate::token::Verb;

pub(crate) async fn acquire(State(app): State<Arc<App>>, mut request: Request<Body>) -> Response<Body> {
    let caller = Caller::of(&mut request);
    let mut operation = Operation::new("acquire");
    let response = match prepare(&app, &caller, request, &mut operation).await {
        Ok(acquire) => run(app, caller, acquire, &mut operation).await,
        Err(refusal) => {
            operation.refused(&refusal);
            refusal.response()
        }
    };
    operation.onto(response)
}

/// Checks the whole request before anything is sent to the store.
async fn prepare(
    app: &App,
    caller: &Caller,
    request: Request<Body>,
    operation: &mut Operation,
) -> Result<AcquireRequest, Refusal> {
    let name = extract::name(app, request.uri())?;
    operation.name(&name);
    caller.may(Verb::Acquire, name.as_str())?;
    let body: wire::Acquire = extract::body(app, request).await?;
    if body.owner_id.is_empty() {
        return Err(Refusal::bad("owner_id required"));
    }
    if body.owner_id.len() > MAX_OWNER_BYTES {
        return Err(Refusal::bad(format!("owner_id must have at most {MAX_OWNER_BYTES} bytes")));
    }
    operation.owner(&body.owner_id);
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
    operation.lease(claim.id);
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
        // Nobody else can make an attempt with an id that the server made.
        None => claim.nonce = if own_id { nonce() } else { 1 },
    }
    Ok(AcquireRequest { claim, own_id, numbered, wait, keep })
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

/// A random attempt number. 53 bits, so that every store can keep it exactly.
fn nonce() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness there would be no lease ids either.
    let _ = getrandom::fill(&mut bytes);
    (u64::from_le_bytes(bytes) >> 11).max(1)
}

async fn run(
    app: Arc<App>,
    caller: Caller,
    request: AcquireRequest,
    operation: &mut Operation,
) -> Response<Body> {
    let waits = !request.wait.is_zero();
    let share = match caller.share(&request.claim, waits) {
        Ok(share) => share,
        Err(refusal) => {
            operation.refused(&refusal);
            return refusal.response();
        }
    };
    let (claim, asked) = (request.claim.clone(), Instant::now());
    match Detached::new(Arc::clone(&app), request, share).await {
        Outcome::Granted(grant) => {
            operation.granted(grant.fence, grant.waited);
            app.metrics.granted(&claim.name, claim.id, waits.then_some((grant.waited, asked)));
            acquired(&claim, &grant)
        }
        Outcome::Busy(busy) => {
            operation.result("fail", "held");
            let reason = if waits { "WAIT_TIMEOUT" } else { "HELD" };
            held(&claim, reason, &busy)
        }
        Outcome::Gone(gone) => {
            operation.result("fail", gone.as_str());
            superseded(&claim, gone)
        }
        Outcome::Failed(error) if error.kind() == leasehold::ErrorKind::Overloaded => {
            operation.result("busy", "store overloaded");
            held(&claim, "BUSY_RETRY", &backend::Busy::unknown())
        }
        Outcome::Failed(error) => {
            let refusal = Refusal::from(error);
            operation.refused(&refusal);
            refusal.response()
        }
        Outcome::Barred(refusal) => {
            operation.refused(&refusal);
            refusal.response()
        }
        Outcome::Draining | Outcome::Vanished => {
            let refusal = Refusal::draining();
            operation.refused(&refusal);
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

/// When to try again: after a quarter of the time left, within bounds; after 50 ms if the store is busy.
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
        "WAIT_TIMEOUT" => "another client held the lock for all of `wait_ms`; try again",
        _ => "another client holds the lock; try again",
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
