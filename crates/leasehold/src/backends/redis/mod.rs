//! `redis://` — one script call per verb and one round trip, on a server, through sentinels, or on a cluster.
//!
#![doc = include_str!("../../../docs/redis.md")]

// What belongs here: everything about Redis but the table of waiters, which PostgreSQL shares (`backends/wakes.rs`).
// Before changing anything here: `cargo test -p leasehold --all-features --test redis`, then `make model`, and
// `make torture` with STORES="redis redis-sentinel redis-cluster".

mod address;
mod answers;
mod batch;
mod builder;
mod calls;
mod check;
mod cluster;
mod connect;
mod fault;
mod keys;
mod known;
mod link;
mod list;
mod look;
mod route;
mod scripts;
mod subscribe;
mod sweep;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;

pub use self::builder::RedisBuilder;

use self::address::{Address, Layout};
use self::answers::{Answer, Seen};
use self::calls::Wakeable;
use self::cluster::Slots;
use self::known::Known;
use self::link::Reply;
use self::list::Lists;
use self::route::Route;
use self::scripts::Call;
use self::sweep::Walk;
use crate::backend::{
    Attempt, Backend, Claim, Info, Page, Query, Release, Released, Renewal, Renewed, Revoked, Swept, Wake,
};
use crate::backends::runtimes::PerRuntime;
use crate::backends::wakes::{Wakes, ends_wait};
use crate::doctor::{Finding, in_the_clear};
use crate::engine::limits::renewal_timeout;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

/// What a store of this scheme is and can do.
pub(crate) const fn info(scheme: &'static str, cluster: bool) -> Info {
    let mut info = Info::new(scheme);
    // An id and its name may be on different nodes.
    info.find_by_id = !cluster;
    info
}

/// A store in Redis 6.2 or later. Clones are the same store and share its connections.
///
/// Each verb is one script call on a multiplexed connection, decided by the server's clock. There is one connection on
/// the runtime where the store was opened, and one on each other runtime that calls more than a few times, as long as
/// that runtime runs. A second connection listens for wake-ups while a claim waits. All are replaced when they break.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::backends::redis::Redis;
///
/// let locks = leasehold::Locks::new(Redis::connect("redis://localhost").await?);
/// let guard = locks.mutex("nightly-report").lock().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Redis {
    inner: Arc<Inner>,
}

struct Inner {
    info: Info,
    address: Arc<Address>,
    /// Which node of a cluster serves which slots.
    slots: Arc<Slots>,
    /// Connections on the runtime where the store was opened: for work that must not depend on the callers' runtimes.
    home: Arc<Routes>,
    /// Connections for calls from other runtimes; `None` with the caller's own connection.
    elsewhere: Option<PerRuntime<Routes>>,
    run_id: String,
    /// The server's time in the latest answer.
    time: AtomicU64,
    /// Expired leases that calls found and that no sweep has reported yet.
    expired: AtomicU64,
    /// How far the sweeps have got. A sweep holds this lock.
    walk: tokio::sync::Mutex<Walk>,
    /// The names that the sweeps have met.
    known: Known,
    /// The walks for lists.
    lists: Arc<Lists>,
}

/// The connections of one runtime.
struct Routes {
    plain: Arc<Route>,
    confirmed: Option<Confirmed>,
    /// The waiters on this runtime, and the channel that wakes them.
    wakes: Wakes<Route>,
}

/// The connections for grants and renewals that replicas must confirm. `WAIT` blocks its connection, and an acquire
/// must not hold up a renewal, so each has its own.
struct Confirmed {
    grants: Route,
    renewals: Route,
    replicas: u32,
    time: Duration,
}

impl Confirmed {
    async fn confirm(&self, reply: &Reply) -> Result<()> {
        reply.confirmed(self.replicas, self.time).await
    }
}

impl Routes {
    fn new(
        address: &Arc<Address>,
        slots: &Arc<Slots>,
        on: &Handle,
        lent: Option<MultiplexedConnection>,
    ) -> Self {
        let route = |patience| Route::new(Arc::clone(address), on.clone(), patience, slots);
        let plain = match lent {
            Some(connection) => Route::lent(Arc::clone(address), on.clone(), connection),
            None => route(Duration::ZERO),
        };
        let plain = Arc::new(plain);
        Routes {
            confirmed: address.wait_replicas.map(|(replicas, time)| Confirmed {
                grants: route(time),
                renewals: route(time),
                replicas,
                time,
            }),
            wakes: Wakes::new(keys::CHANNEL, Arc::clone(&plain), on.clone()),
            plain,
        }
    }
}

impl Redis {
    /// Connects to the store that a URL names: [`builder`](Redis::builder) without further options.
    ///
    /// # Cancel safety
    /// As [`RedisBuilder::connect`].
    ///
    /// # Errors
    /// As [`builder`](Redis::builder) and [`RedisBuilder::connect`].
    pub async fn connect(url: &str) -> Result<Self> {
        Redis::builder(url)?.connect().await
    }

