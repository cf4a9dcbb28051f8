//! One of the store's own sessions with the server: its statements, its keepalive, and whether it is still there.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

use crate::backend::Mode;
use crate::backends::runtimes::PerRuntime;
use crate::cancel::Cancel;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;

use super::super::config::Address;
use super::super::connect::{Reached, Target};
use super::super::connection::Connection;
use super::super::{fault, pooler};
use super::TELLING;
use super::calls::Calls;
use super::key::AdvisoryKey;
use super::pool::Pool;
use super::sql::{Ask, STATEMENT_TIMEOUT, Sql, query};

/// If the server has answered none of a session's calls for this long, new calls use another session.
const STUCK: Duration = Duration::from_secs(1);

/// If no other session can be asked about one, try again after this long.
const ELSEWHERE: Duration = Duration::from_millis(200);

/// A session. Dropping it closes it, and the server frees what it held.
pub(super) struct Session {
    client: Client,
    connection: Arc<Connection>,
    target: Target,
    /// The server process, which must be the same for every statement.
    pid: i32,
    /// When that process began.
    began: Option<i64>,
    pool: Weak<Pool>,
    calls: Calls,
    /// A statement waits in the server's queue: no other can run meanwhile.
    waiting: AtomicBool,
    statements: [OnceLock<Statement>; Sql::PREPARED],
    /// Cancelled when the session is ending, so that the holders of its locks learn of it.
    doomed: Cancel,
    /// The server no longer answered on it.
    silent: Cancel,
    /// It has ended, for whatever reason.
    ended: Cancel,
    /// The runtime that does its I/O.
    home: Handle,
    /// Its permit among the allowed sessions.
    _room: Arc<OwnedSemaphorePermit>,
}

