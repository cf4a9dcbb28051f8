//! The tools of the checks: two clients that remember what they claimed, random names, times that suit the store, and
//! functions that expect an answer.
//!
//! One file because nearly every check uses all parts: the trial, its two sides, and what expects an answer.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt as _};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::{Failure, Harness, ensure};
use crate::backend::{
    Attempt, Backend, Busy, Claim, Gone, Grant, HolderInfo, Info, Mode, NameInfo, Page, Query, Release,
    Released, Renewal, Renewed, Revoked, Swept, Wake,
};
use crate::client::locks::{DEFAULT_NAMESPACE, Locks};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::options;

pub(super) type Shown = std::result::Result<(), Failure>;

/// How often to test a condition.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// One run of one check.
#[derive(Clone)]
pub(super) struct Trial {
    pub(super) a: Arc<Side>,
    pub(super) b: Arc<Side>,
    pub(super) info: Info,
    scale: u32,
    patience: Duration,
    clients: Arc<Mutex<Vec<Locks>>>,
    not_judged: Arc<Mutex<Vec<&'static str>>>,
}

impl Trial {
    pub(super) fn new(harness: &Harness) -> Self {
        Trial {
            a: Arc::new(Side::new(&harness.first)),
            b: Arc::new(Side::new(&harness.second)),
            info: harness.info(),
            scale: harness.scale,
            patience: harness.scaled_patience(),
            clients: Arc::default(),
            not_judged: Arc::default(),
        }
    }

    /// Whether the store has an ability that a part of the check needs. If not, the report lists what was not judged.
    pub(super) fn judges(&self, what: &'static str, able: bool) -> bool {
        let mut not_judged = self.not_judged.lock();
        if !able && !not_judged.contains(&what) {
            not_judged.push(what);
        }
        able
    }

