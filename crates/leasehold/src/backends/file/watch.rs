//! Notices what other processes do to lock files. An open store has one inotify instance, with watches only while a
//! claim waits for a file or a guard holds one.
//!
//! When a lock is released, or its process dies, a file is closed. The system reports that a moment *before* it drops
//! the lock, so a woken waiter looks more than once. Without inotify, or without room for a watch, everything here
//! returns `None`, and waiters and guards look by themselves.

#[cfg(target_os = "linux")]
pub(crate) use linux::{Watch, Watcher};
#[cfg(not(target_os = "linux"))]
pub(crate) use nothing::{Watch, Watcher};

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::{HashMap, HashSet};
    use std::io;
    use std::mem::MaybeUninit;
    use std::path::Path;
    use std::sync::{Arc, Weak};

    use parking_lot::Mutex;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    use rustix::fd::OwnedFd;
    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

    use crate::backends::file::store::Store;
    use crate::name::Name;

    /// The events on a file that is no longer in its place.
    const GONE: WatchFlags = WatchFlags::ATTRIB.union(WatchFlags::MOVE_SELF).union(WatchFlags::DELETE_SELF);

    /// The inotify instance of a store, and the thread that reads it, which ends with the store.
    #[derive(Debug)]
    pub(crate) struct Watcher(Arc<Shared>);

    #[derive(Debug)]
    struct Shared {
        inotify: OwnedFd,
        /// Becomes readable when the store is gone.
        end: OwnedFd,
        watched: Mutex<HashMap<i32, Watched>>,
    }

    #[derive(Debug)]
    struct Watched {
        /// The name that the file belongs to; `None` for the directory, and so for every name.
        name: Option<Name>,
        by: usize,
    }

    /// A set of files, watched until this is dropped.
    #[derive(Debug)]
    pub(crate) struct Watch {
        shared: Arc<Shared>,
        ids: Vec<i32>,
    }

    impl Watcher {
        /// Starts the thread.
        pub(crate) fn start(store: Weak<Store>) -> io::Result<Self> {
            let shared = Arc::new(Shared {
                inotify: inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?,
                end: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
                watched: Mutex::default(),
            });
            let thread = Arc::clone(&shared);
            std::thread::Builder::new().name("leasehold-file".into()).spawn(move || thread.run(&store))?;
            Ok(Watcher(shared))
        }

        /// A watch on no file yet.
        pub(crate) fn watch(&self) -> Watch {
            Watch { shared: Arc::clone(&self.0), ids: Vec::new() }
        }
    }

    impl Drop for Watcher {
        fn drop(&mut self) {
            // It cannot fail: nothing else writes to it.
            let _ = rustix::io::write(&self.0.end, &1u64.to_ne_bytes());
        }
    }

    impl Watch {
        /// Watches a file for being closed, removed or renamed. Returns whether it can: not if the file does not
        /// exist.
        pub(crate) fn closed(&mut self, path: &Path, name: &Name) -> bool {
            self.add(path, GONE | WatchFlags::CLOSE_WRITE, Some(name))
        }

        /// Watches a file, or the directory, for being removed or renamed.
        pub(crate) fn gone(&mut self, path: &Path, name: Option<&Name>) -> bool {
            self.add(path, GONE, name)
        }

        fn add(&mut self, path: &Path, what: WatchFlags, name: Option<&Name>) -> bool {
            let mut watched = self.shared.watched.lock();
            // Several watches may be on one file: their flags add up.
            let flags = what | WatchFlags::MASK_ADD | WatchFlags::DONT_FOLLOW;
            match inotify::add_watch(&self.shared.inotify, path, flags) {
                Ok(id) => {
                    watched.entry(id).or_insert_with(|| Watched { name: name.cloned(), by: 0 }).by += 1;
                    self.ids.push(id);
                    true
                }
                Err(rustix::io::Errno::NOENT) => false,
                Err(error) => {
                    crate::engine::reporter::log(
                        move || tracing::debug!(%error, "a lock file cannot be watched; it is looked at instead"),
                    );
                    false
                }
            }
        }
    }

    impl Drop for Watch {
        fn drop(&mut self) {
            let mut watched = self.shared.watched.lock();
            for id in &self.ids {
                let Some(entry) = watched.get_mut(id) else { continue };
                entry.by -= 1;
                if entry.by == 0 {
                    watched.remove(id);
                    // The watch is gone already if the file is.
                    let _ = inotify::remove_watch(&self.shared.inotify, *id);
                }
            }
        }
    }

    impl Shared {
        fn run(&self, store: &Weak<Store>) {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            loop {
                let mut fds =
                    [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&self.end, PollFlags::IN)];
                // Ignore the result and look at both.
                let _ = poll(&mut fds, None);
                if !fds[1].revents().is_empty() {
                    return;
                }
                let touched = self.read(&mut buffer);
                let Some(store) = store.upgrade() else { return };
                touched.iter().for_each(|name| store.noticed(name));
            }
        }

        /// The names that had an event.
        fn read(&self, buffer: &mut [MaybeUninit<u8>]) -> HashSet<Name> {
            let mut touched = HashSet::new();
            let mut reader = Reader::new(&self.inotify, buffer);
            while let Ok(event) = reader.next() {
                let mut watched = self.watched.lock();
                let known = watched.get(&event.wd()).map(|watched| watched.name.clone());
                // Events were lost, or the directory itself was moved.
                if event.events().contains(ReadFlags::QUEUE_OVERFLOW) || known == Some(None) {
                    touched.extend(watched.values().filter_map(|watched| watched.name.clone()));
                }
                touched.extend(known.flatten());
                if event.events().contains(ReadFlags::IGNORED) {
                    watched.remove(&event.wd());
                }
            }
            touched
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod nothing {
    use std::io;
    use std::path::Path;
    use std::sync::Weak;

    use crate::backends::file::store::Store;
    use crate::name::Name;

    #[derive(Debug)]
    pub(crate) struct Watcher;

    #[derive(Debug)]
    pub(crate) struct Watch;

    impl Watcher {
        pub(crate) fn start(_: Weak<Store>) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(crate) fn watch(&self) -> Watch {
            Watch
        }
    }

    impl Watch {
        pub(crate) fn closed(&mut self, _: &Path, _: &Name) -> bool {
            false
        }

        pub(crate) fn gone(&mut self, _: &Path, _: Option<&Name>) -> bool {
            false
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)] // a test that cannot go on has failed
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use crate::backend::{Attempt, Backend as _, Claim, Mode, Release};
    use crate::backends::file::{Directory, Place};
    use crate::name::Name;

    #[tokio::test]
    async fn a_waiter_is_woken_when_the_file_is_closed_elsewhere() {
        let temp = tempfile::tempdir().unwrap();
        // Two stores that know of each other only through the files.
        let [ours, theirs] = [(); 2].map(|()| Directory::open(temp.path()).unwrap());
        for (mode, wanted) in [
            (Mode::Exclusive, Mode::Exclusive),
            (Mode::Shared, Mode::Exclusive),
            (Mode::Permit { limit: 1 }, Mode::Permit { limit: 1 }),
        ] {
            let claim = |mode| Claim::new(Name::new("x").unwrap(), mode, Duration::from_secs(30), "test");
            let (held, waits) = (claim(mode), claim(wanted));
            assert!(matches!(theirs.try_acquire(&held).await.unwrap(), Attempt::Granted(_)));
            let place = Place::join(&ours.store, &waits);
            let _watch = ours.store.watch_for(&waits).unwrap();
            assert!(place.bell.notified().now_or_never().is_none());
            theirs.release(&Release::new(held.name.clone(), held.id)).await.unwrap();
            let rung = tokio::time::timeout(Duration::from_secs(60), place.bell.notified()).await;
            assert!(rung.is_ok(), "{mode:?}");
        }
    }
}
