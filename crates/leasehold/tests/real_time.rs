//! Tests that need real threads, clocks, processes and signals. Time limits are generous: a slow machine makes these
//! tests slower, not wrong.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::backend::{Backend as _, Query};
use leasehold::backends::memory::Memory;
use leasehold::clock::SystemClock;
use leasehold::{Error, Guard, GuardState, Leasing, Locks, LostReason, LostSignal, Mutex, RwLock, Semaphore};
use testkit::faulty::{Act, Faulty, Verb};
use testkit::paused::believed;
use testkit::process::{self, Child};
use testkit::until::{PATIENCE, in_time_blocking, until, until_renewed};
use tokio::runtime::{Builder, Runtime};

/// Longer than any test takes: what is free by then was released and has not expired.
const LONG: Duration = Duration::from_secs(24 * 3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Whether the store has neither a lease nor a place of that name.
fn is_free(memory: &Memory, locks: &Locks, name: &str) -> bool {
    let query = Query::Name(locks.name(name).unwrap());
    let page = futures_util::FutureExt::now_or_never(memory.inspect(&query)).unwrap().unwrap();
    page.items[0].holders.is_empty() && page.items[0].waiters.is_empty()
}

#[test]
fn everything_can_be_sent_and_shared() {
    fn shared<T: Send + Sync + 'static>() {}
    fn send<T: Send>(_: T) {}
    shared::<Guard>();
    shared::<Locks>();
    shared::<Mutex>();
    shared::<RwLock>();
    shared::<Semaphore>();
    shared::<Leasing>();
    shared::<LostSignal>();
    shared::<Error>();
    let locks = Locks::new(Memory::new());
    send(locks.mutex("x").lock());
    send(locks.mutex("x").try_lock());
    send(locks.mutex("x").try_lock_for(LONG));
    send(locks.rwlock("x").read());
    send(locks.rwlock("x").write());
    send(locks.semaphore("x", 2).acquire());
    send(locks.leasing("x").acquire());
    send(locks.close());
    send(async {
        let guard = locks.mutex("x").lock().await?;
        guard.renew_for(LONG).await?;
        guard.shorten_to(LONG).await?;
        guard.downgrade().await?;
        guard.run(async {}).await?;
        guard.lost().await;
        let guard = locks.adopt(guard.into_lease()).await?;
        guard.release().await
    });
}

#[test]
fn a_runtime_that_is_blocked_for_two_ttls_keeps_its_lock() {
    // Renewed so often that only a machine which stands still for almost a ttl could lose it.
    let ttl = ms(3000);
    current_thread().block_on(async {
        let locks = Locks::new(Memory::new());
        let guard = locks.mutex("x").ttl(ttl).renew_every(ttl / 20).lock().await.unwrap();
        std::thread::sleep(2 * ttl);
        guard.check().unwrap();
        assert_ne!(guard.state(), GuardState::Lost);
        assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    });
}

#[test]
fn a_loss_is_noticed_with_a_blocked_runtime_and_a_hanging_store() {
    current_thread().block_on(async {
        let store = Faulty::new(Memory::new(), Arc::new(SystemClock));
        store.always(Verb::Renew, Act::Never);
        let locks = Locks::new(store);
        let started = Instant::now();
        let guard = locks.mutex("x").ttl(ms(500)).lock().await.unwrap();
        let signal = guard.lost();
        // Nothing else runs on this runtime until the signal has reached another thread.
        let reason = in_time_blocking("the lost signal", || current_thread().block_on(signal));
        assert_eq!(reason, LostReason::DeadlinePassed);
        assert!(started.elapsed() >= believed(500), "{:?}", started.elapsed());
        assert_eq!(guard.state(), GuardState::Lost);
        // A look needs neither the runtime nor the signal.
        let guard = locks.mutex("y").ttl(ms(300)).lock().await.unwrap();
        std::thread::sleep(ms(350));
        assert_eq!(guard.state(), GuardState::Lost, "at the first look");
    });
}

/// Drops guards in every place where that is hard, on a store whose first release never answers: a drop that waited
/// for it would never return.
fn drops_without_harm(name: &str, drops: impl FnOnce(Runtime, Guard)) {
    let memory = Memory::new();
    let store = Faulty::new(memory.clone(), Arc::new(SystemClock));
    store.plan(Verb::Release, [Act::SlowBefore(10 * PATIENCE)]);
    let locks = Locks::builder(Arc::new(store.clone()))
        .ttl(LONG)
        .request_timeout(ms(200))
        .release_timeout(PATIENCE)
        .build();
    let runtime = current_thread();
    let guard = runtime.block_on(locks.mutex(name).lock()).unwrap();
    let started = Instant::now();
    drops(runtime, guard);
    assert!(started.elapsed() < PATIENCE);
    until(name, || is_free(&memory, &locks, name));
    until(name, || store.under_way() == 0);
}

#[test]
fn a_guard_can_be_dropped_on_a_thread_without_a_runtime() {
    drops_without_harm("thread", |_runtime, guard| {
        std::thread::spawn(move || drop(guard)).join().unwrap();
    });
}

#[test]
fn a_guard_can_be_dropped_after_its_runtime_was_shut_down() {
    drops_without_harm("late", |runtime, guard| {
        drop(runtime);
        drop(guard);
    });
    drops_without_harm("with the runtime", |runtime, guard| {
        // The shutdown drops the task that has it.
        runtime.spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        runtime.block_on(tokio::task::yield_now());
        drop(runtime);
    });
}

#[test]
fn a_guard_can_be_dropped_while_panicking() {
    drops_without_harm("panic", |runtime, guard| {
        let result = catch_unwind(AssertUnwindSafe(move || {
            let _guard = guard;
            panic!("the work's own");
        }));
        assert!(result.is_err());
        drop(runtime);
    });
    drops_without_harm("panic inside a task", |runtime, guard| {
        let task = runtime.spawn(async move {
            let _guard = guard;
            panic!("the work's own");
        });
        assert!(runtime.block_on(task).unwrap_err().is_panic());
    });
}

#[test]
fn a_guard_can_be_dropped_inside_an_async_context() {
    drops_without_harm("async", |runtime, guard| runtime.block_on(async move { drop(guard) }));
    let many = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    drops_without_harm("another runtime", |_runtime, guard| {
        many.block_on(async move { tokio::spawn(async move { drop(guard) }).await.unwrap() });
    });
}

#[test]
fn a_release_dropped_with_its_runtime_is_still_sent() {
    drops_without_harm("release", |runtime, guard| {
        runtime.spawn(guard.release());
        runtime.block_on(async { tokio::time::sleep(ms(20)).await });
        drop(runtime);
    });
}

#[test]
fn a_wait_that_was_dropped_with_its_runtime_gives_up_its_place() {
    let memory = Memory::new();
    let store = Faulty::new(memory.clone(), Arc::new(SystemClock));
    let locks = Locks::builder(Arc::new(store.clone())).ttl(LONG).build();
    let runtime = current_thread();
    let guard = runtime.block_on(locks.mutex("x").lock()).unwrap();
    let mutex = locks.mutex("x");
    runtime.spawn(async move { mutex.lock().await });
    until("it waits", || {
        runtime.block_on(tokio::task::yield_now());
        store.count(Verb::Wait) > 0
    });
    let id = store.calls(Verb::Wait)[0].claim().id;
    drop(runtime);
    // Given up, not lapsed.
    until("it was released", || store.calls(Verb::Release).iter().any(|call| call.release().id == id));
    drop(guard);
    until("nobody has it", || is_free(&memory, &locks, "x"));
}

#[test]
fn what_was_dropped_before_close_is_released_when_close_returns() {
    for _ in 0..50 {
        let memory = Memory::new();
        let locks = Locks::builder(Arc::new(memory.clone())).ttl(LONG).build();
        current_thread().block_on(async {
            for n in 0..20 {
                drop(locks.mutex(format!("x{n}")).lock().await.unwrap());
            }
            locks.close().await;
        });
        assert!((0..20).all(|n| is_free(&memory, &locks, &format!("x{n}"))));
    }
}

/// The library's threads in this process.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    names.filter(|name| name.trim_end() == "leasehold").count()
}

