//! What these tests share.

use std::time::{Duration, Instant};

use leasehold::Name;
use leasehold::backend::{Attempt, Backend, Busy, Claim, Grant, Mode, NameInfo, Query};

pub(crate) const LONG: Duration = Duration::from_secs(30);
pub(crate) const TICKET: Duration = Duration::from_secs(10);

pub(crate) fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

pub(crate) fn claim(on: &str, ttl: Duration) -> Claim {
    Claim::new(name(on), Mode::Exclusive, ttl, "test")
}

pub(crate) fn shared(on: &str) -> Claim {
    Claim::new(name(on), Mode::Shared, LONG, "test")
}

pub(crate) async fn granted(store: &dyn Backend, claim: &Claim) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn busy(store: &dyn Backend, claim: &Claim) -> Busy {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Busy(busy) => busy,
        other => panic!("not busy: {other:?}"),
    }
}

pub(crate) async fn look(store: &dyn Backend, on: &str) -> NameInfo {
    store.inspect(&Query::Name(name(on))).await.unwrap().items.remove(0)
}

/// Tries until it works, as the loops above a store do.
pub(crate) async fn granted_at_last(store: &dyn Backend, claim: &Claim) -> Grant {
    let started = Instant::now();
    loop {
        match store.try_acquire(claim).await {
            Ok(Attempt::Granted(grant)) => return grant,
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                assert!(started.elapsed() < Duration::from_secs(60), "{error:?}");
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
