//! What is left after crashes, killed sessions and years of use.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::backend::{Attempt, Backend, Claim, Mode, Query, Release, Released};
use leasehold::backends::postgres::Postgres as Store;
use leasehold::{Fence, Locks};
use testkit::postgres::{Postgres, Stop};
use tokio::task::JoinSet;

use crate::support::{LONG, PATIENCE, claim, granted, look, name, place, server, until};

/// What one task was told about its names.
#[derive(Default)]
struct Told {
    last: Fence,
    /// Leases that it never gave back.
    kept: Vec<(Claim, Fence)>,
}

/// One run of the server.
#[derive(Default)]
struct Run {
    stop: AtomicBool,
    kept: AtomicU32,
}

/// Takes and gives back one name, and takes others for good, until the server is gone.
async fn load(url: String, on: String, mut told: Told, run: Arc<Run>) -> (String, Told) {
    let store = loop {
        match Store::connect(&url).await {
            Ok(store) => break store,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    };
    // One whose release or grant had no answer in the crash before.
    while store.revoke(&name(&on), true).await.is_err() {}
    for round in 0.. {
        let claim = claim(&on, LONG * 10);
        match store.try_acquire(&claim).await {
            Ok(Attempt::Granted(grant)) => {
                assert!(grant.fence > told.last, "a fence fell");
                told.last = grant.fence;
            }
            Ok(other) => panic!("nobody else is there: {other:?}"),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        let keep = crate::support::claim(&format!("{on} {} {round}", told.kept.len()), LONG * 10);
        if let Ok(Attempt::Granted(grant)) = store.try_acquire(&keep).await {
            told.kept.push((keep, grant.fence));
            run.kept.fetch_add(1, Ordering::Relaxed);
        }
        match store.release(&Release::new(name(&on), claim.id)).await {
            Ok(_) if !run.stop.load(Ordering::Relaxed) => {}
            _ => break,
        }
    }
    (on, told)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_survives_a_crash_under_load_and_no_fence_falls() {
    let mut server = Postgres::start();
    let mut told: HashMap<String, Told> = (0..8).map(|n| (format!("crash {n}"), Told::default())).collect();
    for round in 0..3u32 {
        let run = Arc::new(Run::default());
        let mut tasks = JoinSet::new();
        for (on, told) in told.drain() {
            tasks.spawn(load(server.url(), on, told, Arc::clone(&run)));
        }
        until("there is load", async || run.kept.load(Ordering::Relaxed) >= 20 + round).await;
        server.stop(if round == 1 { Stop::Kill } else { Stop::Immediate });
        run.stop.store(true, Ordering::Relaxed);
        // Those who have not got in yet must be let in to see that they are to stop.
        server.start_again();
        told = tasks.join_all().await.into_iter().collect();
    }
    let store = Store::connect(&server.url()).await.unwrap();
    let mut kept = 0;
    for (on, told) in told {
        for (claim, fence) in told.kept {
            let seen = store.inspect(&Query::Name(claim.name.clone())).await.unwrap().items.remove(0);
            assert!(seen.holders.iter().any(|holder| holder.id == claim.id), "a lease was forgotten");
            assert!(seen.last_fence >= fence, "a counter fell");
            kept += 1;
        }
        assert!(look(&store, &on).await.last_fence >= told.last, "a counter fell");
    }
    println!("{kept} leases were kept");
    assert!(kept >= 60, "{kept} leases");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_was_granted_before_a_crash_still_excludes() {
    let mut server = Postgres::start();
    let store = Store::connect(&server.url()).await.unwrap();
    let mut held = Vec::new();
    for n in 0..20 {
        let claim = claim(&format!("kept {n}"), LONG * 10);
        held.push((granted(&store, &claim).await, claim));
    }
    server.restart(Stop::Immediate);
    let after = Store::connect(&server.url()).await.unwrap();
    for (grant, claim) in held {
        let other = Claim::new(claim.name.clone(), Mode::Exclusive, LONG, "other");
        assert!(matches!(after.try_acquire(&other).await.unwrap(), Attempt::Busy(_)));
        let Attempt::Granted(again) = after.try_acquire(&claim).await.unwrap() else { panic!("forgotten") };
        assert_eq!(again.fence, grant.fence);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn storms_of_killed_sessions_break_neither_exclusion_nor_progress() {
    let place = place();
    let url = format!("{}&application_name={}", place.url, place.schema);
    let stop = Arc::new(AtomicBool::new(false));
    let (inside, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let locks = Locks::connect_builder(&url).await.unwrap().ttl(Duration::from_secs(20)).build();
        for _ in 0..3 {
            let (locks, stop) = (locks.clone(), Arc::clone(&stop));
            let (inside, done) = (Arc::clone(&inside), Arc::clone(&done));
            tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    // A fault is told; the next try goes on.
                    let Ok(guard) = locks.mutex("storm").lock().await else { continue };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::Relaxed);
                    let _ = guard.release().await;
                }
            });
        }
    }
    let kill = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{}'",
        place.schema
    );
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        server().sql(&kill);
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    let so_far = done.load(Ordering::Relaxed);
    until("it goes on", async || done.load(Ordering::Relaxed) > so_far + 10).await;
    stop.store(true, Ordering::Relaxed);
    tokio::time::timeout(PATIENCE, tasks.join_all()).await.unwrap();
    println!("{so_far} in the storm");
    let rows = "SELECT (SELECT count(*) FROM leasehold.leases) + (SELECT count(*) FROM leasehold.tickets)";
    until("nothing is left", async || place.sql(rows) == "0").await;
    until("no connection is left", async || {
        let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = ";
        server().sql(&format!("{left}'{}'", place.schema)) == "0"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_drops_any_number_of_expired_rows_and_old_counters_and_nothing_else() {
    let place = place();
    let store = place.open().await;
    let live = claim("live", LONG);
    granted(&store, &live).await;
    granted(&store, &claim("recent", Duration::from_millis(1))).await;
    let before = "now() - interval '1 hour'";
    let old = Fence::at(1_600_000_000_000_000).get();
    place.sql(&format!(
        "INSERT INTO leasehold.names (name, fence, version, holders, next_expiry, id, owner, ttl, granted_at, renewals,
                nonce, repeated, revoked)
            SELECT '/old ' || n, {old}, 1, 1, {before}, lpad(n::text, 22, '0'), 'o', 1, {before}, 0, 0, false, false
            FROM generate_series(1, 2000) AS n;
         INSERT INTO leasehold.names (name, fence, version, mode, holders, next_expiry)
            SELECT '/shared ' || n, {old}, 1, 'shared', 1, {before} FROM generate_series(1, 1000) AS n;
         INSERT INTO leasehold.shares
            SELECT '/shared ' || n, lpad(n::text, 22, '0'), 'shared', NULL, {old}, {old}, 'o', NULL, 1, {before}, {before},
                0, 0, false, false
            FROM generate_series(1, 1000) AS n;
         INSERT INTO leasehold.names (name, fence) SELECT '/idle ' || n, {old} FROM generate_series(1, 1500) AS n"
    ));
    tokio::time::sleep(Duration::from_millis(2)).await;
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.expired, swept.counters, swept.held, swept.waiting), (3001, 4500, 1, 0));
    assert_eq!(place.sql("SELECT string_agg(name, ',' ORDER BY name) FROM leasehold.names"), "/live,/recent");
    assert_eq!(look(&store, "live").await.holders.len(), 1);
    assert_eq!(store.release(&Release::new(name("live"), live.id)).await.unwrap(), Released::Done);
}
