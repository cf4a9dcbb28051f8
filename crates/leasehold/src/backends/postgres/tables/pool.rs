//! The connections for calls of verbs: a few of our own, or the caller's.
//!
//! A call has a connection to itself for one round trip. Calls are not pipelined, because one that waits for the row
//! of a busy name would hold up the calls behind it. Waiting for a lock uses no connection. `lanes.rs` decides which
//! call gets a connection next.

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::TryStreamExt as _;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::{Client, Row, Statement};
use tokio_util::sync::CancellationToken;

use super::lanes::{Call, Lanes, Permit};
use super::verbs::{Param, Statements, Verb};
use crate::backends::postgres::connect::Reached;
use crate::backends::postgres::connection::Connection;
use crate::backends::postgres::findings::Settings;
use crate::backends::postgres::{Address, fault};
use crate::backends::runtimes::{PerRuntime, run_on};
use crate::error::{Error, ErrorKind, Result};

/// How often to repeat a call that the server rolled back because of other transactions, which means that it did
/// nothing. Verbs lock in one order, so this is for what else goes on in the database.
const ROLLED_BACK_TRIES: u32 = 3;

/// How long a connection whose caller is gone keeps its place in the pool for its answer: longer than the server lets
/// a call wait. Then a new connection may replace it. It stays open until the server has answered, because a server
/// that cannot commit does not notice that it was closed.
const DRAIN: Duration = Duration::from_secs(8);

/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(60);

/// The settings of each new session. A call that waits for a row longer than `lock_timeout`, or takes longer than
/// `statement_timeout`, is an error: both are within the 5 s that a request has by default. The plans of functions are
/// kept, even those made while a table was empty. So they must not be scans, nor gather rows in bitmaps, which never
/// mark what is dead in an index. (And a plan that can only scan is not worth compiling.) No plan is better for some
/// values than for others.
const SETTINGS: &str = "SET lock_timeout = '4s'; SET statement_timeout = '4500ms'; \
    SET default_transaction_isolation = 'read committed'; SET enable_seqscan = off; \
    SET enable_bitmapscan = off; SET jit = off; SET plan_cache_mode = force_generic_plan";

/// A connection that the caller lends for one call.
pub type Lent = Box<dyn Deref<Target = Client> + Send + Sync>;

/// A function that lends connections.
pub(super) type Lender = Arc<dyn Fn() -> BoxFuture<'static, Result<Lent>> + Send + Sync>;

/// Where connections come from.
pub(super) enum Source {
    /// We make them; `direct`: nothing in between could give our session to other clients.
    Own {
        address: Box<Address>,
        direct: bool,
    },
    Lent(Lender),
}

pub(super) struct Pool {
    source: Source,
    statements: Statements,
    lanes: Lanes,
    /// Each with the time of its last use; the first was used longest ago.
    idle: Mutex<Vec<(Instant, Session)>>,
    /// The runtime where connections live, whichever runtime needs one first.
    home: Handle,
    /// The runtimes that do the I/O of their own calls.
    runtimes: Arc<PerRuntime>,
    drain: Duration,
    /// One permit for each connection that may be replaced before it has ended: as many as the pool has connections,
    /// so that a server that answers nothing has at most twice as many.
    replaced: Arc<Semaphore>,
    /// Cancelled when the pool is dropped.
    end: CancellationToken,
}

enum Session {
    Own { link: Link, prepared: Box<[Option<Statement>; Verb::ALL.len()]> },
    Lent(Lent),
}

/// A connection of ours, which lives at the store's home.
pub(super) struct Link {
    client: Client,
    connection: Arc<Connection>,
}

impl Session {
    fn own(link: Link) -> Self {
        Session::Own { link, prepared: Default::default() }
    }

    fn client(&self) -> &Client {
        match self {
            Session::Own { link, .. } => &link.client,
            Session::Lent(lent) => lent,
        }
    }

    /// Asks something on this connection.
    async fn ask<F: Future>(&self, question: F) -> F::Output {
        match self {
            Session::Own { link, .. } => link.connection.call(question).await,
            Session::Lent(_) => question.await,
        }
    }

