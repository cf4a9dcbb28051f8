//! The only renewal loop: one per client. It also sends the releases that no caller awaits.
//!
//! It runs on the library's own thread, so that a caller that blocks its runtime keeps its locks. Logs and callbacks,
//! which may block too, run on another thread. The loop takes due leases from one ordered queue, in batches. Batches
//! run side by side, so one that hangs delays no lease of another. Within a batch the store decides how long one lease
//! may hold back the others, because it answers for all of them together.
//!
//! One file because the loop, its queue and the releases in it share one lock.

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::backend::{Backend, Claim, Release, Released, Renewal, Renewed};
use crate::cancel::Cancel;
use crate::clock::{Clock, Moment, Timer};
use crate::engine::give_back::{self, Times};
use crate::engine::held::{HeldLease, Sent, Task};
use crate::engine::limits::{ABORT_PATIENCE, REPORT_PATIENCE};
use crate::engine::reporter::{self, contained};
use crate::engine::telemetry;
use crate::error::{Error, ErrorKind, Result};
use crate::options::{OnReleaseError, Options, ReleaseFailure, ReleaseSource};

/// Leases in one call to the store: enough to spread the cost of a round trip, few enough that the answer comes soon.
const BATCH: usize = 512;

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Debug)]
pub(crate) struct Renewer {
    backend: Arc<dyn Backend>,
    tells_loss: bool,
    clock: Arc<dyn Clock>,
    /// The clock is the system's, so a timer of the system can follow it.
    by_system: bool,
    queue: Mutex<Queue>,
    bell: Notify,
    numbers: AtomicU64,
    /// Releases that wait to be sent or are in flight.
    releases: Arc<Outstanding>,
    /// Reports that the program has yet to take, if `close` waits for them.
    reports: Arc<Outstanding>,
    /// Acquires that have begun and may still have something to give back.
    acquires: Arc<Outstanding>,
    /// The client's switch: no more acquires.
    closed: Cancel,
}

/// What `close` waits for.
#[derive(Debug, Default)]
struct Outstanding {
    count: AtomicU64,
    /// Notified when the count reaches zero.
    idle: Notify,
}

impl Outstanding {
    fn is_none(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Resolves when the count is zero.
    async fn over(&self) {
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            idle.as_mut().enable();
            if self.is_none() {
                return;
            }
            idle.await;
        }
    }

    /// Resolves when the count is zero, or after this time, which `runtime` measures.
    async fn over_within(&self, time: Duration, runtime: &Handle) {
        if self.is_none() {
            return;
        }
        let mut patience = JoinSet::new();
        patience.spawn_on(async move { tokio::time::sleep(time).await }, runtime);
        tokio::select! {
            () = self.over() => {}
            _ = patience.join_next() => {}
        }
    }
}

/// Counts as one outstanding item until it is dropped.
#[derive(Debug)]
pub(crate) struct Token(Arc<Outstanding>);

impl Token {
    fn new(outstanding: &Arc<Outstanding>) -> Self {
        outstanding.count.fetch_add(1, Ordering::SeqCst);
        Token(Arc::clone(outstanding))
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

#[derive(Debug)]
struct Queue {
    due: BTreeMap<(Moment, u64), Arc<HeldLease>>,
    /// The loop sleeps until then; anything due earlier must wake it.
    armed: Moment,
    releases: Vec<ReleaseJob>,
    /// Leases whose end the store is to report.
    watches: Vec<(Arc<HeldLease>, Claim)>,
    /// Dropped when the program has taken everything that was reported before.
    marks: Vec<Token>,
    /// The client is gone: finish the remaining work, then end.
    ended: bool,
    /// The loop has ended, for whatever reason: nothing takes work from here any more.
    over: bool,
}

/// Marks the client as dead when the loop ends: by itself, by a panic, or with the runtime it ran on.
struct Life(Arc<Renewer>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.die();
    }
}

/// Cells taken out of the queue. If the clock panics, the remaining ones go back, so that a client that dies knows all
/// its leases.
struct Taken<'a> {
    renewer: &'a Renewer,
    cells: VecDeque<Arc<HeldLease>>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.cells.iter().for_each(|cell| self.renewer.schedule(cell));
    }
}

