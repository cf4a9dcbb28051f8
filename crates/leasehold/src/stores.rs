//! The one table of stores: the URL schemes of each, the feature that adds it, and how to open and examine it.
//!
//! [`Locks::connect`], the error for an unknown scheme, `leasehold stores`, `doctor`, quorum and torture all read it.
//!
//! One file because a new store must be a row in one place.

use std::fmt;
#[cfg(any(all(feature = "file", unix), all(feature = "sqlite", target_os = "linux")))]
use std::path::Path;
#[cfg(all(feature = "sqlite", target_os = "linux"))]
use std::path::PathBuf;
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
use crate::doctor::{Finding, Preview};
use crate::error::{Error, ErrorKind, Result};
use crate::layers::quorum;
use crate::marks::Marks;

/// A kind of store that this build can open; see [`stores`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct StoreInfo {
    /// The schemes of its URLs: first the one that its `info` reports, then other spellings.
    pub schemes: &'static [&'static str],
    /// What its URL looks like, for people.
    pub url: &'static str,
    /// What it is and can do.
    pub info: Info,
}

/// Every kind of store that this build can open.
///
/// ```
/// let memory = &leasehold::stores()[0];
/// assert_eq!(memory.schemes, ["memory"]);
/// assert!(memory.info.fifo);
/// ```
pub fn stores() -> Vec<StoreInfo> {
    let built = STORES.iter().filter_map(|row| {
        Some(StoreInfo { schemes: row.schemes, url: row.url, info: (row.driver?.info)(row.schemes[0]) })
    });
    built.collect()
}

/// One row of the table.
struct StoreRow {
    schemes: &'static [&'static str],
    url: &'static str,
    /// The feature that adds it; `None` if it is always included.
    feature: Option<&'static str>,
    /// `None` if this build does not include it.
    driver: Option<Driver>,
}

/// How to describe, open and preview a store. The functions get the whole URL.
#[derive(Clone, Copy)]
struct Driver {
    /// Gets the first scheme of the row.
    info: fn(&'static str) -> Info,
    open: fn(String) -> BoxFuture<'static, Result<Opened>>,
    /// Examines a store without creating what opening it would create; `None` if that creates nothing.
    preview: Option<fn(String) -> Previewing>,
}

/// A preview under way.
type Previewing = BoxFuture<'static, Result<Preview>>;

/// An open store, and an identity that shows when two URLs name the same store.
pub(crate) struct Opened {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) identity: Option<String>,
    pub(crate) examiner: Examiner,
    /// The same store as a keeper of marks, if it can be one.
    pub(crate) marks: Option<Arc<dyn Marks>>,
}

