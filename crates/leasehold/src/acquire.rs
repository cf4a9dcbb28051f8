//! The only wait loop: one claim, from the first attempt to a grant, a limit, or a cancel.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;

use crate::backend::{Attempt, Claim, Grant, Liveness, Mode, Query, Release, Wake};
use crate::cancel::Cancel;
use crate::cell;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::lease_id::LeaseId;
use crate::locks::Client;
use crate::name::Name;
use crate::options::{Options, Poll, ReleaseSource};
use crate::renew::ReleaseJob;
use crate::telemetry::Acquiring;

/// How long a place in a queue is kept without a sign of life. Refreshed at a third of it, so two
/// refreshes may fail; long enough for an ordinary hiccup, short enough that a dead waiter at the
/// front does not hold up the rest for long.
pub(crate) const TICKET_TTL: Duration = Duration::from_secs(10);

/// How often a waiter looks by itself where the store looks after those who wait: never needed, and so rarely
/// that it costs nothing.
const KEPT_LOOK: Duration = Duration::from_secs(60);

/// How long a waiting acquire puts up with a store that does not answer: as long as its place is kept.
const PATIENCE: Duration = TICKET_TTL;

/// For how long it is believed at the limit that somebody else is in the way: a store that has said so within the last
/// second works. One that has said nothing since may have fallen silent, and that is no contention.
const BELIEVED: Duration = Duration::from_secs(1);

/// How long such a store may then take to say anything: as much time as a lost packet costs, and not so much that it
/// would no longer be the limit that was asked for.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// How faults are spaced out.
const FAULT_PAUSE: Duration = Duration::from_millis(20);

/// How long an acquire may take.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Limit {
    /// One attempt.
    Once,
    /// No attempt after this.
    Within(Duration),
    /// Until granted.
    Never,
}

impl Limit {
    /// No limit is for ever, zero is one attempt.
    pub(crate) fn from_max_wait(max_wait: Option<Duration>) -> Self {
        match max_wait {
            None => Limit::Never,
            Some(Duration::ZERO) => Limit::Once,
            Some(wait) => Limit::Within(wait),
        }
    }
}

/// What is asked for.
pub(crate) struct Request<'a> {
    pub(crate) client: &'a Arc<Client>,
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    pub(crate) options: &'a Arc<Options>,
    pub(crate) limit: Limit,
    /// For a guard, which needs a margin before the lease ends; a plain lease only has to be there.
    pub(crate) guarded: bool,
}

/// A lease, and what its guard has to know.
#[derive(Debug)]
pub(crate) struct Acquired {
    pub(crate) claim: Claim,
    pub(crate) grant: Grant,
    pub(crate) sent: Moment,
    pub(crate) waited: Duration,
    pub(crate) attempts: u32,
}

/// How an acquire ended, if not by a fault.
#[derive(Debug)]
pub(crate) enum Outcome<T = Box<Acquired>> {
    Acquired(T),
    /// Not within the limit.
    Busy {
        waited: Duration,
    },
}

/// Takes back what a claim may have got, unless told that there is nothing: also when the acquire
/// is dropped at any await. It exists before the first byte is sent.
struct GiveBack<'a> {
    client: &'a Arc<Client>,
    options: &'a Options,
    claim: Claim,
    /// The store may have a lease or a place of this claim.
    pending: bool,
    /// An attempt has no answer yet: it may still arrive, however late (promise 8).
    unanswered: bool,
}

