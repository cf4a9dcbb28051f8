//! Handles one acquire request: drives the library's wait loop, and gives back a lease or place that no client will
//! claim.
//!
//! A call to the store is never cut off half way. The loop checks for reasons to stop only between calls; when the
//! client disconnects, the work continues on its own ([`Detached`]) until its result is known. Every request is an
//! attempt with its own number (promise 9), so it never takes away a lease that the same client got meanwhile with the
//! same lease id. A request gives back only what it got itself, never a lease that existed before.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use leasehold::backend::{Attempt, Backend, Busy, Claim, Gone, Grant, Release};
use leasehold::engine::give_back::{self, Times};
use leasehold::engine::wait::{AtLimit, Driver, Ended, Limit, Terms, Wait};
use leasehold::{Cancel, Error, ErrorKind};

use crate::app::{App, in_time};
use crate::metrics::Waits;
use crate::problem::Refusal;
use crate::token::Share;
use crate::turns::{Left, Turn};

/// How long an answer waits for the give-back. A healthy store finishes sooner.
const PROMPT: Duration = Duration::from_millis(250);

/// A checked acquire request.
#[derive(Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) claim: Claim,
    /// The client made the lease id, so it can repeat the request with it.
    pub(crate) own_id: bool,
    /// The client numbers its attempts itself.
    pub(crate) numbered: bool,
    pub(crate) wait: Duration,
    /// How long the store keeps the queue place after an answer that grants nothing.
    pub(crate) keep: Option<Duration>,
}

/// How a request ends.
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted(Grant),
    Busy(Busy),
    /// The store will never grant this id.
    Gone(Gone),
    Failed(Error),
    /// The token no longer allows the request.
    Barred(Refusal),
    /// The server is shutting down.
    Draining,
    /// The client disconnected, so nobody reads this.
    Vanished,
}

/// The work of one request; it continues on its own when the client disconnects.
pub(crate) struct Detached {
    app: Arc<App>,
    work: Option<Pin<Box<dyn Future<Output = Outcome> + Send>>>,
    vanished: Cancel,
}

impl Detached {
    pub(crate) fn new(app: Arc<App>, request: AcquireRequest, share: Option<Share>) -> Self {
        let vanished = Cancel::new();
        let work = Acquisition::new(Arc::clone(&app), request, share, vanished.clone()).run();
        Detached { app, work: Some(Box::pin(work)), vanished }
    }
}

impl Future for Detached {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Some(work) = &mut self.work else { return Poll::Ready(Outcome::Vanished) };
        let outcome = work.as_mut().poll(cx);
        if outcome.is_ready() {
            self.work = None;
        }
        outcome
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.vanished.cancel();
            self.app.go_on_with(async { drop(work.await) });
        }
    }
}

/// The work on one acquire request.
struct Acquisition {
    app: Arc<App>,
    request: AcquireRequest,
    /// The request's share of its token's limits, if the server uses tokens.
    share: Option<Share>,
    vanished: Cancel,
    /// Requests with the same client-made id run one after the other.
    turn: Option<Turn>,
    /// Whatever the store holds under this id, this request put it there.
    ours: bool,
    /// A call of this request, or of the request before it, may have gone unanswered.
    unanswered: bool,
}

impl Acquisition {
    fn new(app: Arc<App>, request: AcquireRequest, share: Option<Share>, vanished: Cancel) -> Self {
        let follows = request.own_id && !request.numbered;
        let turn = follows.then(|| Turn::of(Arc::clone(&app), &request.claim));
        // A client that numbers its attempts may repeat one, and then finds what the first one left.
        let ours = !request.numbered;
        Acquisition { app, request, share, vanished, turn, ours, unanswered: false }
    }

    async fn run(mut self) -> Outcome {
        let mut outcome = self.acquire().await;
        if matches!(outcome, Outcome::Granted(_))
            && let Some(Err(refusal)) = self.share.as_ref().map(Share::check)
        {
            outcome = Outcome::Barred(refusal);
        }
        self.tidy(&outcome).await;
        outcome
    }

