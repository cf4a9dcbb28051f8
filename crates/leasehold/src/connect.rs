//! From a URL to a client: one match.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::backend::{Backend, Info};
#[cfg(all(feature = "file", unix))]
use crate::backends::file::{self, Directory};
#[cfg(feature = "http")]
use crate::backends::http::{self, Http};
use crate::backends::memory::Memory;
#[cfg(feature = "postgres")]
use crate::backends::postgres::{Advisory, Postgres};
#[cfg(feature = "redis")]
use crate::backends::redis::{self, Redis};
#[cfg(all(feature = "sqlite", target_os = "linux"))]
use crate::backends::sqlite::{self, Sqlite};
use crate::client::locks::{Locks, LocksBuilder};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::layers::quorum;
use crate::schemes;

/// What each store that this build can open is and can do.
pub fn stores() -> Vec<Info> {
    vec![
        Memory::new().info(),
        #[cfg(all(feature = "sqlite", target_os = "linux"))]
        sqlite::INFO,
        #[cfg(all(feature = "file", unix))]
        Directory::abilities(),
        #[cfg(feature = "redis")]
        redis::info("redis", false),
        #[cfg(feature = "redis")]
        redis::info("rediss", false),
        #[cfg(feature = "redis")]
        redis::info("redis-sentinel", false),
        #[cfg(feature = "redis")]
        redis::info("redis-cluster", true),
        quorum::abilities(),
        #[cfg(feature = "postgres")]
        Postgres::abilities(),
        #[cfg(feature = "postgres")]
        Advisory::abilities(),
        #[cfg(feature = "http")]
        http::INFO,
    ]
}

/// Looks at how the store of a URL is set up: what it promises as it stands, and what it risks.
///
/// Each finding that is not as it should be has what can come of it and what to do about it. The store is connected
/// to for this, and nothing in it is changed. `leasehold doctor` prints what this finds, besides what it tries out by
/// itself; the risks of a Redis server are also logged when it is connected to.
///
/// # Cancel safety
/// Dropped, nothing is left.
///
/// # Errors
/// As [`Locks::connect`].
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// for finding in leasehold::examine("memory:").await? {
///     println!("{finding}");
/// }
/// # Ok(())
/// # }
/// ```
pub async fn examine(url: &str) -> Result<Vec<Finding>> {
    examine_node(url.to_owned()).await
}

/// As [`examine`]; a quorum examines its nodes with it.
fn examine_node(url: String) -> BoxFuture<'static, Result<Vec<Finding>>> {
    Box::pin(async move {
        let (scheme, rest) = url.split_once(':').unwrap_or_default();
        // Where nothing is asked of it, opening it says what is wrong with the URL.
        match scheme.to_ascii_lowercase().as_str() {
            #[cfg(all(feature = "sqlite", target_os = "linux"))]
            "sqlite" => {
                drop(open(url.clone()).await?);
                Ok(sqlite::findings::findings(std::path::Path::new(Sqlite::path_of_url(rest)?)))
            }
            #[cfg(all(feature = "file", unix))]
            "file" => Ok(file::findings::findings(Directory::connect(rest).await?.path())),
            #[cfg(feature = "http")]
            "http" | "https" => Http::connect(&url).await?.findings().await,
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis-sentinel" | "redis-cluster" => {
                Redis::connect(&url).await?.findings().await
            }
            "quorum" => {
                drop(open(url.clone()).await?);
                Ok(quorum::findings(rest, examine_node).await)
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => Postgres::connect(&url).await?.findings().await,
            #[cfg(feature = "postgres")]
            "postgres+advisory" | "postgresql+advisory" => Advisory::connect(&url).await?.findings().await,
            _ => {
                drop(open(url).await?);
                Ok(vec![Finding::note(
                    "locks hold between the clients of one store in one process, and no further",
                )])
            }
        }
    })
}

