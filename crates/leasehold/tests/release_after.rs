//! Releases after which the name stays taken for a while.

#![allow(clippy::unwrap_used)] // also in helpers of tests

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Info, Liveness, Released, Renewed};
use leasehold::backends::memory::Memory;
use leasehold::clock::SystemClock;
use leasehold::{ErrorKind, Gone, Lease, Locks};
use testkit::faulty::{Act, Faulty, RETRYABLE, Verb};
use testkit::hand::Hand;

const TTL: Duration = Duration::from_secs(30);
const STAYS: Duration = Duration::from_secs(5);

/// A store in which time passes only as the test wants it, and every call is recorded.
fn by_hand() -> (Locks, Hand, Faulty) {
    let clock = Hand::default();
    let store = Faulty::new(Memory::with_clock(Arc::new(clock.clone())), Arc::new(SystemClock));
    (Locks::new(store.clone()), clock, store)
}

async fn lease(locks: &Locks) -> Option<Lease> {
    locks.leasing("tick").ttl(TTL).try_acquire().await.unwrap()
}

fn is_gone(renewed: Renewed) -> bool {
    matches!(renewed, Renewed::Gone(_))
}

#[tokio::test]
async fn the_name_stays_taken_for_just_that_long() {
    let (locks, clock, _) = by_hand();
    // Sooner than the lease would have ended, and later.
    for stays in [STAYS, TTL * 2] {
        let ours = lease(&locks).await.unwrap();
        clock.advance(TTL / 2);
        assert_eq!(locks.release_after(&ours, stays).await.unwrap(), Released::Done);
        clock.advance(stays - Duration::from_millis(1));
        assert!(lease(&locks).await.is_none(), "taken until {stays:?} after the release");
        clock.advance(Duration::from_millis(1));
        let next = lease(&locks).await.expect("free after that");
        assert!(next.fence > ours.fence);
        locks.release(&next).await.unwrap();
    }
}

#[tokio::test]
async fn a_released_lease_cannot_be_renewed_or_released() {
    let (locks, clock, _) = by_hand();
    let ours = lease(&locks).await.unwrap();
    assert_eq!(locks.release_after(&ours, STAYS).await.unwrap(), Released::Done);
    assert!(is_gone(locks.renew(&ours).await.unwrap()));
    assert!(matches!(locks.release(&ours).await.unwrap(), Released::Gone(_)));
    assert!(matches!(locks.release_after(&ours, TTL).await.unwrap(), Released::Gone(_)));
    assert_eq!(locks.adopt(ours).await.unwrap_err().kind(), ErrorKind::Lost);
    clock.advance(STAYS - Duration::from_millis(1));
    assert!(lease(&locks).await.is_none(), "none of that freed it");
    clock.advance(Duration::from_millis(1));
    assert!(lease(&locks).await.is_some(), "none of that kept it");
}

#[tokio::test]
async fn renewals_before_the_release_do_not_matter() {
    let (locks, clock, store) = by_hand();
    let ours = lease(&locks).await.unwrap();
    for _ in 0..7 {
        assert!(!is_gone(locks.renew(&ours).await.unwrap()));
    }
    let before = store.count(Verb::Renew);
    assert_eq!(locks.release_after(&ours, STAYS).await.unwrap(), Released::Done);
    assert_eq!(store.count(Verb::Renew) - before, 2, "one call learns the number of renewals");
    clock.advance(STAYS);
    assert!(lease(&locks).await.is_some());
}

#[tokio::test]
async fn a_stale_lease_leaves_the_new_holder_alone() {
    let (locks, clock, _) = by_hand();
    let stale = lease(&locks).await.unwrap();
    clock.advance(TTL);
    let fresh = lease(&locks).await.unwrap();
    assert!(matches!(locks.release_after(&stale, STAYS).await.unwrap(), Released::Gone(_)));
    assert!(!is_gone(locks.renew(&fresh).await.unwrap()));
    clock.advance(STAYS);
    assert!(lease(&locks).await.is_none());
}

#[tokio::test]
async fn a_lost_answer_counts_as_released() {
    let (locks, clock, store) = by_hand();
    let ours = lease(&locks).await.unwrap();
    store.plan(Verb::Renew, [Act::LostAfter(ErrorKind::NetworkTimeout)]);
    assert_eq!(locks.release_after(&ours, STAYS).await.unwrap(), Released::Done);
    clock.advance(STAYS);

    // A call that never reached the store is made again.
    for kind in RETRYABLE {
        let ours = lease(&locks).await;
        let ours = ours.unwrap_or_else(|| panic!("free before {kind:?}"));
        store.plan(Verb::Renew, [Act::Fail(kind)]);
        assert_eq!(locks.release_after(&ours, STAYS).await.unwrap(), Released::Done);
        assert!(is_gone(locks.renew(&ours).await.unwrap()));
        clock.advance(STAYS);
    }
}

#[tokio::test]
async fn a_store_that_fails_is_an_error_in_time() {
    let (locks, _, store) = by_hand();
    let locks = locks.with_options(|options| options.release_timeout = Duration::from_millis(200));
    let ours = lease(&locks).await.unwrap();
    for (act, kind) in [
        (Act::Fail(ErrorKind::Overloaded), ErrorKind::Overloaded),
        (Act::Fail(ErrorKind::AuthFailed), ErrorKind::AuthFailed),
        (Act::Never, ErrorKind::NetworkTimeout),
    ] {
        store.always(Verb::Renew, act);
        assert_eq!(locks.release_after(&ours, STAYS).await.unwrap_err().kind(), kind);
    }
    store.always(Verb::Renew, Act::Pass);
    assert!(!is_gone(locks.renew(&ours).await.unwrap()), "nothing happened");
}

#[tokio::test]
async fn what_no_store_can_do_is_refused_unsent() {
    let (locks, _, store) = by_hand();
    let ours = lease(&locks).await.unwrap();
    let before = store.log().len();
    for stays in [Duration::ZERO, Duration::from_secs(25 * 3600)] {
        let error = locks.release_after(&ours, stays).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let changes: [fn(&mut Info); 2] = [|info| info.liveness = Liveness::Session, |info| info.fenced = false];
    for change in changes {
        let odd = Locks::new(store.clone().with_info(change));
        assert_eq!(odd.release_after(&ours, STAYS).await.unwrap_err().kind(), ErrorKind::Unsupported);
    }
    assert_eq!(store.log().len(), before);
}

#[tokio::test]
async fn a_revoked_lease_is_gone() {
    let (locks, _, _) = by_hand();
    let ours = lease(&locks).await.unwrap();
    locks.revoke("tick", false).await.unwrap();
    assert_eq!(locks.release_after(&ours, STAYS).await.unwrap(), Released::Gone(Gone::Revoked));
}
