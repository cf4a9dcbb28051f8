//! What these tests share.

use std::time::{Duration, Instant};

use leasehold::Name;
use leasehold::backend::{Attempt, Backend, Busy, Claim, Grant, Mode, NameInfo, Query, Release};
use redis::aio::MultiplexedConnection;
use testkit::redis::Server;
use testkit::until::{PATIENCE, in_time, until_async};
use tokio::time::timeout;

pub(crate) const LONG: Duration = Duration::from_secs(30);
/// So long that nothing with this duration ends during a test.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
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
                assert!(started.elapsed() < PATIENCE, "{error:?}");
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A connection that does not give up after half a second.
pub(crate) async fn own_connection(url: &str) -> MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

/// Waits until a client is in the queue of a name.
pub(crate) async fn until_one_waits(store: &dyn Backend, on: &str) {
    until_async("a client waits", async || look(store, on).await.queue_length > 0).await;
}

/// Waits for its turn. Unlike the wait loop, it never comes back by itself to keep its place: if the store does not
/// wake it, the test fails.
pub(crate) async fn served(store: &dyn Backend, queued: &Claim) {
    in_time("its turn", async {
        loop {
            match store.try_acquire(queued).await.unwrap() {
                Attempt::Granted(_) => return,
                other => assert!(matches!(other, Attempt::Busy(_)), "{other:?}"),
            }
            if store.wait(queued).await.is_err() {
                // There is no channel: a client polls.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    })
    .await;
}

/// Waits until there is a channel for wake-ups, and checks that a release comes over it: nothing else ends this wait.
pub(crate) async fn a_release_is_pushed(store: &dyn Backend, on: &str) {
    let (held, queued) = (claim(on, HOUR), claim(on, HOUR).queued(HOUR));
    granted(store, &held).await;
    // A channel that breaks or comes back ends a wait within a second.
    until_async("a channel for wake-ups", async || {
        busy(store, &queued).await;
        timeout(Duration::from_millis(1200), store.wait(&queued)).await.is_err()
    })
    .await;
    store.release(&Release::new(name(on), held.id)).await.unwrap();
    in_time("a release is pushed", store.wait(&queued)).await.unwrap();
    granted(store, &queued).await;
    store.release(&Release::new(name(on), queued.id)).await.unwrap();
}

/// How many connections a server has for calls, without the one that asks.
pub(crate) fn connections(server: &Server) -> usize {
    let list = server.cli(&["CLIENT", "LIST", "TYPE", "normal"]);
    list.lines().filter(|line| !line.contains("cmd=client")).count()
}
