//! Checks of rules in `docs/contract.md` that no single promise names: the order of tests, and limits.

use std::time::{Duration, Instant};

use crate::backend::{Attempt, Backend as _, Claim, Gone, Mode, Release, Renewal};
use crate::conformance::trial::{
    NOT_FOUND, Shown, Trial, busy, done, fails, granted, held, left, not_held, refused,
};
use crate::conformance::{Failure, check_list, ensure};
use crate::error::ErrorKind;
use crate::fence::Fence;

use super::exclusion::permit;

check_list! { Raw:
    a_lapsed_place_of_a_repeated_claim_refuses_its_id => "8 I6", Fifo, Ttl;
    a_softly_revoked_lease_still_answers_its_repeat => "2", Revoke, Ttl;
    a_renewal_is_refused_by_the_first_rule_that_applies => "4 5", Fifo, Ttl, Revoke, Fenced;
    a_refusal_names_the_holder_that_is_in_the_way => "10", Fifo, Ttl, Shared, Permits(2);
    of_many_waiters_the_first_hundred_are_shown_and_all_counted => "10", Fifo, Ttl;
    no_more_than_128_go_in_at_a_time => "J4 J8", Fifo, Ttl, Shared;
    a_semaphore_without_permits_lets_nobody_in => "1", Permits(1);
    the_longest_ttl_is_kept_and_can_be_renewed => "3", Ttl;
    places_in_the_queue_do_not_move_the_version => "10", Fifo, Ttl;
}

async fn a_lapsed_place_of_a_repeated_claim_refuses_its_id(t: Trial) -> Shown {
    let name = t.name();
    let holder = t.claim(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&holder).await)?;
    let mut waiter = t.claim(&name, Mode::Exclusive).queued(t.ms(200));
    waiter.repeat = true;
    busy(t.b.try_acquire(&waiter).await)?;
    t.past(Instant::now(), t.ms(200)).await;
    refused(t.b.try_acquire(&waiter).await)?;
    done(t.a.end(&holder).await)?;
    refused(t.b.try_acquire(&waiter).await)?;
    ensure!(!t.a.is_held(&name).await?, "a ghost holds the name");
    Ok(())
}

async fn a_softly_revoked_lease_still_answers_its_repeat(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    let first = granted(t.a.try_acquire(&claim).await)?;
    t.b.revoke(&name, false, None).await?;
    let again = granted(t.a.try_acquire(&claim).await)?;
    ensure!(again.fence == first.fence, "the repeat has fence {}, not {}", again.fence, first.fence);
    not_held(t.a.keep(&claim).await, &[Gone::Revoked])
}

async fn a_renewal_is_refused_by_the_first_rule_that_applies(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    let grant = granted(t.a.try_acquire(&claim).await)?;
    let renewal = || Renewal::new(name.clone(), claim.id, claim.ttl);
    let (too_high, below) = (Some(Fence::new(u64::MAX)), Some(Fence::new(grant.fence.get() - 1)));
    let upgrade = Some(permit(2));

    // 4 before 5: the fence, then the mode.
    let mut wrong = renewal();
    (wrong.raise_fence, wrong.mode, wrong.shorten) = (too_high, upgrade, Some(9));
    fails(t.a.renew_one(&wrong).await, ErrorKind::InvalidArgument)?;
    wrong.raise_fence = below;
    not_held(t.a.renew_one(&wrong).await, &[Gone::Superseded])?;
    // 5 before 6: the mode, then the count.
    wrong.raise_fence = None;
    fails(t.a.renew_one(&wrong).await, ErrorKind::Mismatch)?;
    // 6: a wrong count changes nothing, not even the fence.
    wrong.mode = None;
    wrong.raise_fence = Some(Fence::new(grant.fence.get() + 1));
    let same = held(t.a.renew_one(&wrong).await)?;
    ensure!(same.fence == grant.fence && same.renewals == 0, "a wrong count has changed it: {same:?}");

    // 2 before 3 before 4: which lease, whether it is revoked, the fence.
    t.b.revoke(&name, false, None).await?;
    let mut wrong = renewal();
    (wrong.fence, wrong.raise_fence) = (Some(Fence::new(grant.fence.get() + 1)), too_high);
    not_held(t.a.renew_one(&wrong).await, NOT_FOUND)?;
    (wrong.fence, wrong.mode) = (None, upgrade);
    not_held(t.a.renew_one(&wrong).await, &[Gone::Revoked])
}

