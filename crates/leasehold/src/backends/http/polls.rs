//! Long polls that outlive the calls which wait for them.

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
    /// Those whose server fell silent. They bring nothing any more, but their connections keep the places until the
    /// server has answered about the claim again: one that is closed is a client that has gone.
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

/// Where a poll tells what it brought; whoever waits listens.
type End = watch::Sender<Option<Arc<Result<Attempt>>>>;

/// One who waits for a long poll.
#[derive(Debug)]
pub(super) struct Poll {
    sent: Instant,
    end: watch::Receiver<Option<Arc<Result<Attempt>>>>,
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
            // Forgotten before it is told: who waits again gets a new one.
            if let Some(all) = all.upgrade() {
                all.lock().ended(&id, &mine, &ended);
            }
            match ended {
                Ended::Answered(answer) => drop(mine.send_replace(Some(Arc::new(answer)))),
                Ended::Alone => drop(mine.send_replace(None)),
                Ended::Silent => {
                    mine.send_replace(Some(Arc::new(Err(silent()))));
                    // Until told that it is no longer needed, and no longer than it was to take.
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

    /// The server has answered about a claim, or will not be asked any more: what kept its place is closed.
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
        let All { pending, silent } = std::mem::take(&mut *self.0.lock());
        pending.into_values().chain(silent.into_values().flatten()).for_each(|one| one.task.abort());
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
