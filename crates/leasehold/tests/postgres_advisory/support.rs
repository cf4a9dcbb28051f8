//! Servers and clients for these tests.

use std::time::{Duration, Instant};

use leasehold::backends::postgres::AdvisoryKey;
use leasehold::{Error, Locks};
use testkit::postgres::Postgres;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls};

/// Long enough for the slowest machine; only a test that fails waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A URL of PostgreSQL as one of the store.
pub(crate) fn advisory(url: &str) -> String {
    url.replacen("postgres://", "postgres+advisory://", 1)
}

/// The store's URL on a server, with these options.
pub(crate) fn url(server: &Postgres, options: &str) -> String {
    format!("{}?{options}", advisory(&server.url()))
}

pub(crate) async fn connect(server: &Postgres) -> Locks {
    Locks::connect(&url(server, "")).await.unwrap()
}

/// Why a URL is refused.
pub(crate) async fn refused(url: &str) -> Error {
    match Locks::connect(url).await {
        Ok(_) => panic!("it was let in"),
        Err(error) => error,
    }
}

/// A connection that has nothing to do with the store.
pub(crate) async fn stranger(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// How many advisory locks are held or waited for.
pub(crate) async fn advisory_locks(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", &[]).await.unwrap().get(0)
}

/// Waits until something is so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut so: impl FnMut() -> F) {
    let started = Instant::now();
    while !so().await {
        assert!(started.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The server's process that holds a name.
pub(crate) async fn session_of(look: &Client, name: &str) -> Option<i32> {
    let AdvisoryKey::Pair(high, low) = AdvisoryKey::from_name(name, false).unwrap() else {
        panic!("{name} is short")
    };
    let holder = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = $1::int8::oid AND objid = $2::int8::oid";
    let [high, low] = [high, low].map(|half| i64::from(half.cast_unsigned()));
    look.query_opt(holder, &[&high, &low]).await.unwrap().map(|row| row.get(0))
}

/// A runtime that does something only while it is waited for.
pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}
