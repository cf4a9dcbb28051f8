//! A `tower` layer that refuses requests whose fencing token is stale.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tower::{Layer, Service};

use crate::client::locks::Locks;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::marks::{Checked, StaleFence, WriteFence};

/// The header that carries the fence of a writer: a plain number or 15 digits.
pub const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");

/// Says which resource a request writes to; `None` if it needs no fence.
type ResourceOf = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// Puts [`Fencing`] in front of a service: for an HTTP service that alone writes to what the lock protects.
///
/// A request that writes must carry the fence of its exclusive holder in the header `Fencing-Token`. The layer compares
/// it with the highest one that the resource has seen, and lets only requests with the highest one run at the same
/// time: before a request with a higher fence runs, those with a lower one have ended. So the check and the write are
/// one step, as long as the handler has written when it returns its response, and no other process writes.
///
/// | request | answer |
/// |---|---|
/// | fence lower than the highest seen | 412, code `STALE_FENCE` |
/// | no fence | 428, code `FENCE_REQUIRED` |
/// | several fences, or one that no store gives | 400, code `INVALID_ARGUMENT` |
/// | the mark cannot be kept ([`keep_in`](FencingLayer::keep_in)) | 503, code `UNAVAILABLE` |
///
/// The bodies are `application/problem+json`. The marks are in memory unless `keep_in` says otherwise: after a restart
/// the first fence that comes is accepted. They stay there for as long as the layer, so let the resources be few, or
/// known beforehand: a resource is remembered with the first valid fence that names it.
///
/// ```
/// use axum::{Router, routing::put};
/// use leasehold::FencingLayer;
///
/// let app: Router = Router::new()
///     .route("/reports/{id}", put(async || "written"))
///     .layer(FencingLayer::by_path());
/// ```
#[derive(Clone)]
pub struct FencingLayer {
    shared: Arc<Shared>,
}

struct Shared {
    resource_of: Box<ResourceOf>,
    kept_in: Option<Locks>,
    gates: Mutex<HashMap<String, Arc<Gate>>>,
}

impl FencingLayer {
    /// The resource of a request is what this returns; `None` lets the request pass without a fence.
    pub fn new(resource_of: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        FencingLayer::build(Box::new(resource_of), None)
    }

    /// The resource of a request is its path, as it was sent. GET, HEAD, OPTIONS and TRACE pass without a fence.
    ///
    /// Two spellings of a path are two resources. If your routes accept several, use [`new`](FencingLayer::new).
    pub fn by_path() -> Self {
        let reads = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE];
        FencingLayer::new(move |parts| (!reads.contains(&parts.method)).then(|| parts.uri.path().to_owned()))
    }

    /// Keeps the marks also in the store of these locks, so that they outlive a restart. The first request with each
    /// higher fence then costs a call to the store. The resources are names there: at most 512 bytes.
    ///
    /// # Errors
    /// `Unsupported` for a store that keeps no marks, as [`Locks::check_fence`].
    pub fn keep_in(self, locks: Locks) -> Result<Self> {
        locks.marks()?;
        let shared = Arc::try_unwrap(self.shared)
            .map_err(|_| Error::invalid("`keep_in` must be called before the layer is cloned"))?;
        Ok(FencingLayer::build(shared.resource_of, Some(locks)))
    }

    fn build(resource_of: Box<ResourceOf>, kept_in: Option<Locks>) -> Self {
        FencingLayer { shared: Arc::new(Shared { resource_of, kept_in, gates: Mutex::default() }) }
    }
}

impl fmt::Debug for FencingLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencingLayer").field("kept_in", &self.shared.kept_in).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for FencingLayer {
    type Service = Fencing<S>;

    fn layer(&self, inner: S) -> Fencing<S> {
        Fencing { inner, shared: Arc::clone(&self.shared) }
    }
}

/// A service behind a [`FencingLayer`].
#[derive(Clone)]
pub struct Fencing<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S: fmt::Debug> fmt::Debug for Fencing<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fencing").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for Fencing<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
    R: From<String> + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that is ready is this one, not the clone.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let Some(resource) = (shared.resource_of)(&parts) else {
                return inner.call(Request::from_parts(parts, body)).await;
            };
            let passed = match fence_of(&parts) {
                Ok(fence) => shared.enter(resource, fence).await,
                Err(refusal) => Err(refusal),
            };
            match passed {
                // Held until the answer is there.
                Ok(_turn) => inner.call(Request::from_parts(parts, body)).await,
                Err(refusal) => Ok(refusal.response()),
            }
        })
    }
}

