//! The blocking locks, in every place where a synchronous caller can be, and the plain leases of a scheduler.
//!
//! One file because it goes through all methods of one small module, with the same few helpers.

#![allow(clippy::unwrap_used)] // also in helpers of tests

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use fake::{Fake, Verb};
use leasehold::backend::{Gone, Released, Renewed};
use leasehold::backends::memory::Memory;
use leasehold::blocking::{Guard, Leasing, Locks, Mutex, RwLock, Semaphore};
use leasehold::{Cancel, Error, ErrorKind, GuardState, Lease, LostReason, Mode};
use testkit::hand::Hand;
use testkit::until::{PATIENCE, in_time_blocking, until, until_renewed};
use tokio::runtime::Builder;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A ttl that no stall of the machine uses up.
const TTL: Duration = Duration::from_secs(30);

/// Runs a test on its own thread; a test that hangs fails.
fn in_time(test: impl FnOnce() + Send + 'static) {
    in_time_blocking("the test ends", test);
}

/// Waits until this many claims wait for a name.
fn until_waiting(locks: &Locks, name: &str, many: u64) {
    until("they wait", || locks.inspect(name).unwrap().queue_length == many);
}

/// A bit of everything that needs timers, wake-ups and the background thread.
fn use_everything() {
    let locks = Locks::connect("memory:").unwrap();
    let mutex = locks.mutex("x").renew_every(ms(50));
    let guard = mutex.lock().unwrap();
    assert!(mutex.try_lock().unwrap().is_none());

    let started = Instant::now();
    assert!(mutex.try_lock_for(ms(30)).unwrap().is_none());
    assert!(started.elapsed() >= ms(30));
    let error = mutex.clone().max_wait(ms(10)).lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);

    // Renewed although this thread, and its runtime if it has one, only sleeps and looks.
    until_renewed(|| guard.valid_for());
    assert_eq!(guard.state(), GuardState::Held);
    assert_eq!(guard.wait_lost_for(ms(20)), None);

    let (fence, looks) = (guard.fence(), locks.clone());
    let helper = thread::spawn(move || {
        until_waiting(&looks, "x", 1);
        thread::sleep(ms(10));
        drop(guard);
    });
    let next = mutex.lock().unwrap();
    assert!(next.fence() > fence && next.waited() >= ms(10));
    helper.join().unwrap();
    assert_eq!(next.release().unwrap(), GuardState::Released);

    assert_eq!(mutex.with_lock(|guard| guard.check().map(|()| 7)).unwrap(), 7);
    let lease = locks.leasing("y").try_acquire().unwrap().unwrap();
    assert!(matches!(locks.renew(&lease).unwrap(), Renewed::Held(_)));
    assert_eq!(locks.release(&lease).unwrap(), Released::Done);
    drop(mutex.lock().unwrap());
    locks.close();
    assert!(!locks.is_locked("x").unwrap());
    assert_eq!(mutex.lock().unwrap_err().kind(), ErrorKind::Aborted);
}

#[test]
fn works_without_any_runtime() {
    in_time(use_everything);
}

#[test]
fn works_inside_a_current_thread_runtime_that_has_no_drivers() {
    in_time(|| Builder::new_current_thread().build().unwrap().block_on(async { use_everything() }));
}

#[test]
fn works_inside_a_task_of_a_current_thread_runtime() {
    in_time(|| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::spawn(async { use_everything() }).await.unwrap() });
    });
}

#[test]
fn works_on_a_worker_of_a_multi_thread_runtime() {
    in_time(|| {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async { tokio::spawn(async { use_everything() }).await.unwrap() });
    });
}

#[test]
fn works_inside_spawn_blocking_and_block_in_place() {
    in_time(|| {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::task::spawn_blocking(use_everything).await.unwrap();
            tokio::spawn(async { tokio::task::block_in_place(use_everything) }).await.unwrap();
        });
    });
}

#[test]
fn works_in_paused_time() {
    in_time(|| {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async { use_everything() });
    });
}

