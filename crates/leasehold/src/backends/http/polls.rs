//! Long polls that outlive the calls which wait for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::pulse::Listener;
use crate::acquire::TICKET_TTL;
use crate::backend::{Attempt, Claim, Grant, Wake};
use crate::error::{Error, ErrorKind, Result};
use crate::lease_id::LeaseId;

/// The long polls of a client, by claim.
#[derive(Debug)]
pub(super) struct Polls(Arc<Mutex<HashMap<LeaseId, Pending>>>);

#[derive(Debug)]
struct Pending {
    sent: Instant,
    end: Arc<End>,
    ttl: Duration,
    task: AbortHandle,
}

/// Where a poll tells what it brought; whoever waits listens.
type End = watch::Sender<Option<Arc<Result<Attempt>>>>;

/// One who waits for a long poll.
#[derive(Debug)]
pub(super) struct Poll {
    sent: Instant,
    end: watch::Receiver<Option<Arc<Result<Attempt>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Polls {
    pub(super) fn new() -> Self {
        Polls(Arc::default())
    }

    /// The poll of a claim that is under way, or a new one.
    pub(super) fn of<W>(
        &self,
        claim: &Claim,
        start: impl FnOnce() -> Result<(Handle, Listener, W)>,
    ) -> Result<Poll>
    where
        W: Future<Output = Result<Attempt>> + Send + 'static,
    {
        let mut polls = lock(&self.0);
        if let Some(pending) = polls.get(&claim.id).filter(|pending| !pending.task.is_finished()) {
            return Ok(Poll { sent: pending.sent, end: pending.end.subscribe() });
        }
        let (runtime, pulse, work) = start()?;
        let (tell, end) = watch::channel(None);
        let (tell, sent) = (Arc::new(tell), Instant::now());
        let (all, id, mine) = (Arc::downgrade(&self.0), claim.id, Arc::clone(&tell));
        let patience = claim.queue.unwrap_or(TICKET_TTL) / 2;
        let task = runtime.spawn(async move {
            let answer = tokio::select! {
                answer = work => Some(answer),
                () = pulse.stops() => Some(Err(silent())),
                // The connection closes, and the server gives up the place.
                () = nobody_waits(&mine, patience) => None,
            };
            // Forgotten before it is told: who waits again gets a new one.
            if let Some(all) = all.upgrade() {
                let mut polls = lock(&all);
                if polls.get(&id).is_some_and(|pending| Arc::ptr_eq(&pending.end, &mine)) {
                    polls.remove(&id);
                }
            }
            mine.send_replace(answer.map(Arc::new));
        });
        let task = task.abort_handle();
        polls.insert(claim.id, Pending { sent, end: tell, ttl: claim.ttl, task });
        Ok(Poll { sent, end })
    }

    /// The ttl of a claim whose poll has not ended.
    pub(super) fn ttl_of_pending(&self, id: &LeaseId) -> Option<Duration> {
        lock(&self.0).get(id).map(|pending| pending.ttl)
    }
}

fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, "the server does not answer any more")
}

/// Resolves when nobody has waited for so long: a claim whose `wait` was dropped for good keeps no place.
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
        lock(&self.0).drain().for_each(|(_, pending)| pending.task.abort());
    }
}

impl Poll {
    /// How long the server is asked to wait. Not longer, so that a connection that died alone is noticed; that the
    /// server did, its pulse tells sooner.
    pub(super) const TIME: Duration = Duration::from_secs(10);
    /// How long after that its answer may take.
    pub(super) const GRACE: Duration = Duration::from_secs(5);

    /// What it brings.
    pub(super) async fn answer(mut self) -> Result<Wake> {
        let began = Instant::now();
        let broken = |_| Error::new(ErrorKind::Unavailable, "the long poll was given up");
        let answer = self.end.wait_for(Option::is_some).await.map_err(broken)?.clone();
        match answer.as_deref() {
            Some(Ok(Attempt::Granted(grant))) => {
                // Measured before this call began: it has to be measured again.
                let Some(waited) = (self.sent + grant.waited).checked_duration_since(began) else {
                    return Ok(Wake::Retry);
                };
                Ok(Wake::Granted(Grant { waited, ..grant.clone() }))
            }
            // What became of the claim, its own attempt tells.
            Some(Ok(_)) | None => Ok(Wake::Retry),
            Some(Err(error)) => Err(error.duplicate()),
        }
    }
}
