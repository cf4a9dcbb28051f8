//! Several names at once: all of them or none.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::join_all;

use crate::backend::{Mode, Query};
use crate::bugs::{self, Bug};
use crate::client::guard::{self, Guard, LostSignal};
use crate::client::home::Client;
use crate::client::lock::Lock;
use crate::client::locks::Locks;
use crate::clock::Moment;
use crate::engine::held::{GuardState, LostReason};
use crate::engine::limits::{BELIEVED, LAST_LOOK};
use crate::engine::wait::is_broken;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::options::{Options, option_setters};

/// Several names that are locked together, all of them or none. Cheap to clone; made by
/// [`Locks::all`](crate::Locks::all).
///
/// The names are taken one after the other, in the same order in every program, however they are listed. So two of
/// these never wait for each other in a circle, except on `postgres+advisory:` if two of their names share a key. A
/// program that holds one of the names as a plain lock while it waits for the others can still do so.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let locks = leasehold::Locks::connect("memory:").await?;
/// let transfer = locks.all(["account-7", "account-3"]).also_read("exchange-rates");
/// let guard = transfer.lock().await?;
/// guard.run(async { /* your work: cancelled if any of the three is lost */ }).await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MultiLock {
    locks: Locks,
    wanted: Vec<(Arc<str>, Mode)>,
}

/// One of the names, checked.
struct Part {
    name: Name,
    mode: Mode,
    lock: Lock,
}

/// How an acquire ended.
enum Outcome {
    Held(MultiGuard),
    /// Another client kept this name until the limit.
    Busy {
        name: Name,
        waited: Duration,
    },
}

impl MultiLock {
    pub(crate) fn new<N: AsRef<str>>(locks: &Locks, names: impl IntoIterator<Item = N>) -> Self {
        let wanted = names.into_iter().map(|name| (name.as_ref().into(), Mode::Exclusive));
        MultiLock { locks: locks.clone(), wanted: wanted.collect() }
    }

    /// Adds a name to hold alone.
    #[must_use]
    pub fn also(self, name: impl AsRef<str>) -> Self {
        self.with(name.as_ref(), Mode::Exclusive)
    }

    /// Adds a name to hold together with other readers.
    #[must_use]
    pub fn also_read(self, name: impl AsRef<str>) -> Self {
        self.with(name.as_ref(), Mode::Shared)
    }

    /// Adds a permit of the semaphore of this name.
    #[must_use]
    pub fn also_permit(self, name: impl AsRef<str>, max_count: u32) -> Self {
        self.with(name.as_ref(), Mode::Permit { limit: max_count })
    }

    fn with(mut self, name: &str, mode: Mode) -> Self {
        self.wanted.push((name.into(), mode));
        self
    }

    /// Waits until it holds all names, at most [`Options::max_wait`].
    ///
    /// It keeps renewing what it holds while it waits for the rest. If it loses one of them meanwhile, it gives
    /// everything back and begins again. [`Options::max_attempts`] counts for each name;
    /// [`Options::max_hold`] counts from the moment all names are held.
    ///
    /// # Cancel safety
    /// If dropped, it leaves the queue and gives back all that it may have got.
    ///
    /// # Errors
    /// `Timeout` after `max_wait`, with [`Error::waited`](crate::Error::waited) and the
    /// [name](crate::Error::name) that was missing; `InvalidArgument`, before anything is sent, also for an empty list
    /// and for a name that is listed in two modes; otherwise as [`Mutex::lock`](crate::Mutex::lock).
    pub async fn lock(&self) -> Result<MultiGuard> {
        match self.acquire(self.options().max_wait).await? {
            Outcome::Held(guard) => Ok(guard),
            Outcome::Busy { name, waited } => Err(Error::timed_out(waited).with_name(name)),
        }
    }

