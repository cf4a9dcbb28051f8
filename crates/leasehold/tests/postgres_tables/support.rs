//! What these tests share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold::backend::{Attempt, Backend, Claim, Grant, Mode, NameInfo, Query, Release};
use leasehold::backends::postgres::{Lent, Postgres as Store};
use leasehold::{ErrorKind, Fence, Name};
use testkit::postgres::Postgres;
pub(crate) use testkit::until::{in_time, until_async as until};

pub(crate) const LONG: Duration = Duration::from_secs(30);
pub(crate) const TICKET: Duration = Duration::from_secs(10);

/// One server for the tests that do not harm it; killed when this process ends.
pub(crate) fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

/// Whether two calls on the shared server have ever deadlocked. The server logs that before it rolls one back.
pub(crate) fn has_seen_a_deadlock() -> bool {
    server().log().contains("deadlock detected")
}

/// Tables of a test's own on the common server.
pub(crate) struct Place {
    pub(crate) schema: String,
    pub(crate) url: String,
}

pub(crate) fn place() -> Place {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let schema = format!("s{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let url = format!("{}?schema={schema}", server().url());
    Place { schema, url }
}

impl Place {
    pub(crate) async fn open(&self) -> Store {
        Store::connect(&self.url).await.unwrap()
    }

    /// Waits until the sessions that used these tables are over, and have reported their statistics.
    pub(crate) async fn is_left_alone(&self) {
        let sessions = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE query ~ '\\m{}\\M' AND pid <> pg_backend_pid()",
            self.schema
        );
        until("no session is left", async || server().sql(&sessions) == "0").await;
    }

    /// Runs SQL in which `leasehold.` stands for the test's schema.
    pub(crate) fn sql(&self, sql: &str) -> String {
        server().sql(&sql.replace("leasehold.", &format!("{}.", self.schema)))
    }
}

pub(crate) fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

pub(crate) fn claim(on: &str, ttl: Duration) -> Claim {
    Claim::new(name(on), Mode::Exclusive, ttl, "test")
}

pub(crate) async fn granted(store: &Store, claim: &Claim) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// The release of a lease as guards send it: with its fence.
pub(crate) fn told(claim: &Claim, fence: Fence) -> Release {
    let mut release = Release::new(claim.name.clone(), claim.id);
    release.fence = Some(fence);
    release
}

pub(crate) async fn look(store: &Store, on: &str) -> NameInfo {
    store.inspect(&Query::Name(name(on))).await.unwrap().items.remove(0)
}

/// Connections that a caller lends, with no settings or with these.
pub(crate) fn lender(
    options: &'static str,
) -> impl Fn() -> BoxFuture<'static, leasehold::Result<Lent>> + Clone {
    let url = format!("{}?options={options}", server().url());
    move || {
        let url = url.clone();
        Box::pin(async move {
            let made = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
            let (client, connection) =
                made.map_err(|_| leasehold::Error::new(ErrorKind::Unavailable, "none"))?;
            tokio::spawn(connection);
            Ok(Box::new(Arc::new(client)) as Lent)
        })
    }
}
