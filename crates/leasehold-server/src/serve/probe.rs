//! A page that says whether this process is ready for something: for load balancers and health checks.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::problem;

use super::OUT_OF_FILES;
use super::listen::Listeners;

/// How many connections are open at once; more wait in the system's queue.
const CONNECTIONS: usize = 64;

/// How long one connection, which is one request, may take.
const REQUEST: Duration = Duration::from_secs(5);

/// Answers `GET /` until dropped: with 200 if `look` returns true, otherwise with 503; the body is its JSON. Other paths
/// are 404, other methods 405.
///
/// A connection serves one request and lasts five seconds at most. At most 64 are open at once.
///
/// # Cancel safety
/// Dropping the future closes all connections at once.
pub async fn serve_probe<L, F>(listeners: impl Into<Listeners>, look: L)
where
    L: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = (bool, Value)> + Send + 'static,
{
    let (mut listeners, look) = (listeners.into(), Arc::new(look));
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            (listeners.accept().await, permit)
        };
        tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            (accepted, permit) = next => match accepted {
                Ok(stream) => {
                    let connection = speak(stream, Arc::clone(&look));
                    connections.spawn(async move {
                        let _ = tokio::time::timeout(REQUEST, connection).await;
                        drop(permit);
                    });
                }
                Err(_) => tokio::time::sleep(OUT_OF_FILES).await,
            }
        }
    }
}

async fn speak<L, F>(stream: TcpStream, look: Arc<L>)
where
    L: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = (bool, Value)> + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let look = Arc::clone(&look);
        async move { Ok::<_, Infallible>(answer(&request, &*look).await) }
    });
    let mut http = http1::Builder::new();
    // Ignore connection errors: the client disconnected, or does not speak HTTP.
    let _ = http
        .keep_alive(false)
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer<F>(request: &Request<Incoming>, look: &impl Fn() -> F) -> Response<Body>
where
    F: Future<Output = (bool, Value)>,
{
    if request.uri().path() != "/" {
        return problem::json(StatusCode::NOT_FOUND, &json!({ "error": "there is only one page, `/`" }));
    }
    if request.method() != Method::GET {
        let body = json!({ "error": "the only method is GET" });
        let mut response = problem::json(StatusCode::METHOD_NOT_ALLOWED, &body);
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    let (is_ready, body) = look().await;
    problem::json(if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &body)
}
