//! The only wait loop: one claim, from its first attempt until it is granted, refused, stopped or out of time.
//!
//! The client and the server drive it. Where they differ, the driver decides: what to do with a grant and with an id
//! that is gone ([`Wait::run`] may be called again after both), when to stop, and how to make sure at the limit
//! ([`AtLimit`]).

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use crate::backend::{Attempt, Backend, Busy, Claim, Gone, Grant, Info, Liveness, Query, Wake};
use crate::clock::{Clock, Moment};
use crate::engine::limits::{BELIEVED, FIRST_PAUSE, KEPT_LOOK, LAST_LOOK, LONGEST_PAUSE, PATIENCE};
use crate::error::{Error, ErrorKind, Result};
use crate::options::PollPolicy;

/// How long an acquire may take.
#[derive(Debug, Clone, Copy)]
pub enum Limit {
    /// One attempt only.
    Once,
    /// No attempt after this time, except the last one of [`AtLimit::Attempt`].
    Within(Duration),
    /// Until granted.
    Never,
}

impl Limit {
    /// `None` means no limit; zero means one attempt.
    pub fn from_max_wait(max_wait: Option<Duration>) -> Self {
        match max_wait {
            None => Limit::Never,
            Some(Duration::ZERO) => Limit::Once,
            Some(wait) => Limit::Within(wait),
        }
    }
}

/// What the loop does at the limit before it answers "busy".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtLimit {
    /// Cut an attempt off. If the last answer is old, ask the store for the holder, to show that the store works.
    Look,
    /// Make one more attempt, which also keeps the place in the queue. Attempts are never cut off at the limit.
    Attempt,
}

/// The terms of a wait.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// How long to wait.
    pub limit: Limit,
    /// How many attempts to make at most.
    pub max_attempts: Option<u32>,
    /// How long one call to the store may take.
    pub call: Duration,
    /// The pauses between polls, for a store that does not push.
    pub poll: PollPolicy,
    /// What to do at the limit.
    pub at_limit: AtLimit,
}

/// What drives the loop.
pub trait Driver: Send + Sync {
    /// Why it stops.
    type Stop: Send;

    /// Makes one attempt.
    fn attempt<'a>(
        &'a self,
        backend: &'a dyn Backend,
        claim: &'a Claim,
    ) -> impl Future<Output = Result<Attempt>> + Send + 'a {
        backend.try_acquire(claim)
    }

    /// Resolves when there is no reason to wait any more. Polled only between calls to the store, never during one.
    fn stopped(&self) -> impl Future<Output = Self::Stop> + Send;

    /// Called when another client holds the name.
    fn busy(&mut self, _busy: &Busy) {}

    /// Called when an attempt failed and will be repeated.
    fn retried(&mut self, _error: &Error) {}
}

/// How a wait ends.
#[derive(Debug)]
pub enum Ended<S> {
    /// Granted, by a call that was sent at this moment.
    Granted(Grant, Moment),
    /// Another client kept the name until the limit.
    Busy(Busy),
    /// The id will never be granted, according to the answer to a call that was sent at this moment.
    Gone(Gone, Moment),
    /// The store failed.
    Failed(Error),
    /// The driver stopped it.
    Stopped(S),
}

/// One claim that waits.
#[derive(Debug)]
pub struct Wait<'a, D: Driver> {
    backend: &'a dyn Backend,
    clock: &'a dyn Clock,
    info: Info,
    terms: Terms,
    /// The claim. The driver may change its id between two runs.
    pub claim: Claim,
    /// What drives it.
    pub driver: D,
    /// When it began.
    pub started: Moment,
    /// Attempts so far.
    pub attempts: u32,
    /// The store may have a lease or a place of this claim.
    pub pending: bool,
    /// An attempt has no answer yet and may still arrive, however late (promise 8).
    pub unanswered: bool,
    end: Moment,
    /// Polls and faults in a row, which set the pauses.
    polls: u32,
    faults: u32,
    /// Wake-ups in a row that came at once.
    early: u32,
    failing_since: Option<Moment>,
    last: Last,
    /// When the store last answered `Busy`.
    heard: Option<Moment>,
    next: Next,
}

/// The last thing the loop knows: at the limit it reports a fault as a fault, never as contention.
#[derive(Debug)]
enum Last {
    Nothing,
    Busy(Busy),
    Fault(Error),
}

/// What to do after a step of the loop.
#[derive(Debug)]
enum Next {
    Attempt,
    Wait(Moment),
}

type Step<S> = ControlFlow<Ended<S>, Next>;

