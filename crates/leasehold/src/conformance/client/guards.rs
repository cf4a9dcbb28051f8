//! Checks of what a guard promises while it is held, and how it ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{Backend as _, Gone, Liveness, Release, Released};
use crate::client::guard::Guard;
use crate::client::locks::Locks;
use crate::conformance::trial::{Shown, Trial, fails};
use crate::conformance::{Failure, check_list, ensure};
use crate::engine::held::{GuardState, LostReason};
use crate::error::{Error, ErrorKind};

use super::{gets_it, is_released, left_by_itself};

check_list! { Client:
    a_held_guard_outlives_several_ttls_and_others_stay_refused => "4 I1 I7 J3", Ttl;
    dropping_a_guard_releases_it => "I5 J1";
    release_says_released_and_the_next_gets_in => "4 I5";
    a_guard_whose_lease_is_gone_is_lost_with_the_reason => "3 I6 J3", Ttl, DetectsLoss;
    a_revoked_guard_is_lost_with_the_reason => "3 I6 J3", Revoke, Ttl, DetectsLoss;
    releasing_what_was_revoked_at_once_says_lost => "4 I5 I6", Revoke;
    a_guard_is_lost_by_the_end_of_max_hold => "I7", Ttl;
    a_guard_can_be_renewed_for_longer_and_shortened => "4 I7", Ttl;
    with_lock_keeps_the_error_of_the_work_and_releases => "I5";
    a_guard_becomes_a_lease_and_another_client_adopts_it => "4 I10", Ttl;
    a_guard_leaves_notes_that_every_client_reads => "11", Notes;
}

async fn a_held_guard_outlives_several_ttls_and_others_stay_refused(t: Trial) -> Shown {
    let (one, other) = t.clients();
    let mut last = None;
    for ttl in t.growing(300) {
        let name = t.name();
        let guard = one.mutex(name.as_str()).ttl(ttl).lock().await?;
        let fence = guard.fence();
        let end = Instant::now() + ttl * 3;
        while Instant::now() < end && guard.state() != GuardState::Lost {
            let rival = other.mutex(name.as_str()).try_lock().await?;
            // A guard that still claims to hold after the answer also claimed it before.
            let believes = guard.check().is_ok();
            ensure!(rival.is_none() || !believes, "two hold the lock, and both believe it");
            tokio::time::sleep(ttl / 20).await;
        }
        ensure!(guard.fence() == fence, "renewals changed the fence {fence} to {}", guard.fence());
        last = guard.lost().now();
        if guard.release().await? == GuardState::Released && last.is_none() {
            return Ok(());
        }
    }
    Err(Failure::new(format!(
        "a guard is not kept for three ttls, even of {:?}: {last:?}",
        t.growing(300).last()
    )))
}

async fn a_guard_leaves_notes_that_every_client_reads(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let read = async |locks: &Locks| -> Result<Option<String>, Failure> {
        Ok(locks.note(name.as_str()).await?.map(|note| note.text.to_string()))
    };
    let guard = gets_it(&t, &one, &name).await?;
    ensure!(read(&other).await?.is_none(), "there is a note that nobody wrote");
    for text in ["one", "two", ""] {
        guard.write_note(text).await?;
        let (seen, expected) = (read(&other).await?, Some(text.to_owned()).filter(|text| !text.is_empty()));
        ensure!(seen == expected, "the note is {seen:?}, and not {expected:?}");
    }
    // The next process goes on with the same lease, and its notes come after those before.
    let fence = guard.fence();
    let guard = if t.info.liveness == Liveness::Ttl { other.adopt(guard.into_lease()).await? } else { guard };
    guard.write_note("adopted").await?;
    let seen = read(&one).await?;
    ensure!(seen.as_deref() == Some("adopted"), "the note is {seen:?}");
    is_released(guard.release_with_note("over").await?)?;
    let note = one.note(name.as_str()).await?;
    let is_over = note.as_ref().is_some_and(|note| &*note.text == "over" && note.fence == fence);
    ensure!(is_over, "after the release the note is {note:?}");
    let next = gets_it(&t, &other, &name).await?;
    next.write_note("next").await?;
    is_released(next.release().await?)?;
    let seen = read(&one).await?;
    ensure!(seen.as_deref() == Some("next"), "the note is {seen:?}");
    Ok(())
}