impl GiveBack<'_> {
    /// Gives back now, and starts over with a new id.
    fn renew_claim(&mut self) {
        self.give_back();
        self.claim.id = LeaseId::random();
        (self.claim.first, self.claim.repeat) = (true, false);
    }

    fn give_back(&mut self) {
        if std::mem::take(&mut self.pending) {
            let mut release = Release::new(self.claim.name.clone(), self.claim.id);
            // A repeat may have its answer while what it repeated is still on its way.
            let open = self.unanswered || self.claim.repeat;
            release.unanswered = open.then_some(self.claim.ttl);
            self.client.renewer.send_release(ReleaseJob::new(release, self.options, ReleaseSource::GiveBack));
        }
        self.unanswered = false;
    }
}

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Runs the loop. Options and name have been checked. `accept` makes of a grant what the caller gets.
///
/// # Cancel safety
/// Dropped at any point, it leaves no lease, no place in a queue and no task.
pub(crate) async fn acquire<T>(
    request: Request<'_>,
    accept: impl FnOnce(Acquired) -> T,
) -> Result<Outcome<T>> {
    // Dropped last, after everything was given back: `close` waits for that.
    let _acquiring = request.client.renewer.acquiring();
    // A store that always answers at once must not let one task keep its runtime to itself.
    tokio::task::coop::consume_budget().await;
    let started = request.client.clock.now();
    let name = request.name.clone();
    let acquiring = Acquiring::new(&request, &name, started);
    let run = async {
        Ok(match Loop::new(request, started).run().await? {
            // The guard comes before any line of a log: from then on the lease is renewed, however long that takes.
            Outcome::Acquired(acquired) => {
                let granted = (acquired.grant.fence, acquired.attempts);
                (Some(granted), Outcome::Acquired(accept(*acquired)))
            }
            Outcome::Busy { waited } => (None, Outcome::Busy { waited }),
        })
    };
    let ended = run.instrument(acquiring.span.clone()).await;
    let ended = ended.map_err(|error: Error| error.with_name(name.clone()));
    acquiring.end(ended.as_ref().map(|(granted, _)| *granted));
    ended.map(|(_, outcome)| outcome)
}

struct Loop<'a> {
    client: &'a Arc<Client>,
    options: &'a Options,
    limit: Limit,
    started: Moment,
    end: Moment,
    back: GiveBack<'a>,
    min_validity: Duration,
    guarded: bool,
    poll: Poll,
    attempts: u32,
    /// Polls and faults in a row, for their pauses.
    polls: u32,
    faults: u32,
    /// Wake-ups in a row that came as soon as they were waited for.
    early: u32,
    failing_since: Option<Moment>,
    last: Last,
    /// When the store last said that somebody else is in the way.
    heard: Moment,
    /// A grant that came too late was already measured again.
    measured_again: bool,
}

/// The last thing that is known: at the limit, a fault is reported as a fault and never as contention.
enum Last {
    Nothing,
    Busy,
    Fault(Error),
}

/// What to do after a step of the loop.
enum Next {
    Attempt,
    Wait(Moment),
    Done(Outcome),
}

impl<'a> Loop<'a> {
    fn new(request: Request<'a>, started: Moment) -> Self {
        let Request { client, name, mode, options, limit, guarded } = request;
        let info = &client.info;
        let ttl = options.max_hold.map_or(options.ttl, |hold| options.ttl.min(hold));
        let mut claim = Claim::new(name, mode, ttl, Arc::clone(&options.owner));
        claim.metadata.clone_from(&options.metadata);
        if info.fifo && !matches!(limit, Limit::Once) {
            claim.queue = Some(TICKET_TTL);
        }
        let percent = options.min_validity_percent.unwrap_or(info.min_validity_percent);
        Loop {
            client,
            options,
            limit,
            started,
            end: match limit {
                Limit::Within(wait) => started + wait,
                Limit::Once | Limit::Never => Moment::NEVER,
            },
            back: GiveBack { client, options, claim, pending: false, unanswered: false },
            min_validity: ttl / 100 * u32::from(percent),
            guarded,
            poll: options.poll.unwrap_or_default(),
            attempts: 0,
            polls: 0,
            faults: 0,
            early: 0,
            failing_since: None,
            last: Last::Nothing,
            heard: started,
            measured_again: false,
        }
    }

    async fn run(mut self) -> Result<Outcome> {
        let cancel = self.options.cancel.clone();
        let client = self.client;
        if client.closed.is_cancelled() {
            return Err(client.closed_error());
        }
        if cancel.as_ref().is_some_and(Cancel::is_cancelled) {
            return Err(Error::new(ErrorKind::Aborted, "the acquire was cancelled before anything was sent"));
        }
        // One place for both ways to be told to stop: whatever is dropped here cleans up after itself.
        tokio::select! {
            biased;
            outcome = self.go() => outcome,
            () = cancelled(cancel.as_ref()) => Err(Error::new(ErrorKind::Aborted, "the acquire was cancelled")),
            () = client.closed.cancelled() => Err(client.closed_error()),
        }
    }

