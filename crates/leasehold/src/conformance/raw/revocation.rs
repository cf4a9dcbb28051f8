//! Checks of revocation: taking a name from its holders.

use std::time::Instant;

use crate::backend::{Backend as _, Gone, Mode};
use crate::conformance::trial::{
    EXPIRED, Shown, Trial, believed_until, busy, done, granted, held, left, not_done, not_held, refused,
};
use crate::conformance::{check_list, ensure};

use super::exclusion::permit;

check_list! { Raw:
    a_revoked_lease_is_not_renewed_and_passes_at_its_expiry => "3 I2", Revoke, Ttl;
    revoking_now_frees_the_name_at_once_and_for_good => "3 4 I6", Revoke;
    a_revocation_meets_every_holder_and_no_later_one => "4", Revoke, Permits(2);
    revoking_a_name_nobody_holds_does_nothing => "4", Revoke;
    a_revocation_of_one_fence_meets_that_lease_only => "4", Revoke, Fenced;
    a_revocation_of_one_permit_leaves_the_others => "4", Revoke, Fenced, Permits(3);
}

async fn a_revoked_lease_is_not_renewed_and_passes_at_its_expiry(t: Trial) -> Shown {
    for ttl in t.growing(300) {
        let name = t.name();
        let mut claim = t.brief(&name, Mode::Exclusive);
        claim.ttl = ttl;
        let sent = Instant::now();
        let grant = granted(t.a.try_acquire(&claim).await)?;
        let revoked = t.b.revoke(&name, false, None).await?;
        let info = t.b.view(&name).await?;
        let renewed = t.a.keep(&claim).await;
        if sent.elapsed() > ttl * 9 / 10 {
            continue; // it may have expired before it was revoked
        }
        ensure!(revoked.leases == 1, "one lease was revoked, and {} were counted", revoked.leases);
        ensure!(
            info.holders.len() == 1 && info.holders[0].revoked,
            "it is held and revoked, and not {info:?}"
        );
        not_held(renewed, &[Gone::Revoked])?;
        let believed = believed_until(sent, &grant)?;
        let next = t.claim(&name, Mode::Exclusive);
        let (_, answered) = t.take_over(&t.b, &next).await?;
        ensure!(answered >= believed, "a revoked lease passed on before the holder's own deadline");
        not_held(t.a.keep(&claim).await, EXPIRED)?;
        // A lease that comes after a revocation is not revoked.
        held(t.b.keep(&next).await)?;
        return Ok(());
    }
    ensure!(false, "a lease expired before it was revoked, even with {:?}", t.growing(300).last());
    Ok(())
}

async fn revoking_now_frees_the_name_at_once_and_for_good(t: Trial) -> Shown {
    let name = t.name();
    let (old, new) = (t.claim(&name, Mode::Exclusive), t.claim(&name, Mode::Exclusive));
    granted(t.a.try_acquire(&old).await)?;
    let revoked = t.b.revoke(&name, true, None).await?;
    ensure!(revoked.leases == 1, "one lease was revoked, and {} were counted", revoked.leases);
    ensure!(!t.a.is_held(&name).await?, "it is still held after a revocation that frees at once");
    granted(t.b.try_acquire(&new).await)?;
    not_held(t.a.keep(&old).await, &[Gone::Revoked])?;
    t.refuses(&old).await?;
    not_done(t.a.end(&old).await, &[Gone::Revoked])?;
    held(t.b.keep(&new).await)?;
    done(t.b.end(&new).await)?;
    refused(t.a.try_acquire(&old).await)
}

