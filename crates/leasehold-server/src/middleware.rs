//! What every request passes through: it gets an id, its origin and token are checked, and its result is logged.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use leasehold::backend::{Claim, Release, Released, Renewal};
use leasehold::{Fence, LeaseId, MAX_OWNER_BYTES, Name, digest_name};

use crate::app::App;
use crate::digits::{self, Digits};
use crate::extract;
use crate::history::{Event, History, What};
use crate::problem::Refusal;
use crate::token::{Renewing, Share, Token, Verb};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest request id: it is echoed and logged.
const MAX_REQUEST_ID: usize = 128;

/// The sender of a request: a token, or anybody if the server has no tokens.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller(Option<Arc<Token>>);

impl Caller {
    pub(crate) fn of(request: &mut Request<Body>) -> Self {
        request.extensions_mut().remove().unwrap_or_default()
    }

    /// Whether the token allows the verb. Without tokens everybody may do everything.
    pub(crate) fn may(&self, verb: Verb, name: &str) -> Result<(), Refusal> {
        self.0.as_ref().map_or(Ok(()), |token| token.may(verb, name))
    }

    /// The prefix to list, narrowed to what the token may read.
    pub(crate) fn readable(&self, prefix: String) -> Result<String, Refusal> {
        match &self.0 {
            Some(token) => token.readable(prefix).ok_or_else(Refusal::out_of_scope),
            None => Ok(prefix),
        }
    }

    /// Reserves room in the token's limits for what a claim may get. `None` without tokens.
    pub(crate) fn share(&self, claim: &Claim, waits: bool) -> Result<Option<Share>, Refusal> {
        self.0.as_ref().map(|token| Share::of(token, claim, waits)).transpose()
    }

    /// Tracks renewals that are about to be sent.
    pub(crate) fn renewing<'a>(&'a self, leases: &'a [Renewal]) -> Renewing<'a> {
        Renewing::of(self.0.as_deref(), leases)
    }

    /// The store answered a release that was sent at this time.
    pub(crate) fn released(&self, release: &Release, sent: Instant, answer: &Released) {
        if let Some(token) = &self.0 {
            token.released(release, sent, answer);
        }
    }
}

/// What an operation was and how it ended, for the log and the metrics.
#[derive(Debug, Clone, Default)]
pub(crate) struct Operation {
    pub(crate) op: &'static str,
    name: Option<Name>,
    owner: Option<String>,
    lease: Option<LeaseId>,
    fence: Option<Fence>,
    /// The fences of the leases that were revoked; `UNFENCED` for those of unknown holders.
    revoked: Vec<Fence>,
    waited: Option<Duration>,
    pub(crate) result: &'static str,
    why: Option<String>,
}

impl Operation {
    pub(crate) fn new(op: &'static str) -> Self {
        Operation { op, result: "success", ..Operation::default() }
    }

    pub(crate) fn name(&mut self, name: &Name) {
        self.name = Some(name.clone());
    }

    pub(crate) fn owner(&mut self, owner: &str) {
        self.owner = Some(owner.to_owned());
    }

    pub(crate) fn lease(&mut self, id: LeaseId) {
        self.lease = Some(id);
    }

    /// Records what a client says about its lease. An owner longer than any lease can have is ignored.
    pub(crate) fn said(&mut self, owner: Option<&str>, fence: Option<u64>) {
        self.owner = owner.filter(|owner| owner.len() <= MAX_OWNER_BYTES).map(str::to_owned);
        self.fence = fence.map(Fence::new);
    }

    /// Records that leases with this fence were revoked. The log has the fence if it is the only one.
    pub(crate) fn revoked(&mut self, fence: Fence) {
        self.revoked.push(fence);
        self.fence = Some(fence).filter(|fence| self.revoked.len() == 1 && *fence != Fence::UNFENCED);
    }

    pub(crate) fn granted(&mut self, fence: Fence, waited: Duration) {
        (self.fence, self.waited) = (Some(fence), Some(waited));
    }

    pub(crate) fn result(&mut self, result: &'static str, why: &str) {
        (self.result, self.why) = (result, Some(why.to_owned()));
    }

    pub(crate) fn refused(&mut self, refusal: &Refusal) {
        let busy = refusal.code == leasehold::wire::code(leasehold::ErrorKind::Overloaded);
        self.result(if busy { "busy" } else { "fail" }, &refusal.detail);
    }

