//! Locks that run out.

use std::thread;
use std::time::{Duration, Instant};

use super::trial::{LONG_MS, Trial, done, fails};
use super::{Check, Shown, ensure};

pub(super) const CHECKS: &[Check] = &[
    Check::new("a_lock_expires_after_its_ttl_and_not_before", expires),
    Check::new("a_renew_restores_the_full_ttl", renew_restores),
    Check::new("a_renew_after_expiry_is_an_error", renew_too_late),
    Check::new("a_stale_renew_does_not_touch_a_newer_lock", stale_renew),
    Check::new("a_stale_release_does_not_touch_a_newer_lock", stale_release),
];

/// How often a check tries again because the machine was too slow, each time with twice the ttl.
const TRIES: u32 = 5;

/// Less than this by what the clocks of two machines may differ in speed.
fn nearly(time: Duration) -> Duration {
    time - time / 50
}

fn expires(t: &Trial<'_>) -> Shown {
    let (key, ttl_ms) = (t.key(), t.ttl_ms(1));
    let before = Instant::now();
    t.lock(&*t.a, &key, ttl_ms)?;
    let (_, at) = t.take_over(&*t.b, &key)?;
    let lasted = at - before;
    ensure!(
        lasted >= nearly(Duration::from_millis(ttl_ms)),
        "a lock of {ttl_ms} ms was free after {lasted:?}"
    );
    Ok(())
}

fn renew_restores(t: &Trial<'_>) -> Shown {
    for tried in 0..TRIES {
        let (key, ttl_ms) = (t.key(), t.ttl_ms(1 << tried));
        let ttl = Duration::from_millis(ttl_ms);
        let locked = Instant::now();
        let handle = t.lock(&*t.a, &key, ttl_ms)?;
        thread::sleep(ttl * 3 / 5);
        let renewed = Instant::now();
        match t.a.renew(&handle) {
            Ok(()) => {}
            Err(_) if locked.elapsed() > ttl * 9 / 10 => continue,
            Err(error) => return Err(format!("a renew in time must be Ok, and was the error {error:?}")),
        }
        let (_, at) = t.take_over(&*t.b, &key)?;
        let lasted = at - renewed;
        ensure!(lasted >= nearly(ttl), "after a renew, a lock of {ttl_ms} ms was free after {lasted:?}");
        return Ok(());
    }
    Err("this machine is too slow to judge it: even the longest ttl passed before the renew".into())
}

fn renew_too_late(t: &Trial<'_>) -> Shown {
    let (key, ttl_ms) = (t.key(), t.ttl_ms(1));
    let handle = t.lock(&*t.a, &key, ttl_ms)?;
    thread::sleep(Duration::from_millis(ttl_ms + ttl_ms / 2));
    // Nobody else took the key.
    fails("a renew after the ttl", t.a.renew(&handle))?;
    let (next, _) = t.take_over(&*t.b, &key)?;
    done("a renew by the next owner", t.b.renew(&next))
}

fn stale_renew(t: &Trial<'_>) -> Shown {
    let key = t.key();
    let stale = t.lock(&*t.a, &key, t.ttl_ms(1))?;
    let (fresh, _) = t.take_over(&*t.b, &key)?;
    fails("a renew of a lock that another owner has by now", t.a.renew(&stale))?;
    t.is_held(&*t.a, &key)?;
    done("a renew by the new owner", t.b.renew(&fresh))?;
    // It has not made the key its own either.
    done("a release by the new owner", t.b.release(fresh))?;
    t.take_over(&*t.a, &key).map(drop)
}

fn stale_release(t: &Trial<'_>) -> Shown {
    let key = t.key();
    let stale = t.lock(&*t.a, &key, t.ttl_ms(1))?;
    let (fresh, _) = t.take_over(&*t.b, &key)?;
    for _ in 0..2 {
        done("a release of a lock that another owner has by now", t.a.release(stale.clone()))?;
    }
    t.is_held(&*t.a, &key)?;
    done("a renew by the new owner", t.b.renew(&fresh))?;
    // And of a lock that nobody took.
    let key = t.key();
    let stale = t.lock(&*t.a, &key, 1_000.max(t.ttl_ms(1)))?;
    thread::sleep(Duration::from_millis(stale.ttl_ms + stale.ttl_ms / 2));
    done("a release after the ttl", t.a.release(stale))?;
    t.lock(&*t.b, &key, LONG_MS).map(drop)
}
