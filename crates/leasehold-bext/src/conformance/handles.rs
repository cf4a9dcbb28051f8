//! What a handle can do, and what it cannot.

use bext_plugin_api::locking::LockHandle;

use super::trial::{LONG_MS, Trial, done, fails};
use super::{Check, Need, Shown, ensure};

pub(super) const CHECKS: &[Check] = &[
    Check::new("every_lock_has_a_lock_id_of_its_own", fresh_ids),
    Check::new("another_plugin_can_use_a_handle_from_json", through_json),
    Check::new("a_forged_handle_touches_no_lock", forged),
    Check::needing("fences_of_a_key_rise", Need::Fences, fences_rise),
];

fn fresh_ids(t: &Trial<'_>) -> Shown {
    let mut seen = std::collections::HashSet::new();
    let keys = [t.key(), t.key()];
    for turn in 0..6 {
        let key = &keys[turn % 2];
        let (handle, _) = t.take_over(if turn < 3 { &*t.a } else { &*t.b }, key)?;
        ensure!(seen.insert(handle.lock_id.clone()), "two locks have the same lock_id");
        done("a release", t.a.release(handle))?;
    }
    Ok(())
}

fn through_json(t: &Trial<'_>) -> Shown {
    let key = t.key();
    let handle = t.lock(&*t.a, &key, LONG_MS)?;
    let json = serde_json::to_string(&handle).map_err(|error| error.to_string())?;
    let copy: LockHandle = serde_json::from_str(&json).map_err(|error| error.to_string())?;
    ensure!(copy == handle, "the handle changed on its way through JSON");
    done("a renew by another plugin", t.b.renew(&copy))?;
    done("a renew by the first plugin", t.a.renew(&handle))?;
    done("a release by another plugin", t.b.release(copy))?;
    fails("a renew after the release", t.a.renew(&handle))?;
    t.take_over(&*t.a, &key).map(drop)
}

fn forged(t: &Trial<'_>) -> Shown {
    let (key, other) = (t.key(), t.key());
    let handle = t.lock(&*t.a, &key, LONG_MS)?;
    let of_other = t.lock(&*t.a, &other, LONG_MS)?;
    let with_id = |lock_id: &str| LockHandle { lock_id: lock_id.into(), ..handle.clone() };
    // Its first character is another one.
    let first = if handle.lock_id.starts_with('a') { "b" } else { "a" };
    let changed: String = first.chars().chain(handle.lock_id.chars().skip(1)).collect();
    let forged = [
        with_id(&of_other.lock_id),
        with_id(&changed),
        with_id(""),
        with_id("550e8400-e29b-41d4-a716-446655440000"),
        with_id("' OR ''='"),
        with_id("\0\n🔒"),
        with_id(&"x".repeat(100_000)),
        LockHandle { key: t.key(), ..handle.clone() },
        LockHandle { key: String::new(), ..handle.clone() },
    ];
    for forged in forged {
        fails("a renew with a forged handle", t.b.renew(&forged))?;
        done("a release with a forged handle", t.b.release(forged))?;
    }
    t.is_held(&*t.b, &key)?;
    t.is_held(&*t.b, &other)?;
    done("a renew by the holder", t.a.renew(&handle))
}

fn fences_rise(t: &Trial<'_>) -> Shown {
    let Some(fence_of) = t.harness.fence_of else { return Ok(()) };
    let (key, mut last) = (t.key(), None);
    for turn in 0..8_u32 {
        let plugin = if turn.is_multiple_of(2) { &t.a } else { &t.b };
        let (handle, _) = t.take_over(&**plugin, &key)?;
        let fence = fence_of(&handle).ok_or("a handle has no fence")?;
        ensure!(last < Some(fence), "the fence {fence} came after {last:?}");
        done("a renew", plugin.renew(&handle))?;
        ensure!(fence_of(&handle) == Some(fence), "a renew changed the fence of a handle");
        last = Some(fence);
        done("a release", t.a.release(handle))?;
    }
    // Also after a lock that expired.
    let (expired, _) = t.take_over(&*t.a, &key)?;
    done("a release", t.a.release(expired.clone()))?;
    t.try_lock(&*t.a, &key, t.ttl_ms(1))?;
    let (next, _) = t.take_over(&*t.b, &key)?;
    ensure!(fence_of(&next) > fence_of(&expired), "the fence fell after a lock expired");
    Ok(())
}
