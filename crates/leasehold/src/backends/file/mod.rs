//! `file:dir` — locks on files of one machine, which the system frees when a process dies.
//!
#![doc = include_str!("../../../docs/file.md")]

// What belongs here: everything about lock files. Before changing anything here:
// `cargo test -p leasehold --all-features --test file_store`, then `make torture` with STORES=file.

mod dir;
pub(crate) mod findings;
mod local;
mod locked;
mod meta;
mod names;
mod store;
mod text;
mod watch;

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
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

use dir::Dir;
use local::Stand;
use store::Store;
use text::KNOWN_LAYOUT;

pub use names::FileNames;

/// The most permits of a semaphore. Each is a file, and a search for a free one looks at all before it.
pub const MAX_PERMITS: u32 = 64;

/// How often the client checks a lease's file: it notices within this time that another program removed it.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// The first pause between the front waiter's checks whether another process has unlocked. It is short for locks held
/// for a moment, and because the system reports a closed file just before its lock is free.
const LOOK: Duration = Duration::from_millis(2);

/// The longest of these pauses where a wake-up is expected. It covers unforeseen cases, and is half of what a takeover
/// may take after a holder's death.
const LOOK_WATCHED: Duration = Duration::from_millis(100);

/// The longest pause where there are no wake-ups.
const LOOK_ALONE: Duration = Duration::from_millis(25);

/// How long one `wait` lasts. It ends well before the wait loop's own timer, at which the waiter would lose its place.
const WAIT_AT_MOST: Duration = Duration::from_secs(5);

/// A directory of lock files. Clones are the same store.
///
/// Any number of processes of one machine can open the same directory. Leases have no ttl: they last until they are
/// released or their process ends, however it ends. A child started with [`std::process::Command`] does not keep them.
/// `docs/file.md` describes the files.
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

    /// Accepts a network file system. Locks then hold between machines only if the file system keeps `flock` between
    /// them, and are freed only when it notices that a machine has died.
    #[must_use]
    pub fn allow_network(mut self, allow: bool) -> Self {
        self.allow_network = allow;
        self
    }

    /// Opens the directory, and makes it with mode 0700 if it is missing; its parent must exist.
    ///
    /// # Errors
    /// `InvalidArgument` if the path cannot be a directory; `AuthFailed` if access is denied, or the directory belongs
    /// to another user or is writable by everybody without a sticky bit; `Unsupported` on a network file system, or if
    /// a newer leasehold has written it.
    pub fn open(self) -> Result<Directory> {
        let dir = Dir::open(&self.path, self.allow_network)?;
        check_layout(&dir)?;
        let store = Arc::new_cyclic(|this| Store {
            dir,
            names: self.names,
            clock: Arc::new(SystemClock),
            local: Default::default(),
            watcher: Default::default(),
            shows_locks: Default::default(),
            this: this.clone(),
        });
        Ok(Directory { store })
    }
}

/// The file that names the layout of the whole directory, if it is not the first one, which had no such file. The
/// files of a name have a dot. A build with another layout writes its number here before its first meta file.
const LAYOUT: &str = "leasehold-layout";

/// Refuses a layout that a newer leasehold has written.
fn check_layout(dir: &Dir) -> Result<()> {
    let Some(file) = dir.open_to_look(LAYOUT)? else { return Ok(()) };
    match locked::read(&file)?.trim_end().parse::<u64>() {
        Ok(layout) if layout <= KNOWN_LAYOUT => Ok(()),
        Ok(layout) => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the directory has layout {layout}, written by a newer leasehold; this one knows layouts up to \
                 {KNOWN_LAYOUT}: update it, or use another directory"
            ),
        )),
        Err(_) => Err(Error::new(
            ErrorKind::Internal,
            "the file leasehold-layout holds something that leasehold did not write; nothing was changed",
        )),
    }
}