async fn dropping_a_guard_releases_it(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    for locks in [&one, &other, &one] {
        let started = Instant::now();
        let guard = gets_it(&t, locks, &name).await?;
        drop(guard);
        left_by_itself(&t, &name, started).await?;
    }
    // Also from a thread without a runtime.
    let guard = gets_it(&t, &one, &name).await?;
    let dropped = std::thread::spawn(move || drop(guard)).join();
    ensure!(dropped.is_ok(), "dropping a guard on another thread panicked");
    is_released(gets_it(&t, &other, &name).await?.release().await?)
}

async fn release_says_released_and_the_next_gets_in(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    for _ in 0..3 {
        let guard = gets_it(&t, &one, &name).await?;
        let lost = guard.lost();
        is_released(guard.release().await?)?;
        ensure!(lost.now().is_none(), "a release raised the lost signal: {:?}", lost.now());
        // At once: there is nothing left to wait for.
        let next = other.mutex(name.as_str()).try_lock().await?;
        let Some(next) = next else { return Err(Failure::new("released, and still held".into())) };
        is_released(next.release().await?)?;
    }
    Ok(())
}

/// Waits until a guard that is renewed often is lost, and checks the reason.
async fn is_lost(t: &Trial, guard: &Guard, reason: LostReason) -> Shown {
    let seen = t.soon("the lost signal", guard.lost()).await?;
    ensure!(seen == reason, "it was lost because {seen:?}, not {reason:?}");
    ensure!(guard.state() == GuardState::Lost, "the lost signal came, and the state is {:?}", guard.state());
    fails(guard.check(), ErrorKind::Lost)?;
    ensure!(guard.valid_for() == Some(Duration::ZERO), "a lost guard is valid for {:?}", guard.valid_for());
    // Not even a renewal brings it back.
    fails(guard.renew_for(t.long()).await, ErrorKind::Lost)?;
    ensure!(guard.state() == GuardState::Lost, "a lost guard became {:?}", guard.state());
    Ok(())
}

async fn a_guard_whose_lease_is_gone_is_lost_with_the_reason(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let guard = one.mutex(name.as_str()).renew_every(t.ms(100)).lock().await?;
    let ended = t.b.release(&Release::new(name.clone(), guard.lease_id())).await?;
    ensure!(ended == Released::Done, "the lease could not be ended from outside: {ended:?}");
    let next = gets_it(&t, &other, &name).await?;
    is_lost(&t, &guard, LostReason::Refused(Gone::NotFound)).await?;
    let state = guard.release().await?;
    ensure!(state == GuardState::Lost, "releasing what is gone said {state:?}");
    // The release of the old holder did not touch the next one.
    next.renew_for(t.long()).await?;
    is_released(next.release().await?)
}

async fn a_revoked_guard_is_lost_with_the_reason(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let guard = one.mutex(name.as_str()).renew_every(t.ms(100)).lock().await?;
    let revoked = other.revoke(name.as_str(), false).await?;
    ensure!(revoked.leases == 1, "one lease was revoked, and {} were counted", revoked.leases);
    is_lost(&t, &guard, LostReason::Refused(Gone::Revoked)).await?;
    // Until it ends it blocks the name; its holder can end it sooner.
    ensure!(other.mutex(name.as_str()).try_lock().await?.is_none(), "it was given away before its end");
    drop(guard);
    is_released(gets_it(&t, &other, &name).await?.release().await?)
}

async fn releasing_what_was_revoked_at_once_says_lost(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let guard = gets_it(&t, &one, &name).await?;
    other.revoke(name.as_str(), true).await?;
    let next = other.mutex(name.as_str()).try_lock().await?;
    let Some(next) = next else { return Err(Failure::new("revoked at once, and still held".into())) };
    ensure!(
        !t.judges("fences", t.info.fenced) || next.fence() > guard.fence(),
        "after a revocation the fence did not rise"
    );
    let state = guard.release().await?;
    ensure!(state == GuardState::Lost, "releasing what was revoked said {state:?}");
    ensure!(
        other.mutex(name.as_str()).try_lock().await?.is_none(),
        "the release freed the next holder's lock"
    );
    is_released(next.release().await?)
}

