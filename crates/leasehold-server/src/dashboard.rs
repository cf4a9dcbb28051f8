//! The page at `/`: one document inside the binary, that asks nobody but this server.
//!
//! Its parts are files of their own in `dashboard/`. They are sent as one, so that a page never runs with the script
//! of another version, whichever of several servers answers.

use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::app::App;

const BODY: &str = include_str!("dashboard/page.html");
const STYLE: &str = include_str!("dashboard/page.css");
/// One script in the order of its parts.
const SCRIPT: &str = concat!(
    include_str!("dashboard/ask.js"),
    include_str!("dashboard/charts.js"),
    include_str!("dashboard/table.js"),
    include_str!("dashboard/detail.js"),
    include_str!("dashboard/live.js"),
);

/// What is sent; all but the choice of the page is the same for every server of this version.
struct Page {
    open: String,
    /// Where a token is needed the page asks for it first, instead of trying without.
    guarded: String,
    policy: Option<HeaderValue>,
}

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let open = BODY.replacen("/*style*/", STYLE, 1).replacen("/*script*/", SCRIPT, 1);
    let guarded = open.replacen("<html", "<html data-tokens", 1);
    Page { open, guarded, policy: HeaderValue::from_str(&policy()).ok() }
});

/// Only this very script and style run, whatever the text of a lock; no frame around the page, no request to
/// anywhere else, and no text ever becomes markup.
fn policy() -> String {
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
}

pub(crate) async fn route(State(app): State<Arc<App>>) -> Response<Body> {
    let page = if app.settings.tokens.is_some() { PAGE.guarded.as_str() } else { PAGE.open.as_str() };
    let mut response = Response::new(Body::from(page));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.extend(PAGE.policy.clone().map(|policy| (header::CONTENT_SECURITY_POLICY, policy)));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_small_and_has_a_policy() {
        assert!(PAGE.open.contains(STYLE) && PAGE.open.contains(SCRIPT));
        assert!(PAGE.guarded.contains("<html data-tokens"));
        assert!(PAGE.open.len() < 60_000, "{} bytes", PAGE.open.len());
        let policy = PAGE.policy.as_ref().unwrap().to_str().unwrap();
        assert!(!policy.contains("unsafe"), "{policy}");
        // Nothing can close the element that it stands in.
        assert!(!SCRIPT.contains("</") && !STYLE.contains("</"));
    }
}
