//! Makes a connection: to one server, or to the primary that the sentinels name.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::address::{Address, Layout};
use super::fault;
use crate::error::{Error, ErrorKind, Result};

/// How long a sentinel, or the server that it named, may be silent before the client also asks the next sentinel. It
/// is never more than a share of the whole limit, so that each sentinel gets its turn.
const NEXT_SENTINEL: Duration = Duration::from_millis(500);

/// How long to listen for the reason when a server hung up. The server speaks first, so this takes a round trip or
/// two.
const LISTEN: Duration = Duration::from_millis(250);

/// A connection to a server that is no replica.
pub(super) struct Connected {
    pub(super) connection: MultiplexedConnection,
    /// The server's id as a primary, if it has told it: it makes a new one when it starts or takes over.
    pub(super) replication_id: Option<String>,
}

/// A step of the search for the primary, with the sentinel that led to it.
enum Found {
    /// What a sentinel says; `None` if it does not know the service.
    Named(usize, Result<Option<(String, u16)>>),
    /// A connection to the server that it named.
    Connected(usize, ConnectionAddr, Result<Connected>),
}

impl Address {
    /// Makes a connection to one server, logged in, in the right database. Refuses a replica. Answers may take
    /// `patience` longer than usual.
    pub(super) async fn connect(&self, server: &ConnectionAddr, patience: Duration) -> Result<Connected> {
        // The limits of the driver are for each step.
        match timeout(self.connect_timeout, self.log_in(server, patience)).await {
            Ok(made) => made,
            Err(late) => Err(fault::connecting(&std::io::Error::from(late).into())),
        }
    }

    async fn log_in(&self, server: &ConnectionAddr, patience: Duration) -> Result<Connected> {
        let client = self.client(server.clone())?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout.saturating_add(patience)));
        let connecting = || client.get_multiplexed_async_connection_with_config(&config);
        let connected = match connecting().await {
            // The answer to the login was cut off. Nothing else was sent yet, so a second try repeats nothing.
            Err(fault) if fault.kind() == redis::ErrorKind::Parse => connecting().await,
            connected => connected,
        };
        let mut connection = match connected {
            Ok(connection) => connection,
            Err(fault) if fault::hung_up(&fault) => {
                return Err(fault::refused(&fault, &last_words(server).await));
            }
            Err(fault) => return Err(fault::connecting(&fault)),
        };
        if self.db != 0 {
            let selected = redis::cmd("SELECT").arg(self.db).query_async::<()>(&mut connection).await;
            selected.map_err(|fault| fault::selecting(&fault))?;
        }
        let mut replication_id = None;
        // An answer from a replica could be out of date.
        if self.layout != Layout::Cluster {
            let role: std::result::Result<String, _> =
                redis::cmd("INFO").arg("replication").query_async(&mut connection).await;
            match role {
                Ok(info) if info.contains("role:slave") => {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "this Redis is a replica; connect to its primary, or through the sentinels",
                    ));
                }
                // A server that does not answer this is used anyway: a replica refuses to write.
                Err(fault) if !fault::is_not_allowed(&fault) => return Err(fault::connecting(&fault)),
                Err(_) => {}
                Ok(info) => {
                    let id = info.lines().find_map(|line| line.strip_prefix("master_replid:"));
                    replication_id = id.map(|id| id.trim().to_owned());
                }
            }
        }
        Ok(Connected { connection, replication_id })
    }

    /// Makes a connection to the current primary, and returns its address. Sentinels may be wrong: if the server that
    /// one names cannot be used, or a sentinel is silent, the client asks the next one too. `turn` is the sentinel to
    /// begin with: the one that was right, or the next one after a failed attempt.
    pub(super) async fn connect_to_primary(
        &self,
        service: &str,
        turn: &AtomicUsize,
        patience: Duration,
    ) -> Result<(ConnectionAddr, Connected)> {
        let count = self.hosts.len();
        let first = turn.load(Ordering::Relaxed) % count.max(1);
        let pause = NEXT_SENTINEL.min(self.connect_timeout / u32::try_from(count + 1).unwrap_or(u32::MAX));
        let mut last = Error::new(ErrorKind::Unavailable, "no sentinel answers");
        let mut named = Vec::new();
        let search = async {
            let mut left = (0..count).map(|i| (first + i) % count);
            let mut under_way: FuturesUnordered<BoxFuture<'_, Found>> = FuturesUnordered::new();
            under_way.extend(left.next().map(|sentinel| self.ask(sentinel, service).boxed()));
            loop {
                let found = tokio::select! {
                    found = under_way.next() => found?,
                    () = sleep(pause), if left.len() > 0 => {
                        under_way.extend(left.next().map(|sentinel| self.ask(sentinel, service).boxed()));
                        continue;
                    }
                };
                let failed = match found {
                    Found::Connected(sentinel, at, Ok(connection)) => {
                        return Some((sentinel, at, connection));
                    }
                    Found::Named(sentinel, Ok(Some(at))) if !named.contains(&at) => {
                        named.push(at.clone());
                        let at = self.at(at.0, at.1);
                        let connecting = async move {
                            let connection = self.connect(&at, patience).await;
                            Found::Connected(sentinel, at, connection)
                        };
                        under_way.push(connecting.boxed());
                        continue;
                    }
                    // Another sentinel named it too: it is being tried, or has failed.
                    Found::Named(_, Ok(Some(_))) => None,
                    Found::Named(_, Ok(None)) => {
                        let unknown =
                            "the sentinels know no service with this name; check the path of the URL";
                        Some(Error::new(ErrorKind::Unavailable, unknown))
                    }
                    Found::Named(_, Err(error)) | Found::Connected(_, _, Err(error)) => Some(error),
                };
                // An error that no retry fixes is worth more than what another sentinel says.
                if let Some(error) = failed
                    && last.is_retryable()
                {
                    last = error;
                }
                under_way.extend(left.next().map(|sentinel| self.ask(sentinel, service).boxed()));
            }
        };
        let outcome = timeout(self.connect_timeout, search).await;
        if let Ok(Some((sentinel, at, connection))) = outcome {
            turn.store(sentinel, Ordering::Relaxed);
            return Ok((at, connection));
        }
        turn.store(first + 1, Ordering::Relaxed);
        let silent = match named.as_slice() {
            [] => "no sentinel answered in time",
            _ => "the primary that the sentinels name did not answer in time",
        };
        let is_late = outcome.is_err() && last.is_retryable();
        Err(if is_late { Error::new(ErrorKind::Unavailable, silent) } else { last })
    }

    async fn ask(&self, sentinel: usize, service: &str) -> Found {
        let answer = async {
            let client = self.sentinel(self.hosts[sentinel].clone())?;
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(self.connect_timeout))
                .set_response_timeout(Some(self.connect_timeout));
            let mut question = redis::cmd("SENTINEL");
            question.arg("get-master-addr-by-name").arg(service);
            let answer = async {
                let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
                question.query_async::<Option<(String, u16)>>(&mut connection).await
            };
            answer.await.map_err(|fault| fault::connecting(&fault))
        };
        Found::Named(sentinel, answer.await)
    }
}

/// What a server says before it hangs up. The driver does not show it, because it waits for answers to its own
/// requests. Empty if the server says nothing, or would say it only after a TLS handshake.
async fn last_words(server: &ConnectionAddr) -> String {
    let ConnectionAddr::Tcp(host, port) = server else { return String::new() };
    let mut words = Vec::new();
    let listen = async {
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.take(128).read_to_end(&mut words).await
    };
    let _ = timeout(LISTEN, listen).await;
    String::from_utf8_lossy(&words).into_owned()
}
