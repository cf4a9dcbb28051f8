//! An axum service that refuses writers that have lost their lock.
//!
//! Clients send the fence of their lock in the header `Fencing-Token`. The program calls its own service as two of
//! them: the second got the lock while the first was paused.
//!
//! `cargo run -p leasehold --features tower --example fenced_service [URL]`, with a store that has a ttl

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use leasehold::{FencingLayer, Locks, WriteFence};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

type Report = Arc<Mutex<String>>;

async fn read(State(report): State<Report>) -> String {
    report.lock().expect("no writer panics").clone()
}

async fn write(State(report): State<Report>, body: String) {
    *report.lock().expect("no writer panics") = body;
}

/// Writes as a client of the service; returns the first line of its answer.
async fn put(service: SocketAddr, body: &str, fence: WriteFence) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(service).await?;
    let head =
        format!("PUT /report HTTP/1.1\r\nhost: example\r\nconnection: close\r\nFencing-Token: {fence}");
    connection
        .write_all(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes())
        .await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any store will do: pass its URL as the first argument.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = Locks::connect(&url).await?;

    // The service. `keep_in(locks)` would let it remember the fences over a restart.
    let report = Report::default();
    let app = Router::new().route("/report", get(read).put(write)).with_state(Arc::clone(&report));
    let app = app.layer(FencingLayer::by_path());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let service = listener.local_addr()?;
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    // The first client. Nothing renews its lease, as if its whole process had stopped right after the grant.
    let ttl = Duration::from_secs(1);
    let paused = locks.leasing("example/report").ttl(ttl).acquire().await?;
    // The second one waits until that lease has expired, and writes.
    let guard = locks.mutex("example/report").max_wait(Duration::from_secs(10)).lock().await?;
    let answer = put(service, "new", guard.write_fence()?).await?;
    println!("second client: {answer}");
    assert!(answer.contains("200"), "the holder may write");

    // The first one goes on, and believes that it still holds the lock.
    let answer = put(service, "old", paused.write_fence()?).await?;
    println!("first client:  {answer}");
    assert!(answer.contains("412"), "the paused writer is refused");
    assert_eq!(*report.lock().expect("no writer panics"), "new");

    guard.release().await?;
    server.abort();
    locks.close().await;
    Ok(())
}
