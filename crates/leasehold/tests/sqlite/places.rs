//! One heartbeat per process keeps the places of those who wait in it, and only theirs.

use std::time::{Duration, Instant};

use leasehold::Locks;
use leasehold::backend::{Attempt, Backend, Release, Wake};
use leasehold::backends::sqlite::Sqlite;

use crate::support::{LONG, claim, granted, look, name, place};

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
    let before = (store.commits(), cpu(), Instant::now());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (commits, spent, took) = (store.commits() - before.0, cpu() - before.1, before.2.elapsed());
    println!("{WAITERS} idle waiters for {took:?}: {commits} commits, {spent:?} of processor time");
    assert_eq!(waiting().await, WAITERS as u64, "somebody lost its place");
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