impl Session {
    /// Sets up a session on a connection that was just made. Its home is the runtime that calls this. `pooled`: there
    /// may be a pooler in session mode in between. If this is dropped before the server has answered, the connection
    /// closes.
    pub(super) async fn open(
        mut reached: Reached,
        keepalive: Duration,
        pool: Weak<Pool>,
        pooled: bool,
        runtimes: &Arc<PerRuntime>,
        room: Arc<OwnedSemaphorePermit>,
    ) -> Result<Arc<Self>> {
        let settings = const { query("session") }.replace("%TIMEOUT%", STATEMENT_TIMEOUT);
        let gone_client = const { query("gone_client") };
        let set_up = async |client: &Client| {
            // Sent together. The server may refuse the second; if the connection broke, the next call will show it.
            let (row, _) = tokio::join!(
                biased;
                client.query_typed_one(&settings, &[]),
                client.query_typed(gone_client, &[])
            );
            row.map_err(fault::statement)
        };
        let row = reached.ask(set_up).await?;
        if row.try_get(2).map_err(fault::statement)? {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the PostgreSQL server is a standby, whose locks the primary does not know; connect to the primary",
            ));
        }
        let pid = row.try_get(1).map_err(fault::statement)?;
        let began = row.try_get(3).map_err(fault::statement)?;
        let Reached { client, protocol, socket, target } = reached;
        if !pooled && !pooler::is_direct(&client, pid).await {
            return Err(behind_a_pooler());
        }
        let session = Arc::new(Session {
            client,
            connection: Connection::new(protocol, socket, runtimes),
            target,
            pid,
            began,
            pool,
            calls: Calls::new(),
            waiting: AtomicBool::new(false),
            statements: Default::default(),
            doomed: Cancel::new(),
            silent: Cancel::new(),
            ended: Cancel::new(),
            home: Handle::current(),
            _room: room,
        });
        tokio::spawn(drive(
            Arc::clone(&session.connection),
            Arc::downgrade(&session),
            keepalive,
            session.silent.clone(),
            session.ended.clone(),
        ));
        Ok(session)
    }

    /// Whether it is over, without I/O.
    pub(super) fn is_over(&self) -> bool {
        self.doomed.is_cancelled() || self.client.is_closed()
    }

    /// Ends it now, whatever it is doing; the server frees what it holds.
    pub(super) fn kill(&self) {
        self.doom();
        self.connection.close();
    }

    /// Ends it once the holders of other locks on it know: no other client gets these locks before that.
    pub(super) fn give_up(&self) {
        self.doom();
        let connection = Arc::clone(&self.connection);
        self.home.spawn(async move {
            tokio::time::sleep(TELLING).await;
            connection.close();
        });
    }

    fn doom(&self) {
        self.doomed.cancel();
    }

    /// Resolves when the session is to end.
    pub(super) async fn given_up(&self) {
        self.doomed.cancelled().await;
    }

    /// Makes sure that its end is noticed, even if a call on it is stuck on a blocked runtime.
    pub(super) fn take_home(&self) {
        self.connection.take_home();
    }

    /// Resolves when it has ended. Returns whether the reason was that the server no longer answered.
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

    /// Sends a question to the server over the driver's client.
    pub(super) async fn ask<'a, T, F>(&'a self, question: impl FnOnce(&'a Client) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, fault::Fault>>,
    {
        let call = self.calls.begin();
        let answer = self.connection.call(question(&self.client)).await;
        call.answered();
        answer.map_err(fault::statement)
    }

    /// Whether calls are pending and the server has answered none for a while, so that new calls had better use
    /// another session.
    pub(super) fn is_stuck(&self) -> bool {
        self.calls.unanswered_for().is_some_and(|time| time > STUCK)
    }

    /// Whether the server may still be at work on a call.
    pub(super) fn is_at_work(&self) -> bool {
        self.calls.unanswered_for().is_some()
    }

    /// Asks on this session whether the server is at work for another one; `None` if that one no longer exists.
    async fn sees_at_work(&self, other: &Session) -> Result<Option<bool>> {
        let sql = const { query("is_there") };
        let (pid, began) = (other.pid, other.began);
        let asked = async |client: &Client| {
            let params: [(&(dyn ToSql + Sync), Type); 2] = [(&pid, Type::INT4), (&began, Type::INT8)];
            client.query_typed_opt(sql, &params).await?.map(|row| row.try_get(0)).transpose()
        };
        self.ask(asked).await
    }

    /// Runs one of our statements and returns its rows.
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

    /// Makes one attempt. Returns the fence if it is granted.
    pub(super) async fn attempt(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<Option<Fence>> {
        match self.rows(sql, key, Ask::Attempt(mode)).await? {
            Some(row) => self.granted(sql, &row),
            None => Ok(None),
        }
    }

    /// Waits in the server's queue.
    pub(super) async fn wait(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<Option<Fence>> {
        self.waiting.store(true, Ordering::Relaxed);
        let (wait, key_of) = (sql.wait(key, mode), parameters(&key));
        let row = self
            .ask(async |client| {
                let waited = self.statement(client, sql, key, Ask::Waited).await?;
                // Sent together, one after the other. The first look finds nothing: it is there to be planned before
                // the wait, and not between two holders.
                let (set, planned, granted, row) = tokio::join!(
                    biased;
                    client.batch_execute("SET statement_timeout = 0; SET leasehold.granted = ''"),
                    client.query_opt(waited, &key_of),
                    client.batch_execute(&wait),
                    client.query_opt(waited, &key_of)
                );
                set.and(planned).and(granted).and(row)
            })
            .await;
        self.waiting.store(false, Ordering::Relaxed);
        match row? {
            Some(row) => self.granted(sql, &row),
            // It was granted, but the next statement does not see it.
            None => {
                self.give_up();
                Err(in_transaction_mode())
            }
        }
    }

    fn granted(&self, sql: &Sql, row: &Row) -> Result<Option<Fence>> {
        if row.try_get::<_, i32>(1).map_err(fault::statement)? != self.pid {
            // The lock is on a connection that we must not keep.
            self.give_up();
            return Err(in_transaction_mode());
        }
        if !sql.fenced {
            let granted: bool = row.try_get(0).map_err(fault::statement)?;
            return Ok(granted.then_some(Fence::UNFENCED));
        }
        let fence: i64 = row.try_get(0).map_err(fault::statement)?;
        // `next` knows the limit and has the error for it.
        Fence::new(u64::try_from(fence).unwrap_or(u64::MAX).saturating_sub(1)).next(0).map(Some)
    }

    /// Frees a key. Returns whether the session had it.
    pub(super) async fn unlock(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<bool> {
        let row = self.rows(sql, key, Ask::Unlock(mode)).await?;
        row.map_or(Ok(false), |row| row.try_get(0).map_err(fault::statement))
    }

    /// Frees a key for certain: if the server does not confirm that it is free, the session ends.
    pub(super) async fn free(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<bool> {
        let unlocked = self.unlock(sql, key, mode).await;
        if unlocked.is_err() {
            self.give_up();
        }
        unlocked
    }

    /// Turns exclusive into shared, with no moment in which it is neither.
    pub(super) async fn downgrade(&self, sql: &Sql, key: AdvisoryKey) -> Result<()> {
        self.rows(sql, key, Ask::Downgrade).await?;
        self.free(sql, key, Mode::Exclusive).await?;
        Ok(())
    }

    /// A prepared statement; after the first use it costs nothing.
    async fn statement<'a>(
        &'a self,
        client: &Client,
        sql: &Sql,
        key: AdvisoryKey,
        ask: Ask,
    ) -> std::result::Result<&'a Statement, fault::Fault> {
        let slot = &self.statements[Sql::slot(key, ask)];
        if let Some(statement) = slot.get() {
            return Ok(statement);
        }
        let statement = client.prepare_typed(sql.text(key, ask), types(key)).await?;
        Ok(slot.get_or_init(|| statement))
    }

    /// Prepares the statements that a lock needs, so that the first one is as quick as the others.
    pub(super) async fn prepare(&self, sql: &Sql, key: AdvisoryKey, mode: Mode) -> Result<()> {
        self.ask(async |client| self.statement(client, sql, key, Ask::Unlock(mode)).await.map(drop)).await
    }

    /// Asks the server to cancel its current work for this session.
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

/// The types of these parameters.
fn types(key: AdvisoryKey) -> &'static [Type] {
    match key {
        AdvisoryKey::Bigint(_) => &[Type::INT8],
        AdvisoryKey::Pair(..) => &[Type::INT4, Type::INT4],
    }
}

/// Runs the connection's I/O until it breaks, has to end, or no longer answers.
async fn drive(
    connection: Arc<Connection>,
    session: Weak<Session>,
    every: Duration,
    silent: Cancel,
    ended: Cancel,
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
        // Dropping it closes the socket, and calls learn that the session is over.
        () = connection.run() => {}
        () = silence => {}
    }
    ended.cancel();
}

/// Why a session gives no more signs of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The server does not answer.
    Silent,
    /// The session was ended.
    Closed,
}

