//! The background work of a client: what may panic or block beside it, and what becomes of the client if it dies.

#![allow(clippy::unwrap_used)] // also in helpers of tests

mod fake;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use fake::{Fake, Verb};
use leasehold::backends::memory::Memory;
use leasehold::blocking::{Guard, Locks};
use leasehold::clock::{Clock, Moment, SystemClock};
use leasehold::{Error, ErrorKind, GuardState};
#[cfg(target_os = "linux")]
use testkit::process::Child;
use testkit::until::{PATIENCE, in_time, in_time_blocking, until, until_async, until_renewed};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Far more than any of these tests takes: only a renewal makes a lease last longer.
const TTL: Duration = Duration::from_secs(600);

// The log and the recorder of this process, which are the same for all tests.

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Quiet,
    LogPanics,
    LogBlocks,
    #[cfg(feature = "metrics")]
    RecorderPanics,
    #[cfg(feature = "metrics")]
    RecorderBlocks,
}

static MOOD: Mutex<Mood> = Mutex::new(Mood::Quiet);
static CHANGED: Condvar = Condvar::new();
static STRUCK: AtomicU32 = AtomicU32::new(0);

fn mood() -> MutexGuard<'static, Mood> {
    MOOD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn set_mood(new: Mood) {
    *mood() = new;
    CHANGED.notify_all();
}

/// Only the library's own threads; a caller's thread is the caller's own business.
fn is_library_thread() -> bool {
    thread::current().name().is_some_and(|name| name.starts_with("leasehold"))
}

struct Log;

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Log {
    fn on_event(&self, _: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if !is_library_thread() {
            return;
        }
        let mut mood = mood();
        if matches!(*mood, Mood::LogPanics | Mood::LogBlocks) {
            STRUCK.fetch_add(1, Ordering::SeqCst);
        }
        if *mood == Mood::LogPanics {
            drop(mood);
            panic!("the log's own");
        }
        while *mood == Mood::LogBlocks {
            mood = CHANGED.wait(mood).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(feature = "metrics")]
mod recorder {
    use super::{CHANGED, Mood, Ordering, PoisonError, STRUCK, is_library_thread, mood};
    use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, SharedString, Unit};

    pub(super) struct Recorder;

    fn strike() {
        if !is_library_thread() {
            return;
        }
        let mut mood = mood();
        if matches!(*mood, Mood::RecorderPanics | Mood::RecorderBlocks) {
            STRUCK.fetch_add(1, Ordering::SeqCst);
        }
        if *mood == Mood::RecorderPanics {
            drop(mood);
            panic!("the recorder's own");
        }
        while *mood == Mood::RecorderBlocks {
            mood = CHANGED.wait(mood).unwrap_or_else(PoisonError::into_inner);
        }
    }

    impl metrics::Recorder for Recorder {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            strike();
            Counter::noop()
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            strike();
            Histogram::noop()
        }
    }
}

/// Runs one test at a time. When dropped, the log is quiet again, so that a failed test leaves no thread behind.
struct Turn {
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        set_mood(Mood::Quiet);
    }
}

fn turn(first: Mood) -> Turn {
    static TURN: Mutex<()> = Mutex::new(());
    static INSTALLED: Once = Once::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    INSTALLED.call_once(|| {
        use tracing_subscriber::layer::SubscriberExt as _;
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Log)).unwrap();
        #[cfg(feature = "metrics")]
        assert!(metrics::set_global_recorder(recorder::Recorder).is_ok());
    });
    STRUCK.store(0, Ordering::SeqCst);
    set_mood(first);
    Turn { _turn: turn }
}

/// A client whose first renewal fails, so that there is something to log.
fn with_a_fault() -> Locks {
    let faults = AtomicU32::new(1);
    Locks::new(Fake::new(move |verb| {
        let fail = verb == Verb::Renew && faults.swap(0, Ordering::SeqCst) > 0;
        async move { if fail { Err(Error::new(ErrorKind::Unavailable, "the test wants it so")) } else { Ok(()) } }
    }))
}

fn hold(locks: &Locks, name: &str) -> Guard {
    locks.mutex(name).ttl(TTL).renew_every(ms(20)).lock().unwrap()
}

