//! Checks of repeated claims, and of ids that must be refused: promises 2, 8 and 9.

use std::time::Instant;

use crate::backend::{Backend as _, Claim, Gone, Mode, Release};
use crate::conformance::trial::{
    EXPIRED, NOT_FOUND, Shown, Trial, busy, done, fails, granted, held, left, not_done, refused,
};
use crate::conformance::{check_list, ensure};
use crate::error::ErrorKind;

use super::exclusion::permit;

check_list! { Raw:
    a_repeat_gives_the_same_grant => "2 I10";
    a_repeat_does_not_rearm_the_lease => "2 3", Ttl;
    a_repeat_is_no_second_grant => "2 I9", Permits(2);
    a_repeat_is_not_held_up_by_waiters => "2", Fifo, Ttl;
    a_claim_that_waits_for_one_mode_cannot_wait_for_another => "2 I11", Shared, Fifo, Ttl;
    a_release_that_overtakes_its_attempt_refuses_it => "8 I6";
    an_unanswered_release_of_a_held_lease_spends_its_id => "8 I6";
    an_unanswered_release_of_a_place_in_the_queue_spends_its_id => "8 I6", Fifo, Ttl;
    a_spent_id_is_refused_for_longer_than_its_ttl => "8 I6";
    the_id_of_a_repeated_claim_is_refused_after_its_release => "8 I6";
    the_id_of_a_repeated_claim_is_refused_after_it_expired => "8 I6", Ttl;
    a_repeat_in_the_queue_is_remembered_by_the_lease => "8 I6", Fifo, Ttl;
    a_release_with_the_nonce_of_its_attempt_acts => "9";
    a_release_with_an_old_nonce_is_superseded => "9 I5";
    a_call_with_an_old_nonce_is_superseded_and_changes_nothing => "9";
    a_place_in_the_queue_obeys_nonces_too => "9", Fifo, Ttl;
}

/// The claim as the caller sends it after an answer was lost.
fn repeat(claim: &Claim) -> Claim {
    let mut repeat = claim.clone();
    repeat.repeat = true;
    repeat
}

fn nonce(claim: &Claim, nonce: u64, first: bool) -> Claim {
    let mut claim = claim.clone();
    (claim.nonce, claim.first) = (nonce, first);
    claim
}

fn unanswered(claim: &Claim) -> Release {
    let mut release = Release::new(claim.name.clone(), claim.id);
    release.unanswered = Some(claim.ttl);
    release
}

async fn a_repeat_gives_the_same_grant(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    let first = granted(t.a.try_acquire(&claim).await)?;
    for again in [claim.clone(), repeat(&claim), claim.clone().queued(t.long())] {
        let grant = granted(t.a.try_acquire(&again).await)?;
        ensure!(grant.fence == first.fence, "the repeat has fence {}, not {}", grant.fence, first.fence);
        ensure!(grant.mode == first.mode, "the repeat is {}, not {}", grant.mode, first.mode);
        ensure!(grant.renewals == first.renewals, "the repeat counts as a renewal");
    }
    // One lease, so one release frees it.
    done(t.a.end(&claim).await)?;
    granted(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    Ok(())
}

async fn a_repeat_does_not_rearm_the_lease(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    let first = left(&granted(t.a.try_acquire(&claim).await)?)?;
    let answered = Instant::now();
    // Wait for time itself: a slow machine lets more of it pass, which shows a re-arming all the better.
    tokio::time::sleep(t.ms(60)).await;
    for again in [claim.clone(), repeat(&claim)] {
        let gone_by = answered.elapsed();
        let again = left(&granted(t.a.try_acquire(&again).await)?)?;
        // At least the time between the calls passed between the two measurements.
        let most = first.saturating_sub(gone_by - gone_by / 100) + t.ms(10);
        ensure!(
            again <= most,
            "{first:?} were left, and {gone_by:?} later {again:?}: the repeat re-armed it"
        );
    }
    Ok(())
}

async fn a_repeat_is_no_second_grant(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, permit(2));
    for again in [claim.clone(), claim.clone(), repeat(&claim)] {
        granted(t.a.try_acquire(&again).await)?;
    }
    granted(t.b.try_acquire(&t.claim(&name, permit(2))).await)?;
    busy(t.b.try_acquire(&t.claim(&name, permit(2))).await)?;
    let info = t.b.view(&name).await?;
    ensure!(info.holders.len() == 2, "two hold permits, and {} are shown", info.holders.len());
    Ok(())
}

