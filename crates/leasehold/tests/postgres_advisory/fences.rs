//! Fences: they increase, follow the clock, end at the limit, and only a client that opts out goes without.

use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Mode, Release, Renewal, Renewed};
use leasehold::backends::postgres::Advisory;
use leasehold::{ErrorKind, Fence, Locks, Name};
use testkit::postgres::{Postgres, Stop};

use crate::support::{advisory_locks, connect, stranger, until, url};

#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_over_clients_restarts_and_a_clock_that_was_ahead() {
    let mut server = Postgres::start();
    let mut last = Fence::UNFENCED;
    for round in 0..3 {
        let locks = connect(&server).await;
        for mode in 0..6 {
            let guard = match mode % 2 {
                0 => locks.mutex("x").lock().await.unwrap(),
                _ => locks.rwlock("x").read().await.unwrap(),
            };
            assert!(guard.fence() > last);
            last = guard.fence();
            guard.release().await.unwrap();
        }
        if round == 0 {
            // As if a clock had been a year ahead: only the counter keeps the order from now on.
            server.sql("UPDATE leasehold.advisory_fences SET fence = fence + 8000000000000");
            last = Fence::new(last.get() + 8_000_000_000_000);
        }
        drop(locks);
        server.restart([Stop::Immediate, Stop::Kill, Stop::Fast][round]);
    }
}

#[tokio::test]
async fn a_new_fence_is_the_clock_of_the_server() {
    let server = Postgres::start();
    let clock = || {
        let now = server.sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint");
        Fence::at(now.parse().unwrap())
    };
    // Whatever format each session shows times in.
    for zone in ["UTC", "Pacific/Kiritimati", "America/St_Johns"] {
        server.sql(&format!("ALTER ROLE postgres SET TimeZone = '{zone}'"));
        let locks = connect(&server).await;
        let before = clock();
        let guard = locks.mutex(format!("x {zone}")).lock().await.unwrap();
        assert!(before <= guard.fence() && guard.fence() <= clock(), "{before} {}", guard.fence());
    }
}

#[tokio::test]
async fn above_the_highest_fence_there_is_an_error_and_no_lock() {
    let server = Postgres::start();
    let (locks, look) = (connect(&server).await, stranger(&server).await);
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    server.sql(&format!("UPDATE leasehold.advisory_fences_live SET fence = {}", Fence::MAX.get() - 1));
    let last = locks.mutex("x").lock().await.unwrap();
    assert_eq!(last.fence(), Fence::MAX);
    last.release().await.unwrap();
    assert_eq!(locks.mutex("x").try_lock().await.unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(advisory_locks(&look).await, 0);
    server.sql("DELETE FROM leasehold.advisory_fences; DELETE FROM leasehold.advisory_fences_live");
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn if_the_fence_cannot_be_written_there_is_an_error_and_no_lock() {
    let server = Postgres::start();
    let (locks, look) = (connect(&server).await, stranger(&server).await);
    server.sql("ALTER TABLE leasehold.advisory_fences ADD CONSTRAINT broken CHECK (fence < 0) NOT VALID");
    let error = locks.mutex("x").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal, "{error:?}");
    assert_eq!(advisory_locks(&look).await, 0);
    // The same for a waiter.
    look.execute("SELECT pg_advisory_lock(-1679399172, 2061500415)", &[]).await.unwrap();
    let waiter = tokio::spawn(async move { locks.mutex("MyLock").lock().await.map(drop) });
    until("it waits", async || advisory_locks(&look).await == 2).await;
    look.execute("SELECT pg_advisory_unlock_all()", &[]).await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Internal);
    until("it is free", async || advisory_locks(&look).await == 0).await;
}

