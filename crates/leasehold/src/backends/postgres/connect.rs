//! Connects: tries the hosts of an address one after the other, on sockets that can move between runtimes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::config::{Host, SslMode, SslNegotiation, TargetSessionAttrs};
use tokio_postgres::{CancelToken, Client, Config, SimpleQueryMessage};

use super::config::Address;
use super::fault;
use super::socket::{Closes, MovableSocket, SocketStream};
use super::tls_stream::{Handshake, TlsStream};
use crate::error::{Error, ErrorKind, Result};

/// The half of a connection that reads and writes.
pub(crate) type Protocol = tokio_postgres::Connection<SocketStream, TlsStream>;

/// The default port.
const PORT: u16 = 5432;

/// A new connection. Its protocol has to be polled, or its client makes no progress.
pub(crate) struct Reached {
    pub(crate) client: Client,
    pub(crate) protocol: Protocol,
    pub(crate) socket: Arc<MovableSocket>,
    pub(crate) target: Target,
}

/// The server that was reached, so that a cancel can reach it again.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    place: Place,
    /// The host that its certificate must be for.
    host: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Reached {
    /// Asks something before anything else polls the connection. If dropped meanwhile, the connection closes at once.
    pub(crate) async fn ask<'a, T, F>(&'a mut self, question: impl FnOnce(&'a Client) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        tokio::select! {
            biased;
            answer = question(&self.client) => answer,
            _ = &mut self.protocol => Err(fault::unreachable(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

impl Address {
    /// Makes a new connection, whose home is the runtime that calls this.
    pub(crate) async fn connect(&self) -> Result<Reached> {
        self.open(|reached| std::future::ready(Ok(reached))).await
    }

    /// Connects to the first address that accepts us, is of the requested kind, and can be made `ready`. Each address
    /// of each host has the whole time limit for that, from the first byte to the last answer.
    pub(crate) async fn open<T, F>(&self, ready: impl Fn(Reached) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let config = &self.config;
        let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
        let count = hosts.len().max(addresses.len());
        if count == 0 || (!hosts.is_empty() && !addresses.is_empty() && hosts.len() != addresses.len()) {
            return Err(Error::invalid(
                "the PostgreSQL URL must have a host, and either no `hostaddr` or one for each host",
            ));
        }
        if ports.len() > 1 && ports.len() != count {
            return Err(Error::invalid("the PostgreSQL URL must have one port, or one for each host"));
        }
        let last = self.last_reached.lock().clone();
        // Unless the primary is asked for, the first host that answers is meant.
        let any_order = count == 1 || config.get_target_session_attrs() != TargetSessionAttrs::Any;
        let first = last.as_ref().filter(|_| any_order).map_or(0, |(index, _)| *index);
        let mut failed = None;
        for index in (0..count).map(|index| (first + index) % count) {
            let port = ports.get(index).or(ports.first()).copied().unwrap_or(PORT);
            let mut targets = match (hosts.get(index), addresses.get(index)) {
                (Some(Host::Tcp(host)), Some(ip)) => vec![Target::tcp(SocketAddr::new(*ip, port), host)],
                (_, Some(ip)) => vec![Target::tcp(SocketAddr::new(*ip, port), &ip.to_string())],
                (Some(Host::Tcp(host)), None) => {
                    let found = tokio::net::lookup_host((host.as_str(), port));
                    let found = tokio::time::timeout(self.timeout, found).await;
                    match found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                        Ok(found) => found.map(|address| Target::tcp(address, host)).collect(),
                        Err(error) => {
                            failed = Some(fault::unreachable(error));
                            continue;
                        }
                    }
                }
                (Some(Host::Unix(directory)), None) => {
                    let place = Place::Unix(directory.join(format!(".s.PGSQL.{port}")));
                    vec![Target { place, host: String::new() }]
                }
                (None, None) => continue,
            };
            if let Some((_, last)) = &last {
                targets.sort_by_key(|target| target.place != *last);
            }
            match self.first_of(targets, index, &ready).await {
                // The next host cannot make up for what was found here.
                Err(error) if error.kind() != ErrorKind::Unsupported => failed = Some(error),
                answer => return answer,
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "the PostgreSQL URL has no host")))
    }

    /// Connects to the first address of one host that accepts us; each has the whole limit.
    async fn first_of<T, F>(
        &self,
        targets: Vec<Target>,
        index: usize,
        ready: &impl Fn(Reached) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let none = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        let mut failed = fault::unreachable(none);
        for target in targets {
            let place = target.place.clone();
            match self.in_time(async { ready(self.connect_to(target).await?).await }).await {
                Ok(reached) => {
                    *self.last_reached.lock() = Some((index, place));
                    return Ok(reached);
                }
                Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    async fn connect_to(&self, target: Target) -> Result<Reached> {
        // On a Unix socket there is no TLS, whatever `sslmode` says, as in libpq.
        let plain = matches!(target.place, Place::Unix(_)).then(|| {
            let mut plain = self.config.clone();
            plain.ssl_mode(SslMode::Disable).ssl_negotiation(SslNegotiation::Postgres);
            plain
        });
        let config = plain.as_ref().unwrap_or(&self.config);
        let socket = open_socket(&target.place, config).await.map_err(fault::unreachable)?;
        let stream = SocketStream { socket: Arc::clone(&socket), closes: Closes::Client };
        let handshake = self.handshake(&target);
        let (client, protocol) = config.connect_raw(stream, handshake).await.map_err(fault::connecting)?;
        let mut reached = Reached { client, protocol, socket, target };
        let wanted = config.get_target_session_attrs();
        if wanted != TargetSessionAttrs::Any {
            let question = async |client: &Client| {
                client.simple_query("SHOW transaction_read_only").await.map_err(fault::connecting)
            };
            let read_only = reached.ask(question).await?.iter().any(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0) == Some("on"),
                _ => false,
            });
            if read_only != (wanted == TargetSessionAttrs::ReadOnly) {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "none of the PostgreSQL servers matches `target_session_attrs`; check that one of them is the primary",
                ));
            }
        }
        Ok(reached)
    }

    fn handshake(&self, target: &Target) -> Handshake {
        Handshake { config: Arc::clone(&self.tls), host: target.host.clone() }
    }

    /// Runs something within the time that one address may take to connect.
    pub(crate) async fn in_time<T>(&self, opening: impl Future<Output = Result<T>>) -> Result<T> {
        let late = |_| {
            Error::new(
                ErrorKind::Unavailable,
                "the PostgreSQL server did not complete the login in time; check that it is not overloaded, and that this port is PostgreSQL",
            )
        };
        tokio::time::timeout(self.timeout, opening).await.map_err(late)?
    }

    /// Asks a server to cancel the work of a connection, and waits until it has passed that on. The server does not
    /// say whether there was anything to cancel.
    pub(crate) async fn cancel(&self, token: &CancelToken, target: &Target) -> Result<()> {
        let asking = async {
            let socket = open_socket(&target.place, &self.config).await.map_err(fault::unreachable)?;
            let stream = SocketStream { socket, closes: Closes::Server };
            token.cancel_query_raw(stream, self.handshake(target)).await.map_err(fault::connecting)
        };
        tokio::time::timeout(self.timeout, asking).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::NetworkTimeout, "the PostgreSQL server did not answer in time"))
        })
    }
}