    async fn go(&mut self) -> Result<Outcome> {
        let mut next = Next::Attempt;
        loop {
            next = match next {
                Next::Attempt => self.attempt().await?,
                Next::Wait(until) => self.wait(until).await?,
                Next::Done(outcome) => return Ok(outcome),
            };
        }
    }

    async fn attempt(&mut self) -> Result<Next> {
        self.attempts = self.attempts.saturating_add(1);
        let sent = self.client.clock.now();
        self.back.pending = true;
        self.back.unanswered = true;
        let time = self.options.request_timeout.min(self.end.since(sent));
        let call = self.client.backend.try_acquire(&self.back.claim);
        let answer = match tokio::time::timeout(time, call).await {
            Ok(answer) => answer,
            // The limit came first, and the last word of the store was contention.
            Err(_) if matches!(self.last, Last::Busy) && self.client.clock.now() >= self.end => {
                return self.out_of_time().await;
            }
            Err(_) => {
                Err(Error::new(ErrorKind::NetworkTimeout, "the store did not answer the attempt in time"))
            }
        };
        match answer {
            Ok(answer) => {
                self.back.unanswered = false;
                self.back.claim.first = false;
                match answer {
                    Attempt::Granted(grant) => self.granted(sent, grant),
                    Attempt::Busy(busy) => {
                        (self.last, self.heard) = (Last::Busy, self.client.clock.now());
                        self.failing_since = None;
                        self.faults = 0;
                        self.back.pending = self.back.claim.queue.is_some() || self.back.claim.repeat;
                        Ok(self.blocked(busy.retry_in))
                    }
                    Attempt::Gone(_) => {
                        // A repeat came after the lease that its first call had got was over.
                        self.back.pending = false;
                        self.back.renew_claim();
                        self.failed(
                            sent,
                            Error::new(ErrorKind::Overloaded, "the id of this claim is spent; try again"),
                        )
                    }
                }
            }
            Err(error) => self.failed(sent, error),
        }
    }

    /// Accepts a grant, measures it again, or gives it back.
    fn granted(&mut self, sent: Moment, grant: Grant) -> Result<Next> {
        let now = self.client.clock.now();
        let end = match grant.left {
            Some(left) if !self.guarded => Some(sent + grant.waited.saturating_add(left)),
            _ => cell::deadline(sent, &grant, self.back.claim.ttl),
        };
        let valid = end.is_none_or(|end| now < end && end.since(now) >= self.min_validity);
        if valid {
            self.back.pending = false;
            return Ok(Next::Done(Outcome::Acquired(Box::new(Acquired {
                claim: self.back.claim.clone(),
                grant,
                sent,
                waited: now.since(self.started),
                attempts: self.attempts,
            }))));
        }
        let single = matches!(self.limit, Limit::Once) || self.used_up();
        if !single && now < self.end && !std::mem::replace(&mut self.measured_again, true) {
            return Ok(Next::Attempt);
        }
        self.measured_again = false;
        self.back.renew_claim();
        let late = Error::new(
            ErrorKind::NetworkTimeout,
            "the store granted the lease, but too little of its ttl was left when the answer came",
        );
        if single || now >= self.end { Err(late) } else { self.failed(now, late) }
    }

    /// Somebody else is in the way.
    fn blocked(&mut self, retry_in: Option<Duration>) -> Next {
        let now = self.client.clock.now();
        if matches!(self.limit, Limit::Once) || self.used_up() || now >= self.end {
            return self.busy();
        }
        if self.client.info.keeps_places && self.back.claim.queue.is_some() {
            return Next::Wait(now + KEPT_LOOK);
        }
        let pause = if self.client.info.push {
            retry_in.unwrap_or_else(|| self.poll.delay(u32::MAX))
        } else {
            self.polls = self.polls.saturating_add(1);
            self.poll.delay(self.polls - 1)
        };
        // A place in the queue is kept by coming back in time.
        let refresh = self.back.claim.queue.map_or(Duration::MAX, |ticket_ttl| ticket_ttl / 3);
        Next::Wait(now + pause.min(refresh))
    }

