//! One heartbeat per process keeps the places of the waiters in it, and only theirs.
//!
//! The test moves the clock by hand. `sqlite_processes` shows that the heartbeat runs by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::backend::{Attempt, Backend, Claim, Query, Release, Wake};
use leasehold::backends::sqlite::Sqlite;
use leasehold::{LeaseId, Locks};
use testkit::paused::settle;
use testkit::until::{in_time, until_async};
use tokio::task::JoinHandle;

use crate::support::{HOUR, HandClock, LONG, Place, TICKET, claim, granted, look, name, place};

/// The time between two heartbeats.
const BEAT: Duration = TICKET.checked_div(3).unwrap().saturating_add(Duration::from_millis(1));

async fn open(place: &Place, clock: &Arc<HandClock>) -> Sqlite {
    Sqlite::builder(&place.path).clock(clock.clone()).open().await.unwrap()
}

/// Lets enough time pass for one heartbeat of these stores.
async fn beat(clock: &HandClock, stores: &[&Sqlite]) {
    clock.advance(BEAT);
    for store in stores {
        // Before any request it makes its heartbeat, which may also fail.
        let _ = store.inspect(&Query::Name(name("x"))).await;
    }
}

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

/// Stops waiting, without a release.
async fn goes(waiting: JoinHandle<Wake>) {
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
}

/// The queue, after a verb that drops what has lapsed.
async fn queue(store: &Sqlite, on: &str) -> Vec<LeaseId> {
    joins(store, &claim(on, LONG)).await;
    look(store, on).await.waiters.iter().map(|waiter| waiter.id).collect()
}

#[tokio::test]
async fn a_thousand_idle_waiters_cost_a_small_commit_now_and_then() {
    const WAITERS: usize = 1000;
    let (place, clock) = (place(), HandClock::new());
    let store = open(&place, &clock).await;
    let locks = Locks::new(store.clone()).with_namespace("");
    // Half of them in one queue, the others each alone in its own.
    let names = (0..WAITERS / 2).map(|n| format!("own-{n}")).chain(["crowd".to_owned()]);
    let held: Vec<_> = names.map(|name| claim(&name, HOUR)).collect();
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
    let all_wait = async || store.sweep().await.unwrap().waiting == WAITERS as u64;
    until_async("all wait", all_wait).await;
    settle().await;
    let db = rusqlite::Connection::open(&place.path).unwrap();
    let written = || -> (i64, i64) {
        let sql = "SELECT sum(alone_us), (SELECT count(*) FROM keepers) FROM tickets";
        db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    };
    let (mut commits, rows) = (store.commits(), written());
    assert_eq!(rows.1, 1, "one row for all");
    for _ in 0..12 {
        beat(&clock, &[&store]).await;
        commits += 1;
        assert_eq!((store.commits(), written()), (commits, rows), "a heartbeat writes one row for all");
    }
    // While no time passes it writes nothing, however often it looks.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(store.commits(), commits);
    assert!(all_wait().await, "a waiter lost its place");
    for claim in held {
        store.release(&Release::new(claim.name.clone(), claim.id)).await.unwrap();
    }
    for waiter in waiters {
        in_time("its turn", waiter).await.unwrap();
    }
}

#[tokio::test]
async fn a_waiter_that_does_not_return_loses_its_place() {
    let (place, clock) = (place(), HandClock::new());
    let (a, b) = (open(&place, &clock).await, open(&place, &clock).await);
    let held = claim("x", HOUR);
    granted(&a, &held).await;
    let [gone, stays] = [(); 2].map(|()| claim("x", HOUR).queued(TICKET));
    let going = waits(&a, &gone).await;
    let waiting = waits(&b, &stays).await;
    for _ in 0..6 {
        beat(&clock, &[&a, &b]).await;
    }
    assert_eq!(queue(&b, "x").await, [gone.id, stays.id], "both were kept");
    goes(going).await;
    a.release(&Release::new(name("x"), held.id)).await.unwrap();
    // It is the first, and may still come: no other waiter enters before it, until its place has lapsed.
    for _ in 0..2 {
        beat(&clock, &[&a, &b]).await;
        let seen = look(&b, "x").await;
        assert_eq!((seen.holders.len(), seen.queue_length), (0, 2));
    }
    for _ in 0..2 {
        beat(&clock, &[&a, &b]).await;
    }
    assert!(matches!(in_time("its turn", waiting).await.unwrap(), Wake::Granted(_)));
}

