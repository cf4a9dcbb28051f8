//! Opens the store: reads the URL's options, checks the server, and notices a pooler in between.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::super::pooler::{self, Pooler};
use super::pool::{self, Lender, Lent, Link, Pool, Source};
use super::verbs::{Statements, query};
use super::{Inner, Postgres, answers, schema, subscribe};
use crate::backends::postgres::config::Address;
use crate::backends::postgres::fault;
use crate::backends::runtimes::PerRuntime;
use crate::backends::wakes::Wakes;
use crate::doctor::Preview;
use crate::engine::reporter;
use crate::error::{Error, ErrorKind, Result};

/// The default schema.
const SCHEMA: &str = "leasehold";

/// The default number of connections for calls. A call takes one for a round trip; more connections let more commits
/// share one wait for the disk.
const POOL_SIZE: usize = 8;

/// The options of ours that a URL may have.
pub(crate) const OPTIONS: [&str; 3] = ["pool_size", "pooler", "schema"];

/// The oldest supported server, as its version number.
const OLDEST: i32 = 130_000;

/// Sets up a [`Postgres`].
#[derive(Clone)]
pub struct PostgresBuilder {
    address: Option<Address>,
    lender: Option<Lender>,
    schema: String,
    pool_size: usize,
    pooler: Pooler,
    /// Whether tables and functions may be created or replaced.
    sets_up: bool,
}

impl fmt::Debug for PostgresBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBuilder")
            .field("address", &self.address)
            .field("schema", &self.schema)
            .field("pool_size", &self.pool_size)
            .field("pooler", &self.pooler)
            .finish_non_exhaustive()
    }
}

/// What the check found out about a server.
struct Found {
    direct: bool,
    exists: bool,
    made: bool,
}

impl PostgresBuilder {
    pub(super) fn new(address: Option<Address>, lender: Option<Lender>) -> Self {
        PostgresBuilder {
            address,
            lender,
            schema: SCHEMA.into(),
            pool_size: POOL_SIZE,
            pooler: Pooler::Auto,
            sets_up: true,
        }
    }

    /// Parses the server and the options of a URL.
    pub(super) fn from_url(url: &str) -> Result<Self> {
        let (address, mut own) = Address::parse_with(url, &OPTIONS)?;
        let mut builder = PostgresBuilder::new(Some(address), None);
        if let Some(schema) = own.take("schema") {
            builder.schema = schema;
        }
        if let Some(size) = own.number("pool_size", 1, 1000)? {
            builder.pool_size = usize::try_from(size).unwrap_or(POOL_SIZE);
        }
        builder.pooler = Pooler::take(&mut own)?;
        Ok(builder)
    }

    /// Sets the schema of the tables. Default `leasehold`.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Sets how many calls may run at a time, which is also the most connections there are, besides the one for
    /// wake-ups. Default 8. Connections are made when they are needed. From 4 on, a quarter of them is for renewals
    /// and releases alone, and calls on one name never take all: so a row that another session keeps locked holds up
    /// no other name.
    #[must_use]
    pub fn pool_size(mut self, size: usize) -> Self {
        self.pool_size = size;
        self
    }

    /// Sets which pooler is between this client and the server.
    #[must_use]
    pub fn pooler(mut self, pooler: Pooler) -> Self {
        self.pooler = pooler;
        self
    }

    /// Calls verbs on connections that the caller lends, for one round trip each, for example from its own pool. They
    /// must be in no transaction. Setup and wake-ups still have their own connection.
    ///
    /// The caller's runtime does the I/O of lent connections. If that runtime is blocked, so are renewals.
    #[must_use]
    pub fn clients(
        mut self,
        lend: impl Fn() -> BoxFuture<'static, Result<Lent>> + Send + Sync + 'static,
    ) -> Self {
        self.lender = Some(Arc::new(lend));
        self
    }

    /// Examines the server, and creates nothing on it.
    pub(crate) async fn preview(mut self) -> Result<Preview> {
        self.sets_up = false;
        let schema = self.schema.clone();
        let (store, made) = self.connect().await?;
        let mut unchecked = Vec::new();
        if !made {
            unchecked.push(format!(
                "the tables in schema {schema:?} do not exist yet; whether this user may create them was not checked"
            ));
        }
        Ok(Preview { findings: store.findings().await?, unchecked })
    }

