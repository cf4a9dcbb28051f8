//! Checks of when a lease ends by itself: promises 3 and 7.

use std::time::{Duration, Instant};

use crate::backend::{Backend as _, Liveness, Mode, Query, Renewal, Renewed};
use crate::conformance::trial::{
    EXPIRED, Shown, Trial, believed_until, busy, done, granted, held, left, not_done, not_held,
};
use crate::conformance::{Failure, check_list, ensure};
use crate::name::Name;

use super::exclusion::{permit, race};
use super::inspection::list;

check_list! { Raw:
    a_grant_says_how_long_it_lasts => "7";
    the_next_takes_over_at_expiry_without_a_sweep_and_not_before => "3 7 I1 I2 J2", Ttl;
    a_renewed_lease_passes_on_no_earlier_than_the_renewal_said => "3 4 7 I1", Ttl;
    a_shortened_lease_ends_sooner_in_the_store_too => "4 7 I1", Ttl;
    an_expired_lease_is_gone_for_ever_though_the_name_is_free => "3 I6", Ttl;
    a_release_after_expiry_is_gone_and_spares_the_new_holder => "3 4 I5", Ttl;
    of_many_who_race_for_an_expired_lease_exactly_one_wins => "1 3 I1", Ttl;
    every_reader_has_a_ttl_of_its_own => "3 I8", Shared, Ttl;
    the_permit_of_a_holder_that_died_comes_back => "3 I9", Permits(2), Ttl;
    what_has_expired_is_not_shown => "3", Ttl;
    a_sweep_never_touches_a_live_lease_and_keeps_the_fence => "3 5 J7", Ttl;
}

/// The failure when a renewal was refused because the machine was too slow to send it in time; that shows nothing.
fn too_slow(what: &str, longest: Option<Duration>) -> Failure {
    Failure::nowhere(format!("{what}: it expired before it could be renewed, even with a ttl of {longest:?}"))
}

async fn a_grant_says_how_long_it_lasts(t: Trial) -> Shown {
    let claim = t.claim(&t.name(), Mode::Exclusive);
    let grant = granted(t.a.try_acquire(&claim).await)?;
    let renewed = held(t.a.keep(&claim).await)?;
    for grant in [grant, renewed] {
        match (t.info.liveness, grant.left) {
            (Liveness::Session, None) => {}
            (Liveness::Ttl, Some(left)) => {
                let (least, most) = (claim.ttl - claim.ttl / 100, claim.ttl + claim.ttl / 4);
                ensure!((least..=most).contains(&left), "the ttl is {:?}, and {left:?} are left", claim.ttl);
            }
            (liveness, left) => {
                let message = format!("a lease that ends with its {liveness:?} says that {left:?} are left");
                return Err(Failure::new(message));
            }
        }
    }
    Ok(())
}

async fn the_next_takes_over_at_expiry_without_a_sweep_and_not_before(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.brief(&name, Mode::Exclusive);
    let sent = Instant::now();
    let grant = granted(t.a.try_acquire(&claim).await)?;
    let believed = believed_until(sent, &grant)?;
    let (_, answered) = t.take_over(&t.b, &t.claim(&name, Mode::Exclusive)).await?;
    let early = believed.saturating_duration_since(answered);
    ensure!(early.is_zero(), "the next was granted {early:?} before the holder's own deadline");
    not_held(t.a.keep(&claim).await, EXPIRED)?;
    Ok(())
}

async fn a_renewed_lease_passes_on_no_earlier_than_the_renewal_said(t: Trial) -> Shown {
    for ttl in t.growing(150) {
        let name = t.name();
        let mut claim = t.brief(&name, Mode::Exclusive);
        claim.ttl = ttl;
        granted(t.a.try_acquire(&claim).await)?;
        tokio::time::sleep(ttl / 2).await;
        let sent = Instant::now();
        let Renewed::Held(grant) = t.a.keep(&claim).await? else { continue };
        ensure!(left(&grant)? >= ttl - ttl / 50, "renewed for {ttl:?}, and {:?} are left", grant.left);
        let believed = believed_until(sent, &grant)?;
        let (_, answered) = t.take_over(&t.b, &t.claim(&name, Mode::Exclusive)).await?;
        let early = believed.saturating_duration_since(answered);
        ensure!(early.is_zero(), "the next was granted {early:?} before the holder's own deadline");
        return Ok(());
    }
    Err(too_slow("a lease", t.growing(150).last()))
}

async fn a_shortened_lease_ends_sooner_in_the_store_too(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    let grant = granted(t.a.try_acquire(&claim).await)?;
    let mut renewal = Renewal::new(name.clone(), claim.id, t.ms(200));
    renewal.shorten = Some(grant.renewals);
    let sent = Instant::now();
    let grant = held(t.a.renew_one(&renewal).await)?;
    let believed = believed_until(sent, &grant)?;
    let (_, answered) = t.take_over(&t.b, &t.claim(&name, Mode::Exclusive)).await?;
    let early = believed.saturating_duration_since(answered);
    ensure!(early.is_zero(), "the next was granted {early:?} before the holder's own deadline");
    Ok(())
}