#[test]
fn works_inside_another_blocking_call() {
    in_time(|| {
        // A store that takes its own lock, and waits for it, before each answer.
        let inner = Locks::new(Memory::new());
        let store = {
            let inner = inner.clone();
            Fake::new(move |_| {
                let inner = inner.clone();
                async move {
                    let held = inner.mutex("inner").lock()?;
                    let helper = thread::spawn(move || {
                        thread::sleep(ms(5));
                        drop(held);
                    });
                    inner.mutex("inner").lock()?.release()?;
                    helper.join().unwrap();
                    // This call needs a wake-up, after the inner calls used its thread.
                    tokio::time::sleep(ms(5)).await;
                    Ok(())
                }
            })
        };
        let outer = Locks::new(store);
        let guard = outer.mutex("outer").lock().unwrap();
        assert!(outer.mutex("outer").try_lock().unwrap().is_none());
        let mutex = outer.mutex("outer");
        let waiting = thread::spawn(move || mutex.lock().unwrap().release().unwrap());
        until_waiting(&outer, "outer", 1);
        assert_eq!(guard.release().unwrap(), GuardState::Released);
        assert_eq!(waiting.join().unwrap(), GuardState::Released);
        outer.close();
    });
}

#[test]
fn a_task_that_has_used_up_its_budget_still_gets_its_lock() {
    in_time(|| {
        Builder::new_current_thread().build().unwrap().block_on(async {
            while tokio::task::coop::has_budget_remaining() {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                sender.send(()).unwrap();
                receiver.await.unwrap();
            }
            let locks = Locks::connect("memory:").unwrap();
            let _held = locks.mutex("x").lock().unwrap();
            assert!(locks.mutex("x").try_lock_for(ms(20)).unwrap().is_none());
        });
    });
}

#[test]
fn a_store_that_yields_does_not_need_the_callers_runtime() {
    fn use_it() {
        let locks = Locks::new(Fake::new(|_| async {
            tokio::task::yield_now().await;
            Ok(())
        }));
        // No timeout saves a call that waits for a runtime that does not exist.
        let mutex = locks.mutex("x").request_timeout(10 * PATIENCE).release_timeout(10 * PATIENCE);
        let guard = mutex.lock().unwrap();
        assert!(mutex.try_lock().unwrap().is_none());
        assert!(mutex.try_lock_for(ms(30)).unwrap().is_none());
        guard.release().unwrap();
    }
    in_time(use_it);
    in_time(|| Builder::new_current_thread().build().unwrap().block_on(async { use_it() }));
    in_time(|| {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        runtime.block_on(async { tokio::spawn(async { use_it() }).await.unwrap() });
    });
}

#[test]
fn the_thread_that_renews_refuses_to_wait_for_itself() {
    in_time(|| {
        let locks = Locks::new(Fake::failing(&[Verb::Release], ErrorKind::AuthFailed));
        let (sender, heard) = mpsc::channel();
        let inside = locks.clone();
        let mutex = locks.mutex("x").on_release_error(move |_, failure| {
            let error = inside.mutex(failure.name.as_str()).lock().unwrap_err();
            inside.close();
            sender.send((error.kind(), inside.is_locked("x").unwrap_err().kind())).unwrap();
        });
        drop(mutex.lock().unwrap());
        let kinds = heard.recv_timeout(PATIENCE).unwrap();
        assert_eq!(kinds, (ErrorKind::Deadlock, ErrorKind::Deadlock));
    });
}

#[test]
fn cancelling_a_blocked_call_from_a_thread_leaves_no_place() {
    in_time(|| {
        let locks = Locks::connect("memory:").unwrap();
        let _held = locks.mutex("x").lock().unwrap();
        let cancel = Cancel::new();
        let (mutex, leasing) = (locks.mutex("x").cancel_on(&cancel), locks.leasing("x").cancel_on(&cancel));
        let waiting = [
            thread::spawn(move || mutex.lock().map(drop).unwrap_err()),
            thread::spawn(move || leasing.acquire().map(drop).unwrap_err()),
        ];
        until_waiting(&locks, "x", 2);
        cancel.cancel();
        for thread in waiting {
            assert_eq!(thread.join().unwrap().kind(), ErrorKind::Aborted);
        }
        until_waiting(&locks, "x", 0);
        let late = locks.mutex("y").cancel_on(&cancel).try_lock().unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Aborted);
    });
}

#[test]
fn close_wakes_waiters() {
    in_time(|| {
        let locks = Locks::connect("memory:").unwrap();
        let held = locks.mutex("x").lock().unwrap();
        let mutex = locks.mutex("x");
        let waiting = thread::spawn(move || mutex.lock().map(drop).unwrap_err());
        until_waiting(&locks, "x", 1);
        locks.close();
        assert_eq!(waiting.join().unwrap().kind(), ErrorKind::Aborted);
        assert_eq!(held.state(), GuardState::Held);
        assert_eq!(held.release().unwrap(), GuardState::Released);
    });
}

