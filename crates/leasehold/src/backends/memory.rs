//! `memory:` — the state machine in a sharded map, for tests and for a single process.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};

use crate::backend::{
    Attempt, Backend, Claim, Grant, Info, NameInfo, Page, PageBuilder, Query, Release, Released, Renewal,
    Renewed, Revoked, Swept, Wake,
};
use crate::backends::waiting::{Slot, Waiting};
use crate::clock::{Clock, Moment, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::marks::{Checked, Marks, WriteFence};
use crate::name::Name;
use crate::span;
use crate::state::{Answer, Now, Op, State};

/// More than there are cores, so that two tasks on different names rarely meet.
const SHARDS: usize = 64;

/// With fewer names than this, a shard does not look for counters to forget.
const SWEEP_FROM: usize = 1024;

/// A store must not forget a fence while an older lease could still be held.
const MIN_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// The store in memory. Each one is separate; clones are the same store.
///
/// Fences increase within one process only. `Query::LeaseId` looks at every name.
#[derive(Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

struct Inner {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    clock: Arc<dyn Clock>,
    retention: Duration,
    /// Expired leases that no sweep has reported yet.
    expired: AtomicU64,
    /// The highest fence that each resource has seen, by its stored form.
    marks: Mutex<HashMap<Arc<str>, Fence>>,
}

#[derive(Default)]
struct Shard {
    names: HashMap<Arc<str>, Entry>,
    /// With this many names, the shard looks for counters to forget: rarely enough to cost nothing, and often enough
    /// that unused names do not pile up.
    sweep_at: usize,
}

#[derive(Default)]
struct Entry {
    state: State,
    /// The waiters of this process; there are no others.
    waiting: Waiting,
}

impl Memory {
    /// An empty store.
    pub fn new() -> Self {
        Memory::build(Arc::new(SystemClock), Fence::RETENTION)
    }

    /// An empty store with another clock, for tests.
    #[cfg(feature = "test-util")]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Memory::build(clock, Fence::RETENTION)
    }

    /// An empty store that keeps the fence counters of unused names for this long instead of 7 days.
    ///
    /// # Errors
    /// `InvalidArgument` below a day, the longest ttl: the store could forget a fence that is still needed.
    pub fn with_retention(retention: Duration) -> Result<Self> {
        if retention < MIN_RETENTION {
            return Err(Error::invalid(format!(
                "a fence retention of {} could forget a fence that is still needed; it must be at least {}",
                span::show(retention),
                span::show(MIN_RETENTION)
            )));
        }
        Ok(Memory::build(Arc::new(SystemClock), retention))
    }

    fn build(clock: Arc<dyn Clock>, retention: Duration) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let (hasher, expired) = (RandomState::new(), AtomicU64::new(0));
        let marks = Mutex::default();
        Memory { inner: Arc::new(Inner { shards, hasher, clock, retention, expired, marks }) }
    }

    fn read_clock(&self) -> (Now, Moment) {
        let at = self.inner.clock.now();
        (Now { expiry: at.as_micros(), wall: self.inner.clock.wall_micros() }, at)
    }

    fn shard(&self, name: &Name) -> MutexGuard<'_, Shard> {
        let index = self.inner.hasher.hash_one(name.stored()) as usize % SHARDS;
        self.inner.shards[index].lock()
    }

    /// Runs one verb on one name, and the attempts of the waiters that it lets in.
    fn apply(&self, name: &Name, op: Op<'_>) -> Result<Answer> {
        let mut shard = self.shard(name);
        // Read under the lock, so that time never goes back for a name.
        let (now, at) = self.read_clock();
        if let Some(entry) = shard.names.get_mut(name.stored()) {
            self.note_expired(entry.state.expired(now));
            return entry.apply(now, at, op);
        }
        let mut entry = Entry::default();
        let answer = entry.apply(now, at, op);
        // A stray renewal of an unused name leaves nothing behind.
        if !entry.state.is_at_rest() {
            self.note_expired(shard.make_room(now, at, self.inner.retention));
            shard.names.insert(Arc::clone(name.stored_arc()), entry);
        }
        answer
    }

    fn note_expired(&self, leases: u64) {
        // Usually none; then the shared counter is left alone.
        if leases > 0 {
            self.inner.expired.fetch_add(leases, Ordering::Relaxed);
        }
    }

    /// Looks at every name, shard by shard.
    fn scan(&self, mut look: impl FnMut(&Arc<str>, &Entry, Now)) {
        for shard in &self.inner.shards {
            let shard = shard.lock();
            let (now, _) = self.read_clock();
            shard.names.iter().for_each(|(stored, entry)| look(stored, entry, now));
        }
    }

    /// What an inspection shows of a name, if it still matches: it was found a moment ago, and may have changed hands
    /// since.
    fn view(
        &self,
        name: &Name,
        asked: Option<&LeaseId>,
        wanted: impl Fn(&State, Now) -> bool,
    ) -> Option<NameInfo> {
        let shard = self.shard(name);
        let (now, _) = self.read_clock();
        let state = &shard.names.get(name.stored())?.state;
        wanted(state, now).then(|| state.view(name, now, asked))
    }
}

