//! What all locks and guards of a client share, and the thread that runs the client's background work.

use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::backend::{Backend, Info};
use crate::cancel::Cancel;
use crate::clock::{Clock, Timer};
use crate::engine::renew::Renewer;
use crate::engine::reporter;
use crate::error::{Error, ErrorKind, Result};
use crate::marks::Marks;
use crate::stores::Examiner;

/// What all clones, locks and guards of a client share.
pub(crate) struct Client {
    pub(crate) backend: Arc<dyn Backend>,
    /// For a store that was opened by its URL.
    pub(crate) examiner: Option<Examiner>,
    /// Who keeps marks, if the store can.
    pub(crate) marks: Option<Arc<dyn Marks>>,
    pub(crate) info: Info,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) renewer: Arc<Renewer>,
    /// Cancelled when the client is closed: no more acquires.
    pub(crate) closed: Cancel,
    pub(super) home: Home,
    /// The process that made the client. A fork of it has none of its threads.
    pub(super) process: u32,
}

/// Where the background work runs.
pub(super) enum Home {
    /// The library's own thread. The mutex is held while it starts. A failed start is not kept: the next acquire tries
    /// again.
    Thread(OnceLock<(Handle, ThreadId)>, parking_lot::Mutex<()>),
    /// The caller's runtime; and the thread, if there is one, on which the store's connections live.
    Runtime(Handle, OnceLock<()>, #[allow(dead_code)] Option<Thread>),
}

/// The library's own thread with its runtime, before there is a client to work for. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(super) runtime: Handle,
    id: ThreadId,
    work: oneshot::Sender<Arc<Renewer>>,
}

impl Client {
    fn is_copy(&self) -> bool {
        std::process::id() != self.process
    }

    /// Starts the background work if it does not run yet.
    pub(crate) fn start(&self) -> Result<&Handle> {
        if self.is_copy() {
            return Err(Error::new(
                ErrorKind::Aborted,
                "the client was made before a fork, and nothing renews its leases in this process; make a new client",
            ));
        }
        match &self.home {
            Home::Runtime(handle, started, _) => {
                started.get_or_init(|| {
                    handle.spawn(Arc::clone(&self.renewer).run(Timer::Naps));
                });
                Ok(handle)
            }
            Home::Thread(own, starting) => {
                if let Some((runtime, _)) = own.get() {
                    return Ok(runtime);
                }
                let _starting = starting.lock();
                if let Some((runtime, _)) = own.get() {
                    return Ok(runtime);
                }
                let thread = Thread::start()?;
                Ok(&own.get_or_init(|| thread.work_for(&self.renewer)).0)
            }
        }
    }

    /// Whether this is the thread of the background work, or the thread that reports for it. Neither must ever wait
    /// for that work.
    pub(crate) fn is_own_thread(&self) -> bool {
        match &self.home {
            Home::Runtime(..) => false,
            Home::Thread(own, _) => own.get().is_some_and(|(_, id)| {
                *id == std::thread::current().id() || reporter::reports_for() == Some(*id)
            }),
        }
    }

    /// Fails once the client is closed.
    #[cfg(feature = "schedule")]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.is_cancelled() { Err(self.closed_error()) } else { Ok(()) }
    }

    /// Why nothing can be acquired any more.
    pub(crate) fn closed_error(&self) -> Error {
        let why = if self.renewer.is_dead() {
            "the client's background work has ended: its thread panicked, or the runtime it was given was shut \
             down; make a new client"
        } else {
            "the client is closed"
        };
        Error::new(ErrorKind::Aborted, why)
    }

    /// Where the background work runs, if it was ever started.
    pub(crate) fn started(&self) -> Option<&Handle> {
        if self.is_copy() {
            return None;
        }
        match &self.home {
            Home::Runtime(handle, started, _) => started.get().map(|()| handle),
            Home::Thread(own, _) => own.get().map(|(handle, _)| handle),
        }
    }

    /// Whether this thread belongs to the runtime that was given for the background work, and that runtime has only
    /// one thread, which may be this one.
    pub(crate) fn may_block_its_runtime(&self) -> bool {
        let Home::Runtime(runtime, ..) = &self.home else { return false };
        runtime.metrics().num_workers() == 1
            && Handle::try_current().is_ok_and(|here| here.id() == runtime.id())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.is_copy() {
            self.renewer.end();
        }
    }
}

impl Thread {
    pub(super) fn start() -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Unavailable, "the background thread could not be started")
                .with_source(error)
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (work, renewer) = oneshot::channel::<Arc<Renewer>>();
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new()
            .name("leasehold".into())
            .spawn(move || {
                reporter::keep_off_this_thread();
                runtime.block_on(async {
                    if let Ok(renewer) = renewer.await {
                        let timer = renewer.timer();
                        renewer.run(timer).await;
                    }
                });
            })
            .map_err(failed)?;
        Ok(Thread { runtime: handle, id: thread.thread().id(), work })
    }

    /// Makes the thread renew and release for a client, until that client is gone.
    pub(super) fn work_for(self, renewer: &Arc<Renewer>) -> (Handle, ThreadId) {
        if let Err(renewer) = self.work.send(Arc::clone(renewer)) {
            renewer.die();
        }
        (self.runtime, self.id)
    }
}
