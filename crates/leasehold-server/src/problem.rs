//! Errors as HTTP answers, with one table from error kind to status.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use leasehold::wire::{self, Problem};
use leasehold::{Error, ErrorKind};
use serde::Serialize;

/// A request that cannot be served.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) detail: String,
    pub(crate) retryable: bool,
    pub(crate) retry_after_ms: Option<u64>,
}

/// The codes that stand for no kind of error of the library.
const OWN_CODES: &[&str] = &[
    "HELD",
    "WAIT_TIMEOUT",
    "SUPERSEDED",
    wire::HOLDER_CHANGED,
    wire::STALE_FENCE,
    "DRAINING",
    "NO_ROUTE",
    "WRONG_METHOD",
    "NOT_KNOWN",
];

/// All codes of errors.
pub(crate) fn codes() -> impl Iterator<Item = &'static str> {
    wire::codes().chain(OWN_CODES.iter().copied())
}

/// When to retry if the store is down or the server is shutting down.
const RETRY_AFTER_MS: u64 = 1000;

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        debug_assert!(codes().any(|known| known == code), "{code} is not in the document");
        Refusal { status, code, detail: detail.into(), retryable: false, retry_after_ms: None }
    }

    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Refusal::new(StatusCode::BAD_REQUEST, wire::code(ErrorKind::InvalidArgument), detail)
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Refusal::new(StatusCode::FORBIDDEN, wire::code(ErrorKind::AuthFailed), detail)
    }

    /// The same answer whether or not the lock exists.
    pub(crate) fn out_of_scope() -> Self {
        Refusal::forbidden("the token does not allow this")
    }

    pub(crate) fn no_token() -> Self {
        let detail = "a valid token is required: Authorization: Bearer …";
        Refusal::new(StatusCode::UNAUTHORIZED, wire::code(ErrorKind::AuthFailed), detail)
    }

    /// The lease that was to be revoked is gone.
    pub(crate) fn holder_changed() -> Self {
        let detail = "the lease with this `fencing_token` is gone: another holds the lock by now, or nobody does; nothing \
                      was revoked";
        Refusal::new(StatusCode::CONFLICT, wire::HOLDER_CHANGED, detail)
    }

    pub(crate) fn too_many(detail: impl Into<String>, retry_after_ms: u64) -> Self {
        Refusal {
            retryable: true,
            retry_after_ms: Some(retry_after_ms),
            ..Refusal::new(StatusCode::TOO_MANY_REQUESTS, wire::code(ErrorKind::RateLimited), detail)
        }
    }

    pub(crate) fn draining() -> Self {
        Refusal {
            retryable: true,
            retry_after_ms: Some(RETRY_AFTER_MS),
            ..Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "DRAINING",
                "the server is shutting down; try again",
            )
        }
    }

    /// The fields that every error body has.
    pub(crate) fn problem(&self) -> Problem {
        Problem {
            kind: "about:blank".into(),
            title: self.status.canonical_reason().unwrap_or("Error").into(),
            status: self.status.as_u16(),
            detail: self.detail.clone(),
            error: self.detail.clone(),
            code: self.code.into(),
            retryable: self.retryable,
        }
    }

    pub(crate) fn response(self) -> Response<Body> {
        self.response_with(&self.problem())
    }

    /// A response whose body says more than the problem alone.
    pub(crate) fn response_with(&self, body: &impl Serialize) -> Response<Body> {
        let mut response = json(self.status, body);
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if let Some(after) = self.retry_after_ms {
            retry_after(&mut response, after);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = status(error.kind());
        Refusal {
            status,
            code: wire::code(error.kind()),
            // Messages hold no names, ids or passwords; sources may.
            detail: error.message().to_owned(),
            retryable: error.is_retryable(),
            retry_after_ms: error.is_retryable().then_some(RETRY_AFTER_MS),
        }
    }
}

/// The table of statuses. 408 and 423 are never used: proxies and clients repeat a 408 by themselves, and 423 belongs
/// to WebDAV.
fn status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::InvalidArgument => StatusCode::BAD_REQUEST,
        ErrorKind::Mismatch => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorKind::Lost => StatusCode::GONE,
        ErrorKind::Deadlock | ErrorKind::Timeout => StatusCode::CONFLICT,
        ErrorKind::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        // The store refused the server's own credentials, which the client cannot fix.
        ErrorKind::AuthFailed
        | ErrorKind::Unavailable
        | ErrorKind::Overloaded
        | ErrorKind::NetworkTimeout
        | ErrorKind::Aborted => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Internal | _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    // Enough for most answers. Our own types of strings and numbers always serialise.
    let mut bytes = Vec::with_capacity(384);
    let _ = serde_json::to_writer(&mut bytes, body);
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Sets `Retry-After` in whole seconds, rounded up: the header allows nothing finer.
fn retry_after(response: &mut Response<Body>, after_ms: u64) {
    response.headers_mut().insert(header::RETRY_AFTER, after_ms.div_ceil(1000).into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_the_status_that_is_documented() {
        use ErrorKind::*;
        for (kind, expected) in [
            (InvalidArgument, 400),
            (Mismatch, 422),
            (Lost, 410),
            (Deadlock, 409),
            (Timeout, 409),
            (RateLimited, 429),
            (Unsupported, 501),
            (AuthFailed, 503),
            (Unavailable, 503),
            (Overloaded, 503),
            (NetworkTimeout, 503),
            (Aborted, 503),
            (Internal, 500),
        ] {
            assert_eq!(status(kind).as_u16(), expected, "{kind:?}");
        }
    }
}
