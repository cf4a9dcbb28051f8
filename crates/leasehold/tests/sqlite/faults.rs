//! A store that cannot do its work says so, never that another client holds the lock, and recovers.

use std::time::{Duration, Instant};

use leasehold::backend::{Attempt, Backend, Query, Release, Released};
use leasehold::backends::sqlite::Sqlite;
use leasehold::{ErrorKind, Locks};

use testkit::until::{in_time, until_async};

use crate::support::{HandClock, LONG, claim, gathered, granted, look, name, place};

/// How long the store waits for a locked database.
const BOUND: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_locked_database_is_overloaded_in_time_and_never_contention() {
    let place = place();
    let store = Sqlite::open(&place.path).await.unwrap();
    let held = claim("held", LONG);
    granted(&store, &held).await;
    let db = rusqlite::Connection::open(&place.path).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();

    let started = Instant::now();
    let (free, release) = (claim("x", LONG), Release::new(name("held"), held.id));
    let calls = async { tokio::join!(store.try_acquire(&free), store.release(&release)) };
    let answers = in_time("answers", calls).await;
    let took = started.elapsed();
    for error in [answers.0.unwrap_err(), answers.1.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Overloaded);
        assert!(error.is_retryable() && error.message().contains("nothing was changed"), "{error}");
    }
    assert!(took >= BOUND, "{took:?}");
    // Looking needs no lock.
    assert_eq!(store.inspect(&Query::Name(name("held"))).await.unwrap().items[0].holders.len(), 1);
    let locks = Locks::new(store.clone());
    assert_eq!(locks.mutex("held").try_lock().await.unwrap_err().kind(), ErrorKind::Overloaded);

    // A shorter wait goes unnoticed. One that a slow machine made longer shows nothing.
    let attempt = loop {
        let locked = Instant::now();
        let unlock = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            db.execute_batch("ROLLBACK").unwrap();
        };
        let (attempt, ()) = tokio::join!(store.try_acquire(&free), unlock);
        if attempt.is_ok() || locked.elapsed() < BOUND {
            break attempt;
        }
        db.execute_batch("BEGIN IMMEDIATE").unwrap();
    };
    assert!(matches!(attempt.unwrap(), Attempt::Granted(_)));
    assert_eq!(store.release(&release).await.unwrap(), Released::Done);
}

#[tokio::test]
async fn a_full_store_grants_nothing_still_releases_and_recovers() {
    let place = place();
    let store = Sqlite::builder(&place.path).max_pages(40).open().await.unwrap();
    let mut held = Vec::new();
    let error = loop {
        let claim = claim(&format!("job-{}-{}", held.len(), "x".repeat(300)), LONG);
        match store.try_acquire(&claim).await {
            Ok(Attempt::Granted(_)) => held.push(claim),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                // The store does not remember what was not stored.
                let again = store.try_acquire(&claim).await;
                assert!(again.is_err(), "a claim that was not stored is granted: {again:?}");
                break error;
            }
        }
        assert!(held.len() < 10_000, "never full");
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.message().contains("disk of the database is full")
            && error.message().contains("nothing was changed"),
        "{error}"
    );
    assert!(held.len() > 10);

    // What was granted is there, what failed is not.
    let db = rusqlite::Connection::open(&place.path).unwrap();
    let leases: u32 = db.query_row("SELECT count(*) FROM leases", [], |row| row.get(0)).unwrap();
    assert_eq!(leases as usize, held.len());

    // Claims that do not fit do not hold back releases in the same transaction.
    let bigs: Vec<_> = (0..20).map(|n| claim(&format!("{n}-{}", "y".repeat(500)), LONG)).collect();
    let first = held.remove(0);
    let release = Release::new(first.name.clone(), first.id);
    let claims = futures_util::future::join_all(bigs.iter().map(|big| store.try_acquire(big)));
    let calls = async { tokio::join!(store.sweep(), claims, store.release(&release)) };
    let (swept, claims, released) = gathered(&place.path, calls).await;
    swept.unwrap();
    assert_eq!(released.unwrap(), Released::Done);
    for claim in claims {
        assert_eq!(claim.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    for claim in held {
        let release = Release::new(claim.name.clone(), claim.id);
        assert_eq!(store.release(&release).await.unwrap(), Released::Done);
    }
    // There is room again.
    granted(&store, &claim("job-0-again", LONG)).await;
}

#[tokio::test]
async fn a_layout_that_was_pulled_away_is_an_error_with_no_sql_in_it() {
    let place = place();
    let store = Sqlite::open(&place.path).await.unwrap();
    granted(&store, &claim("x", LONG)).await;
    // The tables disappear while the store is open: every statement fails.
    let db = rusqlite::Connection::open(&place.path).unwrap();
    db.execute_batch("ALTER TABLE leases RENAME TO elsewhere").unwrap();
    let error = store.try_acquire(&claim("y", LONG)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(!format!("{error:?}").contains("leases"), "no SQL in errors: {error:?}");
    db.execute_batch("ALTER TABLE elsewhere RENAME TO leases").unwrap();
    granted(&store, &claim("y", LONG)).await;
}

#[tokio::test]
async fn a_dropped_call_loses_nothing() {
    let place = place();
    let store = Sqlite::open(&place.path).await.unwrap();
    for _ in 0..50 {
        let claim = claim("x", LONG);
        {
            let call = store.try_acquire(&claim);
            let mut call = std::pin::pin!(call);
            // It is sent with the first poll, and dropped unanswered.
            std::future::poll_fn(|cx| {
                let _ = call.as_mut().poll(cx);
                std::task::Poll::Ready(())
            })
            .await;
        }
        let mut release = Release::new(claim.name.clone(), claim.id);
        release.unanswered = Some(claim.ttl);
        store.release(&release).await.unwrap();
        assert!(matches!(store.try_acquire(&claim).await.unwrap(), Attempt::Gone(_)), "a ghost holder");
    }
    granted(&store, &claim("x", LONG)).await;
}

#[tokio::test]
async fn a_waiter_that_went_away_is_no_obstacle() {
    // By this clock no time passes, and so no place lapses.
    let place = place();
    let store = Sqlite::builder(&place.path).clock(HandClock::new()).open().await.unwrap();
    let locks = Locks::new(store.clone()).with_namespace("");
    let held = locks.mutex("x").lock().await.unwrap();
    let mutex = locks.mutex("x");
    let queued = async |count: u64| {
        until_async("the queue is so long", async || look(&store, "x").await.queue_length == count).await;
    };
    tokio::select! {
        _ = mutex.lock() => panic!("it is held"),
        () = queued(1) => {}
    }
    let next = tokio::spawn({
        let mutex = locks.mutex("x");
        async move { mutex.lock().await.unwrap().fence() }
    });
    queued(1).await;
    let fence = held.fence();
    held.release().await.unwrap();
    let next = in_time("its turn", next).await.unwrap();
    assert!(next > fence);
}
