//! One line for each operation, written by a separate thread, so that a slow log reader delays no lock.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};

use crate::digits::Digits;

/// Bytes of lines that may wait for the writer thread, some thousand lines. Further lines are dropped and counted.
const CAPACITY: usize = 4 << 20;

/// How long lines are collected before they are written together. Waking the writer for each line costs more than the
/// lines, and nobody reads them this soon.
const GATHER: Duration = Duration::from_millis(10);

/// How long a flush waits at most: the log's reader may be stuck.
pub(crate) const FLUSH: Duration = Duration::from_secs(1);

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LogForm {
    /// `key=value`, for people.
    #[default]
    Text,
    /// JSON, for programs.
    Json,
}

/// A handle to the server's log.
#[derive(Debug, Clone)]
pub struct Log(Option<Arc<Sender>>);

/// Shared by all handles of a log. When the last one is dropped, the writer writes what is left and ends.
#[derive(Debug)]
struct Sender {
    form: LogForm,
    desk: Arc<Desk>,
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.desk.state.lock().closed = true;
        self.desk.bell.notify_all();
    }
}

/// The buffer where lines wait for the writer.
#[derive(Debug, Default)]
struct Desk {
    state: Mutex<Lines>,
    /// There is something to write.
    bell: Condvar,
    /// Something was written.
    done: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    lines: Vec<u8>,
    dropped: u64,
    /// A `flush` is waiting: write at once instead of collecting more lines.
    hurry: bool,
    writing: bool,
    closed: bool,
}

impl Desk {
    /// Runs the writer thread.
    fn write(&self, mut out: impl Write, form: LogForm) {
        let mut lines = Vec::new();
        loop {
            let idle = |state: &mut Lines| state.lines.is_empty() && !state.closed;
            let mut state = self.state.lock();
            self.bell.wait_while(&mut state, idle);
            let gather = |state: &mut Lines| !state.hurry && !state.closed;
            self.bell.wait_while_for(&mut state, gather, GATHER);
            if state.lines.is_empty() {
                return;
            }
            std::mem::swap(&mut lines, &mut state.lines);
            (state.hurry, state.writing) = (false, true);
            let dropped = std::mem::take(&mut state.dropped);
            drop(state);
            if dropped > 0 {
                let mut line = Line::begin(form);
                line.text("level", "warn");
                line.text("op", "log");
                line.number("dropped", dropped);
                lines.append(&mut line.end());
            }
            // If the log's reader is gone, nobody is left to report that to.
            let _ = out.write_all(&lines).and_then(|()| out.flush());
            lines.clear();
            self.state.lock().writing = false;
            self.done.notify_all();
        }
    }
}

impl Log {
    /// A log that drops every line.
    pub fn none() -> Self {
        Log(None)
    }

    /// Writes lines to `out`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn to(out: impl Write + Send + 'static, form: LogForm) -> std::io::Result<Self> {
        let desk = Arc::new(Desk::default());
        let writer = Arc::clone(&desk);
        std::thread::Builder::new().name("leasehold-log".into()).spawn(move || writer.write(out, form))?;
        Ok(Log(Some(Arc::new(Sender { form, desk }))))
    }

    /// Waits until everything logged so far is written, at most a second.
    pub fn flush(&self) {
        let Some(sender) = &self.0 else { return };
        let mut state = sender.desk.state.lock();
        state.hurry = true;
        sender.desk.bell.notify_all();
        let unwritten = |state: &mut Lines| state.writing || !state.lines.is_empty();
        sender.desk.done.wait_while_for(&mut state, unwritten, FLUSH);
    }

    /// Logs a warning.
    pub fn warning(&self, text: &str) {
        self.line(|line| {
            line.text("level", "warn");
            line.text("op", "warning");
            line.text("message", text);
        });
    }

    /// Logs a line.
    pub(crate) fn line(&self, fill: impl FnOnce(&mut Line)) {
        let Some(sender) = &self.0 else { return };
        let mut line = Line::begin(sender.form);
        fill(&mut line);
        let line = line.end();
        let mut state = sender.desk.state.lock();
        if state.lines.len() + line.len() > CAPACITY {
            state.dropped += 1;
            return;
        }
        let first = state.lines.is_empty();
        state.lines.extend_from_slice(&line);
        drop(state);
        if first {
            sender.desk.bell.notify_one();
        }
    }
}

/// One line, field by field.
pub(crate) struct Line {
    form: LogForm,
    text: Vec<u8>,
}

impl Line {
    fn begin(form: LogForm) -> Self {
        // Longer than most lines.
        let mut line = Line { form, text: Vec::with_capacity(512) };
        line.number("ts", SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, leasehold::wire::floor_ms));
        line
    }

    fn end(mut self) -> Vec<u8> {
        self.text.extend_from_slice(if self.form == LogForm::Json { b"}\n" } else { b"\n" });
        self.text
    }

    fn key(&mut self, key: &str) {
        let (before, after) = match (self.form, self.text.is_empty()) {
            (LogForm::Json, true) => ("{\"", "\":"),
            (LogForm::Json, false) => (",\"", "\":"),
            (LogForm::Text, true) => ("", "="),
            (LogForm::Text, false) => (" ", "="),
        };
        for part in [before, key, after] {
            self.text.extend_from_slice(part.as_bytes());
        }
    }

    /// Adds a number.
    pub(crate) fn number(&mut self, key: &str, value: impl Into<u64>) {
        self.key(key);
        self.text.extend_from_slice(Digits::of(value.into()).as_bytes());
    }

    /// Adds a text, in quotes where it could be misread without them.
    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        if self.form == LogForm::Text && is_plain(value) {
            self.text.extend_from_slice(value.as_bytes());
        } else {
            // A text always serialises, and writing to memory cannot fail.
            let _ = serde_json::to_writer(&mut self.text, value);
        }
    }

    /// Adds a time in milliseconds, with microseconds as decimals.
    pub(crate) fn milliseconds(&mut self, key: &str, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.number(key, micros / 1000);
        let rest = micros % 1000;
        // Always three decimals: add a thousand, and drop the leading one.
        self.text.push(b'.');
        self.text.extend_from_slice(&Digits::of(1000 + rest).as_bytes()[1..]);
    }
}

/// Whether a value can stand without quotes.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'=')
}
