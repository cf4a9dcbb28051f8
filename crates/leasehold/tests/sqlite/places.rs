//! One heartbeat per process keeps the places of those who wait in it, and only theirs.

use std::time::{Duration, Instant};

use leasehold::Locks;
use leasehold::backend::{Attempt, Backend, Claim, Query, Release, Wake};
use leasehold::backends::sqlite::Sqlite;
use tokio::task::JoinHandle;

use crate::support::{HandClock, LONG, TICKET, claim, granted, look, name, place};

/// So long that it plays no part.
const HELD: Duration = Duration::from_secs(3600);

/// Short enough to see many of them lapse, long enough for a busy machine to beat in time.
const SHORT: Duration = Duration::from_secs(3);

async fn joins(store: &Sqlite, claim: &Claim) {
    let attempt = store.try_acquire(claim).await.unwrap();
    assert!(matches!(attempt, Attempt::Busy(_)), "{attempt:?}");
}

/// Joins the queue, and waits.
async fn waits(store: &Sqlite, claim: &Claim) -> JoinHandle<Wake> {
    joins(store, claim).await;
    let (store, claim) = (store.clone(), claim.clone());
    let waiting = tokio::spawn(async move { store.wait(&claim).await.unwrap() });
    tokio::task::yield_now().await;
    waiting
}

/// Who is in the queue, after a verb that drops what has lapsed.
async fn queue(store: &Sqlite, on: &str) -> Vec<leasehold::LeaseId> {
    joins(store, &claim(on, LONG)).await;
    look(store, on).await.waiters.iter().map(|waiter| waiter.id).collect()
}