impl Directory {
    /// Opens a directory with the default settings.
    ///
    /// # Errors
    /// As [`DirectoryBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Directory::builder(path).open()
    }

    /// Opens the part of a URL after its scheme: a path as it stands, or `//` and an absolute path.
    pub(crate) async fn connect(rest: &str) -> Result<Self> {
        let path = match rest.strip_prefix("//") {
            Some(absolute) if absolute.starts_with('/') => absolute,
            Some(_) => {
                return Err(Error::invalid(
                    "a file: URL takes no host; write file:dir, or file:///dir for an absolute path",
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

    /// Returns a builder for a directory.
    pub fn builder(path: impl AsRef<Path>) -> DirectoryBuilder {
        DirectoryBuilder { path: path.as_ref().to_owned(), names: FileNames::default(), allow_network: false }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        self.store.dir.path()
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
            notes: false,
            tells_loss: cfg!(target_os = "linux"),
            check_every: Some(CHECK_EVERY),
            ..Info::new("file")
        }
    }

    /// Duplicates the open, locked file of a lease, for a child process to inherit.
    ///
    /// The lock is then free only when it is released, or when **every** process that has the file open has ended: if
    /// this process is killed, the child keeps the lock until it has ended too. Releasing the lease, or dropping its
    /// guard, frees the lock for the child as well: do that when the child is gone. To let the child alone keep it,
    /// give up the guard with [`Guard::into_lease`](crate::Guard::into_lease).
    ///
    /// Unlike all other files of this store it is **not** closed on exec: every process that is started while it is
    /// open inherits it. Start the child, then drop it.
    ///
    /// # Errors
    /// `Lost` if this store, or a clone of it, holds no lease with that id; `Unavailable` if the process cannot open
    /// another file.
    ///
    /// # Examples
    /// ```
    /// # use leasehold::{Locks, backends::file::Directory};
    /// # let dir = std::env::temp_dir().join(format!("leasehold-doc-hand-{}", std::process::id()));
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let store = Directory::open(&dir)?;
    /// let guard = Locks::new(store.clone()).mutex("nightly-report").lock().await?;
    /// let lock = store.hand_over(&guard.lease_id())?;
    /// let mut child = std::process::Command::new("true").spawn()?;
    /// drop(lock);
    /// child.wait()?;
    /// guard.release().await?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn hand_over(&self, id: &LeaseId) -> Result<OwnedFd> {
        self.store.hand_over(id)
    }

    /// Waits until a lease is over, with the help of a watch on its file. The watch ends with the wait.
    async fn wait_for_loss(&self, claim: &Claim, over: &tokio::sync::Notify) -> Result<Wake> {
        let asked = claim.clone();
        let watch = self.run(move |store| {
            let watch = store.watch_lease(&asked.name, &asked.id);
            // Check for what happened before the watch existed.
            store.check_in_place(&asked.name, &asked.id).map(|_| watch)
        });
        let _watch = watch.await??;
        over.notified().await;
        Ok(Wake::Retry)
    }

    /// Runs a verb on a thread where it may block. It runs to its end even if its caller is gone.
    async fn run<T: Send + 'static>(&self, verb: impl FnOnce(&Store) -> T + Send + 'static) -> Result<T> {
        let store = Arc::clone(&self.store);
        tokio::task::spawn_blocking(move || verb(&store)).await.map_err(|error| {
            let (kind, what) = if error.is_panic() {
                (ErrorKind::Internal, "the store panicked")
            } else {
                // The verb may or may not have run.
                (ErrorKind::NetworkTimeout, "the async runtime ended before the file operation did; whether it took effect is unknown")
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
        let over = self.store.local.lock().lease(&claim.name, &claim.id).map(|lease| Arc::clone(&lease.over));
        if let Some(over) = over {
            return self.wait_for_loss(claim, &over).await;
        }
        let mut place = Place::join(&self.store, claim);
        let end = tokio::time::Instant::now() + WAIT_AT_MOST;
        let mut look = LOOK;
        let mut watch = None;
        while tokio::time::Instant::now() < end {
            let pause = match place.stand() {
                Stand::Nowhere => break,
                Stand::Behind(pause) => pause.min(WAIT_AT_MOST),
                Stand::Front => {
                    let asked = claim.clone();
                    // Watch first, so that nothing is missed between the check and the watch.
                    let look_at =
                        move |store: &Store| (store.watch_for(&asked), store.is_worth_trying(&asked));
                    // On a fault, let the attempt report it.
                    let Ok((watched, Ok(false))) = self.run(look_at).await else { break };
                    watch = watched;
                    let pause = look;
                    look = (look * 2).min(if watch.is_some() { LOOK_WATCHED } else { LOOK_ALONE });
                    pause
                }
            };
            // A wake-up means that a lock was released, or that the queue has moved.
            if tokio::time::timeout_at(end.min(tokio::time::Instant::now() + pause), place.bell.notified())
                .await
                .is_ok()
            {
                look = LOOK;
            }
        }
        drop(watch);
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

    async fn revoke(&self, _: &Name, _: bool, _: Option<Fence>) -> Result<Revoked> {
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

/// A place in the queue of this process. Dropping it gives the place up, unless its waiter is about to try.
struct Place<'a> {
    store: &'a Store,
    claim: &'a Claim,
    bell: Arc<tokio::sync::Notify>,
    told: bool,
}

impl<'a> Place<'a> {
    fn join(store: &'a Store, claim: &'a Claim) -> Self {
        let bell = store.local.lock().join(claim, store.clock.now());
        Place { store, claim, bell, told: false }
    }

    fn now(&self) -> Moment {
        self.store.clock.now()
    }

    fn stand(&self) -> Stand {
        let now = self.now();
        self.store.local.lock().stand(self.claim, now)
    }

    fn told(&mut self) {
        self.told = true;
        // From now on the waiter has the grace period to come back.
        self.stand();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.told {
            let now = self.now();
            self.store.local.lock().leave(&self.claim.name, &self.claim.id, now);
        }
    }
}
