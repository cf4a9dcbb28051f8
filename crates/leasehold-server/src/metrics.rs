//! The figures of `/metrics`. No lock name, owner or token is ever a label.

mod spans;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, header};
use leasehold::backend::Swept;
use leasehold::{LeaseId, Name};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::app::App;
use crate::middleware::Operation;
use crate::serve::reload;

use spans::Spans;

type Labels = [(&'static str, &'static str); 1];

/// Calls to the store that are measured.
const STORE_OPS: [&str; 7] = ["acquire", "renew", "release", "revoke", "inspect", "sweep", "check_fence"];

/// The metrics of one verb, kept at hand so that counting needs no lookup by label.
struct Verb {
    name: &'static str,
    results: [(&'static str, Counter); 3],
    latency: Histogram,
    store_busy: Counter,
}

/// All metrics of the server.
pub(crate) struct Metrics {
    registry: Registry,
    verbs: [Verb; 3],
    store: [(&'static str, Histogram); STORE_OPS.len()],
    spans: Spans,
    holds: Histogram,
    handovers: Histogram,
    held: Gauge,
    queued: Gauge,
    expired: Counter,
    waiting: Gauge,
    waits: Histogram,
    refused: Counter,
    reload_went_well: Gauge,
    reloaded_at: Gauge,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// A histogram from 1 to 2048 ms, doubling.
fn milliseconds() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 12))
}

impl Metrics {
    pub(crate) fn new(store: &'static str) -> Self {
        let latency = Family::<Labels, Histogram>::new_with_constructor(milliseconds as fn() -> Histogram);
        let store_latency =
            Family::<Labels, Histogram>::new_with_constructor(milliseconds as fn() -> Histogram);
        let store_busy = Family::<Labels, Counter>::default();
        let answered: [Family<Labels, Counter>; 3] = Default::default();
        // Create all label values at the start, so that the first event already gives a rate.
        let verb = |which: usize, name| Verb {
            name,
            results: ["success", "fail", "busy"]
                .map(|result| (result, answered[which].get_or_create_owned(&[("result", result)]))),
            latency: latency.get_or_create_owned(&[("op", name)]),
            store_busy: store_busy.get_or_create_owned(&[("op", name)]),
        };
        let mut metrics = Metrics {
            verbs: [verb(0, "acquire"), verb(1, "renew"), verb(2, "release")],
            store: STORE_OPS.map(|op| (op, store_latency.get_or_create_owned(&[("op", op)]))),
            registry: Registry::default(),
            spans: Spans::default(),
            holds: Histogram::new(exponential_buckets(0.001, 2.0, 22)),
            handovers: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            held: Gauge::default(),
            queued: Gauge::default(),
            expired: Counter::<u64, AtomicU64>::default(),
            waiting: Gauge::default(),
            // Waits last from a millisecond to the longest poll.
            waits: Histogram::new(exponential_buckets(0.001, 2.0, 17)),
            refused: Counter::default(),
            reload_went_well: Gauge::default(),
            reloaded_at: Gauge::default(),
        };
        // The files read at start count as a reload.
        metrics.reloaded(true);
        let [acquires, renewals, releases] = answered;
        let r = &mut metrics.registry;
        r.register("lock_acquire", "Acquires that were answered, by result", acquires);
        r.register("lock_renew", "Renewals that were answered, by result", renewals);
        r.register("lock_release", "Releases that were answered, by result", releases);
        r.register("lock_op_latency_ms", "From request to answer, waiting included", latency);
        r.register(
            "lock_db_busy",
            "Calls that found the store busy, also those that were tried again",
            store_busy,
        );
        r.register("lock_store_latency_ms", "How long the store took for a call", store_latency);
        metrics.register(store);
        metrics
    }

    fn register(&mut self, store: &'static str) {
        let r = &mut self.registry;
        r.register("locks_held", "Live leases at the last sweep", self.held.clone());
        r.register("lock_expired", "Leases that expired, as far as the store tells", self.expired.clone());
        r.register("lock_queued", "Places in queues at the last sweep", self.queued.clone());
        r.register("lock_waiting_requests", "Requests that wait at this server", self.waiting.clone());
        r.register(
            "lock_wait_seconds",
            "How long requests waited that were granted their lease",
            self.waits.clone(),
        );
        r.register(
            "lock_requests_refused",
            "Requests refused for host, origin, token or rate",
            self.refused.clone(),
        );
        r.register(
            "lock_hold_seconds",
            "From grant to release, both through this server",
            self.holds.clone(),
        );
        r.register(
            "lock_handover_seconds",
            "From a release to the grant of the next waiter",
            self.handovers.clone(),
        );
        r.register(
            "leasehold_last_reload_successful",
            "Whether all files could be read the last time the server was told to read them again",
            self.reload_went_well.clone(),
        );
        r.register(
            "leasehold_last_reload_success_timestamp_seconds",
            "When all files could last be read",
            self.reloaded_at.clone(),
        );
        let build = Info::new([("version", env!("CARGO_PKG_VERSION")), ("store", store)]);
        r.register("leasehold_build", "What this server is", build);
    }

    pub(crate) fn operation(&self, operation: &Operation, took: Duration) {
        if operation.op == "refused" {
            self.refused.inc();
        }
        let Some(verb) = self.verbs.iter().find(|verb| verb.name == operation.op) else { return };
        if let Some((_, counter)) = verb.results.iter().find(|(known, _)| *known == operation.result) {
            counter.inc();
        }
        if operation.result == "busy" {
            verb.store_busy.inc();
        }
        verb.latency.observe(took.as_secs_f64() * 1e3);
    }

    /// The store was busy in a call that the request then repeats. Only this metric shows it; the client does not see
    /// it.
    pub(crate) fn found_busy(&self, op: &str) {
        if let Some(verb) = self.verbs.iter().find(|verb| verb.name == op) {
            verb.store_busy.inc();
        }
    }

    /// The files of tokens and certificates were read again; `well` if all of them could be read.
    pub(crate) fn reloaded(&self, well: bool) {
        self.reload_went_well.set(i64::from(well));
        if well {
            self.reloaded_at.set(reload::now());
        }
    }

    pub(crate) fn asked_store(&self, op: &'static str, took: Duration) {
        if let Some((_, latency)) = self.store.iter().find(|(known, _)| *known == op) {
            latency.observe(took.as_secs_f64() * 1e3);
        }
    }

    /// A lease was granted; `wait` is how long the request waited and when it arrived, if it was ready to wait.
    pub(crate) fn granted(&self, name: &Name, id: LeaseId, wait: Option<(Duration, Instant)>) {
        let handover = self.spans.granted(name, id);
        if let Some((waited, asked)) = wait {
            self.waits.observe(waited.as_secs_f64());
            // Before the request arrived, the lock lay idle.
            let handover = handover.filter(|handover| *handover <= asked.elapsed());
            handover.into_iter().for_each(|handover| self.handovers.observe(handover.as_secs_f64()));
        }
    }

    pub(crate) fn releasing(&self, name: &Name) {
        if self.waiting.get() > 0 {
            self.spans.releasing(name);
        }
    }

    pub(crate) fn released(&self, name: &Name, id: LeaseId, done: bool) {
        match if done { self.spans.released(id) } else { None } {
            Some(held) => self.holds.observe(held.as_secs_f64()),
            // Nothing was released, or perhaps only a place in the queue.
            None => self.spans.not_released(name),
        }
    }

    pub(crate) fn swept(&self, swept: &Swept) {
        self.expired.inc_by(swept.expired);
        self.held.set(i64::try_from(swept.held).unwrap_or(i64::MAX));
        self.queued.set(i64::try_from(swept.waiting).unwrap_or(i64::MAX));
    }

    /// Counts a waiting request for as long as the returned value lives.
    pub(crate) fn waiting(&self) -> Waits {
        self.waiting.inc();
        Waits(self.waiting.clone())
    }
}

/// A waiting request.
pub(crate) struct Waits(Gauge);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.dec();
    }
}

pub(crate) async fn route(State(app): State<Arc<App>>) -> Response<Body> {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = encode(&mut text, &app.metrics.registry);
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