    /// Returns a builder for the store at this URL. `docs/redis.md` lists the options of the URL.
    ///
    /// ```text
    /// redis://[user:password@]host[:port][/db]          rediss:// with TLS
    /// redis-sentinel://[user:password@]host[:port],…/service[/db]
    /// redis-cluster://[user:password@]host[:port],…
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid URL. No error contains the URL.
    pub fn builder(url: &str) -> Result<RedisBuilder> {
        Ok(RedisBuilder::new(Address::parse(url)?))
    }

    /// Makes a store over the caller's own connection to the single server at this URL.
    ///
    /// The connection is used as it is, with its own timeouts and on the runtime where it was made, until it breaks.
    /// Its replacement, and the connection for wake-ups, are made from the URL.
    ///
    /// # Cancel safety
    /// As [`RedisBuilder::connect`].
    ///
    /// # Errors
    /// As [`connect`](Redis::connect); `InvalidArgument` also for sentinels and clusters.
    pub async fn with_connection(url: &str, connection: MultiplexedConnection) -> Result<Self> {
        let address = Address::parse(url)?;
        if address.layout != Layout::Single {
            return Err(Error::invalid(
                "a connection of your own leads to one server: redis:// or rediss://",
            ));
        }
        Redis::open(Arc::new(address), Some(connection)).await
    }

    async fn open(address: Arc<Address>, connection: Option<MultiplexedConnection>) -> Result<Self> {
        address.check()?;
        let runtime = Handle::current();
        let elsewhere = connection.is_none().then(|| PerRuntime::beside(&runtime));
        let slots = Arc::default();
        let home = Routes::new(&address, &slots, &runtime, connection);
        let mut run_id = String::new();
        for link in home.plain.everywhere().await? {
            let checked = check::server(&link).await?;
            checked.findings.iter().for_each(Finding::log);
            run_id = checked.run_id;
        }
        let inner = Inner {
            info: info(address.scheme, address.layout == Layout::Cluster),
            address,
            slots,
            home: Arc::new(home),
            elsewhere,
            run_id,
            time: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            walk: tokio::sync::Mutex::default(),
            known: Known::default(),
            lists: Arc::new(Lists::new(runtime)),
        };
        Ok(Redis { inner: Arc::new(inner) })
    }

    /// The server's run id, by which a quorum notices a server listed twice; empty if the server does not tell it. For
    /// a cluster, the id of one node.
    pub(crate) fn run_id(&self) -> &str {
        &self.inner.run_id
    }

    /// The server's clock in the latest answer, in microseconds since 1970: for tests against the state machine.
    #[cfg(feature = "test-util")]
    pub fn last_time(&self) -> u64 {
        self.inner.time.load(Ordering::SeqCst)
    }

    /// Examines how the servers are set up.
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>> {
        let Inner { address, home, .. } = &*self.inner;
        let fails_over = address.layout != Layout::Single;
        let confirmed_by = address.wait_replicas.map(|(replicas, _)| replicas);
        let links = home.plain.everywhere().await?;
        let several = links.len() > 1;
        let mut found = Vec::new();
        if address.layout == Layout::Cluster {
            found.push(Finding::ok(format!("{} nodes of the cluster have names", links.len())));
        }
        for (number, link) in links.iter().enumerate() {
            let checked = check::server(link).await?;
            let replication = check::replication(checked.replicas, confirmed_by, fails_over);
            let all = checked.findings.into_iter().chain(replication);
            let node = link.shown().unwrap_or_else(|| (number + 1).to_string());
            found.extend(all.map(|one| if several { one.about(&format!("node {node}")) } else { one }));
        }
        if !address.is_private() {
            found.push(in_the_clear("use rediss: (tls=1 for sentinels and clusters)"));
        }
        Ok(found)
    }

    fn read(&self, value: Value) -> Result<Answer> {
        let answer = Answer::new(value)?;
        self.note(&answer);
        Ok(answer)
    }

    fn note(&self, answer: &Answer) {
        if let Some(time) = answer.time() {
            self.inner.time.store(time, Ordering::SeqCst);
        }
        if answer.expired > 0 {
            self.inner.expired.fetch_add(answer.expired, Ordering::Relaxed);
        }
    }

    /// The connections on the caller's runtime, which avoid the way to another thread and back.
    fn routes(&self) -> Arc<Routes> {
        let Inner { home, elsewhere, address, slots, .. } = &*self.inner;
        let own = elsewhere
            .as_ref()
            .and_then(|elsewhere| elsewhere.current(|on| Routes::new(address, slots, &on, None)));
        own.unwrap_or_else(|| Arc::clone(home))
    }

    /// Removes a waiter, on whichever runtime it waited.
    fn forget(&self, name: &Name, id: &LeaseId) {
        self.inner.home.wakes.leave(name, id);
        if let Some(elsewhere) = &self.inner.elsewhere {
            elsewhere.each(|routes| routes.wakes.leave(name, id));
        }
    }

    async fn call(&self, call: Call) -> Result<Answer> {
        self.read(self.routes().plain.call(&call).await?.value)
    }

