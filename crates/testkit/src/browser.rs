//! A real headless Chromium, driven by its own debugging protocol through a pair of pipes: no port, no separate
//! driver. It ends when dropped, and by itself when the pipes break because the test process died.

mod pipe;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::until::PATIENCE;
use pipe::Pipe;

/// Quiet, and without the sandbox, which does not work for root; the pages are the tests' own.
const FLAGS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
];

/// The protocol uses the descriptors 3 and 4, which become this process's pipes. The browser ends when they break;
/// then the shell removes its directory, even if the test is gone.
const START: &str = r#"dir=$1; shift; "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1; rm -rf "$dir""#;

/// One browser with one page.
#[derive(Debug)]
pub struct Browser {
    process: Child,
    pipe: Pipe,
    directory: PathBuf,
}

impl Browser {
    /// Starts it with an empty page of desktop size, in light colours.
    ///
    /// # Panics
    /// If Chromium is not installed, or does not start.
    pub fn start() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("leasehold-browser-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).expect("a directory for the browser can be made");
        let mut process = Command::new("sh")
            .args(["-c", START, "browser"])
            .arg(&directory)
            .arg("chromium")
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", directory.display()))
            .arg("about:blank")
            // Whatever it writes besides its profile is removed with the directory, too.
            .env("HOME", &directory)
            .env("TMPDIR", &directory)
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_CACHE_HOME")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("a shell can be started");
        let stdin = process.stdin.take().expect("stdin is a pipe");
        let stdout = process.stdout.take().expect("stdout is a pipe");
        let mut browser = Browser { process, pipe: Pipe::new(stdin, stdout), directory };
        browser.attach();
        browser.size(1280, 900);
        browser.colours("light");
        browser
    }

    fn attach(&mut self) {
        let began = Instant::now();
        let page = loop {
            let targets = self.pipe.call("Target.getTargets", json!({}));
            let list = targets["targetInfos"].as_array().cloned().unwrap_or_default();
            if let Some(page) = list.into_iter().find(|target| target["type"] == "page") {
                break page;
            }
            assert!(began.elapsed() < PATIENCE, "the browser has no page");
            std::thread::sleep(Duration::from_millis(10));
        };
        let target = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = self.pipe.call("Target.attachToTarget", target);
        self.pipe.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.pipe.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// The directory it writes to; removed with it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Sets the size of the page, in CSS pixels.
    pub fn size(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.pipe.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Sets the colours that the reader prefers: `light` or `dark`.
    pub fn colours(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.pipe.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Goes to an address.
    ///
    /// # Panics
    /// If nothing answers there.
    pub fn go(&mut self, url: &str) {
        let answer = self.pipe.call("Page.navigate", json!({ "url": url }));
        assert_eq!(answer["errorText"], Value::Null, "{url} cannot be opened");
        self.until("document.readyState === 'complete'");
    }

    /// The value of a JavaScript expression; for a promise, its result.
    ///
    /// # Panics
    /// If it throws.
    pub fn eval(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.pipe.call("Runtime.evaluate", asked);
        assert_eq!(answer["exceptionDetails"], Value::Null, "{expression}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true; returns how long that took.
    ///
    /// # Panics
    /// If it does not become true within a minute; a picture of the page is left then.
    #[track_caller]
    pub fn until(&mut self, expression: &str) -> Duration {
        let began = Instant::now();
        while self.eval(&format!("Boolean({expression})")) != true {
            if began.elapsed() >= PATIENCE {
                let picture = self.directory.with_extension("png");
                self.screenshot(&picture);
                panic!("it never came to be so: {expression}\nsee {}", picture.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        began.elapsed()
    }

    /// Clicks in the middle of the first element of a selector, on whatever lies on top there.
    ///
    /// # Panics
    /// If no such element is visible.
    #[track_caller]
    pub fn click(&mut self, selector: &str) {
        let middle = format!(
            "(() => {{ const e = document.querySelector({}); if (!e) return null; e.scrollIntoView({{ block: 'nearest' }}); \
             const r = e.getBoundingClientRect(); return r.width ? [r.x + r.width / 2, r.y + r.height / 2] : null; }})()",
            json!(selector)
        );
        let middle = self.eval(&middle);
        assert!(middle.is_array(), "{selector} is not there");
        for kind in ["mousePressed", "mouseReleased"] {
            let event =
                json!({ "type": kind, "x": middle[0], "y": middle[1], "button": "left", "clickCount": 1 });
            self.pipe.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Types text into the focused element.
    pub fn text(&mut self, text: &str) {
        self.pipe.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses and releases a key, by its name in JavaScript: `Tab`, `Enter`, `Escape`, `ArrowDown`, `a`.
    pub fn key(&mut self, key: &str) {
        // The key codes make the browser itself act on these keys.
        let (number, text) = match key {
            "Tab" => (9, None),
            "Enter" => (13, Some("\r")),
            "Escape" => (27, None),
            " " => (32, Some(" ")),
            "ArrowUp" => (38, None),
            "ArrowDown" => (40, None),
            other => (0, Some(other)),
        };
        let mut event =
            json!({ "type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": number });
        if let Some(text) = text {
            event["text"] = json!(text);
        }
        self.pipe.call("Input.dispatchKeyEvent", event.clone());
        event["type"] = json!("keyUp");
        self.pipe.call("Input.dispatchKeyEvent", event);
    }

    /// Writes a picture of the page as PNG.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn screenshot(&mut self, path: &Path) {
        let answer = self.pipe.call("Page.captureScreenshot", json!({ "format": "png" }));
        let data = answer["data"].as_str().expect("a picture in base64");
        let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, data);
        std::fs::write(path, bytes.expect("a picture in base64")).expect("the picture can be written");
    }

    /// All complaints so far: errors and warnings on the console and of the browser itself, and uncaught exceptions.
    pub fn complaints(&mut self) -> Vec<String> {
        // Earlier messages have arrived when this is answered.
        self.eval("0");
        let loud = |event: &Value| {
            let params = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
                "Runtime.consoleAPICalled"
                    if matches!(params["type"].as_str(), Some("error" | "warning" | "assert")) =>
                {
                    Some(params["args"].to_string())
                }
                "Log.entryAdded"
                    if matches!(params["entry"]["level"].as_str(), Some("error" | "warning")) =>
                {
                    Some(params["entry"].to_string())
                }
                "Page.javascriptDialogOpening" => Some(format!("a dialog: {}", params["message"])),
                _ => None,
            }
        };
        self.pipe.events.iter().filter_map(loud).collect()
    }

    /// The addresses of all requests so far, without `data:`, which is in the page itself.
    pub fn requests(&mut self) -> Vec<String> {
        self.eval("0");
        let sent = self.pipe.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        let urls = sent.filter_map(|event| event["params"]["request"]["url"].as_str().map(str::to_owned));
        urls.filter(|url| !url.starts_with("data:")).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its helpers are in its group.
        if let Some(pid) = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        // A dying helper may still write.
        let began = Instant::now();
        while std::fs::remove_dir_all(&self.directory).is_err()
            && self.directory.exists()
            && began.elapsed() < Duration::from_secs(5)
        {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
