//! Checks that no wake-up is lost: promise 6.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::backend::{Attempt, Backend as _, Claim, Mode, Renewal, Wake};
use crate::conformance::trial::{Shown, Side, Trial, believed_until, busy, done, granted, held};
use crate::conformance::{Failure, check_list, ensure};
use crate::error::Result;
use crate::fence::Fence;
use crate::state::WAKE_LIMIT;

check_list! { Raw:
    no_wake_up_is_lost_between_the_attempt_and_the_wait => "6 J1", Push;
    no_wake_up_is_lost_when_the_release_races_the_wait => "6 J1", Push;
    a_wait_that_was_dropped_can_be_called_again => "6", Push;
    a_grant_by_a_wake_up_is_believed_no_longer_than_it_lasts => "6 7 I1", Push, Ttl;
    the_one_whose_turn_it_is_is_woken => "6 J1 J4", Push, Fifo, Ttl;
    a_crowd_is_woken_one_after_the_other => "6 J1 J5", Push, Fifo, Ttl;
    more_readers_than_one_call_wakes_are_all_woken => "6 J1 J8", Push, Shared, Fifo, Ttl;
    giving_up_a_place_wakes_those_it_held_back => "6 J1 J6", Push, Shared, Fifo, Ttl;
    a_downgrade_wakes_the_readers => "6 J1", Push, Shared, Downgrade;
    a_revocation_wakes_the_next => "6 J1", Push, Revoke;
    a_wait_on_a_lease_ends_with_it_and_not_before => "6 J3", TellsLoss;
}

/// Makes a holder, and a waiter that got the answer busy.
async fn blocked(t: &Trial) -> std::result::Result<(Claim, Claim), Failure> {
    let name = t.name();
    let (holder, waiter) = (t.claim(&name, Mode::Exclusive), t.queued(&name, Mode::Exclusive));
    granted(t.a.try_acquire(&holder).await)?;
    busy(t.b.try_acquire(&waiter).await)?;
    Ok((holder, waiter))
}

/// Checks a wake-up: the grant it brought is the one that an attempt now gets.
async fn enters(t: &Trial, waiter: &Claim, woken: Result<Wake>) -> Shown {
    let wake = woken?;
    let grant = granted(t.b.try_acquire(waiter).await)?;
    if let Wake::Granted(brought) = wake {
        let (one, other) = (brought.fence, grant.fence);
        ensure!(one == other, "the wake-up brought the fence {one}, and the lease has {other}");
    }
    Ok(())
}

async fn no_wake_up_is_lost_between_the_attempt_and_the_wait(t: Trial) -> Shown {
    for _ in 0..20 {
        let (holder, waiter) = blocked(&t).await?;
        done(t.a.end(&holder).await)?;
        let woken = t.soon("the wake-up of who began to wait after the release", t.b.wait(&waiter)).await?;
        enters(&t, &waiter, woken).await?;
        done(t.b.end(&waiter).await)?;
    }
    Ok(())
}

async fn no_wake_up_is_lost_when_the_release_races_the_wait(t: Trial) -> Shown {
    for round in 0..40 {
        let (holder, waiter) = blocked(&t).await?;
        let (side, claim) = (Arc::clone(&t.b), waiter.clone());
        let waiting = t.spawn(async move { side.wait(&claim).await });
        for _ in 0..round % 8 {
            tokio::task::yield_now().await;
        }
        done(t.a.end(&holder).await)?;
        let woken = t.soon("the wake-up by a release", waiting).await??;
        enters(&t, &waiter, woken).await?;
        done(t.b.end(&waiter).await)?;
    }
    Ok(())
}