impl Opened {
    /// `examine` looks at how the store is set up.
    fn new<B, F>(backend: B, examine: impl Fn(Arc<B>) -> F + Send + Sync + 'static) -> Self
    where
        B: Backend,
        F: Future<Output = Result<Vec<Finding>>> + Send + 'static,
    {
        Opened::of(Arc::new(backend), examine)
    }

    /// The same, for a store that also keeps marks.
    fn marking<B, F>(backend: B, examine: impl Fn(Arc<B>) -> F + Send + Sync + 'static) -> Self
    where
        B: Backend + Marks,
        F: Future<Output = Result<Vec<Finding>>> + Send + 'static,
    {
        let backend = Arc::new(backend);
        let marks: Arc<dyn Marks> = Arc::<B>::clone(&backend);
        Opened { marks: Some(marks), ..Opened::of(backend, examine) }
    }

    fn of<B, F>(backend: Arc<B>, examine: impl Fn(Arc<B>) -> F + Send + Sync + 'static) -> Self
    where
        B: Backend,
        F: Future<Output = Result<Vec<Finding>>> + Send + 'static,
    {
        let examined = Arc::clone(&backend);
        let examiner = Examiner(Arc::new(move || Box::pin(examine(Arc::clone(&examined)))));
        Opened { backend, identity: None, examiner, marks: None }
    }
}

/// Examines how an open store is set up, over the connections that it has.
#[derive(Clone)]
pub(crate) struct Examiner(Arc<dyn Fn() -> BoxFuture<'static, Result<Vec<Finding>>> + Send + Sync>);

impl Examiner {
    pub(crate) fn findings(&self) -> BoxFuture<'static, Result<Vec<Finding>>> {
        (self.0)()
    }
}

impl fmt::Debug for Examiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Examiner").finish_non_exhaustive()
    }
}

/// `Some` driver if this build includes the store.
macro_rules! driver {
    ($built:meta, $driver:expr) => {{
        #[cfg($built)]
        {
            Some($driver)
        }
        #[cfg(not($built))]
        {
            None
        }
    }};
}

const STORES: &[StoreRow] = &[
    StoreRow {
        schemes: &["memory"],
        url: "memory:",
        feature: None,
        driver: Some(Driver {
            info: |_| Memory::new().info(),
            open: |url| Box::pin(async move { memory(rest(&url)) }),
            preview: None,
        }),
    },
    StoreRow {
        schemes: &["sqlite"],
        url: "sqlite:path",
        feature: Some("sqlite"),
        driver: driver!(
            all(feature = "sqlite", target_os = "linux"),
            Driver {
                info: |_| sqlite::INFO,
                open: |url| {
                    Box::pin(async move {
                        let path: PathBuf = Sqlite::path_of_url(rest(&url))?.into();
                        let examine = move |_| on_disk(&path, sqlite::findings::findings);
                        Ok(Opened::marking(Sqlite::connect(rest(&url)).await?, examine))
                    })
                },
                preview: Some(|url| {
                    Box::pin(async move {
                        let path: PathBuf = Sqlite::path_of_url(rest(&url))?.into();
                        if path.exists() { on_view(url).await } else { unmade(&path, "the database") }
                    })
                }),
            }
        ),
    },
    StoreRow {
        schemes: &["file"],
        url: "file:dir",
        feature: Some("file"),
        driver: driver!(
            all(feature = "file", unix),
            Driver {
                info: |_| Directory::abilities(),
                open: |url| {
                    Box::pin(async move {
                        let examine = |dir: Arc<Directory>| on_disk(dir.path(), file::findings::findings);
                        Ok(Opened::new(Directory::connect(rest(&url)).await?, examine))
                    })
                },
                preview: None,
            }
        ),
    },
    StoreRow { schemes: &["redis"], url: "redis://host:port/db", feature: Some("redis"), driver: REDIS },
    StoreRow { schemes: &["rediss"], url: "rediss://host:port/db", feature: Some("redis"), driver: REDIS },
    StoreRow {
        schemes: &["redis-sentinel"],
        url: "redis-sentinel://host:port,…/service",
        feature: Some("redis"),
        driver: REDIS,
    },
    StoreRow {
        schemes: &["redis-cluster"],
        url: "redis-cluster://host:port,…",
        feature: Some("redis"),
        driver: REDIS,
    },
    StoreRow {
        schemes: &["quorum"],
        url: "quorum:url,url,url",
        feature: None,
        driver: Some(Driver {
            info: |_| quorum::abilities(),
            open: |url| {
                Box::pin(async move {
                    let quorum = quorum::open(rest(&url)).await?;
                    let examine = move |_| {
                        let url = url.clone();
                        async move { Ok(quorum::findings(rest(&url)).await) }
                    };
                    Ok(Opened::new(quorum, examine))
                })
            },
            preview: Some(|url| Box::pin(async move { quorum::preview(rest(&url)).await })),
        }),
    },
    StoreRow {
        schemes: &["postgres", "postgresql"],
        url: "postgres://user@host/db",
        feature: Some("postgres"),
        driver: driver!(
            feature = "postgres",
            Driver {
                info: |_| Postgres::abilities(),
                open: |url| {
                    Box::pin(async move {
                        let examine = |postgres: Arc<Postgres>| async move { postgres.findings().await };
                        Ok(Opened::marking(Postgres::connect(&url).await?, examine))
                    })
                },
                preview: Some(|url| Box::pin(async move { Postgres::builder(&url)?.preview().await })),
            }
        ),
    },
    StoreRow {
        schemes: &["postgres+advisory", "postgresql+advisory"],
        url: "postgres+advisory://user@host/db",
        feature: Some("postgres"),
        driver: driver!(
            feature = "postgres",
            Driver {
                info: |_| Advisory::abilities(),
                open: |url| {
                    Box::pin(async move {
                        let examine = |advisory: Arc<Advisory>| async move { advisory.findings().await };
                        Ok(Opened::new(Advisory::connect(&url).await?, examine))
                    })
                },
                preview: None,
            }
        ),
    },
    StoreRow {
        schemes: &["http", "https"],
        url: "http://host:port, https://…",
        feature: Some("http"),
        driver: driver!(
            feature = "http",
            Driver {
                info: |_| http::INFO,
                open: |url| {
                    Box::pin(async move {
                        let examine = |http: Arc<Http>| async move { http.findings().await };
                        Ok(Opened::marking(Http::connect(&url).await?, examine))
                    })
                },
                preview: None,
            }
        ),
    },
];

const REDIS: Option<Driver> = driver!(
    feature = "redis",
    Driver {
        info: |scheme| redis::info(scheme, scheme == "redis-cluster"),
        open: |url| {
            Box::pin(async move {
                let redis = Redis::connect(&url).await?;
                let identity = Some(redis.run_id().to_owned()).filter(|id| !id.is_empty());
                let examine = |redis: Arc<Redis>| async move { redis.findings().await };
                Ok(Opened { identity, ..Opened::marking(redis, examine) })
            })
        },
        preview: None,
    }
);

fn memory(rest: &str) -> Result<Opened> {
    if rest.is_empty() {
        let reach = "locks hold between the clients of one store in one process, and no further";
        return Ok(Opened::marking(Memory::new(), move |_| async move { Ok(vec![Finding::note(reach)]) }));
    }
    Err(Error::invalid(
        "memory: takes nothing after the colon; each connect is a new store, clones of a client share one",
    ))
}

/// Examines a file or directory on a thread where that may block.
#[cfg(any(all(feature = "file", unix), all(feature = "sqlite", target_os = "linux")))]
fn on_disk(
    path: &Path,
    examine: fn(&Path) -> Vec<Finding>,
) -> impl Future<Output = Result<Vec<Finding>>> + use<> {
    let path = path.to_owned();
    async move {
        let examined = tokio::task::spawn_blocking(move || examine(&path)).await;
        examined.map_err(|error| {
            Error::new(ErrorKind::Internal, "examining the store panicked").with_source(error)
        })
    }
}

/// What follows the scheme and its colon.
fn rest(url: &str) -> &str {
    url.split_once(':').map_or("", |(_, rest)| rest)
}

impl StoreRow {
    /// The row of this scheme, in upper or lower case.
    fn of(scheme: &str) -> Option<&'static StoreRow> {
        let is = |known: &&str| known.eq_ignore_ascii_case(scheme);
        STORES.iter().find(|store| store.schemes.iter().any(is))
    }
}

