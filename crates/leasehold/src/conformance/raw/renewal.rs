//! Checks of what renewing and releasing act on, and what they change: promise 4.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{Backend as _, Claim, Grant, Liveness, Mode, Release, Released, Renewal, Renewed};
use crate::conformance::trial::{
    NOT_FOUND, Shown, Trial, busy, done, fails, granted, held, left, not_done, not_held, only_holder,
};
use crate::conformance::{Failure, check_list, ensure};
use crate::error::ErrorKind;
use crate::fence::Fence;
use crate::lease_id::LeaseId;

check_list! { Raw:
    a_wrong_id_renews_and_releases_nothing => "4 I5";
    a_wrong_fence_renews_and_releases_nothing => "4 I5", Fenced;
    a_wrong_owner_renews_and_releases_nothing => "4 I5";
    a_wrong_name_renews_and_releases_nothing => "4 I5 I11";
    a_late_renewal_or_release_does_not_touch_the_next_holder => "4 I5 I6";
    a_renewal_that_races_a_release_does_not_bring_it_back => "3 4 I6";
    only_its_owner_without_a_fence_gives_up_a_place => "4 I5", Fifo, Ttl;
    renew_sets_the_later_of_old_expiry_and_now_plus_ttl => "4 7", Ttl;
    shorten_acts_only_with_the_right_count => "4", Ttl;
    renew_keeps_fence_mode_and_time_of_grant => "4 5", Ttl;
    a_batch_is_answered_one_each_in_order => "4";
    a_large_batch_is_answered_one_each_in_order => "4";
    a_downgrade_keeps_the_lease_and_lets_readers_in => "1 4 5", Shared, Downgrade;
    a_downgrade_leaves_no_gap_for_a_waiting_writer => "1 J4", Shared, Downgrade, Fifo, Ttl;
    there_is_no_upgrade => "1 4", Shared;
}

fn renewal(claim: &Claim) -> Renewal {
    Renewal::new(claim.name.clone(), claim.id, claim.ttl * 2)
}

fn release(claim: &Claim) -> Release {
    Release::new(claim.name.clone(), claim.id)
}

/// The state of a lease before something that must not change it.
struct Before<'a> {
    t: &'a Trial,
    claim: Claim,
    grant: Grant,
    version: u64,
    left: Option<Duration>,
}

impl<'a> Before<'a> {
    async fn new(t: &'a Trial) -> Result<Self, Failure> {
        let claim = t.claim(&t.name(), Mode::Exclusive);
        let grant = granted(t.a.try_acquire(&claim).await)?;
        let info = t.a.view(&claim.name).await?;
        let left = info.holders.first().and_then(|holder| holder.grant.left);
        Ok(Before { t, claim, grant, version: info.version, left })
    }

    /// Checks that the lease is as it was.
    async fn is_still_so(&self) -> Shown {
        let Before { t, claim, grant, .. } = self;
        busy(t.b.try_acquire(&t.claim(&claim.name, Mode::Exclusive)).await)?;
        let info = t.a.view(&claim.name).await?;
        let holder = only_holder(&info)?;
        if t.info.liveness == Liveness::Ttl {
            ensure!(holder.id == t.shown(claim.id), "another lease is shown than the one that is held");
            ensure!(
                info.version == self.version || !t.is_exact(),
                "the version went from {} to {}",
                self.version,
                info.version
            );
            let (was, is) = (self.left, holder.grant.left);
            ensure!(is <= was.map(|was| was + t.ms(10)), "the time left grew from {was:?} to {is:?}");
        }
        let renewed = held(t.a.keep(claim).await)?;
        ensure!(renewed.fence == grant.fence, "the fence went from {} to {}", grant.fence, renewed.fence);
        let (was, is) = (grant.renewals, renewed.renewals);
        ensure!(t.info.liveness != Liveness::Ttl || is == was + 1, "renewed once, but {was} became {is}");
        done(t.a.end(claim).await)
    }
}

