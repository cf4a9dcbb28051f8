//! A memory store that asks the test before it answers.

#![allow(dead_code)] // each test binary uses its part

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use leasehold::backend::{
    Attempt, Claim, Page, Query, Release, Released, Renewal, Renewed, Revoked, Swept, Wake,
};
use leasehold::backends::memory::Memory;
use leasehold::{Backend, Error, ErrorKind, Fence, Info, Name, Result};

/// The methods of the contract that do I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    TryAcquire,
    Wait,
    Renew,
    Release,
    Revoke,
    Inspect,
    Sweep,
}

/// Called before the store is asked: an error becomes the answer.
pub(crate) type Before = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) memory: Memory,
    before: Arc<dyn Fn(Verb) -> Before + Send + Sync>,
}

impl Fake {
    pub(crate) fn new<F>(before: impl Fn(Verb) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        Fake { memory: Memory::new(), before: Arc::new(move |verb| Box::pin(before(verb))) }
    }

    /// A store that answers some verbs with an error.
    pub(crate) fn failing(verbs: &'static [Verb], kind: ErrorKind) -> Self {
        Fake::new(move |verb| async move {
            if verbs.contains(&verb) { Err(Error::new(kind, "the test wants it so")) } else { Ok(()) }
        })
    }

    /// A store that does not answer some verbs.
    pub(crate) fn hanging(verbs: &'static [Verb]) -> Self {
        Fake::new(move |verb| async move {
            if verbs.contains(&verb) {
                std::future::pending::<()>().await;
            }
            Ok(())
        })
    }
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fake")
    }
}

#[async_trait::async_trait]
impl Backend for Fake {
    fn info(&self) -> Info {
        self.memory.info()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        (self.before)(Verb::TryAcquire).await?;
        self.memory.try_acquire(claim).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        (self.before)(Verb::Wait).await?;
        self.memory.wait(claim).await
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        match (self.before)(Verb::Renew).await {
            Ok(()) => self.memory.renew(leases).await,
            Err(error) => leases.iter().map(|_| Err(Error::new(error.kind(), "as the test wants"))).collect(),
        }
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        (self.before)(Verb::Release).await?;
        self.memory.release(lease).await
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        (self.before)(Verb::Revoke).await?;
        self.memory.revoke(name, now, only).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        (self.before)(Verb::Inspect).await?;
        self.memory.inspect(query).await
    }

    async fn sweep(&self) -> Result<Swept> {
        (self.before)(Verb::Sweep).await?;
        self.memory.sweep().await
    }
}
