//! One session of our own with the server: its statements, its keepalive, and whether it is still there.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::backend::Mode;
use crate::cancel::Cancel;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;

use super::super::config::{Address, Connection};
use super::super::{fault, pooler};
use super::key::AdvisoryKey;
use super::sql::{Sql, body};

/// A session. Dropped, it is closed, and the server frees what it held.
pub(super) struct Session {
    client: Client,
    /// The server's process, which must be the same for every statement.
    pid: i32,
    /// A statement waits in the server's queue: nothing else can be asked meanwhile.
    waiting: AtomicBool,
    statements: Mutex<HashMap<String, Statement>>,
    end: Arc<Notify>,
    /// It was told to end.
    doomed: AtomicBool,
    /// It no longer answered.
    silent: Cancel,
    /// Its place among the sessions there may be.
    _room: OwnedSemaphorePermit,
}

impl Session {
    /// A new one. Its I/O and its keepalive run on `home`. `pooled`: there may be a pooler in session mode between.
    pub(super) async fn open(
        address: &Address,
        home: &Handle,
        keepalive: Duration,
        pooled: bool,
        room: OwnedSemaphorePermit,
    ) -> Result<Arc<Self>> {
        let (client, connection) = address.connect().await?;
        let end = Arc::new(Notify::new());
        let (tell, session) = tokio::sync::oneshot::channel::<Weak<Session>>();
        let silent = Cancel::new();
        home.spawn(drive(connection, Arc::clone(&end), session, keepalive, silent.clone()));
        let row = client
            .query_typed_one(&body(include_str!("sql/session.sql")), &[])
            .await
            .map_err(fault::statement)?;
        if row.try_get(2).map_err(fault::statement)? {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the PostgreSQL server is a standby, whose locks the primary does not know; connect to the primary",
            ));
        }
        let pid = row.try_get(1).map_err(fault::statement)?;
        if !pooled && !pooler::is_direct(&client, pid).await {
            return Err(behind_a_pooler());
        }
        let session = Arc::new(Session {
            client,
            pid,
            waiting: AtomicBool::new(false),
            statements: Mutex::default(),
            end,
            doomed: AtomicBool::new(false),
            silent,
            _room: room,
        });
        let _ = tell.send(Arc::downgrade(&session));
        Ok(session)
    }

    /// Whether it is over. No I/O.
    pub(super) fn is_over(&self) -> bool {
        self.doomed.load(Ordering::Acquire) || self.client.is_closed()
    }

    /// Ends it now, whatever it is doing; the server frees what it holds.
    pub(super) fn kill(&self) {
        self.doomed.store(true, Ordering::Release);
        self.end.notify_one();
    }

    /// Resolves if the server stops to answer on this session.
    pub(super) async fn silence(&self) {
        self.silent.cancelled().await;
    }

    /// The server's process.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// The driver's half, for what is rarely asked.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// One attempt: the fence if it is granted.
    pub(super) async fn attempt(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<Option<Fence>> {
        let statement = self.statement(sql.attempt(key, mode), sql.types(key)).await?;
        let row = self.client.query_opt(&statement, &parameters(&key)).await;
        row.map_err(fault::statement)?.map_or(Ok(None), |row| self.granted(sql, &row))
    }

    /// Waits in the server's queue.
    pub(super) async fn wait(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<Option<Fence>> {
        self.waiting.store(true, Ordering::Relaxed);
        let typed: Vec<_> = parameters(&key).into_iter().zip(sql.types(key).iter().cloned()).collect();
        let row = self.client.query_typed_one(sql.wait(key, mode), &typed).await;
        self.waiting.store(false, Ordering::Relaxed);
        self.granted(sql, &row.map_err(fault::statement)?)
    }

    fn granted(&self, sql: &Sql, row: &Row) -> Result<Option<Fence>> {
        if row.try_get::<_, i32>(1).map_err(fault::statement)? != self.pid {
            // What was granted is on a connection that is not ours to keep.
            self.kill();
            return Err(in_transaction_mode());
        }
        if !sql.fenced {
            let granted: bool = row.try_get(0).map_err(fault::statement)?;
            return Ok(granted.then_some(Fence::UNFENCED));
        }
        let fence: i64 = row.try_get(0).map_err(fault::statement)?;
        // `next` has the limit, and the words for it.
        Fence::new(u64::try_from(fence).unwrap_or(u64::MAX).saturating_sub(1)).next(0).map(Some)
    }

    /// Frees a key; whether the session had it.
    pub(super) async fn unlock(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<bool> {
        let statement = self.statement(sql.unlock(key, mode), sql.types(key)).await?;
        let row = self.client.query_one(&statement, &parameters(&key)).await;
        row.and_then(|row| row.try_get(0)).map_err(fault::statement)
    }

    /// Frees a key for certain: if the server does not say that it is free, the session ends.
    pub(super) async fn free(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<bool> {
        let unlocked = self.unlock(sql, key, mode).await;
        if unlocked.is_err() {
            self.kill();
        }
        unlocked
    }

    /// From exclusive to shared, with no moment in which it is neither.
    pub(super) async fn downgrade(&self, sql: &Sql, key: AdvisoryKey) -> Result<()> {
        let statement = self.statement(sql.downgrade(key), sql.types(key)).await?;
        self.client.query_one(&statement, &parameters(&key)).await.map_err(fault::statement)?;
        self.free(sql, key, Mode::Exclusive).await?;
        Ok(())
    }

    /// A prepared statement, from the second time on at no cost.
    async fn statement(&self, sql: &str, types: &[tokio_postgres::types::Type]) -> Result<Statement> {
        let known = self.known().get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare_typed(sql, types).await.map_err(fault::statement)?;
        self.known().insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, Statement>> {
        self.statements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prepares what a lock needs, so that the first one is as quick as the others.
    pub(super) async fn prepare(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<()> {
        self.statement(sql.unlock(key, mode), sql.types(key)).await.map(drop)
    }

    /// Asks the server to cancel what it does for this session.
    pub(super) async fn cancel(&self, address: &Address) -> Result<()> {
        address.cancel(&self.client.cancel_token()).await
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("pid", &self.pid).field("is_over", &self.is_over()).finish()
    }
}

/// A key as the parameters of a statement.
fn parameters(key: &AdvisoryKey) -> Vec<&(dyn ToSql + Sync)> {
    match key {
        AdvisoryKey::Bigint(key) => vec![key],
        AdvisoryKey::Pair(high, low) => vec![high, low],
    }
}

/// Does the connection's I/O until it breaks, is told to end, or no longer answers.
async fn drive(
    connection: Connection,
    end: Arc<Notify>,
    session: tokio::sync::oneshot::Receiver<Weak<Session>>,
    every: Duration,
    silent: Cancel,
) {
    tokio::select! {
        _ = connection => {}
        () = end.notified() => {}
        () = keep_alive(session, every) => silent.cancel(),
    }
    // Whatever is left is dropped here: the socket is closed, and who asks is told that it is over.
}

/// Asks the server for a sign of life, for as long as it gives one in time.
async fn keep_alive(session: tokio::sync::oneshot::Receiver<Weak<Session>>, every: Duration) {
    let Ok(session) = session.await else { return std::future::pending().await };
    loop {
        tokio::time::sleep(every).await;
        let Some(session) = session.upgrade() else { return std::future::pending().await };
        // In the queue it cannot answer; TCP alone tells whether the server is there.
        if !session.waiting.load(Ordering::Relaxed)
            && !matches!(tokio::time::timeout(every, session.client.batch_execute("")).await, Ok(Ok(())))
            && !session.waiting.load(Ordering::Relaxed)
        {
            return;
        }
    }
}

/// The error of a pooler that nobody has vouched for.
fn behind_a_pooler() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "there is a pooler before the PostgreSQL server, and in transaction mode it would leave session locks on \
         connections of others: connect to the server's own port, or use the store postgres://, which works behind \
         it, or say pooler=session in the URL if the pooler's pool_mode is session",
    )
}

/// The error of a pooler that gives each transaction another connection.
pub(super) fn in_transaction_mode() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "there is a pooler in transaction mode before the PostgreSQL server, and session locks would be left on \
         connections of others: connect to the server's own port, set the pooler's pool_mode to session, or use \
         the store postgres://, which works behind it",
    )
}
