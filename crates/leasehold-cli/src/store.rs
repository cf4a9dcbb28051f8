//! Opens the store that a command works on.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold::backend::Liveness;
use leasehold::backends::file::Directory;
use leasehold::backends::http::Http;
use leasehold::doctor::{self, Finding, Level};
use leasehold::{Backend, Guard, Locks, LocksBuilder};

use crate::access::Access;
use crate::exit::Exit;
use crate::report::Failure;
use crate::url::{StoreArgs, Url};
use crate::{duration, lock};

/// How long a store may take for its first answer: a person waits, or the next run of a timer comes. Later calls to a
/// server may take longer, because then the server does the waiting.
const OPENING: Duration = Duration::from_secs(10);

/// The least opening time for a command with a wait limit: a network may be slow and a machine busy.
const QUICK_OPENING: Duration = Duration::from_secs(5);

/// The pause before a store that was down or too busy is examined again.
const EXAMINE_AGAIN: Duration = Duration::from_secs(2);

/// An open store.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) locks: Locks,
    pub(crate) url: Url,
    pub(crate) access: Access,
    /// A directory of lock files, whose locks a child process can share.
    directory: Option<Directory>,
    /// A leasehold server.
    server: Option<Arc<Http>>,
}

/// Opens the store that the arguments or the environment name.
pub(crate) async fn open(args: &StoreArgs) -> Result<Store, Failure> {
    open_within(args, None).await
}

/// As [`open`], for a command that waits at most this long for a lock, and so not much longer for its store.
pub(crate) async fn open_within(args: &StoreArgs, wait: Option<Duration>) -> Result<Store, Failure> {
    let url = args.resolve()?;
    let access = args.access.resolve(&url)?;
    let limited = |wait: Duration| wait.saturating_add(lock::ANSWER).clamp(QUICK_OPENING, OPENING);
    Store::open(url, access, wait.map_or(OPENING, limited)).await
}

/// Opens the store at a URL that has been found already.
pub(crate) async fn open_at(url: &Url, access: &Access) -> Result<Store, Failure> {
    Store::open(url.clone(), access.clone(), OPENING).await
}

/// Connects a client to any store.
pub(crate) async fn client(url: &Url, access: &Access) -> Result<LocksBuilder, leasehold::Error> {
    connect(url, access).await.map(|(builder, _)| builder)
}

/// As [`client`]; with the server, if the store is one.
async fn connect(url: &Url, access: &Access) -> Result<(LocksBuilder, Option<Arc<Http>>), leasehold::Error> {
    let Some(options) = access.server.clone() else {
        return Ok((Locks::connect_builder(&url.text).await?, None));
    };
    let server = Arc::new(OnceLock::new());
    let kept = Arc::clone(&server);
    let open = async move {
        let opened = Arc::new(Http::open(options).await?);
        Ok(Arc::clone(kept.get_or_init(|| opened)) as Arc<dyn Backend>)
    };
    let builder = Locks::open(open).await?;
    Ok((builder, server.get().cloned()))
}

/// Names the store in errors about access and connection; other errors are about the call itself.
fn failed(store: String, error: leasehold::Error) -> Failure {
    match error.kind().into() {
        Exit::Store | Exit::NotAllowed => Failure::Store(store, error),
        _ => Failure::Lock(error),
    }
}

/// Why a command that ends at once cannot use a lock that ends with its process.
pub(crate) const ENDS_AT_ONCE: &str =
    "which this command does at once; use `leasehold run`, or a store with a ttl such as sqlite:";

/// Opens a store whose leases outlive the process that took them. The caller says what it means for it if they do not.
pub(crate) async fn open_ttl(
    args: &StoreArgs,
    wait: Option<Duration>,
    otherwise: &str,
) -> Result<Store, Failure> {
    let store = open_within(args, wait).await?;
    if store.locks.info().liveness != Liveness::Ttl {
        let scheme = store.locks.info().scheme;
        return Err(Failure::Usage(format!(
            "{scheme}: frees a lock when the process that took it ends, {otherwise}"
        )));
    }
    Ok(store)
}

impl Store {
    async fn open(url: Url, access: Access, time: Duration) -> Result<Self, Failure> {
        let shown = url.shown();
        let Ok(opened) = tokio::time::timeout(time, Store::connect(url, access)).await else {
            let line = format!("{shown}: no answer for {}", duration::show(time));
            return Err(Failure::Ended(Exit::Store, line));
        };
        opened.map_err(|failure| match failure {
            Failure::Lock(error) => failed(shown, error),
            failure => failure,
        })
    }

    /// The failure for an error from this store.
    pub(crate) fn failed(&self, error: leasehold::Error) -> Failure {
        failed(self.url.shown(), error)
    }

    async fn connect(url: Url, access: Access) -> Result<Self, Failure> {
        if url.scheme().eq_ignore_ascii_case("memory") {
            return Err(Failure::Usage(
                "memory: is private to one process, so it keeps nobody else out; use file: or sqlite:".into(),
            ));
        }
        let mut directory = None;
        let (builder, server) = match url.path() {
            Some(path) if url.scheme() == "file" => {
                let opened = Directory::open(path)?;
                directory = Some(opened.clone());
                (Locks::open(async { Ok(Arc::new(opened) as Arc<dyn Backend>) }).await?, None)
            }
            _ => connect(&url, &access).await?,
        };
        Ok(Store { locks: builder.build(), url, access, directory, server })
    }

    /// What each part of the store's setup risks. Asks again while the store is down or too busy: the lock has the same
    /// trouble, and reports it. Calls nothing that a server would log as refused.
    pub(crate) fn risks(&self) -> impl Future<Output = Result<Vec<Finding>, leasehold::Error>> + use<> {
        let (locks, server) = (self.locks.clone(), self.server.clone());
        let directory = self.directory.as_ref().map(|_| self.url.text.clone());
        async move {
            loop {
                let found = match (&server, &directory) {
                    (Some(server), _) => server.quiet_findings().await,
                    (None, Some(url)) => doctor::examine(url).await,
                    (None, None) => locks.findings().await,
                };
                match found {
                    Err(error) if error.is_retryable() => tokio::time::sleep(EXAMINE_AGAIN).await,
                    found => {
                        let mut found = found?;
                        found.retain(|finding| finding.level == Level::Risk);
                        return Ok(found);
                    }
                }
            }
        }
    }

    /// Opens the same store again, as another process would.
    pub(crate) async fn again(&self) -> Result<Self, Failure> {
        Store::open(self.url.clone(), self.access.clone(), OPENING).await
    }

    /// Descriptors that keep the locks for as long as a child has them open, if the store offers them.
    pub(crate) fn descriptors(&self, guards: &[Guard]) -> Result<Vec<OwnedFd>, Failure> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        guards.iter().map(|guard| Ok(directory.hand_over(&guard.lease_id())?)).collect()
    }
}
