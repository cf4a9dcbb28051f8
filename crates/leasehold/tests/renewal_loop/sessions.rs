//! Session locks, which have no ttl.

use std::time::Duration;

use leasehold::backend::Liveness;
use leasehold::{ErrorKind, Gone, GuardState, LostReason};
use testkit::faulty::{Act, Verb};
use testkit::paused::{Paused, settle};

use crate::{HOUR, ms};

fn session(check_every: Option<Duration>) -> Paused {
    Paused::with_info(|info| (info.liveness, info.check_every) = (Liveness::Session, check_every))
}

#[tokio::test(start_paused = true)]
async fn a_session_lock_is_looked_at_as_often_as_the_store_says() {
    let world = session(Some(ms(2000)));
    let guard = world.locks.mutex("x").lock().await.unwrap();
    assert_eq!((guard.state(), guard.valid_for()), (GuardState::Held, None));
    world.until(9000).await;
    assert_eq!(world.times(Verb::Renew), [2000, 4000, 6000, 8000]);
    // A fault puts it at risk, for as long as it takes.
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    world.until(10_000).await;
    assert_eq!(guard.state(), GuardState::AtRisk);
    world.until(500_000).await;
    assert_eq!((guard.state(), guard.valid_for()), (GuardState::AtRisk, None));
    guard.check().unwrap();
    world.store.always(Verb::Renew, Act::Never);
    world.until(600_000).await;
    assert_eq!(guard.state(), GuardState::AtRisk);
    world.store.always(Verb::Renew, Act::Pass);
    world.until(606_000).await;
    assert_eq!(guard.state(), GuardState::Held);
    world.store.plan(Verb::Renew, [Act::Gone(Gone::NotFound)]);
    assert_eq!(guard.lost().await, LostReason::Refused(Gone::NotFound));
    assert!(world.elapsed() <= ms(608_000), "{:?}", world.elapsed());
    assert_eq!(guard.valid_for(), Some(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_session_lock_whose_store_needs_no_looking_at_is_left_alone() {
    let world = session(None);
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.until(3_600_000).await;
    assert_eq!((guard.state(), world.store.count(Verb::Renew)), (GuardState::Held, 0));
    assert_eq!(guard.release().await.unwrap(), GuardState::Released);
}

#[tokio::test(start_paused = true)]
async fn a_session_lock_is_released_at_max_hold() {
    for check_every in [None, Some(ms(2000))] {
        for ttl in [ms(30_000), ms(1000)] {
            let world = session(check_every);
            let guard = world.locks.mutex("x").ttl(ttl).max_hold(ms(9000)).lock().await.unwrap();
            assert_eq!(guard.lost().await, LostReason::MaxHold);
            assert_eq!(world.elapsed(), ms(9000));
            settle().await;
            assert!(world.is_free("x").await, "it is given back, not only given up");
            // Until then the client checked it all the same.
            let looks = if check_every.is_some() { vec![2000, 4000, 6000, 8000] } else { vec![] };
            assert_eq!(world.times(Verb::Renew), looks, "ttl {ttl:?}");
            assert_eq!(guard.release().await.unwrap(), GuardState::Lost);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_lock_does_not_care_about_the_ttl() {
    for ttl in [Duration::ZERO, Duration::from_nanos(1), ms(1), Duration::MAX] {
        let world = session(Some(ms(2000)));
        let guard = world.locks.mutex("x").ttl(ttl).lock().await.unwrap();
        world.store.script(Verb::Renew, |call| {
            assert!(call.number < 1000, "a storm");
            Act::Pass
        });
        world.until(5000).await;
        assert_eq!(world.times(Verb::Renew), [2000, 4000], "{ttl:?}");
        world.store.plan(Verb::Renew, [Act::Fail(ErrorKind::Unavailable), Act::Never]);
        world.until(12_000).await;
        let calls = world.store.count(Verb::Renew);
        assert!((4..=12).contains(&calls), "{ttl:?}: {calls} calls");
        assert_eq!(guard.state(), GuardState::Held);
    }
    // It cannot be shortened either, nor does an attempt to do so make checks rarer.
    let world = session(Some(ms(2000)));
    let guard = world.locks.mutex("x").lock().await.unwrap();
    guard.shorten_to(HOUR).await.unwrap();
    world.until(9000).await;
    assert_eq!(world.times(Verb::Renew), [0, 2000, 4000, 6000, 8000]);
    assert_eq!(guard.valid_for(), None);
}
