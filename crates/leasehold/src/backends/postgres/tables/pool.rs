//! The connections on which verbs are called: a few of our own, or the caller's.
//!
//! A call has a connection to itself for one round trip. Calls are not pipelined: one that waits for the row of a
//! busy name would hold up the calls behind it. Waiting for a lock costs no connection. `lanes.rs` says which call gets
//! one next.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::TryStreamExt as _;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_postgres::{Client, Row, Statement};

use super::lanes::{Call, Lanes, Permit};
use super::verbs::{Param, Statements, Verb};
use crate::backends::postgres::connect::Reached;
use crate::backends::postgres::connection::Connection;
use crate::backends::postgres::findings::Settings;
use crate::backends::postgres::{Address, fault};
use crate::backends::runtimes::{PerRuntime, run_on};
use crate::error::{Error, ErrorKind, Result};

/// How often a call is made again that the server has rolled back because of others: it has done nothing. Verbs
/// lock in one order, so this is for what else goes on in the database.
const ROLLED_BACK_TRIES: u32 = 3;

/// How long a connection whose call nobody awaits any more is kept for the answer: longer than the server lets a
/// call wait.
const DRAIN: Duration = Duration::from_secs(8);

/// How long a connection that nobody needs is kept.
const IDLE: Duration = Duration::from_secs(60);

/// What a session of ours is told first. A call that waits for a row longer than `lock_timeout` is an error,
/// and so is one that takes longer than `statement_timeout`: within the 5 s that a request has by default. The
/// plans of functions are kept, also those made while a table was empty: these must not be scans, nor gather rows in
/// bitmaps, which never mark what is dead in an index. (And a plan that cannot but scan is not worth compiling.) None
/// is better for some values than for others.
const SETTINGS: &str = "SET lock_timeout = '4s'; SET statement_timeout = '4500ms'; \
    SET default_transaction_isolation = 'read committed'; SET enable_seqscan = off; \
    SET enable_bitmapscan = off; SET jit = off; SET plan_cache_mode = force_generic_plan";

/// A connection that the caller lends for one call.
pub type Lent = Box<dyn Deref<Target = Client> + Send + Sync>;

/// What lends connections.
pub(super) type Lender = Arc<dyn Fn() -> BoxFuture<'static, Result<Lent>> + Send + Sync>;

/// Where connections come from.
pub(super) enum Source {
    /// We make them; `direct`: nothing stands between us and the server that could pass a session to others.
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
    /// With when they were last used, which was longest ago for the first.
    idle: Mutex<Vec<(Instant, Session)>>,
    /// Where connections live, whichever runtime needs one first.
    home: Handle,
    /// Those that do the I/O of their calls.
    runtimes: Arc<PerRuntime>,
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

    /// Asks something of it.
    async fn ask<F: Future>(&self, question: F) -> F::Output {
        match self {
            Session::Own { link, .. } => link.connection.call(question).await,
            Session::Lent(_) => question.await,
        }
    }
}

impl Link {
    /// A new one, whose home is this runtime, until it is dropped.
    pub(super) async fn open(address: &Address, runtimes: &Arc<PerRuntime>) -> Result<Self> {
        Ok(Link::new(address.connect().await?, runtimes))
    }

    fn new(reached: Reached, runtimes: &Arc<PerRuntime>) -> Self {
        let Reached { client, protocol, socket, .. } = reached;
        let connection = Connection::new(protocol, socket, runtimes);
        tokio::spawn(Arc::clone(&connection).run());
        Link { client, connection }
    }

    /// A new one that is ready for calls; `direct`: its session is ours alone.
    async fn ready(address: Box<Address>, direct: bool, runtimes: Arc<PerRuntime>) -> Result<Self> {
        let set_up = async |mut reached: Reached| {
            if direct {
                reached.ask(set_up).await?;
            }
            Ok(reached)
        };
        Ok(Link::new(address.open(set_up).await?, &runtimes))
    }

    /// For what is asked when the store is opened, at its home.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }
}

/// Sets up a session that nobody else uses.
pub(super) async fn set_up(client: &Client) -> Result<()> {
    client.batch_execute(SETTINGS).await.map_err(fault::statement)
}

/// A connection in use. Dropped before its answer has come, it is kept until it has, and then used again.
struct InUse {
    pool: Arc<Pool>,
    session: Option<(Session, Permit)>,
    unanswered: bool,
}

impl Pool {
    /// A pool, which must be made on the runtime where its connections are to live.
    pub(super) fn new(source: Source, schema: &str, size: usize, runtimes: Arc<PerRuntime>) -> Self {
        let ours = matches!(source, Source::Own { direct: true, .. });
        Pool {
            source,
            statements: Statements::new(schema, ours),
            lanes: Lanes::new(size),
            idle: Mutex::default(),
            home: Handle::current(),
            runtimes,
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
        // The answer counts when the server is ready for more: only then it has committed.
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

    /// Closes the connections that nobody uses. They may lead to a server that was the primary when they were made; new
    /// ones look for the present one.
    fn forget_idle(&self) {
        let _closed = std::mem::take(&mut *self.idle.lock());
    }

    /// Named statements belong to a session, which must then be ours alone.
    fn prepares(&self) -> bool {
        matches!(self.source, Source::Own { direct: true, .. })
    }

    /// A connection that works, as far as is known.
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
            // A caller that gives up a call while it connects leaves the connection to the next one, and no place for another.
            (None, Source::Own { address, direct }) => {
                let made = Link::ready(address.clone(), *direct, Arc::clone(&self.runtimes));
                run_on(&self.home, async { made.await.map(Session::own).map(in_use) }).await
            }
        }
    }

    /// How the server is set up.
    pub(super) async fn settings(self: &Arc<Self>, schema: &str) -> Result<Settings> {
        let mut in_use = self.take(Call::Look).await?;
        let Some((session, _)) = &in_use.session else { return Err(closed()) };
        in_use.unanswered = true;
        let settings = session.ask(Settings::ask(session.client(), schema)).await;
        in_use.unanswered = false;
        settings.map_err(fault::statement)
    }

    /// Puts back a connection made before.
    pub(super) fn keep(&self, link: Link) {
        self.give_back(Session::own(link));
    }

    fn give_back(&self, session: Session) {
        // What was lent goes back at once.
        if matches!(session, Session::Own { .. }) && !session.client().is_closed() {
            let mut idle = self.idle.lock();
            let now = Instant::now();
            idle.push((now, session));
            // One at a time: whoever needs few connections gets rid of the others.
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
        let pool = Arc::downgrade(&self.pool);
        self.pool.home.spawn(async move {
            // Answered when what was asked before it has been.
            let answered =
                tokio::time::timeout(DRAIN, session.ask(session.client().check_connection())).await;
            if let (Ok(Ok(())), Some(pool)) = (answered, pool.upgrade()) {
                pool.give_back(session);
            }
            drop(permit);
        });
    }
}

fn is_rolled_back(fault: &fault::Fault) -> bool {
    fault.code().is_some_and(|code| matches!(code.code(), "40001" | "40P01"))
}

/// The server can no longer be written: it has become a standby, or an administrator has said so.
fn is_read_only(fault: &fault::Fault) -> bool {
    fault.code().is_some_and(|code| code.code() == "25006")
}

fn judged(fault: fault::Fault) -> Error {
    match fault.code().map(|code| code.code()) {
        // Ours, from the functions.
        Some("LH001") => wrong_isolation(),
        // A statement prepared by somebody else.
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
    Error::new(ErrorKind::Unavailable, "the connections of this store are closed")
}