impl<'a, D: Driver> Wait<'a, D> {
    /// Makes a wait for a claim, before anything is sent.
    pub fn new(
        backend: &'a dyn Backend,
        clock: &'a dyn Clock,
        claim: Claim,
        terms: Terms,
        driver: D,
    ) -> Self {
        let started = clock.now();
        Wait {
            backend,
            clock,
            info: backend.info(),
            terms,
            claim,
            driver,
            started,
            attempts: 0,
            pending: false,
            unanswered: false,
            end: match terms.limit {
                Limit::Within(wait) => started + wait,
                Limit::Once | Limit::Never => Moment::NEVER,
            },
            polls: 0,
            faults: 0,
            early: 0,
            failing_since: None,
            last: Last::Nothing,
            heard: None,
            next: Next::Attempt,
        }
    }

    /// Waits until there is an answer. Run again after [`Ended::Granted`] or [`Ended::Gone`], it repeats the claim.
    ///
    /// # Cancel safety
    /// If dropped, [`pending`](Wait::pending) and [`unanswered`](Wait::unanswered) say what may be left in the store.
    pub async fn run(&mut self) -> Ended<D::Stop> {
        loop {
            let step = match std::mem::replace(&mut self.next, Next::Attempt) {
                Next::Attempt => self.attempt().await,
                Next::Wait(until) => self.wait(until).await,
            };
            match step {
                Continue(next) => self.next = next,
                Break(ended) => return ended,
            }
        }
    }

    /// Whether no further attempt may be made.
    pub fn is_used_up(&self) -> bool {
        matches!(self.terms.limit, Limit::Once)
            || self.terms.max_attempts.is_some_and(|most| self.attempts >= most)
            || self.clock.now() >= self.end
    }

    /// Treats what the driver did not accept as a fault of a call that was sent at this moment: the next run begins
    /// with a pause.
    ///
    /// # Errors
    /// The same error, if no time or patience is left.
    pub fn fault(&mut self, sent: Moment, error: Error) -> Result<()> {
        self.claim.repeat |= self.unanswered;
        let now = self.clock.now();
        let since = *self.failing_since.get_or_insert(sent);
        if self.is_used_up() || now.since(since) >= PATIENCE {
            return Err(error);
        }
        self.driver.retried(&error);
        self.last = Last::Fault(error);
        let pause = PollPolicy::new(FIRST_PAUSE, LONGEST_PAUSE).delay(self.faults);
        self.faults = self.faults.saturating_add(1);
        self.next = Next::Wait(now + pause);
        Ok(())
    }

    async fn attempt(&mut self) -> Step<D::Stop> {
        self.attempts = self.attempts.saturating_add(1);
        let sent = self.clock.now();
        (self.pending, self.unanswered) = (true, true);
        let left = self.end.since(sent);
        let time = self.terms.call.min(match self.terms.at_limit {
            AtLimit::Look => left,
            // The first answer may take as long as it would without a wait.
            AtLimit::Attempt if self.heard.is_none() => Duration::MAX,
            AtLimit::Attempt => left.saturating_add(LAST_LOOK),
        });
        let call = self.driver.attempt(self.backend, &self.claim);
        let answer = match tokio::time::timeout(time, call).await {
            Ok(answer) => answer,
            Err(_) => {
                // The limit came first, and the last answer of the store was contention.
                let cut_off = self.terms.at_limit == AtLimit::Look && self.clock.now() >= self.end;
                if cut_off && matches!(self.last, Last::Busy(_)) {
                    return self.out_of_time().await;
                }
                Err(Error::new(ErrorKind::NetworkTimeout, "the store did not answer the attempt in time"))
            }
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.failed(sent, error),
        };
        (self.unanswered, self.claim.first) = (false, false);
        match answer {
            Attempt::Granted(grant) => Break(Ended::Granted(grant, sent)),
            Attempt::Gone(gone) => Break(Ended::Gone(gone, sent)),
            Attempt::Busy(busy) => self.blocked(busy),
        }
    }

    /// Handles a `Busy` answer.
    fn blocked(&mut self, busy: Busy) -> Step<D::Stop> {
        self.driver.busy(&busy);
        let now = self.clock.now();
        (self.heard, self.failing_since, self.faults) = (Some(now), None, 0);
        self.pending = self.claim.queue.is_some() || self.claim.repeat;
        if self.is_used_up() {
            return Break(Ended::Busy(busy));
        }
        let retry_in = busy.retry_in;
        self.last = Last::Busy(busy);
        if self.info.keeps_places && self.claim.queue.is_some() {
            return Continue(Next::Wait(now + KEPT_LOOK));
        }
        let pause = if self.info.push {
            retry_in.unwrap_or_else(|| self.terms.poll.delay(u32::MAX))
        } else {
            self.polls = self.polls.saturating_add(1);
            self.terms.poll.delay(self.polls - 1)
        };
        // A waiter keeps its place in the queue by coming back in time.
        let refresh = self.claim.queue.map_or(Duration::MAX, |ticket_ttl| ticket_ttl / 3);
        Continue(Next::Wait(now + pause.min(refresh)))
    }