async fn a_wait_that_was_dropped_can_be_called_again(t: Trial) -> Shown {
    for round in 0..4 {
        let (holder, waiter) = blocked(&t).await?;
        for _ in 0..round {
            let dropped = tokio::time::timeout(t.ms(5), t.b.wait(&waiter)).await;
            // A wake-up may come early, but without a release it brings no grant.
            let early = matches!(dropped, Ok(Ok(Wake::Granted(_))));
            ensure!(!early, "the wait brought a grant while another held the name");
        }
        done(t.a.end(&holder).await)?;
        let woken = t.soon("the wake-up of a waiter that waits again", t.b.wait(&waiter)).await?;
        enters(&t, &waiter, woken).await?;
    }
    Ok(())
}

async fn a_grant_by_a_wake_up_is_believed_no_longer_than_it_lasts(t: Trial) -> Shown {
    let name = t.name();
    let (holder, mut waiter) = (t.claim(&name, Mode::Exclusive), t.queued(&name, Mode::Exclusive));
    waiter.ttl = t.ms(200);
    granted(t.a.try_acquire(&holder).await)?;
    busy(t.b.try_acquire(&waiter).await)?;
    let (side, claim) = (Arc::clone(&t.b), waiter.clone());
    let (begin, began) = oneshot::channel();
    let waiting = t.spawn(async move {
        let sent = Instant::now();
        let _ = begin.send(());
        match side.wait(&claim).await? {
            Wake::Granted(grant) => Ok::<_, Failure>((sent, grant)),
            Wake::Retry => Ok((Instant::now(), granted(side.try_acquire(&claim).await)?)),
        }
    });
    // It has waited for most of the ttl when the grant comes.
    let _ = t.soon("the wait", began).await?;
    tokio::time::sleep(t.ms(150)).await;
    done(t.a.end(&holder).await)?;
    let (sent, grant) = t.soon("the wake-up by a release", waiting).await???;
    let believed = believed_until(sent, &grant)?;
    let (_, answered) = t.take_over(&t.a, &t.claim(&name, Mode::Exclusive)).await?;
    let early = believed.saturating_duration_since(answered);
    ensure!(early.is_zero(), "the next was granted {early:?} before the holder's own deadline");
    Ok(())
}

/// Acts as a waiting caller without a timer: waits and tries again until it is in.
async fn wait_to_enter(side: Arc<Side>, claim: Claim) -> std::result::Result<Fence, Failure> {
    loop {
        let wake = side.wait(&claim).await?;
        match side.try_acquire(&claim).await? {
            Attempt::Granted(grant) => return Ok(grant.fence),
            Attempt::Busy(_) if matches!(wake, Wake::Retry) => {
                // It was woken early, which is allowed; but not so often that it never sleeps.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            other => {
                return Err(Failure::new(format!("woken by {wake:?}, and then the answer was {other:?}")));
            }
        }
    }
}

async fn the_one_whose_turn_it_is_is_woken(t: Trial) -> Shown {
    let (holder, first) = blocked(&t).await?;
    let second = t.queued(&holder.name, Mode::Exclusive);
    busy(t.b.try_acquire(&second).await)?;
    let mut waits = [&first, &second].map(|claim| t.spawn(wait_to_enter(Arc::clone(&t.b), claim.clone())));
    done(t.a.end(&holder).await)?;
    let [front, behind] = &mut waits;
    t.soon("the wake-up of the front", front).await???;
    ensure!(!behind.is_finished(), "the second entered while the first was inside");
    busy(t.b.try_acquire(&second).await)?;
    done(t.b.end(&first).await)?;
    t.soon("the wake-up of the next", behind).await???;
    Ok(())
}

async fn a_crowd_is_woken_one_after_the_other(t: Trial) -> Shown {
    let name = t.name();
    let holder = t.claim(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&holder).await)?;
    let sides = [&t.a, &t.b];
    let mut crowd = Vec::new();
    for place in 0..12 {
        let (side, claim) = (Arc::clone(sides[place % 2]), t.queued(&name, Mode::Exclusive));
        busy(side.try_acquire(&claim).await)?;
        crowd.push(t.spawn(async move {
            let fence = wait_to_enter(Arc::clone(&side), claim.clone()).await?;
            done(side.end(&claim).await)?;
            Ok::<_, Failure>(fence)
        }));
    }
    done(t.a.end(&holder).await)?;
    let mut last = Fence::UNFENCED;
    for waiter in crowd {
        let fence = t.soon("the turn of one in the crowd", waiter).await???;
        ensure!(
            fence > last || !t.judges("fences", t.info.fenced),
            "served out of turn: after {last} came {fence}"
        );
        last = fence;
    }
    Ok(())
}