#[tokio::test]
async fn a_thousand_idle_waiters_cost_one_small_commit_every_few_seconds() {
    const WAITERS: usize = 1000;
    let place = place();
    let store = Sqlite::open(&place.path).await.unwrap();
    let locks = Locks::new(store.clone()).with_namespace("");
    // Half of them in one queue, the others each alone in its own.
    // The holders need no renewal, so that only waiting costs anything.
    let names = (0..WAITERS / 2).map(|n| format!("own-{n}")).chain(["crowd".to_owned()]);
    let held: Vec<_> = names.map(|name| claim(&name, Duration::from_secs(3600))).collect();
    for claim in &held {
        granted(&store, claim).await;
    }
    let waiters: Vec<_> = (0..WAITERS)
        .map(|n| {
            let name = if n < WAITERS / 2 { format!("own-{n}") } else { "crowd".into() };
            let mutex = locks.mutex(name);
            tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    let waiting = || async { store.sweep().await.unwrap().waiting };
    while waiting().await < WAITERS as u64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let db = rusqlite::Connection::open(&place.path).unwrap();
    let written = || -> (i64, i64) {
        let sql = "SELECT sum(alone_us), (SELECT count(*) FROM keepers) FROM tickets";
        db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    };
    let (before, rows) = ((store.commits(), cpu(), Instant::now()), written());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (commits, spent, took) = (store.commits() - before.0, cpu() - before.1, before.2.elapsed());
    println!("{WAITERS} idle waiters for {took:?}: {commits} commits, {spent:?} of processor time");
    assert_eq!(waiting().await, WAITERS as u64, "somebody lost its place");
    assert_eq!((written(), rows.1), (rows, 1), "a heartbeat writes one row for all");
    // A heartbeat every third of a ticket's 10 s.
    assert!((2..=5).contains(&commits), "{commits} commits");
    for claim in held {
        store.release(&Release::new(claim.name.clone(), claim.id)).await.unwrap();
    }
    for waiter in waiters {
        tokio::time::timeout(Duration::from_secs(30), waiter).await.expect("its turn").unwrap();
    }
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[tokio::test]
async fn who_does_not_come_back_to_its_wait_loses_its_place_to_those_who_wait() {
    let place = place();
    let (a, b) = (Sqlite::open(&place.path).await.unwrap(), Sqlite::open(&place.path).await.unwrap());
    let held = claim("x", LONG);
    granted(&a, &held).await;
    let ticket = Duration::from_millis(600);
    let (gone, waits) = (claim("x", LONG).queued(ticket), claim("x", LONG).queued(ticket));
    assert!(matches!(a.try_acquire(&gone).await.unwrap(), Attempt::Busy(_)));
    assert!(matches!(b.try_acquire(&waits).await.unwrap(), Attempt::Busy(_)));
    // The first waits for a while, and its future is then dropped without a word.
    let waiting = tokio::spawn(async move { b.wait(&waits).await.unwrap() });
    assert!(tokio::time::timeout(ticket * 2, a.wait(&gone)).await.is_err());
    assert_eq!(look(&a, "x").await.queue_length, 2, "both were kept");
    a.release(&Release::new(name("x"), held.id)).await.unwrap();
    // The attempt of the one that is gone is made for it, as it is still in the queue of its process; or its
    // place lapses. In neither case does the other lose more than a ticket's time.
    let mut release = Release::new(name("x"), gone.id);
    release.unanswered = Some(LONG);
    a.release(&release).await.unwrap();
    let wake = tokio::time::timeout(ticket + Duration::from_secs(1), waiting).await.expect("in time");
    assert!(matches!(wake.unwrap(), Wake::Granted(_)));
}

#[tokio::test]
async fn a_lease_that_runs_out_passes_on_at_once_although_nobody_looks() {
    let place = place();
    // Looking by itself is out of the question.
    let store = Sqlite::builder(&place.path).look_every(Duration::from_secs(3600)).open().await.unwrap();
    let ttl = Duration::from_millis(400);
    let started = Instant::now();
    granted(&store, &claim("x", ttl)).await;
    let waits = claim("x", LONG).queued(LONG);
    assert!(matches!(store.try_acquire(&waits).await.unwrap(), Attempt::Busy(_)));
    let wake = tokio::time::timeout(ttl + Duration::from_secs(5), store.wait(&waits)).await.expect("in time");
    assert!(matches!(wake.unwrap(), Wake::Granted(_)));
    let took = started.elapsed();
    println!("passed on {:?} after the expiry", took.saturating_sub(ttl));
    assert!(took >= ttl, "{took:?}");
}

#[tokio::test]
async fn another_store_that_has_the_name_at_hand_sees_that_its_places_are_kept() {
    let place = place();
    let (a, b) = (Sqlite::open(&place.path).await.unwrap(), Sqlite::open(&place.path).await.unwrap());
    let held = claim("x", HELD);
    granted(&b, &held).await;
    let first = claim("x", LONG).queued(SHORT);
    let waiting = waits(&a, &first).await;
    let began = Instant::now();
    while began.elapsed() < SHORT * 2 {
        assert_eq!(queue(&b, "x").await, [first.id], "after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // And one that reads everything from the file.
    let c = Sqlite::open(&place.path).await.unwrap();
    let page = c.inspect(&Query::LeaseId(first.id)).await.unwrap();
    assert_eq!(page.items.len(), 1);
    assert_eq!(queue(&c, "x").await, [first.id]);
    b.release(&Release::new(name("x"), held.id)).await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Wake::Granted(_)));
}

#[tokio::test]
async fn who_stops_waiting_loses_its_place_although_others_of_its_process_wait_on() {
    let place = place();
    let (a, b) = (Sqlite::open(&place.path).await.unwrap(), Sqlite::open(&place.path).await.unwrap());
    for on in ["x", "y"] {
        granted(&a, &claim(on, HELD)).await;
    }
    let claims = ["x", "x", "y"].map(|on| claim(on, LONG).queued(SHORT));
    let mut waiting = Vec::new();
    for claim in &claims {
        waiting.push(waits(&a, claim).await);
    }
    // Two heartbeats at least.
    tokio::time::sleep(SHORT).await;
    assert_eq!(queue(&b, "x").await, [claims[0].id, claims[1].id]);
    assert_eq!(queue(&b, "y").await, [claims[2].id]);
    // One leaves a companion in its queue, the other none.
    waiting[0].abort();
    waiting[2].abort();
    let began = Instant::now();
    while queue(&b, "x").await.len() + queue(&b, "y").await.len() > 1 {
        assert!(began.elapsed() < SHORT + Duration::from_secs(2), "a place at which nobody waits is kept");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(queue(&b, "x").await, [claims[1].id]);
    tokio::time::sleep(SHORT).await;
    assert_eq!(queue(&b, "x").await, [claims[1].id]);
}

#[tokio::test]
async fn a_place_that_a_newer_attempt_took_over_elsewhere_is_that_ones_to_keep() {
    let place = place();
    let open = || Sqlite::open(&place.path);
    let (a, b, c) = (open().await.unwrap(), open().await.unwrap(), open().await.unwrap());
    granted(&c, &claim("x", HELD)).await;
    let older = claim("x", LONG).queued(SHORT);
    let _older = waits(&a, &older).await;
    // Somebody else keeps the heartbeat going.
    let other = claim("x", LONG).queued(SHORT);
    let _other = waits(&a, &other).await;
    let mut newer = older.clone();
    (newer.nonce, newer.first) = (older.nonce ^ 1, true);
    let taken = waits(&b, &newer).await;
    tokio::time::sleep(SHORT * 2).await;
    assert_eq!(queue(&c, "x").await, [older.id, other.id], "the newer attempt waits");
    taken.abort();
    let began = Instant::now();
    while queue(&c, "x").await != [other.id] {
        assert!(
            began.elapsed() < SHORT + Duration::from_secs(2),
            "the older attempt keeps what is not its own"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn who_was_held_up_for_longer_than_its_ticket_has_lost_its_place_and_is_told_so() {
    let (place, clock) = (place(), HandClock::new());
    let open = || Sqlite::builder(&place.path).clock(clock.clone()).open();
    let (a, b) = (open().await.unwrap(), open().await.unwrap());
    granted(&a, &claim("x", HELD)).await;
    let first = claim("x", LONG).queued(TICKET);
    let waiting = waits(&a, &first).await;
    // Heartbeats, one after the other.
    for _ in 0..6 {
        clock.advance(TICKET / 3 + Duration::from_millis(1));
        look(&a, "x").await;
    }
    assert_eq!(queue(&b, "x").await, [first.id]);
    clock.advance(TICKET - Duration::from_micros(1));
    assert_eq!(look(&b, "x").await.queue_length, 1);
    // Nobody has noticed yet when it beats again.
    clock.advance(Duration::from_micros(1));
    assert_eq!(look(&a, "x").await.queue_length, 0);
    assert!(matches!(waiting.await.unwrap(), Wake::Retry));
    assert_eq!(look(&b, "x").await.queue_length, 0);
}

#[tokio::test]
async fn after_a_failed_heartbeat_those_who_come_back_are_kept_and_the_others_are_not() {
    const TICKET: Duration = Duration::from_secs(9);
    let place = place();
    let (a, b) = (Sqlite::open(&place.path).await.unwrap(), Sqlite::open(&place.path).await.unwrap());
    granted(&b, &claim("x", HELD)).await;
    let claims = [claim("x", LONG).queued(TICKET), claim("x", LONG).queued(TICKET)];
    let waiting = [waits(&a, &claims[0]).await, waits(&a, &claims[1]).await];
    let db = rusqlite::Connection::open(&place.path).unwrap();
    db.execute_batch("ALTER TABLE keepers RENAME TO pulled_away").unwrap();
    for waiting in waiting {
        let wake = tokio::time::timeout(TICKET, waiting).await.expect("a heartbeat");
        assert!(matches!(wake.unwrap(), Wake::Retry));
    }
    db.execute_batch("ALTER TABLE pulled_away RENAME TO keepers").unwrap();
    let began = Instant::now();
    let _waiting = waits(&a, &claims[1]).await;
    while queue(&b, "x").await != [claims[1].id] {
        assert!(began.elapsed() < TICKET + Duration::from_secs(1), "a place at which nobody waits is kept");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep((TICKET + TICKET / 3).saturating_sub(began.elapsed())).await;
    assert_eq!(queue(&b, "x").await, [claims[1].id]);
}

#[tokio::test]
async fn what_a_dead_process_kept_is_kept_by_nobody_else() {
    let (place, clock) = (place(), HandClock::new());
    let open = || Sqlite::builder(&place.path).clock(clock.clone()).look_every(Duration::MAX).open();
    let (dead, store) = (open().await.unwrap(), open().await.unwrap());
    for on in ["x", "y"] {
        granted(&store, &claim(on, HELD)).await;
    }
    joins(&dead, &claim("x", LONG).queued(TICKET)).await;
    drop(dead);
    assert_eq!(look(&store, "x").await.queue_length, 1);
    clock.advance(TICKET);
    let _waiting = waits(&store, &claim("y", LONG).queued(TICKET)).await;
    clock.advance(TICKET / 2);
    assert_eq!(look(&store, "y").await.queue_length, 1, "it beats");
    assert_eq!(look(&store, "x").await.queue_length, 0);
    assert_eq!(look(&open().await.unwrap(), "x").await.queue_length, 0);
}

#[tokio::test]
async fn a_keeper_that_was_undone_keeps_nothing() {
    let place = place();
    let (a, b) = (Sqlite::open(&place.path).await.unwrap(), Sqlite::open(&place.path).await.unwrap());
    granted(&a, &claim("x", HELD)).await;
    granted(&b, &claim("y", HELD)).await;
    let db = rusqlite::Connection::open(&place.path).unwrap();
    db.execute_batch("ALTER TABLE tickets RENAME COLUMN joined_us TO pulled_away").unwrap();
    let leaves = claim("x", LONG).queued(SHORT);
    a.try_acquire(&leaves).await.unwrap_err();
    db.execute_batch("ALTER TABLE tickets RENAME COLUMN pulled_away TO joined_us").unwrap();
    // The next one gets the number of the one that was undone.
    let _waiting = waits(&b, &claim("y", LONG).queued(SHORT)).await;
    joins(&a, &leaves).await;
    drop(a);
    let began = Instant::now();
    while !queue(&b, "x").await.is_empty() {
        assert!(began.elapsed() < SHORT + Duration::from_secs(2), "another process keeps it");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(queue(&b, "y").await.len(), 1);
}
