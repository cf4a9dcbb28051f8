//! Claims made through the lock server, by clients that vanish, use one id twice, and see a server end: the server's
//! own handlers, on the wire of their process.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use leasehold::backend::{Claim, Grant, Release};
use leasehold::clock::{Clock as _, Moment};
use leasehold::{Fence, LeaseId, Locks, wire};
use leasehold_server::{App, Settings};
use parking_lot::Mutex;
use tower::ServiceExt as _;

use super::bare::Held;
use super::count::Count;
use super::worker::{Claiming, cut_short};
use crate::history::record::{Kind, Record, hash};

/// The server for the clients of a process; when it ends, another takes its place.
#[derive(Debug)]
pub(crate) struct Server {
    locks: Locks,
    app: Mutex<Arc<App>>,
}

/// What an acquire asks for, besides its claim.
#[derive(Clone, Copy)]
struct Ask {
    /// The client's own id, if it makes one.
    id: Option<LeaseId>,
    wait: Duration,
    /// An earlier call may have been granted.
    repeat: bool,
}

/// How the server answered.
enum Answer {
    Granted(Box<wire::Acquired>),
    Busy,
    /// The server will never grant this id.
    Gone,
    /// The outcome is unknown.
    Failed,
}

impl Server {
    /// `None` if leases end with a session: a server cannot hold them for its clients.
    pub(crate) fn new(locks: &Locks) -> Option<Self> {
        let app = App::new(locks.clone(), Settings::default()).ok()?;
        Some(Server { locks: locks.clone(), app: Mutex::new(app) })
    }

    /// Ends the server, and starts another.
    pub(crate) fn restart(&self) {
        if let Ok(next) = App::new(self.locks.clone(), Settings::default()) {
            let old = std::mem::replace(&mut *self.app.lock(), next);
            tokio::spawn(async move { old.drain(std::future::ready(())).await });
        }
    }

    async fn acquire(&self, name: &str, body: serde_json::Value) -> Answer {
        let app = Arc::clone(&self.app.lock());
        let request = Request::post(format!("/v1/locks/{name}/acquire"))
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()));
        let Ok(request) = request else { return Answer::Failed };
        let Ok(response) = leasehold_server::app(app).oneshot(request).await;
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap_or_default();
        match (status, serde_json::from_slice(&body)) {
            (StatusCode::OK, Ok(acquired)) => Answer::Granted(Box::new(acquired)),
            (StatusCode::CONFLICT, _) if !is_overload(&body) => Answer::Busy,
            (StatusCode::GONE, _) => Answer::Gone,
            _ => Answer::Failed,
        }
    }
}

/// The store was too busy to answer, which says nothing about the lock.
fn is_overload(body: &[u8]) -> bool {
    serde_json::from_slice::<wire::Busy>(body).is_ok_and(|busy| busy.reason == "BUSY_RETRY")
}