/// Makes two leases of this mode, by `brief` and by `lasting`: one ends much sooner.
async fn two_of(t: &Trial, name: &crate::name::Name, mode: Mode) -> Shown {
    for (owner, ttl) in [("lasting", t.long()), ("brief", t.long() / 2)] {
        granted(t.a.try_acquire(&Claim::new(name.clone(), mode, ttl, owner)).await)?;
    }
    Ok(())
}

async fn a_refusal_names_the_holder_that_is_in_the_way(t: Trial) -> Shown {
    // A writer waits for the last of the readers, a permit for the first that comes back.
    for (held_as, asked, owner) in
        [(Mode::Shared, Mode::Exclusive, "lasting"), (permit(2), permit(2), "brief")]
    {
        let name = t.name();
        two_of(&t, &name, held_as).await?;
        let answer = busy(t.b.try_acquire(&t.claim(&name, asked)).await)?;
        ensure!(answer.owner.as_deref() == Some(owner), "{owner} is in the way, not {:?}", answer.owner);
    }
    Ok(())
}

async fn of_many_waiters_the_first_hundred_are_shown_and_all_counted(t: Trial) -> Shown {
    const ALL: usize = 103;
    let name = t.name();
    granted(t.a.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    let waiters: Vec<Claim> = (0..ALL).map(|_| t.queued(&name, Mode::Exclusive)).collect();
    for waiter in &waiters {
        busy(t.a.try_acquire(waiter).await)?;
    }
    let info = t.b.view(&name).await?;
    ensure!(info.queue_length == ALL as u64, "{ALL} wait, and {} are counted", info.queue_length);
    let first: Vec<_> = waiters.iter().take(100).map(|waiter| t.shown(waiter.id)).collect();
    let shown: Vec<_> = info.waiters.iter().map(|waiter| waiter.id).collect();
    ensure!(shown == first, "{} waiters are shown, or not the first in their order", shown.len());
    Ok(())
}

async fn no_more_than_128_go_in_at_a_time(t: Trial) -> Shown {
    let name = t.name();
    let writer = t.claim(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&writer).await)?;
    let readers: Vec<Claim> = (0..130).map(|_| t.queued(&name, Mode::Shared)).collect();
    for reader in &readers {
        busy(t.a.try_acquire(reader).await)?;
    }
    done(t.a.end(&writer).await)?;
    // The 129th is behind 128 that are let in.
    busy(t.a.try_acquire(&readers[128]).await)?;
    busy(t.b.try_acquire(&t.queued(&name, Mode::Shared)).await)?;
    granted(t.a.try_acquire(&readers[127]).await)?;
    granted(t.a.try_acquire(&readers[128]).await)?;
    Ok(())
}

async fn a_semaphore_without_permits_lets_nobody_in(t: Trial) -> Shown {
    let name = t.name();
    let claims = [t.claim(&name, permit(0)), t.queued(&name, permit(0))];
    for claim in &claims {
        match t.a.try_acquire(claim).await {
            Ok(Attempt::Busy(_)) => {}
            // A store may reject such a query.
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {}
            other => return Err(Failure::new(format!("no permits, and one was given: {other:?}"))),
        }
    }
    ensure!(!t.b.is_held(&name).await?, "no permits, and one is held");
    // The waiter is the only user of the name.
    let _ = t.a.release(&Release::new(name.clone(), claims[1].id)).await?;
    granted(t.a.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    Ok(())
}

async fn the_longest_ttl_is_kept_and_can_be_renewed(t: Trial) -> Shown {
    let name = t.name();
    let mut claim = t.claim(&name, Mode::Exclusive);
    claim.ttl = t.info.max_ttl;
    let least = t.info.max_ttl.min(Duration::from_secs(365 * 24 * 3600)) / 2;
    let first = left(&granted(t.a.try_acquire(&claim).await)?)?;
    ensure!(first >= least, "the longest ttl has {first:?} left when it begins");
    let renewed = left(&held(t.a.keep(&claim).await)?)?;
    ensure!(renewed >= least, "the longest ttl has {renewed:?} left when it is renewed");
    busy(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    done(t.a.end(&claim).await)
}

async fn places_in_the_queue_do_not_move_the_version(t: Trial) -> Shown {
    let name = t.name();
    granted(t.a.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    let before = t.b.view(&name).await?.version;
    let waiter = t.queued(&name, Mode::Exclusive);
    for step in ["joined", "was kept", "was given up"] {
        if step == "was given up" {
            done(t.b.end(&waiter).await)?;
        } else {
            busy(t.b.try_acquire(&waiter).await)?;
        }
        let after = t.b.view(&name).await?.version;
        ensure!(after == before, "a place {step}, and the version went from {before} to {after}");
    }
    Ok(())
}
