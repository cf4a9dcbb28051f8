//! Opening the store that a command works on.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Liveness;
use leasehold::backends::file::Directory;
use leasehold::backends::http::Http;
use leasehold::{Backend, Guard, Locks, LocksBuilder};

use crate::access::Access;
use crate::exit::Exit;
use crate::report::Failure;
use crate::url::{StoreArgs, Url};

/// How long a store may take to answer for the first time: somebody waits, or the next run of a timer comes. Calls
/// of a server may take longer later, because it is the server that waits then.
const OPENING: Duration = Duration::from_secs(10);

/// An open store.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) locks: Locks,
    pub(crate) url: Url,
    pub(crate) access: Access,
    /// A directory of lock files, whose locks a child can share.
    directory: Option<Directory>,
}

/// Opens the store that the arguments or the environment name.
pub(crate) async fn open(args: &StoreArgs) -> Result<Store, Failure> {
    let url = args.resolve()?;
    let access = args.access.resolve(&url)?;
    Store::open(url, access).await
}

/// A client of any store.
pub(crate) async fn client(url: &Url, access: &Access) -> Result<LocksBuilder, leasehold::Error> {
    match access.server.clone() {
        Some(server) => {
            Locks::open(async { Ok(Arc::new(Http::open(server).await?) as Arc<dyn Backend>) }).await
        }
        None => Locks::connect_builder(&url.text).await,
    }
}

/// Why a command that ends at once has no use for a lock that ends with its process.
pub(crate) const ENDS_AT_ONCE: &str =
    "which this command does at once; use `leasehold run`, or a store with a ttl such as sqlite:";

/// Opens a store whose leases outlive the process that took them. What it means that another's do not is for the
/// caller to say.
pub(crate) async fn open_ttl(args: &StoreArgs, otherwise: &str) -> Result<Store, Failure> {
    let store = open(args).await?;
    if store.locks.info().liveness != Liveness::Ttl {
        let scheme = store.locks.info().scheme;
        return Err(Failure::Usage(format!(
            "{scheme}: frees a lock when the process that took it ends, {otherwise}"
        )));
    }
    Ok(store)
}

impl Store {
    async fn open(url: Url, access: Access) -> Result<Self, Failure> {
        let shown = url.shown();
        let Ok(opened) = tokio::time::timeout(OPENING, Store::connect(url, access)).await else {
            let line = format!("{shown}: it has not answered for {} s", OPENING.as_secs());
            return Err(Failure::Ended(Exit::Store, line));
        };
        opened.map_err(|failure| match failure {
            // Whoever asked for nonsense knows it; whoever is not let in, or finds nobody, wants to know where.
            Failure::Lock(error) if matches!(error.kind().into(), Exit::Store | Exit::NotAllowed) => {
                Failure::Store(shown, error)
            }
            failure => failure,
        })
    }

    async fn connect(url: Url, access: Access) -> Result<Self, Failure> {
        if url.scheme().eq_ignore_ascii_case("memory") {
            return Err(Failure::Usage(
                "memory: is private to one process, so it keeps nobody else out; use file: or sqlite:".into(),
            ));
        }
        let mut directory = None;
        let builder = match url.path() {
            Some(path) if url.scheme() == "file" => {
                let opened = Directory::open(path)?;
                directory = Some(opened.clone());
                Locks::open(async { Ok(Arc::new(opened) as Arc<dyn Backend>) }).await?
            }
            _ => client(&url, &access).await?,
        };
        Ok(Store { locks: builder.build(), url, access, directory })
    }

    /// The same store once more, as another process has it.
    pub(crate) async fn again(&self) -> Result<Self, Failure> {
        Store::open(self.url.clone(), self.access.clone()).await
    }

    /// What keeps the lock for as long as a child has it open, where the store has such a thing.
    pub(crate) fn descriptor(&self, guard: &Guard) -> Result<Option<OwnedFd>, Failure> {
        let Some(directory) = &self.directory else { return Ok(None) };
        Ok(Some(directory.hand_over(&guard.lease_id())?))
    }
}