async fn more_readers_than_one_call_wakes_are_all_woken(t: Trial) -> Shown {
    let name = t.name();
    let writer = t.claim(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&writer).await)?;
    let mut readers = Vec::new();
    for _ in 0..WAKE_LIMIT + 12 {
        let claim = t.queued(&name, Mode::Shared);
        busy(t.b.try_acquire(&claim).await)?;
        readers.push(t.spawn(wait_to_enter(Arc::clone(&t.b), claim)));
    }
    done(t.a.end(&writer).await)?;
    // No reader leaves: the readers that enter wake the rest.
    for reader in readers {
        t.soon("the turn of one of many readers", reader).await???;
    }
    Ok(())
}

async fn giving_up_a_place_wakes_those_it_held_back(t: Trial) -> Shown {
    let name = t.name();
    let reader = t.claim(&name, Mode::Shared);
    let (writer, behind) = (t.queued(&name, Mode::Exclusive), t.queued(&name, Mode::Shared));
    granted(t.a.try_acquire(&reader).await)?;
    busy(t.a.try_acquire(&writer).await)?;
    busy(t.b.try_acquire(&behind).await)?;
    let (side, claim) = (Arc::clone(&t.b), behind.clone());
    let waiting = t.spawn(async move { side.wait(&claim).await });
    done(t.a.end(&writer).await)?;
    let woken = t.soon("the wake-up of a reader whose writer gave up", waiting).await??;
    enters(&t, &behind, woken).await
}

async fn a_downgrade_wakes_the_readers(t: Trial) -> Shown {
    let name = t.name();
    let (writer, reader) = (t.claim(&name, Mode::Exclusive), t.queued(&name, Mode::Shared));
    granted(t.a.try_acquire(&writer).await)?;
    busy(t.b.try_acquire(&reader).await)?;
    let (side, claim) = (Arc::clone(&t.b), reader.clone());
    let waiting = t.spawn(async move { side.wait(&claim).await });
    let mut downgrade = Renewal::new(name, writer.id, writer.ttl);
    downgrade.mode = Some(Mode::Shared);
    held(t.a.renew_one(&downgrade).await)?;
    let woken = t.soon("the wake-up by a downgrade", waiting).await??;
    enters(&t, &reader, woken).await
}

async fn a_revocation_wakes_the_next(t: Trial) -> Shown {
    let (holder, waiter) = blocked(&t).await?;
    let (side, claim) = (Arc::clone(&t.b), waiter.clone());
    let waiting = t.spawn(async move { side.wait(&claim).await });
    t.a.revoke(&holder.name, true, None).await?;
    let woken = t.soon("the wake-up by a revocation", waiting).await??;
    enters(&t, &waiter, woken).await
}

async fn a_wait_on_a_lease_ends_with_it_and_not_before(t: Trial) -> Shown {
    let holder = t.claim(&t.name(), Mode::Exclusive);
    granted(t.a.try_acquire(&holder).await)?;
    let (side, claim) = (Arc::clone(&t.a), holder.clone());
    let (begin, began) = oneshot::channel();
    let mut waiting = t.spawn(async move {
        let _ = begin.send(());
        side.wait(&claim).await
    });
    let _ = t.soon("the wait", began).await?;
    let early = tokio::time::timeout(t.ms(100), &mut waiting).await;
    ensure!(early.is_err(), "the wait on a lease that is held ended: {early:?}");
    done(t.a.end(&holder).await)?;
    t.soon("the end of the wait on a lease that is over", waiting).await???;
    Ok(())
}
