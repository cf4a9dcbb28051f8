//! The suite on a plugin that is not leasehold's: it passes, and with each defect the check that looks for it fails.

#![allow(clippy::unwrap_used)] // also in helpers of tests

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bext_plugin_api::locking::{LockHandle, LockingPlugin};
use leasehold_bext::conformance::{Harness, Outcome, Report, checks, run_all};
use parking_lot::Mutex;

/// What is wrong with a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    LowercasesKeys,
    ContentionIsAnError,
    LooksBeforeItLeaps,
    OneLockForAll,
    ReleaseDoesNothing,
    ReplacesOddCharacters,
    CutsKeys,
    CutsKeysInItsHandles,
    ZeroIsForever,
    OverflowsOnLongTtls,
    OneLockId,
    RemembersItsOwnHandlesOnly,
    RenewsForAnyone,
    ReleasesForAnyone,
    FencesFall,
    NeverExpires,
    ExpiresEarly,
    RenewDoesNothing,
    RenewRevives,
    HasNoName,
    BlocksOnARuntime,
    CleansUpOnce,
    CleanupFreesEverything,
    BrokenIsContention,
    BrokenTakesLong,
}

/// What the plugins of one store share.
#[derive(Default)]
struct Store {
    locks: Mutex<HashMap<String, Held>>,
    fences: AtomicU64,
    is_down: AtomicBool,
}

struct Held {
    lock_id: String,
    /// `None`: never.
    until: Option<Instant>,
}

struct Simple {
    bug: Bug,
    store: Arc<Store>,
    own: Mutex<Vec<String>>,
    is_cleaned_up: AtomicBool,
}

impl Simple {
    fn new(bug: Bug, store: &Arc<Store>) -> Self {
        Simple { bug, store: Arc::clone(store), own: Mutex::default(), is_cleaned_up: AtomicBool::default() }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// What the plugin does at the beginning of each call.
    fn ask(&self) -> Result<(), String> {
        if self.has(Bug::BlocksOnARuntime) {
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {});
        }
        if !self.store.is_down.load(Ordering::SeqCst) {
            return Ok(());
        }
        if self.has(Bug::BrokenTakesLong) {
            thread::sleep(Duration::from_secs(2));
        }
        Err("the store is down".into())
    }

    fn stored(&self, key: &str) -> String {
        match self.bug {
            Bug::OneLockForAll => "the key".into(),
            Bug::ReplacesOddCharacters => key.replace(|c: char| !c.is_ascii_alphanumeric(), "_"),
            Bug::CutsKeys => key.chars().take(100).collect(),
            _ => key.into(),
        }
    }

    fn end(&self, ttl_ms: u64) -> Option<Instant> {
        match self.bug {
            Bug::NeverExpires => None,
            Bug::ZeroIsForever if ttl_ms == 0 => None,
            Bug::ExpiresEarly => Some(Instant::now() + Duration::from_millis(ttl_ms / 2)),
            Bug::OverflowsOnLongTtls => {
                Some(Instant::now() + Duration::from_micros(ttl_ms.checked_mul(1000).unwrap()))
            }
            _ => Instant::now().checked_add(Duration::from_millis(ttl_ms)),
        }
    }

    fn knows(&self, handle: &LockHandle) -> bool {
        !self.has(Bug::RemembersItsOwnHandlesOnly) || self.own.lock().contains(&handle.lock_id)
    }
}

fn is_over(held: &Held) -> bool {
    held.until.is_some_and(|until| Instant::now() >= until)
}

impl LockingPlugin for Simple {
    fn name(&self) -> &str {
        if self.has(Bug::HasNoName) { "" } else { "simple" }
    }

