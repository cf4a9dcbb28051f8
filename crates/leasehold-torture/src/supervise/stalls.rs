//! Watches whether the machine itself stalls: then nobody can be blamed for being late.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::history::record::{Kind, Log, Record};
use crate::worker::now;

/// How long it sleeps.
const SLEEP: Duration = Duration::from_millis(10);

/// Sleeping this much longer than planned is a stall: less happens on every machine with some load.
const STALL: u64 = 50_000_000;

/// A thread that sleeps, and records when it overslept.
#[derive(Debug)]
pub(super) struct Stalls {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Stalls {
    /// Begins to watch.
    pub(super) fn watch(history: &Path) -> io::Result<Self> {
        let log = Log::append(history)?;
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let watch = move || {
            while !end.load(Ordering::Relaxed) {
                let slept = now();
                std::thread::sleep(SLEEP);
                let woke = now();
                if woke - slept > SLEEP.as_nanos() as u64 + STALL {
                    log.write(Record { value: slept, ..Record::new(Kind::Stall, 0, woke) })?;
                }
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().name("stalls".into()).spawn(watch)?;
        Ok(Stalls { ended, thread: Some(thread) })
    }

    /// Ends it.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.ended.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(done)) => done,
            _ => Err(io::Error::other("the watch for stalls ended")),
        }
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}
