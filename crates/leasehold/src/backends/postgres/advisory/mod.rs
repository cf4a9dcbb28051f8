//! `postgres+advisory://` — PostgreSQL's session locks, which the server frees when a connection ends.
//!
#![doc = include_str!("../../../../docs/postgres-advisory.md")]

// What belongs here: the store with session locks. Before changing anything here:
// `cargo test -p leasehold --all-features --test postgres_advisory`, then `make torture` with
// STORES="postgres+advisory postgres+advisory/pgbouncer".

mod book;
mod calls;
mod finish;
mod inspect;
mod key;
mod open;
mod pool;
pub mod scope;
mod session;
mod sql;
mod store;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{
    Attempt, Backend, Claim, Info, Liveness, Page, Query, Release, Released, Renewal, Renewed, Revoked,
    Swept, TimeAuthority, Wake,
};
use crate::clock::SystemClock;
use crate::doctor::Finding;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::name::Name;

use super::config::Address;
use super::findings::Settings;
use super::pooler::Pooler;
use finish::Finish;
use pool::Pool;
use sql::Sql;
use store::Store;

pub use key::AdvisoryKey;

/// How often a guard checks that its session is still there. That only reads a flag.
const CHECK_EVERY: Duration = Duration::from_millis(250);

/// How long a session that is given up stays open: by then every guard on it has checked.
const TELLING: Duration = CHECK_EVERY.saturating_mul(2);

/// How often a session must give a sign of life, and how long that may take: the client notices a server that hangs
/// within twice this.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// The most connections of one client, by default: one for all locks that were free, and one for each that was waited
/// for.
const CONNECTIONS: usize = 32;

/// Warn if a server keeps the locks of a vanished client for more than this many seconds.
const LONG_SILENCE: i32 = 120;

/// The schema of the fence tables.
const SCHEMA: &str = "leasehold";

/// The URL options of this store.
const OPTIONS: &[&str] = &["connections", "fences", "hashing", "keepalive", "pooler", "schema"];

/// Session locks of a PostgreSQL server. Clones are the same client.
///
/// A lease lasts until it is released or its connection ends: there is no ttl. The store has its own connections, on
/// the runtime where it was connected. `docs/postgres-advisory.md` says more.
///
/// # Examples
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Locks::connect("postgres+advisory://app@db.example/app?sslmode=verify-full").await?;
/// let guard = locks.mutex("nightly-report").lock().await?;
/// // … work …
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Advisory {
    store: Arc<Store>,
}

/// Sets up an [`Advisory`].
#[derive(Debug, Clone)]
pub struct AdvisoryBuilder {
    address: Address,
    schema: String,
    fences: bool,
    hashing: bool,
    keepalive: Duration,
    pooler: Pooler,
    connections: usize,
}

impl AdvisoryBuilder {
    /// Sets the schema of the fence tables; default `leasehold`. In a URL: `schema=…`.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Sets whether leases get fences, which need two tables; default yes. In a URL: `fences=off`.
    #[must_use]
    pub fn fences(mut self, fences: bool) -> Self {
        self.fences = fences;
        self
    }

    /// Sets whether names that do not fit into a key may be hashed; default yes. In a URL: `hashing=off`.
    #[must_use]
    pub fn hashing(mut self, hashing: bool) -> Self {
        self.hashing = hashing;
        self
    }

    /// Sets how often each session must give a sign of life, and how long that may take; default 5 s. The client
    /// notices a server that hangs within twice this. In a URL: `keepalive=seconds`.
    #[must_use]
    pub fn keepalive(mut self, every: Duration) -> Self {
        self.keepalive = every;
        self
    }

    /// Sets how many connections there may be; default 32. A claim beyond that tries every 50 ms. In a URL:
    /// `connections=…`.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most;
        self
    }

    /// Sets which pooler is between this client and the server. A pooler is refused unless you say that it keeps one
    /// server connection for each client for as long as the client stays ([`Pooler::Session`], PgBouncer's `pool_mode
    /// = session`). It is refused then too if it turns out not to. In a URL: `pooler=session`.
    #[must_use]
    pub fn pooler(mut self, pooler: Pooler) -> Self {
        self.pooler = pooler;
        self
    }

    /// Connects, and makes the fence tables if they do not exist.
    ///
    /// # Cancel safety
    /// If dropped, nothing is left behind, except perhaps the tables.
    ///
    /// # Errors
    /// `Unsupported` behind a pooler, unless it is in session mode and [the builder says so](Self::pooler);
    /// `InvalidArgument` for settings out of range; faults of the server.
    pub async fn connect(self) -> Result<Advisory> {
        if self.keepalive < Duration::from_millis(100) || !(2..=10_000).contains(&self.connections) {
            return Err(Error::invalid("keepalive must be at least 100 ms, connections from 2 to 10000"));
        }
        if self.schema.is_empty() || self.schema.len() > 63 || self.schema.contains('\0') {
            return Err(Error::invalid("a PostgreSQL schema has a name of 1 to 63 bytes"));
        }
        if self.pooler == Pooler::Transaction {
            return Err(session::in_transaction_mode());
        }
        let pooled = self.pooler == Pooler::Session;
        let pool = Pool::new(self.address, self.keepalive, pooled, self.connections);
        let first = pool.shared(&[]).await?;
        if pooled {
            open::check_session_mode(&pool, first.session()).await?;
        }
        let fenced = self.fences && open::prepare_fences(&pool, first.session(), &self.schema).await?;
        drop(first);
        let store = Store {
            schema: self.schema.clone(),
            sql: Sql::new(&self.schema, fenced),
            allow_hashing: self.hashing,
            clock: Arc::new(SystemClock),
            pool,
            book: Default::default(),
            swept: Default::default(),
        };
        Ok(Advisory { store: Arc::new(store) })
    }
}

