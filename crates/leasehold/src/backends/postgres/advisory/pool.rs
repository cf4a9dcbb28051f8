//! The sessions of a store: shared ones for locks taken without blocking, and one for each waiter.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::backends::runtimes::{PerRuntime, run_on};
use crate::error::{Error, ErrorKind, Result};

use super::super::config::Address;
use super::session::Session;

/// Idle sessions are kept for the next waiter: this many, for this long.
const IDLE: (usize, Duration) = (4, Duration::from_secs(30));

/// How many unresponsive shared sessions are skipped before attempts queue up on one of them. It is a few, so that
/// trouble with one call or one table does not use up all connections.
const STUCK_SESSIONS: usize = 3;

/// A waiter whose witness could not be opened tries again after this long: a few times within the time to connect.
const NO_WITNESS: Duration = Duration::from_millis(500);

pub(super) struct Pool {
    pub(super) address: Address,
    /// The runtime where connections live.
    pub(super) home: Handle,
    /// The runtimes that do the I/O of their own calls.
    runtimes: Arc<PerRuntime>,
    pub(super) keepalive: Duration,
    pub(super) pooled: bool,
    room: Arc<Semaphore>,
    sessions: Mutex<Sessions>,
    /// Held while a shared session is opened, so that claims that need one at the same time share it.
    opening: tokio::sync::Mutex<()>,
    me: Weak<Pool>,
}

#[derive(Default)]
struct Sessions {
    /// Sessions for attempts, with the number of attempts and leases on each. The first one stays.
    shared: Vec<(Arc<Session>, usize)>,
    /// Idle sessions, and since when.
    idle: Vec<(Arc<Session>, Instant)>,
}

impl Pool {
    pub(super) fn new(address: Address, keepalive: Duration, pooled: bool, connections: usize) -> Arc<Self> {
        let home = Handle::current();
        Arc::new_cyclic(|me| Pool {
            address,
            runtimes: Arc::new(PerRuntime::beside(&home)),
            home,
            keepalive,
            pooled,
            room: Arc::new(Semaphore::new(connections)),
            sessions: Mutex::default(),
            opening: tokio::sync::Mutex::new(()),
            me: Weak::clone(me),
        })
    }

    /// A session for calls that do not block, other than those in `not`.
    pub(super) async fn shared(&self, not: &[Arc<Session>]) -> Result<Loan> {
        if let Some(loan) = self.find_shared(not, STUCK_SESSIONS) {
            return Ok(loan);
        }
        let _opening = self.opening.lock().await;
        if let Some(loan) = self.find_shared(not, STUCK_SESSIONS) {
            return Ok(loan);
        }
        let session = match self.take_idle() {
            Some(session) => Some(session),
            None => self.open().await?,
        };
        let Some(session) = session else {
            // Better a stuck session than none.
            return self.find_shared(not, 1).ok_or_else(|| {
                Error::new(
                    ErrorKind::Overloaded,
                    "this client uses all the connections to PostgreSQL it may open; raise the URL option `connections`",
                )
            });
        };
        self.sessions.lock().shared.push((Arc::clone(&session), 1));
        Ok(self.loan(session))
    }

    /// An existing shared session. Skips one that has answered nothing for a while, unless there are so many of these
    /// that another would hardly do better.
    fn find_shared(&self, not: &[Arc<Session>], stuck: usize) -> Option<Loan> {
        let mut sessions = self.sessions.lock();
        sessions.shared.retain(|(session, _)| !session.is_over());
        let free = |session: &Arc<Session>| !not.iter().any(|other| Arc::ptr_eq(other, session));
        let mut at_work = 0;
        let index = sessions.shared.iter().position(|(session, _)| {
            free(session) && {
                at_work += usize::from(session.is_stuck());
                !session.is_stuck() || at_work >= stuck
            }
        })?;
        let (session, users) = &mut sessions.shared[index];
        *users += 1;
        let session = Arc::clone(session);
        drop(sessions);
        Some(self.loan(session))
    }