    /// Handles a failed attempt or wait.
    fn failed(&mut self, sent: Moment, error: Error) -> Step<D::Stop> {
        if !error.is_retryable() {
            // The store refused before it did anything, unless it does not know itself.
            self.unanswered &= matches!(error.kind(), ErrorKind::Internal | ErrorKind::Aborted);
            self.pending = self.unanswered || self.claim.repeat || self.claim.queue.is_some();
            return Break(Ended::Failed(error));
        }
        match self.fault(sent, error) {
            Ok(()) => Continue(std::mem::replace(&mut self.next, Next::Attempt)),
            Err(error) => Break(Ended::Failed(error)),
        }
    }

    /// Waits for a wake-up or until the moment, whichever is first.
    async fn wait(&mut self, until: Moment) -> Step<D::Stop> {
        let sent = self.clock.now();
        let until = until.min(self.end);
        // After a fault nothing will wake the waiter.
        if !matches!(self.last, Last::Busy(_)) || !self.info.push {
            self.pause(until.since(sent)).await?;
            return self.woken().await;
        }
        // Only a release ends what the store goes on doing for a waiter: a session in its queue, a server's long poll.
        self.pending |= self.info.liveness == Liveness::Session || self.info.keeps_places;
        let wake = tokio::select! {
            biased;
            stop = self.driver.stopped() => return Break(Ended::Stopped(stop)),
            wake = self.backend.wait(&self.claim) => wake,
            () = tokio::time::sleep(until.since(sent)) => return self.woken().await,
        };
        let left = until.since(self.clock.now());
        match wake {
            Ok(Wake::Granted(grant)) => {
                self.attempts = self.attempts.saturating_add(1);
                return Break(Ended::Granted(grant, sent));
            }
            Ok(Wake::Retry) => {
                // A hint may be wrong. Hints that come at once, again and again, must not become a storm of attempts.
                let pauses = PollPolicy::default();
                let early = self.clock.now().since(sent) < pauses.min;
                self.early = if early { self.early.saturating_add(1) } else { 0 };
                if self.early > 1 {
                    self.pause(pauses.delay(self.early - 2).min(left)).await?;
                }
            }
            Err(error) if error.is_retryable() => {
                // No wake-up will come: poll instead.
                let pause = self.terms.poll.delay(self.polls);
                self.polls = self.polls.saturating_add(1);
                self.pause(pause.min(left)).await?;
            }
            Err(error) => return self.failed(sent, error),
        }
        self.woken().await
    }

    async fn pause(&self, time: Duration) -> ControlFlow<Ended<D::Stop>> {
        tokio::select! {
            biased;
            stop = self.driver.stopped() => Break(Ended::Stopped(stop)),
            () = tokio::time::sleep(time) => Continue(()),
        }
    }

    /// The wait is over; at the limit at most one last attempt is left.
    async fn woken(&mut self) -> Step<D::Stop> {
        if self.clock.now() < self.end {
            return Continue(Next::Attempt);
        }
        match self.terms.at_limit {
            AtLimit::Look => self.out_of_time().await,
            AtLimit::Attempt => Continue(Next::Attempt),
        }
    }

    /// Handles the limit. If the store's last answer was contention and is old, asks the store to show that it is
    /// still there.
    async fn out_of_time(&mut self) -> Step<D::Stop> {
        let busy = match std::mem::replace(&mut self.last, Last::Nothing) {
            Last::Busy(busy) => busy,
            Last::Fault(error) => return Break(Ended::Failed(error)),
            Last::Nothing => Busy::unknown(),
        };
        if self.clock.now().since(self.heard.unwrap_or(self.started)) < BELIEVED {
            return Break(Ended::Busy(busy));
        }
        let query = Query::Name(self.claim.name.clone());
        let look = self.backend.inspect(&query);
        Break(match tokio::time::timeout(LAST_LOOK.min(self.terms.call), look).await {
            Ok(Err(error)) if is_broken(error.kind()) => Ended::Failed(error),
            // Any answer shows that the store is there.
            Ok(_) => Ended::Busy(busy),
            Err(_) => Ended::Failed(Error::new(
                ErrorKind::NetworkTimeout,
                "the store stopped answering during the wait; whether the lock is still held is unknown",
            )),
        })
    }
}

/// Whether an error of this kind means that the store does not work. A refusal, or too many requests, is an answer.
pub(crate) fn is_broken(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Overloaded | ErrorKind::NetworkTimeout)
}