impl Default for Memory {
    fn default() -> Self {
        Memory::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("clock", &self.inner.clock).finish_non_exhaustive()
    }
}

#[async_trait]
impl Marks for Memory {
    async fn check(&self, resource: &Name, fence: WriteFence) -> Result<Checked> {
        let mut marks = self.inner.marks.lock();
        let mark = marks.entry(Arc::clone(resource.stored_arc())).or_default();
        *mark = fence.get().max(*mark);
        Ok(Checked::against(fence, *mark))
    }
}

#[async_trait]
impl Backend for Memory {
    fn info(&self) -> Info {
        Info::new("memory")
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        match self.apply(&claim.name, Op::Acquire(claim))? {
            Answer::Acquired(attempt) => Ok(attempt),
            other => Err(unexpected(&other)),
        }
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let started = self.inner.clock.now();
        // It is no longer a waiter: granted, or its place has lapsed. A new attempt will tell.
        let Some(slot) = self.shard(&claim.name).slot(claim) else { return Ok(Wake::Retry) };
        match slot.wait().await {
            None => Ok(Wake::Retry),
            Some((grant, at)) => Ok(Wake::Granted(Grant { waited: at.since(started), ..grant })),
        }
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        let renew = |renewal: &Renewal| match self.apply(&renewal.name, Op::Renew(renewal))? {
            Answer::Renewed(renewed) => Ok(renewed),
            other => Err(unexpected(&other)),
        };
        leases.iter().map(renew).collect()
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        match self.apply(&lease.name, Op::Release(lease))? {
            Answer::Released(released) => Ok(released),
            other => Err(unexpected(&other)),
        }
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        match self.apply(name, Op::Revoke { now, only })? {
            Answer::Revoked(revoked) => Ok(revoked),
            other => Err(unexpected(&other)),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let mut page = Page::default();
        match query {
            Query::Name(name) => {
                let seen = self.view(name, None, |_, _| true);
                page.items.push(seen.unwrap_or_else(|| NameInfo::unused(name.clone())));
            }
            Query::LeaseId(id) => {
                let mut found = Vec::new();
                self.scan(|stored, entry, now| {
                    if entry.state.knows(id, now) {
                        found.push(Arc::clone(stored));
                    }
                });
                let seen = |name: &Name| self.view(name, Some(id), |state, now| state.knows(id, now));
                page.items = names(found)?.iter().filter_map(seen).collect();
            }
            Query::Prefix { stored: prefix, limit, cursor } => {
                let mut listed = PageBuilder::new(*limit)?;
                let mut found = Vec::new();
                self.scan(|stored, entry, now| {
                    let after = cursor.as_ref().is_none_or(|cursor| **stored > **cursor);
                    if after && stored.starts_with(prefix.as_str()) && entry.state.is_in_use(now) {
                        found.push(Arc::clone(stored));
                    }
                });
                found.sort_unstable();
                for stored in found {
                    let seen = self.view(&Name::from_stored(&stored)?, None, State::is_in_use);
                    if seen.is_some_and(|seen| !listed.take(seen)) {
                        break;
                    }
                }
                page = listed.finish();
            }
        }
        Ok(page)
    }

    async fn sweep(&self) -> Result<Swept> {
        let mut total = Swept::default();
        for shard in &self.inner.shards {
            let mut shard = shard.lock();
            let (now, at) = self.read_clock();
            total += shard.sweep(now, at, self.inner.retention);
        }
        total.expired += self.inner.expired.swap(0, Ordering::Relaxed);
        Ok(total)
    }
}

fn names(stored: Vec<Arc<str>>) -> Result<Vec<Name>> {
    stored.iter().map(|stored| Name::from_stored(stored)).collect()
}

/// The error for an answer of the wrong kind, which the state machine never gives.
fn unexpected(answer: &Answer) -> Error {
    Error::new(ErrorKind::Internal, format!("the state machine answered out of turn: {answer:?}"))
}

impl Shard {
    fn slot(&self, claim: &Claim) -> Option<Arc<Slot>> {
        self.names.get(claim.name.stored())?.waiting.slot(&claim.id)
    }

