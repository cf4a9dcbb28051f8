//! Waits in the server's own queue, on a session of the waiter's own that a task looks after.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::{Claim, Wake};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;

use super::book::Waiter;
use super::key::AdvisoryKey;
use super::pool::Loan;
use super::session::Session;
use super::store::Store;

/// Without a connection to wait on, a claim tries again after this long.
const CROWDED: Duration = Duration::from_millis(50);

/// How long the server may take to accept a cancel, and then to cancel the wait, before the client asks again; and how
/// often it asks. Then the session ends as it is, and the server notices by itself.
const CANCEL: (Duration, u32) = (Duration::from_secs(1), 5);

/// A lock on its way to its waiter. If dropped before it arrives, its session ends and frees it.
struct HandOver {
    loan: Option<Loan>,
    fence: Fence,
}

impl Drop for HandOver {
    fn drop(&mut self) {
        if let Some(loan) = self.loan.take() {
            loan.session().kill();
        }
    }
}

impl Store {
    /// If dropped, it leaves the queue; a lock that was granted meanwhile is freed.
    pub(super) async fn wait(self: &Arc<Self>, claim: &Claim) -> Result<Wake> {
        let key = self.key(&claim.name)?;
        let waiting = self.note(claim, key);
        let (answer, mut answered) = oneshot::channel();
        let in_queue = InQueue::begin(self, claim);
        self.pool.home.spawn(Arc::clone(self).stand(in_queue, key, claim.clone(), answer));
        let handed = (&mut answered).await;
        drop(waiting);
        // No await from here on: the lock that was handed over is kept in the same step.
        match handed {
            Ok(Ok(Some(mut handed))) => {
                let (fence, loan) = (handed.fence, handed.loan.take());
                let Some(loan) = loan else { return Ok(Wake::Retry) };
                match self.keep(claim, key, fence, loan) {
                    Ok(grant) => Ok(Wake::Granted(grant)),
                    Err(loan) => {
                        loan.session().kill();
                        Ok(Wake::Retry)
                    }
                }
            }
            Ok(Err(error)) => Err(error),
            // No connection, or the runtime is shutting down: the attempt will tell.
            Ok(Ok(None)) | Err(_) => Ok(Wake::Retry),
        }
    }

    /// Waits in the server's queue until it is granted, fails, or its caller is gone.
    async fn stand(
        self: Arc<Self>,
        _in_queue: InQueue,
        key: AdvisoryKey,
        claim: Claim,
        mut answer: oneshot::Sender<Result<Option<HandOver>>>,
    ) {
        let own = tokio::select! {
            own = self.pool.own() => own,
            () = answer.closed() => return,
        };
        let loan = match own {
            Ok(Some(loan)) => loan,
            Ok(None) => {
                tokio::time::sleep(CROWDED).await;
                let _ = answer.send(Ok(None));
                return;
            }
            Err(error) => {
                let _ = answer.send(Err(error));
                return;
            }
        };
        let session = Arc::clone(loan.session());
        if let Some(waiter) = self.book.lock().waiting.get_mut(&claim.id) {
            waiter.pid = Some(session.pid());
        }
        // From here on, whatever happens to this task, the session never goes back to the pool with a lock on it.
        let mut hand = HandOver { loan: Some(loan), fence: Fence::UNFENCED };
        let granted = {
            let mut asked = std::pin::pin!(async {
                // Prepare the statement that unlocks it; the wait is queued right behind it.
                let (prepared, granted) = tokio::join!(
                    session.prepare(&self.sql, key, claim.mode),
                    session.wait(&self.sql, key, claim.mode)
                );
                prepared.and(granted)
            });
            tokio::select! {
                biased;
                granted = &mut asked => granted,
                () = self.pool.silence() => Err(Error::new(
                    ErrorKind::NetworkTimeout,
                    "the PostgreSQL server does not answer",
                )),
                () = answer.closed() => {
                    if self.call_off(&session, asked).await {
                        // It was granted just before: unless freed now, it would stay locked until the session ends.
                        let _ = session.free(&self.sql, key, claim.mode).await;
                    }
                    return;
                }
            }
        };
        let _ = match granted {
            Ok(Some(fence)) => {
                hand.fence = fence;
                answer.send(Ok(Some(hand)))
            }
            Ok(None) => answer.send(Ok(None)),
            Err(error) => answer.send(Err(error)),
        };
    }

    /// Takes a session out of the queue. Returns whether it got the lock nevertheless. The session is not used again:
    /// a late cancel would hit whatever it does next.
    async fn call_off(
        &self,
        session: &Session,
        mut asked: std::pin::Pin<&mut impl Future<Output = Result<Option<Fence>>>>,
    ) -> bool {
        for _ in 0..CANCEL.1 {
            // If it could not be sent, that shows below. It is not dropped if the lock comes meanwhile: see
            // `Closes::Server`.
            let _ = tokio::time::timeout(CANCEL.0, session.cancel(&self.pool.address)).await;
            if let Ok(granted) = tokio::time::timeout(CANCEL.0, &mut asked).await {
                return matches!(granted, Ok(Some(_)));
            }
        }
        false
    }

    /// Lists a waiter until it stops waiting.
    fn note<'a>(&'a self, claim: &'a Claim, key: AdvisoryKey) -> ListedWaiter<'a> {
        let waiter = Waiter {
            name: claim.name.clone(),
            key,
            mode: claim.mode,
            owner: Arc::clone(&claim.owner),
            since: self.now(),
            pid: None,
        };
        self.book.lock().waiting.insert(claim.id, waiter);
        ListedWaiter { store: self, claim }
    }
}

struct ListedWaiter<'a> {
    store: &'a Store,
    claim: &'a Claim,
}

impl Drop for ListedWaiter<'_> {
    fn drop(&mut self) {
        self.store.book.lock().waiting.remove(&self.claim.id);
    }
}

/// A session that is in the server's queue, or on its way in or out.
struct InQueue {
    store: Arc<Store>,
    id: LeaseId,
}

impl InQueue {
    fn begin(store: &Arc<Store>, claim: &Claim) -> Self {
        store.book.lock().stand(claim.id);
        InQueue { store: Arc::clone(store), id: claim.id }
    }
}

impl Drop for InQueue {
    fn drop(&mut self) {
        self.store.book.lock().left(&self.id);
    }
}
