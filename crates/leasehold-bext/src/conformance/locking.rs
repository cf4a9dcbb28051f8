//! Who gets a lock, and who does not.

use std::sync::Barrier;
use std::thread;

use super::trial::{LONG_MS, Trial, done, fails};
use super::{Check, Shown, ensure};

/// As many threads as the check of one winner starts.
const THREADS: usize = 64;

pub(super) const CHECKS: &[Check] = &[
    Check::new("a_free_key_is_granted_with_a_full_handle", full_handle),
    Check::new("contention_is_none_for_everybody", contention),
    Check::new("one_of_64_threads_gets_the_key", one_winner),
    Check::new("threads_on_different_keys_all_win", different_keys),
    Check::new("a_release_frees_the_key", release_frees),
    Check::new("odd_keys_are_keys_of_their_own", odd_keys),
    Check::new("extreme_keys_are_locks_or_errors", extreme_keys),
    Check::new("extreme_ttls_are_locks_or_errors", extreme_ttls),
];

fn full_handle(t: &Trial<'_>) -> Shown {
    let key = format!("{}/Mixed Case/ключ", t.key());
    let handle = t.lock(&*t.a, &key, LONG_MS)?;
    ensure!(handle.key == key, "the handle's key is {:?}, and the lock's is {key:?}", handle.key);
    ensure!(handle.ttl_ms == LONG_MS, "the handle's ttl is {}, and {LONG_MS} was asked for", handle.ttl_ms);
    ensure!(!handle.lock_id.is_empty(), "the handle has no lock_id");
    Ok(())
}

fn contention(t: &Trial<'_>) -> Shown {
    let key = t.key();
    let handle = t.lock(&*t.a, &key, LONG_MS)?;
    t.is_held(&*t.b, &key)?;
    t.is_held(&*t.a, &key)?;
    // Those attempts did no harm.
    done("a renew by the holder", t.a.renew(&handle))
}

fn one_winner(t: &Trial<'_>) -> Shown {
    for _ in 0..3 {
        let (key, start) = (t.key(), Barrier::new(THREADS));
        let answers: Vec<_> = thread::scope(|scope| {
            let attempt = |n: usize| {
                let (key, start) = (&key, &start);
                let plugin = if n.is_multiple_of(2) { &t.a } else { &t.b };
                scope.spawn(move || {
                    start.wait();
                    t.try_lock(&**plugin, key, LONG_MS)
                })
            };
            let threads: Vec<_> = (0..THREADS).map(attempt).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a panic".into())))
                .collect()
        });
        let mut winners = 0;
        for answer in answers {
            let granted =
                answer.map_err(|error| format!("all others must see contention, and one got {error:?}"))?;
            winners += usize::from(granted.is_some());
        }
        ensure!(winners == 1, "{winners} of {THREADS} threads got the key");
    }
    Ok(())
}

fn different_keys(t: &Trial<'_>) -> Shown {
    let keys: Vec<_> = (0..16).map(|_| t.key()).collect();
    thread::scope(|scope| {
        let threads: Vec<_> =
            keys.iter().map(|key| scope.spawn(move || t.lock(&*t.a, key, LONG_MS).map(drop))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a panic".into())))
    })
}

fn release_frees(t: &Trial<'_>) -> Shown {
    let key = t.key();
    let handle = t.lock(&*t.a, &key, LONG_MS)?;
    done("a release", t.a.release(handle.clone()))?;
    fails("a renew after the release", t.a.renew(&handle))?;
    // At once, or after the time for which the plugin holds it.
    let (next, _) = t.take_over(&*t.b, &key)?;
    ensure!(next.lock_id != handle.lock_id, "two locks of one key have the same lock_id");
    done("a second release", t.a.release(handle))?;
    t.is_held(&*t.a, &key)
}

fn odd_keys(t: &Trial<'_>) -> Shown {
    let odd = [
        "a b",
        "a b ",
        "A B",
        "a/b",
        "a//b",
        "a%2Fb",
        "a\\b",
        "a'b",
        "a\"b",
        "a;b",
        "a--b",
        "a*",
        "a?",
        "[a]",
        "{a}b",
        "a\nb",
        "a\tb",
        "../a",
        "/a",
        "a:b",
        "a::b",
        "-a",
        "null",
        "0",
        "\u{e9}",
        "ключ",
        "锁",
        "🔒",
        "a\u{200b}b",
    ];
    let random = t.key();
    // Oddness at the beginning and at the end.
    let mut keys: Vec<_> = odd.iter().map(|odd| format!("{odd}{random}{odd}")).collect();
    // Long ones that differ at their end.
    keys.extend(["1", "2"].map(|end| format!("{random}{}{end}", "k".repeat(150))));
    for key in &keys {
        let handle = t.lock(&*t.a, key, LONG_MS).map_err(|error| format!("{key:?}: {error}"))?;
        ensure!(handle.key == *key, "the handle's key is {:?}, and the lock's is {key:?}", handle.key);
    }
    keys.iter().try_for_each(|key| t.is_held(&*t.b, key).map_err(|error| format!("{key:?}: {error}")))
}

fn extreme_keys(t: &Trial<'_>) -> Shown {
    for key in [String::new(), format!("{}\0", t.key()), format!("{}{}", t.key(), "k".repeat(100_000))] {
        // A plugin may refuse such a key. If it does not, it locks it. Nobody else uses the long ones, but the empty
        // one may be held.
        if let Ok(Some(handle)) = t.try_lock(&*t.a, &key, LONG_MS) {
            ensure!(handle.key == key, "the handle's key is not the key that was asked for");
            t.is_held(&*t.b, &key)?;
            done("a release", t.a.release(handle))?;
        }
    }
    Ok(())
}

fn extreme_ttls(t: &Trial<'_>) -> Shown {
    let key = t.key();
    match t.try_lock(&*t.a, &key, 0) {
        Err(_) => {}
        Ok(None) => return Err("a free key with the ttl 0 must not be contention".into()),
        // A lock that lasts no time is free again.
        Ok(Some(_)) => drop(
            t.take_over(&*t.b, &key).map_err(|error| format!("a ttl of 0 must not be for ever: {error}"))?,
        ),
    }
    let key = t.key();
    match t.try_lock(&*t.a, &key, u64::MAX) {
        Err(_) => Ok(()),
        Ok(None) => Err("a free key with a very long ttl must not be contention".into()),
        Ok(Some(handle)) => {
            t.is_held(&*t.b, &key)?;
            done("a release", t.a.release(handle))
        }
    }
}
