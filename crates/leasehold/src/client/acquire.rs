//! One acquire of the client: drives the wait loop, judges grants by the client's clock, and gives back what it does
//! not keep, even when it is dropped.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;

use crate::backend::{Claim, Grant, Mode, Release};
use crate::cancel::Cancel;
use crate::client::home::Client;
use crate::clock::Moment;
use crate::engine::held;
use crate::engine::limits::TICKET_TTL;
use crate::engine::renew::ReleaseJob;
use crate::engine::telemetry::Acquiring;
use crate::engine::wait::{AtLimit, Driver, Ended, Limit, Terms, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::options::{Options, ReleaseSource};

/// What the caller asks for.
pub(crate) struct Request<'a> {
    pub(crate) client: &'a Arc<Client>,
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    pub(crate) options: &'a Arc<Options>,
    pub(crate) limit: Limit,
    /// The lease is for a guard, which needs a margin before the lease ends; a plain lease only has to exist.
    pub(crate) guarded: bool,
}

/// A lease, and what its guard needs to know.
#[derive(Debug)]
pub(crate) struct Acquired {
    pub(crate) claim: Claim,
    pub(crate) grant: Grant,
    pub(crate) sent: Moment,
    pub(crate) waited: Duration,
    pub(crate) attempts: u32,
}

/// How an acquire ended, unless with an error.
#[derive(Debug)]
pub(crate) enum Outcome<T = Box<Acquired>> {
    Acquired(T),
    /// Another client kept the name until the limit.
    Busy {
        waited: Duration,
    },
}

/// Waits for a lease. The caller has checked the options and the name. `accept` turns a grant into what the caller
/// gets.
///
/// # Cancel safety
/// Dropped at any point, it leaves no lease, no place in a queue and no task.
pub(crate) async fn acquire<T>(
    request: Request<'_>,
    accept: impl FnOnce(Acquired) -> T,
) -> Result<Outcome<T>> {
    // Dropped last, after everything was given back, because `close` waits for it.
    let _acquiring = request.client.renewer.acquiring();
    // Yields now and then, so that a store which always answers at once does not let one task monopolise its runtime.
    tokio::task::coop::consume_budget().await;
    let name = request.name.clone();
    let acquiring = Acquiring::new(&request, &name, request.client.clock.now());
    let run = async {
        Ok(match Acquire::new(request).run().await? {
            // Make the guard before any log line: from then on the lease is renewed, however long the log takes.
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

/// Drives the wait loop for the client, which stops a wait by dropping it.
#[derive(Debug)]
struct ByDropping;

impl Driver for ByDropping {
    type Stop = Infallible;

    async fn stopped(&self) -> Infallible {
        std::future::pending().await
    }
}

/// One acquire. It exists before the first byte is sent. Dropped at any await, it gives back what its claim may have
/// got.
struct Acquire<'a> {
    client: &'a Arc<Client>,
    options: &'a Options,
    wait: Wait<'a, ByDropping>,
    min_validity: Duration,
    guarded: bool,
    /// A grant that came too late has already been measured again.
    measured_again: bool,
}

impl<'a> Acquire<'a> {
    fn new(request: Request<'a>) -> Self {
        let Request { client, name, mode, options, limit, guarded } = request;
        let info = &client.info;
        let ttl = options.max_hold.map_or(options.ttl, |hold| options.ttl.min(hold));
        let mut claim = Claim::new(name, mode, ttl, Arc::clone(&options.owner));
        claim.metadata.clone_from(&options.metadata);
        if info.fifo && !matches!(limit, Limit::Once) {
            claim.queue = Some(TICKET_TTL);
        }
        let terms = Terms {
            limit,
            max_attempts: options.max_attempts,
            call: options.request_timeout,
            poll: options.poll.unwrap_or_default(),
            at_limit: AtLimit::Look,
        };
        let percent = options.min_validity_percent.unwrap_or(info.min_validity_percent);
        Acquire {
            client,
            options,
            wait: Wait::new(&*client.backend, &*client.clock, claim, terms, ByDropping),
            min_validity: ttl / 100 * u32::from(percent),
            guarded,
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
        // The one place for both ways to stop: whatever is dropped here cleans up after itself.
        tokio::select! {
            biased;
            outcome = self.go() => outcome,
            () = cancelled(cancel.as_ref()) => Err(Error::new(ErrorKind::Aborted, "the acquire was cancelled")),
            () = client.closed.cancelled() => Err(client.closed_error()),
        }
    }

    async fn go(&mut self) -> Result<Outcome> {
        loop {
            match self.wait.run().await {
                Ended::Granted(grant, sent) => {
                    if let Some(acquired) = self.granted(sent, grant)? {
                        return Ok(Outcome::Acquired(Box::new(acquired)));
                    }
                }
                Ended::Gone(_, sent) => {
                    // This repeat arrived after the lease that the first call had got was over.
                    self.wait.pending = false;
                    self.begin_anew();
                    let spent = Error::new(
                        ErrorKind::Overloaded,
                        "the store no longer accepts this claim's lease id; try again with a new one",
                    );
                    self.wait.fault(sent, spent)?;
                }
                Ended::Busy(_) => return Ok(Outcome::Busy { waited: self.waited() }),
                Ended::Failed(error) => return Err(error),
                Ended::Stopped(never) => match never {},
            }
        }
    }

    /// Accepts a grant, asks for it to be measured again, or gives it back.
    fn granted(&mut self, sent: Moment, grant: Grant) -> Result<Option<Acquired>> {
        let now = self.client.clock.now();
        let end = match grant.left {
            Some(left) if !self.guarded => Some(sent + grant.waited.saturating_add(left)),
            _ => held::deadline(sent, &grant, self.wait.claim.ttl),
        };
        if end.is_none_or(|end| now < end && end.since(now) >= self.min_validity) {
            self.wait.pending = false;
            return Ok(Some(Acquired {
                claim: self.wait.claim.clone(),
                grant,
                sent,
                waited: self.waited(),
                attempts: self.wait.attempts,
            }));
        }
        if !self.wait.is_used_up() && !std::mem::replace(&mut self.measured_again, true) {
            return Ok(None);
        }
        self.measured_again = false;
        self.begin_anew();
        let late = Error::new(
            ErrorKind::NetworkTimeout,
            "the store granted the lease, but too little of its ttl was left when the answer came",
        );
        self.wait.fault(now, late)?;
        Ok(None)
    }

    fn waited(&self) -> Duration {
        self.client.clock.now().since(self.wait.started)
    }

    /// Gives back what the id may have got, and starts over with a new id.
    fn begin_anew(&mut self) {
        self.give_back();
        let claim = &mut self.wait.claim;
        claim.id = LeaseId::random();
        (claim.first, claim.repeat) = (true, false);
    }

    fn give_back(&mut self) {
        let Wait { claim, pending, unanswered, .. } = &mut self.wait;
        if std::mem::take(pending) {
            let mut release = Release::new(claim.name.clone(), claim.id);
            // A repeat may be answered while the call that it repeats is still in transit.
            let open = *unanswered || claim.repeat;
            release.unanswered = open.then_some(claim.ttl);
            self.client.renewer.send_release(ReleaseJob::new(release, self.options, ReleaseSource::GiveBack));
        }
        *unanswered = false;
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

async fn cancelled(cancel: Option<&Cancel>) {
    match cancel {
        Some(cancel) => cancel.cancelled().await,
        None => std::future::pending().await,
    }
}