/// Checks that the client of these guards is alive: it renews them, reports a loss, and can be closed.
fn still_works(locks: Locks, kept: Guard, revoked: Guard) {
    until_renewed(|| kept.valid_for());
    locks.revoke(revoked.name().as_str(), true).unwrap();
    assert!(revoked.wait_lost_for(PATIENCE).is_some());
    until_renewed(|| kept.valid_for());
    assert_eq!(kept.state(), GuardState::Held);
    drop((kept, revoked));
    set_mood(Mood::Quiet);
    in_time_blocking("the client closes", move || locks.close());
}

#[test]
fn a_log_that_panics_stops_no_renewal() {
    let _turn = turn(Mood::LogPanics);
    let locks = with_a_fault();
    let (kept, revoked) = (hold(&locks, "kept"), hold(&locks, "revoked"));
    until("the log has panicked", || STRUCK.load(Ordering::SeqCst) > 0);
    still_works(locks, kept, revoked);
}

#[cfg(feature = "metrics")]
#[test]
fn a_recorder_that_panics_stops_no_renewal() {
    let _turn = turn(Mood::RecorderPanics);
    let locks = with_a_fault();
    let (kept, revoked) = (hold(&locks, "kept"), hold(&locks, "revoked"));
    until("the recorder has panicked", || STRUCK.load(Ordering::SeqCst) > 0);
    still_works(locks, kept, revoked);
}

#[test]
fn a_log_that_blocks_stops_no_renewal_and_no_lost_signal() {
    let _turn = turn(Mood::LogBlocks);
    let locks = with_a_fault();
    let (kept, revoked) = (hold(&locks, "kept"), hold(&locks, "revoked"));
    until("the log blocks", || STRUCK.load(Ordering::SeqCst) > 0);
    still_works(locks, kept, revoked);
}

#[cfg(feature = "metrics")]
#[test]
fn a_recorder_that_blocks_stops_no_renewal_and_no_lost_signal() {
    let _turn = turn(Mood::RecorderBlocks);
    let locks = with_a_fault();
    let (kept, revoked) = (hold(&locks, "kept"), hold(&locks, "revoked"));
    until("the recorder blocks", || STRUCK.load(Ordering::SeqCst) > 0);
    still_works(locks, kept, revoked);
}

#[test]
fn a_client_closes_though_the_log_blocks_after_a_failed_release() {
    let _turn = turn(Mood::LogBlocks);
    let locks = Locks::new(Fake::new(move |verb| async move {
        let failed = Err(Error::new(ErrorKind::AuthFailed, "the test wants it so"));
        if verb == Verb::Release { failed } else { Ok(()) }
    }));
    drop(locks.mutex("x").lock().unwrap());
    until("the log blocks", || STRUCK.load(Ordering::SeqCst) > 0);
    in_time_blocking("the client closes", move || locks.close());
    assert_eq!(*mood(), Mood::LogBlocks);
}

