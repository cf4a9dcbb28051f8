//! One connection to one server, replaced when it breaks.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, ConnectionAddr, Pipeline, RedisError, Value};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::address::{Address, Layout};
use super::cluster::Nodes;
use super::connect::Connected;
use super::fault;
use crate::backends::runtimes::run_on;
use crate::bugs::{self, Bug};
use crate::error::{Error, ErrorKind, Result};

/// A connection that is checked has this part of the response timeout to answer. Renewals of short leases are dropped
/// long before that timeout, and a dead connection has to be replaced while there is time for another renewal.
const CHECK_PART: u32 = 4;

/// Why a call failed.
pub(super) enum Failure {
    /// No connection could be made: nothing was sent.
    Connecting(Error),
    /// The server or the connection reported this.
    Said(RedisError),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Connecting(error) => error,
            Failure::Said(fault) => fault::error(&fault),
        }
    }
}

/// A server's answer, and the connection that brought it.
pub(super) struct Reply {
    pub(super) value: Value,
    from: Arc<Link>,
    generation: u64,
    came: Instant,
}

impl Reply {
    fn new(value: Value, from: &Arc<Link>, generation: u64) -> Self {
        Reply { value, from: Arc::clone(from), generation, came: Instant::now() }
    }

    /// Waits until this many replicas have what was written before this reply.
    ///
    /// `WAIT` covers only what its own connection has sent, and nothing that went over another one, perhaps to another
    /// primary. So it goes over the very connection that brought this reply; if that is gone, this is an error. `WAIT`
    /// blocks the connection, so there is one at a time, and it counts for every reply that came before it was sent.
    pub(super) async fn confirmed(&self, replicas: u32, time: Duration) -> Result<()> {
        let mut last = self.from.confirming.lock().await;
        if let Some(last) = &*last
            && last.generation == self.generation
            && last.sent >= self.came
        {
            return last.outcome.as_ref().copied().map_err(Error::duplicate);
        }
        let sent = Instant::now();
        let outcome = self.wait(replicas, time).await;
        let told = outcome.as_ref().copied().map_err(Error::duplicate);
        *last = Some(Confirmation { generation: self.generation, sent, outcome });
        told
    }

    async fn wait(&self, replicas: u32, time: Duration) -> Result<()> {
        let (mut connection, generation) = match self.from.current() {
            Some(current) if current.1 == self.generation => current,
            _ => {
                let broke = "the connection to Redis broke after the answer";
                return Err(Error::new(ErrorKind::Unavailable, broke));
            }
        };
        let mut cmd = redis::cmd("WAIT");
        cmd.arg(replicas).arg(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1));
        let call = UnderWay { link: &self.from, generation };
        let answer = connection.send_packed_command(&cmd).await.and_then(Value::extract_error);
        call.answered();
        match self.from.judged(generation, answer)? {
            Value::Int(have) if have >= i64::from(replicas) => Ok(()),
            Value::Int(_) => Err(Error::new(
                ErrorKind::Unavailable,
                "too few replicas of Redis have confirmed the write in time",
            )),
            _ => Err(fault::strange()),
        }
    }
}

/// The last confirmation of the replicas.
struct Confirmation {
    generation: u64,
    sent: Instant,
    outcome: Result<()>,
}

/// A call whose answer is awaited. If it is dropped first, the connection may be dead, and is checked.
struct UnderWay<'a> {
    link: &'a Arc<Link>,
    generation: u64,
}

impl UnderWay<'_> {
    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.link.check(self.generation);
    }
}

/// What tells a server from another one, and from itself before a restart. A cursor is of use only where it came from.
#[derive(PartialEq)]
pub(super) struct Identity {
    at: Option<ConnectionAddr>,
    replication_id: Option<String>,
}

/// A connection that is made when first needed, and again after it broke.
///
/// Tasks on one runtime make the connections, which live there whichever runtime calls.
pub(super) struct Link {
    pub(super) address: Arc<Address>,
    /// One server; `None`: the primary that the sentinels name.
    server: Option<ConnectionAddr>,
    /// The sentinel to ask first.
    turn: AtomicUsize,
    runtime: Handle,
    state: Mutex<State>,
    /// Held while the connection is made, even if the caller that began it is gone.
    gate: Arc<tokio::sync::Mutex<()>>,
    /// Held while waiting for the replicas.
    confirming: tokio::sync::Mutex<Option<Confirmation>>,
    /// Extra time for answers.
    patience: Duration,
    /// The cluster of this node, which is asked for the node's successor.
    cluster: Weak<Nodes>,
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some((_, task)) = &self.state.get_mut().check {
            task.abort();
        }
    }
}

