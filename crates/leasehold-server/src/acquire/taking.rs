//! The wait loop of one request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::backend::{Attempt, Busy, Gone, Grant, Release, Wake};
use leasehold::{Cancel, Error, ErrorKind, Poll};

use super::Asked;
use super::turn::{Left, Turn};
use crate::app::{App, CALL, in_time};
use crate::problem::Refusal;
use crate::token::Share;

/// How long a wait puts up with a store that does not answer: as long as its place is kept.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long giving back is tried.
const GIVE_BACK: Duration = Duration::from_secs(10);

/// How long an answer waits for that: any store that is well has done it by then.
const PROMPT: Duration = Duration::from_millis(250);

/// How long after its end a wait still waits for the store's answer, as in the library's own wait loop.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// How a request ends.
#[derive(Debug)]
pub(super) enum Outcome {
    Granted(Grant),
    Busy(Busy),
    /// The id will never be granted.
    Gone(Gone),
    Failed(Error),
    /// Its token no longer allows it.
    Barred(Refusal),
    /// The server ends.
    Draining,
    /// The client has gone, so nobody reads this.
    Left,
}

/// One request on its way to a lease.
pub(super) struct Taking {
    app: Arc<App>,
    asked: Asked,
    /// Its part of what the token may use, where there is one.
    share: Option<Share>,
    /// The client has gone.
    gone: Cancel,
    started: Instant,
    /// Whatever the id has in the store, this request put it there.
    ours: bool,
    /// The first call only asks whether the id has something already: it changes nothing then.
    probing: bool,
    /// A call got no answer.
    unanswered: bool,
    faults: u32,
    failing_since: Option<Instant>,
    /// Wake-ups in a row that came at once.
    early: u32,
    /// Where the id is the client's, requests with it follow each other.
    turn: Option<Turn>,
}

impl Taking {
    pub(super) fn new(app: Arc<App>, asked: Asked, share: Option<Share>, gone: Cancel) -> Self {
        let probing = asked.own_id && !asked.numbered;
        let turn = probing.then(|| Turn::of(Arc::clone(&app), &asked.claim));
        // Who numbers its attempts may repeat one: what that finds was there before.
        let ours = !asked.numbered;
        let mut taking = Taking {
            app,
            asked,
            share,
            gone,
            started: Instant::now(),
            ours,
            probing,
            unanswered: false,
            faults: 0,
            failing_since: None,
            early: 0,
            turn,
        };
        if probing {
            taking.asked.claim.first = false;
        }
        taking
    }

    pub(super) async fn run(mut self) -> Outcome {
        let mut outcome = self.take().await;
        if matches!(outcome, Outcome::Granted(_))
            && let Some(Err(refusal)) = self.share.as_ref().map(Share::check)
        {
            outcome = Outcome::Barred(refusal);
        }
        self.tidy(&outcome).await;
        outcome
    }

    /// Goes on from where the request before it with the same id stopped.
    async fn follow(&mut self) {
        let Some(turn) = &mut self.turn else { return };
        let Some(left) = turn.comes().await else { return };
        let claim = &mut self.asked.claim;
        (claim.nonce, claim.first) = (left.nonce, left.first);
        claim.repeat |= left.unanswered;
        (self.unanswered, self.ours, self.probing) = (left.unanswered, left.ours, !left.first);
    }

