//! Accepting connections, and ending without leaving anybody in the dark.

mod ahead;
mod connection;
pub(crate) mod listen;
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

/// How long to leave the system alone when it has no more descriptors: others close theirs meanwhile.
const OUT_OF_FILES: Duration = Duration::from_millis(50);

/// Answers requests on one listener or several until `shutdown` resolves.
///
/// Then it stops accepting, answers everybody who waits with a retryable error, finishes what is under way, and
/// returns after at most five seconds.
///
/// # Cancel safety
/// Dropped, all connections are closed at once.
///
/// # Errors
/// None at present: a listener that fails is tried again.
pub async fn serve(
    state: Arc<App>,
    listeners: impl Into<Listeners>,
    tls: Option<Arc<Tls>>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let sweeping = tokio::spawn(sweep::run(Arc::clone(&state)));
    let router = routes(Arc::clone(&state), !state.settings.figures_elsewhere);
    let connections = accept(&state, router, listeners.into(), tls, shutdown).await;
    state.drain(all_closed(connections)).await;
    sweeping.abort();
    Ok(())
}

/// Answers on the address that metrics and the dashboard have for themselves, until [`serve`] of the same [`App`],
/// which runs beside it, is told to stop; then it ends in the same way and the same time.
///
/// It has `/metrics`, the dashboard with what that reads, and health: no lock is taken, renewed or released there.
/// Revoking needs a token; without tokens it is possible on loopback alone.
///
/// # Cancel safety
/// Dropped, all its connections are closed at once.
pub async fn serve_figures(state: Arc<App>, listeners: impl Into<Listeners>, tls: Option<Arc<Tls>>) {
    let (ended, listeners) = (state.draining.clone(), listeners.into());
    let is_private =
        listeners.addresses().is_ok_and(|all| all.iter().all(|address| address.ip().is_loopback()));
    let router = figure_routes(Arc::clone(&state), state.settings.tokens.is_some() || is_private);
    let connections = accept(&state, router, listeners, tls, async { ended.cancelled().await }).await;
    state.drain(all_closed(connections)).await;
}

async fn all_closed(mut connections: JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

/// Accepts connections until told to stop; those that are left.
async fn accept(
    state: &Arc<App>,
    router: Router,
    mut listeners: Listeners,
    tls: Option<Arc<Tls>>,
    shutdown: impl Future<Output = ()>,
) -> JoinSet<()> {
    let room = Arc::new(Semaphore::new(state.settings.max_connections));
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        // With no room left, nobody is accepted: they wait in the system's queue, not in our memory.
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
        // On the heap, and only here: ten thousand connections without TLS do not pay for it.
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

/// A client that died without a word is noticed in some ten seconds, also while it waits.
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