async fn a_repeat_is_not_held_up_by_waiters(t: Trial) -> Shown {
    let name = t.name();
    let (holder, waiter) = (t.claim(&name, Mode::Exclusive), t.queued(&name, Mode::Exclusive));
    let grant = granted(t.a.try_acquire(&holder).await)?;
    busy(t.b.try_acquire(&waiter).await)?;
    let again = granted(t.a.try_acquire(&holder).await)?;
    ensure!(again.fence == grant.fence, "the repeat has fence {}, not {}", again.fence, grant.fence);
    // A waiter that tries again takes no second place.
    let answer = busy(t.b.try_acquire(&waiter).await)?;
    ensure!(answer.queue_length == 1, "one waits, and the queue has {}", answer.queue_length);
    Ok(())
}

async fn a_claim_that_waits_for_one_mode_cannot_wait_for_another(t: Trial) -> Shown {
    let name = t.name();
    let waiter = t.queued(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    busy(t.b.try_acquire(&waiter).await)?;
    let mut other = waiter.clone();
    other.mode = Mode::Shared;
    fails(t.b.try_acquire(&other).await, ErrorKind::InvalidArgument)?;
    let answer = busy(t.b.try_acquire(&waiter).await)?;
    ensure!(answer.place == Some(0), "its place was lost: {answer:?}");
    Ok(())
}

async fn a_release_that_overtakes_its_attempt_refuses_it(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    not_done(t.a.release(&unanswered(&claim)).await, NOT_FOUND)?;
    for late in [claim.clone(), claim.clone().queued(t.long()), repeat(&claim)] {
        refused(t.a.try_acquire(&late).await)?;
    }
    ensure!(!t.a.is_held(&name).await?, "a ghost holds the name");
    // The name itself is free.
    granted(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    Ok(())
}

async fn an_unanswered_release_of_a_held_lease_spends_its_id(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&claim).await)?;
    done(t.a.release(&unanswered(&claim)).await)?;
    refused(t.a.try_acquire(&claim).await)?;
    not_done(t.a.release(&unanswered(&claim)).await, NOT_FOUND)?;
    granted(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    refused(t.a.try_acquire(&claim).await)?;
    Ok(())
}

async fn an_unanswered_release_of_a_place_in_the_queue_spends_its_id(t: Trial) -> Shown {
    let name = t.name();
    let (holder, waiter) = (t.claim(&name, Mode::Exclusive), t.queued(&name, Mode::Exclusive));
    granted(t.a.try_acquire(&holder).await)?;
    busy(t.b.try_acquire(&waiter).await)?;
    done(t.b.release(&unanswered(&waiter)).await)?;
    refused(t.b.try_acquire(&waiter).await)?;
    done(t.a.end(&holder).await)?;
    refused(t.b.try_acquire(&waiter).await)?;
    ensure!(!t.a.is_held(&name).await?, "a ghost holds the name");
    Ok(())
}

async fn a_spent_id_is_refused_for_longer_than_its_ttl(t: Trial) -> Shown {
    let (held, never) = (t.brief(&t.name(), Mode::Exclusive), t.brief(&t.name(), Mode::Exclusive));
    granted(t.a.try_acquire(&held).await)?;
    for claim in [&held, &never] {
        t.a.release(&unanswered(claim)).await?;
    }
    // A minute is promised; this is as much of it as a quick check can see.
    tokio::time::sleep(t.ms(1000)).await;
    for claim in [&held, &never] {
        refused(t.a.try_acquire(claim).await)?;
        granted(t.b.try_acquire(&t.claim(&claim.name, Mode::Exclusive)).await)?;
    }
    Ok(())
}

async fn the_id_of_a_repeated_claim_is_refused_after_its_release(t: Trial) -> Shown {
    let name = t.name();
    // The first call may be the repeat that arrived, or it marks the lease that is there.
    for lost_first in [true, false] {
        let claim = t.claim(&name, Mode::Exclusive);
        if !lost_first {
            granted(t.a.try_acquire(&claim).await)?;
        }
        granted(t.a.try_acquire(&repeat(&claim)).await)?;
        done(t.a.end(&claim).await)?;
        refused(t.a.try_acquire(&claim).await)?;
        refused(t.a.try_acquire(&repeat(&claim)).await)?;
        not_done(t.a.end(&claim).await, NOT_FOUND)?;
        ensure!(!t.a.is_held(&name).await?, "a ghost holds the name");
    }
    granted(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    Ok(())
}

async fn the_id_of_a_repeated_claim_is_refused_after_it_expired(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.brief(&name, Mode::Exclusive);
    let grant = granted(t.a.try_acquire(&repeat(&claim)).await)?;
    t.past(Instant::now(), left(&grant)?).await;
    refused(t.a.try_acquire(&claim).await)?;
    not_done(t.a.end(&claim).await, EXPIRED)?;
    granted(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    Ok(())
}

async fn a_repeat_in_the_queue_is_remembered_by_the_lease(t: Trial) -> Shown {
    let name = t.name();
    let (holder, waiter) = (t.claim(&name, Mode::Exclusive), t.queued(&name, Mode::Exclusive));
    granted(t.a.try_acquire(&holder).await)?;
    busy(t.b.try_acquire(&waiter).await)?;
    busy(t.b.try_acquire(&repeat(&waiter)).await)?;
    done(t.a.end(&holder).await)?;
    granted(t.b.try_acquire(&waiter).await)?;
    done(t.b.end(&waiter).await)?;
    refused(t.b.try_acquire(&waiter).await)?;
    Ok(())
}

async fn a_release_with_the_nonce_of_its_attempt_acts(t: Trial) -> Shown {
    let name = t.name();
    // Zero is the nonce of a caller that makes one attempt per id.
    for number in [0, 1, 0] {
        let claim = nonce(&t.claim(&name, Mode::Exclusive), number, true);
        let grant = granted(t.a.try_acquire(&claim).await)?;
        let mut release = Release::new(name.clone(), claim.id);
        (release.fence, release.nonce) = (Some(grant.fence), Some(number));
        done(t.a.release(&release).await)?;
    }
    granted(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    Ok(())
}

async fn a_release_with_an_old_nonce_is_superseded(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    let first = granted(t.a.try_acquire(&nonce(&claim, 1, true)).await)?;
    let second = granted(t.a.try_acquire(&nonce(&claim, 2, true)).await)?;
    ensure!(first.fence == second.fence, "a newer attempt of one id is the same grant, with the same fence");
    let mut release = Release::new(name.clone(), claim.id);
    release.nonce = Some(1);
    not_done(t.a.release(&release).await, &[Gone::Superseded])?;
    held(t.a.keep(&claim).await)?;
    busy(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    release.nonce = Some(2);
    done(t.a.release(&release).await)?;
    // A quorum takes back the votes of the previous attempt, which may still be in the way.
    t.take_over(&t.b, &t.claim(&name, Mode::Exclusive)).await?;
    Ok(())
}

async fn a_call_with_an_old_nonce_is_superseded_and_changes_nothing(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&nonce(&claim, 1, true)).await)?;
    granted(t.a.try_acquire(&nonce(&claim, 1, false)).await)?;
    granted(t.a.try_acquire(&nonce(&claim, 2, true)).await)?;
    refused(t.a.try_acquire(&nonce(&claim, 1, false)).await)?;
    // It did not take the nonce back.
    let mut release = Release::new(name.clone(), claim.id);
    release.nonce = Some(1);
    not_done(t.a.release(&release).await, &[Gone::Superseded])?;
    granted(t.a.try_acquire(&nonce(&claim, 2, false)).await)?;
    release.nonce = Some(2);
    done(t.a.release(&release).await)?;
    Ok(())
}

async fn a_place_in_the_queue_obeys_nonces_too(t: Trial) -> Shown {
    let name = t.name();
    let (holder, waiter) = (t.claim(&name, Mode::Exclusive), t.queued(&name, Mode::Exclusive));
    granted(t.a.try_acquire(&holder).await)?;
    busy(t.b.try_acquire(&nonce(&waiter, 1, true)).await)?;
    let answer = busy(t.b.try_acquire(&nonce(&waiter, 2, true)).await)?;
    ensure!(answer.queue_length == 1, "one id has one place, and the queue has {}", answer.queue_length);
    refused(t.b.try_acquire(&nonce(&waiter, 1, false)).await)?;
    let mut release = Release::new(name.clone(), waiter.id);
    release.nonce = Some(1);
    not_done(t.b.release(&release).await, &[Gone::Superseded])?;
    // A newer attempt with the same id takes over the place, even if it does not queue itself.
    let mut look = nonce(&waiter, 3, true);
    look.queue = None;
    let answer = busy(t.b.try_acquire(&look).await)?;
    ensure!(answer.place == Some(0), "it lost its place: {answer:?}");
    refused(t.b.try_acquire(&nonce(&waiter, 2, false)).await)?;
    done(t.a.end(&holder).await)?;
    granted(t.b.try_acquire(&nonce(&waiter, 3, false)).await)?;
    not_done(t.b.release(&release).await, &[Gone::Superseded])?;
    release.nonce = Some(3);
    done(t.b.release(&release).await)?;
    Ok(())
}
