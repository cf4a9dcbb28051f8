//! A simulated process: its futures run, pause or end together.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::time::MachineClock;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    Yes,
    Paused,
    Killed,
}

/// Shared by its futures.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its number in the records.
    pub(crate) number: u32,
    pub(crate) clock: Arc<MachineClock>,
    /// How many locks it holds.
    pub(crate) holds: AtomicU32,
    runs: Mutex<(Runs, Vec<Waker>)>,
}

impl Process {
    pub(crate) fn new(number: u32, clock: Arc<MachineClock>) -> Arc<Self> {
        Arc::new(Process {
            number,
            clock,
            holds: AtomicU32::new(0),
            runs: Mutex::new((Runs::Yes, Vec::new())),
        })
    }

    /// Whether it holds a lock.
    pub(crate) fn holds(&self) -> bool {
        self.holds.load(Ordering::Relaxed) > 0
    }

    /// Ends it, in the middle of whatever it does.
    pub(crate) fn kill(&self) {
        self.set(Runs::Killed);
    }

    /// Stops it, in the middle of whatever it does.
    pub(crate) fn pause(&self) {
        self.set(Runs::Paused);
    }

    /// Continues it.
    pub(crate) fn resume(&self) {
        self.set(Runs::Yes);
    }

    fn set(&self, to: Runs) {
        let mut runs = self.runs.lock();
        if runs.0 != Runs::Killed {
            runs.0 = to;
        }
        let wakers = std::mem::take(&mut runs.1);
        drop(runs);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Runs a future as part of the process.
    pub(crate) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(Part { process: Arc::clone(self), work: Some(Box::pin(work)) });
    }
}

/// A future of the process.
struct Part {
    process: Arc<Process>,
    work: Option<Work>,
}

impl Future for Part {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut runs = self.process.runs.lock();
        // Nothing else wakes a paused future, or one that waits for something that never comes.
        if !runs.1.iter().any(|waker| waker.will_wake(cx.waker())) {
            runs.1.push(cx.waker().clone());
        }
        let now = runs.0;
        drop(runs);
        match (now, &mut self.work) {
            (Runs::Yes, Some(work)) => work.as_mut().poll(cx),
            (Runs::Paused, Some(_)) => Poll::Pending,
            // What its futures still do when they are dropped has no effect: the rest of the process does not run.
            (Runs::Killed, work) => {
                *work = None;
                Poll::Ready(())
            }
            (_, None) => Poll::Ready(()),
        }
    }
}
