//! A backend that plays a script of faults around a real one, and records every call.
//!
//! One file because the faults, the log of calls and the eight methods that play both share private types.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::backend::{
    Attempt, Backend, Busy, Claim, Gone, Grant, Info, Liveness, Page, Query, Release, Released, Renewal,
    Renewed, Revoked, Swept, Wake,
};
use leasehold::clock::{Clock, Moment};
use leasehold::{Error, ErrorKind, Fence, LeaseId, Name, Result};
use parking_lot::Mutex;
use tokio::sync::watch;

/// The kinds of error that are retried.
pub const RETRYABLE: [ErrorKind; 4] =
    [ErrorKind::Unavailable, ErrorKind::Overloaded, ErrorKind::NetworkTimeout, ErrorKind::RateLimited];

/// The kinds that are not.
pub const FINAL: [ErrorKind; 9] = [
    ErrorKind::InvalidArgument,
    ErrorKind::AuthFailed,
    ErrorKind::Timeout,
    ErrorKind::Aborted,
    ErrorKind::Lost,
    ErrorKind::Mismatch,
    ErrorKind::Deadlock,
    ErrorKind::Unsupported,
    ErrorKind::Internal,
];

/// The calls that a script can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// [`Backend::try_acquire`]
    TryAcquire,
    /// [`Backend::wait`]
    Wait,
    /// [`Backend::renew`]
    Renew,
    /// [`Backend::release`]
    Release,
    /// [`Backend::revoke`], [`Backend::inspect`] (which ends a wait), and [`Backend::sweep`]
    Other,
}

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Effect and answer, at once.
    Pass,
    /// An error, and no effect.
    Fail(ErrorKind),
    /// The effect at once, the answer after this long.
    Slow(Duration),
    /// The effect at once, the answer at the next [`Faulty::let_go`].
    Held,
    /// Effect and answer after this long.
    SlowBefore(Duration),
    /// No effect, no answer, ever.
    Never,
    /// The effect at once, but no answer, ever.
    NeverAfter,
    /// The effect, and then an error instead of the answer.
    LostAfter(ErrorKind),
    /// No answer, ever; the effect after this long, even if the call was cancelled by then: a request stuck in the
    /// network.
    Late(Duration),
    /// The lease or the place is removed for good without the caller's knowledge, and the answer says so. A `wait`
    /// returns at once, and nothing is removed.
    Gone(Gone),
    /// As `Pass`, but with only this many answers of a batch.
    Only(usize),
    /// A panic, and no effect.
    Panic,
}

/// The request of one call.
#[derive(Debug, Clone)]
pub enum Request {
    /// An attempt, or a wait.
    Claim(Claim),
    /// A batch of renewals.
    Renewals(Vec<Renewal>),
    /// A release.
    Release(Release),
    /// Something else.
    Other,
}

/// The answer to a call.
#[derive(Debug, Clone)]
pub enum Answer {
    /// To an attempt.
    Attempt(Attempt),
    /// To a wait.
    Wake(Wake),
    /// To a batch, with the kinds of errors.
    Renewed(Vec<Result<Renewed, ErrorKind>>),
    /// To a release.
    Released(Released),
    /// An error.
    Failed(ErrorKind),
    /// Something else.
    Other,
}

/// One recorded call.
#[derive(Debug, Clone)]
pub struct Call {
    /// Which.
    pub verb: Verb,
    /// Counts the calls of that verb, from 0.
    pub number: usize,
    /// When it was made.
    pub at: Moment,
    /// The request.
    pub asked: Request,
    /// What the script did with it.
    pub act: Act,
    /// When it was answered, and how. `None`: not yet, or after the caller had stopped listening.
    pub answer: Option<(Moment, Answer)>,
    /// How many calls had been made when it was answered: gives the order within one moment.
    pub calls_before_answer: usize,
    /// When the caller cancelled it.
    pub dropped: Option<Moment>,
}

impl Call {
    /// The claim of an attempt or a wait.
    ///
    /// # Panics
    /// If it was another call.
    pub fn claim(&self) -> &Claim {
        match &self.asked {
            Request::Claim(claim) => claim,
            other => panic!("not a claim: {other:?}"),
        }
    }

    /// The batch of a renewal.
    ///
    /// # Panics
    /// If it was another call.
    pub fn renewals(&self) -> &[Renewal] {
        match &self.asked {
            Request::Renewals(renewals) => renewals,
            other => panic!("not a batch: {other:?}"),
        }
    }