#[test]
fn readers_enter_together_and_permits_are_counted() {
    in_time(|| {
        let locks = Locks::connect("memory:").unwrap();
        let config = locks.rwlock("config");
        let readers = (config.read().unwrap(), config.try_read().unwrap().unwrap());
        assert!(config.try_write().unwrap().is_none());
        assert!(config.try_write_for(ms(5)).unwrap().is_none());
        drop(readers);
        let writer = config.write().unwrap();
        assert!(config.try_read().unwrap().is_none());
        assert!(config.try_read_for(ms(5)).unwrap().is_none());
        writer.downgrade().unwrap();
        assert_eq!(writer.mode(), Mode::Shared);
        config.read().unwrap().release().unwrap();
        writer.release().unwrap();
        assert_eq!(config.with_read(|guard| Ok::<_, Error>(guard.mode())).unwrap(), Mode::Shared);
        assert_eq!(config.with_write(|guard| Ok::<_, Error>(guard.mode())).unwrap(), Mode::Exclusive);

        let gpus = locks.semaphore("gpu", 2);
        let permits = (gpus.acquire().unwrap(), gpus.try_acquire().unwrap().unwrap());
        assert!(gpus.try_acquire().unwrap().is_none());
        assert!(gpus.try_acquire_for(ms(5)).unwrap().is_none());
        let error = locks.semaphore("gpu", 3).try_acquire().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        drop(permits);
        gpus.with_permit(|guard| guard.check()).unwrap();
        assert_eq!((gpus.name(), gpus.max_count(), config.name()), ("gpu", 2, "config"));
    });
}

#[test]
fn a_guard_has_everything_its_async_namesake_has() {
    in_time(|| {
        let locks = Locks::connect("memory:").unwrap();
        let guard = locks.mutex("x").owner("me").ttl(TTL).lock().unwrap();
        assert_eq!((guard.name().as_str(), guard.mode(), guard.owner()), ("x", Mode::Exclusive, "me"));
        assert_eq!((guard.attempts(), guard.state()), (1, GuardState::Held));
        assert!(guard.waited() < PATIENCE && locks.owns(guard.lease_id()).unwrap());
        guard.renew_for(10 * TTL).unwrap();
        assert!(guard.valid_for().unwrap() > TTL);
        guard.shorten_to(TTL / 2).unwrap();
        assert!(guard.valid_for().unwrap() <= TTL / 2);

        let lease = guard.into_lease();
        assert!(locks.is_locked("x").unwrap(), "giving up the guard does not give up the lease");
        let guard = locks.adopt(lease).unwrap();
        assert_eq!(guard.wait_lost_for(Duration::ZERO), None);
        let signal = guard.lost();
        assert_eq!(locks.revoke("x", true).unwrap().leases, 1);
        let error = guard.renew_for(Duration::from_secs(5)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(matches!(guard.wait_lost_for(Duration::MAX), Some(LostReason::Refused(_))));
        assert!(signal.now().is_some() && guard.check().is_err());
        assert_eq!(guard.release().unwrap(), GuardState::Lost);
    });
}

#[test]
fn waiting_for_the_loss_returns_when_it_comes() {
    in_time(|| {
        let locks = Locks::connect("memory:").unwrap();
        let guard = locks.mutex("x").ttl(10 * PATIENCE).renew_every(ms(50)).lock().unwrap();
        let locks_too = locks.clone();
        thread::spawn(move || {
            thread::sleep(ms(20));
            locks_too.revoke("x", true).unwrap();
        });
        // The next renewal finds out.
        assert!(matches!(guard.wait_lost_for(PATIENCE), Some(LostReason::Refused(_))));
    });
}

#[test]
fn with_lock_keeps_the_errors_of_the_work_and_always_releases() {
    in_time(|| {
        let locks = Locks::connect("memory:").unwrap();
        let mutex = locks.mutex("x");
        let error = mutex.with_lock(|_| Err::<(), _>(Error::invalid("mine"))).unwrap_err();
        assert_eq!(error.message(), "mine");
        mutex.try_lock().unwrap().expect("released").release().unwrap();

        // The work's own error is worth more than the loss of the lease.
        let lose = |guard: &Guard| {
            locks.revoke("x", true).unwrap();
            assert!(guard.renew_for(Duration::from_secs(1)).is_err());
        };
        let error = mutex
            .with_lock(|guard| {
                lose(guard);
                Err::<(), _>(Error::invalid("mine"))
            })
            .unwrap_err();
        assert_eq!(error.message(), "mine");
        let error = mutex
            .with_lock(|guard| {
                lose(guard);
                Ok::<_, Error>(())
            })
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "work that was not protected to its end is no success");

        let mutex_too = mutex.clone();
        let panicked =
            thread::spawn(move || mutex_too.with_lock(|_| -> Result<(), Error> { panic!("ouch") }));
        assert!(panicked.join().is_err());
        // Before its lease could have ended by itself.
        drop(mutex.ttl(TTL).max_wait(TTL / 2).lock().expect("released by the unwinding"));
    });
}

