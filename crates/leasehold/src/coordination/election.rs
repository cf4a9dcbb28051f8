//! Leader election: one candidate leads at a time, in numbered terms.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::Mode;
use crate::client::guard::{Guard, LostSignal};
use crate::client::home::Client;
use crate::client::lock::Lock;
use crate::client::locks::Locks;
use crate::engine::held::GuardState;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::options::{Options, option_setters};

/// An election among all candidates of a name. Cheap to clone; made by [`Locks::election`](crate::Locks::election).
///
/// The leader is the client that holds the name alone, and its lease is its [`Term`]. So an election, a
/// [`Mutex`](crate::Mutex) and the write side of an [`RwLock`](crate::RwLock) with the same name exclude each other, and
/// a client that holds the mutex counts as the leader. Give an election a name of its own.
///
/// [`metadata`](Election::metadata) travels with the term: put an address there, and others find it with
/// [`leader`](Election::leader).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let locks = leasehold::Locks::connect("memory:").await?;
/// let election = locks.election("scheduler").metadata("10.0.0.7:9000");
/// let term = election.campaign().await?; // waits until it leads
/// term.run(async { /* lead, and pass term.number() with every write */ }).await?;
///
/// let leader = election.leader().await?.expect("it leads");
/// assert_eq!(leader.term, Some(term.number()));
/// assert_eq!(leader.metadata.as_deref(), Some("10.0.0.7:9000"));
/// term.resign().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Election {
    lock: Lock,
}

impl Election {
    pub(crate) fn new(locks: &Locks, name: &str) -> Self {
        Election { lock: Lock::new(locks, name) }
    }

    /// The name of the election.
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Waits until it leads, at most [`Options::max_wait`]. Candidates lead in the order in which they came, on stores
    /// that keep an order ([`Info::fifo`](crate::Info::fifo)).
    ///
    /// # Cancel safety
    /// If dropped, it leaves the queue and gives back what it may have got.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn campaign(&self) -> Result<Term> {
        self.lock.wait(Mode::Exclusive).await.map(Term::new)
    }

    /// Makes one attempt: `None` if another candidate leads or waits.
    ///
    /// # Cancel safety
    /// If dropped, it gives back what it may have got.
    ///
    /// # Errors
    /// As [`campaign`](Election::campaign), but never `Timeout`.
    pub async fn try_campaign(&self) -> Result<Option<Term>> {
        Ok(self.lock.once(Mode::Exclusive).await?.map(Term::new))
    }

    /// Waits until it leads, for at most `timeout`: `None` if its turn did not come. Zero means one attempt.
    ///
    /// # Cancel safety
    /// As [`campaign`](Election::campaign).
    ///
    /// # Errors
    /// As [`campaign`](Election::campaign), but never `Timeout`.
    pub async fn try_campaign_for(&self, timeout: Duration) -> Result<Option<Term>> {
        Ok(self.lock.within(Mode::Exclusive, timeout).await?.map(Term::new))
    }

    /// Campaigns, runs the work while it leads, stops the work if the term is lost, and always resigns.
    ///
    /// Unlike [`Mutex::with_lock`](crate::Mutex::with_lock) it sets no limit of its own for the wait.
    ///
    /// # Cancel safety
    /// If dropped, the work is dropped and the term is given back in the background.
    ///
    /// # Errors
    /// The work's own error, or this crate's error converted to it: those of [`campaign`](Election::campaign), and
    /// `Lost` if the term was lost before the work ended, even if the work succeeded.
    pub async fn lead<T, E, W>(&self, work: W) -> Result<T, E>
    where
        E: From<Error>,
        W: AsyncFnOnce(&Term) -> Result<T, E>,
    {
        let term = self.campaign().await?;
        let result = term.run(work(&term)).await;
        let leads = term.check();
        term.guard.release_after_work().await;
        let output = result??;
        leads?;
        Ok(output)
    }

    /// The leader as the store knows it at this moment; `None` if nobody leads. A client that holds the name in
    /// another way, as a reader or with a permit, is not the leader.
    ///
    /// It is for finding the leader, not for deciding whether to write: by the time you look at the answer another
    /// client may lead. If the answer takes longer than the leader's lease had left, the leader counts as gone.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad name; faults of the store.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let clock = &self.lock.client().clock;
        let asked = clock.now();
        let info = self.lock.locks().inspect(self.name()).await?;
        let took = clock.now().since(asked);
        let Some(holder) = info.holders.into_iter().find(|holder| holder.grant.mode == Mode::Exclusive)
        else {
            return Ok(None);
        };
        let left = holder.grant.left.map(|left| left.saturating_sub(took));
        let leader = Leader {
            term: Some(holder.grant.fence).filter(|fence| !fence.is_unfenced()),
            owner: holder.owner,
            metadata: holder.metadata,
            left,
        };
        Ok(Some(leader).filter(|leader| leader.left != Some(Duration::ZERO)))
    }

    option_setters!();

    pub(crate) fn options_mut(&mut self) -> &mut Options {
        self.lock.options_mut()
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.lock.client()
    }
}

