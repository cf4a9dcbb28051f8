//! `file:dir` — locks on files of one machine, which the system frees when a process dies.

mod dir;
mod local;
mod locked;
mod meta;
mod names;
mod store;
mod text;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{
    Attempt, Backend, Claim, Info, Liveness, Page, Query, Release, Released, Renewal, Renewed, Revoked,
    Swept, TimeAuthority, Wake,
};
use crate::clock::{Moment, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::lease_id::LeaseId;
use crate::name::Name;

use dir::Dir;
use local::Stand;
use store::Store;

pub use names::FileNames;

/// Permits a semaphore may have: each is a file, and finding a free one looks at all before it.
pub const MAX_PERMITS: u32 = 64;

/// How often a lease's file is looked at: a stranger that removed it is noticed within this.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// How often the first local waiter looks whether another process has let go: quickly at first, for
/// locks held for a moment, and then so rarely that it costs next to nothing.
const LOOK: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(25));

/// How long a waiter waits at a time; well before the wait loop's own timer, at which it would lose its
/// place.
const WAIT_AT_MOST: Duration = Duration::from_secs(5);

/// A directory of lock files. Clones are the same store.
///
/// Any number of processes of one machine can open the same directory. Leases have no ttl: they last
/// until they are released or their process ends, however it ends; a child started with
/// [`std::process::Command`] does not keep them. `docs/file.md` describes the files.
///
/// # Examples
/// ```
/// # use leasehold::{Locks, backends::file::Directory};
/// # let dir = std::env::temp_dir().join(format!("leasehold-doc-{}", std::process::id()));
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let locks = Locks::new(Directory::open(&dir)?);
/// let guard = locks.mutex("nightly-report").lock().await?;
/// // … work …
/// guard.release().await?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Directory {
    store: Arc<Store>,
}

/// Sets up a [`Directory`].
#[derive(Debug, Clone)]
pub struct DirectoryBuilder {
    path: PathBuf,
    names: FileNames,
    allow_network: bool,
}

impl DirectoryBuilder {
    /// Sets how names become file names. All processes that share the directory must agree.
    #[must_use]
    pub fn names(mut self, names: FileNames) -> Self {
        self.names = names;
        self
    }

    /// Accepts a network file system. Locks then hold between machines only if the file system keeps
    /// `flock` between them, and are free again only when it notices that a machine has died.
    #[must_use]
    pub fn allow_network(mut self, allow: bool) -> Self {
        self.allow_network = allow;
        self
    }

    /// Opens the directory, and makes it with mode 0700 if it is missing; not those above it.
    ///
    /// # Errors
    /// `InvalidArgument` if it cannot be a directory; `AuthFailed` if it may not be used, belongs to
    /// another user, or is writable by everybody without a sticky bit; `Unsupported` on a network file system.
    pub fn open(self) -> Result<Directory> {
        let store = Store {
            dir: Dir::open(&self.path, self.allow_network)?,
            names: self.names,
            clock: Arc::new(SystemClock),
            local: Default::default(),
        };
        Ok(Directory { store: Arc::new(store) })
    }
}