impl Claiming {
    /// One lease of a client of the server, from a claim to its release.
    pub(crate) async fn served(&self, server: &Server) {
        let world = self.world();
        let (own_id, wait, cut, again, ends) = {
            let mut chance = world.chance();
            let wait =
                if chance.per_mille(250) { Duration::ZERO } else { chance.part(world.plan.ttl, 20, 1500) };
            let within = (wait.as_millis() as u64).max(20);
            let cancel = chance.per_mille(world.plan.cancels);
            let cut = cancel.then(|| chance.millis(0, within));
            let again = chance.per_mille(300).then(|| (chance.millis(0, within), chance.per_mille(500)));
            (chance.per_mille(600), wait, cut, again, chance.per_mille(100))
        };
        if ends {
            world.count(Count::ServerEnded);
            server.restart();
        }
        let ttl = Duration::from_millis(self.ttl.as_millis() as u64);
        let id = own_id.then(LeaseId::random);
        let lease = id.map_or(0, |id| hash(id.expose().as_bytes()));
        let (value, deadline) = (wait.as_nanos() as u64, ttl.as_nanos() as u64);
        world.write(Record { lease, value, deadline, ..self.record(Kind::AcquireCall) });
        let ask = Ask { id, wait, repeat: false };
        let answer = cut_short(self.ask(server, ask, again), cut).await;
        match answer {
            Some((sent, Answer::Granted(acquired))) => {
                world.count(Count::Served);
                let Some(held) = self.granted(sent, &acquired) else { return };
                self.worker.process.holds.fetch_add(1, Ordering::Relaxed);
                self.keep(&held).await;
                self.let_go(&held).await;
                self.worker.process.holds.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            Some((_, Answer::Busy)) => world.write(Record { lease, ..self.record(Kind::Busy) }),
            Some((_, Answer::Gone | Answer::Failed)) => {
                world.write(Record { lease, ..self.record(Kind::AcquireFailed) });
            }
            None => {
                world.count(Count::Vanished);
                world.write(Record { lease, ..self.record(Kind::AcquireDropped) });
                // The server gives back what a vanished client left behind.
                return;
            }
        }
        // A client that made the id gives up its place, or what may have been granted unseen.
        if let (Some(id), Ok(name)) = (id, self.worker.locks.name(self.name())) {
            let mut release = Release::new(name, id);
            release.unanswered = Some(ttl);
            let _ = self.timely(self.worker.locks.backend().release(&release)).await;
        }
    }

    /// Sends an acquire; perhaps a second time with the same id while the first call is running, as a client does that
    /// lost its connection or sends everything twice. Returns when the answered call was sent.
    async fn ask(&self, server: &Server, ask: Ask, again: Option<(Duration, bool)>) -> (Moment, Answer) {
        let first = self.acquire_at(server, ask);
        let Some((pause, vanishes)) = again.filter(|_| ask.id.is_some()) else { return first.await };
        let mut first = Box::pin(first);
        if let Ok(answer) = tokio::time::timeout(pause, first.as_mut()).await {
            return answer;
        }
        self.world().count(Count::IdTwice);
        let second = self.acquire_at(server, Ask { repeat: true, ..ask });
        if vanishes {
            drop(first);
            return second.await;
        }
        let mut second = pin!(second);
        tokio::select! {
            biased;
            // The older call is answered that it was taken over, unless it had the lease before.
            answer = first.as_mut() => match answer.1 {
                Answer::Granted(_) => answer,
                _ => second.await,
            },
            answer = second.as_mut() => match answer.1 {
                Answer::Granted(_) => answer,
                _ => match first.await {
                    (sent, Answer::Granted(acquired)) => (sent, Answer::Granted(acquired)),
                    _ => answer,
                },
            },
        }
    }

    async fn acquire_at(&self, server: &Server, ask: Ask) -> (Moment, Answer) {
        let (mode, limit) = wire::mode_fields(self.mode());
        let body = serde_json::json!({
            "owner_id": "served",
            "ttl_ms": wire::floor_ms(self.ttl),
            "mode": mode,
            "limit": limit,
            "wait_ms": wire::floor_ms(ask.wait),
            "lease_id": ask.id.map(|id| id.expose().to_owned()),
            "repeat": ask.repeat,
        });
        let sent = self.worker.process.clock.now();
        (sent, server.acquire(self.name(), body).await)
    }

    /// Records the grant. Its time was measured no earlier than when the server had waited.
    fn granted(&self, sent: Moment, acquired: &wire::Acquired) -> Option<Held> {
        let mut claim =
            Claim::new(self.worker.locks.name(self.name()).ok()?, self.mode(), self.ttl, "served");
        claim.id = wire::lease_id(&acquired.lease_id).ok()?;
        let left = Duration::from_millis(acquired.expires_in_ms);
        let mut grant = Grant::new(Fence::new(acquired.fencing_token), claim.mode, Some(left));
        grant.waited = Duration::from_millis(acquired.waited_ms);
        let record = self.record(Kind::Granted);
        let deadline = self.deadline(sent, &grant, record.at);
        let (lease, fence) = (hash(claim.id.expose().as_bytes()), grant.fence.get());
        self.world().write(Record { lease, fence, deadline, ..record });
        Some(Held { claim, fence })
    }
}
