//! Leader election for blocking callers.

use std::time::Duration;

use super::Guard;
use crate::client::guard::LostSignal;
use crate::coordination::election::Leader;
use crate::engine::held::{GuardState, LostReason};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::options::{Options, option_setters};

/// An election among all candidates of a name, as [`leasehold::Election`](crate::Election). Made by
/// [`Locks::election`](super::Locks::election).
///
/// ```
/// # let locks = leasehold::blocking::Locks::connect("memory:")?;
/// let election = locks.election("scheduler");
/// let term = election.campaign()?;
/// assert_eq!(election.leader()?.expect("it leads").term, Some(term.number()));
/// term.resign()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Election(pub(super) crate::Election);

impl Election {
    /// As [`leasehold::Election::name`](crate::Election::name).
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// As [`leasehold::Election::campaign`](crate::Election::campaign), blocking.
    pub fn campaign(&self) -> Result<Term> {
        self.block_on(self.0.campaign()).map(Term)
    }

    /// As [`leasehold::Election::try_campaign`](crate::Election::try_campaign), blocking.
    pub fn try_campaign(&self) -> Result<Option<Term>> {
        Ok(self.block_on(self.0.try_campaign())?.map(Term))
    }

    /// As [`leasehold::Election::try_campaign_for`](crate::Election::try_campaign_for), blocking.
    pub fn try_campaign_for(&self, timeout: Duration) -> Result<Option<Term>> {
        Ok(self.block_on(self.0.try_campaign_for(timeout))?.map(Term))
    }

    /// Campaigns, runs the work, and always resigns, even if the work panics.
    ///
    /// Work that blocks cannot be stopped: call [`Term::check`] in it before each step that matters.
    ///
    /// # Errors
    /// The work's own error, or this crate's error converted to it: those of [`campaign`](Election::campaign), and
    /// `Lost` if the term was lost before the work ended, even if the work succeeded.
    pub fn lead<T, E>(&self, work: impl FnOnce(&Term) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        let term = self.campaign()?;
        let result = work(&term);
        let leads = term.check();
        term.resign_after_work();
        let output = result?;
        leads?;
        Ok(output)
    }

    /// As [`leasehold::Election::leader`](crate::Election::leader), blocking.
    pub fn leader(&self) -> Result<Option<Leader>> {
        self.block_on(self.0.leader())
    }

    option_setters!();

    fn options_mut(&mut self) -> &mut Options {
        self.0.options_mut()
    }

    fn block_on<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.0.client().block_on(future)
    }
}

/// Proof that this client leads, as [`leasehold::Term`](crate::Term).
///
/// **Before each step that matters, look at [`check`](Term::check), and pass the [`number`](Term::number) with every
/// write.** Dropping a term gives it back without blocking.
#[must_use = "the term ends as soon as it is dropped"]
#[derive(Debug)]
pub struct Term(crate::Term);

impl Term {
    /// As [`leasehold::Term::number`](crate::Term::number).
    pub fn number(&self) -> Fence {
        self.0.number()
    }

    /// As [`leasehold::Term::name`](crate::Term::name).
    pub fn name(&self) -> &Name {
        self.0.name()
    }

    /// As [`leasehold::Term::owner`](crate::Term::owner).
    pub fn owner(&self) -> &str {
        self.0.owner()
    }

    /// As [`leasehold::Term::waited`](crate::Term::waited).
    pub fn waited(&self) -> Duration {
        self.0.waited()
    }

    /// As [`leasehold::Term::is_leading`](crate::Term::is_leading).
    pub fn is_leading(&self) -> bool {
        self.0.is_leading()
    }

    /// As [`leasehold::Term::state`](crate::Term::state).
    pub fn state(&self) -> GuardState {
        self.0.state()
    }

    /// As [`leasehold::Term::valid_for`](crate::Term::valid_for).
    pub fn valid_for(&self) -> Option<Duration> {
        self.0.valid_for()
    }

    /// As [`leasehold::Term::check`](crate::Term::check).
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// A signal of the loss, which any thread can [read](LostSignal::now) and any task can await.
    pub fn lost(&self) -> LostSignal {
        self.0.lost()
    }

    /// Waits until the term is lost, for at most `timeout`. Returns the reason, or `None` if the term is not lost.
    pub fn wait_lost_for(&self, timeout: Duration) -> Option<LostReason> {
        self.0.client().wait_lost_for(self.lost(), timeout)
    }

    /// As [`leasehold::Term::resign`](crate::Term::resign), blocking.
    pub fn resign(self) -> Result<GuardState> {
        Guard(self.0.into_guard()).release()
    }

    /// As [`leasehold::Term::into_guard`](crate::Term::into_guard).
    pub fn into_guard(self) -> Guard {
        Guard(self.0.into_guard())
    }

    /// The same term for async callers.
    pub fn into_async(self) -> crate::Term {
        self.0
    }

    fn resign_after_work(self) {
        Guard(self.0.into_guard()).release_after_work();
    }
}
