//! Wake-ups by LISTEN and NOTIFY: they are sent only to waiters, and what happens when they do not come.

use std::time::Duration;

use leasehold::Locks;
use leasehold::backend::{Attempt, Backend, Claim, Mode, Query, Release};
use rustix::process::Signal;
use testkit::postgres::{PgBouncer, PoolMode, Postgres};
use testkit::until::PATIENCE;

use crate::support::{LONG, Place, TICKET, claim, granted, in_time, name, place, server, until};

/// A holder and a waiter, in clients of their own; the waiter's sessions bear the name of the schema.
struct Pair {
    place: Place,
    holder: Locks,
    waiter: Locks,
}

impl Pair {
    async fn new() -> Self {
        let place = place();
        let holder = Locks::connect(&place.url).await.unwrap();
        let url = format!("{}&application_name={}", place.url, place.schema);
        let waiter = Locks::connect(&url).await.unwrap();
        Pair { place, holder, waiter }
    }

    /// The process that listens for the waiter, as soon as it does.
    async fn listener(&self) -> i32 {
        let ask = format!(
            "SELECT pid FROM pg_stat_activity WHERE application_name = '{}' AND query LIKE 'LISTEN%' AND state = 'idle'",
            self.place.schema
        );
        let mut listener = None;
        until("one listens", async || {
            listener = server().sql(&ask).parse().ok();
            listener.is_some()
        })
        .await;
        listener.unwrap()
    }

    /// Hands the lock to a waiter that never looks by itself, only when it is woken; runs `before` before the release.
    async fn hand_over(&self, before: impl AsyncFnOnce()) {
        let guard = self.holder.mutex("pushed").lock().await.unwrap();
        let (name, store) = (guard.name().clone(), self.waiter.backend());
        let claim = Claim::new(name.clone(), Mode::Exclusive, LONG, "waiter").queued(2 * PATIENCE);
        let waits = async {
            while !matches!(store.try_acquire(&claim).await.unwrap(), Attempt::Granted(_)) {
                // While the client does not listen there is nothing to wait for.
                if store.wait(&claim).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        let release = async {
            until("it waits", async || {
                let query = Query::Name(name.clone());
                self.holder.backend().inspect(&query).await.unwrap().items[0].queue_length == 1
            })
            .await;
            before().await;
            guard.release().await.unwrap();
        };
        in_time("the next one is woken", async { tokio::join!(waits, release) }).await;
        store.release(&Release::new(name, claim.id)).await.unwrap();
    }

    /// Several in a row. In all but the first the listener was there before.
    async fn hand_over_again(&self) {
        for _ in 0..3 {
            self.hand_over(async || _ = self.listener().await).await;
        }
    }
}

/// Waits until the client has closed a listener.
async fn is_gone(pid: i32) {
    let there = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    until("the listener is gone", async || server().sql(&there) == "0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_the_next() {
    Pair::new().await.hand_over_again().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_listener_loses_no_hand_over_and_is_replaced() {
    let pair = Pair::new().await;
    for _ in 0..3 {
        let mut killed = 0;
        pair.hand_over(async || {
            killed = pair.listener().await;
            server().sql(&format!("SELECT pg_terminate_backend({killed})"));
        })
        .await;
        is_gone(killed).await;
    }
    pair.hand_over_again().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_listener_loses_no_hand_over_and_is_replaced() {
    let pair = Pair::new().await;
    for _ in 0..3 {
        let mut silent = 0;
        pair.hand_over(async || {
            // The connection stays open, and nothing comes any more.
            silent = pair.listener().await;
            server().signal_session(silent, Signal::STOP);
        })
        .await;
        server().signal_session(silent, Signal::CONT);
        is_gone(silent).await;
    }
    pair.hand_over_again().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_waits_costs_no_listener() {
    let pair = Pair::new().await;
    for _ in 0..10 {
        pair.waiter.mutex("free").lock().await.unwrap().release().await.unwrap();
    }
    let ask = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND query LIKE 'LISTEN%'",
        pair.place.schema
    );
    assert_eq!(server().sql(&ask), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_waiters_that_may_enter_are_woken() {
    let place = place();
    let store = place.open().await;
    let held = claim("queue", LONG);
    granted(&store, &held).await;
    let crowd: Vec<_> = (0..50).map(|_| claim("queue", LONG).queued(TICKET)).collect();
    for claim in &crowd {
        assert!(matches!(store.try_acquire(claim).await.unwrap(), Attempt::Busy(_)));
    }
    store.release(&Release::new(name("queue"), held.id)).await.unwrap();
    let woken = "SELECT string_agg(arrival::text, ',') FROM leasehold.tickets WHERE woken";
    assert_eq!(place.sql(woken), "1");
    // The first wake-up may come from the listener's start, so look at the second.
    in_time("it is called", store.wait(&crowd[0])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_waiting_works_by_polling() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server, PoolMode::Transaction, 3);
    let (holder, waiter) =
        (Locks::connect(&pooler.url()).await.unwrap(), Locks::connect(&pooler.url()).await.unwrap());
    let guard = holder.mutex("x").lock().await.unwrap();
    let waits = tokio::spawn(async move { waiter.mutex("x").lock().await.unwrap() });
    until("it waits", async || server.sql("SELECT count(*) FROM leasehold.tickets") == "1").await;
    guard.release().await.unwrap();
    in_time("the next one has it", waits).await.unwrap().release().await.unwrap();
    let listeners = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    assert_eq!(server.sql(listeners), "0");
}
