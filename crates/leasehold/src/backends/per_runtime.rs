//! One value for each tokio runtime that asks for it, gone when that runtime is: for connections, which answer fastest
//! on the runtime of whoever calls.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;

/// A runtime that asks less often than this shares what there is at home: one that was made for a call or two is not
/// worth a connection.
const SETTLED_IN: u32 = 4;

/// Values by runtime. Dropped, all are.
pub(crate) struct PerRuntime<T> {
    home: Id,
    entries: Arc<Entries<T>>,
}

type Entries<T> = Mutex<Vec<Entry<T>>>;

struct Entry<T> {
    runtime: Id,
    asked: u32,
    value: Option<Arc<T>>,
    /// Of the task that ends with the runtime.
    farewell: AbortHandle,
}

impl<T> Drop for Entry<T> {
    fn drop(&mut self) {
        self.farewell.abort();
    }
}

impl<T: Send + Sync + 'static> PerRuntime<T> {
    /// For all runtimes but this one, which has its own already.
    pub(crate) fn beside(home: &Handle) -> Self {
        PerRuntime { home: home.id(), entries: Arc::default() }
    }

    /// What the current runtime has, made if it has nothing yet; `None` at home, outside of any runtime, and for one
    /// that has not asked often.
    pub(crate) fn current(&self, make: impl FnOnce(Handle) -> T) -> Option<Arc<T>> {
        let handle = Handle::try_current().ok()?;
        let runtime = handle.id();
        if runtime == self.home {
            return None;
        }
        let mut entries = self.entries.lock();
        let Some(entry) = entries.iter_mut().find(|entry| entry.runtime == runtime) else {
            let farewell = Farewell { runtime, entries: Arc::downgrade(&self.entries) };
            let farewell = handle.spawn(async move {
                let _farewell = farewell;
                std::future::pending::<()>().await;
            });
            entries.push(Entry { runtime, asked: 1, value: None, farewell: farewell.abort_handle() });
            return None;
        };
        entry.asked = entry.asked.saturating_add(1);
        if entry.asked < SETTLED_IN {
            return None;
        }
        Some(Arc::clone(entry.value.get_or_insert_with(|| Arc::new(make(handle)))))
    }

    /// Does something with all there are.
    pub(crate) fn each(&self, mut act: impl FnMut(&T)) {
        self.entries.lock().iter().filter_map(|entry| entry.value.as_deref()).for_each(&mut act);
    }
}

/// Takes the entry of a runtime away when that drops its tasks.
struct Farewell<T> {
    runtime: Id,
    entries: Weak<Entries<T>>,
}

impl<T> Drop for Farewell<T> {
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
        tokio::runtime::Builder::new_current_thread().build().unwrap()
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
}