async fn a_wrong_id_renews_and_releases_nothing(t: Trial) -> Shown {
    let before = Before::new(&t).await?;
    let mut other = before.claim.clone();
    other.id = LeaseId::random();
    not_held(t.a.renew_one(&renewal(&other)).await, NOT_FOUND)?;
    not_done(t.a.release(&release(&other)).await, NOT_FOUND)?;
    before.is_still_so().await
}

async fn a_wrong_fence_renews_and_releases_nothing(t: Trial) -> Shown {
    let before = Before::new(&t).await?;
    let right = before.grant.fence;
    for wrong in [right.get() + 1, right.get().saturating_sub(1)].map(Fence::new) {
        let (mut renewal, mut release) = (renewal(&before.claim), release(&before.claim));
        (renewal.fence, release.fence) = (Some(wrong), Some(wrong));
        not_held(t.a.renew_one(&renewal).await, NOT_FOUND)?;
        not_done(t.a.release(&release).await, NOT_FOUND)?;
    }
    before.is_still_so().await?;
    // With the right fence both act.
    let before = Before::new(&t).await?;
    let (mut renewal, mut release) = (renewal(&before.claim), release(&before.claim));
    (renewal.fence, release.fence) = (Some(before.grant.fence), Some(before.grant.fence));
    held(t.a.renew_one(&renewal).await)?;
    done(t.a.release(&release).await)
}

async fn a_wrong_owner_renews_and_releases_nothing(t: Trial) -> Shown {
    let before = Before::new(&t).await?;
    for wrong in ["another owner", "Conformance", "conformance "] {
        let (mut renewal, mut release) = (renewal(&before.claim), release(&before.claim));
        (renewal.owner, release.owner) = (Some(wrong.into()), Some(wrong.into()));
        not_held(t.a.renew_one(&renewal).await, NOT_FOUND)?;
        not_done(t.a.release(&release).await, NOT_FOUND)?;
    }
    before.is_still_so().await?;
    let before = Before::new(&t).await?;
    let (mut renewal, mut release) = (renewal(&before.claim), release(&before.claim));
    let right = Some(Arc::clone(&before.claim.owner));
    (renewal.owner, release.owner) = (right.clone(), right);
    held(t.a.renew_one(&renewal).await)?;
    done(t.a.release(&release).await)
}

async fn a_wrong_name_renews_and_releases_nothing(t: Trial) -> Shown {
    let before = Before::new(&t).await?;
    // On an unused name, and on one that is held.
    let held_elsewhere = Before::new(&t).await?;
    for name in [t.name(), held_elsewhere.claim.name.clone()] {
        let mut other = before.claim.clone();
        other.name = name;
        not_held(t.a.renew_one(&renewal(&other)).await, NOT_FOUND)?;
        not_done(t.a.release(&release(&other)).await, NOT_FOUND)?;
    }
    held_elsewhere.is_still_so().await?;
    before.is_still_so().await
}

