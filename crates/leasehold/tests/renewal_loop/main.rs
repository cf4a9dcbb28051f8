//! The renewal loop in paused time, against a store in which every step can fail, hang or lose its answer.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use leasehold::backend::{Backend, Liveness, Renewal};
use leasehold::backends::memory::Memory;
use leasehold::{ErrorKind, Gone, Guard, LeaseId, Locks, LostReason, Mode, State};
use testkit::faulty::{Act, Call, Verb};
use testkit::paused::{Paused, believed, settle};

const EVERY_KIND: [ErrorKind; 13] = [
    ErrorKind::InvalidArgument,
    ErrorKind::Unavailable,
    ErrorKind::Busy,
    ErrorKind::NetworkTimeout,
    ErrorKind::AuthFailed,
    ErrorKind::RateLimited,
    ErrorKind::Timeout,
    ErrorKind::Aborted,
    ErrorKind::Lost,
    ErrorKind::Mismatch,
    ErrorKind::Deadlock,
    ErrorKind::Unsupported,
    ErrorKind::Internal,
];

const HOUR: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn ids(call: &Call) -> Vec<LeaseId> {
    call.renewals().iter().map(|renewal| renewal.id).collect()
}

// The cadence.

#[tokio::test(start_paused = true)]
async fn a_guard_is_renewed_every_third_of_its_ttl_and_not_at_once() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    let other = world.other();
    // For twenty ttls.
    for second in 0..600 {
        world.until(second * 1000 + 500).await;
        assert_eq!(guard.state(), State::Held);
        assert_eq!(world.store.count(Verb::Renew) as u64, second / 10);
        guard.check().unwrap();
        assert!(other.mutex("x").try_lock().await.unwrap().is_none());
    }
    assert_eq!(world.times(Verb::Renew), (1..60).map(|n| n * 10_000).collect::<Vec<_>>());
    for call in world.store.calls(Verb::Renew) {
        let [renewal] = call.renewals() else { panic!("one lease, one renewal") };
        assert_eq!((renewal.id, renewal.ttl), (guard.lease_id(), ms(30_000)));
        assert_eq!(renewal.fence, Some(guard.fence()));
        assert!(renewal.shorten.is_none() && renewal.mode.is_none() && renewal.raise_fence.is_none());
    }
    assert_eq!(guard.release().await.unwrap(), State::Released);
}