    /// Connects, and makes the tables if they do not exist and this user may.
    ///
    /// Connections live on the runtime that calls this; [`Locks::connect`](crate::Locks::connect) and
    /// [`Locks::open`](crate::Locks::open) call it on the client's own.
    ///
    /// # Cancel safety
    /// If dropped, the tables may have been made, completely; no connection stays.
    ///
    /// # Errors
    /// `InvalidArgument` for invalid options; `Unsupported` for a server older than 13, another encoding than UTF8,
    /// another isolation level than read committed, or tables of another version; `AuthFailed` where a right is
    /// missing; `Unavailable` where the server cannot be reached, or is read only.
    pub async fn open(self) -> Result<Postgres> {
        self.connect().await.map(|(store, _)| store)
    }

    /// The store, and whether its tables were there before.
    async fn connect(self) -> Result<(Postgres, bool)> {
        schema::check_name(&self.schema)?;
        if self.pool_size == 0 {
            return Err(Error::invalid("pool_size must be at least 1"));
        }
        let (mut bell, mut first, mut made) = (None, None, true);
        let mut revision = schema::NOTES;
        let runtimes = Arc::new(PerRuntime::beside(&Handle::current()));
        if let Some(address) = &self.address {
            let link = Link::open(address, &runtimes).await?;
            let ready = async {
                let found = self.check(link.client()).await?;
                if found.direct {
                    pool::set_up(link.client()).await?;
                }
                Ok(found)
            };
            let found = address.in_time(ready).await?;
            if found.direct {
                let store = Arc::new(address.clone());
                bell = Some(Wakes::new(subscribe::PREFIX, store, Handle::current()));
            } else {
                reporter::log(|| {
                    tracing::warn!(
                        "a pooler that shares connections stands before the PostgreSQL server: no wake-ups, waiting clients poll"
                    );
                });
            }
            made = found.made;
            if self.sets_up {
                revision = schema::ensure(link.client(), &self.schema, found.exists, found.made).await?;
            } else if found.made {
                revision = schema::check(link.client(), &self.schema).await?;
            }
            first = Some(link);
        } else if let Some(lend) = &self.lender {
            let client = lend().await?;
            let found = self.check(&client).await?;
            if !found.made {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "the tables do not exist, and are not created over connections of your own; run the setup script first",
                ));
            }
            revision = schema::check(&client, &self.schema).await?;
        }
        let notes = revision >= schema::NOTES;
        let statements = Statements::new(&self.schema, bell.is_some(), notes);
        let pool = match (self.lender, self.address) {
            (Some(lender), _) => Pool::new(Source::Lent(lender), statements, self.pool_size, runtimes),
            (None, Some(address)) => {
                let source = Source::Own { address: Box::new(address), direct: bell.is_some() };
                let pool = Pool::new(source, statements, self.pool_size, runtimes);
                first.into_iter().for_each(|link| pool.keep(link));
                pool
            }
            (None, None) => return Err(Error::invalid("the store needs a URL, or connections of your own")),
        };
        let inner = Inner {
            pool: Arc::new(pool),
            bell,
            notes,
            schema: self.schema,
            clock: 0.into(),
            expired: 0.into(),
            pass: Mutex::default(),
        };
        Ok((Postgres { inner: Arc::new(inner) }, made))
    }

    /// Asks the server everything that the store needs to know, in one round trip.
    async fn check(&self, client: &Client) -> Result<Found> {
        let asked = client.query_typed(const { query("check") }, &[(&self.schema, Type::TEXT)]).await;
        let rows = asked.map_err(fault::statement)?;
        let Some(row) = rows.first() else {
            return Err(Error::new(ErrorKind::Internal, "the PostgreSQL server did not report its version"));
        };
        let refuse = |what: &'static str| Err(Error::new(ErrorKind::Unsupported, what));
        if answers::get::<i32>(row, 0)? < OLDEST {
            return refuse("the PostgreSQL server is too old; version 13 or newer is needed");
        }
        if answers::get::<&str>(row, 1)? != "UTF8" {
            return refuse("the encoding of the database must be UTF8, so that every name can be stored");
        }
        if answers::get(row, 3)? {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the PostgreSQL server is read only, a standby perhaps; connect to the primary",
            ));
        }
        let direct = match self.pooler {
            Pooler::Session => true,
            Pooler::Transaction => false,
            Pooler::Auto | Pooler::None => pooler::is_direct(client, answers::get(row, 4)?).await,
        };
        if self.pooler == Pooler::None && !direct {
            return refuse(
                "there is a pooler before the PostgreSQL server, although the URL says pooler=none: say session or \
                 transaction, whichever its pool_mode is, or connect to the server's own port",
            );
        }
        // On our own connections it is set.
        if (!direct || self.lender.is_some()) && answers::get::<&str>(row, 2)? != "read committed" {
            return Err(pool::wrong_isolation());
        }
        Ok(Found { direct, exists: answers::get(row, 5)?, made: answers::get(row, 6)? })
    }
}