    /// Makes one attempt for each name: `None` if another client holds or waits for one of them. It then holds none.
    ///
    /// # Cancel safety
    /// If dropped, it gives back all that it may have got.
    ///
    /// # Errors
    /// As [`lock`](MultiLock::lock), but never `Timeout`.
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.try_lock_for(Duration::ZERO).await
    }

    /// Waits until it holds all names, for at most `timeout` in total: `None` if one was missing, and then it holds
    /// none. Zero means one attempt for each name.
    ///
    /// # Cancel safety
    /// As [`lock`](MultiLock::lock).
    ///
    /// # Errors
    /// As [`lock`](MultiLock::lock), but never `Timeout`.
    pub async fn try_lock_for(&self, timeout: Duration) -> Result<Option<MultiGuard>> {
        match self.acquire(Some(timeout)).await? {
            Outcome::Held(guard) => Ok(Some(guard)),
            Outcome::Busy { .. } => Ok(None),
        }
    }

    /// Runs the work while it holds all names: acquires, stops the work if one is lost, and always releases. See
    /// [`Mutex::with_lock`](crate::Mutex::with_lock).
    ///
    /// # Cancel safety
    /// If dropped, the work is dropped and all names are released in the background.
    ///
    /// # Errors
    /// The work's own error, or this crate's error converted to it: those of [`lock`](MultiLock::lock), and `Lost` if
    /// one of the leases was lost before the work ended, even if the work succeeded.
    pub async fn with_lock<T, E, W>(&self, work: W) -> Result<T, E>
    where
        E: From<Error>,
        W: AsyncFnOnce(&MultiGuard) -> Result<T, E>,
    {
        let guard = self.bounded().lock().await?;
        let result = guard.run(work(&guard)).await;
        let held = guard.check();
        guard.release_after_work().await;
        let output = result??;
        held?;
        Ok(output)
    }

    option_setters!();

    fn options(&self) -> &Options {
        &self.locks.options
    }

    pub(crate) fn options_mut(&mut self) -> &mut Options {
        Arc::make_mut(&mut self.locks.options)
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.locks.client
    }

    /// The same for a helper that waits: if it has to poll and no limit is set, this sets one.
    pub(crate) fn bounded(&self) -> Self {
        let mut bounded = self.clone();
        bounded.options_mut().bound_polling(&self.locks.client.info);
        bounded
    }

    /// Checks everything, before anything is sent. The order of the parts is the same in every program.
    fn parts(&self) -> Result<Vec<Part>> {
        let locks = self.locks.with_options(|options| {
            if let Some(hold) = options.max_hold {
                // As for one name: if this process hangs then, the store frees the names.
                options.ttl = options.ttl.min(hold);
                options.renew_every = options.renew_every.map(|every| every.min(options.ttl / 3));
            }
            (options.max_wait, options.max_hold) = (None, None);
        });
        let mut parts: Vec<Part> = Vec::with_capacity(self.wanted.len());
        for (given, mode) in &self.wanted {
            let name = self.locks.name(given)?;
            self.options().check(&self.locks.client.info, *mode, true)?;
            parts.push(Part { name, mode: *mode, lock: Lock::new(&locks, given) });
        }
        if !bugs::on(Bug::MultiUnordered) {
            parts.sort_by(|one, other| one.name.stored().cmp(other.name.stored()));
        }
        parts.dedup_by(|one, other| {
            one.name == other.name && one.mode == other.mode && !matches!(one.mode, Mode::Permit { .. })
        });
        if parts.is_empty() {
            return Err(Error::invalid("the list of names to lock together is empty"));
        }
        if let Some(twice) = parts.windows(2).find(|pair| pair[0].name == pair[1].name) {
            let error = Error::invalid(
                "the list of names to lock together has one name in two modes, or two permits of one semaphore",
            );
            return Err(error.with_name(twice[0].name.clone()));
        }
        Ok(parts)
    }

    async fn acquire(&self, limit: Option<Duration>) -> Result<Outcome> {
        let parts = self.parts()?;
        let client = self.client();
        // `close` waits for this, so it is dropped after the guards, whose releases `close` then finds.
        let _acquiring = client.renewer.acquiring();
        let started = client.clock.now();
        let waited = || client.clock.now().since(started);
        let busy = |name: &Name| Outcome::Busy { name: name.clone(), waited: waited() };
        let once = limit == Some(Duration::ZERO);
        let mut guards: Vec<Guard> = Vec::with_capacity(parts.len());
        let mut lost = AnyLost::of(&guards);
        // When the store last answered.
        let mut heard = None;
        loop {
            if lost.now().is_some() {
                // The first that is lost has this name; what is not lost is given back.
                let name =
                    guards.iter().find(|guard| guard.check().is_err()).map(|guard| guard.name().clone());
                guards.clear();
                (lost, heard) = (AnyLost::of(&guards), None);
                if let Some(name) = name.filter(|_| once) {
                    self.make_sure(&name, heard).await?;
                    return Ok(busy(&name));
                }
            }
            let Some(part) = parts.get(guards.len()) else { break };
            let left = limit.map(|limit| limit.saturating_sub(waited()));
            let late = !once && left == Some(Duration::ZERO);
            let got = if late {
                None
            } else {
                let got = tokio::select! {
                    biased;
                    _ = &mut lost, if !guards.is_empty() => continue,
                    got = part.acquire(left) => got,
                };
                let at_limit = !once && limit.is_some_and(|limit| waited() >= limit);
                match got {
                    // The limit cut off the attempt for a later name. The store may be there.
                    Err(error)
                        if error.kind() == ErrorKind::NetworkTimeout && at_limit && heard.is_some() =>
                    {
                        None
                    }
                    got => {
                        heard = Some(client.clock.now());
                        got?
                    }
                }
            };
            let Some(guard) = got else {
                self.make_sure(&part.name, heard).await?;
                if bugs::on(Bug::MultiPartsKept) {
                    std::mem::forget(guards);
                }
                return Ok(busy(&part.name));
            };
            lost.signals.push(guard.lost());
            guards.push(guard);
        }
        if let Some(hold) = self.options().max_hold {
            guards.iter().for_each(|guard| guard.hold_for(hold));
        }
        Ok(Outcome::Held(MultiGuard { guards, locks: self.locks.clone(), waited: waited() }))
    }

    /// Before it says "busy": asks the store to show that it is there, unless it has done so lately.
    async fn make_sure(&self, name: &Name, heard: Option<Moment>) -> Result<()> {
        let client = self.client();
        if heard.is_some_and(|heard| client.clock.now().since(heard) < BELIEVED) {
            return Ok(());
        }
        let query = Query::Name(name.clone());
        let look = client.backend.inspect(&query);
        let answer = self.locks.within(LAST_LOOK.min(self.options().request_timeout), look).await;
        match answer.and_then(|page| page) {
            Err(error) if is_broken(error.kind()) => Err(error.with_name(name.clone())),
            _ => Ok(()),
        }
    }
}