impl Target {
    fn tcp(address: SocketAddr, host: &str) -> Self {
        Target { place: Place::Tcp(address), host: host.to_owned() }
    }
}

/// Opens a socket, with settings that let the client notice a dead server.
async fn open_socket(place: &Place, config: &Config) -> io::Result<Arc<MovableSocket>> {
    match place {
        Place::Tcp(address) => MovableSocket::new(open_tcp(address, config).await?),
        Place::Unix(path) => MovableSocket::new(UnixStream::connect(path).await?.into_std()?),
    }
}

async fn open_tcp(address: &SocketAddr, config: &Config) -> io::Result<OwnedFd> {
    use rustix::net::sockopt;
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    if let Some(timeout) = config.get_tcp_user_timeout() {
        let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&stream, millis)?;
    }
    if config.get_keepalives() {
        sockopt::set_socket_keepalive(&stream, true)?;
        #[cfg(target_os = "linux")]
        {
            sockopt::set_tcp_keepidle(&stream, config.get_keepalives_idle())?;
            if let Some(interval) = config.get_keepalives_interval() {
                sockopt::set_tcp_keepintvl(&stream, interval)?;
            }
            if let Some(retries) = config.get_keepalives_retries() {
                sockopt::set_tcp_keepcnt(&stream, retries)?;
            }
        }
    }
    Ok(stream.into_std()?.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::net::sockopt;

    use super::*;

    /// A connection made to a listener of our own, with these options of a URL.
    async fn opened(options: &str) -> std::net::TcpStream {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::parse(&format!("postgres://127.0.0.1/db?{options}")).unwrap();
        open_tcp(&listener.local_addr().unwrap(), address.config()).await.unwrap().into()
    }

    #[tokio::test]
    async fn a_silent_address_of_a_name_is_passed_over() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = testkit::postgres::Postgres::start();
        let way = Address::parse("postgres://postgres@localhost/postgres?connect_timeout=2").unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], server.port()));
        let targets =
            [silent.local_addr().unwrap(), address].map(|address| Target::tcp(address, "localhost"));
        let connected = way.first_of(targets.into(), 0, &|reached| std::future::ready(Ok(reached)));
        let reached = testkit::until::in_time("the second answers", connected).await.unwrap();
        assert_eq!(reached.target.place, Place::Tcp(address));
        assert_eq!(*way.last_reached.lock(), Some((0, Place::Tcp(address))));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_system_looks_for_a_silent_server_as_the_settings_say() {
        let seconds = Duration::from_secs;
        let stream = opened("").await;
        assert!(stream.nodelay().unwrap() && sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 10_000);
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), seconds(5));
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), seconds(3));
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), 3);
        let stream = opened("tcp_user_timeout=7000&keepalives_idle=60").await;
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 7_000);
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), seconds(60));
        assert!(!sockopt::socket_keepalive(&opened("keepalives=0").await).unwrap());
    }
}
