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

/// Largest request body. A full batch of renewals has 128 bytes for each; a minimal renewal fits with a name of 52
/// bytes. Clients with longer names send smaller batches, as the Rust client does.
const MAX_BODY: usize = 64 * 1024;

/// The name in `/v1/locks/{name}…`: one segment, decoded once.
pub(crate) fn name(app: &App, uri: &Uri) -> Result<Name, Refusal> {
    let segment = uri.path().split('/').nth(3).unwrap_or_default();
    Ok(app.name(&decoded("the name in the path", segment)?)?)
}

/// Percent-decodes strictly: an invalid escape is refused, not taken literally. `what` is the text's name in the error.
fn decoded<'a>(what: &str, text: &'a str) -> Result<Cow<'a, str>, Refusal> {
    let malformed = || Refusal::bad(format!("{what} must be percent-encoded UTF-8"));
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

/// The key-value pairs of a query string.
pub(crate) fn query(uri: &Uri) -> Result<Vec<(String, String)>, Refusal> {
    let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text =
                |what, part: &str| Ok::<_, Refusal>(decoded(what, &part.replace('+', " "))?.into_owned());
            let key = text("the query", key)?;
            // An unknown key is the client's text, which an error must not repeat.
            let known = ["prefix", "limit", "cursor"].into_iter().find(|known| *known == key);
            let value = text(known.unwrap_or("the query"), value)?;
            Ok((key, value))
        })
        .collect()
}

/// Reads and parses a request body, which must be JSON.
pub(crate) async fn body<T: DeserializeOwned>(app: &App, request: Request<Body>) -> Result<T, Refusal> {
    if !is_json(request.headers()) {
        return Err(Refusal::bad("the body must be JSON, with content-type: application/json"));
    }
    object(&bytes(request.into_body(), app.settings.read_timeout).await?)
}

/// Parses a body, or one element of a batch.
pub(crate) fn object<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let read = serde_json::from_slice(bytes).map(|wire::Object(body)| body);
    read.map_err(|error| {
        let field = wrong_field::<T>(bytes, &error).map(|field| field + ": ").unwrap_or_default();
        Refusal::bad(format!("the body cannot be read: {field}{}", without_values(&error)))
    })
}

/// Describes what is wrong with a body without repeating any of it, not even field names: a secret may stand in the
/// wrong place, and this text is logged. serde's own message repeats what it found.
fn without_values(error: &serde_json::Error) -> String {
    if !error.is_data() {
        return format!("it is not JSON from line {}, column {} on", error.line(), error.column());
    }
    let text = error.to_string();
    // These field names are our own.
    if text.starts_with("missing field") || text.starts_with("duplicate field") {
        return text;
    }
    let expected = match text.rsplit_once(" at line ") {
        Some((said, _)) if said.ends_with("there are no fields") => None,
        // Take the last match: everything before it came from the client.
        _ => text.rsplit_once(", expected ").map(|(_, expected)| format!("expected {}", in_words(expected))),
    };
    match (text.starts_with("unknown field"), expected) {
        (true, Some(expected)) => format!("a field that is not known, {expected}"),
        (true, None) => "a field that is not known; there are none".into(),
        (false, Some(expected)) => expected,
        (false, None) => "a value has the wrong form; see /openapi.json".into(),
    }
}

/// Turns serde's description of an expected type into words that do not mention Rust.
fn in_words(expected: &str) -> String {
    let (what, place) = expected.split_once(" at line ").unwrap_or((expected, ""));
    let what = match what {
        "u64" | "u32" | "usize" | "u16" | "u8" => "a whole number",
        other => other,
    };
    if place.is_empty() { what.into() } else { format!("{what} at line {place}") }
}

/// The field whose value has the wrong type. All fields of a request have defaults, so each can be tried alone.
fn wrong_field<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> Option<String> {
    let is_value = |error: &serde_json::Error| {
        let text = error.to_string();
        error.is_data() && ["invalid", "unknown variant"].iter().any(|begin| text.starts_with(begin))
    };
    if !is_value(error) {
        return None;
    }
    let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(bytes).ok()?;
    // Only known fields can have a value of a wrong type.
    let wrong = fields.into_iter().find(|(field, value)| {
        let alone = serde_json::from_value::<T>(serde_json::json!({ field: value }));
        alone.is_err_and(|error| is_value(&error))
    });
    wrong.map(|(field, _)| field)
}

async fn bytes(body: Body, timeout: Duration) -> Result<Bytes, Refusal> {
    match in_time(timeout, Limited::new(body, MAX_BODY).collect()).await {
        Some(Ok(collected)) => Ok(collected.to_bytes()),
        Some(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "INVALID_ARGUMENT",
            format!("the body has more than {MAX_BODY} bytes"),
        )),
        Some(Err(_)) => Err(Refusal::bad("the connection ended before the whole body was there")),
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
    fn a_full_batch_fits_with_names_of_at_most_52_bytes() {
        let bytes = |name: usize| {
            let mut one = wire::Renew::default();
            one.lock_name = Some("n".repeat(name));
            one.lease_id = leasehold::LeaseId::random().expose().to_owned();
            one.extend_by_ms = 600_000;
            serde_json::json!({ "leases": vec![one; wire::MAX_BATCH] }).to_string().len()
        };
        assert!(bytes(52) <= MAX_BODY && bytes(53) > MAX_BODY, "{} and {}", bytes(52), bytes(53));
    }

    #[test]
    fn escapes_are_decoded_once_and_broken_ones_refused() {
        assert_eq!(decoded("x", "a%2Fb%252e").unwrap(), "a/b%2e");
        for broken in ["%", "%2", "%zz", "a%G0", "%ff"] {
            assert!(decoded("x", broken).is_err(), "{broken}");
        }
    }
}
