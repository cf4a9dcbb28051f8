//! The test browser itself: it sees what goes wrong on a page, and leaves nothing behind.

use std::path::Path;

use rustix::process::Signal;
use testkit::browser::Browser;
use testkit::process::{self, Child};
use testkit::until::until;

#[test]
fn complaints_and_requests_of_a_page_are_seen() {
    let mut browser = Browser::start();
    browser.go("data:text/html,<title>quiet</title>");
    assert_eq!(browser.eval("document.title"), "quiet");
    assert_eq!((browser.complaints(), browser.requests()), (Vec::new(), Vec::new()));
    browser.go(
        "data:text/html,<button onclick='throw Error(`thrown`)'>x</button><input>\
         <script>console.error('said'); fetch('http://127.0.0.1:1/elsewhere').catch(() => document.title = 'done'); alert('asked')</script>",
    );
    browser.until("document.title === 'done'");
    browser.click("button");
    browser.click("input");
    browser.text("typed");
    browser.key("!");
    assert_eq!(browser.eval("document.querySelector('input').value"), "typed!");
    let complaints = browser.complaints().join("\n");
    for part in ["said", "thrown", "asked", "elsewhere"] {
        assert!(complaints.contains(part), "{part}: {complaints}");
    }
    assert_eq!(browser.requests(), ["http://127.0.0.1:1/elsewhere"]);
    let directory = browser.directory().to_owned();
    drop(browser);
    assert!(!directory.exists());
}

/// Whether a process has this in its command line.
fn runs(part: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("/proc can be read").flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).contains(part))
}

#[test]
fn a_killed_test_process_takes_its_browser_with_it() {
    if process::role().is_some() {
        let browser = Browser::start();
        process::say(&browser.directory().display().to_string());
        process::hear();
        return;
    }
    let child = Child::spawn("a_killed_test_process_takes_its_browser_with_it", "browse");
    let directory = child.line();
    assert!(runs(&directory) && Path::new(&directory).exists());
    child.signal(Signal::KILL);
    until("the browser has ended with its test", || !runs(&directory) && !Path::new(&directory).exists());
}