#[test]
fn a_malformed_url_and_a_missing_store_are_different_errors() {
    let errors = || {
        assert_eq!(Locks::connect("nonsense").unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(Locks::connect("memory:x").unwrap_err().kind(), ErrorKind::InvalidArgument);
    };
    errors();
    Builder::new_current_thread().build().unwrap().block_on(async { errors() });
    let error = Locks::connect("memory:").unwrap().mutex("").lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn both_kinds_of_callers_share_a_client() {
    in_time(|| {
        let builder = Locks::connect_builder("memory:").unwrap().namespace("n").ttl(Duration::from_secs(7));
        let locks = Locks::from(builder.build());
        assert_eq!(locks.options().ttl, Duration::from_secs(7));
        let guard = locks.mutex("x").lock().unwrap();
        assert_eq!(guard.name().namespace(), "n");
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            assert!(locks.as_async().mutex("x").try_lock().await.unwrap().is_none());
            let guard = guard.into_async();
            assert_eq!(guard.release().await.unwrap(), GuardState::Released);
            let guard = Guard::from(locks.as_async().mutex("x").lock().await.unwrap());
            assert_eq!(guard.release().unwrap(), GuardState::Released);
            let again: leasehold::Locks = locks.clone().into();
            assert!(!again.is_locked("x").await.unwrap());
            again.close().await;
        });
        assert!(locks.mutex("x").lock().is_err(), "closed for both");
    });
}

#[test]
fn a_client_outlives_the_thread_that_connected_it() {
    in_time(|| {
        let locks = thread::spawn(|| Locks::connect("memory:").unwrap()).join().unwrap();
        let guard = locks.mutex("x").renew_every(ms(50)).lock().unwrap();
        drop(locks);
        until_renewed(|| guard.valid_for());
        assert_eq!(guard.state(), GuardState::Held);
        assert_eq!(guard.release().unwrap(), GuardState::Released);
    });
}

#[test]
fn the_faces_can_go_anywhere() {
    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<Locks>();
    anywhere::<Mutex>();
    anywhere::<RwLock>();
    anywhere::<Semaphore>();
    anywhere::<Leasing>();
    anywhere::<Guard>();
    anywhere::<Lease>();
}

// Plain leases: what a scheduler needs.

fn lease(locks: &Locks) -> Option<Lease> {
    locks.leasing("tick-42").ttl(TTL).try_acquire().unwrap()
}

/// A store in which time passes only as the test wants it.
fn by_hand() -> (Locks, Hand) {
    let clock = Hand::default();
    (Locks::new(Memory::with_clock(Arc::new(clock.clone()))), clock)
}

#[test]
fn trying_gives_a_lease_nothing_or_an_error() {
    in_time(|| {
        let locks = Locks::new(Memory::new());
        let ours = lease(&locks).expect("free");
        assert_eq!((ours.name.as_str(), ours.ttl), ("tick-42", TTL));
        assert!(lease(&locks).is_none(), "held by another: not a failure");

        for kind in [ErrorKind::Unavailable, ErrorKind::AuthFailed] {
            let broken = Locks::new(Fake::failing(&[Verb::TryAcquire], kind));
            let error = broken.leasing("tick-42").try_acquire().unwrap_err();
            assert_eq!(error.kind(), kind, "a broken store is not contention");
        }
        let silent = Locks::new(Fake::hanging(&[Verb::TryAcquire]));
        let error = silent.leasing("tick-42").request_timeout(ms(20)).try_acquire().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkTimeout);
    });
}