#[derive(Default)]
struct State {
    current: Option<MultiplexedConnection>,
    /// The server of the latest connection.
    at: Option<ConnectionAddr>,
    /// What that server called itself, if it did: it has another id after a restart or a fail-over.
    replication_id: Option<String>,
    generation: u64,
    failed: Option<(Instant, Error)>,
    /// The caller's own connection is used until it breaks.
    lent: bool,
    /// The latest check, and the generation of the connection that it is about.
    check: Option<(u64, AbortHandle)>,
}

impl Link {
    pub(super) fn new(address: Arc<Address>, server: Option<ConnectionAddr>, runtime: Handle) -> Self {
        Link {
            address,
            server,
            turn: AtomicUsize::new(0),
            runtime,
            state: Mutex::default(),
            gate: Arc::default(),
            confirming: tokio::sync::Mutex::default(),
            patience: Duration::ZERO,
            cluster: Weak::new(),
        }
    }

    /// For a node of a cluster.
    pub(super) fn of(mut self, cluster: Weak<Nodes>) -> Self {
        self.cluster = cluster;
        self
    }

    /// For calls that wait inside the server.
    pub(super) fn patient(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Begins with the caller's own connection.
    pub(super) fn lent(self, connection: MultiplexedConnection) -> Self {
        let mut state = self.state.lock();
        (state.current, state.lent) = (Some(connection), true);
        drop(state);
        self
    }

    fn current(&self) -> Option<(MultiplexedConnection, u64)> {
        let state = self.state.lock();
        state.current.clone().map(|connection| (connection, state.generation))
    }

    /// Makes the next call open a new connection, unless another call has already.
    fn broken(&self, generation: u64, is_replica: bool) {
        let mut state = self.state.lock();
        if state.generation == generation {
            state.current = None;
            state.generation += 1;
            if is_replica {
                // The sentinel that named this server may do so again, so ask another one first.
                self.turn.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether it had a connection, or failed to make one, and has none now.
    pub(super) fn is_down(&self) -> bool {
        let state = self.state.lock();
        state.current.is_none() && (state.generation > 0 || state.failed.is_some())
    }

    /// Checks in a task whether the connection of this generation still answers, because a call was dropped before its
    /// answer came. Its caller may always be less patient than the response timeout, so that no call would ever notice
    /// a dead connection. One check at a time serves all calls that were dropped.
    fn check(self: &Arc<Self>, generation: u64) {
        let mut state = self.state.lock();
        let Some(mut connection) = state.current.clone().filter(|_| state.generation == generation) else {
            return;
        };
        if state.check.as_ref().is_some_and(|(of, task)| *of == generation && !task.is_finished()) {
            return;
        }
        let link = Arc::downgrade(self);
        let patience = self.address.response_timeout / CHECK_PART + self.patience;
        let task = self.runtime.spawn(async move {
            let ping = redis::cmd("PING");
            let answer = timeout(patience, connection.send_packed_command(&ping)).await;
            let fault = match answer {
                Ok(answer) => answer.and_then(Value::extract_error).err(),
                Err(late) => Some(std::io::Error::from(late).into()),
            };
            if let (Some(link), Some(fault)) = (link.upgrade(), fault) {
                link.judge(generation, &fault);
                if link.is_down()
                    && let Some(cluster) = link.cluster.upgrade()
                {
                    cluster.look_for_next();
                }
            }
        });
        state.check = Some((generation, task.abort_handle()));
    }

    /// The server's address, for people; `None` if the sentinels name the server.
    pub(super) fn shown(&self) -> Option<String> {
        self.server.as_ref().map(ToString::to_string)
    }

    /// The identity of the latest connection's server.
    pub(super) fn identity(&self) -> Identity {
        let State { at, replication_id, .. } = &*self.state.lock();
        let at = at.as_ref().or(self.server.as_ref()).cloned();
        Identity { at, replication_id: replication_id.clone() }
    }

    /// The host of the server, if it is fixed.
    pub(super) fn host(&self) -> Option<&str> {
        match self.server.as_ref()? {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
            _ => None,
        }
    }

    /// A client of the server that this link currently leads to.
    pub(super) async fn client(self: &Arc<Self>) -> Result<Client> {
        if let Some(server) = &self.server {
            return self.address.client(server.clone());
        }
        // Ask where the calls really go: the sentinels may disagree.
        if self.current().is_none() {
            Box::pin(self.reconnect()).await?;
        }
        let at = self.state.lock().at.clone();
        self.address.client(at.ok_or_else(nowhere)?)
    }

    /// Makes a new connection, unless another call makes one meanwhile.
    async fn reconnect(self: &Arc<Self>) -> Result<(MultiplexedConnection, u64)> {
        let asked = Instant::now();
        let gate = Arc::clone(&self.gate).lock_owned().await;
        if let Some(current) = self.current() {
            return Ok(current);
        }
        // One try serves all calls that were waiting for it.
        if let Some((at, error)) = &self.state.lock().failed
            && *at >= asked
        {
            return Err(error.duplicate());
        }
        let link = Arc::clone(self);
        let connecting = async move {
            // It goes on though its caller may give up, and no other caller may begin another meanwhile.
            let _gate = gate;
            let made = link.connect().await;
            let mut state = link.state.lock();
            match made {
                Ok((at, made)) => {
                    (state.current, state.failed, state.lent) = (Some(made.connection), None, false);
                    (state.at, state.replication_id) = (Some(at), made.replication_id);
                    state.generation += 1;
                }
                Err(error) => state.failed = Some((Instant::now(), error)),
            }
            Ok(())
        };
        run_on(&self.runtime, connecting).await?;
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let failed = self.state.lock().failed.as_ref().map(|(_, error)| error.duplicate());
        Err(failed
            .unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "the connection to Redis broke at once")))
    }

    async fn connect(&self) -> Result<(ConnectionAddr, Connected)> {
        let Link { address, server, turn, patience, .. } = self;
        let first = self.state.lock().at.clone().filter(|_| bugs::on(Bug::RedisAsksSentinelsOnce));
        if let Some(first) = first {
            return Ok((first.clone(), address.connect(&first, *patience).await?));
        }
        match (server, &address.layout) {
            (Some(server), _) => Ok((server.clone(), address.connect(server, *patience).await?)),
            (None, Layout::Sentinel(service)) => address.connect_to_primary(service, turn, *patience).await,
            (None, _) => Err(nowhere()),
        }
    }

    /// Sends with `send`, and drops the connection if that broke it.
    async fn with<T, F>(
        self: &Arc<Self>,
        send: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<(T, u64), Failure>
    where
        F: Future<Output = std::result::Result<T, RedisError>>,
    {
        let (connection, generation) = match self.current() {
            Some(current) => current,
            // Rare and large, so it is boxed.
            None => Box::pin(self.reconnect()).await.map_err(Failure::Connecting)?,
        };
        let call = UnderWay { link: self, generation };
        let answer = send(connection).await;
        call.answered();
        Ok((self.judged(generation, answer)?, generation))
    }

    fn judged<T>(&self, generation: u64, answer: std::result::Result<T, RedisError>) -> Result<T, Failure> {
        answer.map_err(|fault| {
            self.judge(generation, &fault);
            Failure::Said(fault)
        })
    }

    /// Drops the connection if this fault broke it.
    fn judge(&self, generation: u64, fault: &RedisError) {
        if fault::breaks_connection(fault) {
            self.broken(generation, fault::is_replica(fault));
        }
    }

    /// Sends one command.
    pub(super) async fn send(self: &Arc<Self>, cmd: &Cmd) -> Result<Reply, Failure> {
        let sent = self
            .with(|mut connection| async move { connection.send_packed_command(cmd).await?.extract_error() });
        let (value, generation) = sent.await?;
        Ok(Reply::new(value, self, generation))
    }

    /// Sends many commands at once; each has its own answer.
    pub(super) async fn send_all(
        self: &Arc<Self>,
        pipeline: &Pipeline,
        count: usize,
    ) -> Result<Vec<std::result::Result<Reply, RedisError>>, Failure> {
        let sent = self
            .with(|mut connection| async move { connection.send_packed_commands(pipeline, 0, count).await });
        let (values, generation) = sent.await?;
        let reply = |value| Reply::new(value, self, generation);
        Ok(values.into_iter().map(|value| value.extract_error().map(reply)).collect())
    }
}

fn nowhere() -> Error {
    Error::new(ErrorKind::Internal, "the URL names no server")
}
