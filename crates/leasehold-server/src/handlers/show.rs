//! Read-only routes: `GET /v1/locks`, one lock, its history, and `POST /v1/leases/lookup`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold::backend::{HolderInfo, NameInfo, Query, WaiterInfo};
use leasehold::wire::{self, floor_ms, mode_fields};
use leasehold::{LeaseId, Name};

use super::respond;
use crate::app::App;
use crate::extract;
use crate::history::Recent;
use crate::middleware::Caller;
use crate::problem::{Refusal, json};
use crate::token::Verb;

/// Names per page: the default and the maximum.
const PAGE: usize = 100;
const MAX_PAGE: usize = 1000;

pub(crate) async fn lock(State(app): State<Arc<App>>, mut request: Request<Body>) -> Response<Body> {
    let (caller, uri) = (Caller::of(&mut request), request.uri().clone());
    let answer = async {
        let name = extract::name(&app, &uri)?;
        caller.may(Verb::Read, name.as_str())?;
        let page = app.ask("inspect", app.backend.inspect(&Query::Name(name.clone()))).await?;
        let info = page.items.into_iter().next().unwrap_or_else(|| NameInfo::unused(name));
        Ok(json(StatusCode::OK, &shown(&app, &info)))
    };
    respond(answer.await)
}

pub(crate) async fn list(State(app): State<Arc<App>>, mut request: Request<Body>) -> Response<Body> {
    let (caller, uri) = (Caller::of(&mut request), request.uri().clone());
    let answer = async {
        let (mut prefix, mut limit, mut cursor) = (String::new(), PAGE, None);
        for (key, value) in extract::query(&uri)? {
            match key.as_str() {
                "prefix" => prefix = value,
                "limit" => {
                    let number = value.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
                    limit =
                        number.ok_or_else(|| Refusal::bad(format!("limit must be in [1, {MAX_PAGE}]")))?;
                }
                "cursor" => cursor = Some(value),
                _ => return Err(Refusal::bad("the query may have prefix, limit and cursor")),
            }
        }
        let stored = |prefix: &str| Name::stored_prefix(&app.settings.namespace, prefix);
        // Scopes apply to stored names, and the requested prefix may differ from its stored form.
        let asked = stored(&prefix)?.split_off(stored("")?.len());
        let stored = stored(&caller.readable(asked)?)?;
        let cursor = cursor.as_deref().map(opened).transpose()?;
        let page = app.ask("inspect", app.backend.inspect(&Query::Prefix { stored, limit, cursor })).await?;
        let next_cursor = page.next.map(|cursor| URL_SAFE_NO_PAD.encode(cursor));
        let locks = page.items.iter().map(|info| shown(&app, info)).collect();
        let body = wire::Listed { locks, next_cursor, age_ms: page.age.map(floor_ms) };
        Ok(json(StatusCode::OK, &body))
    };
    respond(answer.await)
}

/// The store's own cursor, which may be any text, decoded from its form in the URL.
fn opened(cursor: &str) -> Result<String, Refusal> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    let foreign = || Refusal::bad("cursor must be the next_cursor of a page");
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(foreign)
}

pub(crate) async fn lookup(State(app): State<Arc<App>>, mut request: Request<Body>) -> Response<Body> {
    let caller = Caller::of(&mut request);
    let answer = async {
        let body: wire::Lookup = extract::body(&app, request).await?;
        let id = wire::lease_id(&body.lease_id)?;
        if !app.info.find_by_id {
            let detail = "the store cannot find a lease by its id";
            return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "UNSUPPORTED", detail));
        }
        let page = app.ask("inspect", app.backend.inspect(&Query::LeaseId(id))).await?;
        let may = |verb, info: &NameInfo| caller.may(verb, info.name.as_str()).is_ok();
        // A client that has the id and may acquire owns the lease, and may see it. To see the lock, it needs the read
        // permission.
        let mine = |info: &NameInfo| {
            *info.name.namespace() == *app.settings.namespace
                && (may(Verb::Read, info) || may(Verb::Acquire, info))
        };
        let mut info = page.items.into_iter().find(mine);
        let state = info.as_ref().map(|info| {
            if info.holders.iter().any(|holder| holder.id == id) { "held" } else { "waiting" }.to_owned()
        });
        // A store that shows digests still shows the id to a client that asks by that id.
        if let Some(info) = info.as_mut().filter(|_| !app.info.shows_ids) {
            info.holders.iter_mut().filter(|one| one.id == id).for_each(|one| one.id = id.digest());
            info.waiters.iter_mut().filter(|one| one.id == id).for_each(|one| one.id = id.digest());
        }
        let body = wire::Found {
            found: info.is_some(),
            state,
            lock: info.as_ref().filter(|info| may(Verb::Read, info)).map(|info| shown(&app, info)),
        };
        Ok(json(StatusCode::OK, &body))
    };
    respond(answer.await)
}

/// `GET /v1/locks/{name}/history`
pub(crate) async fn history(State(app): State<Arc<App>>, mut request: Request<Body>) -> Response<Body> {
    let caller = Caller::of(&mut request);
    let answer = || {
        let name = extract::name(&app, request.uri())?;
        caller.may(Verb::Read, name.as_str())?;
        let body = Recent { lock_name: name.as_str().into(), events: app.history.recent(&name) };
        Ok(json(StatusCode::OK, &body))
    };
    answer().unwrap_or_else(Refusal::response)
}

/// What a client may see of a name: everything but lease ids.
fn shown(app: &App, info: &NameInfo) -> wire::Lock {
    let first = info.holders.first();
    wire::Lock {
        lock_name: info.name.as_str().into(),
        held: first.is_some(),
        owner_id: first.map(|holder| holder.owner.to_string()),
        fencing_token: first.map_or(info.last_fence, |holder| holder.grant.fence).get(),
        lease_expiry_ms: first.and_then(|holder| holder.grant.expires_at_ms),
        version: info.version,
        last_fencing_token: info.last_fence.get(),
        note: info.note.as_ref().map(|note| wire::Note {
            text: note.text.to_string(),
            fencing_token: note.fence.get(),
            revision: note.revision,
        }),
        holders: info.holders.iter().map(|one| holder(app, one)).collect(),
        holder_count: info.holder_count,
        waiters: info.waiters.iter().map(|one| waiter(app, one)).collect(),
        queue_length: info.queue_length,
    }
}

/// The digest that stands for a lease id. Some stores show only that.
fn digest(app: &App, id: &LeaseId) -> String {
    let digest = if app.info.shows_ids { id.digest() } else { *id };
    digest.expose().to_owned()
}

fn holder(app: &App, holder: &HolderInfo) -> wire::Holder {
    let grant = &holder.grant;
    let (mode, limit) = mode_fields(grant.mode);
    wire::Holder {
        lease_digest: digest(app, &holder.id),
        owner_id: holder.owner.to_string(),
        mode,
        limit,
        fencing_token: grant.fence.get(),
        expires_in_ms: grant.left.map(floor_ms),
        lease_expiry_ms: grant.expires_at_ms,
        acquired_at_ms: grant.acquired_at_ms,
        renewals: grant.renewals,
        metadata: holder.metadata.as_ref().map(|text| text.to_string()),
        revoked: holder.revoked,
    }
}

fn waiter(app: &App, waiter: &WaiterInfo) -> wire::Waiter {
    let (mode, limit) = mode_fields(waiter.mode);
    wire::Waiter {
        lease_digest: digest(app, &waiter.id),
        owner_id: waiter.owner.to_string(),
        mode,
        limit,
        waited_ms: floor_ms(waiter.waited),
    }
}