    /// Sweeps if it is time. Returns how many leases had expired.
    fn make_room(&mut self, now: Now, at: Moment, retention: Duration) -> u64 {
        if self.names.len() < self.sweep_at.max(SWEEP_FROM) {
            return 0;
        }
        let swept = self.sweep(now, at, retention);
        self.sweep_at = self.names.len() * 2;
        swept.expired
    }

    fn sweep(&mut self, now: Now, at: Moment, retention: Duration) -> Swept {
        let mut total = Swept::default();
        self.names.retain(|_, entry| {
            if let Ok(Answer::Swept(swept)) = entry.apply(now, at, Op::Sweep) {
                total += swept;
            }
            let forget =
                entry.state.is_at_rest() && entry.state.last_fence().is_forgettable(now.wall, retention);
            total.counters += u64::from(forget);
            !forget
        });
        total
    }
}

impl Entry {
    /// Runs the verb, and at once the attempts of the waiters that it lets in, and of those that these let in, as long
    /// as they wait at this moment. A place with no waiter must not become a lease with no holder.
    fn apply(&mut self, now: Now, at: Moment, op: Op<'_>) -> Result<Answer> {
        let mut wake = Vec::new();
        let answer = self.state.apply(now, op, &mut wake);
        let mut vain = Vec::new();
        self.waiting.keep_in_step(&self.state, &op, &answer, &mut vain);
        vain.iter().for_each(|slot| slot.ring(None));
        let mut next = 0;
        while let Some(id) = wake.get(next).copied() {
            next += 1;
            let Some(waiter) = self.waiting.take(&id) else { continue };
            if !waiter.slot.is_waited_on() {
                waiter.slot.ring(None);
                continue;
            }
            match self.state.apply(now, Op::Acquire(&waiter.claim), &mut wake) {
                Ok(Answer::Acquired(Attempt::Granted(grant))) => waiter.slot.ring(Some((grant, at))),
                // The waiter learns of an error from its own attempt.
                _ => waiter.slot.ring(None),
            }
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Mode;

    #[test]
    fn a_retention_that_could_forget_a_needed_fence_is_refused() {
        let error = Memory::with_retention(Duration::from_secs(3600)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(Memory::with_retention(MIN_RETENTION).is_ok());
    }

    #[tokio::test]
    async fn counters_of_unused_names_are_dropped_after_the_retention() {
        #[derive(Debug)]
        struct Hand(std::sync::atomic::AtomicU64);
        impl Clock for Hand {
            fn now(&self) -> Moment {
                Moment::from_nanos(self.wall_micros() * 1000)
            }
            fn wall_micros(&self) -> u64 {
                self.0.load(std::sync::atomic::Ordering::SeqCst)
            }
        }
        let clock = Arc::new(Hand(1_793_000_000_000_000.into()));
        let memory = Memory::with_clock(clock.clone());
        for n in 0..5000 {
            let name = Name::new(&format!("job-{n}")).unwrap();
            let claim = Claim::new(name.clone(), Mode::Exclusive, Duration::from_secs(1), "me");
            assert!(matches!(memory.try_acquire(&claim).await.unwrap(), Attempt::Granted(_)));
            memory.release(&Release::new(name, claim.id)).await.unwrap();
        }
        assert_eq!(memory.sweep().await.unwrap().counters, 0);
        let retention = Fence::RETENTION.as_micros() as u64;
        clock.0.fetch_add(retention + 10_000_000, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(memory.sweep().await.unwrap().counters, 5000);
        // Without a sweep, new names make room for themselves.
        for round in 0..3 {
            for n in 0..200_000 / 3 {
                let name = Name::new(&format!("round-{round}-{n}")).unwrap();
                let claim = Claim::new(name.clone(), Mode::Exclusive, Duration::from_secs(1), "me");
                memory.try_acquire(&claim).await.unwrap();
                memory.release(&Release::new(name, claim.id)).await.unwrap();
            }
            clock.0.fetch_add(retention + 10_000_000, std::sync::atomic::Ordering::SeqCst);
        }
        let names: usize = memory.inner.shards.iter().map(|shard| shard.lock().names.len()).sum();
        assert!(names < 2 * 200_000 / 3, "{names} names are kept");
    }
}