/// A release that no caller awaits.
pub(crate) struct ReleaseJob {
    pub(crate) release: Release,
    pub(crate) request_timeout: Duration,
    pub(crate) release_timeout: Duration,
    pub(crate) source: ReleaseSource,
    pub(crate) on_error: Option<OnReleaseError>,
    /// Whether the lease was held until now, as far as the client knows.
    pub(crate) held: bool,
    /// How long a guard had held it; `None` if there was no guard.
    pub(crate) held_for: Option<Duration>,
    /// What `close` waits for, if it is sent in the background.
    pub(crate) token: Option<Token>,
}

impl std::fmt::Debug for ReleaseJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReleaseJob").field("source", &self.source).finish_non_exhaustive()
    }
}

impl ReleaseJob {
    pub(crate) fn new(release: Release, options: &Options, source: ReleaseSource) -> Self {
        ReleaseJob {
            release,
            request_timeout: options.request_timeout,
            release_timeout: options.release_timeout,
            source,
            on_error: options.on_release_error.clone(),
            held: true,
            held_for: None,
            token: None,
        }
    }

    /// Sends the release, and again while the store does not answer.
    pub(crate) async fn send(&self, backend: &dyn Backend, clock: &dyn Clock) -> Result<Released> {
        self.send_counted(backend, clock, &AtomicU64::new(0)).await
    }

    /// As `send`; also counts how often it was sent.
    pub(crate) async fn send_counted(
        &self,
        backend: &dyn Backend,
        clock: &dyn Clock,
        tries: &AtomicU64,
    ) -> Result<Released> {
        let times = Times { call: self.request_timeout, total: self.release_timeout };
        let call = || {
            tries.fetch_add(1, Ordering::Relaxed);
            backend.release(&self.release)
        };
        give_back::release(&self.release, self.held, times, clock, call).await
    }
}