async fn a_revocation_meets_every_holder_and_no_later_one(t: Trial) -> Shown {
    let name = t.name();
    let holders = [t.claim(&name, permit(2)), t.claim(&name, permit(2))];
    for holder in &holders {
        granted(t.a.try_acquire(holder).await)?;
    }
    let revoked = t.b.revoke(&name, false, None).await?;
    ensure!(revoked.leases == 2, "two leases were revoked, and {} were counted", revoked.leases);
    for holder in &holders {
        not_held(t.a.keep(holder).await, &[Gone::Revoked])?;
        // Claiming again shows the lease, and changes nothing about it.
        granted(t.a.try_acquire(holder).await)?;
        not_held(t.a.keep(holder).await, &[Gone::Revoked])?;
    }
    // A revoked lease is still a lease: it blocks others until it ends, and its holder can release it.
    busy(t.b.try_acquire(&t.claim(&name, permit(2))).await)?;
    done(t.a.end(&holders[0]).await)?;
    let later = t.claim(&name, permit(2));
    granted(t.b.try_acquire(&later).await)?;
    held(t.b.keep(&later).await)?;
    not_held(t.a.keep(&holders[1]).await, &[Gone::Revoked])
}

async fn revoking_a_name_nobody_holds_does_nothing(t: Trial) -> Shown {
    let name = t.name();
    for now in [false, true] {
        let revoked = t.a.revoke(&name, now, None).await?;
        ensure!(revoked.leases == 0, "nobody holds it, and {} leases were revoked", revoked.leases);
        let claim = t.claim(&name, Mode::Exclusive);
        let grant = granted(t.b.try_acquire(&claim).await)?;
        ensure!(grant.left.is_none() || left(&grant)? > t.ms(0), "the next grant is over already");
        held(t.b.keep(&claim).await)?;
        done(t.b.end(&claim).await)?;
    }
    Ok(())
}

/// A revocation of the holder that was seen must not hit a later one.
async fn a_revocation_of_one_fence_meets_that_lease_only(t: Trial) -> Shown {
    let name = t.name();
    for now in [false, true] {
        let (old, new) = (t.claim(&name, Mode::Exclusive), t.claim(&name, Mode::Exclusive));
        let seen = granted(t.a.try_acquire(&old).await)?.fence;
        done(t.a.end(&old).await)?;
        let late = t.b.revoke(&name, now, Some(seen)).await?;
        ensure!(late.leases == 0, "nobody holds it, and {} leases were revoked", late.leases);
        let fence = granted(t.a.try_acquire(&new).await)?.fence;
        let before = t.b.view(&name).await?;
        let late = t.b.revoke(&name, now, Some(seen)).await?;
        ensure!(late.leases == 0, "another holds it by now, and {} leases were revoked", late.leases);
        let after = t.b.view(&name).await?;
        let same = after.version == before.version || !t.is_exact();
        ensure!(same, "nothing was revoked, and still something has changed");
        held(t.a.keep(&new).await)?;
        let revoked = t.b.revoke(&name, now, Some(fence)).await?;
        ensure!(revoked.leases == 1, "one lease was revoked, and {} were counted", revoked.leases);
        not_held(t.a.keep(&new).await, &[Gone::Revoked])?;
        ensure!(t.a.is_held(&name).await? != now, "now: {now}, and it is free, or not, as it should not be");
        t.b.revoke(&name, true, None).await?;
    }
    Ok(())
}

async fn a_revocation_of_one_permit_leaves_the_others(t: Trial) -> Shown {
    let name = t.name();
    for now in [false, true] {
        let claims = [t.claim(&name, permit(3)), t.claim(&name, permit(3)), t.claim(&name, permit(3))];
        let mut fences = Vec::new();
        for claim in &claims {
            fences.push(granted(t.a.try_acquire(claim).await)?.fence);
        }
        let revoked = t.b.revoke(&name, now, Some(fences[1])).await?;
        ensure!(revoked.leases == 1, "one lease was revoked, and {} were counted", revoked.leases);
        not_held(t.a.keep(&claims[1]).await, &[Gone::Revoked])?;
        for claim in [&claims[0], &claims[2]] {
            held(t.a.keep(claim).await)?;
        }
        let holders = t.b.view(&name).await?.holders.len();
        ensure!(holders == if now { 2 } else { 3 }, "now: {now}, and {holders} are left");
        // Its permit is free at once, or no other client gets it while it lasts.
        let next = t.b.try_acquire(&t.claim(&name, permit(3))).await;
        if now {
            granted(next).map(drop)?
        } else {
            busy(next).map(drop)?
        }
        t.b.revoke(&name, true, None).await?;
    }
    Ok(())
}
