//! `/openapi.json`: made from the types that the routes read and write.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use leasehold::wire;
use utoipa::OpenApi;

use crate::problem::json;

/// The paths, one function each: utoipa reads them, nobody calls them.
mod paths {
    #![allow(dead_code)]
    use leasehold::wire;

    #[utoipa::path(post, path = "/v1/locks/{name}/acquire", tag = "leases",
        params(("name" = String, Path, description = "The lock's name, percent-encoded as one segment")),
        request_body = wire::Acquire,
        responses(
            (status = 200, description = "Granted", body = wire::Acquired),
            (status = 409, description = "Somebody else holds it, or the store is busy: try again", body = wire::Busy),
            (status = 410, description = "This lease_id was given up or taken over", body = wire::LeaseGone),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
            (status = "5XX", description = "The store failed", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn acquire() {}

    #[utoipa::path(post, path = "/v1/locks/{name}/renew", tag = "leases",
        params(("name" = String, Path, description = "The lock's name")),
        request_body = wire::Renew,
        responses(
            (status = 200, description = "Still held", body = wire::Renewed),
            (status = 410, description = "Lost, for ever", body = wire::LeaseGone),
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
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
            (status = "5XX", description = "The store failed", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn revoke() {}

    #[utoipa::path(get, path = "/v1/locks/{name}", tag = "looking",
        params(("name" = String, Path, description = "The lock's name")),
        responses(
            (status = 200, description = "Who holds it and who waits; also for a name nobody uses", body = wire::Lock),
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
            (status = 200, description = "`results`: for each lease the answer it would have got alone, with its status"),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn renew_many() {}

    #[utoipa::path(post, path = "/v1/leases/lookup", tag = "looking",
        request_body = wire::Lookup,
        responses(
            (status = 200, description = "What the id holds or waits for", body = wire::Found),
            (status = "4XX", description = "Refused", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn lookup() {}

    #[utoipa::path(post, path = "/v1/sweep", tag = "administration",
        request_body = wire::NoFields,
        responses((status = 200, description = "What had expired is dropped", body = wire::Swept)))]
    fn sweep() {}

    #[utoipa::path(get, path = "/v1/capabilities", tag = "looking",
        responses((status = 200, description = "What the server and its store can do", body = wire::Capabilities)))]
    fn capabilities() {}

    #[utoipa::path(get, path = "/v1/findings", tag = "operations",
        responses(
            (status = 200, description = "How the server's store is set up, and what that risks", body = wire::Findings),
            (status = "4XX", description = "Refused, or not known", body = wire::Problem, content_type = "application/problem+json"),
            (status = "5XX", description = "The store failed", body = wire::Problem, content_type = "application/problem+json"),
        ))]
    fn findings() {}

    #[utoipa::path(get, path = "/healthz", tag = "operations",
        responses((status = 200, description = "The process lives")))]
    fn healthz() {}

    #[utoipa::path(get, path = "/readyz", tag = "operations",
        responses((status = 200, description = "The store answers"), (status = 503, description = "It does not, or the server ends")))]
    fn readyz() {}

    #[utoipa::path(get, path = "/metrics", tag = "operations",
        responses((status = 200, description = "OpenMetrics text")))]
    fn metrics() {}
}

#[derive(OpenApi)]
#[openapi(
    info(title = "leasehold", description = "Leases with fencing tokens over HTTP"),
    paths(
        paths::acquire,
        paths::renew,
        paths::release,
        paths::revoke,
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
    components(schemas(wire::Problem))
)]
struct Api;

pub(crate) async fn route() -> Response<Body> {
    json(StatusCode::OK, &Api::openapi())
}
