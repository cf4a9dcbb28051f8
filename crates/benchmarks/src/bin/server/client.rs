//! The clients: HTTP/1.1 over connections that stay open, with nothing more than needed.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use benchmarks::{Contender, Held, Lock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Mutex;

use crate::bare;
use crate::process::Server;

/// The bytes of a POST with a JSON body.
pub(crate) fn post_request(path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A connection that is reused.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        Connection::from(TcpStream::connect(address).await.expect("the server accepts"))
    }

    /// From another local address: the ports of one do not suffice for many connections.
    pub(crate) async fn open_from(local: SocketAddr, address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(local).expect("a loopback address");
        Connection::from(socket.connect(address).await.expect("the server accepts"))
    }

    fn from(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("it is a connection");
        Connection { stream, buffer: Vec::with_capacity(1024) }
    }

    pub(crate) async fn send(&mut self, request: &[u8]) {
        self.stream.write_all(request).await.expect("the server reads");
    }

    /// Sends a request and waits for its answer, which must be 200. Returns the body.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> &str {
        self.send(request).await;
        self.buffer.clear();
        loop {
            let read = self.stream.read_buf(&mut self.buffer).await.expect("the server answers");
            assert!(read > 0, "the server closed the connection");
            if let Some(body) = whole(&self.buffer) {
                let text = std::str::from_utf8(&self.buffer).expect("an answer is text");
                assert!(text.starts_with("HTTP/1.1 200"), "{text}");
                return &text[body..];
            }
        }
    }
}

/// Where the body of an answer begins, if the answer is complete.
fn whole(answer: &[u8]) -> Option<usize> {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&answer[..head]).ok()?;
    let length = text.split("content-length: ").nth(1)?.split('\r').next()?.parse::<usize>().ok()?;
    (answer.len() >= head + length).then_some(head)
}

/// The clients of one server.
pub(crate) struct Client {
    address: SocketAddr,
    bare: bool,
}

impl Client {
    pub(crate) fn of(server: &Server) -> Self {
        Client { address: server.address, bare: server.bare }
    }
}

struct Asking {
    connection: Arc<Mutex<Connection>>,
    acquire: Vec<u8>,
    /// The path of the release; `None` for the bare handler, which is called twice.
    release: Option<String>,
}

struct Holding {
    connection: Arc<Mutex<Connection>>,
    release: Vec<u8>,
}

#[async_trait]
impl Contender for Client {
    async fn lock(&self, name: &str) -> Box<dyn Lock> {
        let connection = Arc::new(Mutex::new(Connection::open(self.address).await));
        let body = r#"{"owner_id":"worker-7","ttl_ms":30000,"wait_ms":50000}"#;
        Box::new(if self.bare {
            Asking { connection, acquire: bare::request(name), release: None }
        } else {
            Asking {
                connection,
                acquire: post_request(&format!("/v1/locks/{name}/acquire"), body),
                release: Some(format!("/v1/locks/{name}/release")),
            }
        })
    }
}

#[async_trait]
impl Lock for Asking {
    async fn acquire(&self) -> Box<dyn Held> {
        let mut connection = self.connection.lock().await;
        let answer = connection.ask(&self.acquire).await;
        let release = match &self.release {
            None => self.acquire.clone(),
            Some(path) => {
                let id = answer
                    .split(r#""lease_id":""#)
                    .nth(1)
                    .expect("a lease id")
                    .split('"')
                    .next()
                    .unwrap_or_default();
                post_request(path, &format!(r#"{{"lease_id":"{id}"}}"#))
            }
        };
        Box::new(Holding { connection: Arc::clone(&self.connection), release })
    }
}

#[async_trait]
impl Held for Holding {
    async fn release(self: Box<Self>) {
        let mut connection = self.connection.lock().await;
        let answer = connection.ask(&self.release).await;
        debug_assert!(!answer.contains(r#""released":false"#), "{answer}");
    }
}
