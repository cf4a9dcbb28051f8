//! The suite on stores that can do less: it reports what does not apply, and tests what does.

#![allow(clippy::unwrap_used)] // also in helpers of tests

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::backend::{
    Attempt, Backend, Busy, Claim, Grant, Info, Liveness, Page, Query, Release, Released, Renewal, Renewed,
    Revoked, Swept, TimeAuthority, Wake,
};
use leasehold::backends::memory::Memory;
use leasehold::conformance::{Harness, Outcome, checks, run_all};
use leasehold::{Error, ErrorKind, Fence, Name, Result};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The memory store, able to do only what its `info` says.
#[derive(Debug)]
struct Limited {
    inner: Memory,
    info: Info,
}

impl Limited {
    fn is_session(&self) -> bool {
        self.info.liveness == Liveness::Session
    }

    /// The queue exists only while a claim is in `wait`, as in a database that waits itself.
    fn waits_itself(&self) -> bool {
        self.is_session() && self.info.push
    }

    fn unsupported<T>(&self) -> Result<T> {
        Err(Error::new(ErrorKind::Unsupported, "this store cannot do that"))
    }

    fn limit_claim(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        if !self.info.fifo || self.waits_itself() {
            claim.queue = None;
        }
        if self.is_session() {
            claim.ttl = DAY;
        }
        claim
    }

    fn limit_grant(&self, mut grant: Grant) -> Grant {
        if self.is_session() {
            (grant.left, grant.expires_at_ms) = (None, None);
        }
        if !self.info.fenced {
            grant.fence = Fence::UNFENCED;
        }
        grant
    }
}

/// Gives up a place when its waiter is gone.
struct Place<'a>(&'a Memory, &'a Claim);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let (memory, release) = (self.0.clone(), Release::new(self.1.name.clone(), self.1.id));
        tokio::spawn(async move { memory.release(&release).await });
    }
}

#[async_trait]
impl Backend for Limited {
    fn info(&self) -> Info {
        self.info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        Ok(match self.inner.try_acquire(&self.limit_claim(claim)).await? {
            Attempt::Granted(grant) => Attempt::Granted(self.limit_grant(grant)),
            Attempt::Busy(_) if self.waits_itself() => {
                let mut busy = Busy::unknown();
                busy.retry_in = Some(Duration::from_secs(60));
                Attempt::Busy(busy)
            }
            other => other,
        })
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        if !self.info.push {
            return std::future::pending().await;
        }
        if !self.waits_itself() {
            return Ok(match self.inner.wait(claim).await? {
                Wake::Granted(grant) => Wake::Granted(self.limit_grant(grant)),
                other => other,
            });
        }
        let queued = self.limit_claim(claim).queued(DAY);
        let place = Place(&self.inner, &queued);
        loop {
            if let Attempt::Granted(grant) = self.inner.try_acquire(&queued).await? {
                std::mem::forget(place);
                return Ok(Wake::Granted(self.limit_grant(grant)));
            }
            self.inner.wait(&queued).await?;
        }
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        if !self.info.notes && leases.iter().any(|renewal| renewal.note.is_some()) {
            return leases.iter().map(|_| self.unsupported()).collect();
        }
        let limit = |renewal: &Renewal| {
            let mut renewal = renewal.clone();
            if self.is_session() {
                (renewal.ttl, renewal.shorten) = (DAY, None);
            }
            if !self.info.fenced {
                renewal.fence = None;
            }
            renewal
        };
        let leases: Vec<Renewal> = leases.iter().map(limit).collect();
        let answers = self.inner.renew(&leases).await;
        let limit = |answer| match answer {
            Ok(Renewed::Held(grant)) => Ok(Renewed::Held(self.limit_grant(grant))),
            other => other,
        };
        answers.into_iter().map(limit).collect()
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        if !self.info.notes && lease.note.is_some() {
            return self.unsupported();
        }
        let mut lease = lease.clone();
        if !self.info.fenced {
            lease.fence = None;
        }
        self.inner.release(&lease).await
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        if self.info.revoke { self.inner.revoke(name, now, only).await } else { self.unsupported() }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        if matches!(query, Query::LeaseId(_)) && !self.info.find_by_id {
            return self.unsupported();
        }
        let mut page = self.inner.inspect(query).await?;
        for info in &mut page.items {
            if !self.info.fenced {
                info.last_fence = Fence::UNFENCED;
            }
            for holder in &mut info.holders {
                holder.grant = self.limit_grant(holder.grant.clone());
            }
        }
        Ok(page)
    }

