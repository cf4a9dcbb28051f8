//! Guards in paused time: what they signal, how they are released, how they change hands.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold::backend::Backend as _;
use leasehold::backends::memory::Memory;
use leasehold::{ErrorKind, Gone, Guard, GuardState, LeaseId, Locks, LostReason, ReleaseSource};
use testkit::faulty::{Act, Verb};
use testkit::hand::Hand;
use testkit::paused::{Paused, believed, settle, tasks};

const HOUR: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

// Signals and work.

#[tokio::test(start_paused = true)]
async fn every_clone_gets_the_lost_signal_but_never_on_release() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").ttl(ms(3000)).lock().await.unwrap();
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    let signal = guard.lost();
    assert_eq!(signal.now(), None);
    let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(signal.clone())).collect();
    tokio::time::sleep(ms(1000)).await;
    assert!(waiting.iter().all(|task| !task.is_finished()));
    for task in waiting {
        assert_eq!(task.await.unwrap(), LostReason::DeadlinePassed);
        assert_eq!(world.elapsed(), believed(3000));
    }
    assert_eq!(guard.lost().await, LostReason::DeadlinePassed);
    drop(guard);
    assert_eq!(signal.clone().await, LostReason::DeadlinePassed, "it is there already");
    assert_eq!(signal.now(), Some(LostReason::DeadlinePassed));

    world.store.always(Verb::Renew, Act::Pass);
    let (a, b, c) = (world.locks.mutex("a"), world.locks.mutex("b"), world.locks.mutex("c"));
    let (a, b, c) = (a.lock().await.unwrap(), b.lock().await.unwrap(), c.lock().await.unwrap());
    let waiting: Vec<_> = [&a, &b, &c].iter().map(|guard| tokio::spawn(guard.lost())).collect();
    settle().await;
    let late = b.lost();
    a.release().await.unwrap();
    drop(b);
    let _lease = c.into_lease();
    tokio::time::sleep(HOUR).await;
    assert!(waiting.iter().all(|task| !task.is_finished()));
    assert_eq!(late.now(), None);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_when_the_lease_is_lost_and_not_before() {
    struct Bell(Arc<AtomicUsize>);
    impl Drop for Bell {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let world = Paused::new();
    let guard = world.locks.mutex("x").ttl(ms(3000)).lock().await.unwrap();
    assert_eq!(guard.run(async { tokio::time::sleep(ms(20_000)).await }).await.ok(), Some(()));
    assert_eq!(guard.state(), GuardState::Held, "the guard is still held afterwards");
    world.store.always(Verb::Renew, Act::Never);
    let dropped = Arc::new(AtomicUsize::new(0));
    let bell = Bell(Arc::clone(&dropped));
    let error = guard
        .run(async move {
            let _bell = bell;
            std::future::pending::<()>().await;
        })
        .await
        .unwrap_err();
    assert_eq!((error.kind(), dropped.load(Ordering::SeqCst)), (ErrorKind::Lost, 1));
    let end = world.elapsed();
    assert!(end > ms(20_000) + ms(900) && end <= ms(20_000) + believed(3000), "{end:?}");
    // Work that must not start does not start.
    let error = guard.run(async { panic!("not a step") }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_checked_before_every_poll_without_a_timer() {
    let clock = Hand::default();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let locks = Locks::builder(Arc::new(memory))
        .clock(Arc::new(clock.clone()))
        .runtime(tokio::runtime::Handle::current())
        .ttl(ms(1000))
        .build();
    let guard = locks.mutex("x").lock().await.unwrap();
    let signal = guard.lost();
    let steps = AtomicUsize::new(0);
    let cx = &mut Context::from_waker(Waker::noop());
    {
        let work = poll_fn(|_| {
            steps.fetch_add(1, Ordering::SeqCst);
            Poll::<()>::Pending
        });
        let mut running = pin!(guard.run(work));
        assert!(running.as_mut().poll(cx).is_pending());
        clock.advance(believed(1000) - Duration::from_nanos(1));
        assert!(running.as_mut().poll(cx).is_pending());
        assert_eq!(steps.load(Ordering::SeqCst), 2);
        clock.advance(Duration::from_nanos(1));
        // Nothing has run in between, neither the loop nor a timer.
        let Poll::Ready(Err(error)) = running.as_mut().poll(cx) else { panic!("the work went on") };
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert_eq!(steps.load(Ordering::SeqCst), 2);
    }
    assert_eq!((guard.state(), signal.now()), (GuardState::Lost, Some(LostReason::DeadlinePassed)));

    // The first look after a pause is right, whichever method looks.
    let looks: [fn(&Guard) -> bool; 5] = [
        |guard| guard.state() == GuardState::Lost,
        |guard| guard.check().is_err(),
        |guard| guard.valid_for() == Some(Duration::ZERO),
        |guard| guard.lost().now().is_some(),
        |guard| format!("{guard:?}").contains("Lost"),
    ];
    for (n, look) in looks.into_iter().enumerate() {
        let guard = locks.mutex(format!("look-{n}")).lock().await.unwrap();
        assert!(!look(&guard));
        clock.advance(believed(1000));
        assert!(look(&guard), "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_lost_in_the_last_step_makes_with_lock_lost() {
    let clock = Hand::default();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let locks = Locks::builder(Arc::new(memory))
        .clock(Arc::new(clock.clone()))
        .runtime(tokio::runtime::Handle::current())
        .ttl(ms(1000))
        .build();
    let mutex = locks.mutex("x");
    // The work blocks its thread for a whole ttl, as a stopped process would, and then ends well.
    let late = async |_: &Guard| {
        clock.advance(ms(1000));
        Ok::<_, leasehold::Error>(7)
    };
    assert_eq!(mutex.with_lock(late).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(mutex.with_lock(async |_| Ok::<_, leasehold::Error>(7)).await.unwrap(), 7);
    // The work's own error comes first, as in the blocking helper.
    let failed = async |_: &Guard| {
        clock.advance(ms(1000));
        Err::<(), _>(leasehold::Error::new(ErrorKind::Deadlock, "the work's own"))
    };
    assert_eq!(mutex.with_lock(failed).await.unwrap_err().kind(), ErrorKind::Deadlock);
    // `run` returns the work's output, and leaves the check to its caller.
    let guard = mutex.lock().await.unwrap();
    let late = guard.run(async { clock.advance(ms(1000)) });
    assert!(late.await.is_ok() && guard.check().is_err());
}

// Releases.

#[tokio::test(start_paused = true)]
async fn a_release_is_sent_once_and_drop_does_nothing_more() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    let (id, fence) = (guard.lease_id(), guard.fence());
    assert_eq!(guard.release().await.unwrap(), GuardState::Released);
    settle().await;
    let releases = world.store.calls(Verb::Release);
    assert_eq!(releases.len(), 1);
    let release = releases[0].release();
    assert_eq!((release.id, release.fence, release.unanswered), (id, Some(fence), None));
    drop(world.locks.mutex("x").lock().await.unwrap());
    settle().await;
    assert_eq!(world.store.count(Verb::Release), 2);
    assert!(world.is_free("x").await);
}

#[tokio::test(start_paused = true)]
async fn a_release_is_tried_again_and_says_what_became_of_the_lease() {
    use ErrorKind::{AuthFailed, NetworkTimeout, Overloaded, RateLimited, Unavailable};
    // What the store does, what is reported, and in how many tries.
    let cases: Vec<(Vec<Act>, Result<GuardState, ErrorKind>, usize)> = vec![
        (vec![Act::Pass], Ok(GuardState::Released), 1),
        (
            vec![Act::Fail(Unavailable), Act::Fail(Overloaded), Act::Fail(NetworkTimeout)],
            Ok(GuardState::Released),
            4,
        ),
        (vec![Act::Never], Ok(GuardState::Released), 2),
        (vec![Act::SlowBefore(ms(90))], Ok(GuardState::Released), 1),
        // It is gone after a try without an answer: that try released it.
        (vec![Act::NeverAfter], Ok(GuardState::Released), 2),
        (vec![Act::LostAfter(Unavailable)], Ok(GuardState::Released), 2),
        (vec![Act::LostAfter(NetworkTimeout), Act::Fail(Overloaded)], Ok(GuardState::Released), 3),
        (vec![Act::Late(ms(101))], Ok(GuardState::Released), 2),
        // It is gone, and nothing else explains that.
        (vec![Act::Gone(Gone::Expired)], Ok(GuardState::Lost), 1),
        (vec![Act::Fail(RateLimited), Act::Gone(Gone::Expired)], Ok(GuardState::Lost), 2),
        (vec![Act::Fail(Overloaded), Act::Gone(Gone::Expired)], Ok(GuardState::Lost), 2),
        // Trying again cannot help.
        (vec![Act::Fail(AuthFailed)], Err(AuthFailed), 1),
        (vec![Act::Fail(Unavailable), Act::Fail(AuthFailed)], Err(AuthFailed), 2),
    ];
    for (acts, expected, tries) in cases {
        let world = Paused::new();
        let guard = world.locks.mutex("x").request_timeout(ms(100)).lock().await.unwrap();
        let id = guard.lease_id();
        world.store.plan(Verb::Release, acts.clone());
        let result = guard.release().await.map_err(|error| error.kind());
        assert_eq!(result, expected, "{acts:?}");
        settle().await;
        let releases = world.store.calls(Verb::Release);
        assert_eq!(releases.len(), tries, "{acts:?}");
        assert!(releases.iter().all(|call| call.release().id == id));
        assert_eq!(world.is_free("x").await, expected.is_ok(), "{acts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn releasing_an_already_lost_lease_is_not_reported_as_released() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.store.plan(Verb::Renew, [Act::Gone(Gone::Revoked)]);
    guard.lost().await;
    world.store.plan(Verb::Release, [Act::Fail(ErrorKind::Unavailable)]);
    assert_eq!(guard.release().await.unwrap(), GuardState::Lost);
    assert_eq!(world.store.count(Verb::Release), 2, "it is sent all the same");

    // A lease lost by its deadline, which the store still had, was released by this very call.
    let guard = world.locks.mutex("y").lock().await.unwrap();
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    guard.lost().await;
    assert_eq!(guard.release().await.unwrap(), GuardState::Released);
    assert!(world.is_free("y").await);
}

#[tokio::test(start_paused = true)]
async fn a_release_is_bounded_by_its_timeout() {
    for act in [Act::Never, Act::Fail(ErrorKind::Unavailable), Act::Fail(ErrorKind::RateLimited)] {
        let world = Paused::new();
        let mutex = world.locks.mutex("x").release_timeout(ms(2500)).request_timeout(ms(1000));
        let guard = mutex.lock().await.unwrap();
        let id = guard.lease_id();
        world.store.always(Verb::Release, act);
        let error = guard.release().await.unwrap_err();
        let kind = if let Act::Fail(kind) = act { kind } else { ErrorKind::NetworkTimeout };
        assert_eq!((error.kind(), error.lease_id()), (kind, Some(id)));
        assert!(world.elapsed() >= ms(1400) && world.elapsed() <= ms(2500), "{:?}", world.elapsed());
        settle().await;
        let calls = world.store.count(Verb::Release);
        assert!((3..=10).contains(&calls), "{calls}");
        tokio::time::sleep(ms(10_000)).await;
        assert_eq!(world.store.count(Verb::Release), calls, "drop does not try once more");
    }
}

type Failures = Arc<Mutex<Vec<(ErrorKind, String, LeaseId, ReleaseSource)>>>;

#[tokio::test(start_paused = true)]
async fn failed_background_releases_are_reported_with_their_source() {
    let failures = Failures::default();
    let seen = Arc::clone(&failures);
    let world = Paused::with(
        |_| {},
        |builder| {
            builder.release_timeout(ms(1000)).on_release_error(move |error, failure| {
                let what = (error.kind(), failure.name.as_str().to_owned(), failure.lease_id, failure.source);
                seen.lock().unwrap().push(what);
            })
        },
    );
    world.store.always(Verb::Release, Act::Fail(ErrorKind::Unavailable));
    let told = || std::mem::take(&mut *failures.lock().unwrap());

    let guard = world.locks.mutex("dropped").lock().await.unwrap();
    let id = guard.lease_id();
    drop(guard);
    tokio::time::sleep(ms(1100)).await;
    assert_eq!(told(), [(ErrorKind::Unavailable, "dropped".into(), id, ReleaseSource::Drop)]);

    let mut id = None;
    let work = async |guard: &Guard| {
        id = Some(guard.lease_id());
        Err::<(), _>(leasehold::Error::new(ErrorKind::Deadlock, "the work's own"))
    };
    let error = world.locks.mutex("with").with_lock(work).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock, "the work's error is kept");
    assert_eq!(told(), [(ErrorKind::Unavailable, "with".into(), id.unwrap(), ReleaseSource::With)]);

    world.store.plan(Verb::TryAcquire, [Act::LostAfter(ErrorKind::Unavailable)]);
    world.locks.mutex("back").try_lock().await.unwrap_err();
    tokio::time::sleep(ms(1100)).await;
    let [(ErrorKind::Unavailable, name, _, ReleaseSource::GiveBack)] = &told()[..] else { panic!() };
    assert_eq!(name, "back");

    // The caller of an awaited release learns of its failure itself; a release that finds nothing is not a failure.
    let guard = world.locks.mutex("awaited").lock().await.unwrap();
    guard.release().await.unwrap_err();
    world.store.always(Verb::Release, Act::Gone(Gone::Expired));
    drop(world.locks.mutex("gone").lock().await.unwrap());
    tokio::time::sleep(ms(1100)).await;
    assert_eq!(told(), []);
}

#[tokio::test(start_paused = true)]
async fn a_callback_that_panics_harms_nobody() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let world = Paused::with(
        |_| {},
        |builder| {
            builder.on_release_error(move |_, _| {
                counted.fetch_add(1, Ordering::SeqCst);
                panic!("the callback's own");
            })
        },
    );
    let kept = world.locks.mutex("kept").lock().await.unwrap();
    world.store.plan(Verb::Release, [Act::Fail(ErrorKind::AuthFailed), Act::Fail(ErrorKind::AuthFailed)]);
    drop(world.locks.mutex("a").lock().await.unwrap());
    drop(world.locks.mutex("b").lock().await.unwrap());
    settle().await;
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    drop(world.locks.mutex("c").lock().await.unwrap());
    world.until(100_000).await;
    assert_eq!(kept.state(), GuardState::Held);
    assert!(world.is_free("c").await);
    world.locks.close().await;
}

#[tokio::test(start_paused = true)]
async fn close_waits_until_every_release_was_sent_or_has_failed() {
    let world = Paused::with(|_| {}, |builder| builder.release_timeout(ms(2000)));
    let names = ["a", "b", "c"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(world.locks.mutex(name).lock().await.unwrap());
    }
    world.store.plan(Verb::Release, [Act::SlowBefore(ms(700)), Act::Pass, Act::Never]);
    drop(guards);
    world.locks.close().await;
    assert_eq!(world.elapsed(), ms(2000));
    assert!(world.is_free("a").await && world.is_free("b").await && !world.is_free("c").await);
    // With nothing to send `close` does not wait, called once or twice, on a used or unused client.
    world.locks.close().await;
    Paused::new().locks.close().await;
    assert_eq!(world.elapsed(), ms(2000));
}

#[tokio::test(start_paused = true)]
async fn the_loop_ends_when_the_last_client_and_guard_are_gone() {
    let base = tasks();
    let world = Paused::new();
    let locks = world.locks.clone();
    let guard = locks.mutex("x").lock().await.unwrap();
    let signal = guard.lost();
    settle().await;
    assert_eq!(tasks(), base + 1);
    drop((locks, world));
    tokio::time::sleep(ms(100_000)).await;
    assert_eq!((tasks(), guard.state()), (base + 1, GuardState::Held), "a guard is enough");
    drop(guard);
    settle().await;
    assert_eq!(tasks(), base, "a signal is not");
    assert_eq!(signal.now(), None);

    // Not before the outstanding releases were sent.
    let world = Paused::new();
    let (store, memory) = (world.store.clone(), world.clone());
    let guard = world.locks.mutex("x").lock().await.unwrap();
    store.plan(Verb::Release, [Act::Fail(ErrorKind::Unavailable), Act::SlowBefore(ms(500))]);
    drop((guard, world));
    let Paused { locks, memory, .. } = memory;
    let name = locks.name("x").unwrap();
    drop(locks);
    tokio::time::sleep(ms(1000)).await;
    let page = memory.inspect(&leasehold::backend::Query::Name(name)).await.unwrap();
    assert!(page.items[0].holders.is_empty());
    assert_eq!((tasks(), store.under_way()), (base, 0));
}

// Leases that change hands.

#[tokio::test(start_paused = true)]
async fn adopting_renews_first_and_trusts_only_that_answer() {
    let world = Paused::new();
    let lease = world.locks.mutex("x").lock().await.unwrap().into_lease();
    assert_eq!(world.store.count(Verb::Release), 0);
    world.until(20_000).await;
    world.store.plan(Verb::Renew, [Act::Slow(ms(1000))]);
    let guard = world.locks.adopt(lease.clone()).await.unwrap();
    assert_eq!((guard.lease_id(), guard.fence(), guard.owner()), (lease.id, lease.fence, &*lease.owner));
    assert_eq!(world.deadline(&guard), ms(20_000) + believed(30_000));
    world.until(45_000).await;
    assert_eq!(world.times(Verb::Renew), [20_000, 30_000, 40_000]);
    assert_eq!(guard.release().await.unwrap(), GuardState::Released);

    // A lease that is gone cannot be adopted, and one that the client cannot ask about is not touched.
    assert_eq!(world.locks.adopt(lease).await.unwrap_err().kind(), ErrorKind::Lost);
    let lease = world.locks.mutex("x").lock().await.unwrap().into_lease();
    world.store.plan(Verb::Renew, [Act::Fail(ErrorKind::Unavailable), Act::Never]);
    assert_eq!(world.locks.adopt(lease.clone()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(world.locks.adopt(lease.clone()).await.unwrap_err().kind(), ErrorKind::NetworkTimeout);
    settle().await;
    assert!(!world.is_free("x").await);
    world.locks.close().await;
    assert_eq!(world.locks.adopt(lease).await.unwrap_err().kind(), ErrorKind::Aborted);
}

#[tokio::test(start_paused = true)]
async fn adopting_refuses_the_options_that_acquiring_refuses() {
    let world = Paused::new();
    let lease = world.locks.mutex("x").lock().await.unwrap().into_lease();
    let calls = world.store.log().len();
    let strict = world.locks.with_options(|options| options.renew_every = Some(Duration::ZERO));
    assert_eq!(strict.adopt(lease.clone()).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let strict = world.locks.with_options(|options| options.release_timeout = Duration::ZERO);
    assert_eq!(strict.adopt(lease.clone()).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(world.store.log().len(), calls);
    // A cadence that is too slow for this lease is not an error: the client has other locks.
    let slow = world.locks.with_options(|options| options.renew_every = Some(ms(29_000)));
    let guard = slow.adopt(lease).await.unwrap();
    world.until(60_000).await;
    assert_eq!(guard.state(), GuardState::Held);
}

#[tokio::test(start_paused = true)]
async fn an_adoption_answered_too_late_fails_and_releases_nothing() {
    let world = Paused::new();
    let lease = world.locks.mutex("x").ttl(ms(1000)).lock().await.unwrap().into_lease();
    world.store.plan(Verb::Renew, [Act::Slow(ms(990))]);
    assert_eq!(world.locks.adopt(lease.clone()).await.unwrap_err().kind(), ErrorKind::NetworkTimeout);
    assert!(world.locks.owns(lease.id).await.unwrap(), "its owner may still need it");
}

// Shortening.

#[tokio::test(start_paused = true)]
async fn a_shortening_that_a_renewal_overtook_is_asked_for_again() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").ttl(ms(60_000)).lock().await.unwrap();
    // While the shortening is in transit, the loop renews, which makes it void.
    world.store.plan(Verb::Renew, [Act::SlowBefore(ms(1500))]);
    guard.shorten_to(ms(3000)).await.unwrap();
    assert_eq!(world.elapsed(), ms(1500));
    let left = world.locks.inspect("x").await.unwrap().holders[0].grant.left.unwrap();
    assert_eq!(left, ms(3000), "the store has followed");
    assert_eq!(guard.valid_for(), Some(believed(3000)));
    // From now on it is renewed as usual.
    tokio::time::sleep(ms(20_000)).await;
    assert_eq!(guard.state(), GuardState::Held);
}
