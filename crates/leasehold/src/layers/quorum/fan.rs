//! Calls many nodes at once: tracks which nodes have answered, and when enough have.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::Instant;

use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};

/// The shortest extra wait for nodes behind the majority: a scheduler's hiccup.
const LEAST_GRACE: Duration = Duration::from_millis(1);

/// One node of a quorum.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) backend: Arc<dyn Backend>,
    /// The node failed or was slower than the others last time: nothing urgent waits for it.
    late: AtomicBool,
    /// The node failed last time.
    dead: AtomicBool,
}

impl Member {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        Member { backend, late: AtomicBool::new(false), dead: AtomicBool::new(false) }
    }

    fn is_late(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    fn answered(&self, failed: bool) {
        self.late.store(failed, Ordering::Relaxed);
        self.dead.store(failed, Ordering::Relaxed);
    }
}

/// A call to one node, which ends by itself after the node's timeout.
pub(super) type Call<T> = BoxFuture<'static, (usize, Result<T>)>;

pub(super) fn call<T, F>(
    member: &Arc<Member>,
    node: usize,
    timeout: Duration,
    ask: impl FnOnce(Arc<dyn Backend>) -> F,
) -> Call<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let member = Arc::clone(member);
    let asked = ask(Arc::clone(&member.backend));
    Box::pin(async move {
        let answer = tokio::time::timeout(timeout, asked).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::NetworkTimeout, "a node of the quorum did not answer in time"))
        });
        let failed = answer.as_ref().is_err_and(|error| {
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NetworkTimeout | ErrorKind::AuthFailed)
        });
        member.answered(failed);
        (node, answer)
    })
}

/// What to do after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Enough {
    /// Wait for more.
    No,
    /// The outcome is certain, but better with the nodes that are just behind.
    Nearly,
    /// The outcome needs every node that can be expected to answer.
    ButForTheDead,
    /// Go on.
    Yes,
}

/// The calls in flight. Dropping them gives them up; [`rest`](Fan::rest) lets them end.
pub(super) struct Fan<T> {
    calls: FuturesUnordered<Call<T>>,
    pending: Vec<Arc<Member>>,
    started: Instant,
}

impl<T: Send + 'static> Fan<T> {
    /// Asks these nodes. `ask` makes the call from the node's number and store.
    pub(super) fn new<F>(
        members: &[Arc<Member>],
        nodes: impl IntoIterator<Item = usize>,
        timeout: Duration,
        mut ask: impl FnMut(usize, Arc<dyn Backend>) -> F,
    ) -> Self
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut fan = Fan { calls: FuturesUnordered::new(), pending: Vec::new(), started: Instant::now() };
        for node in nodes {
            fan.calls.push(call(&members[node], node, timeout, |backend| ask(node, backend)));
            fan.pending.push(Arc::clone(&members[node]));
        }
        fan
    }

    /// How many nodes have not answered.
    pub(super) fn pending(&self) -> usize {
        self.calls.len()
    }

    /// Takes answers until they are enough, all nodes have answered, or the time is over. `take` also gets the number
    /// of nodes that have not answered.
    pub(super) async fn gather(
        &mut self,
        members: &[Arc<Member>],
        within: Duration,
        mut take: impl FnMut(usize, Result<T>, usize) -> Enough,
    ) {
        let mut end = self.started + within;
        let mut nearly = false;
        // The first poll sends every request; none stays unsent because others were answered at once.
        let mut answers = self.at_once().await;
        loop {
            let mut enough = Enough::No;
            let mut unseen = answers.len();
            for (node, answer) in answers.drain(..) {
                unseen -= 1;
                self.pending.retain(|member| !Arc::ptr_eq(member, &members[node]));
                enough = take(node, answer, self.calls.len() + unseen);
            }
            match enough {
                Enough::No => {}
                Enough::Yes => return,
                Enough::ButForTheDead if self.pending.iter().all(|member| member.is_dead()) => return,
                Enough::ButForTheDead => {}
                Enough::Nearly if self.pending.iter().all(|member| member.is_late()) => return,
                Enough::Nearly => {
                    if !std::mem::replace(&mut nearly, true) {
                        let now = Instant::now();
                        end = end.min(now + (now - self.started).max(LEAST_GRACE));
                    }
                }
            }
            match tokio::time::timeout_at(end, self.calls.next()).await {
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) => return,
                Err(_) => break,
            }
        }
        self.pending.iter().for_each(|member| member.late.store(true, Ordering::Relaxed));
    }

    /// Polls every call once, and takes the answers that are there.
    async fn at_once(&mut self) -> Vec<(usize, Result<T>)> {
        let mut answers = Vec::new();
        poll_fn(|cx| {
            while let Poll::Ready(Some(answer)) = self.calls.poll_next_unpin(cx) {
                answers.push(answer);
            }
            Poll::Ready(())
        })
        .await;
        answers
    }

    /// The calls that are not answered yet.
    pub(super) fn rest(self) -> FuturesUnordered<Call<T>> {
        self.calls
    }

    /// Lets the unanswered calls end in the background.
    pub(super) fn finish(self) {
        let mut rest = self.rest();
        if !rest.is_empty() {
            tokio::spawn(async move { while rest.next().await.is_some() {} });
        }
    }
}