    async fn sweep(&self) -> Result<Swept> {
        self.inner.sweep().await
    }
}

/// A store far away: requests and answers take a while, and overtake each other. A request arrives even if its caller
/// is gone.
#[derive(Debug, Clone)]
struct Distant {
    inner: Memory,
    most: Duration,
}

impl Distant {
    async fn travel(self) -> Memory {
        let most = self.most.as_micros() as u64;
        let part = RandomState::new().hash_one(()) % most;
        tokio::time::sleep(Duration::from_micros(part)).await;
        self.inner
    }

    async fn call<T, F>(&self, verb: impl FnOnce(Memory) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send,
    {
        let there = self.clone().travel();
        let answer = tokio::spawn(async move { verb(there.await).await }).await.unwrap();
        self.clone().travel().await;
        answer
    }
}

#[async_trait]
impl Backend for Distant {
    fn info(&self) -> Info {
        self.inner.info()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let claim = claim.clone();
        self.call(async move |memory: Memory| memory.try_acquire(&claim).await).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let wake = self.inner.wait(claim).await;
        self.clone().travel().await;
        wake
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        let leases = leases.to_vec();
        self.call(async move |memory: Memory| memory.renew(&leases).await).await
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        let lease = lease.clone();
        self.call(async move |memory: Memory| memory.release(&lease).await).await
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        let name = name.clone();
        self.call(async move |memory: Memory| memory.revoke(&name, now, only).await).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let query = query.clone();
        self.call(async move |memory: Memory| memory.inspect(&query).await).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.call(async move |memory: Memory| memory.sweep().await).await
    }
}

/// Runs the suite, which must pass, and says which checks did not apply.
async fn run(limit: impl FnOnce(&mut Info)) -> Vec<&'static str> {
    let mut info = Info::new("limited");
    limit(&mut info);
    info.notes = info.fenced && info.liveness == Liveness::Ttl;
    let store = Arc::new(Limited { inner: Memory::new(), info });
    let report = run_all(&Harness::new(store)).await;
    println!("{report}");
    report.assert_passed();
    assert_eq!(report.outcomes().count(), checks().len(), "every check is accounted for");
    let unapplied = report.outcomes().filter(|(_, outcome)| match outcome {
        Outcome::DoesNotApply(why) => !why.is_empty(),
        _ => false,
    });
    unapplied.map(|(check, _)| check.name()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_can_do_almost_nothing_passes_what_applies() {
    let unapplied = run(|info| {
        (info.fenced, info.fifo, info.push, info.shared, info.max_permits) = (false, false, false, false, 0);
        (info.downgrade, info.find_by_id, info.revoke, info.namespaced) = (false, false, false, false);
        (info.liveness, info.time, info.detects_loss) = (Liveness::Session, TimeAuthority::None, false);
    })
    .await;
    let applied = checks().len() - unapplied.len();
    assert!(applied >= 40, "only {applied} checks are left");
    assert!(!unapplied.contains(&"what_the_store_cannot_do_is_unsupported"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_push_or_queue_passes_what_applies() {
    let unapplied = run(|info| (info.fifo, info.push) = (false, false)).await;
    assert!(unapplied.contains(&"a_try_neither_overtakes_a_queue_nor_joins_one"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_a_queue_but_without_push_passes_what_applies() {
    run(|info| info.push = false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_few_permits_and_no_fences_passes_what_applies() {
    run(|info| (info.max_permits, info.fenced) = (2, false)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_store_that_waits_by_itself_passes_what_applies() {
    run(|info| {
        (info.liveness, info.time) = (Liveness::Session, TimeAuthority::None);
        info.check_every = Some(Duration::from_millis(100));
        (info.revoke, info.find_by_id) = (false, false);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_distant_store_passes_everything() {
    let store = Distant { inner: Memory::new(), most: Duration::from_millis(8) };
    let report = run_all(&Harness::new(Arc::new(store)).at_once(64)).await;
    println!("{report}");
    report.assert_passed();
}
