//! Accepts connections, and shuts down so that every client gets an answer.

// What belongs here: sockets, connections, TLS, reloading and shutdown; what a request means is in `handlers`. Before
// changing anything here: `cargo test -p leasehold-server` and `cargo test -p leasehold-cli --test 'serve*'`.

mod ahead;
mod connection;
pub(crate) mod listen;
pub(crate) mod probe;
pub(crate) mod reload;
pub(crate) mod sole;
pub(crate) mod tls;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::app::App;
use crate::handlers::{figure_routes, routes};
use crate::serve::listen::Listeners;
use crate::serve::tls::Tls;
use crate::sweep;

use connection::speak;

/// How long to pause when the process is out of file descriptors; connections close meanwhile.
const OUT_OF_FILES: Duration = Duration::from_millis(50);

/// Serves requests on one or more listeners until `shutdown` resolves.
///
/// Then it stops accepting, answers all waiting requests with a retryable error, finishes the running ones, and
/// returns after at most five seconds.
///
/// # Cancel safety
/// Dropping the future closes all connections at once.
///
/// # Errors
/// None at present: a failing listener is tried again.
pub async fn serve(
    state: Arc<App>,
    listeners: impl Into<Listeners>,
    tls: Option<Arc<Tls>>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let sweeping = tokio::spawn(sweep::run(Arc::clone(&state)));
    let router = routes(Arc::clone(&state), !state.settings.figures_elsewhere);
    let most = limits(&state).0;
    let connections = accept(&state, router, listeners.into(), tls, most, shutdown).await;
    state.drain(all_closed(connections)).await;
    sweeping.abort();
    Ok(())
}

/// Serves the separate address for metrics and the dashboard. It runs beside [`serve`] of the same [`App`], and stops
/// with it, in the same way and within the same time.
///
/// It has `/metrics`, the dashboard with what that reads, and health: no lock is taken, renewed or released there.
/// Revoking needs a token; without tokens it is possible on loopback only.
///
/// # Cancel safety
/// Dropping the future closes all its connections at once.
pub async fn serve_figures(state: Arc<App>, listeners: impl Into<Listeners>, tls: Option<Arc<Tls>>) {
    let (ended, listeners) = (state.draining.clone(), listeners.into());
    let is_private =
        listeners.addresses().is_ok_and(|all| all.iter().all(|address| address.ip().is_loopback()));
    let router = figure_routes(Arc::clone(&state), state.settings.tokens.is_some() || is_private);
    let most = limits(&state).1;
    let connections = accept(&state, router, listeners, tls, most, async { ended.cancelled().await }).await;
    state.drain(all_closed(connections)).await;
}

async fn all_closed(mut connections: JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

/// How many connections the locks may have, and how many the separate address for metrics: few, so that its clients
/// cannot take those that the locks need.
fn limits(state: &App) -> (usize, usize) {
    let all = state.settings.max_connections;
    if !state.settings.figures_elsewhere {
        return (all, all);
    }
    let figures = (all / 16).clamp(16, 512).min(all / 2).max(1);
    (all.saturating_sub(figures).max(1), figures)
}

/// Accepts connections until shutdown; returns those still open.
async fn accept(
    state: &Arc<App>,
    router: Router,
    mut listeners: Listeners,
    tls: Option<Arc<Tls>>,
    most: usize,
    shutdown: impl Future<Output = ()>,
) -> JoinSet<()> {
    let room = Arc::new(Semaphore::new(most));
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        // At the connection limit, stop accepting: further clients wait in the system's queue, not in our memory.
        let next = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            (listeners.accept().await, permit)
        };
        tokio::select! {
            biased;
            () = shutdown.as_mut() => return connections,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            (accepted, permit) = next => match accepted {
                Ok(stream) => {
                    let connection = serve_one(Arc::clone(state), router.clone(), tls.clone(), stream);
                    connections.spawn(async move {
                        connection.await;
                        drop(permit);
                    });
                }
                Err(_) => tokio::time::sleep(OUT_OF_FILES).await,
            }
        }
    }
}

async fn serve_one(state: Arc<App>, router: Router, tls: Option<Arc<Tls>>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    notice_silence(&stream);
    match tls {
        // Boxed only here, so that ten thousand connections without TLS do not pay for it.
        Some(tls) => Box::pin(shake_hands(state, router, tls, stream)).await,
        None => speak(state, router, stream).await,
    }
}

async fn shake_hands(state: Arc<App>, router: Router, tls: Arc<Tls>, stream: TcpStream) {
    let handshake = tokio::time::timeout(state.settings.read_timeout, tls.acceptor().accept(stream));
    if let Ok(Ok(stream)) = handshake.await {
        speak(state, router, stream).await;
    }
}

/// Turns on keep-alive, so that a client that died silently is noticed within some ten seconds, also while it waits.
fn notice_silence(stream: &TcpStream) {
    use rustix::net::sockopt;
    let _ = sockopt::set_socket_keepalive(stream, true);
    #[cfg(target_os = "linux")]
    {
        let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(5));
        let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(2));
        let _ = sockopt::set_tcp_keepcnt(stream, 3);
    }
}
