//! Opens a quorum from one URL, including nodes that cannot be reached yet.

use std::fmt;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures_util::future::{BoxFuture, FutureExt as _, Shared, join_all};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::{LEAST_NODES, Node, Quorum, twice};
use crate::backend::{
    Attempt, Backend, Claim, Info, Page, Query, Release, Released, Renewal, Renewed, Revoked, Swept, Wake,
};
use crate::backends::runtimes::run_on;
use crate::engine::reporter;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::stores::{self, Opened};

/// Opens a quorum from the part after `quorum:`, URLs with commas between them. Nodes that cannot be reached join when
/// they can; a majority must be reachable.
pub(crate) async fn open(urls: &str) -> Result<Quorum> {
    let (nodes, quorum) = unopened(urls)?;
    let opened = join_all(nodes.iter().map(|node| async move { node.store().await.err() })).await;
    let mut failed: Vec<Error> = opened.into_iter().flatten().collect();
    // A wrong URL stays wrong; a node that is away may come back.
    if let Some(place) = failed.iter().position(|error| !error.is_retryable()) {
        return Err(failed.swap_remove(place));
    }
    if failed.len() > nodes.len() - quorum.nodes.majority {
        return Err(quorum.nodes.too_few(failed, 0));
    }
    for error in failed {
        reporter::log(
            move || tracing::warn!(%error, "a node of the quorum cannot be reached; it joins when it can"),
        );
    }
    Ok(quorum)
}

/// Refuses URLs of which no quorum can be made, and opens none of them.
pub(super) fn check(urls: &str) -> Result<()> {
    unopened(urls).map(drop)
}

fn unopened(urls: &str) -> Result<(Vec<Arc<Lazy>>, Quorum)> {
    let urls = split(urls);
    if urls.len() < LEAST_NODES {
        return Err(Error::invalid(format!(
            "quorum: takes at least {LEAST_NODES} store URLs with commas between them, and has {}; \
             each begins with a scheme and ://",
            urls.len()
        )));
    }
    let identities: Arc<Mutex<Vec<Option<String>>>> = Arc::new(Mutex::new(vec![None; urls.len()]));
    let mut nodes = Vec::new();
    for (place, url) in urls.iter().enumerate() {
        if urls[..place].contains(url) {
            return Err(twice(place));
        }
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        let info = stores::info_of(scheme).map_err(|error| {
            Error::new(error.kind(), format!("node {} of the quorum: {}", place + 1, error.message()))
        })?;
        let url = (*url).to_owned();
        nodes.push(Arc::new(Lazy {
            info,
            url,
            place,
            home: Handle::current(),
            store: OnceLock::new(),
            opening: Mutex::new(None),
            identities: Arc::clone(&identities),
        }));
    }
    let quorum = Quorum::new(nodes.iter().map(|node| Node::new(Arc::<Lazy>::clone(node))))?;
    Ok((nodes, quorum))
}

/// Splits at commas that are followed by a scheme and `://`: host lists inside a URL have none.
pub(super) fn split(urls: &str) -> Vec<&str> {
    let begins = |rest: &str| {
        rest.split_once("://").is_some_and(|(scheme, _)| {
            !scheme.is_empty()
                && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
        })
    };
    let mut parts = Vec::new();
    let mut from = 0;
    for (comma, _) in urls.match_indices(',') {
        if begins(&urls[comma + 1..]) {
            parts.push(&urls[from..comma]);
            from = comma + 1;
        }
    }
    parts.push(&urls[from..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// The result of opening a store, for all callers that wait for it.
type Opening = Shared<BoxFuture<'static, std::result::Result<Arc<dyn Backend>, Arc<Error>>>>;

/// A store that is opened when it is first needed, and tried again until that succeeds.
struct Lazy {
    info: Info,
    url: String,
    place: usize,
    /// The runtime where its connections live, which is not that of the first caller.
    home: Handle,
    store: OnceLock<Arc<dyn Backend>>,
    /// The latest try; it goes on even if its callers have given up.
    opening: Mutex<Option<Opening>>,
    /// The identities of the stores that the nodes of this quorum turned out to be.
    identities: Arc<Mutex<Vec<Option<String>>>>,
}

impl Lazy {
    async fn store(&self) -> Result<&Arc<dyn Backend>> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        match self.opening().await {
            Ok(store) => Ok(self.store.get_or_init(|| store)),
            Err(error) => Err(error.duplicate()),
        }
    }

    /// The current try to open it, or a new one.
    fn opening(&self) -> Opening {
        let mut latest = self.opening.lock();
        if let Some(opening) = latest.as_ref().filter(|opening| opening.peek().is_none()) {
            return opening.clone();
        }
        let (opened, place) = (stores::open(self.url.clone()), self.place);
        let identities = Arc::clone(&self.identities);
        let home = self.home.clone();
        let work = async move {
            let Opened { backend, identity, .. } = opened.await?;
            let mut known = identities.lock();
            let mut others = known.iter().enumerate().filter(|(other, _)| *other != place);
            if identity.is_some() && others.any(|(_, other)| *other == identity) {
                return Err(twice(place));
            }
            known[place] = identity;
            Ok(backend)
        };
        let opening = async move { run_on(&home, work).await.map_err(Arc::new) };
        latest.insert(opening.boxed().shared()).clone()
    }
}

impl fmt::Debug for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may contain a password.
        f.debug_struct("Node").field("scheme", &self.info.scheme).field("store", &self.store.get()).finish()
    }
}

#[async_trait]
impl Backend for Lazy {
    fn info(&self) -> Info {
        self.info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.store().await?.try_acquire(claim).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        self.store().await?.wait(claim).await
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        match self.store().await {
            Ok(store) => store.renew(leases).await,
            Err(error) => leases.iter().map(|_| Err(error.duplicate())).collect(),
        }
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        self.store().await?.release(lease).await
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        self.store().await?.revoke(name, now, only).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.store().await?.inspect(query).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.store().await?.sweep().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_where_a_url_begins() {
        assert_eq!(split("redis://a,redis://b:1,rediss://c"), ["redis://a", "redis://b:1", "rediss://c"]);
        let sentinel = "redis-sentinel://a:1,b:2,c:3/m,redis://d,postgres://u:p,w@h/d";
        assert_eq!(split(sentinel), ["redis-sentinel://a:1,b:2,c:3/m", "redis://d", "postgres://u:p,w@h/d"]);
        assert_eq!(split(""), [] as [&str; 0]);
    }
}