    async fn acquire(&mut self) -> Outcome {
        // With a client-made id, the first call only asks whether the id already has something; if so, it changes
        // nothing.
        let mut probing = self.turn.is_some();
        self.request.claim.first &= !probing;
        if let Some(turn) = &mut self.turn
            && let Some(left) = turn.comes().await
        {
            // Continue where the previous request with the same id stopped.
            let claim = &mut self.request.claim;
            (claim.nonce, claim.first) = (left.nonce, left.first);
            claim.repeat |= left.unanswered;
            (self.unanswered, self.ours, probing) = (left.unanswered, left.ours, !left.first);
        }
        if self.vanished.is_cancelled() {
            return Outcome::Vanished;
        }
        let terms = Terms {
            limit: Limit::from_max_wait(Some(self.request.wait)),
            max_attempts: None,
            call: self.app.call,
            poll: leasehold::PollPolicy::default(),
            at_limit: AtLimit::Attempt,
        };
        let (app, claim) = (Arc::clone(&self.app), self.request.claim.clone());
        let driver = ByClient {
            app: &app,
            vanished: &self.vanished,
            turn: self.turn.as_ref(),
            share: self.share.as_ref(),
            waits: !self.request.wait.is_zero(),
            waiting: None,
            answered_busy: false,
            placed: false,
        };
        let mut wait = Wait::new(&*app.backend, &*app.clock, claim, terms, driver);
        let ended = loop {
            match wait.run().await {
                Ended::Gone(..) if probing && !wait.driver.answered_busy => {
                    // The id has a lease or a place from an earlier request, or is spent; the next call tells which.
                    (probing, self.ours, wait.claim.first) = (false, false, true);
                }
                ended => break ended,
            }
        };
        // A place with our number is ours, and so is the lease it turns into.
        self.ours |= wait.driver.placed;
        self.unanswered = wait.unanswered || wait.claim.repeat;
        let started = wait.started;
        self.request.claim = wait.claim;
        match ended {
            Ended::Granted(mut grant, sent) => {
                self.ours |= is_new(&self.request.claim, &grant);
                self.share.iter().for_each(|share| share.granted(&grant));
                grant.waited += sent.since(started);
                Outcome::Granted(grant)
            }
            Ended::Busy(busy) => Outcome::Busy(busy),
            Ended::Gone(gone, _) => Outcome::Gone(gone),
            Ended::Failed(error) => Outcome::Failed(error),
            Ended::Stopped(outcome) => outcome,
        }
    }

    /// Gives back what no client will claim, or leaves it to the next request with the same id.
    async fn tidy(&mut self, outcome: &Outcome) {
        let vanished = self.vanished.is_cancelled();
        let barred = matches!(outcome, Outcome::Barred(_));
        if (self.request.numbered && !barred) || (matches!(outcome, Outcome::Granted(_)) && !vanished) {
            // The answer tells the client what it got; from here on only the client gives it back.
            self.turn = None;
            return;
        }
        let AcquireRequest { claim, own_id, keep, .. } = &self.request;
        if let Some(turn) = self.turn.take() {
            let left =
                Left { nonce: claim.nonce, first: claim.first, unanswered: self.unanswered, ours: self.ours };
            match turn.hand_over(left) {
                None => return,
                turn => self.turn = turn,
            }
        }
        let queued = claim.queue.is_some();
        let comes_back = *own_id && keep.is_some() && !vanished;
        // Never give back what existed before this request.
        let give_back = self.ours
            && match outcome {
                Outcome::Granted(_) | Outcome::Barred(_) | Outcome::Vanished => true,
                Outcome::Busy(_) => queued && !comes_back,
                Outcome::Draining => (queued || self.unanswered) && !comes_back,
                Outcome::Gone(_) => false,
                // A client that made the id repeats the call or gives it up. An id made by the server is unknown to
                // anyone else.
                Outcome::Failed(_) => !*own_id || vanished,
            };
        if !give_back {
            return;
        }
        let mut release = Release::new(claim.name.clone(), claim.id);
        release.nonce = Some(claim.nonce);
        // For an id that the server made, an attempt still in flight must never be granted.
        release.unanswered = (self.unanswered && !*own_id).then_some(claim.ttl);
        let work = give_back_to(Arc::clone(&self.app), release, self.turn.take(), self.share.take());
        if vanished {
            return work.await;
        }
        // Do not delay the answer for a store that does not respond.
        let task = self.app.go_on_with(work);
        if let Some(task) = task.filter(|_| !matches!(outcome, Outcome::Failed(_))) {
            in_time(PROMPT, task).await;
        }
    }
}

