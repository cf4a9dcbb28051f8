//! Backends that panic, or answer only a part of a batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::backend::{Backend, Renewal};
use leasehold::backends::memory::Memory;
use leasehold::{Guard, GuardState, Locks, LostReason};
use testkit::faulty::{Act, Verb};
use testkit::paused::{Paused, settle};

use crate::{ids, ms};

#[tokio::test(start_paused = true)]
async fn a_backend_that_panics_harms_no_other_lease() {
    let world = Paused::new();
    let unlucky = world.locks.mutex("unlucky").ttl(ms(3000)).lock().await.unwrap();
    let lucky = world.locks.mutex("lucky").ttl(ms(3600)).lock().await.unwrap();
    let id = unlucky.lease_id();
    world.store.script(Verb::Renew, move |call| if ids(call).contains(&id) { Act::Panic } else { Act::Pass });
    assert_eq!(unlucky.lost().await, LostReason::DeadlinePassed);
    world.store.plan(Verb::Release, [Act::Panic]);
    drop(unlucky);
    tokio::time::sleep(ms(20_000)).await;
    assert_eq!(lucky.state(), GuardState::Held);
    let acquire = tokio::spawn({
        let mutex = world.locks.mutex("third");
        world.store.plan(Verb::TryAcquire, [Act::Panic]);
        async move { mutex.lock().await }
    });
    assert!(acquire.await.unwrap_err().is_panic());
    settle().await;
    let release = world.store.calls(Verb::Release).pop().unwrap();
    assert_eq!(release.release().name.as_str(), "third", "what it may have got is given back");
    assert!(release.release().unanswered.is_some());
    assert_eq!(lucky.release().await.unwrap(), GuardState::Released);
}

/// Panics before there is a future at all, as a hand-written backend may.
#[derive(Debug)]
struct Eager {
    memory: Memory,
    panics: AtomicUsize,
}

impl Eager {
    fn strike(&self) {
        let left = self.panics.load(Ordering::SeqCst);
        self.panics.store(left.saturating_sub(1), Ordering::SeqCst);
        assert!(left == 0, "no future for you");
    }
}

type Boxed<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

macro_rules! forward {
    ($($verb:ident($($arg:ident: $type:ty),*) -> $out:ty),* $(,)?) => {$(
        fn $verb<'life0, 'life1, 'async_trait>(&'life0 self, $($arg: &'life1 $type),*) -> Boxed<'async_trait, $out>
        where
            'life0: 'async_trait,
            'life1: 'async_trait,
            Self: 'async_trait,
        {
            self.strike();
            self.memory.$verb($($arg),*)
        }
    )*};
}

impl Backend for Eager {
    fn info(&self) -> leasehold::Info {
        self.memory.info()
    }

    forward! {
        try_acquire(claim: leasehold::backend::Claim) -> leasehold::Result<leasehold::backend::Attempt>,
        wait(claim: leasehold::backend::Claim) -> leasehold::Result<leasehold::backend::Wake>,
        renew(leases: [Renewal]) -> Vec<leasehold::Result<leasehold::backend::Renewed>>,
        release(lease: leasehold::backend::Release) -> leasehold::Result<leasehold::backend::Released>,
        inspect(query: leasehold::backend::Query) -> leasehold::Result<leasehold::backend::Page>,
    }

    fn revoke<'life0, 'life1, 'async_trait>(
        &'life0 self,
        name: &'life1 leasehold::Name,
        now: bool,
        only: Option<leasehold::Fence>,
    ) -> Boxed<'async_trait, leasehold::Result<leasehold::backend::Revoked>>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
        Self: 'async_trait,
    {
        self.memory.revoke(name, now, only)
    }

    fn sweep<'life0, 'async_trait>(
        &'life0 self,
    ) -> Boxed<'async_trait, leasehold::Result<leasehold::backend::Swept>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        self.memory.sweep()
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_panics_without_a_future_does_not_end_the_loop() {
    let world = Paused::new();
    let backend = Arc::new(Eager { memory: world.memory.clone(), panics: AtomicUsize::new(0) });
    let locks = Locks::builder(backend.clone())
        .clock(Arc::clone(&world.clock))
        .runtime(tokio::runtime::Handle::current())
        .build();
    let guard = locks.mutex("x").lock().await.unwrap();
    let other = locks.mutex("y").lock().await.unwrap();
    world.until(9000).await;
    backend.panics.store(1, Ordering::SeqCst);
    world.until(10_500).await;
    assert_eq!(guard.state(), GuardState::AtRisk);
    world.until(60_000).await;
    assert_eq!(guard.state(), GuardState::Held);
    backend.panics.store(1, Ordering::SeqCst);
    drop(other);
    settle().await;
    assert_eq!(backend.panics.load(Ordering::SeqCst), 0);
    world.until(120_000).await;
    assert_eq!(guard.state(), GuardState::Held);
    assert_eq!(guard.release().await.unwrap(), GuardState::Released);
}

#[tokio::test(start_paused = true)]
async fn leases_that_a_batch_gives_no_answer_for_are_tried_again() {
    let world = Paused::new();
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(world.locks.mutex(name).lock().await.unwrap());
    }
    world.store.plan(Verb::Renew, [Act::Only(1)]);
    world.until(10_000).await;
    let mut states: Vec<_> = guards.iter().map(Guard::state).collect();
    states.sort_by_key(|state| *state != GuardState::Held);
    assert_eq!(states, [GuardState::Held, GuardState::AtRisk, GuardState::AtRisk]);
    world.until(11_000).await;
    assert!(guards.iter().all(|guard| guard.state() == GuardState::Held));
    assert_eq!(world.store.calls(Verb::Renew)[1].renewals().len(), 2);
}