    async fn take(&mut self) -> Outcome {
        self.follow().await;
        if self.gone.is_cancelled() {
            return Outcome::Left;
        }
        // Counted from the first answer that grants nothing.
        let mut _waiting = None;
        loop {
            let sent = Instant::now();
            // The first call has as long as it would have without a wait.
            let time = match _waiting {
                Some(_) => CALL.min(self.asked.wait.saturating_sub(self.started.elapsed()) + LAST_LOOK),
                None => CALL,
            };
            let call = self.app.backend.try_acquire(&self.asked.claim);
            let busy = match self.app.ask_for(time, "acquire", call).await {
                Ok(Attempt::Granted(grant)) => {
                    self.ours |= self.is_new(&grant);
                    (self.probing, self.asked.claim.first) = (false, false);
                    return self.granted(sent, grant);
                }
                Ok(Attempt::Gone(_)) if self.probing => {
                    // The id has a lease or a place from an earlier request, or is spent: the next call tells.
                    (self.probing, self.ours) = (false, false);
                    self.asked.claim.first = true;
                    continue;
                }
                Ok(Attempt::Gone(gone)) => return Outcome::Gone(gone),
                Ok(Attempt::Busy(busy)) => {
                    (self.probing, self.asked.claim.first) = (false, false);
                    (self.failing_since, self.faults) = (None, 0);
                    if busy.place.is_some() {
                        // A place with our number is ours, and so is whatever it becomes.
                        self.ours = true;
                        self.share.iter().for_each(Share::placed);
                    }
                    busy
                }
                // A newer library may answer what this server does not know.
                Ok(_) => {
                    return Outcome::Failed(Error::new(ErrorKind::Internal, "the store's answer is unknown"));
                }
                Err(error) => match self.failed(sent, error).await {
                    None => continue,
                    Some(outcome) => return outcome,
                },
            };
            let left = self.asked.wait.saturating_sub(self.started.elapsed());
            if left.is_zero() {
                return Outcome::Busy(busy);
            }
            _waiting = _waiting.or_else(|| Some(self.app.metrics.waiting()));
            if let Some(outcome) = self.wait(&busy, left).await {
                return outcome;
            }
        }
    }

    /// Whether this very call made the lease, from a place that an earlier request had: it has all of its time, and
    /// that is what was asked for. A lease that was there before has at least a microsecond less.
    fn is_new(&self, grant: &Grant) -> bool {
        let ttl = self.asked.claim.ttl;
        let shown =
            grant.expires_at_ms.map(|end| Duration::from_millis(end.saturating_sub(grant.acquired_at_ms)));
        // Shown times are rounded.
        let whole = shown.is_some_and(|shown| shown.abs_diff(ttl) <= Duration::from_millis(1));
        grant.renewals == 0 && grant.left == Some(ttl) && whole
    }

    /// A grant of a call sent at this moment.
    fn granted(&self, sent: Instant, mut grant: Grant) -> Outcome {
        self.share.iter().for_each(|share| share.granted(&grant));
        grant.waited += sent.duration_since(self.started);
        Outcome::Granted(grant)
    }

    /// The call failed: tried again while there is time to wait.
    async fn failed(&mut self, sent: Instant, error: Error) -> Option<Outcome> {
        self.unanswered |= !matches!(error.kind(), ErrorKind::Overloaded);
        let since = *self.failing_since.get_or_insert(sent);
        let end = self.started.elapsed() >= self.asked.wait || since.elapsed() >= PATIENCE;
        if !error.is_retryable() || end {
            return Some(Outcome::Failed(error));
        }
        if error.kind() == ErrorKind::Overloaded {
            // The last one is counted with the answer.
            self.app.metrics.found_busy("acquire");
        }
        self.asked.claim.repeat |= self.unanswered;
        let pause = Poll::new(Duration::from_millis(20), Duration::from_secs(1)).delay(self.faults);
        self.faults = self.faults.saturating_add(1);
        self.pause(pause).await
    }

    /// Waits for a wake-up, or until another look makes sense.
    async fn wait(&mut self, busy: &Busy, left: Duration) -> Option<Outcome> {
        let began = Instant::now();
        let poll = Poll::default();
        let look = if self.app.info.push { busy.retry_in.unwrap_or(poll.max) } else { poll.delay(u32::MAX) };
        // A place in the queue is kept by coming back in time, unless the store does that while we wait.
        let look = match self.asked.claim.queue {
            Some(_) if self.app.info.keeps_places => left,
            Some(ticket) => look.min(ticket / 3).min(left),
            None => look.min(left),
        };
        let wake = {
            let wait = self.app.backend.wait(&self.asked.claim);
            tokio::select! {
                biased;
                () = self.gone.cancelled() => return Some(Outcome::Left),
                () = taken_over(&self.turn) => return Some(Outcome::Gone(Gone::Superseded)),
                refusal = barred(&self.share) => return Some(Outcome::Barred(refusal)),
                () = self.app.draining.cancelled() => return Some(Outcome::Draining),
                wake = wait, if self.app.info.push => wake,
                () = tokio::time::sleep(look) => return None,
            }
        };
        match wake {
            Ok(Wake::Granted(grant)) => Some(self.granted(began, grant)),
            Ok(_) => {
                // A hint may be wrong. One that comes at once, again and again, must not become a storm.
                let early = began.elapsed() < poll.min;
                self.early = if early { self.early.saturating_add(1) } else { 0 };
                if self.early > 1 { self.pause(poll.delay(self.early - 2).min(left)).await } else { None }
            }
            Err(_) => self.pause(poll.max.min(left)).await,
        }
    }

