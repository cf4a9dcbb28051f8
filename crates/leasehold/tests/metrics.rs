//! Every metric is counted where it should be, once, from whichever thread; and `docs/metrics.md` lists it.

#![cfg(feature = "metrics")]
#![allow(clippy::unwrap_used)] // also in helpers of tests

mod fake;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fake::{Fake, Verb};
use leasehold::backends::memory::Memory;
use leasehold::blocking::Locks;
use leasehold::{Cancel, Error, ErrorKind, GuardState};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use testkit::until::{PATIENCE, until};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The only recorder of the process, because renewals run on another thread than the test.
struct Recorder {
    snapshotter: Snapshotter,
    _turn: MutexGuard<'static, ()>,
}

/// What was measured since the last look: counters by name and label, histograms by name.
#[derive(Debug, Default)]
struct Seen {
    counters: BTreeMap<String, u64>,
    times: BTreeMap<String, Vec<f64>>,
}

/// One test at a time: they share the recorder.
fn recorder() -> Recorder {
    static TURN: Mutex<()> = Mutex::new(());
    static INSTALLED: OnceLock<Snapshotter> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let snapshotter = INSTALLED.get_or_init(|| {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        recorder.install().unwrap();
        snapshotter
    });
    let recorder = Recorder { snapshotter: snapshotter.clone(), _turn: turn };
    recorder.look();
    recorder
}

impl Recorder {
    fn look(&self) -> Seen {
        let mut seen = Seen::default();
        for (key, _, _, value) in self.snapshotter.snapshot().into_vec() {
            let (_, key) = key.into_parts();
            let labels: Vec<_> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
            let listed = include_str!("../../../docs/metrics.md");
            assert!(listed.contains(&format!("`{}`", key.name())), "{} is not in the table", key.name());
            for label in key.labels() {
                assert!(listed.contains(&format!("`{}`", label.value())), "{label:?} is not in the table");
            }
            match value {
                DebugValue::Counter(0) => {}
                DebugValue::Counter(count) => {
                    seen.counters.insert(format!("{} {}", key.name(), labels.join(",")), count);
                }
                DebugValue::Histogram(times) if times.is_empty() => {}
                DebugValue::Histogram(times) => {
                    assert!(labels.is_empty());
                    seen.times.insert(key.name().to_owned(), times.into_iter().map(f64::from).collect());
                }
                DebugValue::Gauge(_) => panic!("there are no gauges"),
            }
        }
        seen
    }
}

impl Seen {
    /// One counter, by its labels.
    fn labels(&self, counter: &str) -> Vec<(&str, u64)> {
        let name = format!("leasehold_{counter}_total ");
        let labels = self.counters.iter();
        labels
            .filter_map(|(key, count)| Some((key.strip_prefix(&name)?.split_once('=')?.1, *count)))
            .collect()
    }

    /// Checks that one counter has exactly these values.
    #[track_caller]
    fn counted(&self, counter: &str, expected: &[(&str, u64)]) {
        assert_eq!(self.labels(counter), expected, "{counter}");
    }

    fn times(&self, name: &str) -> &[f64] {
        self.times.get(name).map_or(&[], Vec::as_slice)
    }
}

/// A store whose answers fail while the switch is on.
fn switched(verb: Verb, kind: ErrorKind) -> (Fake, Arc<AtomicU32>) {
    let switch = Arc::new(AtomicU32::new(0));
    let on = Arc::clone(&switch);
    let fake = Fake::new(move |called| {
        let fail = called == verb && on.load(Ordering::SeqCst) != 0;
        async move { if fail { Err(Error::new(kind, "the test wants it so")) } else { Ok(()) } }
    });
    (fake, switch)
}

