//! The profile `logs`: a worker's log subscriber that panics, or blocks the thread that logs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// What is wrong with a worker's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sink {
    /// It panics at every line and every span.
    Panics,
    /// It blocks for this many milliseconds: at every line of the client's background work, and at one in 40 of the
    /// worker's own.
    Blocks { ms: u64 },
}

/// How often a line of a caller's own thread blocks it.
const ONCE_IN: u64 = 40;

/// The name of the thread that writes the lines of a client's background work.
const BACKGROUND: &str = "leasehold-log";

struct Broken {
    sink: Sink,
    lines: AtomicU64,
}

impl Broken {
    fn write(&self) {
        let line = self.lines.fetch_add(1, Ordering::Relaxed);
        match self.sink {
            // Without a message for each.
            Sink::Panics => std::panic::resume_unwind(Box::new("the log is broken")),
            Sink::Blocks { ms } => {
                let background = std::thread::current().name() == Some(BACKGROUND);
                if background || line % ONCE_IN == ONCE_IN - 1 {
                    std::thread::sleep(Duration::from_millis(ms));
                }
            }
        }
    }
}

impl Subscriber for Broken {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Drivers' log lines during the client's I/O are their own.
        metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        if self.sink == Sink::Panics {
            self.write();
        }
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.write();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Installs a broken log in this process.
pub(super) fn install(sink: Sink) -> std::io::Result<()> {
    tracing::subscriber::set_global_default(Broken { sink, lines: AtomicU64::new(0) })
        .map_err(std::io::Error::other)
}
