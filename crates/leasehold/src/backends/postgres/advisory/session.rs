//! One session of our own with the server: its statements, its keepalive, and whether it is still there.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::backend::Mode;
use crate::cancel::Cancel;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;

use super::super::config::Address;
use super::super::driver::Driver;
use super::super::reach::{Reached, Target};
use super::super::{fault, pooler};
use super::TELLING;
use super::key::AdvisoryKey;
use super::sql::{Ask, Sql, body};

/// A session. Dropped, it is closed, and the server frees what it held.
pub(super) struct Session {
    client: Client,
    driver: Arc<Driver>,
    target: Target,
    /// The server's process, which must be the same for every statement.
    pid: i32,
    /// A statement waits in the server's queue: nothing else can be asked meanwhile.
    waiting: AtomicBool,
    statements: [OnceLock<Statement>; Sql::PREPARED],
    /// It is to end, or about to: who holds a lock on it is told so.
    doomed: Cancel,
    /// It no longer answered.
    silent: Cancel,
    /// It has ended, whatever it was that ended it.
    ended: Cancel,
    /// Where its I/O is done.
    home: Handle,
    /// Its place among the sessions there may be.
    _room: OwnedSemaphorePermit,
}

impl Session {
    /// A new one. Its home is the runtime this is called on. `pooled`: there may be a pooler in session mode between.
    pub(super) async fn open(
        address: &Address,
        keepalive: Duration,
        pooled: bool,
        room: OwnedSemaphorePermit,
    ) -> Result<Arc<Self>> {
        let Reached { client, connection, line, target } = address.connect().await?;
        let driver = Driver::new(connection, line);
        let (tell, session) = tokio::sync::oneshot::channel::<Weak<Session>>();
        let (silent, ended) = (Cancel::new(), Cancel::new());
        let driving = drive(Arc::clone(&driver), session, keepalive, silent.clone());
        tokio::spawn({
            let ended = ended.clone();
            async move {
                driving.await;
                ended.cancel();
            }
        });
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
            driver,
            target,
            pid,
            waiting: AtomicBool::new(false),
            statements: Default::default(),
            doomed: Cancel::new(),
            silent,
            ended,
            home: Handle::current(),
            _room: room,
        });
        let _ = tell.send(Arc::downgrade(&session));
        Ok(session)
    }

    /// Whether it is over. No I/O.
    pub(super) fn is_over(&self) -> bool {
        self.doomed.is_cancelled() || self.client.is_closed()
    }

    /// Ends it now, whatever it is doing; the server frees what it holds.
    pub(super) fn kill(&self) {
        self.doom();
        self.driver.close();
    }

    /// Ends it when those who hold other locks on it have been told: none of these is another's before that.
    pub(super) fn give_up(&self) {
        self.doom();
        let driver = Arc::clone(&self.driver);
        self.home.spawn(async move {
            tokio::time::sleep(TELLING).await;
            driver.close();
        });
    }

    fn doom(&self) {
        self.doomed.cancel();
    }

    /// Resolves when it is to end.
    pub(super) async fn given_up(&self) {
        self.doomed.cancelled().await;
    }

    /// Sees to it that its end is noticed although a call on it may be stuck on a runtime that is blocked.
    pub(super) fn take_home(&self) {
        self.driver.take_home();
    }

    /// Resolves when it has ended: whether because the server no longer answered on it.
    pub(super) async fn fell_silent(&self) -> bool {
        tokio::select! {
            biased;
            () = self.silent.cancelled() => true,
            () = self.ended.cancelled() => false,
        }
    }

    /// The server's process.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Asks something of the server, by the driver's half of the connection.
    pub(super) async fn ask<'a, T, F>(&'a self, question: impl FnOnce(&'a Client) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, fault::Fault>>,
    {
        self.driver.call(question(&self.client)).await.map_err(fault::statement)
    }

    /// The rows of a statement of ours.
    async fn rows(&self, sql: &Sql, key: AdvisoryKey, ask: Ask) -> Result<Option<Row>> {
        self.ask(async |client| {
            let statement = self.statement(client, sql, key, ask).await?;
            match &key {
                AdvisoryKey::Bigint(key) => client.query_opt(statement, &[key]).await,
                AdvisoryKey::Pair(high, low) => client.query_opt(statement, &[high, low]).await,
            }
        })
        .await
    }

    /// One attempt: the fence if it is granted.
    pub(super) async fn attempt(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<Option<Fence>> {
        match self.rows(sql, key, Ask::Attempt(mode)).await? {
            Some(row) => self.granted(sql, &row),
            None => Ok(None),
        }
    }

    /// Waits in the server's queue.
    pub(super) async fn wait(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<Option<Fence>> {
        self.waiting.store(true, Ordering::Relaxed);
        let typed: Vec<_> = parameters(&key).into_iter().zip(sql.types(key).iter().cloned()).collect();
        let row = self.ask(|client| client.query_typed_one(sql.wait(key, mode), &typed)).await;
        self.waiting.store(false, Ordering::Relaxed);
        self.granted(sql, &row?)
    }

    fn granted(&self, sql: &Sql, row: &Row) -> Result<Option<Fence>> {
        if row.try_get::<_, i32>(1).map_err(fault::statement)? != self.pid {
            // What was granted is on a connection that is not ours to keep.
            self.give_up();
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
        let row = self.rows(sql, key, Ask::Unlock(mode)).await?;
        row.map_or(Ok(false), |row| row.try_get(0).map_err(fault::statement))
    }

    /// Frees a key for certain: if the server does not say that it is free, the session ends.
    pub(super) async fn free(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<bool> {
        let unlocked = self.unlock(sql, key, mode).await;
        if unlocked.is_err() {
            self.give_up();
        }
        unlocked
    }

    /// From exclusive to shared, with no moment in which it is neither.
    pub(super) async fn downgrade(&self, sql: &Sql, key: AdvisoryKey) -> Result<()> {
        self.rows(sql, key, Ask::Downgrade).await?;
        self.free(sql, key, Mode::Exclusive).await?;
        Ok(())
    }

    /// A prepared statement, from the second time on at no cost.
    async fn statement<'a>(
        &'a self,
        client: &Client,
        sql: &Sql,
        key: AdvisoryKey,
        ask: Ask,
    ) -> std::result::Result<&'a Statement, fault::Fault> {
        let slot = &self.statements[sql.slot(key, ask)];
        if let Some(statement) = slot.get() {
            return Ok(statement);
        }
        let statement = client.prepare_typed(sql.text(key, ask), sql.types(key)).await?;
        Ok(slot.get_or_init(|| statement))
    }

    /// Prepares what a lock needs, so that the first one is as quick as the others.
    pub(super) async fn prepare(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<()> {
        self.ask(async |client| self.statement(client, sql, key, Ask::Unlock(mode)).await.map(drop)).await
    }

    /// Asks the server to cancel what it does for this session.
    pub(super) async fn cancel(&self, address: &Address) -> Result<()> {
        address.cancel(&self.client.cancel_token(), &self.target).await
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

/// Sees to the connection's I/O until it breaks, is told to end, or no longer answers.
async fn drive(
    driver: Arc<Driver>,
    session: tokio::sync::oneshot::Receiver<Weak<Session>>,
    every: Duration,
    silent: Cancel,
) {
    let silence = async {
        let (session, end) = keep_alive(session, every).await;
        session.doom();
        if end == End::Silent {
            silent.cancel();
        }
        // The server may only have been slow, and frees its locks when the socket is closed.
        tokio::time::sleep(TELLING).await;
    };
    tokio::select! {
        () = driver.run() => {}
        () = silence => {}
    }
    // The driver is dropped here: the socket is closed, and who asks is told that it is over.
}

/// Why a session gives no more signs of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The server does not answer.
    Silent,
    /// The session was ended.
    Told,
}

/// Asks the server for a sign of life, for as long as it gives one in time; the session that it no longer does on.
async fn keep_alive(
    session: tokio::sync::oneshot::Receiver<Weak<Session>>,
    every: Duration,
) -> (Arc<Session>, End) {
    let Ok(session) = session.await else { return std::future::pending().await };
    loop {
        tokio::time::sleep(every).await;
        let Some(session) = session.upgrade() else { return std::future::pending().await };
        // In the queue it cannot answer: a witness tells whether the server is there (`Pool::silence`).
        if session.waiting.load(Ordering::Relaxed) {
            continue;
        }
        let end = match tokio::time::timeout(every, session.ask(|client| client.batch_execute(""))).await {
            Ok(Ok(())) => continue,
            Ok(Err(_)) => End::Told,
            Err(_) => End::Silent,
        };
        if !session.waiting.load(Ordering::Relaxed) {
            return (session, end);
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
