//! Where a host calls a plugin from, how it ends, and what it sees when the store is broken.

use std::thread;
use std::time::{Duration, Instant};

use bext_plugin_api::locking::LockingPlugin;
use tokio::runtime::{Builder, Runtime};

use super::report::panicked;
use super::trial::{LONG_MS, Trial, done, fails};
use super::{Check, Harness, Need, Shown, ensure};

pub(super) const CHECKS: &[Check] = &[
    Check::new("the_name_is_a_stable_label", name),
    Check::new("calls_work_in_a_runtime_of_one_thread", one_thread),
    Check::new("calls_work_in_a_runtime_of_many_threads", many_threads),
    Check::new("a_plugin_made_in_a_runtime_works_outside", in_and_out),
    Check::new("a_cleanup_can_be_repeated", cleanup_twice),
    Check::new("a_cleanup_leaves_other_plugins_alone", cleanup_alone),
    Check::needing("a_broken_store_is_an_error_in_time", Need::Breaking, broken),
];

fn name(t: &Trial<'_>) -> Shown {
    let name = t.a.name().to_owned();
    ensure!(!name.is_empty(), "the name is empty");
    drop(t.lock(&*t.a, &t.key(), LONG_MS)?);
    ensure!(t.a.name() == name && t.b.name() == name, "the name {name:?} did not stay the same");
    Ok(())
}

/// All calls of a plugin's life, all made on this thread.
fn a_life(harness: &Harness, key: &str) -> Shown {
    let (one, other) = ((harness.connect)()?, (harness.connect)()?);
    let locked = one.try_lock(key, LONG_MS)?;
    let handle = locked.ok_or("a free key must be granted")?;
    let contender = other.try_lock(key, LONG_MS)?;
    let shown = if contender.is_some() { Err("a key that is held was granted again".into()) } else { Ok(()) };
    let shown = shown.and_then(|()| done("a renew", one.renew(&handle)));
    done("a release", one.release(handle))?;
    done("a cleanup", one.cleanup())?;
    drop(one);
    done("a cleanup", other.cleanup())?;
    shown
}

fn runtime(built: std::io::Result<Runtime>) -> Result<Runtime, String> {
    built.map_err(|error| format!("the machine starts no runtime: {error}"))
}

fn one_thread(t: &Trial<'_>) -> Shown {
    let runtime = runtime(Builder::new_current_thread().enable_all().build())?;
    runtime.block_on(async { a_life(t.harness, &t.key()) })?;
    // A runtime without timers and I/O is one as well.
    let bare = self::runtime(Builder::new_current_thread().build())?;
    bare.block_on(async { a_life(t.harness, &t.key()) })
}

fn many_threads(t: &Trial<'_>) -> Shown {
    let runtime = runtime(Builder::new_multi_thread().worker_threads(2).enable_all().build())?;
    runtime.block_on(async { a_life(t.harness, &t.key()) })?;
    let key = t.key();
    let (plugin, other) = (t.a.clone(), t.b.clone());
    // On a worker, and on a thread for blocking work.
    let calls = move |plugin: &dyn LockingPlugin| {
        let handle = plugin.try_lock(&key, LONG_MS)?.ok_or("a free key must be granted")?;
        plugin.renew(&handle)?;
        plugin.release(handle)
    };
    let again = calls.clone();
    let spawned = runtime.block_on(runtime.spawn(async move { calls(&*plugin) }));
    done("a call on a worker thread", spawned.map_err(|error| error.to_string())?)?;
    // The plugin may hold the key for a while after its release.
    let end = Instant::now() + t.harness.patience;
    let blocking = move || {
        loop {
            match again(&*other) {
                Err(error) if error.contains("must be granted") && Instant::now() < end => {
                    thread::sleep(Duration::from_millis(5));
                }
                answer => return answer,
            }
        }
    };
    let spawned = runtime.block_on(runtime.spawn_blocking(blocking));
    done("a call on a thread for blocking work", spawned.map_err(|error| error.to_string())?)
}

fn in_and_out(t: &Trial<'_>) -> Shown {
    let key = t.key();
    let runtime = runtime(Builder::new_current_thread().enable_all().build())?;
    let (plugin, handle) = runtime.block_on(async {
        let plugin = (t.harness.connect)()?;
        let handle = t.lock(&*plugin, &key, LONG_MS)?;
        Ok::<_, String>((plugin, handle))
    })?;
    // The runtime that it first saw is gone.
    drop(runtime);
    done("a renew after the runtime ended", plugin.renew(&handle))?;
    let calls = || {
        t.is_held(&*plugin, &key)?;
        done("a release on another thread", plugin.release(handle))?;
        done("a cleanup", plugin.cleanup())
    };
    thread::scope(|scope| match scope.spawn(calls).join() {
        Ok(shown) => shown,
        panic => Err(panicked(panic)),
    })
}

fn cleanup_twice(t: &Trial<'_>) -> Shown {
    let plugin = (t.harness.connect)()?;
    let handle = t.lock(&*plugin, &t.key(), LONG_MS)?;
    done("a release", plugin.release(handle))?;
    done("a cleanup", plugin.cleanup())?;
    done("a second cleanup", plugin.cleanup())?;
    // Of one that was never used.
    done("a cleanup", (t.harness.connect)()?.cleanup())
}

fn cleanup_alone(t: &Trial<'_>) -> Shown {
    let key = t.key();
    let handle = t.lock(&*t.a, &key, LONG_MS)?;
    let leaving = (t.harness.connect)()?;
    t.is_held(&*leaving, &key)?;
    done("a cleanup", leaving.cleanup())?;
    drop(leaving);
    t.is_held(&*t.b, &key)?;
    done("a renew after another plugin's cleanup", t.a.renew(&handle))
}

fn broken(t: &Trial<'_>) -> Shown {
    let (key, free) = (t.key(), t.key());
    let handle = t.lock(&*t.a, &key, LONG_MS)?;
    t.is_held(&*t.b, &key)?;
    if let Some(break_store) = t.harness.breaking.as_ref().and_then(|store| store.lock().take()) {
        break_store();
    }
    let in_time = |what: &str, call: &mut dyn FnMut() -> Result<(), String>| {
        let began = Instant::now();
        fails(what, call())?;
        let (took, limit) = (began.elapsed(), t.harness.answers_within);
        ensure!(took <= limit, "{what} took {took:?}, and {limit:?} are allowed");
        Ok(())
    };
    in_time("an attempt on a held key of a broken store", &mut || t.b.try_lock(&key, LONG_MS).map(drop))?;
    in_time("an attempt on a free key of a broken store", &mut || t.a.try_lock(&free, LONG_MS).map(drop))?;
    in_time("a renew on a broken store", &mut || t.a.renew(&handle))?;
    in_time("a release on a broken store", &mut || t.a.release(handle.clone()))
}