impl Part {
    async fn acquire(&self, left: Option<Duration>) -> Result<Option<Guard>> {
        match left {
            Some(left) => self.lock.within(self.mode, left).await,
            None => self.lock.wait(self.mode).await.map(Some),
        }
    }
}

/// Proof that all names of a [`MultiLock`] were granted. The client renews their leases in the background until the
/// guard is released or dropped.
///
/// The names are held together: if one lease is lost, this guard is lost. Use it as a [`Guard`](crate::Guard): work
/// inside [`run`](MultiGuard::run), or [`check`](MultiGuard::check) before each step that matters, and pass the
/// [`fence`](MultiGuard::fence) of each name to what that name protects.
#[must_use = "the locks are released as soon as the guard is dropped"]
pub struct MultiGuard {
    guards: Vec<Guard>,
    locks: Locks,
    waited: Duration,
}

impl MultiGuard {
    /// The guards of the single names, ordered by name.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// The guard of one name; `None` if that name is not part of the lock.
    pub fn guard(&self, name: impl AsRef<str>) -> Option<&Guard> {
        let name = self.locks.name(name).ok()?;
        self.guards.iter().find(|guard| *guard.name() == name)
    }

    /// The fencing token of one name; `None` if that name is not part of the lock.
    pub fn fence(&self, name: impl AsRef<str>) -> Option<Fence> {
        self.guard(name).map(Guard::fence)
    }

