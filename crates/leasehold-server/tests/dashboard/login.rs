//! The dashboard of a server that requires tokens.

use leasehold_server::{Limits, NewToken, Scope, Verb};
use serde_json::json;

use crate::support::{Page, Server};

struct Guarded {
    server: Server,
    _file: tempfile::NamedTempFile,
}

/// A server that requires a token, and its user's token.
fn guarded(scopes: Vec<Scope>) -> Guarded {
    let file = tempfile::NamedTempFile::new().unwrap();
    let token = NewToken::create("t", scopes, Limits::default()).unwrap();
    std::fs::write(file.path(), &token.line).unwrap();
    let mut server = Server::on(0, Some(file.path()));
    server.token = Some(token.secret);
    Guarded { server, _file: file }
}

fn scope(prefix: &str, allow: &[Verb]) -> Scope {
    Scope { prefix: prefix.into(), allow: allow.into() }
}

fn enter(page: &mut Page, token: &str) {
    page.until("document.getElementById('login').open && document.activeElement.id === 'token'");
    page.eval("document.getElementById('token').select()");
    page.text(token);
    page.key("Enter");
}

#[test]
fn a_token_opens_the_page_stays_in_the_tab_and_out_of_urls() {
    let guarded = guarded(vec![scope("", &[Verb::Read, Verb::Acquire])]);
    let server = &guarded.server;
    server.take("deploy", "me", 600_000);
    let token = server.token.clone().unwrap();
    let mut page = Page::at(server);
    page.until("document.getElementById('login').open");
    assert_eq!(page.complaints(), [""; 0], "it asks before it tries");
    // Without a token there is nothing to see: closing the dialog opens it again.
    page.key("Escape");
    page.until("document.getElementById('login').open");
    enter(&mut page, "lh_0000");
    page.says("#login-error", "This server does not know that token");
    assert_eq!(page.count("#locks tr"), 0);
    assert_eq!(page.eval("sessionStorage.length"), 0);
    enter(&mut page, &token);
    page.sees("deploy");
    let url = server.url.clone();
    page.go(&url);
    page.sees("deploy");
    for place in [
        "location.href",
        "JSON.stringify(localStorage)",
        "document.cookie",
        "document.documentElement.outerHTML",
    ] {
        assert!(!page.eval(place).as_str().unwrap().contains(&token), "the token is in {place}");
    }
    assert!(page.requests().iter().all(|url| !url.contains("lh_")), "{:?}", page.requests());
    // This token may not revoke, and the page says so.
    page.open_detail("deploy");
    page.begin_to_revoke();
    page.click("#revoke-yes");
    page.says("#confirm-error", "This token may not revoke");
    assert_eq!(server.lock("deploy")["holders"][0]["revoked"], false);
    page.click("#revoke-no");
    page.key("Escape");
    page.click("#logout");
    page.until("document.getElementById('login').open");
    assert_eq!((page.eval("sessionStorage.length"), page.count("#locks tr")), (json!(0), 0));
    // The browser complained about the wrong token and the refused revoke, and nothing else.
    assert_eq!(page.complaints().len(), 2, "{:?}", page.complaints());
}

#[test]
fn removing_the_token_makes_the_open_page_ask_for_another() {
    let guarded = guarded(vec![scope("", &[Verb::Read, Verb::Acquire])]);
    let token = guarded.server.token.clone().unwrap();
    guarded.server.take("deploy", "me", 600_000);
    let mut page = Page::at(&guarded.server);
    enter(&mut page, &token);
    page.sees("deploy");
    let port = guarded.server.port;
    drop(guarded);
    let other = tempfile::NamedTempFile::new().unwrap();
    let _server = Server::on(port, Some(other.path()));
    page.says("#login-error", "no longer knows that token");
    assert_eq!((page.eval("sessionStorage.length"), page.count("#locks tr")), (json!(0), 0));
}

#[test]
fn a_token_for_some_names_shows_how_to_find_them() {
    let both = [Verb::Read, Verb::Acquire];
    let guarded = guarded(vec![scope("blue/", &both), scope("red/", &both)]);
    let server = &guarded.server;
    server.take("blue/a", "me", 600_000);
    let token = server.token.clone().unwrap();
    let mut page = Page::at(server);
    enter(&mut page, &token);
    page.says("#empty", "This token cannot list every name");
    page.search("blue/");
    page.sees("blue/a");
}