impl Advisory {
    /// Connects to the server of a URL: `postgres+advisory://user:password@host:port/database?option=value`.
    /// [`Address`] and [`AdvisoryBuilder`] list the options.
    ///
    /// # Cancel safety
    /// As [`AdvisoryBuilder::connect`].
    ///
    /// # Errors
    /// As [`AdvisoryBuilder::connect`].
    pub async fn connect(url: &str) -> Result<Self> {
        Advisory::parse(url)?.connect().await
    }

    /// Returns a builder for the store at a URL.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid URL.
    pub fn parse(url: &str) -> Result<AdvisoryBuilder> {
        let (address, mut own) = Address::parse_with(url, OPTIONS)?;
        let mut builder = Advisory::builder(address);
        let switch = [("on", true), ("off", false)];
        if let Some(schema) = own.take("schema") {
            builder.schema = schema;
        }
        builder.fences = own.choice("fences", &switch)?.unwrap_or(builder.fences);
        builder.hashing = own.choice("hashing", &switch)?.unwrap_or(builder.hashing);
        builder.pooler = Pooler::take(&mut own)?;
        if let Some(seconds) = own.number("keepalive", 1, 3600)? {
            builder.keepalive = Duration::from_secs(seconds);
        }
        if let Some(connections) = own.number("connections", 2, 10_000)? {
            builder.connections = usize::try_from(connections).unwrap_or(builder.connections);
        }
        Ok(builder)
    }

    /// Returns a builder for the store at this address.
    pub fn builder(address: Address) -> AdvisoryBuilder {
        AdvisoryBuilder {
            address,
            schema: SCHEMA.into(),
            fences: true,
            hashing: true,
            keepalive: KEEPALIVE,
            pooler: Pooler::Auto,
            connections: CONNECTIONS,
        }
    }

    /// What stores of this kind are and can do.
    pub(crate) fn abilities() -> Info {
        Info {
            liveness: Liveness::Session,
            time: TimeAuthority::None,
            fifo: false,
            max_permits: 0,
            find_by_id: false,
            revoke: false,
            notes: false,
            check_every: Some(CHECK_EVERY),
            namespaced: false,
            ..Info::new("postgres+advisory")
        }
    }

    /// Examines how the server is set up.
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>> {
        let Store { pool, schema, .. } = &*self.store;
        let loan = pool.shared(&[]).await?;
        let settings = loan.session().ask(|client| Settings::ask(client, schema)).await?;
        let mut found = settings.findings("fences rest on the server's clock")?;
        let bound = pool.keepalive * 2;
        found.push(
            Finding::note(format!("a server that hangs is noticed within {} s", bound.as_secs_f32()))
                .because(
                    "until then a holder cannot know whether it still has its lock",
                    "say keepalive=seconds in the URL for another time",
                ),
        );
        if let Some(seconds) = settings.notices_silence()? {
            let what = format!("the lock of a client whose machine has vanished is free after {seconds} s");
            found.push(if seconds <= LONG_SILENCE {
                Finding::ok(what)
            } else {
                Finding::note(what).because(
                    "none to safety; but until then nobody else gets it",
                    "set tcp_keepalives_idle = 30, tcp_keepalives_interval = 10, tcp_keepalives_count = 3 on the server",
                )
            });
        }
        if !settings.notices_dead_waiters()? {
            found.push(
                Finding::note("a client that dies while it waits keeps its place until its turn").because(
                    "none to safety, but until then the waiters behind it wait too",
                    "use PostgreSQL 14 or newer (client_connection_check_interval)",
                ),
            );
        }
        found.push(Finding::ok(
            "locks suit migrations: CREATE INDEX CONCURRENTLY under one waits for less than a second for waiters \
             for it (on postgres:// not at all)",
        ));
        found.push(if pool.pooled {
            Finding::note("there may be a pooler in session mode before the server").because(
                "in any other mode locks would be lost without a word; it was tried that it is not in one",
                "keep it in session mode, or connect without it",
            )
        } else {
            Finding::ok("nothing stands between leasehold and the server that shares its sessions")
        });
        Ok(found)
    }

    fn run<T: Send + 'static>(&self, verb: impl Future<Output = T> + Send + 'static) -> Finish<T> {
        Finish::new(&self.store.pool.home, verb)
    }
}

#[async_trait]
impl Backend for Advisory {
    fn info(&self) -> Info {
        Info { fenced: self.store.sql.fenced, ..Advisory::abilities() }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.run(Arc::clone(&self.store).try_acquire(claim.clone())).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        self.store.wait(claim).await
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers = Vec::with_capacity(leases.len());
        for lease in leases {
            answers.push(self.run(Arc::clone(&self.store).renew(lease.clone())).await);
        }
        answers
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        self.run(Arc::clone(&self.store).release(lease.clone())).await
    }

    async fn revoke(&self, _: &Name, _: bool, _: Option<Fence>) -> Result<Revoked> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "postgres+advisory: cannot revoke: only the holder can let go; pg_terminate_backend ends its session",
        ))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        Arc::clone(&self.store).inspect(query.clone()).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.run(Arc::clone(&self.store).sweep()).await
    }
}