#[test]
fn the_background_thread_ends_with_the_last_client_and_guard() {
    // In a process of its own, so that the threads of other tests do not count.
    if process::role().is_none() {
        let child = Child::spawn("the_background_thread_ends_with_the_last_client_and_guard", "alone");
        assert!(child.ended_well());
        return;
    }
    let runtime = current_thread();
    let memory = Memory::new();
    let locks = Locks::builder(Arc::new(memory.clone())).ttl(LONG).build();
    assert_eq!(threads(), 0, "nothing runs before it is needed");
    let guard = runtime.block_on(locks.mutex("x").renew_every(ms(20)).lock()).unwrap();
    until("it runs", || threads() == 1);
    let clone = locks.clone();
    let other = runtime.block_on(clone.mutex("y").lock()).unwrap();
    drop(other.into_lease());
    assert_eq!(threads(), 1, "one for all");
    let (signal, view) = (guard.lost(), locks.clone());
    drop((locks, clone, view));
    until_renewed(|| guard.valid_for());
    assert_eq!(threads(), 1, "a guard is enough");
    drop(guard);
    until("it ends", || threads() == 0);
    assert_eq!(signal.now(), None);
    let locks = Locks::new(memory.clone());
    assert!(is_free(&memory, &locks, "x"), "not before what was outstanding was sent");

    // Also if there is only a client, and if the runtime was gone before.
    runtime.block_on(locks.mutex("x").lock()).unwrap().into_lease();
    until("it runs again", || threads() == 1);
    drop(runtime);
    drop(locks);
    until("it ends again", || threads() == 0);
}