    fn try_lock(&self, key: &str, ttl_ms: u64) -> Result<Option<LockHandle>, String> {
        if self.ask().is_err() && self.has(Bug::BrokenIsContention) {
            return Ok(None);
        }
        self.ask()?;
        let stored = self.stored(key);
        let is_held = |locks: &HashMap<_, _>| locks.get(&stored).is_some_and(|held| !is_over(held));
        let mut locks = self.store.locks.lock();
        let was_held = is_held(&locks);
        if self.has(Bug::LooksBeforeItLeaps) {
            drop(locks);
            thread::sleep(Duration::from_millis(20));
            locks = self.store.locks.lock();
        }
        if was_held {
            return if self.has(Bug::ContentionIsAnError) { Err("busy".into()) } else { Ok(None) };
        }
        let fence = match self.bug {
            Bug::FencesFall => u64::MAX - self.store.fences.fetch_add(1, Ordering::SeqCst),
            _ => self.store.fences.fetch_add(1, Ordering::SeqCst),
        };
        let lock_id = if self.has(Bug::OneLockId) { "the lock".into() } else { format!("lock-{fence}") };
        self.own.lock().push(lock_id.clone());
        locks.insert(stored, Held { lock_id: lock_id.clone(), until: self.end(ttl_ms) });
        let key = match self.bug {
            Bug::LowercasesKeys => key.to_lowercase(),
            Bug::CutsKeysInItsHandles => key.chars().take(200).collect(),
            _ => key.into(),
        };
        Ok(Some(LockHandle { key, lock_id, ttl_ms }))
    }

    fn renew(&self, handle: &LockHandle) -> Result<(), String> {
        self.ask()?;
        let mut locks = self.store.locks.lock();
        let held = locks.get_mut(&self.stored(&handle.key)).ok_or("gone")?;
        if !self.has(Bug::RenewsForAnyone) && held.lock_id != handle.lock_id || !self.knows(handle) {
            return Err("not the owner".into());
        }
        if is_over(held) && !self.has(Bug::RenewRevives) {
            return Err("too late".into());
        }
        if !self.has(Bug::RenewDoesNothing) {
            held.until = self.end(handle.ttl_ms);
        }
        Ok(())
    }

    fn release(&self, handle: LockHandle) -> Result<(), String> {
        self.ask()?;
        let mut locks = self.store.locks.lock();
        let stored = self.stored(&handle.key);
        let is_owner = locks.get(&stored).is_some_and(|held| held.lock_id == handle.lock_id);
        if (is_owner || self.has(Bug::ReleasesForAnyone))
            && !self.has(Bug::ReleaseDoesNothing)
            && self.knows(&handle)
        {
            locks.remove(&stored);
        }
        Ok(())
    }

    fn cleanup(&self) -> Result<(), String> {
        if self.has(Bug::CleanupFreesEverything) {
            self.store.locks.lock().clear();
        }
        if self.is_cleaned_up.swap(true, Ordering::SeqCst) && self.has(Bug::CleansUpOnce) {
            return Err("it was cleaned up".into());
        }
        Ok(())
    }
}

fn report(bug: Bug) -> Report {
    let store = Arc::<Store>::default();
    let broken = Arc::clone(&store);
    let harness = Harness::new(move || Ok(Arc::new(Simple::new(bug, &store))))
        .fences(|handle| handle.lock_id.strip_prefix("lock-")?.parse().ok())
        .breaks(move || broken.is_down.store(true, Ordering::SeqCst))
        // Enough for a plugin without I/O, also on a slow machine: a good one must pass.
        .patience(if bug == Bug::None { Duration::from_secs(60) } else { Duration::from_secs(5) })
        .answers_within(if bug == Bug::BrokenTakesLong {
            Duration::from_secs(1)
        } else {
            Duration::from_secs(30)
        });
    run_all(harness)
}

#[test]
fn a_plugin_of_another_kind_passes() {
    let report = report(Bug::None);
    println!("{report}");
    report.assert_passed();
    assert!(report.outcomes().all(|(_, outcome)| *outcome == Outcome::Passed));
}

