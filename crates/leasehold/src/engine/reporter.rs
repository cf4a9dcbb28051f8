//! Keeps logs, metrics and callbacks off the thread that renews leases, because they run the program's own code and may block.
//!
//! On a caller's thread every report runs at once. A thread that renews passes its reports to a second thread, which
//! starts with the first report and ends together with the first thread. A panic is contained on both.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, ThreadId};

/// The most log lines that wait while the log is blocked. Further lines are dropped and counted; callbacks are never
/// dropped.
const MOST_LINES: u64 = 1024;

thread_local! {
    static OUTLET: RefCell<Outlet> = const { RefCell::new(Outlet::Here) };
    /// On a reporter's thread: the thread that it reports for.
    static REPORTS_FOR: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

/// Where this thread's logs and callbacks run.
enum Outlet {
    /// On this thread, a caller's: it waits for its own log.
    Here,
    /// On a second thread, which is not started yet because there was nothing to report.
    Beside,
    Thread(Reporter),
}

struct Reporter {
    reports: Sender<Report>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Lines that wait or are being written.
    lines: AtomicU64,
    /// Lines dropped since the last report of that.
    dropped: AtomicU64,
}

struct Report {
    call: Box<dyn FnOnce() + Send>,
    is_line: bool,
}

/// From now on, another thread writes the reports of this one.
pub(crate) fn keep_off_this_thread() {
    OUTLET.set(Outlet::Beside);
}

/// Whether another thread writes the reports of this one.
#[cfg(feature = "metrics")]
pub(crate) fn is_beside() -> bool {
    OUTLET.try_with(|outlet| !matches!(*outlet.borrow(), Outlet::Here)).unwrap_or(false)
}

/// The thread whose logs and callbacks this thread runs, if it is a reporter's.
pub(crate) fn reports_for() -> Option<ThreadId> {
    REPORTS_FOR.get()
}

/// Writes a log line. Drops it if the log is blocked and too many lines wait.
pub(crate) fn log(line: impl FnOnce() + Send + 'static) {
    tell(Report { call: Box::new(line), is_line: true });
}

/// Calls a callback. Never dropped.
pub(crate) fn call_back(callback: impl FnOnce() + Send + 'static) {
    tell(Report { call: Box::new(callback), is_line: false });
}

/// Calls this when everything that this thread has reported so far is done.
pub(crate) fn afterwards(call: impl FnOnce() + Send + 'static) {
    let started = OUTLET.try_with(|outlet| matches!(*outlet.borrow(), Outlet::Thread(_)));
    if started == Ok(true) { call_back(call) } else { call() }
}

/// Runs the program's own code and contains its panic. Returns the result unless it panicked.
pub(crate) fn contained<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

fn tell(report: Report) {
    // A thread that is ending has no outlet any more.
    let here = OUTLET.try_with(|outlet| outlet.borrow_mut().pass(report)).unwrap_or(None);
    if let Some(report) = here {
        contained(report.call);
    }
}

impl Outlet {
    /// Passes a report on; returns it if this thread is to run it.
    fn pass(&mut self, report: Report) -> Option<Report> {
        match self {
            Outlet::Here => Some(report),
            Outlet::Thread(reporter) => reporter.pass(report),
            Outlet::Beside => match Reporter::start() {
                Ok(reporter) => {
                    let back = reporter.pass(report);
                    *self = Outlet::Thread(reporter);
                    back
                }
                // No thread could be started; the next report tries again.
                Err(_) => Some(report),
            },
        }
    }
}

impl Reporter {
    fn start() -> std::io::Result<Self> {
        let (reports, waiting) = mpsc::channel();
        let counts = Arc::<Counts>::default();
        let (counted, renews) = (Arc::clone(&counts), thread::current().id());
        thread::Builder::new().name("leasehold-log".into()).spawn(move || {
            REPORTS_FOR.set(Some(renews));
            deliver(&waiting, &counted);
        })?;
        Ok(Reporter { reports, counts })
    }

    fn pass(&self, report: Report) -> Option<Report> {
        if report.is_line {
            if self.counts.lines.load(Ordering::Relaxed) >= MOST_LINES {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            self.counts.lines.fetch_add(1, Ordering::Relaxed);
        }
        self.reports.send(report).err().map(|unsent| unsent.0)
    }
}

fn deliver(reports: &Receiver<Report>, counts: &Counts) {
    for report in reports {
        contained(report.call);
        if report.is_line {
            counts.lines.fetch_sub(1, Ordering::Relaxed);
        }
        let dropped = counts.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            contained(|| {
                tracing::warn!(dropped, "log lines were dropped, because the log took none for a while")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_log_that_takes_nothing_loses_lines_but_no_callback() {
        let (told, heard) = mpsc::channel();
        let (unblock, blocked) = mpsc::channel::<()>();
        let renews = thread::spawn(move || {
            keep_off_this_thread();
            log(move || blocked.recv().unwrap_or_default());
            for _ in 0..3 * MOST_LINES {
                let told = told.clone();
                log(move || told.send("line").unwrap_or_default());
            }
            call_back(move || told.send("callback").unwrap_or_default());
        });
        testkit::until::until("the thread is not held up", || renews.is_finished());
        assert_eq!(heard.recv_timeout(Duration::ZERO), Err(mpsc::RecvTimeoutError::Timeout));
        drop(unblock);
        let all: Vec<_> = heard.iter().collect();
        assert_eq!(all.iter().filter(|what| **what == "line").count() as u64, MOST_LINES - 1);
        assert_eq!(all.last(), Some(&"callback"));
    }
}
