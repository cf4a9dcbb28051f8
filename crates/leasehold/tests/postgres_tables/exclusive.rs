//! The leftovers of an exclusive lease in the row of its name are not taken for a lease.

use leasehold::backend::{Backend, Claim, Gone, Mode, Query, Released, Renewal, Renewed};
use leasehold::backends::postgres::Postgres as Store;
use leasehold::{ErrorKind, Fence};

use crate::support::{LONG, claim, granted, look, name, place, told};

/// Makes an exclusive lease a shared one.
async fn share(store: &Store, claim: &Claim) {
    let mut renewal = Renewal::new(claim.name.clone(), claim.id, LONG);
    renewal.mode = Some(Mode::Shared);
    assert!(matches!(store.renew(&[renewal]).await.remove(0).unwrap(), Renewed::Held(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_became_shared_ends_as_one() {
    let place = place();
    let store = place.open().await;
    // Alone, as its name's row still says, and with another one.
    for others in 0..2 {
        let held = claim("x", LONG);
        let fence = granted(&store, &held).await.fence;
        share(&store, &held).await;
        let other = Claim::new(name("x"), Mode::Shared, LONG, "test");
        let next = if others > 0 { Some(granted(&store, &other).await.fence) } else { None };
        assert_eq!(store.release(&told(&held, fence)).await.unwrap(), Released::Done);
        assert_eq!(look(&store, "x").await.holders.len(), others);
        assert_eq!(place.sql("SELECT count(*) FROM leasehold.shares"), others.to_string());
        assert_eq!(store.release(&told(&held, fence)).await.unwrap(), Released::Gone(Gone::NotFound));
        if let Some(next) = next {
            assert_eq!(store.release(&told(&other, next)).await.unwrap(), Released::Done);
        }
    }
    granted(&store, &claim("x", LONG)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_lease_cannot_be_renewed_released_found_or_revoked() {
    let place = place();
    let store = place.open().await;
    for with_fence in [true, false] {
        let held = claim("x", LONG);
        let fence = granted(&store, &held).await.fence;
        let mut release = told(&held, fence);
        release.fence = release.fence.filter(|_| with_fence);
        assert_eq!(store.release(&release).await.unwrap(), Released::Done);
        let ended = look(&store, "x").await;
        assert!(ended.holders.is_empty());
        assert_eq!(store.release(&release).await.unwrap(), Released::Gone(Gone::NotFound));
        let renewed = store.renew(&[Renewal::new(name("x"), held.id, LONG)]).await.remove(0).unwrap();
        assert!(matches!(renewed, Renewed::Gone(Gone::NotFound)), "{renewed:?}");
        assert!(store.inspect(&Query::LeaseId(held.id)).await.unwrap().items.is_empty());
        for at_once in [false, true] {
            assert_eq!(store.revoke(&name("x"), at_once, None).await.unwrap().leases, 0);
        }
        let swept = store.sweep().await.unwrap();
        assert_eq!((swept.expired, swept.held), (0, 0));
        let seen = look(&store, "x").await;
        assert_eq!((seen.version, seen.last_fence), (ended.version, fence));
        // All this refused no id, and no lease has the mark of the revocation.
        assert_eq!(place.sql("SELECT count(*) FROM leasehold.spent"), "0");
        let next = claim("x", LONG);
        let fence = granted(&store, &next).await.fence;
        assert!(!look(&store, "x").await.holders[0].revoked);
        assert_eq!(store.release(&told(&next, fence)).await.unwrap(), Released::Done);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn above_the_highest_fence_nothing_is_granted() {
    let place = place();
    let store = place.open().await;
    let first = claim("x", LONG);
    let fence = granted(&store, &first).await.fence;
    assert_eq!(store.release(&told(&first, fence)).await.unwrap(), Released::Done);
    place.sql(&format!("UPDATE leasehold.names SET fence = {}", Fence::MAX.get() - 1));
    let last = claim("x", LONG);
    assert_eq!(granted(&store, &last).await.fence, Fence::MAX);
    assert_eq!(store.release(&told(&last, Fence::MAX)).await.unwrap(), Released::Done);
    for next in [claim("x", LONG), claim("x", LONG).queued(LONG)] {
        assert_eq!(store.try_acquire(&next).await.unwrap_err().kind(), ErrorKind::Internal);
        let seen = look(&store, "x").await;
        assert!(seen.holders.is_empty() && seen.queue_length == 0, "{seen:?}");
    }
}