/// Every check, and a defect that it sees.
const SEEN: &[(Bug, &str)] = &[
    (Bug::LowercasesKeys, "a_free_key_is_granted_with_a_full_handle"),
    (Bug::ContentionIsAnError, "contention_is_none_for_everybody"),
    (Bug::LooksBeforeItLeaps, "one_of_64_threads_gets_the_key"),
    (Bug::OneLockForAll, "threads_on_different_keys_all_win"),
    (Bug::ReleaseDoesNothing, "a_release_frees_the_key"),
    (Bug::ReplacesOddCharacters, "odd_keys_are_keys_of_their_own"),
    (Bug::CutsKeys, "odd_keys_are_keys_of_their_own"),
    (Bug::CutsKeysInItsHandles, "extreme_keys_are_locks_or_errors"),
    (Bug::ZeroIsForever, "extreme_ttls_are_locks_or_errors"),
    (Bug::OverflowsOnLongTtls, "extreme_ttls_are_locks_or_errors"),
    (Bug::OneLockId, "every_lock_has_a_lock_id_of_its_own"),
    (Bug::RemembersItsOwnHandlesOnly, "another_plugin_can_use_a_handle_from_json"),
    (Bug::RenewsForAnyone, "a_forged_handle_touches_no_lock"),
    (Bug::RenewsForAnyone, "a_stale_renew_does_not_touch_a_newer_lock"),
    (Bug::ReleasesForAnyone, "a_forged_handle_touches_no_lock"),
    (Bug::ReleasesForAnyone, "a_stale_release_does_not_touch_a_newer_lock"),
    (Bug::FencesFall, "fences_of_a_key_rise"),
    (Bug::NeverExpires, "a_lock_expires_after_its_ttl_and_not_before"),
    (Bug::ExpiresEarly, "a_lock_expires_after_its_ttl_and_not_before"),
    (Bug::RenewDoesNothing, "a_renew_restores_the_full_ttl"),
    (Bug::RenewRevives, "a_renew_after_expiry_is_an_error"),
    (Bug::HasNoName, "the_name_is_a_stable_label"),
    (Bug::BlocksOnARuntime, "calls_work_in_a_runtime_of_one_thread"),
    (Bug::BlocksOnARuntime, "calls_work_in_a_runtime_of_many_threads"),
    (Bug::BlocksOnARuntime, "a_plugin_made_in_a_runtime_works_outside"),
    (Bug::CleansUpOnce, "a_cleanup_can_be_repeated"),
    (Bug::CleanupFreesEverything, "a_cleanup_leaves_other_plugins_alone"),
    (Bug::BrokenIsContention, "a_broken_store_is_an_error_in_time"),
    (Bug::BrokenTakesLong, "a_broken_store_is_an_error_in_time"),
];

#[test]
fn every_defect_is_seen_by_the_check_for_it() {
    let mut bugs: Vec<Bug> = SEEN.iter().map(|(bug, _)| *bug).collect();
    bugs.dedup();
    // Some at a time: each suite starts many threads.
    for some in bugs.chunks(6) {
        let reports: Vec<_> = some.iter().map(|&bug| (bug, thread::spawn(move || report(bug)))).collect();
        for (bug, report) in reports {
            let report = report.join().unwrap();
            for (_, check) in SEEN.iter().filter(|(of, _)| *of == bug) {
                let mut outcomes = report.outcomes();
                let (_, outcome) = outcomes.find(|(of, _)| of.name() == *check).expect(check);
                assert!(matches!(outcome, Outcome::Failed(_)), "{bug:?} is not seen by {check}:\n{report}");
            }
        }
    }
}

#[test]
fn every_check_is_shown_to_fail() {
    for check in checks() {
        assert!(
            SEEN.iter().any(|(_, seen)| *seen == check.name()),
            "no defect shows that {} can fail",
            check.name()
        );
    }
}

#[test]
fn what_a_harness_lacks_is_reported_as_left_out() {
    let store = Arc::<Store>::default();
    let report = run_all(Harness::new(move || Ok(Arc::new(Simple::new(Bug::None, &store)))));
    report.assert_passed();
    let text = report.to_string();
    assert!(text.contains("2 left out") && text.contains("left out: fences_of_a_key_rise: "), "{text}");
}

#[test]
fn a_plugin_that_cannot_connect_fails_every_check() {
    let report = run_all(Harness::new(|| Err("no such server".into())).breaks(|| {}).fences(|_| None));
    assert!(
        report
            .outcomes()
            .all(|(_, outcome)| matches!(outcome, Outcome::Failed(why) if why == "no such server"))
    );
    assert!(!report.is_passed());
}
