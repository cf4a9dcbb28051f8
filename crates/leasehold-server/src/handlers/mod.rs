//! The handler of each route, and the table of routes. To add a route, write its handler in a file here, add a line to
//! [`routes`], and describe it in `openapi`.
//!
//! A handler reads its request with [`extract`](crate::extract), calls the store through [`App`], and records in an
//! `Operation` what it did, for log, metrics and history. Before changing anything here:
//! `cargo test -p leasehold-server`.

pub(crate) mod acquire;
pub(crate) mod fences;
pub(crate) mod findings;
pub(crate) mod health;
pub(crate) mod openapi;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod revoke;
pub(crate) mod show;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request, Response, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::{get, post};

use crate::app::App;
use crate::middleware::{self, Operation};
use crate::problem::Refusal;
use crate::{dashboard, metrics};

type Answer = Result<Response<Body>, Refusal>;

fn respond(answer: Answer) -> Response<Body> {
    answer.unwrap_or_else(Refusal::response)
}

fn finish(mut operation: Operation, answer: Answer) -> Response<Body> {
    let response = answer.unwrap_or_else(|refusal| {
        operation.refused(&refusal);
        refusal.response()
    });
    operation.onto(response)
}

/// The server's routes behind its middleware, for use in an HTTP server of your own. Includes `/metrics` and the
/// dashboard, unless they have their own address.
pub fn app(app: Arc<App>) -> Router {
    let figures = !app.settings.figures_elsewhere;
    let pass = async |State(app): State<Arc<App>>, request: Request<Body>, next: Next| {
        middleware::pass(&app, request, |request| next.run(request)).await
    };
    routes(Arc::clone(&app), figures).layer(from_fn_with_state(app, pass))
}

/// The routes without the middleware.
pub(crate) fn routes(app: Arc<App>, figures: bool) -> Router {
    let mut routes = reading()
        .route("/v1/locks/{name}/acquire", post(acquire::acquire))
        .route("/v1/locks/{name}/renew", post(renew::renew))
        .route("/v1/locks/{name}/release", post(release::release))
        .route("/v1/locks/{name}/revoke", post(revoke::revoke))
        .route("/v1/fences/{resource}/check", post(fences::check))
        .route("/v1/renew", post(renew::renew_many))
        .route("/v1/sweep", post(revoke::sweep))
        .route("/v1/leases/lookup", post(show::lookup))
        .route("/v1/findings", get(findings::route))
        .route("/openapi.json", get(openapi::route));
    if figures {
        routes = routes.merge(self::figures());
    }
    routes.fallback(no_route).method_not_allowed_fallback(wrong_method).with_state(app)
}

/// The routes of the separate address for metrics and the dashboard: these two, what the dashboard reads, and revoking
/// if `revoking` is set. Locks cannot be taken, renewed or released there, because that address may be open to people
/// who may only look.
pub(crate) fn figure_routes(app: Arc<App>, revoking: bool) -> Router {
    let revoke = if revoking { post(revoke::revoke) } else { post(not_from_here) };
    let routes = reading().merge(figures()).route("/v1/locks/{name}/revoke", revoke);
    routes.fallback(not_here).method_not_allowed_fallback(wrong_method).with_state(app)
}

/// Health, and what the dashboard reads.
fn reading() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/locks/{name}/history", get(show::history))
        .route("/v1/locks/{name}", get(show::lock))
        .route("/v1/locks", get(show::list))
        .route("/v1/capabilities", get(health::capabilities))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
}

/// The routes that can have their own address.
fn figures() -> Router<Arc<App>> {
    Router::new().route("/metrics", get(metrics::route)).route("/", get(dashboard::route))
}

async fn not_here(State(_): State<Arc<App>>) -> Response<Body> {
    let detail = "this address has metrics, health and the dashboard only; the rest is at the server's own";
    Refusal::new(StatusCode::NOT_FOUND, "NO_ROUTE", detail).response()
}

async fn not_from_here(State(_): State<Arc<App>>) -> Response<Body> {
    Refusal::forbidden(
        "others can reach this address, and without tokens nothing is revoked from it; revoke at the server's own, \
         or start it with --tokens FILE",
    )
    .response()
}

async fn no_route(State(_): State<Arc<App>>, uri: Uri) -> Response<Body> {
    let parts: Vec<&str> = uri.path().split('/').collect();
    if matches!(parts[..], ["", "v1", "locks", ""] | ["", "v1", "locks", "", _]) {
        return Refusal::bad("the lock name must not be empty").response();
    }
    if matches!(parts[..], ["", "v1", "fences", ""] | ["", "v1", "fences", "", _]) {
        return Refusal::bad("the name of the resource must not be empty").response();
    }
    let detail = if matches!(parts[..], ["", "v1", "locks" | "fences", _, _, ..]) {
        "there is no such route; a slash in a name must be written as %2F; see /openapi.json"
    } else {
        "there is no such route; see /openapi.json"
    };
    Refusal::new(StatusCode::NOT_FOUND, "NO_ROUTE", detail).response()
}

async fn wrong_method(method: Method, _: Request<Body>) -> Response<Body> {
    let detail = format!("{method} is not a method of this route; see /openapi.json");
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "WRONG_METHOD", detail).response()
}