    /// The release request.
    ///
    /// # Panics
    /// If it was another call.
    pub fn release(&self) -> &Release {
        match &self.asked {
            Request::Release(release) => release,
            other => panic!("not a release: {other:?}"),
        }
    }

    /// The grants in its answer: of an attempt, a wait or a batch.
    pub fn grants(&self) -> Vec<Grant> {
        match &self.answer {
            Some((_, Answer::Attempt(Attempt::Granted(grant)) | Answer::Wake(Wake::Granted(grant)))) => {
                vec![grant.clone()]
            }
            Some((_, Answer::Renewed(answers))) => answers
                .iter()
                .filter_map(|answer| match answer {
                    Ok(Renewed::Held(grant)) => Some(grant.clone()),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}

type Script = Box<dyn FnMut(&Call) -> Act + Send>;
type OnGrant = Box<dyn Fn(&mut Grant) + Send + Sync>;
type OnBusy = Box<dyn Fn(&mut Busy) + Send + Sync>;

/// A backend around another that plays a script. Clones share script and log.
#[derive(Clone)]
pub struct Faulty {
    inner: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    info: Info,
    shared: Arc<Mutex<Shared>>,
    /// Counts how often held answers were let go.
    let_go: watch::Sender<u64>,
}

#[derive(Default)]
struct Shared {
    plans: HashMap<Verb, VecDeque<Act>>,
    scripts: HashMap<Verb, Script>,
    counts: HashMap<Verb, usize>,
    on_grant: Option<OnGrant>,
    on_busy: Option<OnBusy>,
    log: Vec<Call>,
}

impl Faulty {
    /// Wraps a backend; everything passes until a plan or script says otherwise. The log tells the time of each call by
    /// `clock`.
    pub fn new(inner: impl Backend, clock: Arc<dyn Clock>) -> Self {
        let info = inner.info();
        Faulty {
            inner: Arc::new(inner),
            clock,
            info,
            shared: Arc::default(),
            let_go: watch::Sender::default(),
        }
    }

    /// Changes its `info`. As a session store it makes grants endless; without fences it hides them.
    #[must_use]
    pub fn with_info(mut self, change: impl FnOnce(&mut Info)) -> Self {
        change(&mut self.info);
        self
    }

    /// What the next calls of a verb do, one after the other; later calls do what they did before.
    pub fn plan(&self, verb: Verb, acts: impl IntoIterator<Item = Act>) {
        self.shared.lock().plans.insert(verb, acts.into_iter().collect());
    }

    /// What every call of a verb does that is not planned.
    pub fn always(&self, verb: Verb, act: Act) {
        self.script(verb, move |_| act);
    }

    /// Decides, call by call, what every call of a verb does that is not planned.
    pub fn script(&self, verb: Verb, script: impl FnMut(&Call) -> Act + Send + 'static) {
        self.shared.lock().scripts.insert(verb, Box::new(script));
    }

    /// Lets go of the answers that [`Act::Held`] holds back now.
    pub fn let_go(&self) {
        self.let_go.send_modify(|times| *times += 1);
    }

    /// Changes every grant in an answer.
    pub fn on_grant(&self, change: impl Fn(&mut Grant) + Send + Sync + 'static) {
        self.shared.lock().on_grant = Some(Box::new(change));
    }

    /// Changes every busy answer.
    pub fn on_busy(&self, change: impl Fn(&mut Busy) + Send + Sync + 'static) {
        self.shared.lock().on_busy = Some(Box::new(change));
    }

    /// Every call so far, in order.
    pub fn log(&self) -> Vec<Call> {
        self.shared.lock().log.clone()
    }

    /// The calls of one verb so far, in order.
    pub fn calls(&self, verb: Verb) -> Vec<Call> {
        self.shared.lock().log.iter().filter(|call| call.verb == verb).cloned().collect()
    }

    /// How many calls of one verb there were.
    pub fn count(&self, verb: Verb) -> usize {
        self.shared.lock().counts.get(&verb).copied().unwrap_or_default()
    }

    /// How many calls have neither been answered nor cancelled.
    pub fn under_way(&self) -> usize {
        self.shared.lock().log.iter().filter(|call| call.answer.is_none() && call.dropped.is_none()).count()
    }

    /// Records the call, and decides what happens to it.
    fn open(&self, verb: Verb, asked: Request) -> (Act, Open) {
        let mut shared = self.shared.lock();
        let count = shared.counts.entry(verb).or_default();
        let number = *count;
        *count += 1;
        let at = self.clock.now();
        let mut call = Call {
            verb,
            number,
            at,
            asked,
            act: Act::Pass,
            answer: None,
            calls_before_answer: 0,
            dropped: None,
        };
        call.act = match shared.plans.get_mut(&verb).and_then(VecDeque::pop_front) {
            Some(act) => act,
            None => shared.scripts.get_mut(&verb).map_or(Act::Pass, |script| script(&call)),
        };
        let act = call.act;
        shared.log.push(call);
        let open = Open { faulty: self.clone(), index: shared.log.len() - 1, closed: false };
        (act, open)
    }

    fn is_session(&self) -> bool {
        self.info.liveness == Liveness::Session
    }

    /// Changes the grant to what this store would give.
    fn dress(&self, grant: &mut Grant) {
        if self.is_session() {
            grant.left = None;
            grant.expires_at_ms = None;
        }
        if !self.info.fenced {
            grant.fence = Fence::UNFENCED;
        }
        if let Some(change) = &self.shared.lock().on_grant {
            change(grant);
        }
    }

    /// Ends the lease or place of an id, and refuses the id from here on.
    async fn take_away(&self, name: &Name, id: LeaseId) -> Result<()> {
        let mut release = Release::new(name.clone(), id);
        release.unanswered = Some(Duration::ZERO);
        self.inner.release(&release).await.map(drop)
    }

    /// The ttl for the store behind this one: a session has none.
    fn stored_ttl(&self, ttl: Duration) -> Duration {
        if self.is_session() { Duration::from_secs(365 * 24 * 3600) } else { ttl }
    }
}

/// How the answers of one verb are made.
struct Voice<T> {
    fail: Box<dyn Fn(ErrorKind) -> T + Send + Sync>,
    gone: Box<dyn Fn(Gone) -> T + Send + Sync>,
    note: fn(&T) -> Answer,
}

impl<T: 'static> Voice<Result<T>> {
    fn new(gone: fn(Gone) -> T, note: fn(&Result<T>) -> Answer) -> Self {
        Voice { fail: Box::new(|kind| Err(scripted(kind))), gone: Box::new(move |why| Ok(gone(why))), note }
    }
}

fn scripted(kind: ErrorKind) -> Error {
    Error::new(kind, "the script says so")
}

/// A call that is not answered yet.
struct Open {
    faulty: Faulty,
    index: usize,
    closed: bool,
}

impl Open {
    fn close(mut self, answer: Answer) {
        self.closed = true;
        let now = self.faulty.clock.now();
        let mut shared = self.faulty.shared.lock();
        let calls = shared.log.len();
        let call = &mut shared.log[self.index];
        call.answer = Some((now, answer));
        call.calls_before_answer = calls;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.closed {
            let now = self.faulty.clock.now();
            self.faulty.shared.lock().log[self.index].dropped = Some(now);
        }
    }
}

async fn play<T: Send + 'static>(
    (act, open): (Act, Open),
    voice: Voice<T>,
    effect: impl Future<Output = T> + Send + 'static,
) -> T {
    let answer = match act {
        Act::Pass | Act::Only(_) => effect.await,
        Act::Fail(kind) => (voice.fail)(kind),
        Act::Slow(time) => {
            let answer = effect.await;
            tokio::time::sleep(time).await;
            answer
        }
        Act::Held => {
            let mut let_go = open.faulty.let_go.subscribe();
            let answer = effect.await;
            // The sender lives as long as the call.
            let _ = let_go.changed().await;
            answer
        }
        Act::SlowBefore(time) => {
            tokio::time::sleep(time).await;
            effect.await
        }
        Act::Never => pending().await,
        Act::NeverAfter => {
            effect.await;
            pending().await
        }
        Act::LostAfter(kind) => {
            effect.await;
            (voice.fail)(kind)
        }
        Act::Late(time) => {
            tokio::spawn(async move {
                tokio::time::sleep(time).await;
                effect.await;
            });
            pending().await
        }
        Act::Gone(gone) => (voice.gone)(gone),
        Act::Panic => panic!("the script says so"),
    };
    open.close((voice.note)(&answer));
    answer
}

fn note<T>(answer: &Result<T>, ok: impl FnOnce(&T) -> Answer) -> Answer {
    match answer {
        Ok(answer) => ok(answer),
        Err(error) => Answer::Failed(error.kind()),
    }
}

#[async_trait]
impl Backend for Faulty {
    fn info(&self) -> Info {
        self.info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let call = self.open(Verb::TryAcquire, Request::Claim(claim.clone()));
        let voice = Voice::new(Attempt::Gone, |answer| note(answer, |it| Answer::Attempt(it.clone())));
        if let Act::Gone(_) = call.0 {
            self.take_away(&claim.name, claim.id).await?;
        }
        let (this, mut claim) = (self.clone(), claim.clone());
        claim.ttl = self.stored_ttl(claim.ttl);
        let effect = async move {
            let mut attempt = this.inner.try_acquire(&claim).await?;
            match &mut attempt {
                Attempt::Granted(grant) => this.dress(grant),
                Attempt::Busy(busy) => {
                    if let Some(change) = &this.shared.lock().on_busy {
                        change(busy);
                    }
                }
                _ => {}
            }
            Ok(attempt)
        };
        play(call, voice, effect).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let call = self.open(Verb::Wait, Request::Claim(claim.clone()));
        let voice = Voice::new(|_| Wake::Retry, |answer| note(answer, |it| Answer::Wake(it.clone())));
        let (this, claim) = (self.clone(), claim.clone());
        let effect = async move {
            let mut wake = this.inner.wait(&claim).await?;
            if let Wake::Granted(grant) = &mut wake {
                this.dress(grant);
            }
            Ok(wake)
        };
        play(call, voice, effect).await
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        let call = self.open(Verb::Renew, Request::Renewals(leases.to_vec()));
        let count = leases.len();
        // One answer for each lease, whatever it is.
        let voice = Voice {
            fail: Box::new(move |kind| (0..count).map(|_| Err(scripted(kind))).collect()),
            gone: Box::new(move |gone| (0..count).map(|_| Ok(Renewed::Gone(gone))).collect()),
            note: |answers: &Vec<Result<Renewed>>| {
                let kind = |answer: &Result<Renewed>| match answer {
                    Ok(renewed) => Ok(renewed.clone()),
                    Err(error) => Err(error.kind()),
                };
                Answer::Renewed(answers.iter().map(kind).collect())
            },
        };
        if let Act::Gone(_) = call.0 {
            for lease in leases {
                let _ = self.take_away(&lease.name, lease.id).await;
            }
        }
        let most = if let Act::Only(most) = call.0 { most } else { count };
        let (this, mut leases) = (self.clone(), leases.to_vec());
        for lease in &mut leases {
            lease.ttl = self.stored_ttl(lease.ttl);
            lease.fence = lease.fence.filter(|_| self.info.fenced);
        }
        let effect = async move {
            let mut answers = this.inner.renew(&leases).await;
            for answer in &mut answers {
                if let Ok(Renewed::Held(grant)) = answer {
                    this.dress(grant);
                }
            }
            answers.truncate(most);
            answers
        };
        play(call, voice, effect).await
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        let call = self.open(Verb::Release, Request::Release(lease.clone()));
        let voice = Voice::new(Released::Gone, |answer| note(answer, |it| Answer::Released(*it)));
        if let Act::Gone(_) = call.0 {
            self.take_away(&lease.name, lease.id).await?;
        }
        let (this, mut lease) = (self.clone(), lease.clone());
        lease.fence = lease.fence.filter(|_| self.info.fenced);
        play(call, voice, async move { this.inner.release(&lease).await }).await
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        let call = self.open(Verb::Other, Request::Other);
        let voice = Voice::new(|_| Revoked::default(), |answer| note(answer, |_| Answer::Other));
        let (this, name) = (self.clone(), name.clone());
        play(call, voice, async move { this.inner.revoke(&name, now, only).await }).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let call = self.open(Verb::Other, Request::Other);
        let voice = Voice::new(|_| Page::default(), |answer| note(answer, |_| Answer::Other));
        let (this, query) = (self.clone(), query.clone());
        play(call, voice, async move { this.inner.inspect(&query).await }).await
    }

    async fn sweep(&self) -> Result<Swept> {
        let call = self.open(Verb::Other, Request::Other);
        let voice = Voice::new(|_| Swept::default(), |answer| note(answer, |_| Answer::Other));
        let this = self.clone();
        play(call, voice, async move { this.inner.sweep().await }).await
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("inner", &self.inner).finish_non_exhaustive()
    }
}
