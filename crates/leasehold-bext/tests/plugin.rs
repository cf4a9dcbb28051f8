//! What the plugin promises beyond the suite: its options, its errors, and handles in other processes.

#![allow(clippy::unwrap_used)] // also in helpers of tests

use std::sync::Arc;
use std::time::{Duration, Instant};

use bext_plugin_api::locking::{LockHandle, LockingPlugin};
use leasehold::backend::{Info, Liveness};
use leasehold::backends::memory::Memory;
use leasehold::clock::SystemClock;
use leasehold::{ErrorKind, Fence, Locks};
use leasehold_bext::{LeaseholdPlugin, PluginOptions, fence_of};
use testkit::faulty::{Act, Answer, FINAL, Faulty, RETRYABLE, Verb};
use testkit::hand::Hand;
use testkit::process::{Child, hear, role, say};
use testkit::until::{in_time_blocking, until};

const LONG_MS: u64 = 120_000;
const HOUR: Duration = Duration::from_secs(3600);

fn on(store: &Faulty, options: PluginOptions) -> LeaseholdPlugin {
    LeaseholdPlugin::new(Locks::new(store.clone()), options).unwrap()
}

fn faulty() -> Faulty {
    Faulty::new(Memory::new(), Arc::new(SystemClock))
}

fn keep_alive() -> PluginOptions {
    PluginOptions::default().keep_alive(HOUR)
}

/// Tries until the key is granted.
fn take_over(plugin: &LeaseholdPlugin, key: &str) -> LockHandle {
    let mut granted = None;
    until("the key becomes free", || {
        granted = plugin.try_lock(key, LONG_MS).unwrap();
        granted.is_some()
    });
    granted.unwrap()
}

#[test]
fn a_failing_store_is_never_contention() {
    for options in [PluginOptions::default(), keep_alive()] {
        let store = faulty();
        let plugin = on(&store, options);
        let held = plugin.try_lock("held", LONG_MS).unwrap().unwrap();
        let fail = RETRYABLE.into_iter().chain(FINAL).map(Act::Fail);
        // What such an answer may have hidden is given back.
        for act in fail.chain(RETRYABLE.map(Act::LostAfter)) {
            for key in ["held", "free"] {
                store.plan(Verb::TryAcquire, [act]);
                assert!(plugin.try_lock(key, LONG_MS).is_err(), "{act:?} on the key {key}");
            }
            store.plan(Verb::Renew, [act]);
            assert!(plugin.renew(&held).is_err(), "{act:?}");
        }
        let given_back = Instant::now();
        plugin.release(take_over(&plugin, "free")).unwrap();
        assert!(given_back.elapsed() < Duration::from_millis(LONG_MS / 2), "it did not have to expire");
        plugin.renew(&held).unwrap();
    }
}

/// A real store that is too busy: another program keeps its file locked.
#[test]
fn an_overloaded_file_is_an_error_and_works_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.db");
    let url = format!("sqlite:{}", file.display());
    let plugin = LeaseholdPlugin::connect(&url, PluginOptions::default()).unwrap();
    let handle = plugin.try_lock("x", LONG_MS).unwrap().unwrap();
    let other = rusqlite::Connection::open(&file).unwrap();
    other.busy_timeout(Duration::from_secs(60)).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let error = plugin.try_lock("y", LONG_MS).unwrap_err();
    assert!(error.contains("overloaded") || error.contains("no answer in time"), "{error}");
    assert!(plugin.try_lock("x", LONG_MS).is_err());
    other.execute_batch("COMMIT").unwrap();
    assert_eq!(plugin.try_lock("x", LONG_MS), Ok(None));
    plugin.release(handle).unwrap();
}

#[test]
fn bad_ttls_and_keys_are_refused_before_any_io() {
    for options in [PluginOptions::default(), keep_alive()] {
        let store = faulty();
        let plugin = on(&store, options);
        let day = 24 * 3600 * 1000;
        for ttl_ms in [0, day + 1, u64::MAX] {
            let error = plugin.try_lock("x", ttl_ms).unwrap_err();
            assert!(error.contains("ttl"), "{error}");
        }
        for key in [String::new(), "k".repeat(513)] {
            let error = plugin.try_lock(&key, LONG_MS).unwrap_err();
            assert!(error.contains("name"), "{error}");
        }
        let handle = plugin.try_lock("x", day).unwrap().unwrap();
        let before = store.log().len();
        for ttl_ms in [0, day + 1, u64::MAX] {
            assert!(plugin.renew(&LockHandle { ttl_ms, ..handle.clone() }).is_err());
        }
        assert!(plugin.renew(&LockHandle { lock_id: "made up".into(), ..handle.clone() }).is_err());
        assert_eq!(plugin.release(LockHandle { lock_id: "made up".into(), ..handle.clone() }), Ok(()));
        assert_eq!(store.log().len(), before);
        plugin.release(handle).unwrap();
    }
    // A store that allows less, as a leasehold server does.
    let store = faulty().with_info(|info| info.max_ttl = Duration::from_secs(600));
    assert!(on(&store, PluginOptions::default()).try_lock("x", 600_001).is_err());
    assert_eq!(store.count(Verb::TryAcquire), 0);
    assert!(on(&store, PluginOptions::default()).try_lock("x", 600_000).unwrap().is_some());
}

