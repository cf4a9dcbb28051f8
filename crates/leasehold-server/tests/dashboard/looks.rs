//! The look of the dashboard: dark and light, on a phone, by keyboard alone.

use serde_json::json;

use crate::support::{Page, Server};

/// A server that has a lock in every state.
fn lively() -> Server {
    let server = Server::start();
    server.take("billing/nightly", "worker-7", 600_000);
    server.queue("billing/nightly", "worker-2");
    server.take(&"a-long-name/".repeat(21), &"host.example.".repeat(19), 600_000);
    server.take(&"東京🔒".repeat(25), "me", 600_000);
    server.verb(
        "slots",
        "acquire",
        json!({ "owner_id": "me", "ttl_ms": 600_000, "mode": "permit", "limit": 5 }),
    );
    server.take("revoked", "me", 600_000);
    server.verb("revoked", "revoke", json!({}));
    server
}

/// Visible texts whose contrast with their background is below the 4.5 that WCAG AA requires.
const PALE: &str = r#"(() => {
  const parse = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => { const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const over = (top, under) => { const a = top[3] ?? 1; return [0, 1, 2].map((i) => top[i] * a + under[i] * (1 - a)); };
  const behind = (e) => { const layers = []; for (; e; e = e.parentElement) layers.unshift(parse(getComputedStyle(e).backgroundColor)); return layers.reduce((under, top) => over(top, under), [255, 255, 255]); };
  const open = document.querySelector("dialog[open]:last-of-type");
  const pale = [];
  for (const e of (open || document.body).querySelectorAll("*")) {
    if (e.closest("svg, noscript") || !e.checkVisibility() || e.disabled) continue;
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const under = behind(e), text = over(parse(getComputedStyle(e).color), under), [a, b] = [light(text), light(under)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) pale.push(e.tagName + "." + e.className + " " + ratio.toFixed(2) + " " + e.textContent.slice(0, 20));
  }
  return pale;
})()"#;

#[test]
fn dark_and_light_follow_preference_or_choice_and_are_readable() {
    let server = lively();
    let mut page = Page::open(&server);
    page.sees("revoked");
    let ground = "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])";
    page.until(&format!("{ground} > 200"));
    page.colours("dark");
    page.until(&format!("{ground} < 50"));
    for scheme in ["dark", "light"] {
        page.colours(scheme);
        page.until(&format!("document.documentElement.dataset.theme === '{scheme}'"));
        assert_eq!(page.eval(PALE), json!([]), "{scheme}");
        page.open_detail("billing/nightly");
        page.until("!document.getElementById('revoke').disabled");
        assert_eq!(page.eval(PALE), json!([]), "{scheme}, closer");
        page.click("#revoke");
        page.until("document.getElementById('confirm').open");
        assert_eq!(page.eval(PALE), json!([]), "{scheme}, question");
        page.click("#revoke-no");
        page.click("#close");
        page.until("!document.getElementById('detail').open");
    }
    // The chosen theme stays chosen.
    page.click("#theme");
    page.until(&format!("{ground} < 50"));
    let url = server.url.clone();
    page.go(&url);
    page.until(&format!("{ground} < 50"));
    drop(server);
    page.until("!document.getElementById('gone').hidden");
    assert_eq!(page.eval("getComputedStyle(document.getElementById('gone')).color"), "rgb(255, 255, 255)");
    assert_eq!(
        page.eval("getComputedStyle(document.getElementById('gone')).backgroundColor"),
        "rgb(184, 50, 42)"
    );
}