    /// Adds the operation to the lock's history if it changed the lock, or failed because the lease was gone.
    fn remember(&self, history: &History, status: StatusCode) {
        let Some(name) = &self.name else { return };
        let what = match (self.op, self.result, status) {
            ("acquire", "success", _) => What::Granted,
            ("release", "success", _) => What::Released,
            // Also if it failed after some of several holders.
            ("revoke", ..) if !self.revoked.is_empty() => What::Revoked,
            ("renew", "fail", StatusCode::GONE) => What::RenewalRefused,
            ("release", "fail", StatusCode::OK) => What::ReleaseRefused,
            _ => return,
        };
        let event = Event::new(what, self.lease).because(self.why.as_deref());
        match what {
            What::Granted => {
                history.note(name, event.granted(self.owner.as_deref(), self.fence, self.waited));
            }
            // One event per holder.
            What::Revoked => self.revoked.iter().for_each(|fence| {
                let fence = Some(*fence).filter(|fence| *fence != Fence::UNFENCED);
                history.note(name, event.clone().granted(None, fence, None));
            }),
            // For any other event, trust only what was known before it.
            _ => history.note(name, event),
        }
    }

    /// Owner and fence of an earlier lease, if this server granted it.
    fn granted_here(&self, history: &History) -> Option<(Option<Arc<str>>, Option<Fence>)> {
        let is_known = self.op == "acquire" || (self.owner.is_some() && self.fence.is_some());
        if is_known { None } else { history.grant(self.name.as_ref()?, self.lease?) }
    }

    pub(crate) fn onto(self, mut response: Response<Body>) -> Response<Body> {
        response.extensions_mut().insert(self);
        response
    }
}

/// The operations of one request, each with the status of its answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Operations(Vec<(Operation, StatusCode)>);

impl Operations {
    pub(crate) fn add(&mut self, operation: Operation, status: StatusCode) {
        self.0.push((operation, status));
    }

    pub(crate) fn onto(self, mut response: Response<Body>) -> Response<Body> {
        response.extensions_mut().insert(self);
        response
    }
}

/// A request's id and when it arrived, for its log lines.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    id: HeaderValue,
    began: Instant,
}

/// Marks a response whose operation is already counted, remembered and logged.
#[derive(Debug, Clone)]
struct Concluded;

impl Record {
    /// The record of a request that changes something.
    pub(crate) fn of(request: &mut Request<Body>) -> Self {
        let unknown = || Record { id: HeaderValue::from_static("-"), began: Instant::now() };
        request.extensions_mut().remove().unwrap_or_else(unknown)
    }

    /// Counts, remembers and logs the operations of a response now, because its client may have left already.
    pub(crate) fn conclude_early(&self, app: &App, mut response: Response<Body>) -> Response<Body> {
        self.conclude(app, &mut response);
        response.extensions_mut().insert(Concluded);
        response
    }

    /// Counts, remembers and logs the operations of a response. Returns whether it has any.
    fn conclude(&self, app: &App, response: &mut Response<Body>) -> bool {
        let took = self.began.elapsed();
        let conclude = |operation: &Operation, status: StatusCode| {
            app.metrics.operation(operation, took);
            operation.remember(&app.history, status);
            tell(app, operation, &self.id, Some(status), took);
        };
        if let Some(operation) = response.extensions_mut().remove::<Operation>() {
            conclude(&operation, response.status());
        } else if let Some(Operations(all)) = response.extensions_mut().remove() {
            all.iter().for_each(|(operation, status)| conclude(operation, *status));
        } else {
            return response.extensions_mut().remove::<Concluded>().is_some();
        }
        true
    }
}

/// Logs an operation that ends without an answer: if its client leaves, the request's future is dropped.
struct Unanswered<'a> {
    app: &'a App,
    record: &'a Record,
    /// The request's path, until there is an answer.
    uri: Option<Uri>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let Some(uri) = self.uri.take() else { return };
        // A revoke goes on in a task, which logs it.
        let op = match uri.path().rsplit('/').next().unwrap_or_default() {
            "acquire" => "acquire",
            "renew" => "renew",
            "release" => "release",
            "check" => "check_fence",
            "sweep" => "sweep",
            _ => return,
        };
        let mut operation = Operation::new(op);
        operation.name = extract::name(self.app, &uri).ok();
        let why = if std::thread::panicking() {
            "a bug in the server ended the request"
        } else if self.app.closing.is_cancelled() {
            "the server stopped before the answer"
        } else {
            "the client left before the answer"
        };
        operation.result("fail", why);
        tell(self.app, &operation, &self.record.id, None, self.record.began.elapsed());
    }
}