async fn an_expired_lease_is_gone_for_ever_though_the_name_is_free(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.brief(&name, Mode::Exclusive);
    let grant = granted(t.a.try_acquire(&claim).await)?;
    t.past(Instant::now(), left(&grant)?).await;
    for _ in 0..3 {
        not_held(t.a.keep(&claim).await, EXPIRED)?;
        ensure!(!t.b.is_held(&name).await?, "a renewal brought an expired lease back");
    }
    not_done(t.a.end(&claim).await, EXPIRED)?;
    granted(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    not_held(t.a.keep(&claim).await, EXPIRED)?;
    Ok(())
}

async fn a_release_after_expiry_is_gone_and_spares_the_new_holder(t: Trial) -> Shown {
    let name = t.name();
    let (old, new) = (t.brief(&name, Mode::Exclusive), t.claim(&name, Mode::Exclusive));
    granted(t.a.try_acquire(&old).await)?;
    let (grant, _) = t.take_over(&t.b, &new).await?;
    not_done(t.a.end(&old).await, EXPIRED)?;
    not_held(t.a.keep(&old).await, EXPIRED)?;
    busy(t.a.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    let renewed = held(t.b.keep(&new).await)?;
    ensure!(
        renewed.fence == grant.fence,
        "the new holder's fence went from {} to {}",
        grant.fence,
        renewed.fence
    );
    done(t.b.end(&new).await)?;
    Ok(())
}

async fn of_many_who_race_for_an_expired_lease_exactly_one_wins(t: Trial) -> Shown {
    let name = t.name();
    let grant = granted(t.a.try_acquire(&t.brief(&name, Mode::Exclusive)).await)?;
    t.past(Instant::now(), left(&grant)?).await;
    let winners = race(&t, (0..32).map(|_| t.claim(&name, Mode::Exclusive)).collect()).await?;
    ensure!(winners == 1, "of 32 who raced for an expired lease, {winners} won");
    Ok(())
}

async fn every_reader_has_a_ttl_of_its_own(t: Trial) -> Shown {
    let name = t.name();
    let patient = t.claim(&name, Mode::Shared);
    granted(t.a.try_acquire(&patient).await)?;
    let brief = t.brief(&name, Mode::Shared);
    let grant = granted(t.b.try_acquire(&brief).await)?;
    t.past(Instant::now(), left(&grant)?).await;
    // A caller with another ttl neither evicts a holder nor keeps one alive.
    let third = t.brief(&name, Mode::Shared);
    granted(t.b.try_acquire(&third).await)?;
    not_held(t.b.keep(&brief).await, EXPIRED)?;
    held(t.a.keep(&patient).await)?;
    t.past(Instant::now(), third.ttl).await;
    let writer = t.claim(&name, Mode::Exclusive);
    busy(t.b.try_acquire(&writer).await)?;
    done(t.a.end(&patient).await)?;
    granted(t.b.try_acquire(&writer).await)?;
    Ok(())
}

async fn the_permit_of_a_holder_that_died_comes_back(t: Trial) -> Shown {
    let name = t.name();
    let (dies, stays) = (t.brief(&name, permit(2)), t.claim(&name, permit(2)));
    let sent = Instant::now();
    let believed = believed_until(sent, &granted(t.a.try_acquire(&dies).await)?)?;
    granted(t.a.try_acquire(&stays).await)?;
    let (_, answered) = t.take_over(&t.b, &t.claim(&name, permit(2))).await?;
    ensure!(answered >= believed, "a third permit was given while the two were held");
    busy(t.b.try_acquire(&t.claim(&name, permit(2))).await)?;
    held(t.a.keep(&stays).await)?;
    Ok(())
}

/// The names in use that begin with this one.
async fn listed(t: &Trial, name: &Name) -> Result<usize, Failure> {
    Ok(list(t, name.as_str(), 10).await?.len())
}

async fn what_has_expired_is_not_shown(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.brief(&name, Mode::Exclusive);
    let grant = granted(t.a.try_acquire(&claim).await)?;
    t.past(Instant::now(), left(&grant)?).await;
    let info = t.b.view(&name).await?;
    ensure!(info.holders.is_empty(), "an expired lease is shown: {info:?}");
    ensure!(listed(&t, &name).await? == 0, "a name with nothing but an expired lease is listed as in use");
    if t.judges("finding a lease by its id", t.info.find_by_id) {
        let found = t.b.inspect(&Query::LeaseId(claim.id)).await?.items;
        ensure!(found.is_empty(), "an expired lease is found by its id: {found:?}");
    }
    Ok(())
}

async fn a_sweep_never_touches_a_live_lease_and_keeps_the_fence(t: Trial) -> Shown {
    let (live, dead) = (t.name(), t.name());
    let (stays, dies) = (t.claim(&live, Mode::Exclusive), t.brief(&dead, Mode::Exclusive));
    let grant = granted(t.a.try_acquire(&stays).await)?;
    let last = granted(t.a.try_acquire(&dies).await)?;
    t.past(Instant::now(), left(&last)?).await;
    for _ in 0..2 {
        let swept = t.b.sweep().await?;
        ensure!(swept.held >= 1, "a lease is held, and the sweep counts {swept:?}");
        ensure!(t.b.is_held(&live).await?, "the sweep took a live lease");
        ensure!(!t.b.is_held(&dead).await?, "an expired lease is shown after a sweep");
    }
    not_held(t.a.keep(&dies).await, EXPIRED)?;
    let renewed = held(t.a.keep(&stays).await)?;
    ensure!(renewed.fence == grant.fence, "a sweep changed the fence {} to {}", grant.fence, renewed.fence);
    let next = granted(t.b.try_acquire(&t.claim(&dead, Mode::Exclusive)).await)?;
    if t.judges("fences", t.info.fenced) {
        ensure!(
            next.fence > last.fence,
            "after a sweep the fence went from {} to {}",
            last.fence,
            next.fence
        );
    }
    Ok(())
}
