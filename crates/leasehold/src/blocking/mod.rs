//! The same locks for synchronous callers.
//!
//! Everything here has the name, the options and the meaning of its namesake at the crate's root, and blocks where
//! that one is awaited. It needs no runtime. A thread that belongs to a runtime may call it too: the call blocks that
//! thread, as any blocking call would, but it does not panic and does not need that runtime to make progress.
//!
//! Two callers get `Deadlock`, because they would wait for themselves: the library's own threads, on which
//! [`on_release_error`](crate::Options::on_release_error) is called; and, where
//! [`LocksBuilder::runtime`](crate::LocksBuilder::runtime) gave the client a runtime with one thread, a call that has
//! to wait on that thread, after a second in which that runtime makes no progress.
//!
//! Cancel a blocked call from another thread with a [`Cancel`](crate::Cancel).
//!
//! ```
//! use leasehold::blocking::Locks;
//!
//! let locks = Locks::connect("memory:")?;
//! let guard = locks.mutex("nightly-report").lock()?;
//! println!("fence {}", guard.fence());
//! guard.release()?;
//! # Ok::<(), leasehold::Error>(())
//! ```

// What belongs here: the blocking form of each method of `client`, and how a thread waits without a runtime. Everything
// else is in `client` and `engine`. Before changing anything here:
// `cargo test -p leasehold --all-features --test blocking --test threads`.

mod election;
mod guard;
mod leasing;
mod locks;
mod multi_lock;
mod mutex;
#[cfg(feature = "schedule")]
mod once;
mod rwlock;
mod semaphore;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::unconstrained;

use crate::backend::Mode;
use crate::client::guard::LostSignal;
use crate::client::home::Client;
use crate::engine::held::LostReason;
use crate::error::{Error, ErrorKind, Result};

pub use election::{Election, Term};
pub use guard::Guard;
pub use leasing::Leasing;
pub use locks::Locks;
pub use multi_lock::{MultiGuard, MultiLock};
pub use mutex::Mutex;
#[cfg(feature = "schedule")]
pub use once::{Begun, Once, TickGuard};
pub use rwlock::RwLock;
pub use semaphore::Semaphore;

/// How long the runtime that this thread belongs to may hold back a wake-up. See [`block_on`].
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How long a runtime may make no progress before it counts as blocked by the thread that waits for it.
const TURN: Duration = Duration::from_secs(1);

/// Runs a future to its end on this thread; its timers and connections live on `runtime`.
///
/// Unlike `Handle::block_on` it also works on a thread that belongs to another runtime, and takes nothing from that
/// runtime. It polls `unconstrained`, because a task of that runtime has a budget of steps, which is not refilled
/// while its thread is blocked.
fn block_on<F: Future>(runtime: Option<&Handle>, future: F) -> F::Output {
    let inside_another = Handle::try_current().is_ok();
    let _entered = runtime.map(Handle::enter);
    let parked = Arc::new(Parked { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&parked));
    let mut future = pin!(unconstrained(future));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        if inside_another {
            // `yield_now` leaves its wake-up with the thread's runtime, which delivers it only when the thread is
            // free.
            parked.park(|| thread::park_timeout(LOOK_AGAIN));
        } else {
            while !parked.park(thread::park) {}
        }
    }
}

/// A thread that waits to be woken.
struct Parked {
    thread: Thread,
    /// The thread's own park token does not say whose wake-up it was, when one call runs inside another.
    woken: AtomicBool,
}