#[test]
fn the_shortest_ttl_of_a_store_is_granted() {
    let plugin = on(&faulty(), PluginOptions::default());
    assert!(plugin.try_lock("x", 1).unwrap().is_some());
    // Renewals could not keep up with a pause of the process.
    let kept = on(&faulty(), keep_alive());
    assert!(kept.try_lock("x", 49).is_err());
    assert!(kept.try_lock("x", 50).unwrap().is_some());
}

#[test]
fn keep_alive_renews_until_the_release() {
    let store = faulty();
    let (plugin, other) = (on(&store, keep_alive()), on(&store, PluginOptions::default()));
    let handle = plugin.try_lock("x", 6_000).unwrap().unwrap();
    let locked = Instant::now();
    until("it is renewed for longer than its ttl", || {
        assert_eq!(other.try_lock("x", LONG_MS), Ok(None));
        locked.elapsed() > Duration::from_secs(9) && store.count(Verb::Renew) >= 3
    });
    plugin.renew(&handle).unwrap();
    plugin.release(handle.clone()).unwrap();
    // Free at once: nothing had to expire.
    let next = other.try_lock("x", LONG_MS).unwrap().unwrap();
    assert!(plugin.renew(&handle).is_err());
    assert!(fence_of(&next) > fence_of(&handle));
}

#[test]
fn keep_alive_ends_when_another_node_releases() {
    for min_hold in [Duration::ZERO, Duration::from_millis(500)] {
        let store = faulty();
        let (plugin, other) =
            (on(&store, keep_alive()), on(&store, PluginOptions::default().min_hold(min_hold)));
        let handle = plugin.try_lock("x", 6_000).unwrap().unwrap();
        other.release(handle).unwrap();
        let next = take_over(&other, "x");
        until("the plugin learns that its lock is gone", || {
            let answers = store.calls(Verb::Renew).into_iter().filter_map(|call| call.answer);
            let is_gone = |answer: &Answer| format!("{answer:?}").contains("Gone");
            answers.into_iter().any(|(_, answer)| is_gone(&answer))
        });
        other.renew(&next).unwrap();
        assert_eq!(plugin.try_lock("x", LONG_MS), Ok(None));
        assert!(
            store
                .calls(Verb::Renew)
                .iter()
                .flat_map(|call| call.renewals())
                .all(|one| one.name.as_str() == "x")
        );
    }
}

#[test]
fn keep_alive_ends_at_the_longest_hold() {
    let store = faulty();
    let options = PluginOptions::default().keep_alive(Duration::from_secs(6));
    let (plugin, other) = (on(&store, options), on(&store, PluginOptions::default()));
    let before = Instant::now();
    let handle = plugin.try_lock("x", 3_000).unwrap().unwrap();
    take_over(&other, "x");
    assert!(before.elapsed() >= Duration::from_millis(2_900), "{:?}", before.elapsed());
    assert!(plugin.renew(&handle).is_err());
    // Of a ttl that is longer, nothing is taken away.
    let long = plugin.try_lock("y", 60_000).unwrap().unwrap();
    let left = in_time_blocking("the store answers", move || {
        let locks = leasehold::blocking::Locks::new(store);
        locks.inspect("y").unwrap().holders[0].grant.left.unwrap()
    });
    assert!(left > Duration::from_secs(6), "{left:?}");
    plugin.release(long).unwrap();
}

#[test]
fn the_host_may_renew_beyond_the_longest_hold() {
    let (clock, second) = (Hand::default(), Duration::from_secs(1));
    let store = Memory::with_clock(Arc::new(clock.clone()));
    let client = || Locks::builder(Arc::new(store.clone())).clock(Arc::new(clock.clone())).build();
    let plugin = LeaseholdPlugin::new(client(), PluginOptions::default().keep_alive(second)).unwrap();
    let other = LeaseholdPlugin::new(client(), PluginOptions::default()).unwrap();
    let handle = plugin.try_lock("x", 1_000).unwrap().unwrap();
    let long = LockHandle { ttl_ms: LONG_MS, ..handle };
    plugin.renew(&long).unwrap();
    clock.advance(second * 2);
    // The plugin has given it up by now, and forgets it here. That must not release what the host has renewed.
    plugin.try_lock("y", LONG_MS).unwrap().unwrap();
    drop(plugin);
    other.renew(&long).unwrap();
    assert_eq!(other.try_lock("x", LONG_MS), Ok(None));
}

