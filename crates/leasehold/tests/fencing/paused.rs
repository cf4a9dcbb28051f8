//! A writer in a process of its own is stopped between its check of the lease and its write, for longer than the lease
//! lives. Then a later holder has written, and the paused writer goes on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::put;
use leasehold::{Fence, Fenced, FencingLayer, Guard, Locks, WriteFence};
use parking_lot::Mutex;
use testkit::process::{Child, hear, role, say};
use testkit::until::in_time;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Not a test: the paused writer, and nothing without a role.
#[test]
fn play() {
    let Some(role) = role() else { return };
    let (url, to) = role.split_once('\t').unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = Locks::connect(url).await.unwrap();
        let guard = locks.mutex("account").ttl(Duration::from_secs(2)).lock().await.unwrap();
        let fence = guard.write_fence().unwrap();
        // Still held. The pause comes after this, where no check can help.
        guard.check().unwrap();
        say(&fence.to_string());
        hear();
        match to.parse::<SocketAddr>() {
            Ok(address) => say(&put_value(address, "100", fence).await),
            Err(_) => say(&format!("{fence} 100")),
        }
    });
}

/// A writer that was paused until its lease was gone, and the guard of the next holder.
struct Paused {
    child: Child,
    guard: Guard,
    stale: WriteFence,
    _directory: tempfile::TempDir,
}

impl Paused {
    async fn new(to: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().join("locks.db").display());
        let child = Child::spawn("paused::play", &format!("{url}\t{to}"));
        let stale: WriteFence = child.line().parse().unwrap();
        child.stop();
        let locks = Locks::connect(&url).await.unwrap();
        // Waits until the lease of the stopped process has expired.
        let guard = in_time("the next holder", locks.mutex("account").lock()).await.unwrap();
        assert!(guard.fence() > stale.get());
        Paused { child, guard, stale, _directory: directory }
    }

    /// Lets the paused writer write; returns what it says.
    fn writes(&mut self) -> String {
        self.child.go_on();
        self.child.tell("write now");
        self.child.line()
    }
}

#[tokio::test]
async fn fenced_value_refuses_a_paused_writer() {
    let mut paused = Paused::new("line").await;
    let (fenced, plain) = (Fenced::new(0), Mutex::new(0));
    fenced.write(paused.guard.write_fence().unwrap(), |value| *value = 200).unwrap();
    *plain.lock() = 200;
    let said = paused.writes();
    let (fence, value) = said.split_once(' ').unwrap();
    let (fence, value): (WriteFence, i64) = (fence.parse().unwrap(), value.parse().unwrap());
    let refused = fenced.write(fence, |current| *current = value).unwrap_err();
    assert_eq!((refused.fence, refused.highest), (paused.stale.get(), paused.guard.fence()));
    assert_eq!(fenced.into_inner(), 200);
    // Without the comparison, the late write succeeds.
    *plain.lock() = value;
    assert_eq!(plain.into_inner(), 100);
}

#[tokio::test]
async fn fencing_layer_refuses_a_paused_writer() {
    assert_eq!(written_over_http(true).await, ("HTTP/1.1 412 Precondition Failed".into(), "200".into()));
}

#[tokio::test]
async fn without_the_layer_a_paused_writer_overwrites() {
    assert_eq!(written_over_http(false).await, ("HTTP/1.1 200 OK".into(), "100".into()));
}

/// What the paused writer was answered, and what is stored at the end.
async fn written_over_http(fenced: bool) -> (String, String) {
    let stored = Arc::new(Mutex::new(String::new()));
    let write = async |State(stored): State<Arc<Mutex<String>>>, body: String| *stored.lock() = body;
    let app = Router::new().route("/account", put(write)).with_state(Arc::clone(&stored));
    let app = if fenced { app.layer(FencingLayer::by_path()) } else { app };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let mut paused = Paused::new(&address.to_string()).await;
    let fence = paused.guard.write_fence().unwrap();
    assert_eq!(put_value(address, "200", fence).await, "HTTP/1.1 200 OK");
    let status = tokio::task::spawn_blocking(move || paused.writes()).await.unwrap();
    server.abort();
    let stored = stored.lock().clone();
    (status, stored)
}

/// Sends a write; returns the status line.
async fn put_value(address: SocketAddr, value: &str, fence: WriteFence) -> String {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let length = value.len();
    let request = format!(
        "PUT /account HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\nFencing-Token: {fence}\r\n\r\n{value}"
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    in_time("the answer", connection.read_to_string(&mut answer)).await.unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn fence_reaches_a_writer_as_fifteen_digits() {
    let fence = WriteFence::received(Fence::new(7)).unwrap();
    assert_eq!(fence.to_string(), "000000000000007");
    assert_eq!(fence.to_string().parse::<WriteFence>().unwrap(), fence);
}
