//! The walks for lists: through all keys of all servers, one at a time for all callers of a client.
//!
//! A call walks for a while. If the walk is not over by then, the caller gets an empty page that says where the next
//! one begins, and the next call goes on with the same walk. Nothing runs in between.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

use super::keys;
use super::link::{Identity, Link};
use super::look::scan;
use super::route::Route;
use crate::error::Result;
use crate::name::Name;

/// How long the names of a walk are kept after their last use, and an unfinished walk after its last step.
const KEEP: Duration = Duration::from_secs(10);

/// A walk of at most this many steps is made anew for each list. The names of a longer one serve all lists of a while.
const SHORT: usize = 100;

/// The walk under way and the names of the last one.
pub(super) struct Lists {
    runtime: Handle,
    /// Held by the call that walks.
    walk: tokio::sync::Mutex<Option<Walk>>,
    last: Mutex<Option<Last>>,
    /// The task that forgets them.
    forgetting: Mutex<Option<AbortHandle>>,
}

struct Walk {
    began: Instant,
    stepped: Instant,
    steps: usize,
    servers: Vec<Identity>,
    /// The current server, and the cursor there.
    server: usize,
    cursor: String,
    met: BTreeSet<String>,
}

/// What a whole walk has met.
struct Last {
    began: Instant,
    ended: Instant,
    used: Instant,
    is_long: bool,
    names: Arc<BTreeSet<String>>,
}

/// The stored forms of all names, in use or not.
pub(super) struct Names {
    pub(super) all: Arc<BTreeSet<String>>,
    /// When their walk began.
    pub(super) began: Instant,
    /// `None` if their walk began after the list was asked for.
    pub(super) age: Option<Duration>,
}

impl Drop for Lists {
    fn drop(&mut self) {
        self.forgetting.get_mut().take().iter().for_each(AbortHandle::abort);
    }
}

impl Lists {
    pub(super) fn new(runtime: Handle) -> Self {
        Lists {
            runtime,
            walk: tokio::sync::Mutex::default(),
            last: Mutex::default(),
            forgetting: Mutex::default(),
        }
    }

    /// The names that a walk has met; `None` if it is not over at `until`. The first page of a list wants them new.
    pub(super) async fn names(
        self: &Arc<Self>,
        route: &Route,
        is_first: bool,
        until: Instant,
    ) -> Result<Option<Names>> {
        let asked = Instant::now();
        if let Some(names) = self.kept(asked, is_first) {
            return Ok(Some(names));
        }
        // Later pages of a list go on with any names that there are, and so does a list while a walk takes long.
        let late = || Ok(self.kept(asked, false));
        let Ok(mut walk) = timeout_at(until.into(), self.walk.lock()).await else { return late() };
        if let Some(names) = self.kept(asked, is_first) {
            return Ok(Some(names));
        }
        let links = route.everywhere().await?;
        loop {
            let step = match walk.as_mut() {
                Some(under_way) if under_way.leads_to(&links) => under_way.step(&links).await,
                _ => {
                    *walk = Some(Walk::new(&links));
                    self.forget_later();
                    continue;
                }
            };
            match step {
                Ok(false) if Instant::now() >= until => return late(),
                Ok(false) => {}
                Ok(true) => {
                    if let Some(over) = walk.take() {
                        self.keep(over);
                    }
                    if let Some(names) = self.kept(asked, false) {
                        return Ok(Some(names));
                    }
                }
                Err(error) => {
                    // The server may have been replaced, and cursors of the old one mean nothing to the new one.
                    *walk = None;
                    return Err(error);
                }
            }
        }
    }

    fn kept(&self, asked: Instant, is_first: bool) -> Option<Names> {
        let mut last = self.last.lock();
        let Last { began, ended, used, is_long, names } =
            last.as_mut().filter(|last| last.used.elapsed() < KEEP)?;
        let is_new = *began >= asked;
        if is_first && !is_new && !(*is_long && ended.elapsed() < KEEP) {
            return None;
        }
        *used = Instant::now();
        Some(Names { all: Arc::clone(names), began: *began, age: (!is_new).then(|| began.elapsed()) })
    }

    fn keep(&self, walk: Walk) {
        let now = Instant::now();
        let is_long = walk.steps > SHORT;
        let names = Arc::new(walk.met);
        *self.last.lock() = Some(Last { began: walk.began, ended: now, used: now, is_long, names });
    }

    /// Forgets what is no longer used, after a while, in a task that ends then.
    fn forget_later(self: &Arc<Self>) {
        let mut forgetting = self.forgetting.lock();
        if forgetting.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let lists = Arc::downgrade(self);
        let task = self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(KEEP).await;
                if Weak::upgrade(&lists).is_none_or(|lists| lists.forget()) {
                    return;
                }
            }
        });
        *forgetting = Some(task.abort_handle());
    }

    /// Returns whether nothing is left.
    fn forget(&self) -> bool {
        let mut last = self.last.lock();
        if last.as_ref().is_some_and(|last| last.used.elapsed() >= KEEP) {
            *last = None;
        }
        let Ok(mut walk) = self.walk.try_lock() else { return false };
        if walk.as_ref().is_some_and(|walk| walk.stepped.elapsed() >= KEEP) {
            *walk = None;
        }
        last.is_none() && walk.is_none()
    }
}

impl Walk {
    fn new(links: &[Arc<Link>]) -> Self {
        let now = Instant::now();
        Walk {
            began: now,
            stepped: now,
            steps: 0,
            servers: identities(links),
            server: 0,
            cursor: "0".into(),
            met: BTreeSet::new(),
        }
    }

    /// Whether it can go on: over the same servers, and soon enough.
    fn leads_to(&self, links: &[Arc<Link>]) -> bool {
        self.stepped.elapsed() < KEEP && self.servers == identities(links)
    }

    /// One step. Returns whether the walk is over. If it is dropped, the next call takes the same step. A walk whose
    /// servers have changed stays as it is.
    async fn step(&mut self, links: &[Arc<Link>]) -> Result<bool> {
        let Some(link) = links.get(self.server) else { return Ok(true) };
        let (next, keys) = scan(link, &keys::pattern(""), &self.cursor).await?;
        // The answer may have come over a new connection, from a server to which the cursor means nothing.
        if self.servers != identities(links) {
            return Ok(false);
        }
        let names = keys.iter().filter_map(|key| keys::stored(key));
        self.met.extend(names.filter(|stored| Name::from_stored(stored).is_ok()));
        self.server += usize::from(next == "0");
        self.cursor = next;
        self.steps += 1;
        self.stepped = Instant::now();
        Ok(self.server >= links.len())
    }
}

/// What tells whether a walk can go on.
pub(super) fn identities(links: &[Arc<Link>]) -> Vec<Identity> {
    links.iter().map(|link| link.identity()).collect()
}
