//! The guard: what a caller holds while it holds a lease.

mod notes;

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::futures::OwnedNotified;

use crate::backend::{Mode, Release, Released, Renewal, Renewed};
use crate::client::acquire::Acquired;
use crate::client::home::Client;
use crate::clock::Clock;
use crate::engine::held::{GuardState, HeldLease, LostReason, Sent, Terms};
use crate::engine::limits::SHORTEN_SLACK;
use crate::engine::renew::{self, ReleaseJob};
use crate::engine::telemetry;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease::Lease;
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::options::{MIN_GUARD_TTL, Options, ReleaseSource, check_ttl};

/// How often a shortening is retried when a renewal overtakes it. Each try is one request; more than a few mean that a
/// request takes longer than the time between renewals.
const SHORTEN_TRIES: u32 = 4;

/// Proof that a lease was granted. The client renews the lease in the background until the guard is released or
/// dropped.
///
/// A guard holds no data. **Before each step that matters, call [`check`](Guard::check), or do the work inside
/// [`run`](Guard::run), and pass [`fence`](Guard::fence) to what the lock protects**: a process can be paused at any
/// point, for longer than the ttl, and a network can be cut for longer than that. The guard then says `Lost` before
/// the store gives the name to another client, and the fence stops what was already in transit.
///
/// Dropping a guard releases the lease without blocking, from any thread, with or without a runtime.
///
/// A guard belongs to the process that acquired it. In a fork of that process the copy is `Lost`, and releasing or
/// dropping the copy does nothing.
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct Guard {
    cell: Arc<HeldLease>,
    client: Arc<Client>,
    options: Arc<Options>,
    waited: Duration,
    attempts: u32,
    /// The revision of the latest note.
    noted: AtomicU64,
    /// The release was sent and answered, or another part of the program now sends it.
    done: bool,
    source: ReleaseSource,
}

impl Guard {
    pub(crate) fn new(client: Arc<Client>, options: Arc<Options>, acquired: Acquired) -> Self {
        let Acquired { claim, grant, sent, waited, attempts } = acquired;
        let terms = Terms {
            name: claim.name,
            id: claim.id,
            owner: claim.owner,
            number: client.renewer.number(),
            ttl: options.ttl,
            renew_every: options.renewal_interval(),
            max_hold: options.max_hold,
        };
        let cell = Arc::new(HeldLease::new(terms, sent, &grant, client.info.check_every));
        client.renewer.schedule(&cell);
        let noted = AtomicU64::new(notes::first_revision(&grant));
        Guard { cell, client, options, waited, attempts, noted, done: false, source: ReleaseSource::Drop }
    }

    fn clock(&self) -> &dyn Clock {
        &*self.client.clock
    }