/// The fence in a request's header.
fn fence_of(parts: &Parts) -> Result<WriteFence, Refusal> {
    let mut values = parts.headers.get_all(FENCING_TOKEN).iter();
    let Some(value) = values.next() else {
        let detail = "this needs the fence of your lock in the header Fencing-Token";
        return Err(Refusal::new(StatusCode::PRECONDITION_REQUIRED, "FENCE_REQUIRED", detail));
    };
    let bad = |detail: &str| Refusal::new(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", detail);
    if values.next().is_some() {
        return Err(bad("the header Fencing-Token must be there once"));
    }
    let text =
        value.to_str().map_err(|_| bad("the header Fencing-Token must be a number of 1 to 15 digits"))?;
    text.parse().map_err(|error: Error| bad(&format!("the header Fencing-Token: {}", error.message())))
}

impl Shared {
    /// Waits until a request with this fence may run.
    async fn enter(&self, resource: String, fence: WriteFence) -> Result<Turn, Refusal> {
        let gate = Arc::clone(self.gates.lock().entry(resource.clone()).or_default());
        let turn = gate.enter(fence).await.map_err(|stale| Refusal::stale(&stale))?;
        let Some(locks) = &self.kept_in else { return Ok(turn) };
        if gate.state.lock().kept >= fence.get() {
            return Ok(turn);
        }
        // In the turn: a request with a higher fence waits for the end of this one.
        match locks.check_fence(&resource, fence).await {
            Ok(Checked::Current) => {
                let mut state = gate.state.lock();
                state.kept = state.kept.max(fence.get());
                Ok(turn)
            }
            Ok(Checked::Stale(stale)) => {
                gate.raise(stale.highest);
                Err(Refusal::stale(&stale))
            }
            Err(error) => {
                let detail = format!("the mark of this resource cannot be kept: {}", error.message());
                Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", &detail))
            }
        }
    }
}

/// The mark of one resource, and the requests that run.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    /// Notified when the last request with a lower fence has ended.
    clear: Notify,
}

#[derive(Default)]
struct State {
    highest: Fence,
    /// The fence up to which the store knows the mark.
    kept: Fence,
    /// Requests that run with the highest fence.
    current: usize,
    /// Requests that still run with a lower one.
    lower: usize,
}

impl State {
    fn raise(&mut self, highest: Fence) {
        if highest > self.highest {
            self.highest = highest;
            self.lower += std::mem::take(&mut self.current);
        }
    }
}

impl Gate {
    fn raise(&self, highest: Fence) {
        self.state.lock().raise(highest);
    }

    async fn enter(self: &Arc<Self>, fence: WriteFence) -> Result<Turn, StaleFence> {
        loop {
            let mut cleared = std::pin::pin!(self.clear.notified());
            // Before the look, so that no end is missed.
            cleared.as_mut().enable();
            {
                let mut state = self.state.lock();
                StaleFence::compare(fence, state.highest)?;
                // From here on lower ones are refused, also while this one waits.
                state.raise(fence.get());
                if state.lower == 0 {
                    state.current += 1;
                    return Ok(Turn { gate: Arc::clone(self), fence: fence.get() });
                }
            }
            cleared.await;
        }
    }
}

/// A request that runs. Ends when dropped, also if the request is cancelled.
struct Turn {
    gate: Arc<Gate>,
    fence: Fence,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        if self.fence == state.highest {
            state.current -= 1;
            return;
        }
        state.lower -= 1;
        if state.lower == 0 {
            self.gate.clear.notify_waiters();
        }
    }
}

/// An answer in the form of RFC 9457.
struct Refusal {
    status: StatusCode,
    code: &'static str,
    detail: String,
    highest: Option<Fence>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, detail: &str) -> Self {
        Refusal { status, code, detail: detail.to_owned(), highest: None }
    }

    fn stale(stale: &StaleFence) -> Self {
        let refusal = Refusal::new(StatusCode::PRECONDITION_FAILED, "STALE_FENCE", &stale.to_string());
        Refusal { highest: Some(stale.highest), ..refusal }
    }

    fn response<R: From<String>>(self) -> Response<R> {
        let mut body = serde_json::json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code,
        });
        if let Some(highest) = self.highest {
            body["highest_fencing_token"] = highest.get().into();
        }
        let mut response = Response::new(R::from(body.to_string()));
        *response.status_mut() = self.status;
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}