    /// A session for a question about another one. Boxed, because opening it may itself need such a question.
    pub(super) fn other_than<'a>(&'a self, session: &'a Arc<Session>) -> BoxFuture<'a, Result<Loan>> {
        Box::pin(async move {
            match self.own().await? {
                Some(loan) => Ok(loan),
                None => self.find_shared(std::slice::from_ref(session), usize::MAX).ok_or_else(|| {
                    Error::new(
                        ErrorKind::Overloaded,
                        "no free connection to PostgreSQL; raise the URL option `connections`",
                    )
                }),
            }
        })
    }

    /// Resolves when the server no longer answers. Sessions in its queue cannot ask, so a witness, a shared session,
    /// shows it: when its signs of life stop, or when there has been no witness for as long as connecting may take,
    /// for whatever reason.
    pub(super) async fn silence(&self) {
        // If the witness is ended from outside, the next one reports.
        while let Ok(witness) = tokio::time::timeout(self.address.timeout(), self.witness()).await {
            if witness.session().fell_silent().await {
                return;
            }
        }
    }

    async fn witness(&self) -> Loan {
        loop {
            match self.shared(&[]).await {
                Ok(witness) => return witness,
                Err(_) => tokio::time::sleep(NO_WITNESS).await,
            }
        }
    }

    /// A session for one waiter alone; `None` if the limit is reached.
    pub(super) async fn own(&self) -> Result<Option<Loan>> {
        match self.take_idle() {
            Some(session) => Ok(Some(self.loan(session))),
            None => Ok(self.open().await?.map(|session| self.loan(session))),
        }
    }

    fn take_idle(&self) -> Option<Arc<Session>> {
        let mut sessions = self.sessions.lock();
        sessions.idle.retain(|(session, _)| !session.is_over());
        sessions.idle.pop().map(|(session, _)| session)
    }

    /// Opens a new session, if the limit allows.
    pub(super) async fn open(&self) -> Result<Option<Arc<Session>>> {
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else { return Ok(None) };
        let (address, keepalive, pooled) = (self.address.clone(), self.keepalive, self.pooled);
        let (me, runtimes, room) = (Weak::clone(&self.me), Arc::clone(&self.runtimes), Arc::new(room));
        // Until the session exists, only the time limit of each address applies.
        let opened = async move {
            let open = |reached| {
                Session::open(reached, keepalive, Weak::clone(&me), pooled, &runtimes, Arc::clone(&room))
            };
            address.open(open).await
        };
        run_on(&self.home, opened).await.map(Some)
    }

    fn loan(&self, session: Arc<Session>) -> Loan {
        Loan { session, pool: Weak::clone(&self.me) }
    }

    /// Ends one use of a session, by a lease or an attempt.
    fn done(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions.lock();
        if let Some(index) = sessions.shared.iter().position(|(other, _)| Arc::ptr_eq(other, session)) {
            sessions.shared[index].1 -= 1;
            if index == 0 || sessions.shared[index].1 > 0 {
                return;
            }
            sessions.shared.remove(index);
        }
        if session.is_over() || sessions.idle.len() >= IDLE.0 {
            return;
        }
        if session.is_at_work() {
            // Its caller gave it up before the answer: the next caller would wait for it too.
            drop(sessions);
            session.kill();
            return;
        }
        sessions.idle.push((Arc::clone(session), Instant::now()));
        drop(sessions);
        let me = Weak::clone(&self.me);
        self.home.spawn(async move {
            tokio::time::sleep(IDLE.1).await;
            if let Some(pool) = me.upgrade() {
                pool.sessions.lock().idle.retain(|(_, since)| since.elapsed() < IDLE.1);
            }
        });
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("address", &self.address).finish_non_exhaustive()
    }
}

/// A session in use. Dropping it makes it available to others: by then nothing may be locked on it, or it must have
/// been killed.
pub(super) struct Loan {
    session: Arc<Session>,
    pool: Weak<Pool>,
}

impl Loan {
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.done(&self.session);
        }
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.session.fmt(f)
    }
}
