//! Checks of which leases may hold a name together.

use std::sync::Arc;

use crate::backend::{Attempt, Backend as _, Claim, Mode, Released};
use crate::conformance::trial::{NOT_FOUND, Shown, Side, Trial, busy, done, fails, granted, held, not_done};
use crate::conformance::{Failure, check_list, ensure};
use crate::error::ErrorKind;

check_list! { Raw:
    info_is_constant_and_alike_for_both_clients => "I11";
    one_exclusive_lease_excludes_another => "1 I2";
    a_writer_excludes_readers_and_readers_a_writer => "1 I2", Shared;
    readers_hold_together_and_a_writer_waits_for_the_last => "1 I2", Shared;
    no_more_permits_than_the_limit_and_a_released_one_comes_back => "1 I9", Permits(3);
    of_many_who_race_for_a_new_name_exactly_one_wins => "1 I1";
    racing_permits_never_exceed_the_limit => "1 I9", Permits(3);
    what_was_granted_is_stored => "10 I13";
    a_claim_that_queues_for_a_free_name_is_granted_at_once => "1 J7";
    kinds_do_not_mix_while_in_use_and_may_change_at_rest => "I11", Permits(2);
    limits_do_not_mix_while_in_use_and_may_change_at_rest => "I11 I9", Permits(3);
    concurrent_releases_end_a_lease_exactly_once => "4 I5";
    a_lease_can_be_renewed_and_released_through_another_client => "4", Ttl;
}

pub(super) const fn permit(limit: u32) -> Mode {
    Mode::Permit { limit }
}

async fn info_is_constant_and_alike_for_both_clients(t: Trial) -> Shown {
    let info = t.a.info();
    t.a.view(&t.name()).await?;
    ensure!(t.a.info() == info, "info changed from {info:?} to {:?}", t.a.info());
    ensure!(t.b.info() == info, "one client says {info:?}, the other {:?}", t.b.info());
    Ok(())
}

