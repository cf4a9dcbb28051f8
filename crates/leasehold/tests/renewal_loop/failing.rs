//! Renewals that fail, hang or are refused.

use std::task::{Context, Waker};
use std::time::Duration;

use leasehold::{ErrorKind, Gone, Guard, GuardState, LostReason};
use testkit::faulty::{Act, FINAL, RETRYABLE, Verb};
use testkit::paused::{Paused, believed};

use crate::{HOUR, ids, ms};

#[tokio::test(start_paused = true)]
async fn one_failed_renewal_puts_a_lease_at_risk_and_never_loses_it() {
    let mut acts: Vec<_> =
        RETRYABLE.iter().chain(&FINAL).flat_map(|kind| [Act::Fail(*kind), Act::LostAfter(*kind)]).collect();
    acts.extend([Act::Panic, Act::Only(0)]);
    for act in acts {
        let world = Paused::new();
        let guard = world.locks.mutex("x").lock().await.unwrap();
        let lost = guard.lost();
        world.store.plan(Verb::Renew, [act]);
        world.until(9999).await;
        assert_eq!(guard.state(), GuardState::Held);
        world.until(10_000).await;
        assert_eq!(guard.state(), GuardState::AtRisk, "{act:?}");
        guard.check().unwrap();
        assert_eq!(world.deadline(&guard), believed(30_000), "nothing was confirmed");
        world.until(10_999).await;
        assert_eq!(guard.state(), GuardState::AtRisk);
        world.until(11_000).await;
        assert_eq!(guard.state(), GuardState::Held, "{act:?}");
        assert_eq!(world.deadline(&guard), ms(11_000) + believed(30_000));
        world.until(45_000).await;
        assert_eq!(world.times(Verb::Renew), [10_000, 11_000, 21_000, 31_000, 41_000]);
        assert_eq!((guard.state(), lost.now()), (GuardState::Held, None));
        assert_eq!(guard.release().await.unwrap(), GuardState::Released);
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_ttl_is_tried_again_soon_enough() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").ttl(ms(1200)).lock().await.unwrap();
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    world.until(1100).await;
    assert_eq!(world.times(Verb::Renew), [400, 500, 600, 700, 800, 900, 1000, 1100]);
    world.store.always(Verb::Renew, Act::Pass);
    world.until(1150).await;
    assert_eq!(guard.state(), GuardState::AtRisk, "a blip that outlasts its last chance is still no loss");
    world.until(1186).await;
    assert_eq!(guard.state(), GuardState::Lost, "but after the deadline there is no chance");
}

#[tokio::test(start_paused = true)]
async fn an_unrenewable_lease_is_lost_exactly_at_its_local_deadline() {
    let acts = [
        Act::Fail(ErrorKind::Unavailable),
        Act::Fail(ErrorKind::Internal),
        Act::Never,
        Act::SlowBefore(ms(20_000)),
        Act::Panic,
        Act::Only(0),
    ];
    for act in acts {
        for ttl in [50, 100, 777, 30_000] {
            let world = Paused::new();
            let guard = world.locks.mutex("x").ttl(ms(ttl)).lock().await.unwrap();
            world.store.always(Verb::Renew, act);
            let end = believed(ttl);
            tokio::time::sleep_until(world.start + end - Duration::from_micros(1500)).await;
            assert_eq!(guard.state(), GuardState::AtRisk, "{act:?} {ttl}");
            assert_eq!(world.deadline(&guard), end);
            let reason = guard.lost().await;
            assert_eq!(reason, LostReason::DeadlinePassed);
            // Timers count whole milliseconds.
            assert!(
                world.elapsed() >= end && world.elapsed() <= end + ms(1),
                "{act:?}: {:?}",
                world.elapsed()
            );
            assert_eq!(guard.state(), GuardState::Lost);
            assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
            assert_eq!(guard.valid_for(), Some(Duration::ZERO));
            let info = world.look("x").await;
            assert_eq!(info.holders[0].id, guard.lease_id(), "before the store gives it to another");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_when_the_renewal_was_sent() {
    for act in [Act::Slow(ms(3000)), Act::SlowBefore(ms(3000))] {
        let world = Paused::new();
        let guard = world.locks.mutex("x").lock().await.unwrap();
        world.store.plan(Verb::Renew, [act]);
        world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
        world.until(12_999).await;
        assert_eq!(world.deadline(&guard), believed(30_000));
        world.until(13_000).await;
        assert_eq!(world.deadline(&guard), ms(10_000) + believed(30_000));
        assert_eq!(guard.lost().await, LostReason::DeadlinePassed);
        assert_eq!(world.elapsed(), ms(10_000) + believed(30_000));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_renewal_is_retried_and_never_hides_the_loss() {
    for act in [Act::Never, Act::NeverAfter] {
        let world = Paused::new();
        let guard = world.locks.mutex("x").ttl(ms(12_000)).lock().await.unwrap();
        world.store.always(Verb::Renew, act);
        world.until(5999).await;
        assert_eq!(guard.state(), GuardState::Held);
        world.until(6000).await;
        assert_eq!(guard.state(), GuardState::AtRisk);
        assert_eq!(guard.lost().await, LostReason::DeadlinePassed);
        assert_eq!(world.elapsed(), believed(12_000), "while the call still hangs");
        assert_eq!(world.times(Verb::Renew), [4000, 6000, 8000, 10_000]);
        // No attempt continues longer than it is of use.
        tokio::time::sleep(ms(2000)).await;
        assert_eq!(world.store.under_way(), 0);
    }
    // A long ttl does not mean a long silence.
    let world = Paused::new();
    let guard = world.locks.mutex("x").ttl(HOUR).lock().await.unwrap();
    world.store.plan(Verb::Renew, [Act::Never]);
    world.until(1_205_000).await;
    assert_eq!(world.times(Verb::Renew), [1_200_000, 1_205_000]);
    assert_eq!(guard.state(), GuardState::Held);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_batch_does_not_delay_another_lease() {
    let world = Paused::new();
    let first = world.locks.mutex("a").lock().await.unwrap();
    world.until(1000).await;
    let second = world.locks.mutex("b").lock().await.unwrap();
    let id = first.lease_id();
    world.store.script(Verb::Renew, move |call| if ids(call).contains(&id) { Act::Never } else { Act::Pass });
    let lost = first.lost().await;
    assert_eq!((lost, world.elapsed()), (LostReason::DeadlinePassed, believed(30_000)));
    let renewed: Vec<_> = world
        .store
        .calls(Verb::Renew)
        .iter()
        .filter(|call| ids(call) == [second.lease_id()])
        .map(|call| call.at.since(world.clock.now() - world.elapsed()).as_millis())
        .collect();
    assert_eq!(renewed, [11_000, 21_000]);
    assert_eq!(second.state(), GuardState::Held);
}

/// Two guards that are renewed in one call; one is patient enough to let it answer late.
async fn one_batch(world: &Paused) -> (Guard, Guard) {
    let hasty = world.locks.mutex("hasty").ttl(ms(3000)).lock().await.unwrap();
    let patient = world.locks.mutex("patient").ttl(ms(30_000)).renew_every(ms(1000)).lock().await.unwrap();
    (hasty, patient)
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_counts_from_when_its_renewal_was_sent() {
    let world = Paused::new();
    let (hasty, patient) = one_batch(&world).await;
    world.store.plan(Verb::Renew, [Act::Slow(ms(800)), Act::Never]);
    world.until(1000).await;
    assert_eq!(ids(&world.store.calls(Verb::Renew)[0]).len(), 2);
    world.until(1500).await;
    assert_eq!((hasty.state(), patient.state()), (GuardState::AtRisk, GuardState::Held));
    assert_eq!(world.times(Verb::Renew), [1000, 1500]);
    world.until(1800).await;
    assert_eq!((hasty.state(), patient.state()), (GuardState::Held, GuardState::Held));
    assert_eq!(world.deadline(&hasty), ms(1000) + believed(3000));
    // The next is sent a third of the ttl after the one that was answered.
    world.until(2000).await;
    assert_eq!(ids(world.store.calls(Verb::Renew).last().unwrap()).len(), 2);
    assert_eq!(world.deadline(&hasty), ms(2000) + believed(3000));
}

#[tokio::test(start_paused = true)]
async fn an_older_answer_does_not_lower_the_deadline() {
    let world = Paused::new();
    let (hasty, _patient) = one_batch(&world).await;
    world.store.plan(Verb::Renew, [Act::Slow(ms(800)), Act::Pass]);
    world.until(1500).await;
    assert_eq!(world.deadline(&hasty), ms(1500) + believed(3000));
    assert_eq!(hasty.state(), GuardState::Held);
    world.until(1800).await;
    assert_eq!(world.deadline(&hasty), ms(1500) + believed(3000));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_deadline_does_not_revive() {
    let world = Paused::new();
    let (hasty, patient) = one_batch(&world).await;
    // The store did renew it.
    world.store.plan(Verb::Renew, [Act::Slow(ms(2500))]);
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    world.until(3499).await;
    assert_eq!(hasty.state(), GuardState::Lost);
    assert_eq!(patient.state(), GuardState::Held);
    assert!(!world.is_free("hasty").await);
    world.until(3500).await;
    assert_eq!((hasty.state(), hasty.lost().now()), (GuardState::Lost, Some(LostReason::DeadlinePassed)));
    assert_eq!(world.deadline(&patient), ms(1000) + believed(30_000));

    // The same without a look in between: the answer comes first, and is too late.
    let world = Paused::new();
    let guard = world.locks.mutex("x").ttl(ms(3000)).lock().await.unwrap();
    world.store.plan(Verb::Renew, [Act::Slow(ms(2500))]);
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    let mut renewing = Box::pin(guard.renew_for(ms(3000)));
    let cx = &mut Context::from_waker(Waker::noop());
    tokio::time::advance(ms(990)).await;
    assert!(renewing.as_mut().poll(cx).is_pending());
    tokio::time::sleep(ms(2600)).await;
    let error = renewing.await.unwrap_err();
    assert_eq!((error.kind(), guard.state()), (ErrorKind::Lost, GuardState::Lost));
}

#[tokio::test(start_paused = true)]
async fn a_refused_renewal_is_a_loss_at_once_and_for_good() {
    for gone in [Gone::Expired, Gone::NotFound, Gone::Superseded, Gone::Revoked] {
        let world = Paused::new();
        let guard = world.locks.mutex("x").lock().await.unwrap();
        world.store.plan(Verb::Renew, [Act::Gone(gone)]);
        let reason = guard.lost().await;
        assert_eq!((reason, world.elapsed()), (LostReason::Refused(gone), ms(10_000)));
        assert_eq!((guard.state(), guard.valid_for()), (GuardState::Lost, Some(Duration::ZERO)));
        let error = guard.check().unwrap_err();
        assert_eq!((error.kind(), error.lease_id()), (ErrorKind::Lost, Some(guard.lease_id())));
        // Nothing brings it back, and the client does not try.
        let errors = [
            guard.renew_for(ms(60_000)).await.unwrap_err(),
            guard.shorten_to(ms(1000)).await.unwrap_err(),
            guard.downgrade().await.unwrap_err(),
            guard.run(async {}).await.unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.kind() == ErrorKind::Lost));
        world.until(120_000).await;
        assert_eq!(world.store.count(Verb::Renew), 1);
        assert_eq!((guard.state(), guard.lost().await), (GuardState::Lost, LostReason::Refused(gone)));
        assert_eq!(guard.release().await.unwrap(), GuardState::Lost);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_away_is_noticed_at_the_next_renewal() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.locks.revoke("x", true).await.unwrap();
    let successor = world.other().mutex("x").lock().await.unwrap();
    assert_eq!(guard.lost().await, LostReason::Refused(Gone::Revoked));
    assert_eq!(world.elapsed(), ms(10_000));
    // Its release does no harm to the next holder.
    assert_eq!(guard.release().await.unwrap(), GuardState::Lost);
    assert_eq!(world.look("x").await.holders[0].id, successor.lease_id());
}