#[tokio::test]
async fn an_expired_lease_passes_on_at_once_without_a_call() {
    let place = place();
    // It never looks by itself here.
    let store = Sqlite::builder(&place.path).look_every(HOUR).open().await.unwrap();
    let ttl = Duration::from_millis(2500);
    let started = Instant::now();
    granted(&store, &claim("x", ttl)).await;
    let waits = claim("x", LONG).queued(HOUR);
    joins(&store, &waits).await;
    let wake = in_time("its turn", store.wait(&waits)).await;
    assert!(matches!(wake.unwrap(), Wake::Granted(_)));
    assert!(started.elapsed() >= ttl, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_store_with_a_cached_name_sees_that_places_are_kept() {
    let (place, clock) = (place(), HandClock::new());
    let (a, b) = (open(&place, &clock).await, open(&place, &clock).await);
    let held = claim("x", HOUR);
    granted(&b, &held).await;
    let first = claim("x", LONG).queued(TICKET);
    let waiting = waits(&a, &first).await;
    for n in 0..6 {
        beat(&clock, &[&a]).await;
        assert_eq!(queue(&b, "x").await, [first.id], "after {n}");
    }
    // And one that reads everything from the file.
    let c = open(&place, &clock).await;
    let page = c.inspect(&Query::LeaseId(first.id)).await.unwrap();
    assert_eq!(page.items.len(), 1);
    assert_eq!(queue(&c, "x").await, [first.id]);
    b.release(&Release::new(name("x"), held.id)).await.unwrap();
    assert!(matches!(in_time("its turn", waiting).await.unwrap(), Wake::Granted(_)));
}

#[tokio::test]
async fn a_waiter_that_stops_loses_its_place_while_others_wait_on() {
    let (place, clock) = (place(), HandClock::new());
    let (a, b) = (open(&place, &clock).await, open(&place, &clock).await);
    for on in ["x", "y"] {
        granted(&a, &claim(on, HOUR)).await;
    }
    let claims = ["x", "x", "y"].map(|on| claim(on, LONG).queued(TICKET));
    let [first, _second, third] =
        [waits(&a, &claims[0]).await, waits(&a, &claims[1]).await, waits(&a, &claims[2]).await];
    for _ in 0..6 {
        beat(&clock, &[&a]).await;
    }
    assert_eq!(queue(&b, "x").await, [claims[0].id, claims[1].id]);
    assert_eq!(queue(&b, "y").await, [claims[2].id]);
    // One leaves a companion in its queue, the other none.
    goes(first).await;
    goes(third).await;
    for _ in 0..4 {
        beat(&clock, &[&a]).await;
    }
    for _ in 0..3 {
        assert_eq!(queue(&b, "x").await, [claims[1].id], "a place at which nobody waits is kept");
        assert_eq!(queue(&b, "y").await, []);
        beat(&clock, &[&a]).await;
    }
}

#[tokio::test]
async fn a_place_taken_over_elsewhere_is_kept_by_the_newer_attempt() {
    let (place, clock) = (place(), HandClock::new());
    let (a, b, c) = (open(&place, &clock).await, open(&place, &clock).await, open(&place, &clock).await);
    granted(&c, &claim("x", HOUR)).await;
    let older = claim("x", LONG).queued(TICKET);
    let _older = waits(&a, &older).await;
    // Another waiter keeps the heartbeat going.
    let other = claim("x", LONG).queued(TICKET);
    let _other = waits(&a, &other).await;
    let mut newer = older.clone();
    (newer.nonce, newer.first) = (older.nonce ^ 1, true);
    let taken = waits(&b, &newer).await;
    for _ in 0..6 {
        beat(&clock, &[&a, &b]).await;
    }
    assert_eq!(queue(&c, "x").await, [older.id, other.id], "the newer attempt waits");
    goes(taken).await;
    for _ in 0..4 {
        beat(&clock, &[&a, &b]).await;
    }
    assert_eq!(queue(&c, "x").await, [other.id], "the older attempt keeps what is not its own");
}

#[tokio::test]
async fn a_waiter_delayed_past_its_ticket_learns_it_lost_its_place() {
    let (place, clock) = (place(), HandClock::new());
    let (a, b) = (open(&place, &clock).await, open(&place, &clock).await);
    granted(&a, &claim("x", HOUR)).await;
    let first = claim("x", LONG).queued(TICKET);
    let waiting = waits(&a, &first).await;
    for _ in 0..6 {
        beat(&clock, &[&a]).await;
    }
    assert_eq!(queue(&b, "x").await, [first.id]);
    clock.advance(TICKET - Duration::from_micros(1));
    assert_eq!(look(&b, "x").await.queue_length, 1);
    // No process has noticed yet when it makes its heartbeat again.
    clock.advance(Duration::from_micros(1));
    assert_eq!(look(&a, "x").await.queue_length, 0);
    assert!(matches!(in_time("an answer", waiting).await.unwrap(), Wake::Retry));
    assert_eq!(look(&b, "x").await.queue_length, 0);
}

#[tokio::test]
async fn after_a_failed_heartbeat_only_returning_waiters_are_kept() {
    let (place, clock) = (place(), HandClock::new());
    let (a, b) = (open(&place, &clock).await, open(&place, &clock).await);
    granted(&b, &claim("x", HOUR)).await;
    let claims = [claim("x", LONG).queued(TICKET), claim("x", LONG).queued(TICKET)];
    let waiting = [waits(&a, &claims[0]).await, waits(&a, &claims[1]).await];
    let db = rusqlite::Connection::open(&place.path).unwrap();
    db.execute_batch("ALTER TABLE keepers RENAME TO pulled_away").unwrap();
    beat(&clock, &[&a]).await;
    for waiting in waiting {
        assert!(matches!(in_time("they are told", waiting).await.unwrap(), Wake::Retry));
    }
    db.execute_batch("ALTER TABLE pulled_away RENAME TO keepers").unwrap();
    let _waiting = waits(&a, &claims[1]).await;
    for _ in 0..3 {
        beat(&clock, &[&a]).await;
    }
    for _ in 0..3 {
        assert_eq!(queue(&b, "x").await, [claims[1].id], "a place at which nobody waits is kept");
        beat(&clock, &[&a]).await;
    }
}

#[tokio::test]
async fn places_of_a_dead_process_are_kept_by_no_other() {
    let (place, clock) = (place(), HandClock::new());
    let open = || Sqlite::builder(&place.path).clock(clock.clone()).look_every(Duration::MAX).open();
    let (dead, store) = (open().await.unwrap(), open().await.unwrap());
    for on in ["x", "y"] {
        granted(&store, &claim(on, HOUR)).await;
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
    let (place, clock) = (place(), HandClock::new());
    let (a, b) = (open(&place, &clock).await, open(&place, &clock).await);
    granted(&a, &claim("x", HOUR)).await;
    granted(&b, &claim("y", HOUR)).await;
    let db = rusqlite::Connection::open(&place.path).unwrap();
    db.execute_batch("ALTER TABLE tickets RENAME COLUMN joined_us TO pulled_away").unwrap();
    let leaves = claim("x", LONG).queued(TICKET);
    a.try_acquire(&leaves).await.unwrap_err();
    db.execute_batch("ALTER TABLE tickets RENAME COLUMN pulled_away TO joined_us").unwrap();
    // The next one gets the number of the one that was undone.
    let _waiting = waits(&b, &claim("y", LONG).queued(TICKET)).await;
    joins(&a, &leaves).await;
    drop(a);
    for _ in 0..4 {
        beat(&clock, &[&b]).await;
    }
    assert_eq!(queue(&b, "x").await, [], "another process keeps it");
    assert_eq!(queue(&b, "y").await.len(), 1);
}
