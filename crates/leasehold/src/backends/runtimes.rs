//! Decides on which runtime a connection lives, for all stores.
//!
//! Home is the runtime on which the store was opened: the client's own thread, unless the caller opened the store
//! itself. Work that must outlive the callers runs there: renewals, give-backs, the opening of stores, sessions that
//! hold locks. But a call from another runtime over a connection at home costs two thread switches. So a runtime that
//! calls more than a few times gets its own connections, until it ends. docs/decisions/030 has the reasons.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;

use crate::error::{Error, ErrorKind, Result};

/// A runtime that has called less often than this uses the connections at home: one made for a call or two is not
/// worth its own.
const SETTLED_IN: u32 = 4;

/// Runs `work` on a runtime, to its end even if the caller stops waiting. Connections that it makes live there.
pub(crate) async fn run_on<T: Send + 'static>(
    runtime: &Handle,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    runtime.spawn(work).await.unwrap_or_else(|error| {
        let message = "the async runtime that the store's connections belong to has ended; make a new client";
        Err(Error::new(ErrorKind::Unavailable, message).with_source(error))
    })
}

/// One value for each runtime that calls a store. A value is dropped when its runtime ends, or with this map.
pub(crate) struct PerRuntime<T = ()> {
    home: Id,
    entries: Arc<Entries<T>>,
}

type Entries<T> = Mutex<Vec<Entry<T>>>;

struct Entry<T> {
    runtime: Id,
    calls: u32,
    /// `None` if it has not been tried yet.
    can_connect: Option<bool>,
    value: Option<Arc<T>>,
    /// The task that ends with the runtime.
    end: Option<AbortHandle>,
}

impl<T> Drop for Entry<T> {
    fn drop(&mut self) {
        if let Some(end) = &self.end {
            end.abort();
        }
    }
}

impl<T: Send + Sync + 'static> PerRuntime<T> {
    /// A map for all runtimes except this one.
    pub(crate) fn beside(home: &Handle) -> Self {
        PerRuntime { home: home.id(), entries: Arc::default() }
    }

    /// The value of the current runtime, made at its fourth call. `None`: the call is served at home, because it comes
    /// from there, from no runtime, or from one that has made few calls or cannot have connections.
    pub(crate) fn current(&self, make: impl FnOnce(Handle) -> T) -> Option<Arc<T>> {
        let handle = Handle::try_current().ok().filter(|handle| handle.id() != self.home)?;
        let found = self.with_entry(&handle, |entry| {
            entry.calls = entry.calls.saturating_add(1);
            (entry.calls >= SETTLED_IN).then(|| entry.value.clone())
        })?;
        if found.is_some() {
            return found;
        }
        let handle = self.here()?;
        let value = self.with_entry(&handle.clone(), |entry| {
            Arc::clone(entry.value.get_or_insert_with(|| Arc::new(make(handle))))
        });
        Some(value)
    }

    /// The current runtime, home or another, if it can have connections.
    pub(crate) fn here(&self) -> Option<Handle> {
        let handle = Handle::try_current().ok()?;
        if handle.id() == self.home {
            return Some(handle);
        }
        let known = self.with_entry(&handle, |entry| entry.can_connect);
        let can_connect = known.unwrap_or_else(|| {
            let can_connect = can_connect(&handle);
            self.with_entry(&handle, |entry| entry.can_connect = Some(can_connect));
            can_connect
        });
        can_connect.then_some(handle)
    }

    /// Calls `act` with every value.
    pub(crate) fn each(&self, mut act: impl FnMut(&T)) {
        self.entries.lock().iter().filter_map(|entry| entry.value.as_deref()).for_each(&mut act);
    }

    fn with_entry<R>(&self, handle: &Handle, act: impl FnOnce(&mut Entry<T>) -> R) -> R {
        let runtime = handle.id();
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.runtime == runtime) {
            return act(entry);
        }
        let mut entry = Entry { runtime, calls: 0, can_connect: None, value: None, end: None };
        let answer = act(&mut entry);
        entries.push(entry);
        drop(entries);
        // Not under the lock: a runtime that is shutting down drops the task at once, and that removes the entry.
        let removal = Removal { runtime, entries: Arc::downgrade(&self.entries) };
        let end = handle.spawn(async move {
            let _removal = removal;
            std::future::pending::<()>().await;
        });
        if let Some(entry) = self.entries.lock().iter_mut().find(|entry| entry.runtime == runtime) {
            entry.end = Some(end.abort_handle());
        }
        answer
    }
}