#[test]
fn a_cleanup_ends_renewing_and_releases_nothing() {
    let ends: [fn(LeaseholdPlugin); 2] = [|plugin| plugin.cleanup().unwrap(), drop];
    for end in ends {
        let store = faulty();
        let (plugin, other) = (on(&store, keep_alive()), on(&store, PluginOptions::default()));
        let before = Instant::now();
        plugin.try_lock("x", 3_000).unwrap().unwrap();
        end(plugin);
        // The work under the lock may still be going on, for as long as it had the lock.
        take_over(&other, "x");
        assert!(before.elapsed() >= Duration::from_millis(2_900), "{:?}", before.elapsed());
        assert_eq!(store.count(Verb::Release), 0);
    }
}

#[test]
fn after_a_cleanup_every_call_is_an_error() {
    let plugin = LeaseholdPlugin::connect("memory:", keep_alive()).unwrap();
    let handle = plugin.try_lock("x", LONG_MS).unwrap().unwrap();
    plugin.cleanup().unwrap();
    plugin.cleanup().unwrap();
    let answers =
        [plugin.try_lock("y", LONG_MS).map(drop), plugin.renew(&handle), plugin.release(handle.clone())];
    for answer in answers {
        assert!(answer.unwrap_err().contains("cleaned up"));
    }
    assert_eq!(plugin.name(), "memory");
}

#[test]
fn a_cleanup_leaves_a_shared_client_open() {
    let client = leasehold::blocking::Locks::new(Memory::new());
    let plugin = LeaseholdPlugin::new(client.clone(), PluginOptions::default()).unwrap();
    let other = LeaseholdPlugin::new(client.as_async().clone(), PluginOptions::default()).unwrap();
    plugin.try_lock("x", LONG_MS).unwrap().unwrap();
    plugin.cleanup().unwrap();
    assert_eq!(other.try_lock("x", LONG_MS), Ok(None));
    assert!(client.is_locked("x").unwrap());
}

#[test]
fn min_hold_keeps_the_key_for_just_that_long() {
    let clock = Hand::default();
    let store = Memory::with_clock(Arc::new(clock.clone()));
    let hold = Duration::from_secs(5);
    for options in [PluginOptions::default(), keep_alive()] {
        let client = || Locks::builder(Arc::new(store.clone())).clock(Arc::new(clock.clone())).build();
        let plugin = LeaseholdPlugin::new(client(), options.min_hold(hold)).unwrap();
        // Shorter than the lock has left, and longer.
        for ttl_ms in [60_000, 2_000] {
            let handle = plugin.try_lock("x", ttl_ms).unwrap().unwrap();
            plugin.renew(&handle).unwrap();
            plugin.release(handle.clone()).unwrap();
            assert!(plugin.renew(&handle).is_err(), "the holder has let go of it");
            clock.advance(hold - Duration::from_millis(1));
            plugin.release(handle).unwrap();
            assert_eq!(plugin.try_lock("x", LONG_MS), Ok(None));
            clock.advance(Duration::from_millis(1));
            let next = plugin.try_lock("x", LONG_MS).unwrap().unwrap();
            plugin.release(next).unwrap();
            clock.advance(hold);
        }
    }
}

#[test]
fn a_release_is_tried_again_while_the_store_is_silent() {
    for options in [PluginOptions::default(), PluginOptions::default().min_hold(Duration::from_millis(100))] {
        let store = faulty();
        let plugin = on(&store, options);
        for kind in RETRYABLE {
            let handle = take_over(&plugin, "x");
            for verb in [Verb::Release, Verb::Renew] {
                store.plan(verb, [Act::Fail(kind)]);
            }
            assert_eq!(plugin.release(handle), Ok(()), "{kind:?}");
            store.plan(Verb::Release, []);
            store.plan(Verb::Renew, []);
        }
    }
}