/// The row and the driver of a URL's scheme.
fn find(scheme: &str) -> Result<(&'static StoreRow, Driver)> {
    let store = StoreRow::of(scheme);
    let Some(store) = store else { return Err(unknown(scheme, |store| store.driver.is_some())) };
    let driver = store.driver.ok_or_else(|| missing(scheme, store.feature.unwrap_or_default()))?;
    Ok((store, driver))
}

fn driver_of(url: &str) -> Result<Driver> {
    // Only what looks like a scheme may appear in an error: the rest of the URL may contain a password.
    let parts = url.split_once(':').filter(|(scheme, _)| {
        !scheme.is_empty()
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
    });
    let Some((scheme, rest)) = parts else {
        return Err(Error::invalid(
            "a store URL begins with a scheme and a colon, for example sqlite:locks.db",
        ));
    };
    let is_port = !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    if is_port && StoreRow::of(scheme).is_none() {
        return Err(Error::invalid(
            "the store URL is a host and a port; write http:// before it for a lock server, or redis://, postgres://",
        ));
    }
    Ok(find(scheme)?.1)
}

/// What the store of a scheme is and can do.
pub(crate) fn info_of(scheme: &str) -> Result<Info> {
    let (store, driver) = find(scheme)?;
    Ok((driver.info)(store.schemes[0]))
}

/// Opens the store of a URL.
pub(crate) fn open(url: String) -> BoxFuture<'static, Result<Opened>> {
    match driver_of(&url) {
        Ok(driver) => (driver.open)(url),
        Err(error) => Box::pin(async { Err(error) }),
    }
}

/// Opens the store of a URL, examines it and closes it.
pub(crate) async fn examine(url: String) -> Result<Vec<Finding>> {
    let opened = open(url).await?;
    opened.examiner.findings().await
}

/// Examines the store of a URL without creating anything.
pub(crate) fn preview(url: String) -> Previewing {
    match driver_of(&url) {
        Ok(driver) => driver.preview.map_or_else(|| on_view(url.clone()), |preview| preview(url.clone())),
        Err(error) => Box::pin(async { Err(error) }),
    }
}

/// The preview of a store that is there.
fn on_view(url: String) -> Previewing {
    Box::pin(async { Ok(Preview { findings: examine(url).await?, unchecked: Vec::new() }) })
}

/// The preview of a file that does not exist yet.
#[cfg(all(feature = "sqlite", target_os = "linux"))]
fn unmade(path: &Path, what: &str) -> Result<Preview> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    if above.is_some_and(|above| !above.is_dir()) {
        return Err(Error::invalid(format!(
            "the directory of {what} {path:?} does not exist; create it first"
        )));
    }
    let unchecked = vec![format!("{what} {path:?} does not exist yet, and was not checked")];
    Ok(Preview { findings: Vec::new(), unchecked })
}

/// The error for a store that this build does not include.
fn missing(scheme: &str, feature: &str) -> Error {
    let on = if feature == "sqlite" { " (on Linux)" } else { "" };
    let add = cargo_add(feature);
    Error::new(ErrorKind::Unsupported, format!("{scheme}: is not in this build; `{add}` adds it{on}"))
}

