//! A network that goes silent, loses an answer, or delivers a request after its caller has given up.

use std::time::{Duration, Instant};

use leasehold::backend::{Backend as _, Query};
use leasehold::backends::postgres::Postgres;
use leasehold::{ErrorKind, GuardState, Locks, LocksBuilder};
use testkit::proxy::Proxy;

use crate::support::{LONG, Place, claim, granted, in_time, place, server, until};

/// How long one request may take at the client's level, and as much again for a slow machine.
const REQUEST: Duration = Duration::from_secs(5 + 5);

/// A test's own tables, a proxy before them, and a client that comes through it.
async fn through_a_proxy() -> (Place, Proxy, LocksBuilder) {
    let place = place();
    let proxy = Proxy::before(([127, 0, 0, 1], server().port()).into()).unwrap();
    let url = format!("postgres://postgres@{}/postgres?schema={}", proxy.address(), place.schema);
    let builder = Locks::connect_builder(&url).await.unwrap();
    (place, proxy, builder)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_network_fails_calls_in_time_and_then_recovers() {
    let (place, proxy, builder) = through_a_proxy().await;
    let ttl = Duration::from_secs(6);
    let (locks, direct) = (builder.ttl(ttl).build(), Locks::connect(&place.url).await.unwrap());
    let guard = locks.mutex("mine").lock().await.unwrap();
    // It waits at the server, which does not notice the silence.
    let next = tokio::spawn(async move { direct.mutex("mine").lock().await.unwrap() });
    let began = Instant::now();
    proxy.blackhole();
    let call = {
        let locks = locks.clone();
        tokio::spawn(async move { (locks.mutex("other").try_lock().await, Instant::now()) })
    };
    until("the lease is at risk", async || guard.state() != GuardState::Held).await;
    assert_eq!(guard.state(), GuardState::AtRisk, "a renewal without an answer is no loss yet");
    in_time("the guard reports its loss", guard.lost()).await;
    assert!(began.elapsed() < ttl + Duration::from_secs(5), "{:?}", began.elapsed());
    let next = in_time("the next one has it", next).await.unwrap();
    assert_eq!(guard.state(), GuardState::Lost, "lost before another has it");
    assert!(next.fence() > guard.fence());
    let (answer, at) = call.await.unwrap();
    let error = answer.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert!(at - began < REQUEST, "{:?}", at - began);
    // The same client goes on, and a late request takes nothing from any client.
    proxy.pass();
    let other = in_time("it goes on", locks.mutex("other").lock()).await.unwrap();
    assert!(locks.mutex("mine").try_lock().await.unwrap().is_none());
    next.check().unwrap();
    next.release().await.unwrap();
    let again = in_time("it is free", locks.mutex("mine").lock()).await.unwrap();
    again.release().await.unwrap();
    other.release().await.unwrap();
    until("nothing is left", async || place.sql("SELECT count(*) FROM leasehold.leases") == "0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_repeated_after_a_lost_answer_gets_the_same_grant() {
    let (_place, proxy, builder) = through_a_proxy().await;
    let locks = builder.build();
    // So that the next request of an acquire is the call itself.
    locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
    proxy.swallow_answer(b"lost-answer");
    let guard = in_time("it is made again", locks.mutex("lost-answer").lock()).await.unwrap();
    assert_eq!(proxy.counts().swallowed, 1);
    let query = Query::Name(guard.name().clone());
    let seen = locks.backend().inspect(&query).await.unwrap().items.remove(0);
    assert_eq!(seen.holders.len(), 1);
    assert_eq!((seen.holders[0].id, seen.holders[0].grant.fence), (guard.lease_id(), guard.fence()));
    assert_eq!(seen.last_fence, guard.fence(), "granted once");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_delivered_after_its_cancel_makes_no_ghost_holder() {
    let (place, proxy, builder) = through_a_proxy().await;
    let locks = builder.build();
    locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
    let mut held = proxy.hold_request(b"ghost");
    {
        let mutex = locks.mutex("ghost");
        tokio::select! {
            taken = mutex.lock() => panic!("{taken:?}"),
            () = held.caught() => {}
        }
    }
    // The give-back takes its own connection, and says that a claim may still come.
    until("the id is refused", async || place.sql("SELECT count(*) FROM leasehold.spent") == "1").await;
    let answered = proxy.counts().to_client;
    held.deliver();
    until("the claim is answered", async || proxy.counts().to_client > answered).await;
    assert_eq!(place.sql("SELECT count(*) FROM leasehold.leases"), "0");
    let direct = Locks::connect(&place.url).await.unwrap();
    direct.mutex("ghost").try_lock().await.unwrap().expect("it is free").release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_dropped_while_connecting_never_exceed_the_pool_limit() {
    let place = place();
    let proxy = Proxy::before(([127, 0, 0, 1], server().port()).into()).unwrap();
    let url = format!("postgres://postgres@{}/postgres?schema={}", proxy.address(), place.schema);
    let store = Postgres::builder(&url).unwrap().pool_size(2).open().await.unwrap();
    granted(&store, &claim("before", LONG)).await;
    proxy.blackhole();
    proxy.reset();
    until("the old connections are gone", async || proxy.counts().open == 0).await;
    let before = proxy.counts().accepted;
    for n in 0..30 {
        let claim = claim(&format!("x{n}"), LONG);
        let _given_up = tokio::time::timeout(Duration::from_millis(20), store.try_acquire(&claim)).await;
    }
    until("two connect", async || proxy.counts().accepted - before >= 2).await;
    assert_eq!(proxy.counts().accepted - before, 2);
    // The next caller uses the connections that were begun.
    proxy.pass();
    granted(&store, &claim("after", LONG)).await;
    assert_eq!(proxy.counts().accepted - before, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_no_connection_to_the_old_primary_is_used() {
    let (old, new) = (testkit::postgres::Postgres::start(), testkit::postgres::Postgres::start());
    drop(Postgres::connect(&new.url()).await.unwrap());
    let url = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", old.port(), new.port());
    let store = Postgres::connect(&url).await.unwrap();
    // Several connections, which are then idle.
    let names: Vec<_> = (0..6).map(|n| claim(&format!("before {n}"), LONG)).collect();
    futures_util::future::join_all(names.iter().map(|claim| granted(&store, claim))).await;
    old.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    old.sql("SELECT pg_reload_conf()");
    until("the old primary refuses to write", async || {
        let answer = store.try_acquire(&claim("refused", LONG)).await;
        answer.is_err_and(|error| error.kind() == ErrorKind::Unavailable)
    })
    .await;
    granted(&store, &claim("after", LONG)).await;
    assert_eq!(new.sql("SELECT count(*) FROM leasehold.leases"), "1");
}
