//! What every lock type is made of: a client, a name, options.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Mode;
use crate::client::acquire::{self, Acquired, Outcome, Request};
use crate::client::guard::Guard;
use crate::client::home::Client;
use crate::client::locks::Locks;
use crate::engine::wait::Limit;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::name::Name;
use crate::options::Options;

/// What every lock type is made of: a client, a name, options.
#[derive(Clone)]
pub(crate) struct Lock {
    locks: Locks,
    /// Constructors are infallible; the first acquire reports a bad name.
    name: std::result::Result<Name, Arc<str>>,
    /// The name as the caller gave it, for `name()`.
    given: Arc<str>,
}

impl Lock {
    pub(crate) fn new(locks: &Locks, given: &str) -> Self {
        let name = locks.name(given).map_err(|error| error.message().into());
        let given = name.as_ref().map_or_else(|_| given.into(), |name| name.as_str().into());
        Lock { locks: locks.clone(), name, given }
    }

    pub(crate) fn name(&self) -> &str {
        &self.given
    }

    pub(crate) fn locks(&self) -> &Locks {
        &self.locks
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.locks.client
    }

    pub(crate) fn options(&self) -> &Options {
        &self.locks.options
    }

    pub(crate) fn options_mut(&mut self) -> &mut Options {
        Arc::make_mut(&mut self.locks.options)
    }

    /// Checks everything, then runs the wait loop.
    async fn acquire<T>(
        &self,
        mode: Mode,
        limit: Limit,
        guarded: bool,
        accept: impl FnOnce(Acquired) -> T,
    ) -> Result<Outcome<T>> {
        let client = &self.locks.client;
        let name = self.name.clone().map_err(|message| Error::invalid(message.to_string()))?;
        self.locks.options.check(&client.info, mode, guarded)?;
        client.start()?;
        let request = Request { client, name, mode, options: &self.locks.options, limit, guarded };
        acquire::acquire(request, accept).await
    }

    fn guard(&self, acquired: Acquired) -> Guard {
        Guard::new(Arc::clone(&self.locks.client), Arc::clone(&self.locks.options), acquired)
    }

    /// Waits for up to `max_wait`, or for ever if it is not set.
    pub(crate) async fn wait(&self, mode: Mode) -> Result<Guard> {
        let limit = Limit::from_max_wait(self.options().max_wait);
        match self.acquire(mode, limit, true, |acquired| self.guard(acquired)).await? {
            Outcome::Acquired(guard) => Ok(guard),
            Outcome::Busy { waited } => Err(self.timed_out(waited)),
        }
    }

    /// Makes one attempt.
    pub(crate) async fn once(&self, mode: Mode) -> Result<Option<Guard>> {
        self.within(mode, Duration::ZERO).await
    }

    /// Waits for up to `timeout`.
    pub(crate) async fn within(&self, mode: Mode, timeout: Duration) -> Result<Option<Guard>> {
        let limit = Limit::from_max_wait(Some(timeout));
        match self.acquire(mode, limit, true, |acquired| self.guard(acquired)).await? {
            Outcome::Acquired(guard) => Ok(Some(guard)),
            Outcome::Busy { .. } => Ok(None),
        }
    }

    /// Acquires a plain lease; otherwise returns how long it waited in vain.
    pub(crate) async fn lease(&self, mode: Mode, limit: Limit) -> Result<Result<Lease, Duration>> {
        let accept = |acquired: Acquired| Lease::granted(acquired.claim, &acquired.grant);
        match self.acquire(mode, limit, false, accept).await? {
            Outcome::Acquired(lease) => Ok(Ok(lease)),
            Outcome::Busy { waited } => Ok(Err(waited)),
        }
    }

    /// The lock as the `with_…` helpers use it: if it has to poll and no limit is set, this sets one.
    pub(crate) fn bounded(&self) -> Lock {
        let mut lock = self.clone();
        lock.options_mut().bound_polling(&self.locks.client.info);
        lock
    }

    pub(crate) fn timed_out(&self, waited: Duration) -> Error {
        let error = Error::timed_out(waited);
        match &self.name {
            Ok(name) => error.with_name(name.clone()),
            Err(_) => error,
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.given).field("locks", &self.locks).finish()
    }
}