/// The error for a scheme that no build knows.
fn unknown(scheme: &str, is_built: impl Fn(&StoreRow) -> bool) -> Error {
    let mut message = format!("unknown store scheme {scheme:?}; this build knows {}", list(&is_built));
    let mut features: Vec<&str> = Vec::new();
    for feature in STORES.iter().filter(|store| !is_built(store)).filter_map(|store| store.feature) {
        if !features.contains(&feature) {
            features.push(feature);
            let adds = list(|store| store.feature == Some(feature));
            message.push_str(&format!("; `{}` adds {adds}", cargo_add(feature)));
        }
    }
    Error::invalid(message)
}

fn cargo_add(feature: &str) -> String {
    format!("cargo add leasehold --features {feature}")
}

fn list(wanted: impl Fn(&StoreRow) -> bool) -> String {
    let schemes = STORES.iter().filter(|store| wanted(store)).flat_map(|store| store.schemes);
    schemes.map(|scheme| format!("{scheme}:")).collect::<Vec<_>>().join(", ")
}

impl Locks {
    /// Connects to the store that a URL names.
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
    /// | `postgres+advisory://user:password@host:port/database` | session locks of a PostgreSQL server, shared with every program that uses the same advisory keys; options as in [`Address`](crate::backends::postgres::Address) and [`AdvisoryBuilder`](crate::backends::postgres::advisory::AdvisoryBuilder) (feature `postgres`) |
    /// | `http://host:port`, `https://…` | a leasehold server; `?token_file=path`, `?ca=path`, `?cert=path&key=path` (feature `http`) |
    ///
    /// # Cancel safety
    /// If dropped, nothing is left behind.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid URL; `Unsupported` for a store that this build does not include, with the line
    /// that adds it; faults of the store. No error contains the URL itself, which may hold a password.
    pub async fn connect(url: &str) -> Result<Self> {
        Ok(Locks::connect_builder(url).await?.build())
    }

    /// As [`connect`](Locks::connect), but returns a builder for further settings.
    ///
    /// # Cancel safety
    /// As [`connect`](Locks::connect).
    ///
    /// # Errors
    /// As [`connect`](Locks::connect).
    pub async fn connect_builder(url: &str) -> Result<LocksBuilder> {
        let (opened, thread) = Locks::on_a_thread(open(url.to_owned())).await?;
        let mut builder = Locks::builder(opened.backend);
        (builder.examiner, builder.thread) = (Some(opened.examiner), Some(thread));
        builder.marks = opened.marks;
        Ok(builder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_scheme_opens_or_names_its_missing_feature() {
        for store in STORES {
            for scheme in store.schemes.iter().flat_map(|name| [name.to_string(), name.to_ascii_uppercase()])
            {
                // No such store exists, and no other computer is asked for it.
                let error = Locks::connect(&format!("{scheme}:///dev/null/x")).await.unwrap_err();
                assert!(!error.message().contains("unknown"), "{scheme}: {error}");
                let missing = error.message().contains("is not in this build");
                assert_eq!(missing, store.driver.is_none(), "{scheme}: {error}");
                if missing {
                    assert_eq!(error.kind(), ErrorKind::Unsupported);
                    assert!(error.message().contains(&cargo_add(store.feature.unwrap())), "{error}");
                }
            }
        }
    }

    #[test]
    fn missing_feature_error_prints_the_line_that_adds_it() {
        let error = missing("rediss", "redis");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let expected = "rediss: is not in this build; `cargo add leasehold --features redis` adds it";
        assert_eq!(error.message(), expected);
        let expected =
            "sqlite: is not in this build; `cargo add leasehold --features sqlite` adds it (on Linux)";
        assert_eq!(missing("sqlite", "sqlite").message(), expected);
    }

    #[test]
    fn unknown_scheme_error_lists_schemes_and_missing_features() {
        let error = unknown("gopher", |store| store.feature.is_none_or(|feature| feature == "file"));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            error.message(),
            "unknown store scheme \"gopher\"; this build knows memory:, file:, quorum:; \
             `cargo add leasehold --features sqlite` adds sqlite:; \
             `cargo add leasehold --features redis` adds redis:, rediss:, redis-sentinel:, redis-cluster:; \
             `cargo add leasehold --features postgres` adds postgres:, postgresql:, postgres+advisory:, \
             postgresql+advisory:; `cargo add leasehold --features http` adds http:, https:"
        );
        let error = find("gopher").map(|_| ()).unwrap_err();
        for store in stores() {
            assert!(
                store.schemes.iter().all(|scheme| error.message().contains(&format!(" {scheme}:"))),
                "{error}"
            );
        }
    }

    #[test]
    fn first_scheme_of_a_store_is_that_of_its_info() {
        for store in stores() {
            assert_eq!(store.info.scheme, store.schemes[0]);
            assert!(store.url.starts_with(store.schemes[0]), "{}", store.url);
        }
    }
}