#[test]
fn an_acquire_is_counted_once_by_how_it_ended() {
    let recorder = recorder();
    let locks = Locks::new(Memory::new());
    let held = locks.mutex("x").lock().unwrap();
    let seen = recorder.look();
    seen.counted("acquire", &[("granted", 1)]);
    assert_eq!(seen.times("leasehold_wait_seconds").len(), 1);

    let started = Instant::now();
    assert!(locks.mutex("x").try_lock().unwrap().is_none());
    let tried = started.elapsed().as_secs_f64();
    assert!(locks.mutex("x").max_wait(ms(60)).lock().is_err());
    let both = started.elapsed().as_secs_f64();
    let seen = recorder.look();
    seen.counted("acquire", &[("busy", 2)]);
    let waits = seen.times("leasehold_wait_seconds");
    assert!(waits[0] <= tried && (0.06..=both).contains(&waits[1]), "{waits:?}");

    let cancel = Cancel::new();
    cancel.cancel();
    assert!(locks.mutex("y").cancel_on(&cancel).lock().is_err());
    recorder.look().counted("acquire", &[("aborted", 1)]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mutex = locks.as_async().mutex("x");
        assert!(tokio::time::timeout(ms(20), mutex.lock()).await.is_err());
    });
    let seen = recorder.look();
    seen.counted("acquire", &[("aborted", 1)]);
    assert!(seen.times("leasehold_wait_seconds")[0] >= 0.015);

    let broken = Locks::new(Fake::failing(&[Verb::TryAcquire], ErrorKind::Unavailable));
    assert!(broken.mutex("x").try_lock().is_err());
    assert!(broken.leasing("x").try_acquire().is_err());
    recorder.look().counted("acquire", &[("error", 2)]);
    assert!(locks.mutex("").lock().is_err());
    recorder.look().counted("acquire", &[]);

    until("the place of the aborted one is given up", || locks.inspect("x").unwrap().queue_length == 0);
    let mutex = locks.mutex("x");
    let waiting = thread::spawn(move || mutex.lock().unwrap().release().unwrap());
    until("it waits", || locks.inspect("x").unwrap().queue_length == 1);
    thread::sleep(ms(50));
    let released = Instant::now();
    held.release().unwrap();
    waiting.join().unwrap();
    let most = released.elapsed().as_secs_f64();
    let seen = recorder.look();
    seen.counted("acquire", &[("granted", 1)]);
    assert!(seen.times("leasehold_wait_seconds")[0] >= 0.05);
    let holds = seen.times("leasehold_hold_seconds");
    assert_eq!(holds.len(), 2);
    assert!(holds.iter().any(|held| *held <= most), "waiting is not holding: {holds:?}");
    locks.close();
    broken.close();
}

#[test]
fn a_release_is_counted_once_by_its_answer_for_any_sender() {
    let recorder = recorder();
    let locks = Locks::new(Memory::new());
    let mutex = locks.mutex("x");
    let started = Instant::now();
    let guard = mutex.lock().unwrap();
    thread::sleep(ms(30));
    guard.release().unwrap();
    let most = started.elapsed().as_secs_f64();
    let seen = recorder.look();
    seen.counted("release", &[("released", 1)]);
    let held = seen.times("leasehold_hold_seconds");
    assert!(held.len() == 1 && (0.03..=most).contains(&held[0]), "{held:?}");

    // Dropped, and dropped in the middle of its release: counted when it is answered, with the true result.
    drop(mutex.lock().unwrap());
    mutex.with_lock(|_| Ok::<_, Error>(())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let guard = locks.as_async().mutex("y").lock().await.unwrap();
        drop(guard.release());
    });
    let lost = mutex.lock().unwrap();
    locks.revoke("x", true).unwrap();
    drop(lost);
    let lost = mutex.lock().unwrap();
    locks.revoke("x", true).unwrap();
    assert_eq!(lost.release().unwrap(), GuardState::Lost);
    until("all are answered", || locks.sweep().unwrap().held == 0);
    locks.close();
    let seen = recorder.look();
    seen.counted("release", &[("gone", 2), ("released", 3)]);
    assert_eq!(seen.times("leasehold_hold_seconds").len(), 5);

    // This process knows no holder of plain leases.
    let locks = Locks::new(Memory::new());
    let lease = locks.leasing("x").try_acquire().unwrap().unwrap();
    locks.release(&lease).unwrap();
    locks.release(&lease).unwrap();
    let seen = recorder.look();
    seen.counted("release", &[("gone", 1), ("released", 1)]);
    assert!(seen.times("leasehold_hold_seconds").is_empty());
    let kept = mutex_lease(&locks);
    recorder.look().counted("release", &[]);
    locks.release(&kept).unwrap();
    recorder.look().counted("release", &[("released", 1)]);

    // Taking back what a cancelled acquire may have got does not count as a release.
    let held = locks.mutex("x").lock().unwrap();
    assert!(locks.mutex("x").try_lock_for(ms(10)).unwrap().is_none());
    until("the place is given up", || locks.inspect("x").unwrap().queue_length == 0);
    recorder.look().counted("release", &[]);
    drop(held);
    locks.close();
    recorder.look().counted("release", &[("released", 1)]);

    let broken = Locks::new(Fake::failing(&[Verb::Release], ErrorKind::AuthFailed));
    assert!(broken.mutex("x").lock().unwrap().release().is_err());
    drop(broken.mutex("y").lock().unwrap());
    broken.close();
    let seen = recorder.look();
    seen.counted("release", &[("error", 2)]);
    assert_eq!(seen.times("leasehold_hold_seconds").len(), 2);
}

/// A lease that was a guard's.
fn mutex_lease(locks: &Locks) -> leasehold::Lease {
    locks.mutex("kept").lock().unwrap().into_lease()
}