async fn one_exclusive_lease_excludes_another(t: Trial) -> Shown {
    let name = t.name();
    let (first, second) = (t.claim(&name, Mode::Exclusive), t.claim(&name, Mode::Exclusive));
    let grant = granted(t.a.try_acquire(&first).await)?;
    ensure!(grant.mode == Mode::Exclusive, "claimed exclusive, and granted {}", grant.mode);
    let answer = busy(t.b.try_acquire(&second).await)?;
    ensure!(answer.place.is_none(), "an attempt that does not queue has a place: {answer:?}");
    let owner = answer.owner.as_deref().unwrap_or("conformance");
    ensure!(owner == "conformance", "the holder is said to be {owner:?}");
    done(t.a.end(&first).await)?;
    granted(t.b.try_acquire(&second).await)?;
    busy(t.a.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    Ok(())
}

async fn a_writer_excludes_readers_and_readers_a_writer(t: Trial) -> Shown {
    let name = t.name();
    let (writer, reader) = (t.claim(&name, Mode::Exclusive), t.claim(&name, Mode::Shared));
    granted(t.a.try_acquire(&writer).await)?;
    busy(t.b.try_acquire(&reader).await)?;
    done(t.a.end(&writer).await)?;
    let grant = granted(t.b.try_acquire(&reader).await)?;
    ensure!(grant.mode == Mode::Shared, "claimed shared, and granted {}", grant.mode);
    busy(t.a.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    Ok(())
}

async fn readers_hold_together_and_a_writer_waits_for_the_last(t: Trial) -> Shown {
    let name = t.name();
    let readers: Vec<Claim> = (0..4).map(|_| t.claim(&name, Mode::Shared)).collect();
    for pair in readers.chunks(2) {
        granted(t.a.try_acquire(&pair[0]).await)?;
        granted(t.b.try_acquire(&pair[1]).await)?;
    }
    let writer = t.claim(&name, Mode::Exclusive);
    for pair in readers.chunks(2) {
        busy(t.b.try_acquire(&writer).await)?;
        done(t.a.end(&pair[0]).await)?;
        busy(t.b.try_acquire(&writer).await)?;
        done(t.b.end(&pair[1]).await)?;
    }
    granted(t.b.try_acquire(&writer).await)?;
    Ok(())
}

async fn no_more_permits_than_the_limit_and_a_released_one_comes_back(t: Trial) -> Shown {
    for limit in 1..=3 {
        let name = t.name();
        let mut inside = Vec::new();
        for _ in 0..limit {
            let claim = t.claim(&name, permit(limit));
            granted(t.a.try_acquire(&claim).await)?;
            inside.push(claim);
        }
        let mut next = t.claim(&name, permit(limit));
        busy(t.b.try_acquire(&next).await)?;
        // Each holder that leaves lets one in, and only one.
        for claim in &inside {
            done(t.a.end(claim).await)?;
            granted(t.b.try_acquire(&next).await)?;
            next = t.claim(&name, permit(limit));
            busy(t.b.try_acquire(&next).await)?;
        }
    }
    Ok(())
}

/// Lets claims race from both clients at once, and counts how many were granted.
pub(super) async fn race(t: &Trial, claims: Vec<Claim>) -> Result<usize, Failure> {
    let start = Arc::new(tokio::sync::Barrier::new(claims.len()));
    let sides: [&Arc<Side>; 2] = [&t.a, &t.b];
    let racers: Vec<_> = claims
        .into_iter()
        .zip(sides.into_iter().cycle())
        .map(|(claim, side)| {
            let (side, start) = (Arc::clone(side), Arc::clone(&start));
            t.spawn(async move {
                start.wait().await;
                side.try_acquire(&claim).await
            })
        })
        .collect();
    let mut winners = 0;
    for racer in racers {
        match t.soon("the answer to a racing attempt", racer).await??? {
            Attempt::Granted(_) => winners += 1,
            Attempt::Busy(_) => {}
            other => return Err(Failure::new(format!("a race is won or lost, not {other:?}"))),
        }
    }
    Ok(winners)
}

async fn of_many_who_race_for_a_new_name_exactly_one_wins(t: Trial) -> Shown {
    for _ in 0..4 {
        let name = t.name();
        let claims = (0..32).map(|_| t.claim(&name, Mode::Exclusive)).collect();
        let winners = race(&t, claims).await?;
        ensure!(winners == 1, "of 32 who raced for a free name, {winners} won");
    }
    Ok(())
}

async fn racing_permits_never_exceed_the_limit(t: Trial) -> Shown {
    for _ in 0..4 {
        let name = t.name();
        let claims = (0..24).map(|_| t.claim(&name, permit(3))).collect();
        let winners = race(&t, claims).await?;
        ensure!(winners == 3, "of 24 who raced for 3 permits, {winners} got one");
    }
    Ok(())
}

async fn what_was_granted_is_stored(t: Trial) -> Shown {
    let name = t.name();
    for round in 0..3 {
        let claim = t.claim(&name, Mode::Exclusive);
        granted(t.a.try_acquire(&claim).await)?;
        ensure!(t.b.is_held(&name).await?, "granted in round {round}, but the other client sees no holder");
        busy(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
        done(t.a.end(&claim).await)?;
        ensure!(!t.b.is_held(&name).await?, "released in round {round}, but the other client sees a holder");
    }
    Ok(())
}

async fn a_claim_that_queues_for_a_free_name_is_granted_at_once(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.queued(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&claim).await)?;
    let info = t.a.view(&name).await?;
    ensure!(info.queue_length == 0, "the holder also waits: {info:?}");
    done(t.a.end(&claim).await)?;
    let info = t.b.view(&name).await?;
    ensure!(info.holders.is_empty() && info.queue_length == 0, "something is left: {info:?}");
    Ok(())
}

async fn kinds_do_not_mix_while_in_use_and_may_change_at_rest(t: Trial) -> Shown {
    let name = t.name();
    let exclusive = t.claim(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&exclusive).await)?;
    fails(t.b.try_acquire(&t.claim(&name, permit(2))).await, ErrorKind::Mismatch)?;
    done(t.a.end(&exclusive).await)?;
    let one = t.claim(&name, permit(2));
    granted(t.b.try_acquire(&one).await)?;
    let mut modes = vec![Mode::Exclusive];
    if t.judges("shared leases", t.info.shared) {
        modes.push(Mode::Shared);
    }
    for mode in modes {
        fails(t.a.try_acquire(&t.claim(&name, mode)).await, ErrorKind::Mismatch)?;
        fails(t.a.try_acquire(&t.queued(&name, mode)).await, ErrorKind::Mismatch)?;
    }
    done(t.b.end(&one).await)?;
    granted(t.a.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    Ok(())
}

async fn limits_do_not_mix_while_in_use_and_may_change_at_rest(t: Trial) -> Shown {
    let name = t.name();
    let one = t.claim(&name, permit(2));
    granted(t.a.try_acquire(&one).await)?;
    for limit in [1, 3] {
        fails(t.b.try_acquire(&t.claim(&name, permit(limit))).await, ErrorKind::Mismatch)?;
    }
    granted(t.b.try_acquire(&t.claim(&name, permit(2))).await)?;
    let name = t.name();
    for limit in [2, 3, 1] {
        let claim = t.claim(&name, permit(limit));
        granted(t.a.try_acquire(&claim).await)?;
        done(t.a.end(&claim).await)?;
    }
    Ok(())
}

async fn concurrent_releases_end_a_lease_exactly_once(t: Trial) -> Shown {
    for _ in 0..4 {
        let name = t.name();
        let claim = t.claim(&name, Mode::Exclusive);
        granted(t.a.try_acquire(&claim).await)?;
        let start = Arc::new(tokio::sync::Barrier::new(16));
        let releases: Vec<_> = (0..16)
            .map(|_| {
                let (side, claim, start) = (Arc::clone(&t.a), claim.clone(), Arc::clone(&start));
                t.spawn(async move {
                    start.wait().await;
                    side.end(&claim).await
                })
            })
            .collect();
        let mut ended = 0;
        for release in releases {
            match t.soon("the answer to a release", release).await??? {
                Released::Done => ended += 1,
                other => not_done(Ok(other), NOT_FOUND)?,
            }
        }
        ensure!(ended == 1, "of 16 releases of one lease, {ended} were done");
        granted(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    }
    Ok(())
}

async fn a_lease_can_be_renewed_and_released_through_another_client(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    let grant = granted(t.a.try_acquire(&claim).await)?;
    let renewed = held(t.b.keep(&claim).await)?;
    ensure!(renewed.fence == grant.fence, "renewing changed the fence {} to {}", grant.fence, renewed.fence);
    done(t.b.end(&claim).await)?;
    not_done(t.a.end(&claim).await, NOT_FOUND)?;
    Ok(())
}
