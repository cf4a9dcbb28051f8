//! Servers and clients for these tests.

use std::time::Duration;

use leasehold::backends::postgres::AdvisoryKey;
use leasehold::{Error, Guard, Locks};
use rustix::process::{Pid, Signal, kill_process};
use testkit::postgres::Postgres;
pub(crate) use testkit::until::{in_time, until_async as until};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls};

/// Turns a URL of PostgreSQL into one of the store.
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

/// A client that sends no keepalive: it notices the end of a session only by the end of its connection.
pub(crate) async fn quiet(server: &Postgres) -> Locks {
    Locks::connect(&url(server, "keepalive=3600")).await.unwrap()
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

/// The server process that holds a name.
pub(crate) async fn session_of(look: &Client, name: &str) -> Option<i32> {
    let AdvisoryKey::Pair(high, low) = AdvisoryKey::from_name(name, false).unwrap() else {
        panic!("{name} is short")
    };
    let holder = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = $1::int8::oid AND objid = $2::int8::oid";
    let [high, low] = [high, low].map(|half| i64::from(half.cast_unsigned()));
    look.query_opt(holder, &[&high, &low]).await.unwrap().map(|row| row.get(0))
}

/// A runtime that makes progress only inside `block_on`.
pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Stops the server process that waits for a lock, releases the lock, and lets the process go on when its wait has
/// taken this long: it gets the lock at the very moment when its time is over.
pub(crate) async fn grant_as_time_ends(look: &Client, held: Guard, time: Duration) {
    let waiting = async || {
        let sql = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        look.query_opt(sql, &[]).await.unwrap().map(|row| row.get::<_, i32>(0))
    };
    let process = |pid: i32| Pid::from_raw(pid).unwrap();
    let mut stopped = None;
    until("one is stopped that waits", async || {
        let Some(pid) = waiting().await else { return false };
        kill_process(process(pid), Signal::STOP).unwrap();
        stopped = waiting().await;
        if stopped.is_none() {
            kill_process(process(pid), Signal::CONT).unwrap();
        }
        stopped.is_some()
    })
    .await;
    let pid = stopped.unwrap();
    held.release().await.unwrap();
    let granted = format!("SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = {pid}");
    until("it is granted", async || look.query(&granted, &[]).await.unwrap().len() == 1).await;
    tokio::time::sleep(time).await;
    kill_process(process(pid), Signal::CONT).unwrap();
}
