//! The dashboard in a real browser, with a real server in a separate process.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod acting;
mod live;
mod login;
mod looks;
mod support;

use serde_json::json;

use support::{Page, Server};

#[test]
fn the_page_loads_without_errors_and_contacts_only_its_server() {
    // The servers of all tests here are this test in another role.
    if let Some(role) = testkit::process::role() {
        return support::serve(&role);
    }
    let server = Server::start();
    server.take("deploy", "me", 60_000);
    let mut page = Page::open(&server);
    page.sees("deploy");
    page.open_detail("deploy");
    page.until("document.querySelector('#detail .past li')");
    let requests = page.requests();
    let foreign: Vec<_> = requests.iter().filter(|url| !url.starts_with(&server.url)).collect();
    assert_eq!((foreign.len(), requests.len() > 4), (0, true), "{requests:?}");
    assert_eq!(page.complaints(), [""; 0]);
    assert_eq!(page.eval("document.documentElement.lang"), json!("en"));
}
