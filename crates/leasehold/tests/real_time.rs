//! What only real threads, clocks, processes and signals can show. Bounds are generous: a slow machine
//! makes these tests slower, not wrong.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::backend::{Backend as _, Query};
use leasehold::backends::memory::Memory;
use leasehold::clock::SystemClock;
use leasehold::{Error, Guard, Leasing, Locks, LostReason, LostSignal, Mutex, RwLock, Semaphore, State};
use testkit::faulty::{Act, Faulty, Verb};
use testkit::process::{self, Child};
use tokio::runtime::{Builder, Runtime};

/// Longer than any test takes: what is free by then was released and has not expired.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// How long something may take on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Waits until it is so.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(ms(2));
    }
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
    // A machine that does not let the library's thread run either gets a longer ttl.
    for ttl in [ms(600), ms(3000), ms(15_000)] {
        let kept = current_thread().block_on(async {
            let locks = Locks::new(Memory::new());
            let guard = locks.mutex("x").ttl(ttl).lock().await.unwrap();
            std::thread::sleep(2 * ttl);
            let held = guard.check().is_ok();
            assert_eq!(held, guard.state() != State::Lost);
            held && locks.mutex("x").try_lock().await.unwrap().is_none()
        });
        if kept {
            return;
        }
    }
    panic!("the lock was lost while its runtime was blocked");
}

#[test]
fn a_loss_is_noticed_while_the_runtime_is_blocked_and_the_store_hangs() {
    current_thread().block_on(async {
        let store = Faulty::new(Memory::new(), Arc::new(SystemClock));
        store.always(Verb::Renew, Act::Never);
        let locks = Locks::new(store);
        let started = Instant::now();
        let guard = locks.mutex("x").ttl(ms(300)).lock().await.unwrap();
        let signal = tokio::spawn(guard.lost());
        assert_eq!(
            tokio::time::timeout(PATIENCE, signal).await.unwrap().unwrap(),
            LostReason::DeadlinePassed
        );
        assert!(started.elapsed() >= ms(295), "{:?}", started.elapsed());
        let guard = locks.mutex("y").ttl(ms(300)).lock().await.unwrap();
        std::thread::sleep(ms(350));
        assert_eq!(guard.state(), State::Lost, "at the first look");
    });
}

/// Drops guards in all the places where that is hard, of a store whose first release never answers:
/// a drop that waited for it would not come back.
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
    eventually(name, || is_free(&memory, &locks, name));
    eventually(name, || store.under_way() == 0);
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
        // The task that has it is dropped by the shutdown.
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
fn a_release_that_was_dropped_with_its_runtime_is_sent_all_the_same() {
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
    eventually("it waits", || {
        runtime.block_on(tokio::task::yield_now());
        store.count(Verb::Wait) > 0
    });
    let id = store.calls(Verb::Wait)[0].claim().id;
    drop(runtime);
    // Given up, not lapsed.
    eventually("it was released", || store.calls(Verb::Release).iter().any(|call| call.release().id == id));
    drop(guard);
    eventually("nobody has it", || is_free(&memory, &locks, "x"));
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
    let guard = runtime.block_on(locks.mutex("x").lock()).unwrap();
    eventually("it runs", || threads() == 1);
    let clone = locks.clone();
    let other = runtime.block_on(clone.mutex("y").lock()).unwrap();
    drop(other.into_lease());
    assert_eq!(threads(), 1, "one for all");
    let (signal, view) = (guard.lost(), locks.clone());
    drop((locks, clone, view));
    std::thread::sleep(ms(100));
    assert_eq!(threads(), 1, "a guard is enough");
    drop(guard);
    eventually("it ends", || threads() == 0);
    assert_eq!(signal.now(), None);
    let locks = Locks::new(memory.clone());
    assert!(is_free(&memory, &locks, "x"), "not before what was outstanding was sent");

    // Also when there is nothing but a client, and when the runtime was gone before.
    runtime.block_on(locks.mutex("x").lock()).unwrap().into_lease();
    eventually("it runs again", || threads() == 1);
    drop(runtime);
    drop(locks);
    eventually("it ends again", || threads() == 0);
}

#[test]
fn a_process_that_was_stopped_for_longer_than_its_ttl_knows_it_at_the_first_look() {
    const TEST: &str = "a_process_that_was_stopped_for_longer_than_its_ttl_knows_it_at_the_first_look";
    let stopped = |child: &mut Child| {
        child.stop();
        std::thread::sleep(ms(1000));
        // Read as soon as it goes on.
        child.tell("go");
        child.go_on();
    };
    match process::role().as_deref() {
        None => {
            for look in ["state", "check", "valid_for", "lost", "debug"] {
                let mut child = Child::spawn(TEST, "looks");
                child.tell(look);
                assert_eq!(child.line(), "held");
                stopped(&mut child);
                assert_eq!(child.line(), "lost", "{look}");
            }
            let mut child = Child::spawn(TEST, "works");
            assert_eq!(child.line(), "working");
            // It is to be stopped between two steps, not in the middle of one.
            std::thread::sleep(ms(200));
            stopped(&mut child);
            assert_eq!(child.line(), "lost after 1 step");
        }
        Some("looks") => {
            let look = process::hear();
            let runtime = current_thread();
            let locks = Locks::new(Memory::new());
            // On a slow machine it may be lost before it was ever seen.
            let guard = loop {
                let guard = runtime.block_on(locks.mutex("x").ttl(ms(300)).lock()).unwrap();
                if guard.state() == State::Held {
                    break guard;
                }
            };
            process::say("held");
            assert_eq!(process::hear(), "go");
            let lost = match look.as_str() {
                "state" => guard.state() == State::Lost,
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
                assert_eq!(process::hear(), "go");
                let _ = send.send(());
            });
            let steps = AtomicUsize::new(0);
            let result = runtime.block_on(async {
                let guard = locks.mutex("x").ttl(ms(300)).lock().await.unwrap();
                let work = async {
                    steps.fetch_add(1, Ordering::SeqCst);
                    process::say("working");
                    tokio::task::yield_now().await;
                    let _ = go.await;
                    steps.fetch_add(1, Ordering::SeqCst);
                };
                guard.run(work).await
            });
            let end = if result.is_err() { "lost" } else { "done" };
            process::say(&format!("{end} after {} step", steps.load(Ordering::SeqCst)));
            // There to be stopped, also if it was over before that.
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

/// Who is inside, counted by plain atomics that know nothing of locks.
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
        0 => assert_eq!(guard.release().await.unwrap(), State::Released),
        1 => drop(guard),
        2 => drop(std::thread::spawn(move || drop(guard))),
        _ => {
            let guard = locks.adopt(guard.into_lease()).await.unwrap();
            assert_eq!(guard.release().await.unwrap(), State::Released);
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
        thread.join().unwrap();
    }
    assert!(rooms.iter().all(|room| room.entered.load(Ordering::SeqCst) > ROUNDS / 4), "they did get in");
    current_thread().block_on(locks.close());
    eventually("nothing is left", || {
        is_free(&memory, &locks, "permits")
            && (0..NAMES).all(|name| is_free(&memory, &locks, &name.to_string()))
    });
}
