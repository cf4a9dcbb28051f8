//! `/openapi.json`: made from the types that the routes read and write.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use leasehold::wire;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{Modify, OpenApi};

use crate::problem::{codes, json};

/// One function per path. utoipa reads their attributes; nothing calls them.
mod paths {
    #![allow(dead_code)]
    use leasehold::wire;

    #[utoipa::path(post, path = "/v1/locks/{name}/acquire", tag = "leases",
        params(("name" = String, Path, description = "The lock's name, percent-encoded as one segment")),
        request_body = wire::Acquire,
        responses(
            (status = 200, description = "Granted", body = wire::Acquired),
            (status = 409, description = "Another client holds it, or the store is busy: try again", body = wire::Busy, content_type = "application/problem+json"),
            (status = 410, description = "This lease_id was given up or taken over", body = wire::LeaseGone, content_type = "application/problem+json"),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
            (status = "5XX", description = "The store failed", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn acquire() {}

    #[utoipa::path(post, path = "/v1/locks/{name}/renew", tag = "leases",
        params(("name" = String, Path, description = "The lock's name")),
        request_body = wire::Renew,
        responses(
            (status = 200, description = "Still held", body = wire::Renewed),
            (status = 410, description = "Lost, for ever", body = wire::LeaseGone, content_type = "application/problem+json"),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
            (status = "5XX", description = "The store failed", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn renew() {}

    #[utoipa::path(post, path = "/v1/locks/{name}/release", tag = "leases",
        params(("name" = String, Path, description = "The lock's name")),
        request_body = wire::Release,
        responses(
            (status = 200, description = "Released, or there was nothing to release", body = wire::Released),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
            (status = "5XX", description = "The store failed", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn release() {}

    #[utoipa::path(post, path = "/v1/locks/{name}/revoke", tag = "administration",
        params(("name" = String, Path, description = "The lock's name")),
        request_body = wire::Revoke,
        responses(
            (status = 200, description = "Renewals are refused from here on", body = wire::Revoked),
            (status = "4XX", description = "Refused; 409 `HOLDER_CHANGED` if the lease with `fencing_token` is gone, and then nothing has changed", body = wire::Problem, content_type = "application/problem+json"),
            (status = "5XX", description = "The store failed", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn revoke() {}

    #[utoipa::path(post, path = "/v1/fences/{resource}/check", tag = "fences",
        params(("resource" = String, Path, description = "The name of what is protected, percent-encoded as one segment")),
        request_body = wire::CheckFence,
        responses(
            (status = 200, description = "No higher fence was seen; this one is remembered", body = wire::FenceCurrent),
            (status = 409, description = "A higher fence was seen: this writer has lost its lock", body = wire::FenceStale, content_type = "application/problem+json"),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
            (status = "5XX", description = "The store failed; 501 if it keeps no fences", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn check_fence() {}

    #[utoipa::path(get, path = "/v1/locks/{name}", tag = "looking",
        params(("name" = String, Path, description = "The lock's name")),
        responses(
            (status = 200, description = "Its holders and waiters; also for a name that is not in use", body = wire::Lock),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
            (status = "5XX", description = "The store failed", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn lock() {}

    #[utoipa::path(get, path = "/v1/locks/{name}/history", tag = "looking",
        params(("name" = String, Path, description = "The lock's name")),
        responses(
            (status = 200, description = "What lately happened to it through this server, the newest first", body = crate::history::Recent),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn history() {}

    #[utoipa::path(get, path = "/v1/locks", tag = "looking",
        params(
            ("prefix" = Option<String>, Query, description = "The beginning of the names"),
            ("limit" = Option<u32>, Query, description = "Names at most: 100 unless said, at most 1000"),
            ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
        ),
        responses(
            (status = 200, description = "Names in use, in order", body = wire::Listed),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
            (status = "5XX", description = "The store failed", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn list() {}

    #[utoipa::path(post, path = "/v1/renew", tag = "leases",
        request_body = wire::RenewMany,
        responses(
            (status = 200, description = "For each lease the answer it would have got alone, with its status", body = super::RenewedMany),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn renew_many() {}

    #[utoipa::path(post, path = "/v1/leases/lookup", tag = "looking",
        request_body = wire::Lookup,
        responses(
            (status = 200, description = "What the id holds or waits for", body = wire::Found),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
            (status = "5XX", description = "The store failed", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn lookup() {}

    #[utoipa::path(post, path = "/v1/sweep", tag = "administration",
        request_body = wire::NoFields,
        responses(
            (status = 200, description = "What had expired is dropped", body = wire::Swept),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
            (status = "5XX", description = "The store failed", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn sweep() {}

    #[utoipa::path(get, path = "/v1/capabilities", tag = "looking",
        responses(
            (status = 200, description = "What the server and its store can do", body = wire::Capabilities),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn capabilities() {}

    #[utoipa::path(get, path = "/v1/findings", tag = "operations",
        responses(
            (status = 200, description = "How the server's store is set up, and what that risks", body = wire::Findings),
            (status = "4XX", description = "Refused, or not known", body = wire::Problem, content_type = "application/problem+json"),
            (status = "5XX", description = "The store failed", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn findings() {}

    #[utoipa::path(get, path = "/healthz", tag = "operations", security(()),
        responses(
            (status = 200, description = "The process lives", body = super::Health),
            (status = "4XX", description = "Refused for host or origin", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn healthz() {}

    #[utoipa::path(get, path = "/readyz", tag = "operations", security(()),
        responses(
            (status = 200, description = "The store answers", body = super::Health),
            (status = "4XX", description = "Refused for host or origin", body = wire::Problem, content_type = "application/problem+json"),
            (status = 503, description = "It does not, or the server ends", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn readyz() {}

    #[utoipa::path(get, path = "/metrics", tag = "operations",
        responses(
            (status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text"),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn metrics() {}
}

/// Health of the server or its store.
#[derive(utoipa::ToSchema)]
#[schema(example = json!({"status": "ok"}))]
#[allow(dead_code)] // only its schema is used
struct Health {
    /// `ok` if the process is alive, `ready` if the store answers.
    status: String,
}

/// The answer to a batch of renewals, with status 200.
#[derive(utoipa::ToSchema)]
#[schema(example = json!({"results": [
    {"status": 200, "renewed": true, "lock_name": "nightly", "lease_expiry_ms": 1794827493574_u64, "expires_in_ms": 30000, "fencing_token": 459475822995008_u64, "mode": "exclusive", "renewals": 1, "acquired_at_ms": 1794827463574_u64},
    {"status": 410, "renewed": false, "lock_name": "weekly", "reason": "NOT_OWNER_OR_EXPIRED", "gone": "expired", "type": "about:blank", "title": "Gone", "detail": "the lease is gone; stop work that needs it", "error": "the lease is gone; stop work that needs it", "code": "LOST", "retryable": false},
    {"status": 403, "type": "about:blank", "title": "Forbidden", "detail": "the token does not allow this", "error": "the token does not allow this", "code": "AUTH_FAILED", "retryable": false}
]}))]
#[allow(dead_code)] // only its schema is used: each answer is made as it would be alone
struct RenewedMany {
    /// In the order of the request.
    results: Vec<RenewedEach>,
}

/// The answer that this renewal would have got alone, with its status.
#[derive(utoipa::ToSchema)]
#[allow(dead_code)]
struct RenewedEach {
    /// 200: renewed. 410: lost for good. 503: unknown, try again. 400, 403 and others: as for a single renewal.
    status: u16,
    /// Whether the lease was renewed; present with 200 and 410.
    renewed: Option<bool>,
    lock_name: Option<String>,
    lease_expiry_ms: Option<u64>,
    expires_in_ms: Option<u64>,
    fencing_token: Option<u64>,
    mode: Option<wire::ModeName>,
    limit: Option<u32>,
    renewals: Option<u64>,
    acquired_at_ms: Option<u64>,
    reason: Option<String>,
    /// With 410: `expired`, `not_found`, `superseded` or `revoked`.
    gone: Option<String>,
    /// What went wrong, for people.
    error: Option<String>,
    /// The same, as a code for programs.
    code: Option<String>,
    retryable: Option<bool>,
    r#type: Option<String>,
    title: Option<String>,
    detail: Option<String>,
}

/// How to send a token, if the server requires one.
struct Tokens;

impl Modify for Tokens {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        let mut bearer = Http::new(HttpAuthScheme::Bearer);
        bearer.description =
            Some("What `leasehold token create` printed; only where the server has tokens".into());
        api.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(bearer));
    }
}

/// Lists the codes of errors, for clients that check theirs against the document.
struct Codes;

impl Modify for Codes {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        let schemas = &mut api.components.get_or_insert_default().schemas;
        let Some(RefOr::T(Schema::Object(problem))) = schemas.get_mut("Problem") else { return };
        if let Some(RefOr::T(Schema::Object(code))) = problem.properties.get_mut("code") {
            code.enum_values = Some(codes().map(Into::into).collect());
        }
    }
}

#[derive(OpenApi)]
#[openapi(
    info(title = "leasehold", description = "Leases with fencing tokens over HTTP"),
    paths(
        paths::acquire,
        paths::renew,
        paths::release,
        paths::revoke,
        paths::check_fence,
        paths::lock,
        paths::history,
        paths::list,
        paths::renew_many,
        paths::lookup,
        paths::sweep,
        paths::capabilities,
        paths::findings,
        paths::healthz,
        paths::readyz,
        paths::metrics
    ),
    components(schemas(wire::Problem)),
    security((), ("token" = [])),
    modifiers(&Tokens, &Codes)
)]
struct Api;

pub(crate) async fn route() -> Response<Body> {
    json(StatusCode::OK, &Api::openapi())
}
