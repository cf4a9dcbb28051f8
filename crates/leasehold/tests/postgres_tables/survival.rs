//! What is left after crashes, killed sessions and years of use.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Mode, Query, Release, Released, Renewal, Renewed, Swept};
use leasehold::backends::postgres::Postgres as Store;
use leasehold::{Fence, Locks};
use testkit::postgres::{Postgres, Stop};
use tokio::task::JoinSet;

use crate::support::{LONG, TICKET, claim, granted, in_time, look, name, place, server, until};

/// What the server has answered to one task.
#[derive(Default)]
struct Answers {
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

/// The answer, unless there was a temporary fault.
fn retryable<T>(answer: leasehold::Result<T>) -> Option<T> {
    answer.map_err(|error| assert!(error.is_retryable(), "{error:?}")).ok()
}

/// Takes and gives back one name, and takes others for good, until the server is gone.
async fn load(url: String, on: String, mut answers: Answers, run: Arc<Run>) -> (String, Answers) {
    let opening = async {
        let store = loop {
            match retryable(Store::connect(&url).await) {
                Some(store) => break store,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        // A name whose release or grant had no answer in the last crash.
        while retryable(store.revoke(&name(&on), true, None).await).is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        store
    };
    let store = in_time("the server lets it in", opening).await;
    for round in 0.. {
        let claim = claim(&on, LONG * 10);
        match retryable(store.try_acquire(&claim).await) {
            Some(Attempt::Granted(grant)) => {
                assert!(grant.fence > answers.last, "a fence fell");
                answers.last = grant.fence;
            }
            Some(other) => panic!("nobody else is there: {other:?}"),
            None => {}
        }
        let keep = crate::support::claim(&format!("{on} {} {round}", answers.kept.len()), LONG * 10);
        if let Some(Attempt::Granted(grant)) = retryable(store.try_acquire(&keep).await) {
            answers.kept.push((keep, grant.fence));
            run.kept.fetch_add(1, Ordering::Relaxed);
        }
        match retryable(store.release(&Release::new(name(&on), claim.id)).await) {
            Some(_) if !run.stop.load(Ordering::Relaxed) => {}
            _ => break,
        }
    }
    (on, answers)
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_survive_a_crash_under_load_and_no_fence_falls() {
    let mut server = Postgres::start();
    let mut answers: HashMap<String, Answers> =
        (0..8).map(|n| (format!("crash {n}"), Answers::default())).collect();
    for round in 0..3u32 {
        let run = Arc::new(Run::default());
        let mut tasks = JoinSet::new();
        for (on, answers) in answers.drain() {
            tasks.spawn(load(server.url(), on, answers, Arc::clone(&run)));
        }
        until("there is load", async || run.kept.load(Ordering::Relaxed) >= 20 + round).await;
        server.stop(if round == 1 { Stop::Kill } else { Stop::Immediate });
        run.stop.store(true, Ordering::Relaxed);
        // Tasks that still wait must get in, to see that they are to stop.
        server.start_again();
        answers = in_time("all have seen the crash", tasks.join_all()).await.into_iter().collect();
    }
    let store = Store::connect(&server.url()).await.unwrap();
    let mut kept = 0;
    for (on, answers) in answers {
        for (claim, fence) in answers.kept {
            let seen = store.inspect(&Query::Name(claim.name.clone())).await.unwrap().items.remove(0);
            assert!(seen.holders.iter().any(|holder| holder.id == claim.id), "a lease was forgotten");
            assert!(seen.last_fence >= fence, "a counter fell");
            kept += 1;
        }
        assert!(look(&store, &on).await.last_fence >= answers.last, "a counter fell");
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
async fn killing_many_sessions_breaks_neither_exclusion_nor_progress() {
    let place = place();
    let url = format!("{}&application_name={}", place.url, place.schema);
    let stop = Arc::new(AtomicBool::new(false));
    let (inside, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let last = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let locks = Locks::connect_builder(&url).await.unwrap().ttl(LONG).build();
        for _ in 0..3 {
            let (locks, stop) = (locks.clone(), Arc::clone(&stop));
            let (inside, last, done) = (Arc::clone(&inside), Arc::clone(&last), Arc::clone(&done));
            tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    // The caller gets the fault as an error; its next try goes on.
                    let Some(guard) = retryable(locks.mutex("storm").lock().await) else { continue };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                    let fence = guard.fence().get();
                    assert!(last.swap(fence, Ordering::SeqCst) < fence, "a fence fell");
                    tokio::task::yield_now().await;
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "two inside");
                    done.fetch_add(1, Ordering::Relaxed);
                    // What it could not give back now it gives back in the background.
                    retryable(guard.release().await);
                }
            });
        }
    }
    let kill = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{}'",
        place.schema
    );
    let mut killed = 0;
    while killed < 100 || done.load(Ordering::Relaxed) < 50 {
        let before = done.load(Ordering::Relaxed);
        killed += server().sql(&kill).parse::<u32>().unwrap();
        // The next storm waits for it: a slow machine needs longer for a new session than for a kill.
        until("a client goes in after a storm", async || done.load(Ordering::Relaxed) > before).await;
    }
    let so_far = done.load(Ordering::Relaxed);
    until("it goes on", async || done.load(Ordering::Relaxed) > so_far + 10).await;
    stop.store(true, Ordering::Relaxed);
    in_time("all have ended", tasks.join_all()).await;
    let rows = "SELECT (SELECT count(*) FROM leasehold.leases) + (SELECT count(*) FROM leasehold.tickets)";
    until("nothing is left", async || place.sql(rows) == "0").await;
    until("no connection is left", async || {
        let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = ";
        server().sql(&format!("{left}'{}'", place.schema)) == "0"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_drops_only_expired_rows_and_old_counters() {
    let place = place();
    let store = place.open().await;
    let live = claim("live", LONG);
    granted(&store, &live).await;
    granted(&store, &claim("recent", Duration::from_millis(1))).await;
    let before = "now() - interval '1 hour'";
    let old = old_fence();
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
    // More than one where the machine is slow.
    let mut all = Swept::default();
    until("all names are swept", async || {
        let swept = store.sweep().await.unwrap();
        (all.held, all.waiting) = (0, 0);
        all += swept;
        all.counters >= 4500
    })
    .await;
    assert_eq!((all.expired, all.counters, all.held, all.waiting), (3001, 4500, 1, 0));
    assert_eq!(place.sql("SELECT string_agg(name, ',' ORDER BY name) FROM leasehold.names"), "/live,/recent");
    assert_eq!(look(&store, "live").await.holders.len(), 1);
    assert_eq!(store.release(&Release::new(name("live"), live.id)).await.unwrap(), Released::Done);
}

/// A fence that the clock has passed long ago.
fn old_fence() -> u64 {
    Fence::at(1_600_000_000_000_000).get()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_keeps_old_names_with_holders_waiters_or_spent_ids() {
    let place = place();
    let store = place.open().await;
    granted(&store, &claim("held", LONG)).await;
    granted(&store, &Claim::new(name("shared"), Mode::Shared, LONG, "test")).await;
    // A semaphore without any permits: a client waits, and none holds it.
    let waits = Claim::new(name("waited"), Mode::Permit { limit: 0 }, LONG, "test").queued(LONG);
    assert!(matches!(store.try_acquire(&waits).await.unwrap(), Attempt::Busy(_)));
    let refused = claim("refused", LONG);
    granted(&store, &refused).await;
    store.revoke(&refused.name, true, None).await.unwrap();
    granted(&store, &claim("idle", Duration::from_millis(1))).await;
    place.sql(&format!("UPDATE leasehold.names SET fence = {}", old_fence()));
    tokio::time::sleep(Duration::from_millis(2)).await;
    // The first of them finds that the last lease has expired.
    for counters in [1, 0] {
        let swept = store.sweep().await.unwrap();
        assert_eq!((swept.counters, swept.held, swept.waiting), (counters, 2, 1));
    }
    assert_eq!(
        place.sql("SELECT string_agg(name, ',' ORDER BY name) FROM leasehold.names"),
        "/held,/refused,/shared,/waited"
    );
    assert!(
        matches!(store.try_acquire(&refused).await.unwrap(), Attempt::Gone(_)),
        "the id is refused still"
    );
    for on in ["held", "shared"] {
        assert_eq!(look(&store, on).await.holders.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_keeps_a_name_that_is_taken_meanwhile() {
    let place = place();
    let store = Store::builder(&place.url).unwrap().pool_size(9).open().await.unwrap();
    granted(&store, &claim("first", LONG)).await;
    let mut together = 0;
    until("names were taken during five sweeps", async || {
        place.sql(&format!(
            "TRUNCATE leasehold.names; INSERT INTO leasehold.names (name, fence, version)
                SELECT '/idle ' || lpad(n::text, 4, '0'), {}, 2 FROM generate_series(0, 1999) AS n",
            old_fence()
        ));
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for task in 0..8 {
            let (store, over) = (store.clone(), Arc::clone(&over));
            tasks.spawn(async move {
                let mut taken = 0;
                for n in (task * 250..task * 250 + 250).take_while(|_| !over.load(Ordering::Relaxed)) {
                    granted(&store, &claim(&format!("idle {n:04}"), LONG)).await;
                    taken += 1;
                }
                taken
            });
        }
        store.sweep().await.unwrap();
        over.store(true, Ordering::Relaxed);
        let taken: u64 = tasks.join_all().await.into_iter().sum();
        assert_eq!(place.sql("SELECT count(*) FROM leasehold.leases"), taken.to_string());
        together += u32::from(taken > 8);
        together == 5
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_renewals_and_releases_are_on_disk_before_the_answer() {
    // Makes the server put off all writes that it can put off.
    let server = Postgres::builder().setting("wal_writer_delay", "10s").start();
    let store = Store::connect(&server.url()).await.unwrap();
    let (look, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut flushed = [0; 5];
    let mut see = async |verb: usize| {
        let unwritten = "SELECT (pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn())::bigint";
        let unwritten: i64 = look.query_one(unwritten, &[]).await.unwrap().get(0);
        flushed[verb] += i32::from(unwritten == 0);
    };
    const ROUNDS: i32 = 20;
    for _ in 0..ROUNDS {
        let (first, next) = (claim("x", LONG), claim("x", LONG).queued(TICKET));
        granted(&store, &first).await;
        see(0).await;
        assert!(matches!(store.try_acquire(&next).await.unwrap(), Attempt::Busy(_)));
        let renewed = store.renew(&[Renewal::new(name("x"), first.id, LONG * 2)]).await.remove(0);
        assert!(matches!(renewed, Ok(Renewed::Held(_))));
        see(1).await;
        store.release(&Release::new(name("x"), first.id)).await.unwrap();
        see(2).await;
        granted(&store, &next).await;
        see(3).await;
        store.release(&Release::new(name("x"), next.id)).await.unwrap();
        see(4).await;
    }
    // Now and then the server writes something of its own.
    assert!(flushed.iter().all(|rounds| *rounds > ROUNDS / 2), "{flushed:?} of {ROUNDS}");
}