    /// Closes it at once, although answers are missing.
    fn close(&self) {
        if let Session::Own { link, .. } = self {
            link.connection.close();
        }
    }

    /// Waits for the answers that are missing. Returns the connection if it can be used again in its place.
    async fn drained(
        self,
        permit: Permit,
        drain: Duration,
        replaced: Arc<Semaphore>,
        end: CancellationToken,
    ) -> Option<(Self, Permit)> {
        // Dropped after the connection.
        let _replaced: Option<OwnedSemaphorePermit>;
        let session = self;
        let mut permit = Some(permit);
        let is_answered = {
            // Answered after everything that was asked before it.
            let mut answer = pin!(session.ask(session.client().check_connection()));
            match tokio::time::timeout(drain, &mut answer).await {
                Ok(answered) => {
                    _replaced = None;
                    answered.is_ok()
                }
                Err(_) => {
                    let replacement = replaced.try_acquire_owned().ok();
                    permit.take_if(|_| replacement.is_some());
                    _replaced = replacement;
                    tokio::select! {
                        answered = answer => answered.is_ok(),
                        () = end.cancelled() => false,
                    }
                }
            }
        };
        if !is_answered {
            session.close();
        }
        permit.filter(|_| is_answered).map(|permit| (session, permit))
    }
}

impl Link {
    /// Opens a connection, whose home is this runtime, until it is dropped.
    pub(super) async fn open(address: &Address, runtimes: &Arc<PerRuntime>) -> Result<Self> {
        Ok(Link::new(address.connect().await?, runtimes))
    }

    fn new(reached: Reached, runtimes: &Arc<PerRuntime>) -> Self {
        let Reached { client, protocol, socket, .. } = reached;
        let connection = Connection::new(protocol, socket, runtimes);
        tokio::spawn(Arc::clone(&connection).run());
        Link { client, connection }
    }

    /// Opens a connection that is ready for calls; `direct`: its session is ours alone.
    async fn ready(address: Box<Address>, direct: bool, runtimes: Arc<PerRuntime>) -> Result<Self> {
        let set_up = async |mut reached: Reached| {
            if direct {
                reached.ask(set_up).await?;
            }
            Ok(reached)
        };
        Ok(Link::new(address.open(set_up).await?, &runtimes))
    }

    /// The client, for the questions when the store is opened, at its home.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }
}

/// Sets up a session that no other client uses.
pub(super) async fn set_up(client: &Client) -> Result<()> {
    client.batch_execute(SETTINGS).await.map_err(fault::statement)
}

/// A connection in use. If dropped before its answer has come, it is kept until then, and reused.
struct InUse {
    pool: Arc<Pool>,
    session: Option<(Session, Permit)>,
    unanswered: bool,
}

impl Pool {
    /// Makes a pool; call it on the runtime where its connections are to live.
    pub(super) fn new(source: Source, sql: Statements, size: usize, runtimes: Arc<PerRuntime>) -> Self {
        Pool {
            source,
            statements: sql,
            lanes: Lanes::new(size),
            idle: Mutex::default(),
            home: Handle::current(),
            runtimes,
            drain: DRAIN,
            replaced: Arc::new(Semaphore::new(size)),
            end: CancellationToken::new(),
        }
    }

    /// Calls a verb.
    pub(super) async fn call(
        self: &Arc<Self>,
        verb: Verb,
        call: Call<'_>,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        let mut tries = 0;
        loop {
            let answer = self.call_once(verb, call, params).await?;
            tries += 1;
            match answer {
                Ok(rows) => return Ok(rows),
                Err(fault) if tries <= ROLLED_BACK_TRIES && is_rolled_back(&fault) => {}
                Err(fault) => return Err(judged(fault)),
            }
        }
    }