#[test]
fn renewing_resets_the_ttl_or_says_gone() {
    in_time(|| {
        let (locks, clock) = by_hand();
        let ours = lease(&locks).unwrap();
        clock.advance(TTL * 2 / 3);
        let Renewed::Held(grant) = locks.renew(&ours).unwrap() else { panic!("still ours") };
        assert_eq!(grant.left, Some(TTL));
        clock.advance(TTL * 2 / 3);
        assert!(lease(&locks).is_none(), "past the ttl of the grant, and not of the renewal");
        clock.advance(TTL / 3);
        assert!(matches!(locks.renew(&ours).unwrap(), Renewed::Gone(Gone::Expired | Gone::NotFound)));

        let broken = Locks::new(Fake::failing(&[Verb::Renew], ErrorKind::Unavailable));
        let theirs = lease(&broken).unwrap();
        assert_eq!(broken.renew(&theirs).unwrap_err().kind(), ErrorKind::Unavailable);
    });
}

#[test]
fn a_stale_lease_never_touches_a_newer_holder() {
    in_time(|| {
        let (locks, clock) = by_hand();
        let stale = lease(&locks).unwrap();
        clock.advance(TTL);
        let fresh = lease(&locks).expect("the first has expired");
        assert_ne!(stale.id, fresh.id);
        assert!(fresh.fence > stale.fence);
        assert!(matches!(locks.release(&stale).unwrap(), Released::Gone(_)), "quietly nothing");
        assert!(matches!(locks.renew(&stale).unwrap(), Renewed::Gone(_)));
        assert!(matches!(locks.release_by_id(stale.id).unwrap(), Released::Gone(Gone::NotFound)));
        assert!(locks.owns(fresh.id).unwrap() && !locks.owns(stale.id).unwrap());
        assert!(matches!(locks.renew_by_id(fresh.id, ms(60_000)).unwrap(), Renewed::Held(_)));
        assert_eq!(locks.release_by_id(fresh.id).unwrap(), Released::Done);
        assert!(matches!(locks.release(&fresh).unwrap(), Released::Gone(_)), "releasing twice harms nothing");
    });
}

#[cfg(feature = "serde")]
#[test]
fn a_lease_goes_through_json_unchanged() {
    in_time(|| {
        let locks = Locks::new(Memory::new());
        let ours = lease(&locks).unwrap();
        let json = serde_json::to_string(&ours).unwrap();
        let back: Lease = serde_json::from_str(&json).unwrap();
        assert_eq!(back, ours);
        assert!(matches!(locks.renew(&back).unwrap(), Renewed::Held(_)));
        assert_eq!(locks.release(&back).unwrap(), Released::Done);
    });
}

#[test]
fn of_many_threads_one_wins() {
    in_time(|| {
        let locks = Locks::connect("memory:").unwrap();
        for tick in 0..50 {
            let winners = AtomicU32::new(0);
            let start = std::sync::Barrier::new(16);
            thread::scope(|scope| {
                for _ in 0..16 {
                    scope.spawn(|| {
                        start.wait();
                        if locks.leasing(format!("tick-{tick}")).try_acquire().unwrap().is_some() {
                            winners.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                }
            });
            assert_eq!(winners.into_inner(), 1);
        }
    });
}

#[test]
fn threads_that_take_turns_never_meet_inside() {
    in_time(|| {
        let locks = Locks::connect("memory:").unwrap();
        let inside = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (mutex, inside) = (locks.mutex("x"), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..100 {
                        let guard = mutex.lock().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        guard.release().unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        locks.close();
        let info = locks.inspect("x").unwrap();
        assert!(info.holders.is_empty() && info.waiters.is_empty());
    });
}

#[test]
fn diagnostics_and_the_stable_label() {
    in_time(|| {
        let locks = Locks::connect("memory:").unwrap();
        assert_eq!(locks.info().scheme, "memory");
        let ours = lease(&locks).unwrap();
        let info = locks.lookup("tick-42").unwrap().unwrap();
        assert_eq!(Some(&info), locks.lookup_by_id(ours.id).unwrap().as_ref());
        assert_eq!(info.name_hash, leasehold::digest_name("tick-42"));
        assert_eq!(locks.find(ours.id).unwrap().unwrap().name, locks.name("tick-42").unwrap());
        let page = locks.list("tick-", 10, None).unwrap();
        assert_eq!(page.items.len(), 1);
        assert_eq!(locks.sweep().unwrap().held, 1);
        assert!(locks.with_namespace("other").lookup("tick-42").unwrap().is_none());
        let unnamed = locks.with_options(|options| options.owner = "".into());
        assert_eq!(unnamed.mutex("y").lock().unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(locks.backend().info(), locks.info());
    });
}