#[test]
fn a_callback_that_blocks_stops_no_renewal_and_no_lost_signal() {
    let _turn = turn(Mood::Quiet);
    let broken = Arc::new(AtomicBool::new(true));
    let switch = Arc::clone(&broken);
    let locks = Locks::new(Fake::new(move |verb| {
        let fail = verb == Verb::Release && switch.load(Ordering::SeqCst);
        async move { if fail { Err(Error::new(ErrorKind::AuthFailed, "the test wants it so")) } else { Ok(()) } }
    }));
    let (kept, revoked) = (hold(&locks, "kept"), hold(&locks, "revoked"));
    let (called, calls) = mpsc::channel();
    let (unblock, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let ended = Arc::new(AtomicBool::new(false));
    let has_ended = Arc::clone(&ended);
    let mutex = locks.mutex("dropped").on_release_error(move |_, _| {
        called.send(()).unwrap();
        // Blocks until the test lets it go.
        assert!(blocked.lock().unwrap().recv().is_err());
        has_ended.store(true, Ordering::SeqCst);
    });
    drop(mutex.lock().unwrap());
    calls.recv_timeout(PATIENCE).unwrap();
    broken.store(false, Ordering::SeqCst);
    until_renewed(|| kept.valid_for());
    locks.revoke("revoked", true).unwrap();
    assert!(revoked.wait_lost_for(PATIENCE).is_some());
    assert_eq!(kept.state(), GuardState::Held);
    drop((kept, revoked));
    // A program that closes a client must hear of its failures first.
    let closes = thread::spawn(move || locks.close());
    assert!(!ended.load(Ordering::SeqCst) && !closes.is_finished());
    drop(unblock);
    until("the client closes", || closes.is_finished());
    assert!(ended.load(Ordering::SeqCst));
}

/// A clock that can be made to panic on the thread that renews.
#[derive(Debug, Clone, Default)]
struct Fragile(Arc<AtomicBool>);

impl Clock for Fragile {
    fn now(&self) -> Moment {
        let strikes = self.0.load(Ordering::SeqCst) && thread::current().name() == Some("leasehold");
        assert!(!strikes, "the clock's own");
        SystemClock.now()
    }

    fn wall_micros(&self) -> u64 {
        SystemClock.wall_micros()
    }
}

/// Checks that a dead client says so to callers that wait, hold, ask or close.
fn is_dead(locks: Locks, guard: Guard, waiting: thread::JoinHandle<Error>) {
    until("the waiter gets its answer", || waiting.is_finished());
    assert_eq!(waiting.join().unwrap().kind(), ErrorKind::Aborted);
    assert_eq!(guard.state(), GuardState::Lost);
    assert!(guard.lost().now().is_some() && guard.check().is_err());
    let error = locks.as_async().mutex("y");
    let error = in_time_blocking("an acquire fails", move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { error.try_lock().await.unwrap_err() })
    });
    assert_eq!(error.kind(), ErrorKind::Aborted);
    assert!(error.to_string().contains("make a new client"), "{error}");
    drop(guard);
    in_time_blocking("the client closes", move || locks.close());
}

fn wait_for(locks: &Locks, name: &str) -> thread::JoinHandle<Error> {
    let mutex = locks.as_async().mutex(name);
    let waiting = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { mutex.lock().await.map(drop).unwrap_err() })
    });
    until("it waits", || locks.inspect(name).unwrap().queue_length == 1);
    waiting
}

#[test]
fn a_client_whose_thread_has_died_says_so() {
    let _turn = turn(Mood::Quiet);
    let clock = Fragile::default();
    let locks = leasehold::Locks::builder(Arc::new(Memory::new())).clock(Arc::new(clock.clone())).build();
    let locks = Locks::from(locks);
    let guard = hold(&locks, "x");
    let waiting = wait_for(&locks, "x");
    clock.0.store(true, Ordering::SeqCst);
    is_dead(locks, guard, waiting);
}

#[test]
fn a_client_whose_runtime_was_shut_down_says_so() {
    let _turn = turn(Mood::Quiet);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let builder = leasehold::Locks::builder(Arc::new(Memory::new())).runtime(runtime.handle().clone());
    let locks = Locks::from(builder.build());
    let guard = hold(&locks, "x");
    let waiting = wait_for(&locks, "x");
    drop(runtime);
    is_dead(locks, guard, waiting);
}

#[test]
fn close_waits_for_the_places_of_acquires_that_it_aborts() {
    let _turn = turn(Mood::Quiet);
    let memory = Memory::new();
    let other = leasehold::Locks::new(memory.clone());
    // Its one thread runs the waiting task only while something is awaited.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let left = runtime.block_on(async {
        let _held = other.mutex("x").lock().await.unwrap();
        let locks = leasehold::Locks::new(memory.clone());
        let mutex = locks.mutex("x");
        let waiting = tokio::spawn(async move { mutex.lock().await.map(drop).unwrap_err() });
        until_async("it waits", async || other.inspect("x").await.unwrap().queue_length == 1).await;
        in_time("the client closes", locks.close()).await;
        let left = other.inspect("x").await.unwrap().queue_length;
        assert_eq!(in_time("the waiter gets its answer", waiting).await.unwrap().kind(), ErrorKind::Aborted);
        left
    });
    assert_eq!(left, 0, "a program that ends after `close` leaves no place in a queue");
}

