//! Long polls, which outlive the calls of `wait` that use them.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::pulse::Listener;
use crate::backend::{Attempt, Claim, Grant, Wake};
use crate::engine::limits::TICKET_TTL;
use crate::error::{Error, ErrorKind, Result};
use crate::lease_id::LeaseId;

/// The long polls of a client, by claim.
#[derive(Debug)]
pub(super) struct Polls(Arc<Mutex<All>>);

#[derive(Debug, Default)]
struct All {
    pending: HashMap<LeaseId, Pending>,
    /// Polls whose server fell silent. They bring no answer any more, but their connections keep the places until the
    /// server has answered about the claim again: to the server, a closed connection means that the client has gone.
    silent: HashMap<LeaseId, Vec<Pending>>,
}

/// How a poll ends.
enum Ended {
    Answered(Result<Attempt>),
    Silent,
    Alone,
}

#[derive(Debug)]
struct Pending {
    sent: Instant,
    end: Arc<End>,
    ttl: Duration,
    task: AbortHandle,
}

/// Where a poll puts its answer; its waiter listens.
type End = watch::Sender<Option<Arc<Result<Attempt>>>>;

/// A waiter's view of a long poll.
#[derive(Debug)]
pub(super) struct Poll {
    sent: Instant,
    end: watch::Receiver<Option<Arc<Result<Attempt>>>>,
}

impl Polls {
    pub(super) fn new() -> Self {
        Polls(Arc::default())
    }

    /// The poll of a claim: the one under way, or a new one.
    pub(super) fn of<W>(
        &self,
        claim: &Claim,
        start: impl FnOnce() -> Result<(Handle, Listener, W)>,
    ) -> Result<Poll>
    where
        W: Future<Output = Result<Attempt>> + Send + 'static,
    {
        let mut polls = self.0.lock();
        if let Some(pending) = polls.pending.get(&claim.id).filter(|pending| !pending.task.is_finished()) {
            return Ok(Poll { sent: pending.sent, end: pending.end.subscribe() });
        }
        let (runtime, pulse, work) = start()?;
        let (tell, end) = watch::channel(None);
        let (tell, sent) = (Arc::new(tell), Instant::now());
        let (all, id, mine) = (Arc::downgrade(&self.0), claim.id, Arc::clone(&tell));
        let patience = claim.queue.unwrap_or(TICKET_TTL) / 2;
        let task = runtime.spawn(async move {
            let mut work = pin!(work);
            let ended = tokio::select! {
                answer = work.as_mut() => Ended::Answered(answer),
                () = pulse.stops() => Ended::Silent,
                // The connection closes, and the server gives up the place.
                () = nobody_waits(&mine, patience) => Ended::Alone,
            };
            // Remove it before it reports, so that a claim that waits again gets a new poll.
            if let Some(all) = all.upgrade() {
                all.lock().ended(&id, &mine, &ended);
            }
            match ended {
                Ended::Answered(answer) => drop(mine.send_replace(Some(Arc::new(answer)))),
                Ended::Alone => drop(mine.send_replace(None)),
                Ended::Silent => {
                    mine.send_replace(Some(Arc::new(Err(silent()))));
                    // Keep the connection until it is no longer needed, and at most for the poll's own time.
                    let _ = work.await;
                    if let Some(all) = all.upgrade() {
                        all.lock().silent_ended(&id, &mine);
                    }
                }
            }
        });
        let task = task.abort_handle();
        polls.pending.insert(claim.id, Pending { sent, end: tell, ttl: claim.ttl, task });
        Ok(Poll { sent, end })
    }

    /// The ttl of a claim whose poll has not ended.
    pub(super) fn ttl_of_pending(&self, id: &LeaseId) -> Option<Duration> {
        let polls = self.0.lock();
        let silent = polls.silent.get(id).and_then(|silent| silent.first());
        polls.pending.get(id).or(silent).map(|pending| pending.ttl)
    }

    /// Closes the connections that kept a claim's place: the server has answered about it, or will not be asked again.
    pub(super) fn answered(&self, id: &LeaseId) {
        self.0.lock().close_silent(id);
    }
}

impl All {
    fn ended(&mut self, id: &LeaseId, end: &Arc<End>, how: &Ended) {
        let is_it = self.pending.get(id).is_some_and(|pending| Arc::ptr_eq(&pending.end, end));
        let pending = if is_it { self.pending.remove(id) } else { None };
        match how {
            Ended::Answered(Ok(_)) => self.close_silent(id),
            Ended::Silent => self.silent.entry(*id).or_default().extend(pending),
            _ => {}
        }
    }

    fn silent_ended(&mut self, id: &LeaseId, end: &Arc<End>) {
        if let Some(silent) = self.silent.get_mut(id) {
            silent.retain(|pending| !Arc::ptr_eq(&pending.end, end));
            if silent.is_empty() {
                self.silent.remove(id);
            }
        }
    }

    fn close_silent(&mut self, id: &LeaseId) {
        self.silent.remove(id).into_iter().flatten().for_each(|pending| pending.task.abort());
    }
}

fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, "the server does not answer")
}

/// Resolves when no `wait` has listened for this long: a claim whose `wait` was dropped for good keeps no place.
async fn nobody_waits(end: &End, patience: Duration) {
    loop {
        end.closed().await;
        tokio::time::sleep(patience).await;
        if end.receiver_count() == 0 {
            return;
        }
    }
}

impl Drop for Polls {
    fn drop(&mut self) {
        // The connections close, and the server gives up the places.
        let All { pending, silent } = std::mem::take(&mut *self.0.lock());
        pending.into_values().chain(silent.into_values().flatten()).for_each(|one| one.task.abort());
    }
}

impl Poll {
    /// How long the client asks the server to wait. It is short, so that the client notices when just this connection
    /// has died; if the server itself has died, its pulse shows that sooner.
    pub(super) const TIME: Duration = Duration::from_secs(10);
    /// How much later the answer may come.
    pub(super) const GRACE: Duration = Duration::from_secs(5);

    /// The answer that the poll brings.
    pub(super) async fn answer(mut self) -> Result<Wake> {
        let began = Instant::now();
        let broken = |_| Error::new(ErrorKind::Unavailable, "the long poll was abandoned");
        let answer = self.end.wait_for(Option::is_some).await.map_err(broken)?.clone();
        match answer.as_deref() {
            Some(Ok(Attempt::Granted(grant))) => {
                // Measured before this call began, so it has to be measured again.
                let Some(waited) = (self.sent + grant.waited).checked_duration_since(began) else {
                    return Ok(Wake::Retry);
                };
                Ok(Wake::Granted(Grant { waited, ..grant.clone() }))
            }
            // The claim's own attempt finds out what became of it.
            Some(Ok(_)) | None => Ok(Wake::Retry),
            Some(Err(error)) => Err(error.duplicate()),
        }
    }
}