impl Parked {
    /// Parks unless a wake-up came before. Returns whether one has come by now.
    fn park(&self, park: impl FnOnce()) -> bool {
        let before = self.woken.swap(false, Ordering::Acquire);
        if !before {
            park();
        }
        before || self.woken.swap(false, Ordering::Acquire)
    }
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Client {
    fn block_on<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        let deadlock = || {
            Error::new(
                ErrorKind::Deadlock,
                "a blocking call on a thread that does this client's background work would wait for itself",
            )
        };
        if self.is_own_thread() {
            return Err(deadlock());
        }
        let runtime = self.start()?;
        let mut doubtful = self.may_block_its_runtime();
        let mut future = pin!(future);
        block_on(
            Some(runtime),
            poll_fn(|cx| {
                let poll = future.as_mut().poll(cx);
                // A call that need not wait needs no runtime either.
                if poll.is_pending() && std::mem::take(&mut doubtful) && !is_turned(runtime) {
                    return Poll::Ready(Err(deadlock()));
                }
                poll
            }),
        )
    }
}

impl Client {
    /// Waits until a lease is lost, for at most `timeout`.
    fn wait_lost_for(&self, signal: LostSignal, timeout: Duration) -> Option<LostReason> {
        let lost = async { Ok(tokio::time::timeout(timeout, signal.clone()).await.ok()) };
        self.block_on(lost).unwrap_or_else(|_| signal.now())
    }
}

/// Whether a runtime makes progress while this thread is blocked. Tokio does not say whether a thread drives a runtime
/// or only belongs to it, as the threads of `spawn_blocking` do, so this tries it out.
fn is_turned(runtime: &Handle) -> bool {
    let (turned, heard) = mpsc::channel();
    runtime.spawn(async move {
        let _ = turned.send(());
    });
    // A runtime that was shut down counts as fine: calls on it end by themselves.
    heard.recv_timeout(TURN) != Err(mpsc::RecvTimeoutError::Timeout)
}

/// What every blocking lock is made of.
#[derive(Debug, Clone)]
struct Lock(crate::client::lock::Lock);

impl Lock {
    fn block_on<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.0.client().block_on(future)
    }

    fn wait(&self, mode: Mode) -> Result<Guard> {
        self.block_on(self.0.wait(mode)).map(Guard)
    }

    fn once(&self, mode: Mode) -> Result<Option<Guard>> {
        Ok(self.block_on(self.0.once(mode))?.map(Guard))
    }

    fn within(&self, mode: Mode, timeout: Duration) -> Result<Option<Guard>> {
        Ok(self.block_on(self.0.within(mode, timeout))?.map(Guard))
    }

    /// Runs `work` under a guard and releases the guard whatever happens. The work's own error is returned.
    fn with<T, E>(&self, mode: Mode, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        let guard = Lock(self.0.bounded()).wait(mode)?;
        let result = work(&guard);
        let held = guard.check();
        guard.release_after_work();
        let output = result?;
        held?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resolves after this long, by a thread that rings once.
    fn rung_after(time: Duration) -> impl Future<Output = ()> {
        let over = Arc::new(AtomicBool::new(false));
        let mut asked = false;
        poll_fn(move |cx| {
            if over.load(Ordering::SeqCst) {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut asked, true) {
                let (waker, over) = (cx.waker().clone(), Arc::clone(&over));
                thread::spawn(move || {
                    thread::sleep(time);
                    over.store(true, Ordering::SeqCst);
                    waker.wake();
                });
            }
            Poll::Pending
        })
    }

    #[test]
    fn a_call_inside_another_does_not_take_its_wake_up() {
        testkit::until::in_time_blocking("both calls end", || {
            let mut outer = Box::pin(rung_after(Duration::from_millis(10)));
            let mut first = true;
            block_on(
                None,
                poll_fn(move |cx| {
                    let poll = outer.as_mut().poll(cx);
                    if std::mem::take(&mut first) {
                        // While the inner call waits here, the outer one is woken, on the same thread.
                        block_on(None, rung_after(Duration::from_millis(50)));
                    }
                    poll
                }),
            );
        });
    }

    #[test]
    fn a_wake_up_before_the_thread_parks_is_not_missed() {
        testkit::until::in_time_blocking("no wake-up is missed", || {
            for _ in 0..1000 {
                block_on(None, rung_after(Duration::ZERO));
            }
        });
    }
}