#[test]
fn a_process_stopped_past_its_ttl_sees_the_loss_at_once() {
    const TEST: &str = "a_process_stopped_past_its_ttl_sees_the_loss_at_once";
    const TTL: Duration = Duration::from_secs(1);
    match process::role().as_deref() {
        None => {
            let looks = ["state", "check", "valid_for", "lost", "debug"];
            let mut children: Vec<_> =
                looks.iter().map(|look| (*look, Child::spawn(TEST, "looks"), "held", "lost")).collect();
            let works = Child::spawn(TEST, "works");
            children.push(("work", works, "working", "lost after 1 step"));
            for (look, child, ready, _) in &mut children {
                child.tell(look);
                assert_eq!(child.line(), *ready);
                child.stop();
            }
            std::thread::sleep(2 * TTL);
            for (look, child, _, end) in &mut children {
                // Read as soon as it goes on.
                child.tell("go");
                child.go_on();
                assert_eq!(child.line(), *end, "{look}");
            }
        }
        Some("looks") => {
            let look = process::hear();
            let runtime = current_thread();
            let locks = Locks::new(Memory::new());
            // On a slow machine it may be lost before it was ever seen.
            let guard = loop {
                let guard = runtime.block_on(locks.mutex("x").ttl(TTL).lock()).unwrap();
                if guard.state() == GuardState::Held {
                    break guard;
                }
            };
            process::say("held");
            assert_eq!(process::hear(), "go");
            let lost = match look.as_str() {
                "state" => guard.state() == GuardState::Lost,
                "check" => guard.check().is_err(),
                "valid_for" => guard.valid_for() == Some(Duration::ZERO),
                "lost" => guard.lost().now().is_some(),
                _ => format!("{guard:?}").contains("Lost"),
            };
            process::say(if lost { "lost" } else { "still held" });
        }
        Some(_) => {
            let runtime = current_thread();
            let locks = Locks::new(Memory::new());
            let (send, go) = tokio::sync::oneshot::channel();
            std::thread::spawn(move || {
                assert_eq!((process::hear(), process::hear()), ("work".into(), "go".into()));
                let _ = send.send(());
            });
            let steps = AtomicUsize::new(0);
            let result = runtime.block_on(async {
                let guard = locks.mutex("x").ttl(TTL).lock().await.unwrap();
                let mut go = pin!(go);
                let work = poll_fn(|cx| {
                    let polled = go.as_mut().poll(cx).map(drop);
                    if steps.load(Ordering::SeqCst) == 0 {
                        steps.store(1, Ordering::SeqCst);
                        // The test may stop it from now on: `go` is read again only in the next poll.
                        process::say("working");
                    } else if polled.is_ready() {
                        steps.store(2, Ordering::SeqCst);
                    }
                    polled
                });
                guard.run(work).await
            });
            let end = if result.is_err() { "lost" } else { "done" };
            process::say(&format!("{end} after {} step", steps.load(Ordering::SeqCst)));
            // Still there to be stopped, even if the work was over before.
            loop {
                std::thread::park();
            }
        }
    }
}

/// A few random numbers, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

const PERMITS: u32 = 3;

/// Which tasks are inside, counted by plain atomics that know nothing of locks.
#[derive(Default)]
struct Room {
    readers: AtomicI64,
    writers: AtomicI64,
    permits: AtomicI64,
    fence: AtomicU64,
    entered: AtomicUsize,
}

