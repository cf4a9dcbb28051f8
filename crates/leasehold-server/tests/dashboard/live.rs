//! The page shows the current state, and says so when it does not know it.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use testkit::until::{PATIENCE, until};

use crate::support::{Page, Server};

/// From taking or releasing a lock until the page shows it. The median is tested, because a busy machine can be late
/// once.
const SOON: Duration = Duration::from_secs(2);
/// "A few seconds" until the page says that the server is gone, doubled for a busy machine.
const A_FEW: Duration = Duration::from_secs(10);

const LIVE: &str = "document.getElementById('status').dataset.state === 'live'";
const GONE: &str = "!document.getElementById('gone').hidden && document.body.classList.contains('stale')";

#[test]
fn a_lock_appears_within_two_seconds_and_goes_on_release() {
    let server = Server::start();
    let mut page = Page::open(&server);
    page.says("#empty", "No lock is in use");
    let (mut comes, mut goes) = (Vec::new(), Vec::new());
    for round in 0..5 {
        let name = format!("deploy-{round}");
        let began = Instant::now();
        let lease = server.take(&name, "me", 60_000);
        page.sees(&name);
        comes.push(began.elapsed());
        let began = Instant::now();
        server.release(&name, &lease);
        page.sees_no(&name);
        goes.push(began.elapsed());
    }
    comes.sort();
    goes.sort();
    assert!(comes[2] < SOON && goes[2] < SOON, "{comes:?} {goes:?}");
    page.says("#empty", "No lock is in use");
}

#[test]
fn time_left_runs_down_by_itself_and_up_when_it_is_renewed() {
    let server = Server::start();
    let lease = server.take("deploy", "me", 40_000);
    let mut page = Page::open(&server);
    page.sees("deploy");
    let part =
        "Number(/scaleX\\((.*)\\)/.exec(document.querySelector('#locks .track i').style.transform)[1])";
    page.eval(&format!("window.first = {part}"));
    page.until(&format!("{part} < first - 0.03"));
    assert!(page.said("#locks .left span").ends_with(" s"));
    // The remaining time also moves between two answers of the server.
    let looks = |page: &mut Page| page.requests().iter().filter(|url| url.contains("/v1/locks?")).count();
    let before = looks(&mut page);
    page.eval(
        "window.seen = new Set(); \
         setInterval(() => seen.add(document.querySelector('#locks .left span').innerText), 50)",
    );
    // Otherwise there would be at most as many times as answers.
    until("more times are shown than answers come", || {
        let seen = page.eval("seen.size").as_u64().unwrap();
        seen > (looks(&mut page) - before) as u64 + 7
    });
    page.eval(&format!("window.first = {part}"));
    server.verb("deploy", "renew", json!({ "lease_id": lease, "extend_by_ms": 40_000 }));
    page.until(&format!("{part} > first"));
    server.verb("deploy", "renew", json!({ "lease_id": lease, "extend_by_ms": 2_000, "shorten": 1 }));
    page.until("document.querySelector('#locks .left.low') || !document.querySelector('#locks tr')");
}

#[test]
fn the_page_reports_a_dead_server_and_finds_it_again() {
    let server = Server::start();
    server.take("old", "me", 600_000);
    let mut page = Page::open(&server);
    page.sees("old");
    let port = server.port;
    drop(server);
    let took = page.until(GONE);
    assert!(took < A_FEW, "{took:?}");
    // Nothing on the page looks live.
    page.says("#gone", "The server does not answer");
    page.until("document.querySelector('#locks .left span').innerText === 'unknown'");
    assert_eq!(page.said("#status"), "Not live");
    assert!(page.said("#gone").contains("s old"), "{}", page.said("#gone"));
    assert!(page.eval("document.title").as_str().unwrap().contains("not live"));
    let server = Server::on(port, None);
    page.until(LIVE);
    page.until("document.getElementById('gone').hidden && !document.body.classList.contains('stale')");
    page.sees_no("old");
    server.take("new", "me", 600_000);
    page.sees("new");
    page.until("document.querySelector('#locks .left span').innerText.endsWith(' s')");
}

