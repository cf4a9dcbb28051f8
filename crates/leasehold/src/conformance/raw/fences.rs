//! Checks of fences: promise 5.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::backend::{Backend as _, Claim, Gone, Mode, Renewal};
use crate::conformance::trial::{Shown, Trial, done, fails, granted, held, left, not_held};
use crate::conformance::{Failure, check_list, ensure};
use crate::error::ErrorKind;
use crate::fence::Fence;
use crate::name::Name;

use super::exclusion::permit;

check_list! { Raw:
    fences_rise_from_grant_to_grant => "5 I3", Fenced;
    fences_rise_over_every_mode => "5 I3", Fenced;
    fences_rise_over_expiry => "5 I3", Fenced, Ttl;
    fences_rise_over_a_revocation => "5 I3", Fenced, Revoke;
    fences_of_permits_are_unique_and_rise => "5 I3", Fenced, Permits(3);
    fences_follow_the_clock_so_that_a_lost_counter_does_no_harm => "5 I3", Fenced, Ttl;
    a_raised_fence_lifts_lease_and_counter => "5 I3", Fenced, Ttl;
    a_fence_is_raised_at_most_a_day_ahead => "5", Fenced, Ttl;
    grants_without_fences_say_so => "5";
}

/// Checks that each fence is above the one before.
fn rises(last: &mut Fence, next: Fence) -> Shown {
    ensure!(next > *last, "after fence {last} came {next}");
    *last = next;
    Ok(())
}

async fn fences_rise_from_grant_to_grant(t: Trial) -> Shown {
    let name = t.name();
    let mut last = Fence::UNFENCED;
    for round in 0..20 {
        let side = if round % 2 == 0 { &t.a } else { &t.b };
        let claim = t.claim(&name, Mode::Exclusive);
        rises(&mut last, granted(side.try_acquire(&claim).await)?.fence)?;
        let shown = t.a.view(&name).await?.last_fence;
        ensure!(shown == last, "the last fence is {last}, and {shown} is shown");
        done(side.end(&claim).await)?;
    }
    let shown = t.a.view(&name).await?.last_fence;
    ensure!(shown == last, "at rest the last fence is {last}, and {shown} is shown");
    Ok(())
}

async fn fences_rise_over_every_mode(t: Trial) -> Shown {
    let name = t.name();
    let mut modes = vec![Mode::Exclusive];
    if t.judges("shared leases", t.info.shared) {
        modes.push(Mode::Shared);
    }
    if t.judges("permits", t.info.max_permits >= 2) {
        modes.push(permit(2));
    }
    let mut last = Fence::UNFENCED;
    for mode in modes.iter().chain(modes.iter().rev()) {
        let claim = t.claim(&name, *mode);
        rises(&mut last, granted(t.a.try_acquire(&claim).await)?.fence)?;
        done(t.a.end(&claim).await)?;
    }
    if t.info.shared {
        for side in [&t.a, &t.b, &t.a] {
            rises(&mut last, granted(side.try_acquire(&t.claim(&name, Mode::Shared)).await)?.fence)?;
        }
    }
    Ok(())
}

