//! From bytes to a checked request, before anything reaches the store.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use leasehold::{Name, wire};
use serde::de::DeserializeOwned;

use crate::app::{App, in_time};
use crate::problem::Refusal;

/// Bytes of a body at most: a batch of 512 renewals with long names fits.
const MAX_BODY: usize = 64 * 1024;

/// The name in `/v1/locks/{name}…`: one segment, decoded once.
pub(crate) fn name(app: &App, uri: &Uri) -> Result<Name, Refusal> {
    let segment = uri.path().split('/').nth(3).unwrap_or_default();
    Ok(app.name(&decoded(segment)?)?)
}

/// Percent-decodes, strictly: what is no escape is refused, not taken as it stands.
pub(crate) fn decoded(text: &str) -> Result<Cow<'_, str>, Refusal> {
    let malformed = || Refusal::bad("the name in the path must be percent-encoded UTF-8");
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        let digits = rest.get(at + 1..at + 3).ok_or_else(malformed)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(malformed());
        }
        rest = &rest[at + 3..];
    }
    percent_encoding::percent_decode_str(text).decode_utf8().map_err(|_| malformed())
}

/// The pairs of a query.
pub(crate) fn query(uri: &Uri) -> Result<Vec<(String, String)>, Refusal> {
    let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = |part: &str| Ok::<_, Refusal>(decoded(&part.replace('+', " "))?.into_owned());
            Ok((text(key)?, text(value)?))
        })
        .collect()
}

/// The body of a request that must be JSON.
pub(crate) async fn body<T: DeserializeOwned>(app: &App, request: Request<Body>) -> Result<T, Refusal> {
    if !is_json(request.headers()) {
        return Err(Refusal::bad("the body must be JSON, with content-type: application/json"));
    }
    let bytes = bytes(request.into_body(), app.settings.read_timeout).await?;
    let read = serde_json::from_slice(&bytes).map(|wire::Object(body)| body);
    read.map_err(|error| Refusal::bad(format!("the body cannot be read: {error}")))
}

async fn bytes(body: Body, timeout: Duration) -> Result<Bytes, Refusal> {
    match in_time(timeout, Limited::new(body, MAX_BODY).collect()).await {
        Some(Ok(collected)) => Ok(collected.to_bytes()),
        Some(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "INVALID_ARGUMENT",
            format!("the body has more than {MAX_BODY} bytes"),
        )),
        Some(Err(_)) => Err(Refusal::bad("the body broke off")),
        None => Err(Refusal::bad("the body did not come in time")),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_once_and_broken_ones_refused() {
        assert_eq!(decoded("a%2Fb%252e").unwrap(), "a/b%2e");
        for broken in ["%", "%2", "%zz", "a%G0", "%ff"] {
            assert!(decoded(broken).is_err(), "{broken}");
        }
    }
}