#[test]
fn a_server_that_is_silent_is_said_to_be_silent() {
    let server = Server::start();
    server.take("a", "me", 600_000);
    let mut page = Page::open(&server);
    page.sees("a");
    server.process.stop();
    let took = page.until(GONE);
    assert!(took < A_FEW, "{took:?}");
    page.until("document.querySelector('#locks .left span').innerText === 'unknown'");
    server.process.signal(Signal::CONT);
    page.until(LIVE);
    page.until("document.querySelector('#locks .left span').innerText.endsWith(' s')");
}

#[test]
fn a_hidden_page_sends_nothing_and_refreshes_when_shown() {
    let server = Server::start();
    let mut page = Page::open(&server);
    let hide = |page: &mut Page, hidden: bool| {
        page.eval(&format!(
            "Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }}); \
             document.dispatchEvent(new Event('visibilitychange'))"
        ));
    };
    hide(&mut page, true);
    // Let pending requests finish; then expect silence for the length of three update intervals.
    let (mut quiet, mut last) = (Instant::now(), page.requests().len());
    let began = Instant::now();
    while quiet.elapsed() < Duration::from_secs(3) {
        assert!(began.elapsed() < PATIENCE, "it goes on asking");
        let now = page.requests().len();
        if now != last {
            (quiet, last) = (Instant::now(), now);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(page.said("#status"), "Late");
    server.take("deploy", "me", 60_000);
    hide(&mut page, false);
    page.sees("deploy");
    page.until(LIVE);
}

#[test]
fn rates_and_latency_are_drawn_when_there_is_traffic() {
    let server = Server::start();
    let mut page = Page::open(&server);
    page.until("document.getElementById('rate').innerText === '0.0'");
    let drawn = "['held', 'waiting', 'rate', 'latency'].every((name) => \
                 (document.querySelector('#' + name + '-chart .line').getAttribute('d').match(/L/g) || []).length >= 2)";
    let busy = "parseFloat(document.getElementById('rate').innerText) > 0 \
                && /ms$/.test(document.getElementById('latency').innerText) \
                && /p99/.test(document.getElementById('latency-more').innerText)";
    let (mut seen_busy, mut number) = (false, 0);
    until("figures of the traffic are drawn", || {
        let name = format!("job-{}", number % 7);
        number += 1;
        let lease = server.take(&name, "me", 60_000);
        server.release(&name, &lease);
        seen_busy |= page.eval(busy) == true;
        seen_busy && page.eval(drawn) == true
    });
    server.take("kept", "me", 60_000);
    server.queue("kept", "you");
    page.until("document.getElementById('held').innerText === '1' && document.getElementById('waiting').innerText === '1'");
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
fn a_thousand_locks_are_cut_with_a_note_and_stay_quick() {
    let server = Server::start();
    for number in 0..1200 {
        server.take(&format!("lock-{number:04}"), &format!("owner-{number}"), 600_000);
    }
    let mut page = Page::open(&server);
    page.sees("lock-0199");
    page.says("#note", "1,000 more leases are not");
    assert_eq!(page.count("#locks tr"), 200);
    assert_eq!(page.said("#count"), "first 200");
    // The page keeps drawing frames while updates arrive. The best of a few is tested: a busy machine can miss some.
    let frame = "new Promise((done) => { const began = performance.now(); \
                 requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began))); })";
    let best = (0..20).map(|_| page.eval(frame).as_f64().unwrap()).fold(f64::MAX, f64::min);
    assert!(best < 200.0, "a frame takes {best} ms");
    page.search("lock-1177");
    page.sees("lock-1177");
    page.until("document.querySelectorAll('#locks tr').length === 1");
    page.search("lock-0");
    page.says("#note", "go on typing");
    assert_eq!(page.complaints(), [""; 0]);
}