// Clocks, runtimes and threads that fail.

/// A clock of its own, this far from the system's, that counts how often the renewing thread reads it.
#[derive(Debug)]
struct Foreign {
    start: Moment,
    from: Moment,
    looks: AtomicU32,
}

impl Clock for Foreign {
    fn now(&self) -> Moment {
        if thread::current().name() == Some("leasehold") {
            self.looks.fetch_add(1, Ordering::SeqCst);
        }
        self.from + SystemClock.now().since(self.start)
    }

    fn wall_micros(&self) -> u64 {
        SystemClock.wall_micros()
    }
}

#[test]
fn a_client_with_its_own_clock_renews_and_does_not_spin() {
    let _turn = turn(Mood::Quiet);
    let year = Duration::from_secs(365 * 24 * 3600);
    let start = SystemClock.now();
    // Far behind the system's clock, and far ahead of it.
    for from in [Moment::from_nanos(1), start + year] {
        let clock = Arc::new(Foreign { start, from, looks: AtomicU32::new(0) });
        let renewals = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&renewals);
        let store = Fake::new(move |verb| {
            if verb == Verb::Renew {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            async { Ok(()) }
        });
        let locks = Locks::from(leasehold::Locks::builder(Arc::new(store)).clock(clock.clone()).build());
        let guard = hold(&locks, "x");
        until("it is renewed", || renewals.load(Ordering::SeqCst) >= 20);
        let (looks, renewals) = (clock.looks.load(Ordering::SeqCst), renewals.load(Ordering::SeqCst));
        assert!(looks < 100 * renewals, "{looks} looks for {renewals} renewals");
        assert_eq!(guard.state(), GuardState::Held);
    }
}

/// Blocks a thread of the runtime that does the background work.
fn block_inside(mutex: &leasehold::blocking::Mutex) -> leasehold::Result<bool> {
    // A call that need not wait is not affected.
    assert!(mutex.try_lock().unwrap().is_none());
    Ok(mutex.try_lock_for(ms(50))?.is_some())
}

#[test]
fn a_blocking_call_on_the_given_runtime_is_a_deadlock() {
    use tokio::runtime::{Builder, Handle};
    let _turn = turn(Mood::Quiet);
    for workers in [0, 1] {
        let (call, other) = in_time_blocking("neither call hangs", move || {
            let runtime = match workers {
                0 => Builder::new_current_thread().enable_all().build().unwrap(),
                workers => Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap(),
            };
            let test = async move {
                let builder = leasehold::Locks::builder(Arc::new(Memory::new())).runtime(Handle::current());
                let locks = builder.ttl(TTL).build();
                let _held = locks.mutex("x").lock().await.unwrap();
                let mutex = Locks::from(locks.clone()).mutex("x");
                let inside = mutex.clone();
                // On a worker, or on the only thread.
                let call = tokio::spawn(async move { block_inside(&inside) }).await.unwrap();
                // Beside it, on a thread that belongs to the runtime but does not drive it.
                let other = tokio::task::spawn_blocking(move || block_inside(&mutex)).await.unwrap();
                drop(locks.mutex("y").lock().await.unwrap());
                // It cannot wait for its release here, and must not try for ever.
                Locks::from(locks).close();
                (call, other)
            };
            runtime.block_on(test)
        });
        assert!(!other.unwrap(), "{workers} workers");
        assert_eq!(call.unwrap_err().kind(), ErrorKind::Deadlock, "{workers} workers");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_failed_start_of_the_thread_is_not_remembered() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    if testkit::process::role().is_none() {
        // Alone in its process, because it uses up what all threads of the process need.
        let child = Child::spawn("a_failed_start_of_the_thread_is_not_remembered", "starved");
        assert!(child.ended_well());
        return;
    }
    let locks = Locks::new(Memory::new());
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    let starved = locks.mutex("x").try_lock().map(drop).unwrap_err();
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(starved.kind(), ErrorKind::Unavailable);
    assert!(locks.mutex("x").try_lock().unwrap().is_some());
}