#[test]
fn everything_can_be_done_by_keyboard_and_the_focus_is_seen() {
    let server = Server::start();
    server.take("a", "me", 600_000);
    server.take("b", "me", 600_000);
    let mut page = Page::open(&server);
    page.sees("b");
    let focused = "document.activeElement.closest('tr')?.dataset.name";
    let ringed = "getComputedStyle(document.activeElement.closest('tr')).outlineStyle === 'solid'";
    page.key("/");
    page.until("document.activeElement.id === 'search'");
    assert_eq!(page.eval("document.getElementById('search').value"), "");
    page.key("Tab");
    page.until(&format!("{focused} === 'a' && {ringed}"));
    page.key("ArrowDown");
    page.until(&format!("{focused} === 'b'"));
    // The focus stays in place while the table updates.
    server.take("aa", "me", 600_000);
    page.sees("aa");
    page.until(&format!("{focused} === 'b' && {ringed}"));
    page.key("Enter");
    page.until("document.getElementById('detail').open && !document.getElementById('revoke').disabled");
    page.key("Escape");
    page.until(&format!("!document.getElementById('detail').open && {focused} === 'b'"));
    page.key("Enter");
    page.until("document.getElementById('detail').open && !document.getElementById('revoke').disabled");
    for _ in 0..10 {
        if page.eval("document.activeElement.id") == "revoke" {
            break;
        }
        page.key("Tab");
    }
    assert_eq!(page.eval("document.activeElement.id"), "revoke");
    assert_eq!(page.eval("getComputedStyle(document.activeElement).outlineStyle"), "solid");
    page.key("Enter");
    page.until("document.getElementById('confirm').open && document.activeElement.id === 'revoke-no'");
    page.key("Tab");
    page.until("document.activeElement.id === 'revoke-yes'");
    page.key("Enter");
    page.says("#detail-state", "Revoked");
    assert_eq!(server.lock("b")["holders"][0]["revoked"], true);
}

#[test]
fn a_row_that_goes_leaves_the_focus_to_its_neighbour() {
    let server = Server::start();
    let lease = server.take("a", "me", 600_000);
    server.take("b", "me", 600_000);
    let mut page = Page::open(&server);
    page.sees("b");
    page.key("/");
    page.key("Tab");
    page.until("document.activeElement.closest('tr')?.dataset.name === 'a'");
    server.release("a", &lease);
    page.until("document.activeElement.closest('tr')?.dataset.name === 'b'");
}

#[test]
fn long_names_do_not_overflow_a_phone_or_a_desktop() {
    let server = lively();
    let mut page = Page::open(&server);
    page.sees("revoked");
    let wider = "document.documentElement.scrollWidth - innerWidth";
    for (width, height) in [(390, 844), (320, 640), (820, 1180), (1280, 900)] {
        page.size(width, height);
        page.until(&format!("innerWidth === {width}"));
        assert_eq!(page.eval(wider), 0, "{width}");
        let out = "[...document.querySelectorAll('main *')].filter((e) => e.checkVisibility() && !e.closest('svg') \
                   && e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.tagName + e.className)";
        assert_eq!(page.eval(out), json!([]), "{width}");
        let tall = "Math.max(...[...document.querySelectorAll('#locks tr')].map((row) => row.offsetHeight))";
        assert!(page.eval(tall).as_f64().unwrap() < 130.0, "{width}: a long name takes up the page");
        // Long names too, shown in full in the detail view.
        page.click("#locks tr[data-name^='a-long'] button");
        page.until("document.querySelector('#detail .holder')");
        page.eval("document.getAnimations().length");
        let fits = "[...document.querySelectorAll('#detail, #detail *')].filter((e) => e.checkVisibility() && !e.closest('svg') \
                    && (e.getBoundingClientRect().right > innerWidth + 0.5 || e.getBoundingClientRect().left < -0.5)).length";
        assert_eq!(page.eval(fits), 0, "{width}, closer");
        assert_eq!(page.said("#detail-name"), "a-long-name/".repeat(21));
        page.begin_to_revoke();
        assert_eq!(
            page.eval("document.getElementById('confirm').getBoundingClientRect().right <= innerWidth"),
            true
        );
        page.click("#revoke-no");
        page.click("#close");
        page.until("!document.getElementById('detail').open");
    }
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
fn long_names_that_differ_at_their_ends_do_not_look_alike() {
    let server = Server::start();
    let names = ["one", "two"].map(|end| format!("{}{end}", "tenant/".repeat(60)));
    names.iter().for_each(|name| drop(server.take(name, "me", 600_000)));
    let mut page = Page::open(&server);
    for width in [1280, 390] {
        page.size(width, 844);
        for name in &names {
            page.sees(name);
            let row = Page::row(name);
            assert_eq!(page.eval(&format!("{row}.querySelector('.name').textContent")), *name);
            // The end of the name is visible, and the full name is in the title.
            let seen = format!(
                "(() => {{ const name = {row}.querySelector('.name'), end = name.lastElementChild.getBoundingClientRect(); \
                 return end.width > 0 && end.right <= name.parentElement.getBoundingClientRect().right; }})()"
            );
            assert_eq!(page.eval(&seen), true, "{width}");
            assert_eq!(page.eval(&format!("{row}.querySelector('.name').title")), *name);
        }
    }
}
