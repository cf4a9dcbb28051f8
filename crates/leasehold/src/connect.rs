//! From a URL to a client: one match.

use std::sync::Arc;

use crate::backend::{Backend, Info};
#[cfg(all(feature = "file", unix))]
use crate::backends::file::Directory;
#[cfg(feature = "http")]
use crate::backends::http::{self, Http};
use crate::backends::memory::Memory;
#[cfg(all(feature = "sqlite", target_os = "linux"))]
use crate::backends::sqlite::{self, Sqlite};
use crate::error::{Error, ErrorKind, Result};
use crate::locks::{Locks, LocksBuilder};

/// Schemes that are known but have no store in this build, with what to do about it.
const ABSENT: &[(&str, &str)] = &[
    #[cfg(not(feature = "sqlite"))]
    ("sqlite", "this build has no such store; it comes with the feature `sqlite`"),
    #[cfg(all(feature = "sqlite", not(target_os = "linux")))]
    ("sqlite", "this store needs Linux"),
    #[cfg(not(feature = "file"))]
    ("file", "this build has no such store; it comes with the feature `file`"),
    #[cfg(all(feature = "file", not(unix)))]
    ("file", "this store needs a Unix system"),
    ("redis", "this version has no such store yet"),
    ("rediss", "this version has no such store yet"),
    ("redis-sentinel", "this version has no such store yet"),
    ("redis-cluster", "this version has no such store yet"),
    ("postgres", "this version has no such store yet"),
    ("postgres+advisory", "this version has no such store yet"),
    #[cfg(not(feature = "http"))]
    ("http", "this build has no such store; it comes with the feature `http`"),
    #[cfg(not(feature = "http"))]
    ("https", "this build has no such store; it comes with the feature `http`"),
];

/// What each store that this build can open is and can do.
pub fn stores() -> Vec<Info> {
    vec![
        Memory::new().info(),
        #[cfg(all(feature = "sqlite", target_os = "linux"))]
        sqlite::INFO,
        #[cfg(all(feature = "file", unix))]
        Directory::abilities(),
        #[cfg(feature = "http")]
        http::INFO,
    ]
}

impl Locks {
    /// A client of the store that a URL names.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `memory:` | this process's memory; each connect is a new, empty store |
    /// | `sqlite:path` | a SQLite file, made if it is not there, shared between the processes of this host; the path as it stands, or `sqlite:///` and an absolute path (feature `sqlite`) |
    /// | `file:dir` | files in a directory, which is made if only itself is missing, shared between the processes of this host; the path as it stands, or `file:///` and an absolute path (feature `file`) |
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
        return Err(Error::invalid("a store URL begins with a scheme and a colon, for example memory:"));
    };
    match scheme.as_str() {
        "memory" if url.len() == "memory:".len() => Ok(Arc::new(Memory::new())),
        "memory" => Err(Error::invalid(
            "memory: takes nothing after the colon; each connect is a new store, clones of a client share one",
        )),
        #[cfg(all(feature = "sqlite", target_os = "linux"))]
        "sqlite" => Ok(Arc::new(Sqlite::open(Sqlite::path_of_url(&url["sqlite:".len()..])?).await?)),
        #[cfg(all(feature = "file", unix))]
        "file" => Ok(Arc::new(Directory::connect(&url["file:".len()..]).await?)),
        #[cfg(feature = "http")]
        "http" | "https" => Ok(Arc::new(Http::connect(&url).await?)),
        other => Err(match ABSENT.iter().find(|(known, _)| *known == other) {
            Some((known, what)) => Error::new(ErrorKind::Unsupported, format!("{known}: {what}")),
            None => Error::invalid(format!(
                "unknown store scheme {other:?}; this build knows {}",
                stores().iter().map(|info| format!("{}:", info.scheme)).collect::<Vec<_>>().join(", ")
            )),
        }),
    }
}