impl Directory {
    /// Opens a directory as it is set up by default.
    ///
    /// # Errors
    /// As [`DirectoryBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Directory::builder(path).open()
    }

    /// Opens what a URL says after its scheme: a path as it stands, or `//` and an absolute path.
    pub(crate) async fn connect(rest: &str) -> Result<Self> {
        let path = match rest.strip_prefix("//") {
            Some(absolute) if absolute.starts_with('/') => absolute,
            Some(_) => {
                return Err(Error::invalid(
                    "file: has no hosts: write file:dir, or file:/// and an absolute path",
                ));
            }
            None => rest,
        };
        if path.is_empty() {
            return Err(Error::invalid("file: needs a directory, for example file:/run/lock/my-service"));
        }
        let builder = Directory::builder(path);
        let opened = tokio::task::spawn_blocking(|| builder.open()).await;
        opened.map_err(|error| Error::new(ErrorKind::Aborted, "the runtime ended").with_source(error))?
    }

    /// A directory to be set up.
    pub fn builder(path: impl AsRef<Path>) -> DirectoryBuilder {
        DirectoryBuilder { path: path.as_ref().to_owned(), names: FileNames::default(), allow_network: false }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.store.dir.path()
    }

    /// The open lock of a lease that this store holds, as one more descriptor of it: for a child that is
    /// to keep the lock for as long as it lives, even if this process is killed. It is closed on `exec`
    /// unless that is changed. A release frees the lock whoever has it open.
    ///
    /// # Errors
    /// `Lost` if there is no such lease; `Unavailable` if there is no descriptor left.
    pub fn descriptor(&self, name: &Name, id: &LeaseId) -> Result<OwnedFd> {
        match self.store.local().lease(name, id) {
            Some(lease) => lease.file.descriptor(),
            None => Err(Error::new(ErrorKind::Lost, "the store no longer has the lease")),
        }
    }

    /// What stores of this kind are and can do.
    pub(crate) fn abilities() -> Info {
        Info {
            liveness: Liveness::Session,
            time: TimeAuthority::None,
            fifo: false,
            max_permits: MAX_PERMITS,
            downgrade: false,
            find_by_id: false,
            revoke: false,
            check_every: Some(CHECK_EVERY),
            ..Info::new("file")
        }
    }

    /// Runs a verb where it may block. It runs to its end also if nobody waits for it any more.
    async fn run<T: Send + 'static>(&self, verb: impl FnOnce(&Store) -> T + Send + 'static) -> Result<T> {
        let store = Arc::clone(&self.store);
        tokio::task::spawn_blocking(move || verb(&store)).await.map_err(|error| {
            let (kind, what) = if error.is_panic() {
                (ErrorKind::Internal, "the store panicked")
            } else {
                // It may or may not have run.
                (ErrorKind::NetworkTimeout, "the runtime ended before the files were done with")
            };
            Error::new(kind, what).with_source(error)
        })
    }
}

#[async_trait]
impl Backend for Directory {
    fn info(&self) -> Info {
        Info { namespaced: self.store.names != FileNames::Dotnet, ..Directory::abilities() }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let claim = claim.clone();
        self.run(move |store| store.try_acquire(&claim)).await?
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let mut place = Place::join(&self.store, claim);
        let end = tokio::time::Instant::now() + WAIT_AT_MOST;
        let mut look = LOOK.0;
        while tokio::time::Instant::now() < end {
            let pause = match place.stand() {
                Stand::Nowhere => break,
                Stand::Behind(pause) => pause.min(WAIT_AT_MOST),
                Stand::Front => {
                    let asked = claim.clone();
                    // A fault is for the attempt to report.
                    if !matches!(self.run(move |store| store.is_worth_trying(&asked)).await, Ok(Ok(false))) {
                        break;
                    }
                    let pause = look;
                    look = (look * 2).min(LOOK.1);
                    pause
                }
            };
            // A ring means that something was released here, or that the queue has moved.
            if tokio::time::timeout_at(end.min(tokio::time::Instant::now() + pause), place.bell.notified())
                .await
                .is_ok()
            {
                look = LOOK.0;
            }
        }
        place.told();
        Ok(Wake::Retry)
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        let (renewals, count) = (leases.to_vec(), leases.len());
        match self.run(move |store| renewals.iter().map(|renewal| store.renew(renewal)).collect()).await {
            Ok(answers) => answers,
            Err(error) => (0..count).map(|_| Err(error.duplicate())).collect(),
        }
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        let lease = lease.clone();
        self.run(move |store| store.release(&lease)).await?
    }

    async fn revoke(&self, _: &Name, _: bool) -> Result<Revoked> {
        Err(Error::new(ErrorKind::Unsupported, "file: cannot revoke: only the holder can let go of its file"))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let query = query.clone();
        self.run(move |store| store.inspect(&query)).await?
    }

    async fn sweep(&self) -> Result<Swept> {
        self.run(Store::sweep).await?
    }
}

/// A place in the queue of this process. Dropped, it is given up, unless its waiter was told to try.
struct Place<'a> {
    store: &'a Store,
    claim: &'a Claim,
    bell: Arc<tokio::sync::Notify>,
    told: bool,
}

impl<'a> Place<'a> {
    fn join(store: &'a Store, claim: &'a Claim) -> Self {
        let bell = store.local().join(claim, store.clock.now());
        Place { store, claim, bell, told: false }
    }

    fn now(&self) -> Moment {
        self.store.clock.now()
    }

    fn stand(&self) -> Stand {
        let now = self.now();
        self.store.local().stand(self.claim, now)
    }

    fn told(&mut self) {
        self.told = true;
        // From here on it has the grace to come back.
        self.stand();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.told {
            let now = self.now();
            self.store.local().leave(&self.claim.name, &self.claim.id, now);
        }
    }
}