async fn a_guard_is_lost_by_the_end_of_max_hold(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let (started, most) = (Instant::now(), t.ms(250));
    let guard = one.mutex(name.as_str()).ttl(t.ms(150)).max_hold(most).lock().await?;
    let reason = t.soon("the end of max_hold", guard.lost()).await?;
    // On a slow machine the lease may have run out before; it is never held for longer.
    let early = started.elapsed() < most / 2 && reason == LostReason::MaxHold;
    ensure!(!early, "max_hold is {most:?}, and it ended after {:?}", started.elapsed());
    ensure!(guard.state() == GuardState::Lost, "past max_hold the guard is {:?}", guard.state());
    // Nothing renews it: the next client gets it although the guard still exists.
    let next = gets_it(&t, &other, &name).await?;
    drop(guard);
    next.renew_for(t.long()).await?;
    is_released(next.release().await?)
}

async fn a_guard_can_be_renewed_for_longer_and_shortened(t: Trial) -> Shown {
    let (one, other) = t.clients();
    let (ttl, longer) = (t.long(), t.long() * 2);
    for short in t.growing(200) {
        let name = t.name();
        let guard = one.mutex(name.as_str()).ttl(ttl).lock().await?;
        let valid = guard.valid_for().unwrap_or_default();
        ensure!(valid <= ttl, "with a ttl of {ttl:?} it is valid for {valid:?}");
        guard.renew_for(longer).await?;
        let valid = guard.valid_for().unwrap_or_default();
        ensure!(valid > ttl && valid <= longer, "renewed for {longer:?}, it is valid for {valid:?}");
        match guard.shorten_to(short).await {
            // The answer took longer than that.
            Err(error) if error.kind() == ErrorKind::Lost => continue,
            answer => answer?,
        }
        let valid = guard.valid_for().unwrap_or_default();
        if valid > short {
            continue; // renewals overtook it again and again: an answer takes longer than a third of that
        }
        // The store has shortened it too: without renewals the name soon passes on.
        let lease = guard.into_lease();
        ensure!(lease.ttl == short, "the ttl was shortened to {short:?}, and the lease says {:?}", lease.ttl);
        return is_released(gets_it(&t, &other, &name).await?.release().await?);
    }
    let longest = t.growing(200).last();
    Err(Failure::new(format!("a guard could not be shortened, not even to {longest:?}")))
}

async fn with_lock_keeps_the_error_of_the_work_and_releases(t: Trial) -> Shown {
    #[derive(Debug)]
    enum Work {
        Mine(u32),
        Lock(Error),
    }
    impl From<Error> for Work {
        fn from(error: Error) -> Self {
            Work::Lock(error)
        }
    }
    let name = t.name();
    let (one, other) = t.clients();
    let mutex = one.mutex(name.as_str());
    let result = mutex.with_lock(async |_: &Guard| Err::<(), _>(Work::Mine(7))).await;
    ensure!(matches!(result, Err(Work::Mine(7))), "the work failed with 7, and with_lock said {result:?}");
    let free = other.mutex(name.as_str()).try_lock().await?;
    let Some(free) = free else { return Err(Failure::new("the work is over, and the lock is held".into())) };
    is_released(free.release().await?)?;
    let side = Arc::clone(&t.b);
    let held = mutex.with_lock(async |guard: &Guard| {
        guard.check()?;
        let busy = side.view(guard.name()).await.is_ok_and(|info| info.holders.len() == 1);
        Ok::<_, Work>(busy)
    });
    match held.await {
        Ok(held) => ensure!(held, "while the work ran, the other client saw no holder"),
        Err(Work::Lock(error)) => return Err(error.into()),
        Err(Work::Mine(_)) => {}
    }
    ensure!(!t.b.is_held(&name).await?, "the work is over, and the lock is held");
    Ok(())
}

async fn a_guard_becomes_a_lease_and_another_client_adopts_it(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let guard = one.mutex(name.as_str()).owner("first").lock().await?;
    let (fence, id) = (guard.fence(), guard.lease_id());
    let lease = guard.into_lease();
    ensure!(
        other.mutex(name.as_str()).try_lock().await?.is_none(),
        "a guard that became a lease was released"
    );
    let adopted = other.adopt(lease.clone()).await?;
    ensure!(adopted.fence() == fence, "adopting changed the fence {fence} to {}", adopted.fence());
    ensure!(adopted.lease_id() == id && adopted.owner() == "first", "it is not the same lease");
    ensure!(adopted.state() == GuardState::Held, "an adopted guard is {:?}", adopted.state());
    is_released(adopted.release().await?)?;
    fails(one.adopt(lease).await, ErrorKind::Lost)?;
    ensure!(!t.a.is_held(&name).await?, "adopting what is gone brought it back");
    Ok(())
}