#[test]
fn what_a_store_cannot_do_is_refused_at_the_start() {
    let refused = |change: fn(&mut Info), options: PluginOptions| {
        let error = LeaseholdPlugin::new(Locks::new(faulty().with_info(change)), options).unwrap_err();
        (error.kind(), error.to_string())
    };
    let hold = |time| PluginOptions::default().min_hold(time);
    let nothing: fn(&mut Info) = |_| ();
    let session: fn(&mut Info) = |info| info.liveness = Liveness::Session;
    let unfenced: fn(&mut Info) = |info| info.fenced = false;
    for (change, options, kind, word) in [
        (session, PluginOptions::default(), ErrorKind::Unsupported, "ttl"),
        (unfenced, hold(HOUR), ErrorKind::Unsupported, "`min_hold`"),
        (nothing, hold(HOUR * 25), ErrorKind::InvalidArgument, "`min_hold`"),
        (nothing, hold(Duration::from_nanos(1)), ErrorKind::InvalidArgument, "`min_hold`"),
        (
            nothing,
            PluginOptions::default().keep_alive(Duration::ZERO),
            ErrorKind::InvalidArgument,
            "`keep_alive`",
        ),
        (nothing, PluginOptions::default().name(""), ErrorKind::InvalidArgument, "`name`"),
    ] {
        let (seen, text) = refused(change, options);
        assert_eq!(seen, kind, "{text}");
        assert!(text.contains(word), "{text}");
    }
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file:{}", directory.path().display());
    let error = LeaseholdPlugin::connect(&url, PluginOptions::default()).unwrap_err().to_string();
    assert!(error.contains("file: keeps a lock until its process"), "{error}");
    assert!(LeaseholdPlugin::connect("nosuchstore:", PluginOptions::default()).is_err());
}

#[test]
fn the_host_can_choose_the_name() {
    let plugin = LeaseholdPlugin::connect("memory:", PluginOptions::default().name("locks-eu")).unwrap();
    assert_eq!(plugin.name(), "locks-eu");
}

#[test]
fn errors_and_debug_show_no_secret() {
    let error = match LeaseholdPlugin::connect("redis://:hunter2@127.0.0.1:1/", PluginOptions::default()) {
        Err(error) => format!("{error} {error:?}"),
        Ok(plugin) => {
            format!("{} {plugin:?}", plugin.try_lock("the key of a customer", LONG_MS).unwrap_err())
        }
    };
    assert!(!error.contains("hunter2") && !error.contains("customer"), "{error}");

    let store = faulty();
    let plugin = on(&store, keep_alive());
    let handle = plugin.try_lock("the key of a customer", LONG_MS).unwrap().unwrap();
    store.plan(Verb::Renew, [Act::Fail(ErrorKind::Unavailable)]);
    let secret = &handle.lock_id[..22];
    store.plan(Verb::TryAcquire, [Act::Fail(ErrorKind::AuthFailed)]);
    let refused = plugin.try_lock("the key of a customer", LONG_MS).unwrap_err();
    for text in [refused, plugin.renew(&handle).unwrap_err(), format!("{plugin:?}")] {
        assert!(!text.contains("customer") && !text.contains(secret), "{text}");
    }
}

#[test]
fn only_handles_of_this_plugin_have_a_fence() {
    let plugin = on(&faulty(), PluginOptions::default());
    let handle = plugin.try_lock("x", LONG_MS).unwrap().unwrap();
    let fence = fence_of(&handle).unwrap();
    assert!(fence > Fence::UNFENCED && handle.lock_id.ends_with(&fence.to_string()));
    assert_eq!(
        fence_of(&LockHandle { lock_id: "550e8400-e29b-41d4-a716-446655440000".into(), ..handle }),
        None
    );
}

/// The other process of the test below.
fn other_process(url: &str) {
    let plugin = LeaseholdPlugin::connect(url, PluginOptions::default()).unwrap();
    let handle: LockHandle = serde_json::from_str(&hear()).unwrap();
    assert_eq!(plugin.try_lock(&handle.key, LONG_MS), Ok(None));
    plugin.renew(&handle).unwrap();
    let fence = fence_of(&handle).unwrap();
    plugin.release(handle).unwrap();
    say(&fence.to_string());
}

#[test]
fn another_process_can_use_a_handle() {
    if let Some(url) = role() {
        return other_process(&url);
    }
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("locks.db").display());
    let plugin = LeaseholdPlugin::connect(&url, keep_alive()).unwrap();
    let handle = plugin.try_lock("x", LONG_MS).unwrap().unwrap();
    let mut child = Child::spawn("another_process_can_use_a_handle", &url);
    child.tell(&serde_json::to_string(&handle).unwrap());
    assert_eq!(child.line(), fence_of(&handle).unwrap().to_string());
    assert!(child.ended_well());
    assert!(plugin.renew(&handle).is_err());
    assert!(plugin.try_lock("x", LONG_MS).unwrap().is_some());
}