/// The leader of an [`Election`], as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The number of its term; `None` where the store does not know it: without fences, and on `postgres+advisory:` for
    /// the leader in another client.
    pub term: Option<Fence>,
    /// Its owner label.
    pub owner: Arc<str>,
    /// The text that it attached, for example its address.
    pub metadata: Option<Arc<str>>,
    /// How long its lease lasts unless it is renewed; `None` on stores without a ttl.
    pub left: Option<Duration>,
}

/// Proof that this client leads. The client renews the lease in the background until the term is resigned, dropped or
/// lost.
///
/// It is a [`Guard`] of the election's name, and what a guard says about a lost lease holds for a lost term: work inside
/// [`run`](Term::run), or [`check`](Term::check) before each step that matters, and pass the [`number`](Term::number)
/// with every write, so that what you write to can refuse a leader of the past.
///
/// Dropping a term gives it back without blocking.
#[must_use = "the term ends as soon as it is dropped"]
#[derive(Debug)]
pub struct Term {
    guard: Guard,
}

impl Term {
    fn new(guard: Guard) -> Self {
        Term { guard }
    }

    /// The number of the term, which is the fence of its lease: higher than that of every earlier term.
    /// [`Fence::UNFENCED`] on stores without fences.
    pub fn number(&self) -> Fence {
        self.guard.fence()
    }

    /// The name of the election.
    pub fn name(&self) -> &Name {
        self.guard.name()
    }

    /// The owner label of this leader.
    pub fn owner(&self) -> &str {
        self.guard.owner()
    }

    /// How long the campaign took.
    pub fn waited(&self) -> Duration {
        self.guard.waited()
    }

    /// Whether it leads at this moment, without asking the store.
    pub fn is_leading(&self) -> bool {
        self.check().is_ok()
    }

    /// What is known about the term now, without asking the store.
    pub fn state(&self) -> GuardState {
        self.guard.state()
    }

    /// How long the term can be relied on unless its lease is renewed, without asking the store. Zero when it is lost;
    /// `None` on stores without a ttl.
    pub fn valid_for(&self) -> Option<Duration> {
        self.guard.valid_for()
    }

    /// Checks that it leads at this moment, without asking the store.
    ///
    /// # Errors
    /// `Lost` if not.
    pub fn check(&self) -> Result<()> {
        self.guard.check()
    }

    /// A future that resolves with the reason when the term is lost. See [`Guard::lost`].
    ///
    /// # Cancel safety
    /// Dropping it loses nothing; it can be cloned and awaited any number of times.
    pub fn lost(&self) -> LostSignal {
        self.guard.lost()
    }

    /// Runs a future while it leads, and drops it when the term is lost: on stores with a ttl, before another client
    /// can lead. See [`Guard::run`].
    ///
    /// # Cancel safety
    /// Dropping it drops the work.
    ///
    /// # Errors
    /// `Lost`; the work was dropped wherever it was.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        self.guard.run(work).await
    }

    /// Gives the term back and waits for the answer, so that the next candidate leads at once: `Released`, or `Lost` if
    /// the store no longer had the lease. See [`Guard::release`].
    ///
    /// # Cancel safety
    /// If dropped, the term is given back in the background.
    ///
    /// # Errors
    /// Faults of the store. The term then ends when its ttl passes.
    pub async fn resign(self) -> Result<GuardState> {
        self.guard.release().await
    }

    /// The guard of the lease, for what a term does not have.
    pub fn into_guard(self) -> Guard {
        self.guard
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.guard.client()
    }
}