/// Asks the server for signs of life until one does not come in time. Returns the session that failed, and why.
async fn keep_alive(session: Weak<Session>, every: Duration) -> (Arc<Session>, End) {
    loop {
        tokio::time::sleep(every).await;
        let Some(session) = session.upgrade() else { return std::future::pending().await };
        // In the queue it cannot answer: a witness shows whether the server is there (`Pool::silence`).
        if session.waiting.load(Ordering::Relaxed) {
            continue;
        }
        if let Some(end) = sign_of_life(&session, every).await
            && !session.waiting.load(Ordering::Relaxed)
        {
            return (session, end);
        }
    }
}

/// Asks for one sign of life within this time. `None` if it came.
///
/// The question waits behind the pending calls on the session, and one of these may take long although the server is
/// well: its commit waits for a standby, or for a disk. So while a call is pending, another session asks whether the
/// server is at work on it; if it is, it still has the session and its locks. If that question is not answered in time
/// either, the server is silent.
async fn sign_of_life(session: &Arc<Session>, limit: Duration) -> Option<End> {
    let sent = session.calls.last();
    let mut sign = std::pin::pin!(session.connection.call(session.client.batch_execute("")));
    let mut pause = limit / 5;
    loop {
        let asked_elsewhere = async {
            tokio::time::sleep(pause).await;
            if session.is_at_work() { is_served(session).await } else { std::future::pending().await }
        };
        tokio::select! {
            biased;
            answer = &mut sign => {
                session.calls.settle(sent);
                return answer.is_err().then_some(End::Closed);
            }
            served = tokio::time::timeout(pause + limit / 5 * 4, asked_elsewhere) => match served {
                Ok(true) => pause = limit,
                Ok(false) => return Some(End::Closed),
                Err(_) => return Some(End::Silent),
            },
        }
    }
}

/// Whether the server is at work for a session, as soon as another session can tell. Between two calls it is idle for
/// a moment, so ask twice.
async fn is_served(session: &Arc<Session>) -> bool {
    let mut idle = 0;
    while idle < 2 {
        if let Some(pool) = session.pool.upgrade()
            && let Ok(other) = pool.other_than(session).await
        {
            match other.session().sees_at_work(session).await {
                Ok(Some(true)) => return true,
                Ok(Some(false)) => idle += 1,
                Ok(None) => return false,
                Err(_) => {}
            }
        }
        tokio::time::sleep(ELSEWHERE).await;
    }
    false
}

/// The error for a pooler that the URL does not vouch for.
fn behind_a_pooler() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "there is a pooler before the PostgreSQL server, and in transaction mode it would leave session locks on \
         connections of others: connect to the server's own port, or use the store postgres://, which works behind \
         it, or say pooler=session in the URL if the pooler's pool_mode is session",
    )
}

/// The error for a pooler that gives each transaction another connection.
pub(super) fn in_transaction_mode() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "there is a pooler in transaction mode before the PostgreSQL server, and session locks would be left on \
         connections of others: connect to the server's own port, set the pooler's pool_mode to session, or use \
         the store postgres://, which works behind it",
    )
}
