//! The dashboard at `/`: one document inside the binary that talks to no server but this one.
//!
//! Its parts are separate files in `dashboard/`. They are sent as one document, so that a page never runs with the
//! script of another version, whichever of several servers answers.

// What belongs here: the page and nothing it asks for; its data comes from the routes in `handlers`. Before changing
// anything here: `cargo test -p leasehold-server --test dashboard`, which runs it in a browser.

use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::app::App;

const BODY: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// The parts of the script, in order.
const SCRIPT: &str = concat!(
    include_str!("ask.js"),
    include_str!("charts.js"),
    include_str!("table.js"),
    include_str!("detail.js"),
    include_str!("live.js"),
);

/// The rendered pages and their headers. Which page is sent depends on the settings; the rest is the same for every
/// server of this version.
struct Page {
    /// In the order of [`MARKS`].
    texts: [String; MARKS.len()],
    policy: Option<HeaderValue>,
}

/// Attributes that tell the page about its server: whether a token is needed, so that the page asks for one first, and
/// whether the dashboard has its own address, where no lock can be taken.
const MARKS: [&str; 4] = ["", " data-tokens", " data-elsewhere", " data-tokens data-elsewhere"];

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let page = BODY.replacen("/*style*/", STYLE, 1).replacen("/*script*/", SCRIPT, 1);
    let texts = MARKS.map(|marks| page.replacen("<html", &format!("<html{marks}"), 1));
    Page { texts, policy: HeaderValue::from_str(&policy()).ok() }
});

/// Allows only this script and style to run, whatever the text of a lock; forbids frames around the page and requests
/// to other servers, and keeps text from becoming markup.
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
    let settings = &app.settings;
    let which = usize::from(settings.tokens.is_some()) + 2 * usize::from(settings.figures_elsewhere);
    let mut response = Response::new(Body::from(PAGE.texts[which].as_str()));
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
        for (page, marks) in PAGE.texts.iter().zip(MARKS) {
            assert!(page.contains(STYLE) && page.contains(SCRIPT));
            assert!(page.contains(&format!("<html{marks} lang")), "{marks}");
            assert!(page.len() < 60_000, "{} bytes", page.len());
        }
        let policy = PAGE.policy.as_ref().unwrap().to_str().unwrap();
        assert!(!policy.contains("unsafe"), "{policy}");
        // Neither text can close the element that contains it.
        assert!(!SCRIPT.contains("</") && !STYLE.contains("</"));
    }
}
