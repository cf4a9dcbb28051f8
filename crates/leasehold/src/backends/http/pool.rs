//! Reusable connections to one server.

use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;

use super::address::Options;
use super::dial::dial;
use super::reading::Answer;
use super::tls::{self, connector};
use crate::error::{Error, ErrorKind, Result};

/// How long an unused connection is kept: less than a server waits for the next request.
const IDLE: Duration = Duration::from_secs(4);
/// How many unused connections are kept.
const MAX_IDLE: usize = 64;
/// How long connecting may take: a lost packet is sent again after one second, and then after two.
pub(super) const CONNECT: Duration = Duration::from_secs(4);
/// After this long without an answer, the other connections to the same server are suspect too.
const SILENT: Duration = Duration::from_secs(1);
/// The time limit of one call; its callers have shorter limits of their own.
const CALL: Duration = Duration::from_secs(30);

/// The most bytes of an answer: more than a full page of locks needs.
const MAX_ANSWER: usize = 64 << 20;

pub(super) struct Pool {
    options: Options,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    runtime: Handle,
    idle: Mutex<Vec<(SendRequest<Full<Bytes>>, Instant)>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.options.fmt(f)
    }
}

fn unreachable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let message = "cannot reach the server; check the host and port, and that it is running";
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// The error for a failed connection; `sent` if the server may have received a request over it.
fn broken(error: hyper::Error, sent: bool) -> Error {
    // With TLS 1.3 the server refuses a client's certificate only after the client has finished its handshake.
    if let Some(refused) = tls::refusal(&error) {
        return refused.with_source(error);
    }
    if error.is_parse() {
        let message = "the server does not speak HTTP; if it uses TLS, write https:";
        return Error::new(ErrorKind::Unavailable, message).with_source(error);
    }
    if !sent {
        return unreachable(error);
    }
    let message = "the connection to the server broke; whether the call took effect is unknown";
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// The error for an answer that was cut off.
fn unread(error: Box<dyn std::error::Error + Send + Sync>) -> Error {
    match error.downcast::<hyper::Error>() {
        Ok(error) => broken(*error, true),
        Err(error) => {
            let message =
                "the answer is too long for a leasehold server; whether the call took effect is unknown";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        }
    }
}

impl Pool {
    /// Must be called on the runtime where the connections are to live.
    pub(super) fn new(options: Options) -> Result<Self> {
        let runtime = Handle::try_current().map_err(|error| {
            Error::new(
                ErrorKind::InvalidArgument,
                "connecting to a server needs a tokio runtime; call it inside one",
            )
            .with_source(error)
        })?;
        let tls = if options.tls { Some(connector(&options)?) } else { None };
        Ok(Pool { options, tls, runtime, idle: Mutex::default() })
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) async fn get(&self, path: &str) -> Result<Answer> {
        self.get_within(path, CALL).await
    }

    pub(super) async fn get_within(&self, path: &str, time: Duration) -> Result<Answer> {
        self.call(Method::GET, path, Bytes::new(), time).await
    }

    /// Closes unused connections: where one connection got no answer, others opened the same way will get none either.
    pub(super) fn forget_idle(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        drop(idle);
    }

    pub(super) async fn post(&self, path: &str, body: &impl Serialize) -> Result<Answer> {
        self.post_within(path, body, CALL).await
    }

    pub(super) async fn post_within(
        &self,
        path: &str,
        body: &impl Serialize,
        time: Duration,
    ) -> Result<Answer> {
        let body = serde_json::to_vec(body).map_err(|error| {
            Error::new(ErrorKind::Internal, "cannot encode the request").with_source(error)
        })?;
        self.call(Method::POST, path, body.into(), time).await
    }

    async fn call(&self, method: Method, path: &str, body: Bytes, time: Duration) -> Result<Answer> {
        let mut request = Request::builder()
            .method(&method)
            .uri(format!("{}{path}", self.options.base))
            .header(header::HOST, self.options.authority());
        if method == Method::POST {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.options.token {
            let mut value = header::HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| Error::invalid("the token has characters that are not allowed in a token"))?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| Error::invalid("cannot build the request").with_source(error))?;
        tokio::time::timeout(time, self.send(request)).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::NetworkTimeout, "the server did not answer in time"))
        })
    }

    async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Answer> {
        loop {
            let (mut sender, fresh) = match self.take().await {
                Some(sender) => (sender, false),
                None => (self.connect().await?, true),
            };
            let mut in_flight = InFlight { pool: self, since: Instant::now(), answered: false };
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let status = response.status().as_u16();
                    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
                    let body = body.map_err(unread)?.to_bytes().into();
                    in_flight.answered = true;
                    self.keep(sender);
                    return Ok(Answer { status, body });
                }
                Err(mut error) => match error.take_message() {
                    // An old connection had ended, and nothing was sent over it.
                    Some(message) if !fresh => request = message,
                    unsent => return Err(broken(error.into_error(), unsent.is_none())),
                },
            }
        }
    }

    async fn take(&self) -> Option<SendRequest<Full<Bytes>>> {
        loop {
            let (mut sender, since) = self.idle.lock().pop()?;
            if since.elapsed() < IDLE && !sender.is_closed() && sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    fn keep(&self, sender: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.lock();
        idle.retain(|(sender, since)| since.elapsed() < IDLE && !sender.is_closed());
        if idle.len() < MAX_IDLE && !sender.is_closed() {
            idle.push((sender, Instant::now()));
        }
    }

    /// Connects on the pool's own runtime, so that the connection outlives the caller's.
    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let (host, port, tls) = (self.options.host.clone(), self.options.port, self.tls.clone());
        let runtime = self.runtime.clone();
        let connecting = self.runtime.spawn(async move {
            let addresses = tokio::net::lookup_host((host.as_str(), port)).await.map_err(unreachable)?;
            let stream = dial(addresses).await.map_err(unreachable)?;
            let _ = stream.set_nodelay(true);
            notice_silence(&stream);
            match tls {
                None => speak(&runtime, stream).await,
                Some((connector, name)) => {
                    let stream = connector.connect(name, stream).await.map_err(tls::failed)?;
                    speak(&runtime, stream).await
                }
            }
        });
        let _abort = AbortOnDrop(connecting.abort_handle());
        match tokio::time::timeout(CONNECT, connecting).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => Err(unreachable(error)),
            Err(error) => Err(unreachable(error)),
        }
    }
}

/// A request in flight. If it gets no answer for a while, the unused connections are closed too.
struct InFlight<'a> {
    pool: &'a Pool,
    since: Instant,
    answered: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.answered && self.since.elapsed() >= SILENT {
            self.pool.forget_idle();
        }
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn speak<S>(runtime: &Handle, stream: S) -> Result<SendRequest<Full<Bytes>>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(error, false))?;
    // It ends when its sender is dropped, or when the server closes it.
    runtime.spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

/// Lets the system notice within seconds that a server died silently, even while the client only waits.
#[cfg(target_os = "linux")]
fn notice_silence(stream: &TcpStream) {
    use rustix::net::sockopt;
    const EVERY: Duration = Duration::from_secs(1);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, EVERY);
    let _ = sockopt::set_tcp_keepintvl(stream, EVERY);
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
}

#[cfg(not(target_os = "linux"))]
fn notice_silence(_: &TcpStream) {}
