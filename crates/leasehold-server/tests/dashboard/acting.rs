//! Searching, opening a lock, and revoking it in the dashboard.

use serde_json::json;

use crate::support::{Page, Server};

#[test]
fn search_finds_any_part_of_a_name_or_an_owner() {
    let server = Server::start();
    server.take("billing/nightly", "worker-7", 60_000);
    server.take("deploy/api", "github", 60_000);
    server.take("deploy/web", "github", 60_000);
    let mut page = Page::open(&server);
    page.sees("deploy/web");
    page.search("NIGHT");
    page.until("document.querySelectorAll('#locks tr').length === 1");
    page.sees("billing/nightly");
    page.search("github");
    page.until("document.querySelectorAll('#locks tr').length === 2");
    page.sees("deploy/api");
    page.search("nothing like it");
    page.says("#empty", "No name or owner has that in it");
    page.key("Escape");
    page.until("document.querySelectorAll('#locks tr').length === 3");
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
fn the_detail_view_shows_holders_queue_and_recent_events() {
    let server = Server::start();
    let first = server.take("deploy", "alice", 60_000);
    server.release("deploy", &first);
    let body = json!({ "owner_id": "bob", "ttl_ms": 60_000, "metadata": "{\"run\": 7}" });
    let lease = server.verb("deploy", "acquire", body);
    let carol = server.queue("deploy", "carol");
    server.queue("deploy", "dave");
    let mut page = Page::open(&server);
    page.sees("deploy");
    page.open_detail("deploy");
    assert_eq!((page.said("#detail-state"), page.said("#detail-name")), ("Held".into(), "deploy".into()));
    let holder = page.said("#detail .holder");
    for part in ["bob", "exclusive", &lease["fencing_token"].to_string(), "{\"run\": 7}"] {
        assert!(holder.contains(part), "{part}: {holder}");
    }
    let queue = page.said("#detail .queued");
    assert!(queue.find("carol").unwrap() < queue.find("dave").unwrap(), "{queue}");
    let past = page.said("#detail .past");
    let places = ["Granted to bob", "Released, alice", "Granted to alice"].map(|event| past.find(event));
    assert!(places.is_sorted() && places[0].is_some(), "{past}");
    // The detail view updates while it is open.
    server.release("deploy", lease["lease_id"].as_str().unwrap());
    page.says("#detail .past", "Released, bob");
    assert_eq!(server.verb("deploy", "acquire", carol)["acquired"], true);
    page.says("#detail .holder", "carol");
    page.until("document.querySelectorAll('#detail .queued li').length === 1");
    page.click("#close");
    page.until("!document.getElementById('detail').open");
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
fn an_expired_lease_is_not_shown_as_released() {
    let server = Server::start();
    server.take("deploy", "alice", 5_000);
    // A waiter keeps the name in the list.
    server.queue("deploy", "bob");
    let mut page = Page::open(&server);
    page.sees("deploy");
    page.open_detail("deploy");
    page.says("#detail .past", "ended without a release");
}

#[test]
fn revoking_asks_first_and_saying_no_changes_nothing() {
    let server = Server::start();
    let lease = server.take("deploy", "alice", 600_000);
    let mut page = Page::open(&server);
    page.sees("deploy");
    page.open_detail("deploy");
    page.begin_to_revoke();
    assert!(page.said("#confirm").contains("Held by alice"), "{}", page.said("#confirm"));
    assert_eq!(page.eval("document.activeElement.id"), "revoke-no", "the harmless answer is the one at hand");
    page.click("#revoke-no");
    page.until("!document.getElementById('confirm').open");
    page.begin_to_revoke();
    page.click("#revoke-now");
    page.key("Escape");
    page.until("!document.getElementById('confirm').open");
    assert_eq!(page.eval("document.getElementById('detail').open"), true, "only the question is closed");
    let asked = |page: &mut Page| page.requests().iter().filter(|url| url.ends_with("/revoke")).count();
    assert_eq!(asked(&mut page), 0);
    assert_eq!(server.lock("deploy")["holders"][0]["revoked"], false);
    // Revoke at expiry: the lock is still held, and no longer renewed.
    page.begin_to_revoke();
    assert_eq!(page.eval("document.getElementById('revoke-soft').checked"), true, "a choice is not kept");
    page.click("#revoke-yes");
    page.says("#detail-state", "Revoked");
    assert_eq!((asked(&mut page), &server.lock("deploy")["held"]), (1, &json!(true)));
    let renewal = server.verb("deploy", "renew", json!({ "lease_id": lease, "extend_by_ms": 600_000 }));
    assert_eq!(renewal["renewed"], false);
    page.says("#detail .past", "Renewal refused, alice");
    // Revoke now.
    page.begin_to_revoke();
    page.click("#revoke-now");
    page.click("#revoke-yes");
    page.says("#detail-state", "Free");
    assert_eq!(server.lock("deploy")["held"], false);
    assert_eq!(
        page.eval("document.getElementById('revoke').disabled"),
        true,
        "there is nothing left to revoke"
    );
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
fn revoking_ends_the_holder_that_was_shown_and_not_the_next() {
    let server = Server::start();
    let lease = server.take("deploy", "alice", 600_000);
    let mut page = Page::open(&server);
    page.sees("deploy");
    page.open_detail("deploy");
    page.begin_to_revoke();
    server.release("deploy", &lease);
    server.take("deploy", "bob", 600_000);
    page.click("#revoke-now");
    page.click("#revoke-yes");
    page.says("#confirm-error", "The holder has changed");
    let lock = server.lock("deploy");
    assert_eq!((&lock["owner_id"], &lock["holders"][0]["revoked"]), (&json!("bob"), &json!(false)));
}

#[test]
fn a_holder_that_comes_while_revoking_is_spared() {
    let server = Server::start();
    let lease = server.take("deploy", "alice", 600_000);
    let mut page = Page::open(&server);
    page.sees("deploy");
    page.open_detail("deploy");
    page.begin_to_revoke();
    // The last possible moment: the page has sent the revoke request, and the server has not read it yet.
    page.eval(
        "{ const real = window.fetch; window.fetch = (path, about) => path.endsWith('/revoke') \
           ? new Promise((go) => { window.go = go; }).then(() => real(path, { ...about, signal: undefined })) : real(path, about); }",
    );
    page.click("#revoke-now");
    page.click("#revoke-yes");
    page.until("window.go !== undefined");
    server.release("deploy", &lease);
    server.take("deploy", "bob", 600_000);
    page.eval("window.go()");
    page.says("#confirm-error", "The holder has changed");
    let lock = server.lock("deploy");
    assert_eq!((&lock["owner_id"], &lock["holders"][0]["revoked"]), (&json!("bob"), &json!(false)));
}

#[test]
fn revoking_ends_all_readers_that_were_shown_and_no_others() {
    let server = Server::start();
    let read = |owner: &str| {
        let body = json!({ "owner_id": owner, "ttl_ms": 600_000, "mode": "shared" });
        assert_eq!(server.verb("deploy", "acquire", body)["acquired"], true);
    };
    read("alice");
    read("bob");
    let mut page = Page::open(&server);
    page.sees("deploy");
    page.open_detail("deploy");
    page.until("document.querySelectorAll('#detail .holder').length === 2");
    page.begin_to_revoke();
    assert!(page.said("#confirm").contains("Held by alice and 1 more"), "{}", page.said("#confirm"));
    read("carol");
    page.click("#revoke-yes");
    page.until("!document.getElementById('confirm').open");
    let holders = server.lock("deploy")["holders"].clone();
    let revoked: Vec<_> =
        holders.as_array().unwrap().iter().map(|it| (&it["owner_id"], &it["revoked"])).collect();
    let (yes, no) = (json!(true), json!(false));
    assert_eq!(revoked, [(&json!("alice"), &yes), (&json!("bob"), &yes), (&json!("carol"), &no)]);
}

#[test]
fn names_owners_and_metadata_are_text_whatever_they_hold() {
    let server = Server::start();
    let (name, owner) = ("<script>alert(1)</script>", "<img src=x onerror=alert(2)>");
    let body = json!({ "owner_id": owner, "ttl_ms": 60_000, "metadata": "<b onclick=alert(3)>m</b>" });
    let lease = server.verb(name, "acquire", body);
    let note =
        json!({ "lease_id": lease["lease_id"], "extend_by_ms": 60_000, "note": "<i onclick=alert(5)>n</i>" });
    assert_eq!(server.verb(name, "renew", note)["renewed"], true);
    server.queue(name, "<svg onload=alert(4)>");
    server.take("line\nbreak \u{202e}txt.exe", "me", 60_000);
    let mut page = Page::open(&server);
    page.sees(name);
    assert_eq!(page.eval(&format!("{}.querySelector('.name').textContent", Page::row(name))), name);
    assert_eq!(page.eval(&format!("{}.querySelector('.who').textContent", Page::row(name))), owner);
    page.click("#locks tr:nth-child(1) button");
    page.until("document.querySelector('#detail .past li')");
    for (selector, text) in [
        ("#detail-name", name),
        ("#detail .holder .who", owner),
        ("#detail .holder pre", "<b onclick=alert(3)>m</b>"),
        ("#detail pre.note", "<i onclick=alert(5)>n</i>"),
        ("#detail .queued .who", "<svg onload=alert(4)>"),
    ] {
        assert_eq!(page.said(selector), text, "{selector}");
    }
    page.begin_to_revoke();
    assert_eq!(page.said("#confirm-name"), name);
    assert_eq!(
        page.count("main img, main script, dialog img, dialog script, dialog [onclick], dialog svg[onload]"),
        0
    );
    // Invisible characters are written out.
    let odd = format!("{}.querySelector('.name').textContent", Page::row("line\nbreak \u{202e}txt.exe"));
    assert_eq!(page.eval(&odd), "line\\u{a}break \\u{202e}txt.exe");
    assert_eq!(page.complaints(), [""; 0]);
}

/// Everything the page needs is served there; the routes that take locks are not, and the page does not claim they
/// are.
#[test]
fn at_an_address_of_its_own_the_page_can_do_what_it_does() {
    let server = Server::with_page_elsewhere();
    let mut page = Page::open(&server);
    page.says("#empty-try", "curl $LEASEHOLD_URL/v1/locks/demo/acquire");
    let lease = server.take("deploy", "alice", 600_000);
    page.sees("deploy");
    page.open_detail("deploy");
    page.says("#detail .past", "Granted to alice");
    page.begin_to_revoke();
    page.click("#revoke-yes");
    page.says("#detail-state", "Revoked");
    let renewal = server.verb("deploy", "renew", json!({ "lease_id": lease, "extend_by_ms": 600_000 }));
    assert_eq!(renewal["renewed"], false);
    assert_eq!(page.complaints(), [""; 0]);
}