    async fn pause(&self, pause: Duration) -> Option<Outcome> {
        tokio::select! {
            biased;
            () = self.gone.cancelled() => Some(Outcome::Left),
            () = taken_over(&self.turn) => Some(Outcome::Gone(Gone::Superseded)),
            refusal = barred(&self.share) => Some(Outcome::Barred(refusal)),
            () = self.app.draining.cancelled() => Some(Outcome::Draining),
            () = tokio::time::sleep(pause) => None,
        }
    }

    /// Gives back what nobody will come for, or leaves it to whoever came meanwhile.
    async fn tidy(&mut self, outcome: &Outcome) {
        let gone = self.gone.is_cancelled();
        let barred = matches!(outcome, Outcome::Barred(_));
        if (self.asked.numbered && !barred) || (matches!(outcome, Outcome::Granted(_)) && !gone) {
            // The client is told of what it got: from here on nobody but the client gives it back.
            self.turn = None;
            return;
        }
        let claim = &self.asked.claim;
        if let Some(turn) = self.turn.take() {
            let left =
                Left { nonce: claim.nonce, first: claim.first, unanswered: self.unanswered, ours: self.ours };
            match turn.hand_over(left) {
                None => return,
                turn => self.turn = turn,
            }
        }
        let queued = claim.queue.is_some();
        let comes_back = self.asked.own_id && self.asked.keep.is_some() && !gone;
        // What was there before is never given back.
        let give_back = self.ours
            && match outcome {
                Outcome::Granted(_) | Outcome::Barred(_) | Outcome::Left => true,
                Outcome::Busy(_) => queued && !comes_back,
                Outcome::Draining => (queued || self.unanswered) && !comes_back,
                Outcome::Gone(_) => false,
                // Who made the id repeats the call or gives it up; of an id we made, nobody else knows.
                Outcome::Failed(_) => !self.asked.own_id || gone,
            };
        if !give_back {
            return;
        }
        let mut release = Release::new(claim.name.clone(), claim.id);
        release.nonce = Some(claim.nonce);
        let failed = matches!(outcome, Outcome::Failed(_));
        // Of an id that the server made, an attempt that is still on its way must never be granted.
        release.unanswered = (self.unanswered && !self.asked.own_id).then_some(claim.ttl);
        let work = give_back_to(Arc::clone(&self.app), release, self.turn.take(), self.share.take());
        if gone {
            return work.await;
        }
        // The answer does not wait for a store that does not answer.
        let task = self.app.go_on_with(work);
        if let Some(task) = task.filter(|_| !failed) {
            in_time(PROMPT, task).await;
        }
    }
}

/// Resolves when a newer request with the same id has come.
async fn taken_over(turn: &Option<Turn>) {
    match turn {
        Some(turn) => turn.is_wanted().await,
        None => std::future::pending().await,
    }
}

/// Resolves when the request's token no longer allows it.
async fn barred(share: &Option<Share>) -> Refusal {
    match share {
        Some(share) => share.barred().await,
        None => std::future::pending().await,
    }
}

async fn give_back_to(app: Arc<App>, release: Release, mut turn: Option<Turn>, share: Option<Share>) {
    let pauses = Poll::new(Duration::from_millis(20), Duration::from_secs(1));
    let began = Instant::now();
    for tries in 0.. {
        let sent = Instant::now();
        let answer = app.ask("release", app.backend.release(&release)).await;
        // Without an answer this may be on its way for long, and take away what has our number: the next one
        // takes a number of its own, and does not wait.
        drop(turn.take());
        match answer {
            Err(error)
                if error.is_retryable() && began.elapsed() < GIVE_BACK && !app.closing.is_cancelled() =>
            {
                tokio::select! {
                    () = tokio::time::sleep(pauses.delay(tries)) => {}
                    () = app.closing.cancelled() => return,
                }
            }
            Err(_) => return,
            Ok(released) => {
                share.iter().for_each(|share| share.given_back(&release, sent, &released));
                return;
            }
        }
    }
}
