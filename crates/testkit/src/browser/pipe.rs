//! The debugging protocol: JSON messages, each ended by a zero byte.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::until::PATIENCE;

/// Both directions, and the browser's events.
#[derive(Debug)]
pub(super) struct Pipe {
    to: ChildStdin,
    from: Receiver<Value>,
    last: u64,
    /// The page that calls are meant for; without one, the browser.
    pub(super) session: Option<String>,
    pub(super) events: Vec<Value>,
}

impl Pipe {
    pub(super) fn new(to: ChildStdin, from: ChildStdout) -> Self {
        let (send, receive) = channel();
        std::thread::spawn(move || {
            let mut from = BufReader::new(from);
            let mut message = Vec::new();
            while matches!(from.read_until(0, &mut message), Ok(read) if read > 0) {
                message.pop();
                let parsed = serde_json::from_slice(&message);
                message.clear();
                if parsed.is_ok_and(|value| send.send(value).is_err()) {
                    return;
                }
            }
        });
        Pipe { to, from: receive, last: 0, session: None, events: Vec::new() }
    }

    /// Calls a method; returns its result.
    ///
    /// # Panics
    /// If the browser is gone, is silent for a minute, or refuses.
    #[track_caller]
    pub(super) fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        let sent = self.to.write_all(&bytes).and_then(|()| self.to.flush());
        sent.expect("the browser listens; is chromium installed?");
        loop {
            let answer =
                self.from.recv_timeout(PATIENCE).expect("the browser answers; is chromium installed?");
            if answer["id"] == self.last {
                assert_eq!(answer["error"], Value::Null, "{method}");
                return answer["result"].clone();
            }
            // A dialog stops the page and everything that waits for it.
            if answer["method"] == "Page.javascriptDialogOpening" {
                let close = json!({ "id": 0, "method": "Page.handleJavaScriptDialog", "params": { "accept": false }, "sessionId": self.session });
                let _ = self.to.write_all(format!("{close}\0").as_bytes());
            }
            if answer["method"].is_string() {
                self.events.push(answer);
            }
        }
    }
}