#[tokio::test]
async fn without_the_right_to_a_table_unfenced_use_needs_an_opt_in() {
    let server = Postgres::start();
    server.sql("CREATE ROLE app LOGIN; REVOKE CREATE ON DATABASE postgres FROM PUBLIC");
    let url = format!("{}?schema=leasehold", server.url_of("app", "postgres").replacen(':', "+advisory:", 1));
    let locks = Locks::connect(&url).await.unwrap();
    assert!(!locks.info().fenced);
    assert_eq!(locks.mutex("x").try_lock().await.unwrap_err().kind(), ErrorKind::Unsupported);
    let guard = locks.mutex("x").allow_unfenced(true).try_lock().await.unwrap().unwrap();
    assert!(guard.fence().is_unfenced());
    // An administrator makes the tables, and grants the least that is needed.
    connect(&server).await;
    server.sql("GRANT USAGE ON SCHEMA leasehold TO app; GRANT SELECT, INSERT, UPDATE ON leasehold.advisory_fences TO app");
    assert!(!Locks::connect(&url).await.unwrap().info().fenced, "one of the two is not enough");
    server.sql("GRANT SELECT, INSERT, UPDATE ON leasehold.advisory_fences_live TO app");
    let locks = Locks::connect(&url).await.unwrap();
    assert!(locks.info().fenced);
    assert!(!locks.mutex("y").try_lock().await.unwrap().unwrap().fence().is_unfenced());
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_first_clients_create_the_table_once() {
    let server = Postgres::start();
    let url = url(&server, "schema=Odd%20%22name%22");
    let all: Vec<_> = (0..8)
        .map(|number| {
            let url = url.clone();
            tokio::spawn(async move {
                let locks = Locks::connect(&url).await.unwrap();
                locks.mutex(format!("x{number}")).lock().await.unwrap().release().await.unwrap();
            })
        })
        .collect();
    for one in all {
        one.await.unwrap();
    }
    assert_eq!(server.sql("SELECT count(*) FROM \"Odd \"\"name\"\"\".advisory_fences"), "8");
}

#[tokio::test]
async fn a_sweep_forgets_counters_that_are_long_past_and_no_others() {
    let server = Postgres::start();
    let locks = connect(&server).await;
    locks.mutex("old").lock().await.unwrap().release().await.unwrap();
    for table in ["advisory_fences", "advisory_fences_live"] {
        server.sql(&format!("UPDATE leasehold.{table} SET fence = fence - 8 * 86400::bigint * 256000"));
    }
    let held = locks.mutex("new").lock().await.unwrap();
    let swept = locks.sweep().await.unwrap();
    assert_eq!((swept.counters, swept.held, swept.waiting), (1, 1, 0));
    assert_eq!(
        server.sql("SELECT fence FROM leasehold.advisory_fences_live"),
        held.fence().get().to_string()
    );
    assert_eq!(server.sql("SELECT count(*) FROM leasehold.advisory_fences"), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_is_raised_at_most_a_day_ahead() {
    let server = Postgres::start();
    let store = Advisory::connect(&url(&server, "")).await.unwrap();
    let claim = || Claim::new(Name::new("x").unwrap(), Mode::Exclusive, Duration::from_secs(30), "me");
    let first = claim();
    let Attempt::Granted(grant) = store.try_acquire(&first).await.unwrap() else { panic!() };
    let raise = async |fence: u64| {
        let mut renewal = Renewal::new(first.name.clone(), first.id, first.ttl);
        renewal.raise_fence = Some(Fence::new(fence));
        store.renew(&[renewal]).await.remove(0)
    };
    let hours = |hours: u64| grant.fence.get() + hours * 3600 * 256_000;
    for far in [hours(25), Fence::MAX.get(), Fence::MAX.get() + 1] {
        assert_eq!(raise(far).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let high = hours(23);
    assert!(matches!(raise(high).await.unwrap(), Renewed::Held(held) if held.fence.get() == high));
    store.release(&Release::new(first.name.clone(), first.id)).await.unwrap();
    // As if a clock had been a year ahead: one above what was given out is still allowed.
    server.sql("UPDATE leasehold.advisory_fences_live SET fence = fence + 8000000000000");
    let second = claim();
    let Attempt::Granted(grant) = store.try_acquire(&second).await.unwrap() else { panic!() };
    assert_eq!(grant.fence.get(), high + 8_000_000_000_001);
    for (more, allowed) in [(2, false), (1, true)] {
        let mut renewal = Renewal::new(second.name.clone(), second.id, second.ttl);
        renewal.raise_fence = Some(Fence::new(grant.fence.get() + more));
        assert_eq!(store.renew(&[renewal]).await.remove(0).is_ok(), allowed, "{more}");
    }
    // One above what was given out, and above the highest fence there is.
    server.sql(&format!("UPDATE leasehold.advisory_fences_live SET fence = {}", Fence::MAX));
    let mut renewal = Renewal::new(second.name.clone(), second.id, second.ttl);
    renewal.raise_fence = Some(Fence::new(Fence::MAX.get() + 1));
    assert_eq!(store.renew(&[renewal]).await.remove(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
}
