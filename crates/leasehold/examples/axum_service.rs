//! An axum service that stops its work when it loses the lock.
//!
//! The program calls its own service, takes the lock away in the middle, and sees the work end.
//!
//! `cargo run -p leasehold --example axum_service [URL]`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use leasehold::Locks;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone)]
struct Service {
    locks: Locks,
    finished: Arc<AtomicBool>,
}

/// Works for a minute under the lock. `run` drops the work as soon as the lease is lost.
async fn report(State(service): State<Service>) -> (StatusCode, String) {
    // A short ttl is renewed often, so a loss is noticed soon.
    let mutex = service.locks.mutex("example/report").ttl(Duration::from_secs(2));
    let guard = match mutex.try_lock().await {
        Ok(Some(guard)) => guard,
        Ok(None) => return (StatusCode::CONFLICT, "another instance makes the report".to_owned()),
        Err(error) => return (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    };
    let work = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        service.finished.store(true, Ordering::SeqCst);
    };
    match guard.run(work).await {
        Ok(()) => (StatusCode::OK, "done".to_owned()),
        Err(lost) => (StatusCode::SERVICE_UNAVAILABLE, lost.to_string()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any store will do: pass its URL as the first argument.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = Locks::connect(&url).await?;
    let service = Service { locks: locks.clone(), finished: Arc::default() };
    let app = Router::new().route("/report", get(report)).with_state(service.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let mut client = TcpStream::connect(address).await?;
    client.write_all(b"GET /report HTTP/1.1\r\nhost: example\r\nconnection: close\r\n\r\n").await?;
    while !locks.is_locked("example/report").await? {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("the service works; an operator takes the lock away");
    locks.revoke("example/report", true).await?;

    let mut answer = String::new();
    tokio::time::timeout(Duration::from_secs(10), client.read_to_string(&mut answer)).await??;
    println!("{}", answer.lines().next().unwrap_or_default());
    assert!(answer.starts_with("HTTP/1.1 503"), "the request says that the lock was lost");
    assert!(!service.finished.load(Ordering::SeqCst), "the work was stopped");

    server.abort();
    locks.close().await;
    Ok(())
}