/// Whether a runtime has what a connection needs: I/O and timers. Tokio has no way to ask. Using a missing one panics,
/// and the panic may be printed although it is caught here, so each runtime is tried only once.
fn can_connect(runtime: &Handle) -> bool {
    let _entered = runtime.enter();
    let tried = catch_unwind(AssertUnwindSafe(|| {
        drop(tokio::time::sleep(Duration::ZERO));
        #[cfg(unix)]
        drop(tokio::net::UnixDatagram::unbound());
    }));
    tried.is_ok()
}

/// Removes the entry of a runtime when the runtime drops its tasks.
struct Removal<T> {
    runtime: Id,
    entries: Weak<Entries<T>>,
}

impl<T> Drop for Removal<T> {
    fn drop(&mut self) {
        let Some(entries) = self.entries.upgrade() else { return };
        let gone: Vec<_> = entries.lock().extract_if(.., |entry| entry.runtime == self.runtime).collect();
        // Not under the lock: a value may do anything when it is dropped.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_runtime_has_its_own_after_a_few_calls_and_until_it_ends() {
        let (home, other, third) = (runtime(), runtime(), runtime());
        let values = PerRuntime::beside(home.handle());
        let ask = |runtime: &tokio::runtime::Runtime, new: u32| {
            runtime.block_on(async { values.current(|_| new).map(|value| *value) })
        };
        assert_eq!(values.current(|_| 0), None, "no runtime");
        for _ in 0..10 {
            assert_eq!(ask(&home, 1), None);
        }
        for _ in 1..SETTLED_IN {
            assert_eq!(ask(&other, 2), None);
        }
        assert_eq!(ask(&other, 2), Some(2));
        assert_eq!(ask(&other, 3), Some(2));
        for _ in 0..SETTLED_IN {
            ask(&third, 4);
        }
        assert_eq!(ask(&third, 5), Some(4));
        drop(other);
        assert_eq!(values.entries.lock().len(), 1, "those of dead runtimes do not pile up");
        assert_eq!(ask(&third, 5), Some(4));
        for _ in 0..100 {
            ask(&runtime(), 6);
        }
        assert_eq!(values.entries.lock().len(), 1);
    }

    #[test]
    fn values_go_when_the_store_does() {
        let (home, other) = (runtime(), runtime());
        let values = PerRuntime::beside(home.handle());
        let token = Arc::new(());
        for _ in 0..SETTLED_IN {
            other.block_on(async { values.current(|_| Arc::clone(&token)) });
        }
        assert_eq!(Arc::strong_count(&token), 2);
        drop(values);
        assert_eq!(Arc::strong_count(&token), 1);
        // The task that waited for the end of the runtime ends too.
        other.block_on(tokio::task::yield_now());
        assert_eq!(other.metrics().num_alive_tasks(), 0);
    }

    #[test]
    fn runtimes_without_io_or_timers_are_served_at_home() {
        let home = runtime();
        let values = PerRuntime::beside(home.handle());
        let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let timers = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for _ in 0..=SETTLED_IN {
            for runtime in [&bare, &timers] {
                assert!(runtime.block_on(async { values.current(|_| ()) }).is_none());
            }
        }
        assert!(runtime().block_on(async { values.here() }).is_some());
        assert_eq!(home.block_on(async { values.here() }).map(|here| here.id()), Some(home.handle().id()));
    }

    #[test]
    fn a_call_from_a_runtime_that_is_gone_leaves_nothing() {
        let home = runtime();
        let values = PerRuntime::beside(home.handle());
        let gone = runtime().handle().clone();
        let _entered = gone.enter();
        assert!(values.current(|_| ()).is_none());
        assert_eq!(values.entries.lock().len(), 0);
    }

    #[test]
    fn work_runs_to_its_end_though_its_caller_is_gone() {
        let (home, caller) = (runtime(), runtime());
        let (done, is_done) = std::sync::mpsc::channel();
        let work = run_on(home.handle(), async move {
            tokio::task::yield_now().await;
            done.send(()).unwrap();
            Ok(())
        });
        caller.block_on(async {
            let mut work = std::pin::pin!(work);
            let waits =
                std::future::poll_fn(|cx| std::task::Poll::Ready(work.as_mut().poll(cx).is_pending()));
            assert!(waits.await);
        });
        drop(caller);
        home.block_on(async {
            while is_done.try_recv().is_err() {
                tokio::task::yield_now().await
            }
        });
        let gone = home.handle().clone();
        drop(home);
        let error = runtime().block_on(run_on(&gone, async { Ok(()) })).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}