    /// Whether this guard is the copy in a fork of the holder.
    pub(crate) fn is_copy(&self) -> bool {
        self.cell.is_copy()
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The name that is locked.
    pub fn name(&self) -> &Name {
        &self.cell.name
    }

    /// The mode in which the lease is held.
    pub fn mode(&self) -> Mode {
        self.cell.mode()
    }

    /// The fencing token: pass it along with every write to what the lock protects.
    pub fn fence(&self) -> Fence {
        self.cell.fence
    }

    /// The id of the lease: a secret.
    pub fn lease_id(&self) -> LeaseId {
        self.cell.id
    }

    /// The owner label.
    pub fn owner(&self) -> &str {
        &self.cell.owner
    }

    /// How long the acquire took.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How many attempts the acquire took.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// What is known about the lease now, without asking the store.
    pub fn state(&self) -> GuardState {
        self.cell.state(self.clock())
    }

    /// How long the lease can be relied on unless it is renewed, without asking the store. Zero when it is not held;
    /// `None` for session locks, which have no ttl.
    pub fn valid_for(&self) -> Option<Duration> {
        self.cell.valid_for(self.clock())
    }

    /// Checks that the lease can be relied on at this moment, without asking the store.
    ///
    /// # Errors
    /// `Lost` if not.
    pub fn check(&self) -> Result<()> {
        match self.cell.lost_reason(self.clock()) {
            Some(reason) => Err(self.lost_error(reason)),
            None => Ok(()),
        }
    }

    fn lost_error(&self, reason: LostReason) -> Error {
        Error::new(ErrorKind::Lost, reason.as_str())
            .with_name(self.cell.name.clone())
            .with_lease_id(self.cell.id)
    }

    /// A future that resolves with the reason when the lease is lost; at once if it is lost already. A release never
    /// resolves it. It does not keep the lease alive.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing; it can be cloned and awaited any number of times.
    pub fn lost(&self) -> LostSignal {
        LostSignal { cell: Arc::clone(&self.cell), clock: Arc::clone(&self.client.clock), bell: None }
    }

    /// Runs a future while the lease is held, and drops it when the lease is lost.
    ///
    /// The deadline is checked before every poll, so that after a pause no step runs that should not. It is not
    /// checked after the last poll: work that has ended returns its output, even if the lease was lost during its last
    /// step. Call [`check`](Guard::check) afterwards if that matters, as [`with_lock`](crate::Mutex::with_lock) does.
    /// The guard is still held afterwards.
    ///
    /// # Cancel safety
    /// Dropping it drops the work.
    ///
    /// # Errors
    /// `Lost`; the work was dropped wherever it was.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        until_lost(self.lost(), work).await.map_err(|reason| self.lost_error(reason))
    }

    /// Renews the lease now, to last at least this long from now. It never gets shorter. Automatic renewal goes on.
    ///
    /// # Cancel safety
    /// If dropped, it may or may not have renewed. The local deadline moves only when the store has confirmed.
    ///
    /// # Errors
    /// `Lost` if the lease is gone; `InvalidArgument` for a bad ttl; faults of the store, which leave the
    /// guard `AtRisk`.
    pub async fn renew_for(&self, ttl: Duration) -> Result<()> {
        check_ttl(ttl, MIN_GUARD_TTL, self.client.info.max_ttl)?;
        self.check()?;
        let (renewal, sent) = self.cell.renewal(ttl, self.clock());
        self.ask(renewal, sent).await.map(drop)
    }

    /// Makes the lease end this soon unless it is renewed, and renews it for no longer than this from now on.
    ///
    /// The local deadline drops before the request is sent. The store does nothing if a renewal came in between; the
    /// client then asks again, a few times. [`valid_for`](Guard::valid_for) shows the result.
    ///
    /// # Cancel safety
    /// If dropped, the local deadline stays dropped; the store may or may not have followed.
    ///
    /// # Errors
    /// As [`renew_for`](Guard::renew_for).
    pub async fn shorten_to(&self, ttl: Duration) -> Result<()> {
        check_ttl(ttl, MIN_GUARD_TTL, self.client.info.max_ttl)?;
        self.check()?;
        let renew_every = self.options.renew_every.unwrap_or(ttl / 3).min(ttl / 3);
        for _ in 0..SHORTEN_TRIES {
            let renewals = self.cell.shorten(ttl, renew_every, self.clock());
            self.client.renewer.schedule(&self.cell);
            let (mut renewal, sent) = self.cell.renewal(ttl, self.clock());
            renewal.shorten = Some(renewals);
            let left = self.ask(renewal, sent).await?;
            if left.is_none_or(|left| left <= ttl.saturating_add(SHORTEN_SLACK)) {
                break;
            }
        }
        Ok(())
    }

    /// Ends renewing and holding this long from now, as [`Options::max_hold`] does from the grant on.
    pub(crate) fn hold_for(&self, hold: Duration) {
        self.cell.hold_for(hold, self.clock());
        self.client.renewer.schedule(&self.cell);
    }