    /// The parts that the check did not judge, because the store lacks an ability.
    pub(super) fn not_judged(&self) -> Vec<&'static str> {
        self.not_judged.lock().clone()
    }

    /// A time that suits the store.
    pub(super) fn ms(&self, millis: u64) -> Duration {
        Duration::from_millis(millis) * self.scale
    }

    /// A ttl that does not pass while the check runs.
    pub(super) fn long(&self) -> Duration {
        self.ms(60_000).min(self.info.max_ttl / 4)
    }

    /// Longer and longer times, to try until the machine is quick enough for one of them.
    pub(super) fn growing(&self, millis: u64) -> impl Iterator<Item = Duration> + use<> {
        let (first, last) = (self.ms(millis), self.patience);
        std::iter::successors(Some(first), move |time| Some(*time * 2).filter(|next| *next < last))
    }

    /// This many rounds of a stress test, or as many as a slow store has time for.
    pub(super) fn rounds(&self, many: usize) -> impl Iterator<Item = usize> + Send + use<> {
        let end = Instant::now() + self.patience / 5;
        (0..many).take_while(move |round| *round == 0 || Instant::now() < end)
    }

    /// A new, unused name.
    pub(super) fn name(&self) -> Name {
        self.named("")
    }

    /// A new, unused name with this ending.
    pub(super) fn named(&self, end: &str) -> Name {
        self.exactly(&format!("conformance-{}{end}", LeaseId::random().expose()))
    }

    /// Exactly this name, in the namespace that the client uses too.
    pub(super) fn exactly(&self, name: &str) -> Name {
        #[allow(clippy::expect_used)] // all names in here are well formed; a panic fails the check
        Name::within(self.namespace(), name).expect("a well formed name")
    }

    pub(super) fn namespace(&self) -> &'static str {
        if self.info.namespaced { DEFAULT_NAMESPACE } else { "" }
    }

    /// Whether a change has reached the whole store when it is answered. Not in a quorum, which has no queue: some
    /// nodes follow later, and so does the version that it shows.
    pub(super) fn is_exact(&self) -> bool {
        self.info.fifo
    }

    /// The id as the store shows it.
    pub(super) fn shown(&self, id: LeaseId) -> LeaseId {
        if self.info.shows_ids { id } else { id.digest() }
    }

    /// A claim that does not queue, for a long ttl.
    pub(super) fn claim(&self, name: &Name, mode: Mode) -> Claim {
        Claim::new(name.clone(), mode, self.long(), "conformance")
    }

    /// A claim that queues, for a long ttl and with a ticket that lasts as long.
    pub(super) fn queued(&self, name: &Name, mode: Mode) -> Claim {
        self.claim(name, mode).queued(self.long())
    }

    /// A claim for a ttl that soon passes.
    pub(super) fn brief(&self, name: &Name, mode: Mode) -> Claim {
        Claim::new(name.clone(), mode, self.ms(200), "conformance")
    }

    /// Both clients, as a user has them.
    pub(super) fn clients(&self) -> (Locks, Locks) {
        (self.client(&self.a), self.client(&self.b))
    }

    /// A client as a user has it.
    pub(super) fn client(&self, side: &Arc<Side>) -> Locks {
        let side: Arc<dyn Backend> = Arc::<Side>::clone(side);
        let locks = Locks::builder(side)
            .ttl(self.long())
            .owner("conformance")
            .poll(options::PollPolicy::new(Duration::from_millis(1), self.ms(20)))
            .allow_unfenced(!self.info.fenced)
            .build();
        self.clients.lock().push(locks.clone());
        locks
    }

    /// Sleeps until `left`, counted from `answered`, is over by every clock.
    pub(super) async fn past(&self, answered: Instant, left: Duration) {
        // A store with a nonsensical answer must not make us wait for ever.
        let left = left.min(self.patience);
        let end = answered + left + left / 50 + self.ms(20);
        tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
    }

    /// Waits for what must happen before the patience ends.
    #[track_caller]
    pub(super) fn soon<F: Future>(
        &self,
        what: &'static str,
        work: F,
    ) -> impl Future<Output = std::result::Result<F::Output, Failure>> + use<F> {
        let (at, limit) = (Location::caller(), self.patience);
        async move {
            let timed = tokio::time::timeout(limit, work).await;
            timed.map_err(|_| Failure::at(at, format!("{what} did not happen within {limit:?}")))
        }
    }

    /// Checks that a spent id is refused. A quorum may answer busy until its nodes have caught up.
    pub(super) async fn refuses(&self, claim: &Claim) -> Shown {
        let end = Instant::now() + self.patience;
        loop {
            match self.a.try_acquire(claim).await {
                Ok(Attempt::Busy(_)) if !self.is_exact() && Instant::now() < end => {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                answer => return refused(answer),
            }
        }
    }

    /// Inspects a name until the condition holds.
    #[track_caller]
    pub(super) fn until<'a>(
        &'a self,
        name: &'a Name,
        what: &'static str,
        is_so: impl Fn(&NameInfo) -> bool + Send + 'a,
    ) -> impl Future<Output = std::result::Result<NameInfo, Failure>> + Send + 'a {
        let at = Location::caller();
        async move {
            let end = Instant::now() + self.patience;
            loop {
                let info = self.a.view(name).await?;
                if is_so(&info) {
                    return Ok(info);
                }
                if Instant::now() > end {
                    let (held, waiting) = (info.holders.len(), info.queue_length);
                    let seen = format!("{held} hold it and {waiting} wait");
                    return Err(Failure::at(at, format!("{what}: not within {:?}; {seen}", self.patience)));
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }

    /// Waits until this many claims wait. Where the queue is not visible, their calls show it: after a refusal a wait
    /// is pending or, without push, they ask again.
    pub(super) async fn waiting(&self, name: &Name, many: u64) -> Shown {
        if self.info.fifo {
            self.until(name, "the queue forms", |info| info.queue_length == many).await?;
            return Ok(());
        }
        let seen = || {
            let (a, b) = (self.a.blocked(name), self.b.blocked(name));
            if self.info.push { a.1 + b.1 } else { a.0 + b.0 }
        };
        let least = if self.info.push { many } else { seen() + many };
        let end = Instant::now() + self.patience;
        while seen() < least {
            ensure!(Instant::now() < end, "not within {:?}: {many} wait", self.patience);
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Tries until granted. Returns the grant, and when its answer came.
    #[track_caller]
    pub(super) fn take_over<'a>(
        &'a self,
        side: &'a Side,
        claim: &'a Claim,
    ) -> impl Future<Output = std::result::Result<(Grant, Instant), Failure>> + Send + 'a {
        let at = Location::caller();
        async move {
            let end = Instant::now() + self.patience;
            loop {
                let attempt = side.try_acquire(claim).await?;
                let answered = Instant::now();
                match attempt {
                    Attempt::Granted(grant) => return Ok((grant, answered)),
                    Attempt::Busy(_) if answered < end => tokio::time::sleep(LOOK_EVERY).await,
                    other => {
                        let message = format!("not granted within {:?}: {other:?}", self.patience);
                        return Err(Failure::at(at, message));
                    }
                }
            }
        }
    }

    /// Runs a task beside the check; it ends with the check.
    pub(super) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Task<T> {
        Task(tokio::spawn(work))
    }

    /// Gives back everything that is still claimed.
    pub(super) async fn clean_up(&self) {
        let clients = std::mem::take(&mut *self.clients.lock());
        for client in clients {
            client.close().await;
        }
        self.a.give_back().await;
        self.b.give_back().await;
    }
}

/// A task that ends when its handle is dropped.
pub(super) struct Task<T>(JoinHandle<T>);

impl<T> Task<T> {
    pub(super) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Future for Task<T> {
    type Output = std::result::Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(ready!(Pin::new(&mut self.0).poll(cx)).map_err(Failure::from_panic))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One client's backend. Remembers what was claimed through it, and which claims wait.
pub(super) struct Side {
    backend: Arc<dyn Backend>,
    claimed: Mutex<HashMap<LeaseId, Name>>,
    blocked: Mutex<HashMap<LeaseId, Blocked>>,
}

/// A claim that was refused, and not granted since.
struct Blocked {
    name: Name,
    /// How often it was refused.
    refused: u64,
    /// Whether its wait is pending.
    waits: bool,
}

/// A pending wait. The wait of a holder, for its loss, does not count.
struct Pending<'a>(&'a Side, LeaseId);

impl<'a> Pending<'a> {
    fn new(side: &'a Side, id: LeaseId) -> Self {
        side.waits(id, true);
        Pending(side, id)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.waits(self.1, false);
    }
}

impl Side {
    fn new(backend: &Arc<dyn Backend>) -> Self {
        Side { backend: Arc::clone(backend), claimed: Mutex::default(), blocked: Mutex::default() }
    }

    /// Renews one lease.
    pub(super) async fn renew_one(&self, renewal: &Renewal) -> Result<Renewed> {
        let mut answers = self.renew(std::slice::from_ref(renewal)).await;
        match (answers.pop(), answers.len()) {
            (Some(answer), 0) => answer,
            (_, more) => {
                let message = format!("one renewal must have one answer, not one more or less than {more}");
                Err(Error::new(ErrorKind::Internal, message))
            }
        }
    }

    /// Renews a claim's lease for the claim's ttl.
    pub(super) async fn keep(&self, claim: &Claim) -> Result<Renewed> {
        self.renew_one(&Renewal::new(claim.name.clone(), claim.id, claim.ttl)).await
    }

    /// Ends a claim's lease, or gives up its place.
    pub(super) async fn end(&self, claim: &Claim) -> Result<Released> {
        self.release(&Release::new(claim.name.clone(), claim.id)).await
    }

    /// Looks at one name.
    pub(super) async fn view(&self, name: &Name) -> std::result::Result<NameInfo, Failure> {
        let mut page = self.inspect(&Query::Name(name.clone())).await?;
        match (page.items.pop(), page.items.is_empty(), page.next) {
            (Some(info), true, None) if info.name == *name => Ok(info),
            (item, ..) => {
                let found = item.is_some() as usize + page.items.len();
                Err(Failure::new(format!(
                    "looking at one name must give one item of that name, not {found} items"
                )))
            }
        }
    }

    /// Whether any client holds the name.
    pub(super) async fn is_held(&self, name: &Name) -> std::result::Result<bool, Failure> {
        Ok(!self.view(name).await?.holders.is_empty())
    }

    fn waits(&self, id: LeaseId, waits: bool) {
        if let Some(blocked) = self.blocked.lock().get_mut(&id) {
            blocked.waits = waits;
        }
    }

    /// How often claims of a name that are not granted were refused, and how many of them wait.
    fn blocked(&self, name: &Name) -> (u64, u64) {
        let blocked = self.blocked.lock();
        let of_name = || blocked.values().filter(|blocked| blocked.name == *name);
        (
            of_name().map(|blocked| blocked.refused).sum(),
            of_name().map(|blocked| u64::from(blocked.waits)).sum(),
        )
    }

    async fn give_back(&self) {
        let claimed = std::mem::take(&mut *self.claimed.lock());
        stream::iter(claimed)
            .for_each_concurrent(16, |(id, name)| async move {
                // If the store fails here, a check has failed before.
                let release = Release::new(name, id);
                let _ = tokio::time::timeout(Duration::from_secs(5), self.backend.release(&release)).await;
            })
            .await;
    }
}

impl fmt::Debug for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}

#[async_trait]
impl Backend for Side {
    fn info(&self) -> Info {
        self.backend.info()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.claimed.lock().insert(claim.id, claim.name.clone());
        let answer = self.backend.try_acquire(claim).await;
        match &answer {
            Ok(Attempt::Busy(_)) => {
                let mut blocked = self.blocked.lock();
                let new = || Blocked { name: claim.name.clone(), refused: 0, waits: false };
                blocked.entry(claim.id).or_insert_with(new).refused += 1;
            }
            _ => drop(self.blocked.lock().remove(&claim.id)),
        }
        if matches!(&answer, Ok(Attempt::Busy(busy)) if claim.queue.is_none() && busy.place.is_none()) {
            self.claimed.lock().remove(&claim.id);
        }
        answer
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let _pending = Pending::new(self, claim.id);
        let wake = self.backend.wait(claim).await;
        if matches!(wake, Ok(Wake::Granted(_))) {
            self.blocked.lock().remove(&claim.id);
        }
        wake
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        self.backend.renew(leases).await
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        let answer = self.backend.release(lease).await;
        if matches!(answer, Ok(Released::Done)) {
            self.claimed.lock().remove(&lease.id);
        }
        answer
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        self.backend.revoke(name, now, only).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.backend.inspect(query).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.backend.sweep().await
    }
}

/// Until when the library would believe a grant (promise 7).
pub(super) fn believed_until(sent: Instant, grant: &Grant) -> std::result::Result<Instant, Failure> {
    let left = grant.left.ok_or_else(|| {
        Failure::nowhere("a grant of a store with ttls must say how much time is left".into())
    })?;
    let span = grant.waited + left;
    Ok(sent + span.saturating_sub(span / 100 + Duration::from_millis(2)))
}

/// The time left, which a store with ttls must report.
#[track_caller]
pub(super) fn left(grant: &Grant) -> std::result::Result<Duration, Failure> {
    grant
        .left
        .ok_or_else(|| Failure::new("a grant of a store with ttls must say how much time is left".into()))
}

/// The holder.
#[track_caller]
pub(super) fn only_holder(info: &NameInfo) -> std::result::Result<&HolderInfo, Failure> {
    match info.holders.as_slice() {
        [holder] => Ok(holder),
        holders => Err(Failure::new(format!("one holds it, and {} are shown", holders.len()))),
    }
}

#[track_caller]
pub(super) fn granted(attempt: Result<Attempt>) -> std::result::Result<Grant, Failure> {
    match attempt? {
        Attempt::Granted(grant) => Ok(grant),
        other => Err(Failure::new(format!("this attempt must be granted, and the answer was {other:?}"))),
    }
}

#[track_caller]
pub(super) fn busy(attempt: Result<Attempt>) -> std::result::Result<Busy, Failure> {
    match attempt? {
        Attempt::Busy(busy) => Ok(busy),
        other => Err(Failure::new(format!("this attempt must find it busy, and the answer was {other:?}"))),
    }
}

/// Expects that the attempt is superseded, or its id spent.
#[track_caller]
pub(super) fn refused(attempt: Result<Attempt>) -> Shown {
    match attempt? {
        Attempt::Gone(Gone::Superseded) => Ok(()),
        other => Err(Failure::new(format!(
            "this attempt must be refused as superseded, and the answer was {other:?}"
        ))),
    }
}

#[track_caller]
pub(super) fn held(renewed: Result<Renewed>) -> std::result::Result<Grant, Failure> {
    match renewed? {
        Renewed::Held(grant) => Ok(grant),
        other => Err(Failure::new(format!("this lease must still be held, and the answer was {other:?}"))),
    }
}

#[track_caller]
pub(super) fn not_held(renewed: Result<Renewed>, why: &[Gone]) -> Shown {
    match renewed? {
        Renewed::Gone(gone) if why.contains(&gone) => Ok(()),
        other => {
            Err(Failure::new(format!("this renewal must say gone ({why:?}), and the answer was {other:?}")))
        }
    }
}

#[track_caller]
pub(super) fn done(released: Result<Released>) -> Shown {
    match released? {
        Released::Done => Ok(()),
        other => Err(Failure::new(format!("this release must be done, and the answer was {other:?}"))),
    }
}

#[track_caller]
pub(super) fn not_done(released: Result<Released>, why: &[Gone]) -> Shown {
    match released? {
        Released::Gone(gone) if why.contains(&gone) => Ok(()),
        other => {
            Err(Failure::new(format!("this release must say gone ({why:?}), and the answer was {other:?}")))
        }
    }
}

#[track_caller]
pub(super) fn fails<T: fmt::Debug>(answer: Result<T>, kind: ErrorKind) -> Shown {
    match answer {
        Err(error) if error.kind() == kind => Ok(()),
        other => Err(Failure::new(format!("this must be the error {kind:?}, and the answer was {other:?}"))),
    }
}

/// The lease is gone. A store need not remember whether it expired.
pub(super) const EXPIRED: &[Gone] = &[Gone::Expired, Gone::NotFound];
/// There is no such lease.
pub(super) const NOT_FOUND: &[Gone] = &[Gone::NotFound];