    /// The attempt, or the wait, failed.
    fn failed(&mut self, sent: Moment, error: Error) -> Result<Next> {
        if !error.is_retryable() {
            // Refused before anything was done, unless the store does not know itself.
            self.back.unanswered &= matches!(error.kind(), ErrorKind::Internal | ErrorKind::Aborted);
            let GiveBack { claim, unanswered, .. } = &self.back;
            self.back.pending = *unanswered || claim.repeat || claim.queue.is_some();
            return Err(error);
        }
        self.back.claim.repeat |= self.back.unanswered;
        let now = self.client.clock.now();
        let since = *self.failing_since.get_or_insert(sent);
        let give_up = matches!(self.limit, Limit::Once)
            || self.used_up()
            || now >= self.end
            || now.since(since) >= PATIENCE;
        if give_up {
            return Err(error);
        }
        self.last = Last::Fault(error);
        let pause = Poll::new(FAULT_PAUSE, Duration::from_secs(1)).delay(self.faults);
        self.faults = self.faults.saturating_add(1);
        Ok(Next::Wait(now + pause))
    }

    /// Waits for a wake-up or the moment, whichever is first.
    async fn wait(&mut self, until: Moment) -> Result<Next> {
        let sent = self.client.clock.now();
        let mut sleep = std::pin::pin!(tokio::time::sleep(until.min(self.end).since(sent)));
        // After a fault there is nothing to be woken by.
        if !matches!(self.last, Last::Busy) || !self.client.info.push {
            sleep.await;
            return self.woken().await;
        }
        // A session leaves the store's queue in the background; the answer to a release says that it has.
        self.back.pending |= self.client.info.liveness == Liveness::Session;
        let wake = tokio::select! {
            biased;
            wake = self.client.backend.wait(&self.back.claim) => wake,
            () = sleep.as_mut() => return self.woken().await,
        };
        match wake {
            Ok(Wake::Granted(grant)) => {
                self.attempts = self.attempts.saturating_add(1);
                self.granted(sent, grant)
            }
            Ok(Wake::Retry) => {
                // A hint may be wrong. One that comes at once, again and again, must not become a storm.
                let pauses = Poll::default();
                let early = self.client.clock.now().since(sent) < pauses.min;
                self.early = if early { self.early.saturating_add(1) } else { 0 };
                if self.early > 1 {
                    let _ = tokio::time::timeout(pauses.delay(self.early - 2), sleep).await;
                }
                self.woken().await
            }
            Err(error) if error.is_retryable() => {
                // Nothing will be pushed: poll until it is.
                let pause = self.poll.delay(self.polls);
                self.polls = self.polls.saturating_add(1);
                let _ = tokio::time::timeout(pause, sleep).await;
                self.woken().await
            }
            Err(error) => self.failed(sent, error),
        }
    }

    /// No attempt is made after the limit.
    async fn woken(&mut self) -> Result<Next> {
        if self.client.clock.now() < self.end {
            return Ok(Next::Attempt);
        }
        match std::mem::replace(&mut self.last, Last::Nothing) {
            Last::Fault(error) => Err(error),
            Last::Busy | Last::Nothing => self.out_of_time().await,
        }
    }

    /// The limit has come, and the last word of the store was contention. Nobody waits for that word: if it is old, the
    /// store has to show that it is still there.
    async fn out_of_time(&mut self) -> Result<Next> {
        if self.client.clock.now().since(self.heard) < BELIEVED {
            return Ok(self.busy());
        }
        let query = Query::Name(self.back.claim.name.clone());
        let look = self.client.backend.inspect(&query);
        match tokio::time::timeout(LAST_LOOK.min(self.options.request_timeout), look).await {
            Ok(Err(error)) if is_broken(error.kind()) => Err(error),
            // Whatever it says, it is there.
            Ok(_) => Ok(self.busy()),
            Err(_) => Err(Error::new(
                ErrorKind::NetworkTimeout,
                "the store has fallen silent while its lock was waited for; whether that is still held is unknown",
            )),
        }
    }

    fn used_up(&self) -> bool {
        self.options.max_attempts.is_some_and(|most| self.attempts >= most)
    }

    fn busy(&self) -> Next {
        Next::Done(Outcome::Busy { waited: self.client.clock.now().since(self.started) })
    }
}

/// Whether a store that says so does not work; to be refused, or asked too often, is an answer.
fn is_broken(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Overloaded | ErrorKind::NetworkTimeout)
}

async fn cancelled(cancel: Option<&Cancel>) {
    match cancel {
        Some(cancel) => cancel.cancelled().await,
        None => std::future::pending().await,
    }
}