#[test]
fn a_renewal_is_counted_once_by_its_answer_for_any_sender() {
    let recorder = recorder();
    let (fake, failing) = switched(Verb::Renew, ErrorKind::Unavailable);
    let locks = Locks::new(fake);
    let guard = locks.mutex("x").lock().unwrap();
    guard.renew_for(Duration::from_secs(40)).unwrap();
    let lease = locks.leasing("y").try_acquire().unwrap().unwrap();
    locks.renew(&lease).unwrap();
    let adopted = locks.adopt(lease).unwrap();
    recorder.look().counted("renew", &[("ok", 3)]);
    failing.store(1, Ordering::SeqCst);
    assert!(guard.renew_for(Duration::from_secs(40)).is_err());
    recorder.look().counted("renew", &[("error", 1)]);
    failing.store(0, Ordering::SeqCst);
    locks.revoke("x", true).unwrap();
    assert!(guard.renew_for(Duration::from_secs(40)).is_err());
    recorder.look().counted("renew", &[("gone", 1)]);
    drop((guard, adopted));
    locks.close();

    // In the background, as many as the store was asked for.
    let asked = Arc::new(AtomicU32::new(0));
    for (kind, label) in [(None, "ok"), (Some(false), "error"), (Some(true), "error")] {
        asked.store(0, Ordering::SeqCst);
        let count = Arc::clone(&asked);
        let store = Fake::new(move |verb| {
            if verb == Verb::Renew {
                count.fetch_add(1, Ordering::SeqCst);
            }
            async move {
                match kind.filter(|_| verb == Verb::Renew) {
                    None => Ok(()),
                    Some(false) => Err(Error::new(ErrorKind::Unavailable, "the test wants it so")),
                    Some(true) => std::future::pending().await,
                }
            }
        });
        let locks = Locks::new(store);
        recorder.look();
        // Only a lease that is to be lost is short.
        let ttl = if kind.is_none() { 10 * PATIENCE } else { ms(1200) };
        let guard = locks.mutex("x").ttl(ttl).renew_every(ms(50)).lock().unwrap();
        match kind {
            None => until("renewed", || asked.load(Ordering::SeqCst) >= 3),
            Some(_) => assert!(guard.wait_lost_for(PATIENCE).is_some()),
        }
        guard.release().unwrap();
        locks.close();
        // A renewal that hangs is counted when it is given up, after a sixth of the ttl.
        let mut counted = 0;
        until("each renewal is counted", || {
            let seen = recorder.look();
            for (found, count) in seen.labels("renew") {
                // A renewal in flight when the guard was released may find the lease gone.
                assert!(
                    found == label || (kind.is_none() && found == "gone" && count == 1),
                    "{found} {count}"
                );
                counted += count;
            }
            counted >= u64::from(asked.load(Ordering::SeqCst))
        });
        assert_eq!(counted, u64::from(asked.load(Ordering::SeqCst)));
        assert!(counted >= 1);
    }
}

#[test]
fn every_change_of_what_a_guard_believes_is_counted_once() {
    let recorder = recorder();
    let (fake, failing) = switched(Verb::Renew, ErrorKind::Unavailable);
    let locks = Locks::new(fake);
    let guard = locks.mutex("x").ttl(10 * PATIENCE).renew_every(ms(50)).lock().unwrap();
    failing.store(1, Ordering::SeqCst);
    until("at risk", || guard.state() == GuardState::AtRisk);
    failing.store(0, Ordering::SeqCst);
    until("held again", || guard.state() == GuardState::Held);
    failing.store(1, Ordering::SeqCst);
    until("at risk again", || guard.state() == GuardState::AtRisk);
    // In this order, so that no renewal succeeds in between.
    locks.revoke("x", true).unwrap();
    failing.store(0, Ordering::SeqCst);
    assert!(guard.wait_lost_for(PATIENCE).is_some());
    for _ in 0..10 {
        assert_eq!(guard.state(), GuardState::Lost);
    }
    drop(guard);
    locks.close();
    recorder.look().counted("state", &[("at_risk", 2), ("held_again", 1), ("lost", 1)]);
    // A released guard was never anything but held.
    let locks = Locks::new(Memory::new());
    locks.mutex("x").lock().unwrap().release().unwrap();
    locks.close();
    recorder.look().counted("state", &[]);
}

#[test]
fn every_metric_is_described() {
    let recorder = recorder();
    let (fake, failing) = switched(Verb::Renew, ErrorKind::Unavailable);
    let locks = Locks::new(fake);
    let guard = locks.mutex("x").lock().unwrap();
    failing.store(1, Ordering::SeqCst);
    assert!(guard.renew_for(Duration::from_secs(30)).is_err());
    guard.release().unwrap();
    locks.close();
    let mut names = std::collections::BTreeSet::new();
    for (key, unit, description, _) in recorder.snapshotter.snapshot().into_vec() {
        let name = key.key().name().to_owned();
        assert!(description.is_some_and(|text| !text.is_empty()), "{name}");
        assert_eq!(unit, name.ends_with("_seconds").then_some(metrics::Unit::Seconds), "{name}");
        names.insert(name);
    }
    assert_eq!(names.len(), 6, "{names:?}");
}