async fn a_late_renewal_or_release_does_not_touch_the_next_holder(t: Trial) -> Shown {
    let name = t.name();
    let (old, new) = (t.claim(&name, Mode::Exclusive), t.claim(&name, Mode::Exclusive));
    granted(t.a.try_acquire(&old).await)?;
    done(t.a.end(&old).await)?;
    let grant = granted(t.b.try_acquire(&new).await)?;
    for _ in 0..2 {
        not_held(t.a.keep(&old).await, NOT_FOUND)?;
        not_done(t.a.end(&old).await, NOT_FOUND)?;
    }
    busy(t.a.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    let renewed = held(t.b.keep(&new).await)?;
    ensure!(
        renewed.fence == grant.fence,
        "the next holder's fence went from {} to {}",
        grant.fence,
        renewed.fence
    );
    done(t.b.end(&new).await)
}

async fn a_renewal_that_races_a_release_does_not_bring_it_back(t: Trial) -> Shown {
    for _ in 0..8 {
        let name = t.name();
        let claim = t.claim(&name, Mode::Exclusive);
        granted(t.a.try_acquire(&claim).await)?;
        let start = Arc::new(tokio::sync::Barrier::new(9));
        let renewals: Vec<_> = (0..8)
            .map(|_| {
                let (side, claim, start) = (Arc::clone(&t.a), claim.clone(), Arc::clone(&start));
                t.spawn(async move {
                    start.wait().await;
                    side.keep(&claim).await
                })
            })
            .collect();
        start.wait().await;
        done(t.a.end(&claim).await)?;
        for renewal in renewals {
            // Held or gone, depending on whether it came before the release or after.
            t.soon("the answer to a renewal", renewal).await???;
        }
        not_held(t.a.keep(&claim).await, NOT_FOUND)?;
        ensure!(!t.a.is_held(&name).await?, "a renewal that raced its release brought the lease back");
        granted(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    }
    Ok(())
}

async fn only_its_owner_without_a_fence_gives_up_a_place(t: Trial) -> Shown {
    let name = t.name();
    let (holder, waiter) = (t.claim(&name, Mode::Exclusive), t.queued(&name, Mode::Exclusive));
    let grant = granted(t.a.try_acquire(&holder).await)?;
    busy(t.b.try_acquire(&waiter).await)?;
    let mut wrong = release(&waiter);
    wrong.owner = Some("another owner".into());
    not_done(t.b.release(&wrong).await, NOT_FOUND)?;
    if t.judges("fences", t.info.fenced) {
        // A waiter has no fence yet.
        let mut wrong = release(&waiter);
        wrong.fence = Some(grant.fence);
        not_done(t.b.release(&wrong).await, NOT_FOUND)?;
    }
    let info = t.a.view(&name).await?;
    ensure!(info.queue_length == 1, "one waits, and {} are shown", info.queue_length);
    let mut right = release(&waiter);
    right.owner = Some(Arc::clone(&waiter.owner));
    done(t.b.release(&right).await)
}

async fn renew_sets_the_later_of_old_expiry_and_now_plus_ttl(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    let sent = Instant::now();
    let first = left(&granted(t.a.try_acquire(&claim).await)?)?;
    // A shorter ttl changes nothing: what is left is what was left, less what has passed.
    let renewed = held(t.a.renew_one(&Renewal::new(name.clone(), claim.id, t.ms(100))).await)?;
    let (passed, now_left) = (sent.elapsed(), left(&renewed)?);
    let least = first.saturating_sub(passed + passed / 50 + Duration::from_millis(2));
    ensure!(
        now_left >= least,
        "{first:?} were left, and {passed:?} later a shorter renewal left {now_left:?}"
    );
    ensure!(now_left <= first + t.ms(10), "renewed for less, and the time left grew to {now_left:?}");
    // A longer one counts from now.
    let ttl = claim.ttl * 2;
    let longer = left(&held(t.a.renew_one(&Renewal::new(name, claim.id, ttl)).await)?)?;
    ensure!(longer >= ttl - ttl / 100, "renewed for {ttl:?}, and {longer:?} are left");
    ensure!(longer <= ttl + ttl / 4, "renewed for {ttl:?} from now, and {longer:?} are left");
    Ok(())
}

async fn shorten_acts_only_with_the_right_count(t: Trial) -> Shown {
    let claim = t.claim(&t.name(), Mode::Exclusive);
    let first = granted(t.a.try_acquire(&claim).await)?;
    let shorten = |count: u64, ttl: Duration| {
        let mut renewal = Renewal::new(claim.name.clone(), claim.id, ttl);
        renewal.shorten = Some(count);
        renewal
    };
    let (third, tenth) = (claim.ttl / 3, claim.ttl / 10);
    let sent = Instant::now();
    let short = held(t.a.renew_one(&shorten(first.renewals, third)).await)?;
    let was = left(&short)?;
    ensure!(was <= third + third / 4, "shortened to {third:?}, and {was:?} are left");
    ensure!(short.renewals == first.renewals + 1, "a shortening renewal counts as one");
    for stale in [first.renewals, short.renewals + 1] {
        let same = held(t.a.renew_one(&shorten(stale, tenth)).await)?;
        let (passed, is) = (sent.elapsed(), left(&same)?);
        let least = was.saturating_sub(passed + passed / 50 + Duration::from_millis(2));
        ensure!(is >= least, "a stale count shortened: {was:?} were left, {passed:?} later {is:?}");
        ensure!(is <= was + t.ms(10), "a stale count lengthened: {was:?} were left, {passed:?} later {is:?}");
        ensure!(same.renewals == short.renewals, "a shortening that did nothing counts as a renewal");
    }
    Ok(())
}

async fn renew_keeps_fence_mode_and_time_of_grant(t: Trial) -> Shown {
    let claim = t.claim(&t.name(), if t.info.shared { Mode::Shared } else { Mode::Exclusive });
    let grant = granted(t.a.try_acquire(&claim).await)?;
    for count in 1..=3 {
        let renewed = held(t.a.keep(&claim).await)?;
        ensure!(renewed.fence == grant.fence, "the fence went from {} to {}", grant.fence, renewed.fence);
        ensure!(renewed.mode == grant.mode, "the mode went from {} to {}", grant.mode, renewed.mode);
        let (was, is) = (grant.acquired_at_ms, renewed.acquired_at_ms);
        ensure!(was == is, "the time of the grant went from {was} to {is}");
        let counted = renewed.renewals - grant.renewals.min(renewed.renewals);
        ensure!(counted == count, "renewed {count} times, and {counted} are counted");
    }
    Ok(())
}

async fn a_batch_is_answered_one_each_in_order(t: Trial) -> Shown {
    let claims: Vec<Claim> = (0..4).map(|_| t.claim(&t.name(), Mode::Exclusive)).collect();
    let mut grants = Vec::new();
    for claim in &claims {
        grants.push(granted(t.a.try_acquire(claim).await)?);
    }
    done(t.a.end(&claims[1]).await)?;
    let mut wrong = renewal(&claims[3]);
    wrong.owner = Some("another owner".into());
    // Live, released, live, nonexistent, another owner's, live again.
    let stranger = t.claim(&t.name(), Mode::Exclusive);
    let batch = [
        renewal(&claims[0]),
        renewal(&claims[1]),
        renewal(&claims[2]),
        renewal(&stranger),
        wrong,
        renewal(&claims[0]),
    ];
    let answers = t.a.renew(&batch).await;
    ensure!(answers.len() == batch.len(), "{} renewals have {} answers", batch.len(), answers.len());
    let expected = [Some(0), None, Some(2), None, None, Some(0)];
    for (place, (answer, live)) in answers.into_iter().zip(expected).enumerate() {
        match (answer?, live) {
            (Renewed::Held(grant), Some(live)) => {
                let right = grants[live].fence;
                ensure!(
                    grant.fence == right,
                    "answer {place} is of another lease: fence {}, not {right}",
                    grant.fence
                );
            }
            (Renewed::Gone(_), None) => {}
            (answer, _) => return Err(Failure::new(format!("answer {place} of the batch is {answer:?}"))),
        }
    }
    let none = t.a.renew(&[]).await;
    ensure!(none.is_empty(), "no renewals have {} answers", none.len());
    Ok(())
}

async fn a_large_batch_is_answered_one_each_in_order(t: Trial) -> Shown {
    let claims: Vec<Claim> = (0..90).map(|_| t.claim(&t.name(), Mode::Exclusive)).collect();
    for claims in claims.chunks(15) {
        let attempts =
            futures_util::future::join_all(claims.iter().map(|claim| t.a.try_acquire(claim))).await;
        for attempt in attempts {
            granted(attempt)?;
        }
    }
    for claim in claims.iter().step_by(3) {
        done(t.a.end(claim).await)?;
    }
    let batch: Vec<Renewal> = claims.iter().map(renewal).collect();
    let answers = t.a.renew(&batch).await;
    ensure!(answers.len() == batch.len(), "{} renewals have {} answers", batch.len(), answers.len());
    for (place, answer) in answers.into_iter().enumerate() {
        match answer? {
            Renewed::Gone(_) if place % 3 == 0 => {}
            Renewed::Held(_) if place % 3 != 0 => {}
            answer => return Err(Failure::new(format!("answer {place} of the batch is {answer:?}"))),
        }
    }
    let releases = claims.iter().map(|claim| t.a.end(claim));
    let ended = futures_util::future::join_all(releases).await;
    let ended = ended.iter().filter(|answer| matches!(answer, Ok(Released::Done))).count();
    ensure!(ended == 60, "60 of the batch were held, and {ended} could be released");
    Ok(())
}

fn downgrade(claim: &Claim) -> Renewal {
    let mut renewal = Renewal::new(claim.name.clone(), claim.id, claim.ttl);
    renewal.mode = Some(Mode::Shared);
    renewal
}

async fn a_downgrade_keeps_the_lease_and_lets_readers_in(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    let grant = granted(t.a.try_acquire(&claim).await)?;
    busy(t.b.try_acquire(&t.claim(&name, Mode::Shared)).await)?;
    for _ in 0..2 {
        let shared = held(t.a.renew_one(&downgrade(&claim)).await)?;
        ensure!(shared.mode == Mode::Shared, "after the downgrade it is {}", shared.mode);
        ensure!(shared.fence == grant.fence, "the fence went from {} to {}", grant.fence, shared.fence);
    }
    granted(t.b.try_acquire(&t.claim(&name, Mode::Shared)).await)?;
    busy(t.b.try_acquire(&t.claim(&name, Mode::Exclusive)).await)?;
    // The same claim again shows the lease as it is now.
    let again = granted(t.a.try_acquire(&claim).await)?;
    ensure!(again.mode == Mode::Shared, "a repeat after the downgrade is {}", again.mode);
    done(t.a.end(&claim).await)
}

async fn a_downgrade_leaves_no_gap_for_a_waiting_writer(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    let (reader, writer) = (t.queued(&name, Mode::Shared), t.queued(&name, Mode::Exclusive));
    let last = t.queued(&name, Mode::Shared);
    granted(t.a.try_acquire(&claim).await)?;
    for waiter in [&reader, &writer, &last] {
        busy(t.b.try_acquire(waiter).await)?;
    }
    held(t.a.renew_one(&downgrade(&claim)).await)?;
    busy(t.b.try_acquire(&writer).await)?;
    granted(t.b.try_acquire(&reader).await)?;
    busy(t.b.try_acquire(&last).await)?;
    held(t.a.keep(&claim).await)?;
    done(t.b.end(&reader).await)?;
    busy(t.b.try_acquire(&writer).await)?;
    done(t.a.end(&claim).await)?;
    granted(t.b.try_acquire(&writer).await)?;
    busy(t.b.try_acquire(&last).await)?;
    Ok(())
}

async fn there_is_no_upgrade(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Shared);
    granted(t.a.try_acquire(&claim).await)?;
    let mut upgrade = renewal(&claim);
    upgrade.mode = Some(Mode::Exclusive);
    fails(t.a.renew_one(&upgrade).await, ErrorKind::Mismatch)?;
    let info = held(t.a.keep(&claim).await)?;
    ensure!(info.mode == Mode::Shared, "a refused upgrade left it {}", info.mode);
    granted(t.b.try_acquire(&t.claim(&name, Mode::Shared)).await)?;
    Ok(())
}