    async fn call_once(
        self: &Arc<Self>,
        verb: Verb,
        call: Call<'_>,
        params: &[Param<'_>],
    ) -> Result<std::result::Result<Vec<Row>, fault::Fault>> {
        let mut in_use = self.take(call).await?;
        let Some((session, _)) = &mut in_use.session else { return Err(closed()) };
        in_use.unanswered = true;
        let text = self.statements.text(verb);
        // The answer counts only when the server is ready for more: only then has it committed.
        let answer = match session {
            Session::Own { link: Link { client, connection }, prepared } if self.prepares() => {
                let slot = &mut prepared[verb as usize];
                let question = async {
                    if slot.is_none() {
                        let types: Vec<_> = params.iter().map(|(_, kind)| kind.clone()).collect();
                        *slot = Some(client.prepare_typed(text, &types).await?);
                    }
                    match slot {
                        Some(statement) => {
                            client
                                .query_raw(&*statement, params.iter().map(|(value, _)| *value))
                                .await?
                                .try_collect()
                                .await
                        }
                        None => Ok(Vec::new()),
                    }
                };
                connection.call(question).await
            }
            session => session.ask(session.client().query_typed(text, params)).await,
        };
        in_use.unanswered = false;
        if answer.as_ref().is_err_and(is_read_only) {
            in_use.session = None;
            self.forget_idle();
        }
        Ok(answer)
    }

    /// Closes unused connections. They may lead to a server that is no longer the primary; new ones look for the
    /// current primary.
    fn forget_idle(&self) {
        let _closed = std::mem::take(&mut *self.idle.lock());
    }

    /// Named statements belong to a session, so the session must be ours alone.
    fn prepares(&self) -> bool {
        matches!(self.source, Source::Own { direct: true, .. })
    }

    /// Takes a connection that works, as far as is known.
    async fn take(self: &Arc<Self>, call: Call<'_>) -> Result<InUse> {
        let permit = self.lanes.enter(call).await.map_err(|_| closed())?;
        let mut session = self.idle.lock().pop();
        while session.as_ref().is_some_and(|(_, session)| session.client().is_closed()) {
            session = self.idle.lock().pop();
        }
        let pool = Arc::clone(self);
        let in_use = |session| InUse { pool, session: Some((session, permit)), unanswered: false };
        match (session, &self.source) {
            (Some((_, session)), _) => Ok(in_use(session)),
            (None, Source::Lent(lend)) => lend().await.map(Session::Lent).map(in_use),
            // A caller that gives up while its call connects leaves the connection to the next one, and no room for
            // another.
            (None, Source::Own { address, direct }) => {
                let made = Link::ready(address.clone(), *direct, Arc::clone(&self.runtimes));
                run_on(&self.home, async { made.await.map(Session::own).map(in_use) }).await
            }
        }
    }

    /// Reads how the server is set up.
    pub(super) async fn settings(self: &Arc<Self>, schema: &str) -> Result<Settings> {
        let mut in_use = self.take(Call::Look).await?;
        let Some((session, _)) = &in_use.session else { return Err(closed()) };
        in_use.unanswered = true;
        let settings = session.ask(Settings::ask(session.client(), schema)).await;
        in_use.unanswered = false;
        settings.map_err(fault::statement)
    }

    /// Puts a connection into the pool.
    pub(super) fn keep(&self, link: Link) {
        self.give_back(Session::own(link));
    }

    fn give_back(&self, session: Session) {
        // A lent connection goes back at once.
        if matches!(session, Session::Own { .. }) && !session.client().is_closed() {
            let mut idle = self.idle.lock();
            let now = Instant::now();
            idle.push((now, session));
            // One at a time: a client that needs few connections closes the others in time.
            if idle.first().is_some_and(|(used, _)| now - *used > IDLE) {
                let _ended = idle.remove(0);
            }
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let Some((session, mut permit)) = self.session.take() else { return };
        if !self.unanswered {
            self.pool.give_back(session);
            return;
        }
        permit.give_up();
        let pool = &self.pool;
        let drained = session.drained(permit, pool.drain, Arc::clone(&pool.replaced), pool.end.clone());
        let pool = Arc::downgrade(pool);
        self.pool.home.spawn(async move {
            if let (Some((session, _permit)), Some(pool)) = (drained.await, pool.upgrade()) {
                pool.give_back(session);
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

fn is_rolled_back(fault: &fault::Fault) -> bool {
    fault.code().is_some_and(|code| matches!(code.code(), "40001" | "40P01"))
}

/// Whether the server is read only: it has become a standby, or an administrator has set it so.
fn is_read_only(fault: &fault::Fault) -> bool {
    fault.code().is_some_and(|code| code.code() == "25006")
}

fn judged(fault: fault::Fault) -> Error {
    match fault.code().map(|code| code.code()) {
        // Our own code, from the functions.
        Some("LH001") => wrong_isolation(),
        // A statement prepared by another client.
        Some("26000" | "42P05") => Error::new(
            ErrorKind::Unsupported,
            "a pooler stands before the server and mixes up sessions; say pooler=transaction in the URL",
        ),
        _ => fault::statement(fault),
    }
}

pub(super) fn wrong_isolation() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "leases need the isolation level read committed, and these connections have another; \
         set default_transaction_isolation for this user",
    )
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the store's connections are closed")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use testkit::postgres::Postgres as Server;
    use testkit::until::until_async as until;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use crate::backend::{Attempt, Backend as _, Claim, Mode};
    use crate::name::Name;

    use super::super::Postgres;
    use super::*;

    const SIZE: usize = 2;
    const SHORT: Duration = Duration::from_millis(50);

    /// A store with a pool of two that waits only a moment for late answers, on a server that cannot commit.
    async fn on_a_server_that_cannot_commit(server: &Server, url: &str) -> Postgres {
        let mut store = Postgres::builder(url).unwrap().pool_size(SIZE).open().await.unwrap();
        let inner = Arc::get_mut(&mut store.inner).unwrap();
        Arc::get_mut(&mut inner.pool).unwrap().drain = SHORT;
        server.sql("ALTER SYSTEM SET synchronous_standby_names = 'missing'");
        server.sql("SELECT pg_reload_conf()");
        let hung = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        until("commits hang", async || call(&store).await.is_none() && server.sql(hung) != "0").await;
        store
    }

    /// A call with little patience.
    async fn call(store: &Postgres) -> Option<Attempt> {
        let name = Name::new(&format!("{:?}", Instant::now())).unwrap();
        let claim = Claim::new(name, Mode::Exclusive, Duration::from_secs(60), "test");
        timeout(SHORT, store.try_acquire(&claim)).await.ok()?.ok()
    }

    /// An address that leads to the server, and how many connections to it the client has open. The server does not
    /// notice that a client is gone while its commit hangs.
    async fn counted(port: u16) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, open) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&open);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                let count = Arc::clone(&count);
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
                tokio::spawn(async move {
                    drop(tokio::io::copy(&mut from_client, &mut to_server).await);
                    count.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        (address, open)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_that_cannot_commit_has_few_connections() {
        let server = Server::start();
        let url = format!("{}?application_name=few", server.url());
        let store = on_a_server_that_cannot_commit(&server, &url).await;
        let sessions = || {
            let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'few'";
            server.sql(count).parse::<usize>().unwrap()
        };
        until("connections were replaced", async || {
            call(&store).await;
            sessions() >= 2 * SIZE
        })
        .await;
        // As long as many rounds of replacements took.
        for _ in 0..20 {
            call(&store).await;
            tokio::time::sleep(SHORT).await;
        }
        assert_eq!(sessions(), 2 * SIZE);
        server.sql("ALTER SYSTEM RESET synchronous_standby_names");
        server.sql("SELECT pg_reload_conf()");
        until("it commits again", async || call(&store).await.is_some()).await;
        until("the replaced connections are closed", async || sessions() <= SIZE).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_dropped_store_closes_connections_without_an_answer() {
        let server = Server::start();
        let (address, open) = counted(server.port()).await;
        let url = format!("postgres://postgres@{address}/postgres");
        let store = on_a_server_that_cannot_commit(&server, &url).await;
        assert!(open.load(Ordering::SeqCst) > 0);
        drop(store);
        until("all are closed", async || open.load(Ordering::SeqCst) == 0).await;
    }
}