/// Passes a request through the checks and on to the handler, and logs the result.
pub(crate) async fn pass<F>(
    app: &App,
    mut request: Request<Body>,
    next: impl FnOnce(Request<Body>) -> F,
) -> Response<Body>
where
    F: Future<Output = Response<Body>>,
{
    let record = Record { began: Instant::now(), id: request_id(app, request.headers()) };
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
    let mut response = match admit(app, &request) {
        Ok(caller) => {
            // Without a token there is no caller to name.
            if caller.0.is_some() {
                request.extensions_mut().insert(caller);
            }
            let mut unanswered = Unanswered { app, record: &record, uri: None };
            if changes {
                request.extensions_mut().insert(record.clone());
                unanswered.uri = Some(request.uri().clone());
            }
            let response = next(request).await;
            unanswered.uri = None;
            response
        }
        Err(refusal) => {
            let mut operation = Operation::new("refused");
            operation.refused(&refusal);
            operation.onto(refusal.response())
        }
    };
    if !record.conclude(app, &mut response) && changes && !response.status().is_success() {
        let operation = Operation { op: "none", result: "fail", ..Operation::default() };
        tell(app, &operation, &record.id, Some(response.status()), record.began.elapsed());
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, record.id);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Logs an operation. One without a status had no answer.
fn tell(
    app: &App,
    operation: &Operation,
    request_id: &HeaderValue,
    status: Option<StatusCode>,
    took: Duration,
) {
    app.settings.log.line(|line| {
        let names = app.settings.log_names;
        let granted = operation.granted_here(&app.history);
        let owner = operation.owner.as_deref().or(granted.as_ref().and_then(|(owner, _)| owner.as_deref()));
        let fence = operation.fence.or(granted.as_ref().and_then(|(_, fence)| *fence));
        let is_fault = status.is_some_and(|status| status.is_server_error());
        line.text("level", if is_fault { "warn" } else { "info" });
        line.text("op", operation.op);
        if let Some(name) = &operation.name {
            if names {
                line.text("lock", name.as_str());
            }
            line.text("lock_hash", &name.hash());
        }
        if let Some(owner) = owner {
            if names {
                line.text("owner", owner);
            }
            line.text("owner_hash", &digest_name(owner));
        }
        line.text("result", operation.result);
        if let Some(status) = status {
            line.number("status", status.as_u16());
        }
        if let Some(id) = operation.lease {
            line.text("lease_hash", id.digest().expose());
        }
        if let Some(fence) = fence {
            line.number("fence", fence.get());
        }
        if let Some(waited) = operation.waited {
            line.number("waited_ms", leasehold::wire::floor_ms(waited));
        }
        line.milliseconds("latency_ms", took);
        if let Some(why) = &operation.why {
            line.text("error", why);
        }
        line.text("request_id", request_id.to_str().unwrap_or_default());
    });
}

/// Makes ids for requests that bring none. All ids of one process start alike.
#[derive(Debug)]
pub(crate) struct RequestIds {
    begin: String,
    next: AtomicU64,
}

impl RequestIds {
    pub(crate) fn new() -> Self {
        RequestIds { begin: LeaseId::random().expose()[..11].to_owned(), next: AtomicU64::new(1) }
    }

    fn next(&self) -> HeaderValue {
        let mut id = Vec::with_capacity(self.begin.len() + 1 + digits::MOST);
        id.extend_from_slice(self.begin.as_bytes());
        id.push(b'-');
        id.extend_from_slice(Digits::of(self.next.fetch_add(1, Ordering::Relaxed)).as_bytes());
        // Letters and digits are always valid in a header.
        HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("-"))
    }
}

fn request_id(app: &App, headers: &HeaderMap) -> HeaderValue {
    let good = |id: &&HeaderValue| {
        !id.is_empty() && id.len() <= MAX_REQUEST_ID && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers.get(REQUEST_ID).filter(good).cloned().unwrap_or_else(|| app.request_ids.next())
}

/// Whether a request is admitted, and who sends it.
fn admit(app: &App, request: &Request<Body>) -> Result<Caller, Refusal> {
    let headers = request.headers();
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let host = text(header::HOST).or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    let Some(host) = host else { return Err(Refusal::bad("a Host header is required")) };
    // DNS rebinding: a foreign page whose host name was made to point here. Without tokens, only the host name gives
    // it away.
    if app.settings.tokens.is_none() && !is_ours(app, host) {
        return Err(Refusal::forbidden(
            "this server is not known by that host name; if it should be, start it with --host NAME",
        ));
    }
    if let Some(origin) = text(header::ORIGIN) {
        let same = origin.split_once("://").is_some_and(|(_, from)| from.eq_ignore_ascii_case(host));
        if !same {
            return Err(Refusal::forbidden("requests from web pages of other origins are refused"));
        }
    }
    let path = request.uri().path();
    // Open to health probes, and to the page that asks for the token.
    if matches!(path, "/healthz" | "/readyz" | "/" | "/openapi.json") {
        return Ok(Caller(None));
    }
    let Some(tokens) = &app.settings.tokens else { return Ok(Caller(None)) };
    let bearer = text(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    let token = bearer.and_then(|bearer| tokens.find(bearer)).ok_or_else(Refusal::no_token)?;
    token.spend_request()?;
    Ok(Caller(Some(token)))
}

fn is_ours(app: &App, host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok()
        || app.settings.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
}