impl Locks {
    /// A client of the store that a URL names.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `memory:` | this process's memory; each connect is a new, empty store |
    /// | `sqlite:path` | a SQLite file, made if it is not there, shared between the processes of this host; the path as it stands, or `sqlite:///` and an absolute path (feature `sqlite`) |
    /// | `quorum:url,url,url` | a [quorum](crate::layers::quorum::Quorum) of at least three stores, each a URL with `://`; those that cannot be reached join when they can |
    /// | `file:dir` | files in a directory, which is made if only itself is missing, shared between the processes of this host; the path as it stands, or `file:///` and an absolute path (feature `file`) |
    /// | `redis://[user:password@]host[:port][/db]` | a Redis server, 6.2 or later; `rediss://` with TLS (feature `redis`) |
    /// | `redis-sentinel://host[:port],…/service[/db]` | the primary that Redis sentinels name (feature `redis`) |
    /// | `redis-cluster://host[:port],…` | a Redis cluster (feature `redis`) |
    /// | `postgres://user@host/database` | tables in a PostgreSQL database, made if they are not there; options as [`Address`](crate::backends::postgres::Address) and [`Postgres::builder`](crate::backends::postgres::Postgres::builder) list them (feature `postgres`) |
    /// | `postgres+advisory://user:password@host:port/database` | session locks of a PostgreSQL server, shared with whoever uses the same advisory keys; options as in [`Address`](crate::backends::postgres::Address) and [`AdvisoryBuilder`](crate::backends::postgres::advisory::AdvisoryBuilder) (feature `postgres`) |
    /// | `http://host:port`, `https://…` | a leasehold server; `?token_file=path`, `?ca=path`, `?cert=path&key=path` (feature `http`) |
    ///
    /// # Cancel safety
    /// Dropped, nothing is left.
    ///
    /// # Errors
    /// `InvalidArgument` for a URL that cannot be one; `Unsupported` for a store that this build does
    /// not have; faults of the store. The URL itself, which may hold a password, is in no error.
    pub async fn connect(url: &str) -> Result<Self> {
        Ok(Locks::connect_builder(url).await?.build())
    }

    /// As [`connect`](Locks::connect), to be set up further.
    ///
    /// # Cancel safety
    /// As [`connect`](Locks::connect).
    ///
    /// # Errors
    /// As [`connect`](Locks::connect).
    pub async fn connect_builder(url: &str) -> Result<LocksBuilder> {
        Locks::open(open(url.to_owned())).await
    }
}

async fn open(url: String) -> Result<Arc<dyn Backend>> {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    // Only what looks like a scheme is repeated: a password could be anywhere else.
    let scheme = scheme.filter(|scheme| {
        !scheme.is_empty()
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
    });
    let Some(scheme) = scheme else {
        return Err(Error::invalid(
            "a store URL begins with a scheme and a colon, for example sqlite:locks.db",
        ));
    };
    match scheme.as_str() {
        "memory" if url.len() == "memory:".len() => Ok(Arc::new(Memory::new())),
        "memory" => Err(Error::invalid(
            "memory: takes nothing after the colon; each connect is a new store, clones of a client share one",
        )),
        #[cfg(all(feature = "sqlite", target_os = "linux"))]
        "sqlite" => Ok(Arc::new(Sqlite::connect(&url["sqlite:".len()..]).await?)),
        #[cfg(all(feature = "file", unix))]
        "file" => Ok(Arc::new(Directory::connect(&url["file:".len()..]).await?)),
        #[cfg(feature = "http")]
        "http" | "https" => Ok(Arc::new(Http::connect(&url).await?)),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis-sentinel" | "redis-cluster" => Ok(Arc::new(Redis::connect(&url).await?)),
        "quorum" => Ok(Arc::new(quorum::open(&url["quorum:".len()..], info_of, open_node).await?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Arc::new(Postgres::connect(&url).await?)),
        #[cfg(feature = "postgres")]
        "postgres+advisory" | "postgresql+advisory" => Ok(Arc::new(Advisory::connect(&url).await?)),
        other => Err(schemes::refusal(other)),
    }
}

/// What the store of a scheme is and can do.
fn info_of(scheme: &str) -> Result<Info> {
    let known = schemes::built(scheme);
    let info = known.and_then(|known| stores().into_iter().find(|info| info.scheme == known.store));
    info.ok_or_else(|| schemes::refusal(scheme))
}

/// Opens one node of a quorum, and says which store it is where that can be known.
fn open_node(url: String) -> BoxFuture<'static, Result<quorum::Opened>> {
    Box::pin(async move {
        #[cfg(feature = "redis")]
        if url.split_once(':').is_some_and(|(scheme, _)| scheme.to_ascii_lowercase().starts_with("redis")) {
            let redis = Redis::connect(&url).await?;
            let identity = Some(redis.run_id().to_owned()).filter(|id| !id.is_empty());
            return Ok(quorum::Opened { backend: Arc::new(redis), identity });
        }
        Ok(quorum::Opened { backend: open(url).await?, identity: None })
    })
}