impl Renewer {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        by_system: bool,
        closed: Cancel,
    ) -> Self {
        Renewer {
            tells_loss: backend.info().tells_loss,
            backend,
            clock,
            by_system,
            queue: Mutex::new(Queue {
                due: BTreeMap::new(),
                armed: Moment::NEVER,
                releases: Vec::new(),
                watches: Vec::new(),
                marks: Vec::new(),
                ended: false,
                over: false,
            }),
            bell: Notify::new(),
            numbers: AtomicU64::new(0),
            releases: Arc::default(),
            reports: Arc::default(),
            acquires: Arc::default(),
            closed,
        }
    }

    /// A number for a new held lease.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Puts a held lease into its position in the queue: when it is new, and whenever its times have changed.
    pub(crate) fn schedule(&self, cell: &Arc<HeldLease>) {
        let mut queue = self.queue.lock();
        if queue.over {
            drop(queue);
            return cell.abandon();
        }
        let (had, due) = cell.schedule();
        if had == due {
            return;
        }
        queue.due.remove(&(had, cell.number));
        if due != Moment::NEVER {
            queue.due.insert((due, cell.number), Arc::clone(cell));
        }
        let ring = due < queue.armed;
        drop(queue);
        if ring {
            self.bell.notify_one();
        }
    }

    /// Takes a held lease out of the queue.
    pub(crate) fn forget(&self, cell: &HeldLease) {
        let mut queue = self.queue.lock();
        queue.due.remove(&(cell.unschedule(), cell.number));
    }

    /// Sends a release in the background.
    pub(crate) fn send_release(&self, mut job: ReleaseJob) {
        job.token = Some(Token::new(&self.releases));
        let mut queue = self.queue.lock();
        if queue.over {
            drop(queue);
            return self.unsent(job);
        }
        queue.releases.push(job);
        drop(queue);
        self.bell.notify_one();
    }

    /// Marks the beginning of an acquire. It ends when the token is dropped, after its give-backs.
    pub(crate) fn acquiring(&self) -> Token {
        Token::new(&self.acquires)
    }

    /// Resolves when no acquire is under way, then no release is outstanding, and then the program has taken what was
    /// reported about them. Waits only for a limited time, which `runtime` measures, for acquires that do not end and
    /// for a program that takes no reports.
    pub(crate) async fn settled(&self, runtime: &Handle) {
        self.acquires.over_within(ABORT_PATIENCE, runtime).await;
        self.releases.over().await;
        self.mark();
        self.reports.over_within(REPORT_PATIENCE, runtime).await;
    }

    /// Counts as one outstanding report until the program has taken all earlier ones.
    fn mark(&self) {
        let mut queue = self.queue.lock();
        if !queue.over {
            queue.marks.push(Token::new(&self.reports));
            drop(queue);
            self.bell.notify_one();
        }
    }

    /// Whether the loop has ended before the client.
    pub(crate) fn is_dead(&self) -> bool {
        self.queue.lock().over
    }

    /// Marks the client as dead: nothing is renewed or released in the background any more, so no guard may believe
    /// that it is.
    pub(crate) fn die(&self) {
        let mut queue = self.queue.lock();
        queue.over = true;
        let (due, releases) = (std::mem::take(&mut queue.due), std::mem::take(&mut queue.releases));
        queue.watches.clear();
        queue.marks.clear();
        let early = !queue.ended;
        drop(queue);
        if early {
            telemetry::died();
        }
        for cell in due.into_values() {
            cell.abandon();
        }
        // Cancel last, so that a listener finds no guard that still claims to hold.
        self.closed.cancel();
        releases.into_iter().for_each(|job| self.unsent(job));
    }

    /// Lets the loop end when nothing is left to do.
    pub(crate) fn end(&self) {
        self.queue.lock().ended = true;
        self.bell.notify_one();
    }

    /// The best timer for its clock, on a runtime of our own.
    pub(crate) fn timer(&self) -> Timer {
        if self.by_system { Timer::system() } else { Timer::Naps }
    }

    /// Runs the loop. If it is dropped, even before it has begun, the client is dead.
    pub(crate) fn run(self: Arc<Self>, timer: Timer) -> impl Future<Output = ()> + Send + use<> {
        let life = Life(Arc::clone(&self));
        async move {
            let _life = life;
            self.work(timer).await;
        }
    }

    async fn work(self: Arc<Self>, timer: Timer) {
        let mut work = FuturesUnordered::<Job>::new();
        // Kept apart from the work: they end with their leases, and the loop does not wait for that.
        let mut watches = FuturesUnordered::<Job>::new();
        while let Some(next) = self.start_due(&mut work) {
            for (cell, claim) in std::mem::take(&mut self.queue.lock().watches) {
                watches.push(Box::pin(Arc::clone(&self).watch(cell, claim)));
            }
            tokio::select! {
                biased;
                Some(()) = work.next(), if !work.is_empty() => {}
                Some(()) = watches.next(), if !watches.is_empty() => {}
                () = self.bell.notified() => {}
                () = timer.sleep_until(next, &*self.clock) => {}
            }
        }
    }

    /// Starts everything that is due. Returns when to look again; `None` when all is over.
    fn start_due(self: &Arc<Self>, work: &mut FuturesUnordered<Job>) -> Option<Moment> {
        loop {
            let mut queue = self.queue.lock();
            let marks = std::mem::take(&mut queue.marks);
            if !marks.is_empty() {
                drop(queue);
                reporter::afterwards(move || drop(marks));
                continue;
            }
            let now = self.clock.now();
            let releases = std::mem::take(&mut queue.releases);
            let mut cells = VecDeque::new();
            // Not too many at a time: acquires and releases wait for this lock.
            while cells.len() < BATCH {
                let Some(entry) = queue.due.first_entry().filter(|entry| entry.key().0 <= now) else { break };
                let cell = entry.remove();
                cell.unschedule();
                cells.push_back(cell);
            }
            if releases.is_empty() && cells.is_empty() {
                if queue.ended && work.is_empty() && queue.due.is_empty() {
                    return None;
                }
                queue.armed = queue.due.first_key_value().map_or(Moment::NEVER, |((due, _), _)| *due);
                return Some(queue.armed);
            }
            drop(queue);
            for job in releases {
                work.push(Box::pin(Arc::clone(self).send(job)));
            }
            let mut batch = Vec::new();
            let mut taken = Taken { renewer: self, cells };
            while let Some(cell) = taken.cells.front().cloned() {
                match cell.task(&*self.clock) {
                    Task::Renew(renewal, sent) => batch.push((Arc::clone(&cell), *renewal, sent)),
                    Task::Release => {
                        let release = Release::new(cell.name.clone(), cell.id);
                        self.send_release(ReleaseJob::new(release, &Options::default(), ReleaseSource::Drop));
                    }
                    Task::Nothing => {}
                }
                self.schedule(&cell);
                taken.cells.pop_front();
            }
            if !batch.is_empty() {
                work.push(Box::pin(Arc::clone(self).renew(batch)));
            }
        }
    }

    /// Renews one batch and gives each lease its answer.
    async fn renew(self: Arc<Self>, batch: Vec<(Arc<HeldLease>, Renewal, Sent)>) {
        let mut cells = Vec::with_capacity(batch.len());
        let mut renewals = Vec::with_capacity(batch.len());
        for (cell, renewal, sent) in batch {
            cells.push((cell, sent));
            renewals.push(renewal);
        }
        // Each lease gives up when its own time is over; the call continues for the one with the most time.
        let timeout = cells.iter().map(|(cell, _)| cell.renewal_timeout()).max().unwrap_or_default();
        // Making the future may panic too.
        let call = AssertUnwindSafe(async { self.backend.renew(&renewals).await }).catch_unwind();
        let mut answers = match tokio::time::timeout(timeout, call).await {
            Ok(Ok(answers)) => answers.into_iter(),
            Ok(Err(_)) => Vec::new().into_iter(),
            // The leases have noticed the timeout by themselves.
            Err(_) => return cells.iter().for_each(|_| telemetry::renewed(None)),
        };
        for (cell, sent) in cells {
            let answer = answers.next();
            telemetry::renewed(answer.as_ref());
            match answer {
                Some(Ok(Renewed::Held(grant))) => {
                    cell.confirm(sent, &grant, &*self.clock);
                    // Only now, because most leases are over before their first renewal.
                    if self.tells_loss
                        && let Some(claim) = cell.begin_watch()
                    {
                        self.queue.lock().watches.push((Arc::clone(&cell), claim));
                    }
                }
                Some(Ok(Renewed::Gone(gone))) => cell.refuse(gone, &*self.clock),
                Some(Err(error)) => cell.fail(sent, &error, &*self.clock),
                None => cell.fail(sent, &"the backend panicked or gave too few answers", &*self.clock),
            }
            self.schedule(&cell);
        }
    }

    /// Waits until the store reports that a lease may be over, then makes the loop check it.
    async fn watch(self: Arc<Self>, cell: Arc<HeldLease>, claim: Claim) {
        let call = AssertUnwindSafe(async { self.backend.wait(&claim).await }).catch_unwind();
        // Ignore the answer: if the store cannot report, the loop checks as often as for any other store.
        let _ = call.await;
        cell.reported(&*self.clock);
        self.schedule(&cell);
    }

    /// Sends one release and reports a failure.
    async fn send(self: Arc<Self>, mut job: ReleaseJob) {
        let call = job.send(&*self.backend, &*self.clock);
        let answer = AssertUnwindSafe(call)
            .catch_unwind()
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the backend panicked")));
        if job.held_for.is_some() {
            telemetry::released(&job.release.name, &answer, job.held_for);
        }
        if let Err(error) = answer {
            // Not in the report, which may have to wait behind a log that blocks.
            let _sent = job.token.take();
            reporter::call_back(move || report(&error, &job));
        }
    }

    /// Reports a release that can no longer be sent.
    fn unsent(&self, mut job: ReleaseJob) {
        job.token = Some(Token::new(&self.reports));
        let error =
            Error::new(ErrorKind::Aborted, "the client's background work has ended before it was sent");
        reporter::call_back(move || report(&error, &job));
    }
}

/// Reports a failed release to the callback, or to the log, without names.
pub(crate) fn report(error: &Error, job: &ReleaseJob) {
    telemetry::release_failed(&job.release.name, job.source, error);
    if let Some(callback) = &job.on_error {
        let failure =
            ReleaseFailure { name: &job.release.name, lease_id: job.release.id, source: job.source };
        // A callback that panics must not end the renewals of all other leases.
        contained(|| callback(error, &failure));
    }
}

/// Renews one lease, once.
pub(crate) async fn renew_one(
    backend: &dyn Backend,
    renewal: &Renewal,
    request_timeout: Duration,
) -> Result<Renewed> {
    let call = backend.renew(std::slice::from_ref(renewal));
    let answer = match tokio::time::timeout(request_timeout, call).await {
        Ok(mut answers) => answers
            .pop()
            .unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "the backend gave no answer"))),
        Err(_) => Err(Error::new(ErrorKind::NetworkTimeout, "the store did not answer in time")),
    };
    telemetry::renewed(Some(&answer));
    answer
}