    async fn look(&self, name: &Name, id: Option<&LeaseId>) -> Result<Seen> {
        let seen =
            answers::inspected(self.routes().plain.call(&calls::inspect(name, id)).await?.value, name)?;
        self.inner.time.store(seen.time, Ordering::SeqCst);
        Ok(seen)
    }

    fn finds(&self) -> bool {
        self.inner.info.find_by_id
    }

    /// Makes one attempt. Where replicas must confirm, a grant is returned only after they have.
    async fn attempt(&self, routes: &Routes, claim: &Claim, number: u64) -> Result<Attempt> {
        let wakeable = Wakeable { channel: routes.wakes.channel(), number };
        let call = calls::acquire(claim, self.finds(), &wakeable);
        let Some(confirmed) = &routes.confirmed else {
            return answers::acquired(&mut self.read(routes.plain.call(&call).await?.value)?, claim);
        };
        let reply = confirmed.grants.call(&call).await?;
        let attempt = answers::acquired(&mut self.read(reply.value.clone())?, claim)?;
        if let Attempt::Granted(_) = attempt {
            // If this fails, give nothing back: the claim may repeat one whose grant an earlier answer reported. As
            // after any fault, the caller repeats the claim or gives up what it owns.
            confirmed.confirm(&reply).await?;
        }
        Ok(attempt)
    }
}

/// How long the answer to a renewal may be held back by a slower node of a cluster. Less than the renewal loop waits for
/// it; a lease that ends soon asks for little time, and counts as one of a second.
fn patience(lease: &Renewal) -> Duration {
    (renewal_timeout(lease.ttl) * 3 / 4).max(Duration::from_millis(125))
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("address", &self.inner.address).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Redis {
    fn info(&self) -> Info {
        self.inner.info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let routes = self.routes();
        let Some(ticket_ttl) = claim.queue else {
            let answer = self.attempt(&routes, claim, 0).await;
            if let Ok(Attempt::Granted(_)) = answer {
                self.inner.known.asked(&claim.name);
            }
            return answer;
        };
        let number = routes.wakes.enter(claim, ticket_ttl);
        let answer = self.attempt(&routes, claim, number).await;
        if answer.is_ok() {
            self.inner.known.asked(&claim.name);
        }
        match &answer {
            Ok(Attempt::Busy(_)) => routes.wakes.listen(),
            // It may have a place without knowing it.
            Err(error) if error.is_retryable() => {}
            _ => self.forget(&claim.name, &claim.id),
        }
        answer
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        // A waiter that moved to another runtime since its attempt is unknown here; it simply tries again.
        self.routes().wakes.wait(claim).await
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        let calls: Vec<_> = leases.iter().map(|renewal| calls::renew(renewal, self.finds())).collect();
        let patience: Vec<_> = leases.iter().map(patience).collect();
        let routes = self.routes();
        let confirmed = routes.confirmed.as_ref();
        let read = |mut reply: Reply| async move {
            let answer = answers::renewed(&mut self.read(std::mem::replace(&mut reply.value, Value::Nil))?)?;
            if let (Some(confirmed), Renewed::Held(_)) = (confirmed, &answer) {
                confirmed.confirm(&reply).await?;
            }
            Ok(answer)
        };
        let route = confirmed.map_or(&*routes.plain, |confirmed| &confirmed.renewals);
        route.call_each(&calls, &patience, read).await
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        let answer = self.call(calls::release(lease, self.finds())).await;
        let answer = answer.and_then(|mut answer| answers::released(&mut answer));
        if ends_wait(&answer) {
            self.forget(&lease.name, &lease.id);
        }
        answer
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        answers::revoked(&mut self.call(calls::revoke(name, now, only)).await?)
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let route = &self.inner.home.plain;
        let mut page = Page::default();
        match query {
            Query::Name(name) => page.items.push(self.look(name, None).await?.info),
            Query::LeaseId(_) if !self.finds() => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "a cluster cannot find a lease by its id alone: the name decides the node",
                ));
            }
            Query::LeaseId(id) => {
                let mut cmd = redis::cmd("GET");
                let finder = keys::finder(id);
                cmd.arg(&finder);
                let key: Option<String> = redis::from_redis_value(route.send(&finder, &cmd).await?)
                    .map_err(|_| fault::strange())?;
                if let Some(stored) = key.and_then(|key| keys::stored(&key)) {
                    let seen = self.look(&Name::from_stored(&stored)?, Some(id)).await?;
                    // It may have changed hands in between.
                    page.items.extend(seen.known.then_some(seen.info));
                }
            }
            Query::Prefix { stored, limit, cursor } => {
                let Inner { known, lists, .. } = &*self.inner;
                return look::page(route, known, lists, stored, *limit, cursor.as_deref()).await;
            }
        }
        Ok(page)
    }

    async fn sweep(&self) -> Result<Swept> {
        let mut walk = self.inner.walk.lock().await;
        let mut swept =
            walk.go_on(&self.inner.home.plain, &self.inner.known, |answer| self.note(answer)).await?;
        swept.expired = self.inner.expired.swap(0, Ordering::Relaxed);
        Ok(swept)
    }
}