/// Whether this call created the lease, from a place that an earlier request held: then the lease has its full ttl
/// left. A lease that existed before has at least a microsecond less.
fn is_new(claim: &Claim, grant: &Grant) -> bool {
    let shown =
        grant.expires_at_ms.map(|end| Duration::from_millis(end.saturating_sub(grant.acquired_at_ms)));
    // Displayed times are rounded.
    let whole = shown.is_some_and(|shown| shown.abs_diff(claim.ttl) <= Duration::from_millis(1));
    grant.renewals == 0 && grant.left == Some(claim.ttl) && whole
}

/// Stops a wait when its client disconnects, a newer request takes its place, its token bars it, or the server drains.
struct ByClient<'a> {
    app: &'a App,
    vanished: &'a Cancel,
    turn: Option<&'a Turn>,
    share: Option<&'a Share>,
    waits: bool,
    /// Starts counting at the first answer that grants nothing.
    waiting: Option<Waits>,
    answered_busy: bool,
    /// The claim has a place in the queue.
    placed: bool,
}

impl Driver for ByClient<'_> {
    type Stop = Outcome;

    fn attempt<'a>(
        &'a self,
        backend: &'a dyn Backend,
        claim: &'a Claim,
    ) -> impl Future<Output = leasehold::Result<Attempt>> + Send + 'a {
        self.app.measured("acquire", backend.try_acquire(claim))
    }

    async fn stopped(&self) -> Outcome {
        let taken_over = async {
            match self.turn {
                Some(turn) => turn.is_wanted().await,
                None => std::future::pending().await,
            }
        };
        let barred = async {
            match self.share {
                Some(share) => share.barred().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.vanished.cancelled() => Outcome::Vanished,
            () = taken_over => Outcome::Gone(Gone::Superseded),
            refusal = barred => Outcome::Barred(refusal),
            () = self.app.draining.cancelled() => Outcome::Draining,
        }
    }

    fn busy(&mut self, busy: &Busy) {
        self.answered_busy = true;
        if busy.place.is_some() {
            self.placed = true;
            self.share.into_iter().for_each(Share::placed);
        }
        if self.waits && self.waiting.is_none() {
            self.waiting = Some(self.app.metrics.waiting());
        }
    }

    fn retried(&mut self, error: &Error) {
        // The last busy answer is counted together with the response.
        if error.kind() == ErrorKind::Overloaded {
            self.app.metrics.found_busy("acquire");
        }
    }
}

async fn give_back_to(app: Arc<App>, release: Release, mut turn: Option<Turn>, share: Option<Share>) {
    let mut sent = Instant::now();
    let times = Times { call: app.call, total: app.call * 2 };
    let call = || {
        sent = Instant::now();
        let (app, release, turn) = (&app, &release, turn.take());
        async move {
            let answer = app.ask("release", app.backend.release(release)).await;
            // An unanswered release may stay in flight for long and remove what carries our number. So the next
            // request takes a new number and does not wait for this one.
            drop(turn);
            answer
        }
    };
    let answer = tokio::select! {
        biased;
        answer = give_back::release(&release, false, times, &*app.clock, call) => answer,
        () = app.closing.cancelled() => return,
    };
    if let Ok(released) = answer {
        share.iter().for_each(|share| share.given_back(&release, sent, &released));
    }
}
