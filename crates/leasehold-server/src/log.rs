//! One line for each operation, written by a thread of its own: a slow reader of the log delays no lock.

use std::fmt::Write as _;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Lines that may wait for their writer; more are dropped and counted.
const CAPACITY: usize = 8192;

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LogForm {
    /// `key=value`, for people.
    #[default]
    Text,
    /// JSON, for programs.
    Json,
}

/// Where the lines of a server go.
#[derive(Debug, Clone)]
pub struct Log(Option<(SyncSender<Line>, LogForm, Arc<AtomicU64>)>);

/// A line, or a request to say when everything before it was written.
enum Line {
    Text(String),
    Flush(SyncSender<()>),
}

/// One operation.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) level: &'static str,
    pub(crate) op: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lock: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lock_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner_hash: Option<String>,
    pub(crate) result: &'static str,
    pub(crate) status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lease_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waited_ms: Option<u64>,
    pub(crate) latency_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    pub(crate) request_id: String,
}

impl Log {
    /// No lines at all.
    pub fn none() -> Self {
        Log(None)
    }

    /// Lines to this writer.
    ///
    /// # Errors
    /// If no thread can be had.
    pub fn to(mut out: impl Write + Send + 'static, form: LogForm) -> std::io::Result<Self> {
        let (send, lines) = sync_channel::<Line>(CAPACITY);
        std::thread::Builder::new().name("leasehold-log".into()).spawn(move || {
            for line in lines {
                match line {
                    // With the reader gone there is nobody left to tell.
                    Line::Text(line) => drop(out.write_all(line.as_bytes())),
                    Line::Flush(done) => {
                        let _ = out.flush();
                        let _ = done.send(());
                    }
                }
            }
        })?;
        Ok(Log(Some((send, form, Arc::default()))))
    }

    /// Waits until what was logged so far is written, at most a second.
    pub fn flush(&self) {
        if let Some((send, ..)) = &self.0 {
            let (done, wait) = sync_channel(1);
            if send.try_send(Line::Flush(done)).is_ok() {
                let _ = wait.recv_timeout(std::time::Duration::from_secs(1));
            }
        }
    }

    pub(crate) fn line<E: Serialize>(&self, entry: impl FnOnce() -> E) {
        let Some((send, form, dropped)) = &self.0 else { return };
        let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(entry()) else { return };
        let ts = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
        let mut line = String::new();
        match form {
            LogForm::Json => {
                let _ = write!(line, "{{\"ts\":{ts}");
                for (key, value) in fields {
                    let _ = write!(line, ",{}:{value}", serde_json::Value::String(key));
                }
                line.push('}');
            }
            LogForm::Text => {
                let _ = write!(line, "ts={ts}");
                for (key, value) in fields {
                    let _ = match &value {
                        serde_json::Value::String(text) if is_plain(text) => write!(line, " {key}={text}"),
                        value => write!(line, " {key}={value}"),
                    };
                }
            }
        }
        line.push('\n');
        if send.try_send(Line::Text(line)).is_err() {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether a value can stand without quotes.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'=')
}
