//! Servers and clients for these tests.

use std::time::{Duration, Instant};

use leasehold::{Error, Locks};
use testkit::postgres::Postgres;
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