async fn fences_rise_over_expiry(t: Trial) -> Shown {
    let name = t.name();
    let mut last = Fence::UNFENCED;
    for _ in 0..2 {
        let grant = granted(t.a.try_acquire(&t.brief(&name, Mode::Exclusive)).await)?;
        rises(&mut last, grant.fence)?;
        t.past(Instant::now(), left(&grant)?).await;
    }
    rises(&mut last, granted(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?.fence)
}

async fn fences_rise_over_a_revocation(t: Trial) -> Shown {
    let name = t.name();
    let mut last = Fence::UNFENCED;
    for _ in 0..3 {
        rises(&mut last, granted(t.a.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?.fence)?;
        t.b.revoke(&name, true, None).await?;
    }
    Ok(())
}

async fn fences_of_permits_are_unique_and_rise(t: Trial) -> Shown {
    let name = t.name();
    let mut last = Fence::UNFENCED;
    let claims: Vec<Claim> = (0..3).map(|_| t.claim(&name, permit(3))).collect();
    for claim in &claims {
        rises(&mut last, granted(t.a.try_acquire(claim).await)?.fence)?;
    }
    done(t.a.end(&claims[0]).await)?;
    rises(&mut last, granted(t.b.try_acquire(&t.claim(&name, permit(3))).await)?.fence)?;
    let shown = t.b.view(&name).await?.holders;
    let unique: BTreeSet<Fence> = shown.iter().map(|holder| holder.grant.fence).collect();
    ensure!(unique.len() == 3, "three hold permits, with {} different fences", unique.len());
    Ok(())
}

/// Reads the part of a fence that comes from the clock. The clocks of store and client may differ.
async fn fences_follow_the_clock_so_that_a_lost_counter_does_no_harm(t: Trial) -> Shown {
    let grant = granted(t.a.try_acquire(&t.claim(&t.name(), Mode::Exclusive)).await)?;
    let clock = Fence::at(grant.acquired_at_ms * 1000);
    let second = 256_000;
    let apart = grant.fence.get().abs_diff(clock.get());
    ensure!(
        apart <= second,
        "the first fence of a new name is {}, and the clock that granted it says {clock}",
        grant.fence
    );
    Ok(())
}

fn raise(name: &Name, claim: &Claim, fence: Fence) -> Renewal {
    let mut renewal = Renewal::new(name.clone(), claim.id, claim.ttl);
    renewal.raise_fence = Some(fence);
    renewal
}

async fn a_raised_fence_lifts_lease_and_counter(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    let grant = granted(t.a.try_acquire(&claim).await)?;
    // A minute ahead of the clock, so that only the counter can carry it.
    let high = Fence::new(grant.fence.get() + 60 * 256_000);
    for _ in 0..2 {
        let raised = held(t.a.renew_one(&raise(&name, &claim, high)).await)?;
        ensure!(raised.fence == high, "raised to {high}, and the lease has {}", raised.fence);
    }
    let shown = t.b.view(&name).await?.last_fence;
    ensure!(shown == high, "raised to {high}, and the last fence is {shown}");
    // A client with a lower fence is too late.
    let low = Fence::new(high.get() - 1);
    not_held(t.a.renew_one(&raise(&name, &claim, low)).await, &[Gone::Superseded])?;
    let kept = held(t.a.keep(&claim).await)?;
    ensure!(kept.fence == high, "a refused raise changed the fence {high} to {}", kept.fence);
    let mut old = Renewal::new(name.clone(), claim.id, claim.ttl);
    old.fence = Some(grant.fence);
    not_held(t.a.renew_one(&old).await, &[Gone::NotFound])?;
    done(t.a.end(&claim).await)?;
    let next = granted(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    ensure!(next.fence > high, "raised to {high}, and the next grant has {}", next.fence);
    Ok(())
}

async fn a_fence_is_raised_at_most_a_day_ahead(t: Trial) -> Shown {
    let hours = |fence: Fence, hours: u64| Fence::new(fence.get() + hours * 3600 * 256_000);
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    let grant = granted(t.a.try_acquire(&claim).await)?;
    for far in [hours(grant.fence, 25), Fence::MAX, Fence::new(Fence::MAX.get() + 1)] {
        fails(t.a.renew_one(&raise(&name, &claim, far)).await, ErrorKind::InvalidArgument)?;
        let info = t.b.view(&name).await?;
        let shown = info.holders.first().map(|holder| (holder.grant.fence, holder.grant.renewals));
        let same = info.last_fence == grant.fence && shown == Some((grant.fence, grant.renewals));
        ensure!(same, "a raise to {far} was refused, and still changed something: {info:?}");
    }
    // Raising it twice gets no further.
    let high = hours(grant.fence, 23);
    let raised = held(t.a.renew_one(&raise(&name, &claim, high)).await)?;
    ensure!(raised.fence == high, "raised to {high}, and the lease has {}", raised.fence);
    let far = hours(high, 2);
    fails(t.a.renew_one(&raise(&name, &claim, far)).await, ErrorKind::InvalidArgument)?;
    done(t.a.end(&claim).await)?;
    let next = granted(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    ensure!(next.fence > high && next.fence < far, "after fence {high} came {}", next.fence);
    Ok(())
}

async fn grants_without_fences_say_so(t: Trial) -> Shown {
    let grant = granted(t.a.try_acquire(&t.claim(&t.name(), Mode::Exclusive)).await)?;
    let fenced = !grant.fence.is_unfenced();
    if fenced != t.info.fenced {
        return Err(Failure::new(format!(
            "info says fenced: {}, and a grant has {}",
            t.info.fenced, grant.fence
        )));
    }
    ensure!(grant.fence <= Fence::MAX, "a fence above the highest was given: {}", grant.fence);
    Ok(())
}
