//! Reads tokens and certificates again while the server runs, and reports the result.

use std::error::Error as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold::Error;

use crate::app::App;
use crate::serve::tls::Tls;

impl App {
    /// Reads the files of tokens and certificates again, each by itself. If one cannot be read, its old contents stay
    /// in force.
    ///
    /// For each file, a log line says what was read, or why it was not. The metrics say whether all were read, and
    /// when that last happened.
    ///
    /// # Errors
    /// One line for each file that could not be read, for a server without a log.
    pub fn reload(&self, tls: Option<&Tls>) -> Result<(), Vec<String>> {
        let mut failures = Vec::new();
        if let Some(tokens) = &self.settings.tokens {
            let read = tokens.reload().map(|()| Some(tokens.count()));
            self.reloaded("tokens", tokens.path(), "the old tokens stay in force", read, &mut failures);
        }
        if let Some(tls) = tls {
            let read = tls.reload().map(|()| None);
            self.reloaded("certificate", tls.path(), "the old certificate stays in use", read, &mut failures);
        }
        if self.settings.tokens.is_none() && tls.is_none() {
            self.settings.log.line(|line| {
                line.text("level", "info");
                line.text("op", "reload");
                line.text("result", "success");
                line.text(
                    "message",
                    "this server has no tokens and no certificate, so there was nothing to read again",
                );
            });
        }
        self.metrics.reloaded(failures.is_empty());
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }

    fn reloaded(
        &self,
        what: &str,
        file: &Path,
        otherwise: &str,
        read: Result<Option<usize>, Error>,
        failures: &mut Vec<String>,
    ) {
        let error = read.as_ref().err().map(|error| format!("{}; {otherwise}", whole(error)));
        self.settings.log.line(|line| {
            line.text("level", if error.is_none() { "info" } else { "warn" });
            line.text("op", "reload");
            line.text("result", if error.is_none() { "success" } else { "fail" });
            line.text("what", what);
            line.text("file", &file.to_string_lossy());
            if let Ok(Some(tokens)) = &read {
                line.number("tokens", *tokens as u64);
            }
            if let Some(error) = &error {
                line.text("error", error);
            }
        });
        failures.extend(error);
    }
}

/// An error with all its causes, as text.
fn whole(error: &Error) -> String {
    let mut text = error.message().to_owned();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}