    /// How long the acquire took.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// What is known about the leases now, without asking the store: `Lost` if one is lost, `AtRisk` if one is at risk.
    pub fn state(&self) -> GuardState {
        let mut state = GuardState::Held;
        for guard in &self.guards {
            match guard.state() {
                GuardState::Held => {}
                GuardState::AtRisk => state = GuardState::AtRisk,
                // A guard is released together with this one only.
                GuardState::Lost | GuardState::Released => return GuardState::Lost,
            }
        }
        state
    }

    /// How long all leases can be relied on unless they are renewed: until the earliest deadline. Zero when one is not
    /// held; `None` for session locks, which have no ttl.
    pub fn valid_for(&self) -> Option<Duration> {
        self.guards.iter().filter_map(Guard::valid_for).min()
    }

    /// Checks that all leases can be relied on at this moment, without asking the store.
    ///
    /// # Errors
    /// `Lost` if one of them is lost, with its name.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::check)
    }

    /// A future that resolves with the reason when the first of the leases is lost. See
    /// [`Guard::lost`](crate::Guard::lost).
    ///
    /// # Cancel safety
    /// Dropping it loses nothing; it can be cloned and awaited any number of times.
    pub fn lost(&self) -> AnyLost {
        AnyLost::of(&self.guards)
    }

    /// Runs a future while all leases are held, and drops it when one of them is lost. See
    /// [`Guard::run`](crate::Guard::run).
    ///
    /// # Cancel safety
    /// Dropping it drops the work.
    ///
    /// # Errors
    /// `Lost`; the work was dropped wherever it was.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        match guard::until_lost(self.lost(), work).await {
            Ok(output) => Ok(output),
            // A lost lease stays lost, so one of the checks fails.
            Err(reason) => {
                Err(self.check().err().unwrap_or_else(|| Error::new(ErrorKind::Lost, reason.as_str())))
            }
        }
    }

    /// Takes it apart, into the guards of the single names, ordered by name.
    pub fn into_guards(self) -> Vec<Guard> {
        self.guards
    }

    /// Releases all leases at once and waits for the answers: `Released`, or `Lost` if the store no longer had one of
    /// them. See [`Guard::release`](crate::Guard::release).
    ///
    /// # Cancel safety
    /// If dropped, the releases are sent in the background.
    ///
    /// # Errors
    /// The first fault of the store, if no lease was lost. It was asked to release all of them.
    pub async fn release(self) -> Result<GuardState> {
        let answers = join_all(self.guards.into_iter().map(Guard::release)).await;
        if answers.iter().any(|answer| matches!(answer, Ok(GuardState::Lost))) {
            return Ok(GuardState::Lost);
        }
        answers.into_iter().try_fold(GuardState::Released, |_, answer| answer)
    }

    pub(crate) async fn release_after_work(self) {
        join_all(self.guards.into_iter().map(Guard::release_after_work)).await;
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.locks.client
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}

/// Resolves when the first of several leases is lost. See [`MultiGuard::lost`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug, Clone)]
pub struct AnyLost {
    signals: Vec<LostSignal>,
}

impl AnyLost {
    fn of(guards: &[Guard]) -> Self {
        let judged = if bugs::on(Bug::MultiLossIgnored) { 1 } else { guards.len() };
        AnyLost { signals: guards.iter().take(judged).map(Guard::lost).collect() }
    }

    /// The reason, if one of the leases is lost by now.
    pub fn now(&self) -> Option<LostReason> {
        self.signals.iter().find_map(LostSignal::now)
    }
}

impl Future for AnyLost {
    type Output = LostReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LostReason> {
        for signal in &mut self.signals {
            if let Poll::Ready(reason) = Pin::new(signal).poll(cx) {
                return Poll::Ready(reason);
            }
        }
        Poll::Pending
    }
}