    /// Turns an exclusive lease into a shared one; no other writer gets in between. Waiting readers enter.
    ///
    /// From the call on the guard is only shared, whatever the store answers. If the store does not confirm, the next
    /// renewals ask again. Downgrading a shared guard does nothing.
    ///
    /// # Cancel safety
    /// If dropped, the guard is shared; the store may or may not have followed.
    ///
    /// # Errors
    /// `Lost` if the lease is gone; `Mismatch` for a permit; `Unsupported` where the store cannot downgrade; faults of
    /// the store.
    pub async fn downgrade(&self) -> Result<()> {
        match self.mode() {
            Mode::Shared => {}
            Mode::Exclusive if self.client.info.downgrade => {}
            Mode::Exclusive => {
                let scheme = self.client.info.scheme;
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("{scheme}: cannot downgrade without a gap"),
                ));
            }
            Mode::Permit { .. } => {
                return Err(Error::new(ErrorKind::Mismatch, "a permit cannot be downgraded"));
            }
        }
        self.check()?;
        if !self.cell.downgrade() {
            return Ok(());
        }
        let (renewal, sent) = self.cell.renewal(self.cell.ttl(), self.clock());
        self.ask(renewal, sent).await.map(drop)
    }

    /// Sends one renewal and applies its answer. Returns the time that the store says is left.
    async fn ask(&self, renewal: Renewal, sent: Sent) -> Result<Option<Duration>> {
        self.check()?;
        let backend = &*self.client.backend;
        match renew::renew_one(backend, &renewal, self.options.request_timeout).await {
            Ok(Renewed::Held(grant)) => {
                self.cell.confirm(sent, &grant, self.clock());
                self.client.renewer.schedule(&self.cell);
                self.check().map(|()| grant.left)
            }
            Ok(Renewed::Gone(gone)) => {
                self.cell.refuse(gone, self.clock());
                self.check().map(|()| None)
            }
            Err(error) => {
                if error.is_retryable() {
                    self.cell.fail(sent, &error, self.clock());
                    self.client.renewer.schedule(&self.cell);
                }
                Err(error)
            }
        }
    }

    /// Gives up the guard but keeps the lease, as plain data. The lease can go to another process, or become a guard
    /// again with [`Locks::adopt`](crate::Locks::adopt). Nothing renews it from now on.
    pub fn into_lease(mut self) -> Lease {
        self.done = true;
        let valid = self.valid_for();
        // In a fork, nothing holds or renews it, and its locks may stay locked.
        let ttl = if self.is_copy() { self.options.ttl } else { self.cell.ttl() };
        if !self.is_copy() {
            self.end();
        }
        let expires = valid.map(|valid| self.clock().wall_micros() / 1000 + valid.as_millis() as u64);
        Lease {
            name: self.cell.name.clone(),
            id: self.cell.id,
            mode: self.cell.mode(),
            fence: self.cell.fence,
            owner: Arc::clone(&self.cell.owner),
            ttl,
            expires_at_ms: expires,
        }
    }

    /// Releases the lease and waits for the answer: `Released`, or `Lost` if the store no longer had the lease.
    ///
    /// A guard that is `Lost` sends the release too: it acts only on this very lease. If the store does not answer,
    /// the client tries again for [`Options::release_timeout`]; a lease that is gone after an unanswered try counts as
    /// released.
    ///
    /// # Cancel safety
    /// If dropped, the release is sent in the background.
    ///
    /// # Errors
    /// Faults of the store. The lease then ends when its ttl passes.
    pub async fn release(mut self) -> Result<GuardState> {
        if self.is_copy() {
            return Ok(GuardState::Lost);
        }
        let (held, held_for) = self.end();
        let job = ReleaseJob { held, ..self.release_job() };
        let answer = job.send(&*self.client.backend, self.clock()).await;
        self.done = true;
        telemetry::released(&job.release.name, &answer, Some(held_for));
        match answer? {
            Released::Done => Ok(GuardState::Released),
            Released::Gone(_) => Ok(GuardState::Lost),
        }
    }

    /// Releases the lease at the end of a `with_…` helper. A failure is reported, not returned.
    pub(crate) async fn release_after_work(mut self) {
        self.source = ReleaseSource::With;
        let job = self.release_job();
        if let Err(error) = self.release().await {
            renew::report(&error, &job);
        }
    }

    /// Ends holding and renewing. Returns whether the lease was held until now, and for how long.
    fn end(&self) -> (bool, Duration) {
        let held = self.cell.release(self.clock());
        self.client.renewer.forget(&self.cell);
        (held, self.clock().now().since(self.cell.since))
    }

    fn release_job(&self) -> ReleaseJob {
        let mut release = Release::new(self.cell.name.clone(), self.cell.id);
        release.fence = Some(self.cell.fence);
        ReleaseJob::new(release, &self.options, self.source)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A lease dropped in a fork still belongs to the parent.
        if !self.done && !self.is_copy() {
            let (held, held_for) = self.end();
            // Telemetry counts it when the store answers.
            let job = ReleaseJob { held, held_for: Some(held_for), ..self.release_job() };
            self.client.renewer.send_release(job);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.cell.name)
            .field("mode", &self.mode())
            .field("fence", &self.fence())
            .field("state", &self.state())
            .field("valid_for", &self.valid_for())
            .finish_non_exhaustive()
    }
}