#[tokio::test(start_paused = true)]
async fn the_cadence_can_be_chosen() {
    let world = Paused::new();
    let _guard = world.locks.mutex("x").ttl(ms(9000)).renew_every(ms(1500)).lock().await.unwrap();
    world.until(7000).await;
    assert_eq!(world.times(Verb::Renew), [1500, 3000, 4500, 6000]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_waited_for_is_renewed_a_third_of_its_ttl_after_it_was_granted() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.end_after(ms(3000), holder);
    let guard = world.locks.mutex("x").ttl(ms(3000)).lock().await.unwrap();
    assert_eq!((guard.waited(), guard.valid_for()), (ms(3000), Some(ms(6000) - ms(60) - ms(2) - ms(3000))));
    world.until(5500).await;
    assert_eq!(world.times(Verb::Renew), [4000, 5000]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_does_not_delay_the_next_renewal() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.store.always(Verb::Renew, Act::Slow(ms(4000)));
    world.until(45_000).await;
    assert_eq!(world.times(Verb::Renew), [10_000, 20_000, 30_000, 40_000]);
    assert_eq!(guard.state(), State::Held);
    assert_eq!(world.deadline(&guard), ms(40_000) + believed(30_000));
}

#[tokio::test(start_paused = true)]
async fn a_lock_taken_while_the_loop_sleeps_is_renewed_in_its_own_time() {
    let world = Paused::new();
    let long = world.locks.mutex("long").lock().await.unwrap();
    world.until(1000).await;
    let short = world.locks.mutex("short").ttl(ms(300)).lock().await.unwrap();
    world.until(3050).await;
    assert_eq!((long.state(), short.state()), (State::Held, State::Held));
    let expected: Vec<_> = (1..=20).map(|n| 1000 + n * 100).collect();
    assert_eq!(world.times(Verb::Renew), expected);
}

#[tokio::test(start_paused = true)]
async fn two_thousand_guards_are_renewed_in_a_few_calls() {
    let world = Paused::new();
    let mut guards = Vec::new();
    for n in 0..2000 {
        guards.push(world.locks.mutex(format!("x{n}")).lock().await.unwrap());
    }
    world.until(35_000).await;
    let calls = world.store.calls(Verb::Renew);
    assert!(calls.len() <= 3 * 4, "{} calls", calls.len());
    for round in 1..=3 {
        let mut renewed: Vec<_> = calls
            .iter()
            .filter(|call| call.at.since(calls[0].at) == ms((round - 1) * 10_000))
            .flat_map(ids)
            .collect();
        renewed.sort_unstable();
        renewed.dedup();
        assert_eq!(renewed.len(), 2000, "every lease once, in each round");
    }
    assert_eq!(calls.iter().map(|call| call.renewals().len()).sum::<usize>(), 6000);
    assert!(guards.iter().all(|guard| guard.state() == State::Held));
}

#[tokio::test(start_paused = true)]
async fn what_is_released_dropped_or_handed_over_is_no_longer_renewed() {
    let world = Paused::new();
    let kept = world.locks.mutex("kept").lock().await.unwrap();
    let released = world.locks.mutex("released").lock().await.unwrap();
    let dropped = world.locks.mutex("dropped").lock().await.unwrap();
    let handed = world.locks.mutex("handed").lock().await.unwrap();
    world.until(11_000).await;
    assert_eq!(world.store.calls(Verb::Renew).iter().flat_map(ids).count(), 4);
    released.release().await.unwrap();
    drop(dropped);
    let lease = handed.into_lease();
    assert_eq!((lease.ttl, lease.mode), (ms(30_000), Mode::Exclusive));
    world.until(95_000).await;
    let later: Vec<_> = world.store.calls(Verb::Renew).iter().skip(1).flat_map(ids).collect();
    assert_eq!(later.len(), 8);
    assert!(later.iter().all(|id| *id == kept.lease_id()));
    assert_eq!(world.store.count(Verb::Release), 2, "what was handed over is not released");
    assert!(world.is_free("handed").await, "and ends when its time is over");
}

// Renewals that fail.

#[tokio::test(start_paused = true)]
async fn one_failed_renewal_puts_a_lease_at_risk_and_never_loses_it() {
    let mut acts: Vec<_> =
        EVERY_KIND.iter().flat_map(|kind| [Act::Fail(*kind), Act::LostAfter(*kind)]).collect();
    acts.extend([Act::Panic, Act::Only(0)]);
    for act in acts {
        let world = Paused::new();
        let guard = world.locks.mutex("x").lock().await.unwrap();
        let lost = guard.lost();
        world.store.plan(Verb::Renew, [act]);
        world.until(9999).await;
        assert_eq!(guard.state(), State::Held);
        world.until(10_000).await;
        assert_eq!(guard.state(), State::AtRisk, "{act:?}");
        guard.check().unwrap();
        assert_eq!(world.deadline(&guard), believed(30_000), "nothing was confirmed");
        world.until(10_999).await;
        assert_eq!(guard.state(), State::AtRisk);
        world.until(11_000).await;
        assert_eq!(guard.state(), State::Held, "{act:?}");
        assert_eq!(world.deadline(&guard), ms(11_000) + believed(30_000));
        world.until(45_000).await;
        assert_eq!(world.times(Verb::Renew), [10_000, 11_000, 21_000, 31_000, 41_000]);
        assert_eq!((guard.state(), lost.now()), (State::Held, None));
        assert_eq!(guard.release().await.unwrap(), State::Released);
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_ttl_is_tried_again_soon_enough() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").ttl(ms(1200)).lock().await.unwrap();
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    world.until(1100).await;
    assert_eq!(world.times(Verb::Renew), [400, 500, 600, 700, 800, 900, 1000, 1100]);
    world.store.always(Verb::Renew, Act::Pass);
    world.until(1150).await;
    assert_eq!(guard.state(), State::AtRisk, "a blip that outlasts its last chance is still no loss");
    world.until(1186).await;
    assert_eq!(guard.state(), State::Lost, "but after the deadline there is no chance");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_is_lost_exactly_at_its_local_deadline() {
    let acts = [
        Act::Fail(ErrorKind::Unavailable),
        Act::Fail(ErrorKind::Internal),
        Act::Never,
        Act::SlowBefore(ms(20_000)),
        Act::Panic,
        Act::Only(0),
    ];
    for act in acts {
        for ttl in [50, 100, 777, 30_000] {
            let world = Paused::new();
            let guard = world.locks.mutex("x").ttl(ms(ttl)).lock().await.unwrap();
            world.store.always(Verb::Renew, act);
            let end = believed(ttl);
            tokio::time::sleep_until(world.start + end - Duration::from_micros(1500)).await;
            assert_eq!(guard.state(), State::AtRisk, "{act:?} {ttl}");
            assert_eq!(world.deadline(&guard), end);
            let reason = guard.lost().await;
            assert_eq!(reason, LostReason::DeadlinePassed);
            // Timers count whole milliseconds.
            assert!(
                world.elapsed() >= end && world.elapsed() <= end + ms(1),
                "{act:?}: {:?}",
                world.elapsed()
            );
            assert_eq!(guard.state(), State::Lost);
            assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
            assert_eq!(guard.valid_for(), Some(Duration::ZERO));
            let info = world.look("x").await;
            assert_eq!(info.holders[0].id, guard.lease_id(), "before the store gives it to another");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_when_the_renewal_was_sent() {
    for act in [Act::Slow(ms(3000)), Act::SlowBefore(ms(3000))] {
        let world = Paused::new();
        let guard = world.locks.mutex("x").lock().await.unwrap();
        world.store.plan(Verb::Renew, [act]);
        world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
        world.until(12_999).await;
        assert_eq!(world.deadline(&guard), believed(30_000));
        world.until(13_000).await;
        assert_eq!(world.deadline(&guard), ms(10_000) + believed(30_000));
        assert_eq!(guard.lost().await, LostReason::DeadlinePassed);
        assert_eq!(world.elapsed(), ms(10_000) + believed(30_000));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_renewal_is_noticed_tried_again_and_never_hides_the_loss() {
    for act in [Act::Never, Act::NeverAfter] {
        let world = Paused::new();
        let guard = world.locks.mutex("x").ttl(ms(12_000)).lock().await.unwrap();
        world.store.always(Verb::Renew, act);
        world.until(5999).await;
        assert_eq!(guard.state(), State::Held);
        world.until(6000).await;
        assert_eq!(guard.state(), State::AtRisk);
        assert_eq!(guard.lost().await, LostReason::DeadlinePassed);
        assert_eq!(world.elapsed(), believed(12_000), "while the call still hangs");
        assert_eq!(world.times(Verb::Renew), [4000, 6000, 8000, 10_000]);
        // None is kept longer than it is of use.
        tokio::time::sleep(ms(2000)).await;
        assert_eq!(world.store.under_way(), 0);
    }
    // A long ttl does not mean a long silence.
    let world = Paused::new();
    let guard = world.locks.mutex("x").ttl(HOUR).lock().await.unwrap();
    world.store.plan(Verb::Renew, [Act::Never]);
    world.until(1_205_000).await;
    assert_eq!(world.times(Verb::Renew), [1_200_000, 1_205_000]);
    assert_eq!(guard.state(), State::Held);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_batch_does_not_delay_another_lease() {
    let world = Paused::new();
    let first = world.locks.mutex("a").lock().await.unwrap();
    world.until(1000).await;
    let second = world.locks.mutex("b").lock().await.unwrap();
    let id = first.lease_id();
    world.store.script(Verb::Renew, move |call| if ids(call).contains(&id) { Act::Never } else { Act::Pass });
    let lost = first.lost().await;
    assert_eq!((lost, world.elapsed()), (LostReason::DeadlinePassed, believed(30_000)));
    let renewed: Vec<_> = world
        .store
        .calls(Verb::Renew)
        .iter()
        .filter(|call| ids(call) == [second.lease_id()])
        .map(|call| call.at.since(world.clock.now() - world.elapsed()).as_millis())
        .collect();
    assert_eq!(renewed, [11_000, 21_000]);
    assert_eq!(second.state(), State::Held);
}

/// Two guards that are renewed in one call, of which one is patient enough to let it answer late.
async fn one_batch(world: &Paused) -> (Guard, Guard) {
    let hasty = world.locks.mutex("hasty").ttl(ms(3000)).lock().await.unwrap();
    let patient = world.locks.mutex("patient").ttl(ms(30_000)).renew_every(ms(1000)).lock().await.unwrap();
    (hasty, patient)
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_of_an_earlier_try_counts_from_when_that_was_sent() {
    let world = Paused::new();
    let (hasty, patient) = one_batch(&world).await;
    world.store.plan(Verb::Renew, [Act::Slow(ms(800)), Act::Never]);
    world.until(1000).await;
    assert_eq!(ids(&world.store.calls(Verb::Renew)[0]).len(), 2);
    world.until(1500).await;
    assert_eq!((hasty.state(), patient.state()), (State::AtRisk, State::Held));
    assert_eq!(world.times(Verb::Renew), [1000, 1500]);
    world.until(1800).await;
    assert_eq!((hasty.state(), patient.state()), (State::Held, State::Held));
    assert_eq!(world.deadline(&hasty), ms(1000) + believed(3000));
    // The next is sent a third of the ttl after the one that was answered.
    world.until(2000).await;
    assert_eq!(ids(world.store.calls(Verb::Renew).last().unwrap()).len(), 2);
    assert_eq!(world.deadline(&hasty), ms(2000) + believed(3000));
}

#[tokio::test(start_paused = true)]
async fn an_older_answer_does_not_lower_the_deadline() {
    let world = Paused::new();
    let (hasty, _patient) = one_batch(&world).await;
    world.store.plan(Verb::Renew, [Act::Slow(ms(800)), Act::Pass]);
    world.until(1500).await;
    assert_eq!(world.deadline(&hasty), ms(1500) + believed(3000));
    assert_eq!(hasty.state(), State::Held);
    world.until(1800).await;
    assert_eq!(world.deadline(&hasty), ms(1500) + believed(3000));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_deadline_does_not_revive() {
    let world = Paused::new();
    let (hasty, patient) = one_batch(&world).await;
    // The store did renew it.
    world.store.plan(Verb::Renew, [Act::Slow(ms(2500))]);
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    world.until(3499).await;
    assert_eq!(hasty.state(), State::Lost);
    assert_eq!(patient.state(), State::Held);
    assert!(!world.is_free("hasty").await);
    world.until(3500).await;
    assert_eq!((hasty.state(), hasty.lost().now()), (State::Lost, Some(LostReason::DeadlinePassed)));
    assert_eq!(world.deadline(&patient), ms(1000) + believed(30_000));

    // The same when nobody looked in between: the answer comes first, and it is too late.
    let world = Paused::new();
    let guard = world.locks.mutex("x").ttl(ms(3000)).lock().await.unwrap();
    world.store.plan(Verb::Renew, [Act::Slow(ms(2500))]);
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    let mut renewing = Box::pin(guard.renew_for(ms(3000)));
    let cx = &mut Context::from_waker(Waker::noop());
    tokio::time::advance(ms(990)).await;
    assert!(renewing.as_mut().poll(cx).is_pending());
    tokio::time::sleep(ms(2600)).await;
    let error = renewing.await.unwrap_err();
    assert_eq!((error.kind(), guard.state()), (ErrorKind::Lost, State::Lost));
}

#[tokio::test(start_paused = true)]
async fn a_refused_renewal_is_a_loss_at_once_and_for_good() {
    for gone in [Gone::Expired, Gone::NotFound, Gone::Superseded, Gone::Revoked] {
        let world = Paused::new();
        let guard = world.locks.mutex("x").lock().await.unwrap();
        world.store.plan(Verb::Renew, [Act::Gone(gone)]);
        let reason = guard.lost().await;
        assert_eq!((reason, world.elapsed()), (LostReason::Refused(gone), ms(10_000)));
        assert_eq!((guard.state(), guard.valid_for()), (State::Lost, Some(Duration::ZERO)));
        let error = guard.check().unwrap_err();
        assert_eq!((error.kind(), error.lease_id()), (ErrorKind::Lost, Some(guard.lease_id())));
        // Nothing brings it back, and nobody tries.
        let errors = [
            guard.renew_for(ms(60_000)).await.unwrap_err(),
            guard.shorten_to(ms(1000)).await.unwrap_err(),
            guard.downgrade().await.unwrap_err(),
            guard.run(async {}).await.unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.kind() == ErrorKind::Lost));
        world.until(120_000).await;
        assert_eq!(world.store.count(Verb::Renew), 1);
        assert_eq!((guard.state(), guard.lost().await), (State::Lost, LostReason::Refused(gone)));
        assert_eq!(guard.release().await.unwrap(), State::Lost);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_away_is_noticed_at_the_next_renewal() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.locks.revoke("x", true).await.unwrap();
    let successor = world.other().mutex("x").lock().await.unwrap();
    assert_eq!(guard.lost().await, LostReason::Refused(Gone::Revoked));
    assert_eq!(world.elapsed(), ms(10_000));
    // Its release does no harm to the next holder.
    assert_eq!(guard.release().await.unwrap(), State::Lost);
    assert_eq!(world.look("x").await.holders[0].id, successor.lease_id());
}

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
    assert_eq!(lucky.state(), State::Held);
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
    assert_eq!(lucky.release().await.unwrap(), State::Released);
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
    ) -> Boxed<'async_trait, leasehold::Result<leasehold::backend::Revoked>>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
        Self: 'async_trait,
    {
        self.memory.revoke(name, now)
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
async fn a_backend_that_panics_before_it_has_a_future_does_not_end_the_loop() {
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
    assert_eq!(guard.state(), State::AtRisk);
    world.until(60_000).await;
    assert_eq!(guard.state(), State::Held);
    backend.panics.store(1, Ordering::SeqCst);
    drop(other);
    settle().await;
    assert_eq!(backend.panics.load(Ordering::SeqCst), 0);
    world.until(120_000).await;
    assert_eq!(guard.state(), State::Held);
    assert_eq!(guard.release().await.unwrap(), State::Released);
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
    states.sort_by_key(|state| *state != State::Held);
    assert_eq!(states, [State::Held, State::AtRisk, State::AtRisk]);
    world.until(11_000).await;
    assert!(guards.iter().all(|guard| guard.state() == State::Held));
    assert_eq!(world.store.calls(Verb::Renew)[1].renewals().len(), 2);
}

// Renewals that were asked for.

#[tokio::test(start_paused = true)]
async fn renew_for_moves_the_deadline_when_it_is_confirmed_and_not_before() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.until(1000).await;
    world.store.plan(Verb::Renew, [Act::Slow(ms(500))]);
    let mut renewing = Box::pin(guard.renew_for(ms(60_000)));
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(renewing.as_mut().poll(cx).is_pending());
    assert_eq!(world.deadline(&guard), believed(30_000));
    renewing.await.unwrap();
    assert_eq!(world.deadline(&guard), ms(1000) + believed(60_000));
    // It never shortens, and automatic renewal goes on.
    guard.renew_for(ms(1000)).await.unwrap();
    assert!(world.deadline(&guard) >= ms(60_000));
    world.until(200_000).await;
    assert_eq!(guard.state(), State::Held);
    for ttl in [Duration::ZERO, ms(49), HOUR * 24 + ms(1), Duration::MAX] {
        let calls = world.store.log().len();
        assert_eq!(guard.renew_for(ttl).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(guard.shorten_to(ttl).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(world.store.log().len(), calls);
    }
    world.store.plan(Verb::Renew, [Act::Gone(Gone::Revoked)]);
    assert_eq!(guard.renew_for(ms(60_000)).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.lost().now(), Some(LostReason::Refused(Gone::Revoked)));
}

#[tokio::test(start_paused = true)]
async fn a_renew_for_that_fails_leaves_the_guard_at_risk_only_until_the_loop_has_tried_again() {
    for act in [Act::Fail(ErrorKind::Unavailable), Act::LostAfter(ErrorKind::NetworkTimeout), Act::Never] {
        let world = Paused::new();
        let guard = world.locks.mutex("x").request_timeout(ms(500)).lock().await.unwrap();
        world.until(1000).await;
        world.store.plan(Verb::Renew, [act]);
        assert!(guard.renew_for(ms(40_000)).await.unwrap_err().is_retryable());
        assert_eq!(guard.state(), State::AtRisk);
        assert_eq!(world.deadline(&guard), believed(30_000));
        tokio::time::sleep(ms(1000)).await;
        settle().await;
        assert_eq!(guard.state(), State::Held, "{act:?}");
        assert!(world.deadline(&guard) >= ms(2000) + believed(30_000));
    }
}

#[tokio::test(start_paused = true)]
async fn shorten_to_drops_the_deadline_before_it_is_sent() {
    for act in [Act::Never, Act::Pass, Act::Fail(ErrorKind::Unavailable)] {
        let world = Paused::new();
        let guard = world.locks.mutex("x").lock().await.unwrap();
        world.until(1000).await;
        world.store.plan(Verb::Renew, [act]);
        world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
        let mut shortening = Box::pin(guard.shorten_to(ms(3000)));
        let ready = shortening.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(ready.is_pending(), act == Act::Never);
        drop(shortening);
        assert_eq!(world.deadline(&guard), ms(1000) + believed(3000));
        let call = world.store.calls(Verb::Renew).pop().unwrap();
        assert_eq!((call.renewals()[0].shorten, call.renewals()[0].ttl), (Some(0), ms(3000)));
        let left = world.look("x").await.holders[0].grant.left.unwrap();
        assert_eq!(left, if act == Act::Pass { ms(3000) } else { ms(29_000) });
        assert_eq!(guard.lost().await, LostReason::DeadlinePassed);
        assert_eq!(world.elapsed(), ms(1000) + believed(3000));
    }
}

#[tokio::test(start_paused = true)]
async fn a_shortened_lease_is_renewed_for_no_longer_from_there_on() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.until(11_000).await;
    guard.shorten_to(ms(3000)).await.unwrap();
    assert_eq!(world.look("x").await.holders[0].grant.left, Some(ms(3000)));
    world.until(15_500).await;
    assert_eq!(world.times(Verb::Renew), [10_000, 11_000, 12_000, 13_000, 14_000, 15_000]);
    assert!(world.store.calls(Verb::Renew)[2..].iter().all(|call| call.renewals()[0].ttl == ms(3000)));
    assert_eq!(guard.state(), State::Held);
    assert_eq!(world.deadline(&guard), ms(15_000) + believed(3000));
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_before_a_shortening_does_not_raise_the_deadline_after_it() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    // Sent at 10 s, but it reaches the store only at 12 s.
    world.store.plan(Verb::Renew, [Act::SlowBefore(ms(2000)), Act::Pass]);
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    world.until(11_000).await;
    guard.shorten_to(ms(3000)).await.unwrap();
    assert_eq!(world.deadline(&guard), ms(11_000) + believed(3000));
    world.until(12_100).await;
    assert_eq!(world.store.calls(Verb::Renew)[0].grants().len(), 1, "it was answered");
    assert_eq!(world.deadline(&guard), ms(11_000) + believed(3000));
    assert_eq!(guard.lost().await, LostReason::DeadlinePassed);
    assert_eq!(world.elapsed(), ms(11_000) + believed(3000));
}

#[tokio::test(start_paused = true)]
async fn answers_out_of_order_do_not_make_a_shortening_miss() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.until(9500).await;
    // The first renewal's answer comes after the second's.
    world.store.plan(Verb::Renew, [Act::Slow(ms(1000))]);
    guard.renew_for(ms(30_000)).await.unwrap();
    assert_eq!(world.times(Verb::Renew), [9500, 10_000]);
    guard.shorten_to(ms(3000)).await.unwrap();
    assert_eq!(world.look("x").await.holders[0].grant.left, Some(ms(3000)), "the store has followed");
    assert_eq!(world.deadline(&guard), ms(10_500) + believed(3000));
}

#[tokio::test(start_paused = true)]
async fn downgrade_is_shared_from_the_call_on_whatever_the_store_answers() {
    for act in
        [Act::Pass, Act::Never, Act::Fail(ErrorKind::Unavailable), Act::LostAfter(ErrorKind::Unavailable)]
    {
        let world = Paused::new();
        let lock = world.locks.rwlock("x");
        let guard = lock.write().await.unwrap();
        world.store.plan(Verb::Renew, [act]);
        let mut downgrading = Box::pin(guard.downgrade());
        let _ = downgrading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(guard.mode(), Mode::Shared);
        drop(downgrading);
        assert_eq!(guard.mode(), Mode::Shared);
        world.until(60_000).await;
        assert_eq!((guard.mode(), guard.state()), (Mode::Shared, State::Held), "{act:?}");
        guard.downgrade().await.unwrap();
        assert!(lock.try_read().await.unwrap().is_some(), "{act:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_that_failed_can_be_asked_for_again() {
    let world = Paused::new();
    let guard = world.locks.rwlock("x").write().await.unwrap();
    world.store.plan(Verb::Renew, [Act::Fail(ErrorKind::Unavailable)]);
    assert_eq!(guard.downgrade().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(world.look("x").await.holders[0].grant.mode, Mode::Exclusive);
    guard.downgrade().await.unwrap();
    assert_eq!(world.look("x").await.holders[0].grant.mode, Mode::Shared, "if it says so, it is so");
    let calls = world.store.count(Verb::Renew);
    guard.downgrade().await.unwrap();
    assert_eq!(world.store.count(Verb::Renew), calls, "a shared guard has nothing to ask");
    assert_eq!(guard.release().await.unwrap(), State::Released);

    let permit = world.locks.semaphore("y", 2).acquire().await.unwrap();
    assert_eq!(permit.downgrade().await.unwrap_err().kind(), ErrorKind::Mismatch);
    let world = Paused::with_info(|info| info.downgrade = false);
    let guard = world.locks.rwlock("x").write().await.unwrap();
    assert_eq!(guard.downgrade().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(guard.mode(), Mode::Exclusive);
}

// Ends that are known beforehand.

#[tokio::test(start_paused = true)]
async fn max_hold_ends_the_renewals_so_that_the_lease_is_lost_by_then() {
    for (ttl, hold) in
        [(30_000, 70_000), (30_000, 30_000), (30_000, 10_000), (30_000, 31_000), (3000, 50_000)]
    {
        let world = Paused::new();
        let mutex = world.locks.mutex("x").ttl(ms(ttl)).max_hold(ms(hold));
        let guard = mutex.lock().await.unwrap();
        let reason = guard.lost().await;
        let end = world.elapsed();
        assert_eq!(reason, LostReason::MaxHold, "{ttl} {hold}");
        assert!(end <= ms(hold) && end >= ms(hold) - ms(ttl) / 100 - ms(2), "{ttl} {hold}: {end:?}");
        // The store lets it go by then as well.
        world.until(hold).await;
        assert!(world.is_free("x").await);
        assert!(world.times(Verb::Renew).iter().all(|at| *at <= u128::from(hold)));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_reaches_past_max_hold() {
    // A renewal that was asked for.
    let world = Paused::new();
    let guard = world.locks.mutex("x").ttl(ms(3000)).max_hold(ms(10_000)).lock().await.unwrap();
    world.until(1500).await;
    guard.renew_for(ms(60_000)).await.unwrap();
    assert!(world.deadline(&guard) <= ms(10_000), "{:?}", world.deadline(&guard));
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    world.until(10_001).await;
    assert!(world.is_free("x").await);

    // A downgrade.
    let world = Paused::new();
    let guard = world.locks.rwlock("x").ttl(ms(9000)).max_hold(ms(10_000)).write().await.unwrap();
    world.until(8000).await;
    guard.downgrade().await.unwrap();
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    assert!(world.elapsed() <= ms(10_000), "{:?}", world.elapsed());

    // A lease that was adopted.
    let world = Paused::with(|_| {}, |builder| builder.max_hold(ms(10_000)));
    let lease = world.other().mutex("x").lock().await.unwrap().into_lease();
    let guard = world.locks.adopt(lease).await.unwrap();
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    assert!(world.elapsed() <= ms(10_000), "{:?}", world.elapsed());
}

#[tokio::test(start_paused = true)]
async fn max_hold_counts_from_the_grant_and_not_from_the_wait_before_it() {
    let world = Paused::new();
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.end_after(ms(3000), holder);
    let guard = world.locks.mutex("x").ttl(ms(1000)).max_hold(ms(2000)).lock().await.unwrap();
    assert_eq!(guard.waited(), ms(3000));
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    assert!(world.elapsed() > ms(4900) && world.elapsed() <= ms(5000), "{:?}", world.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_before_max_hold_says_so() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").max_hold(ms(45_000)).lock().await.unwrap();
    world.store.plan(Verb::Renew, [Act::Pass]);
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    assert_eq!(guard.lost().await, LostReason::DeadlinePassed);
    assert_eq!(world.elapsed(), ms(10_000) + believed(30_000));
}

#[tokio::test(start_paused = true)]
async fn a_shortened_lease_is_still_renewed_when_max_hold_is_near() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").max_hold(ms(60_000)).lock().await.unwrap();
    world.until(35_000).await;
    guard.shorten_to(ms(3000)).await.unwrap();
    world.until(55_000).await;
    assert_eq!(guard.state(), State::Held);
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    assert!(world.elapsed() > ms(59_900) && world.elapsed() <= ms(60_000), "{:?}", world.elapsed());
}

// Session locks, which have no ttl.

fn session(check_every: Option<Duration>) -> Paused {
    Paused::with_info(|info| (info.liveness, info.check_every) = (Liveness::Session, check_every))
}

#[tokio::test(start_paused = true)]
async fn a_session_lock_is_looked_at_as_often_as_the_store_says() {
    let world = session(Some(ms(2000)));
    let guard = world.locks.mutex("x").lock().await.unwrap();
    assert_eq!((guard.state(), guard.valid_for()), (State::Held, None));
    world.until(9000).await;
    assert_eq!(world.times(Verb::Renew), [2000, 4000, 6000, 8000]);
    // A fault puts it at risk, for as long as it takes.
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    world.until(10_000).await;
    assert_eq!(guard.state(), State::AtRisk);
    world.until(500_000).await;
    assert_eq!((guard.state(), guard.valid_for()), (State::AtRisk, None));
    guard.check().unwrap();
    world.store.always(Verb::Renew, Act::Never);
    world.until(600_000).await;
    assert_eq!(guard.state(), State::AtRisk);
    world.store.always(Verb::Renew, Act::Pass);
    world.until(606_000).await;
    assert_eq!(guard.state(), State::Held);
    world.store.plan(Verb::Renew, [Act::Gone(Gone::NotFound)]);
    assert_eq!(guard.lost().await, LostReason::Refused(Gone::NotFound));
    assert!(world.elapsed() <= ms(608_000), "{:?}", world.elapsed());
    assert_eq!(guard.valid_for(), Some(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_session_lock_whose_store_needs_no_looking_at_is_left_alone() {
    let world = session(None);
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.until(3_600_000).await;
    assert_eq!((guard.state(), world.store.count(Verb::Renew)), (State::Held, 0));
    assert_eq!(guard.release().await.unwrap(), State::Released);
}

#[tokio::test(start_paused = true)]
async fn a_session_lock_is_released_when_it_was_held_as_long_as_allowed() {
    for check_every in [None, Some(ms(2000))] {
        for ttl in [ms(30_000), ms(1000)] {
            let world = session(check_every);
            let guard = world.locks.mutex("x").ttl(ttl).max_hold(ms(9000)).lock().await.unwrap();
            assert_eq!(guard.lost().await, LostReason::MaxHold);
            assert_eq!(world.elapsed(), ms(9000));
            settle().await;
            assert!(world.is_free("x").await, "it is given back, not only given up");
            // Until then it was looked at all the same.
            let looks = if check_every.is_some() { vec![2000, 4000, 6000, 8000] } else { vec![] };
            assert_eq!(world.times(Verb::Renew), looks, "ttl {ttl:?}");
            assert_eq!(guard.release().await.unwrap(), State::Lost);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_lock_does_not_care_about_the_ttl() {
    for ttl in [Duration::ZERO, Duration::from_nanos(1), ms(1), Duration::MAX] {
        let world = session(Some(ms(2000)));
        let guard = world.locks.mutex("x").ttl(ttl).lock().await.unwrap();
        world.store.script(Verb::Renew, |call| {
            assert!(call.number < 1000, "a storm");
            Act::Pass
        });
        world.until(5000).await;
        assert_eq!(world.times(Verb::Renew), [2000, 4000], "{ttl:?}");
        world.store.plan(Verb::Renew, [Act::Fail(ErrorKind::Unavailable), Act::Never]);
        world.until(12_000).await;
        let calls = world.store.count(Verb::Renew);
        assert!((4..=12).contains(&calls), "{ttl:?}: {calls} calls");
        assert_eq!(guard.state(), State::Held);
    }
    // Nor can it be shortened, or be looked at more rarely by trying.
    let world = session(Some(ms(2000)));
    let guard = world.locks.mutex("x").lock().await.unwrap();
    guard.shorten_to(HOUR).await.unwrap();
    world.until(9000).await;
    assert_eq!(world.times(Verb::Renew), [0, 2000, 4000, 6000, 8000]);
    assert_eq!(guard.valid_for(), None);
}