impl Room {
    fn enter(&self, guard: &Guard) {
        self.entered.fetch_add(1, Ordering::SeqCst);
        match guard.mode() {
            leasehold::Mode::Exclusive => {
                assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
                assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a writer among readers");
                let last = self.fence.swap(guard.fence().get(), Ordering::SeqCst);
                assert!(guard.fence().get() > last, "a fence fell");
            }
            leasehold::Mode::Shared => {
                self.readers.fetch_add(1, Ordering::SeqCst);
                assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
            }
            _ => {
                let inside = self.permits.fetch_add(1, Ordering::SeqCst);
                assert!(inside < i64::from(PERMITS), "too many permits");
            }
        }
    }

    fn leave(&self, guard: &Guard) {
        match guard.mode() {
            leasehold::Mode::Exclusive => self.writers.fetch_sub(1, Ordering::SeqCst),
            leasehold::Mode::Shared => self.readers.fetch_sub(1, Ordering::SeqCst),
            _ => self.permits.fetch_sub(1, Ordering::SeqCst),
        };
    }
}

async fn acquire(locks: &Locks, name: usize, random: &mut Random) -> Option<Guard> {
    let short = Duration::from_micros(random.below(2000));
    let (lock, permits) = (locks.rwlock(name.to_string()), locks.semaphore("permits", PERMITS));
    match random.below(9) {
        0 => lock.write().await.map(Some),
        1 => lock.try_write().await,
        2 => lock.try_write_for(short).await,
        // Cancelled at some point, or not.
        3 => tokio::time::timeout(short, lock.write()).await.ok().transpose(),
        4 => lock.read().await.map(Some),
        5 => lock.try_read().await,
        6 => tokio::time::timeout(short, lock.read()).await.ok().transpose(),
        7 => permits.acquire().await.map(Some),
        _ => tokio::time::timeout(short, permits.acquire()).await.ok().transpose(),
    }
    .or_else(|error| if error.is_retryable() { Ok(None) } else { Err(error) })
    .unwrap()
}

async fn visit(locks: &Locks, room: &Room, guard: Guard, random: &mut Random) {
    room.enter(&guard);
    for _ in 0..random.below(3) {
        tokio::task::yield_now().await;
    }
    match random.below(6) {
        0 => guard.renew_for(LONG).await.unwrap(),
        1 if guard.mode() == leasehold::Mode::Exclusive => {
            room.leave(&guard);
            // A reader from the call on; others may enter as soon as the store knows.
            room.readers.fetch_add(1, Ordering::SeqCst);
            guard.downgrade().await.unwrap();
        }
        2 => std::thread::yield_now(),
        _ => {}
    }
    guard.check().unwrap();
    room.leave(&guard);
    match random.below(4) {
        0 => assert_eq!(guard.release().await.unwrap(), GuardState::Released),
        1 => drop(guard),
        2 => drop(std::thread::spawn(move || drop(guard))),
        _ => {
            let guard = locks.adopt(guard.into_lease()).await.unwrap();
            assert_eq!(guard.release().await.unwrap(), GuardState::Released);
        }
    }
}

#[test]
fn eight_threads_exclude_each_other_whatever_they_do() {
    const NAMES: usize = 3;
    const ROUNDS: usize = 400;
    let memory = Memory::new();
    let locks = Locks::builder(Arc::new(memory.clone())).ttl(LONG).build();
    let rooms: Arc<Vec<Room>> = Arc::new((0..=NAMES).map(|_| Room::default()).collect());
    let threads: Vec<_> = (1..=8u64)
        .map(|seed| {
            let (locks, rooms) = (locks.clone(), Arc::clone(&rooms));
            std::thread::spawn(move || {
                let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                current_thread().block_on(async {
                    for _ in 0..ROUNDS {
                        let name = random.below(NAMES as u64) as usize;
                        let Some(guard) = acquire(&locks, name, &mut random).await else { continue };
                        let room = match guard.mode() {
                            leasehold::Mode::Permit { .. } => &rooms[NAMES],
                            _ => &rooms[name],
                        };
                        visit(&locks, room, guard, &mut random).await;
                    }
                });
            })
        })
        .collect();
    for thread in threads {
        in_time_blocking("a thread ends", || thread.join().unwrap());
    }
    assert!(rooms.iter().all(|room| room.entered.load(Ordering::SeqCst) > ROUNDS / 4), "they did get in");
    current_thread().block_on(locks.close());
    until("nothing is left", || {
        is_free(&memory, &locks, "permits")
            && (0..NAMES).all(|name| is_free(&memory, &locks, &name.to_string()))
    });
}