/// Runs `work` until it ends, or drops it when `lost` resolves, which is polled first each time.
pub(crate) async fn until_lost<F: Future, L: Future>(
    lost: L,
    work: F,
) -> std::result::Result<F::Output, L::Output> {
    let mut lost = pin!(lost);
    let mut work = pin!(work);
    poll_fn(|cx| match lost.as_mut().poll(cx) {
        Poll::Ready(reason) => Poll::Ready(Err(reason)),
        Poll::Pending => work.as_mut().poll(cx).map(Ok),
    })
    .await
}

/// Runs `work` under `guard` and releases the guard whatever happens. The work's own error is returned.
pub(crate) async fn with<T, E, W>(guard: Guard, work: W) -> std::result::Result<T, E>
where
    E: From<Error>,
    W: AsyncFnOnce(&Guard) -> std::result::Result<T, E>,
{
    let result = guard.run(work(&guard)).await;
    // `run` checks before each step, so the last step may have outlasted the lease.
    let held = guard.check();
    guard.release_after_work().await;
    let output = result??;
    held?;
    Ok(output)
}

/// Resolves when a lease is lost. See [`Guard::lost`].
#[must_use = "futures do nothing unless awaited"]
pub struct LostSignal {
    cell: Arc<HeldLease>,
    clock: Arc<dyn Clock>,
    bell: Option<Pin<Box<OwnedNotified>>>,
}

impl LostSignal {
    /// The reason, if the lease is lost by now.
    pub fn now(&self) -> Option<LostReason> {
        self.cell.lost_reason(&*self.clock)
    }
}

impl Future for LostSignal {
    type Output = LostReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LostReason> {
        loop {
            // Look first: the deadline counts, even if no timer has noticed it yet.
            if let Some(reason) = self.now() {
                return Poll::Ready(reason);
            }
            match &mut self.bell {
                Some(bell) => {
                    ready!(bell.as_mut().poll(cx));
                    self.bell = None;
                }
                // Subscribe first and look on the next turn, so that no signal in between is missed.
                None => {
                    let mut bell = Box::pin(self.cell.lost_bell().notified_owned());
                    bell.as_mut().enable();
                    self.bell = Some(bell);
                }
            }
        }
    }
}

impl Clone for LostSignal {
    fn clone(&self) -> Self {
        LostSignal { cell: Arc::clone(&self.cell), clock: Arc::clone(&self.clock), bell: None }
    }
}

impl fmt::Debug for LostSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LostSignal").field(&self.now()).finish()
    }
}
