//! Calls that had to wait for the row of their name, and found it changed since they began.

use std::time::{Duration, Instant};

use leasehold::backend::{Attempt, Backend, Claim, Gone, Mode, Released, Renewal, Renewed};
use leasehold::backends::postgres::Postgres as Store;
use leasehold::{ErrorKind, Fence};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::support::{
    LONG, Place, TICKET, claim, granted, has_seen_a_deadlock, look, name, place, server, told, until,
};

/// A store whose sessions can be distinguished from others.
async fn open(place: &Place) -> Store {
    Store::connect(&format!("{}&application_name={}", place.url, place.schema)).await.unwrap()
}

/// A session that has run this in a transaction that has not ended.
async fn keeper(place: &Place, sql: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(&server().url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let begin = format!("BEGIN; {}", sql.replace("leasehold.", &format!("{}.", place.schema)));
    client.batch_execute(&begin).await.unwrap();
    client
}

/// Waits until this many calls wait for a row.
async fn queued(place: &Place, calls: u32) {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND wait_event_type = 'Lock'",
        place.schema
    );
    until("they wait for the row", async || server().sql(&sql) == calls.to_string()).await;
}

const LOCK: &str = "SELECT 1 FROM leasehold.names FOR UPDATE";

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_name_is_dropped_while_it_waits_is_granted() {
    let place = place();
    let store = open(&place).await;
    let known = claim("x", LONG);
    let before = granted(&store, &known).await.fence;
    assert_eq!(store.release(&told(&known, before)).await.unwrap(), Released::Done);
    // As a sweep does.
    let sweep = keeper(&place, "DELETE FROM leasehold.names").await;
    let attempts: Vec<_> = [claim("x", LONG), claim("x", LONG)]
        .into_iter()
        .map(|next| {
            let store = store.clone();
            tokio::spawn(async move { store.try_acquire(&next).await.unwrap() })
        })
        .collect();
    queued(&place, 2).await;
    sweep.batch_execute("COMMIT").await.unwrap();
    let mut fences = Vec::new();
    for attempt in attempts {
        if let Attempt::Granted(grant) = attempt.await.unwrap() {
            fences.push(grant.fence);
        }
    }
    assert!(fences.len() == 1 && fences[0] > before, "{fences:?} after {before}");
    assert_eq!(look(&store, "x").await.holders.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_admits_a_waiter_that_joined_while_it_was_delayed() {
    let place = place();
    let store = open(&place).await;
    let (held, next) = (claim("x", LONG), claim("x", LONG).queued(TICKET));
    let fence = granted(&store, &held).await.fence;
    let keeper = keeper(&place, LOCK).await;
    let joins = {
        let (store, next) = (store.clone(), next.clone());
        tokio::spawn(async move { store.try_acquire(&next).await.unwrap() })
    };
    queued(&place, 1).await;
    let release = {
        let (store, release) = (store.clone(), told(&held, fence));
        tokio::spawn(async move { store.release(&release).await.unwrap() })
    };
    queued(&place, 2).await;
    keeper.batch_execute("COMMIT").await.unwrap();
    let joins = joins.await.unwrap();
    assert_eq!(release.await.unwrap(), Released::Done);
    match joins {
        // It came first, so it must have been woken.
        Attempt::Busy(_) => assert_eq!(place.sql("SELECT woken FROM leasehold.tickets"), "t"),
        Attempt::Granted(grant) => assert!(grant.fence > fence),
        other => panic!("{other:?}"),
    }
    assert!(granted(&store, &next).await.fence > fence);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_delayed_past_its_leases_end_says_expired() {
    let place = place();
    let store = open(&place).await;
    let live = "SELECT count(*) FROM leasehold.leases WHERE expires > clock_timestamp()";
    // Longer and longer until the machine is quick enough to queue it before the end.
    let mut ttl = Duration::from_millis(200);
    loop {
        assert!(ttl < Duration::from_secs(3), "it never queued in time");
        store.sweep().await.unwrap(); // has told of what a round before found
        let held = claim("x", ttl);
        let fence = granted(&store, &held).await.fence;
        let version = look(&store, "x").await.version;
        let keeper = keeper(&place, LOCK).await;
        let release = {
            let (store, release) = (store.clone(), told(&held, fence));
            tokio::spawn(async move { store.release(&release).await.unwrap() })
        };
        queued(&place, 1).await;
        let in_time = place.sql(live) == "1";
        until("the lease has ended", async || place.sql(live) == "0").await;
        keeper.batch_execute("COMMIT").await.unwrap();
        let released = release.await.unwrap();
        if in_time {
            assert_eq!(released, Released::Gone(Gone::Expired));
            let seen = look(&store, "x").await;
            assert_eq!((seen.version, seen.last_fence), (version + 1, fence));
            assert_eq!(store.sweep().await.unwrap().expired, 1, "it is counted once");
            return;
        }
        store.revoke(&name("x"), true, None).await.unwrap();
        ttl *= 2;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_delayed_by_a_release_gets_a_fresh_lease_and_fence() {
    let place = place();
    let store = open(&place).await;
    let mut first = claim("x", LONG);
    first.metadata = Some("first".into());
    let fence = granted(&store, &first).await.fence;
    // Hours ahead of the clock, so that only the row determines the next fence.
    let far = Fence::new(fence.get() + 20 * 3600 * 256_000);
    let mut raise = Renewal::new(name("x"), first.id, LONG);
    raise.raise_fence = Some(far);
    assert!(matches!(store.renew(&[raise]).await.remove(0), Ok(Renewed::Held(_))));
    store.revoke(&name("x"), false, None).await.unwrap();
    assert_eq!(store.release(&told(&first, far)).await.unwrap(), Released::Done);
    // What another client's acquire and release do: when the claim began, the row had the older fence.
    let keeper = keeper(&place, "UPDATE leasehold.names SET fence = fence + 5, version = version + 2").await;
    let attempt = {
        let (store, next) = (store.clone(), claim("x", LONG));
        tokio::spawn(async move { granted(&store, &next).await })
    };
    queued(&place, 1).await;
    keeper.batch_execute("COMMIT").await.unwrap();
    let grant = attempt.await.unwrap();
    assert_eq!(grant.fence, Fence::new(far.get() + 6));
    let seen = look(&store, "x").await;
    let holder = &seen.holders[0];
    assert_eq!((seen.last_fence, holder.grant.fence, holder.grant.renewals), (grant.fence, grant.fence, 0));
    assert!(holder.metadata.is_none() && !holder.revoked, "{holder:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_that_ends_uncounted_leases_reports_none_left() {
    let place = place();
    let store = open(&place).await;
    let short = Duration::from_millis(1);
    let mut repeated = claim("a", short);
    repeated.repeat = true;
    granted(&store, &repeated).await;
    granted(&store, &claim("b", short)).await;
    tokio::time::sleep(short).await;
    // No client holds b when it is counted; it is due because an id is to be forgotten.
    place.sql("UPDATE leasehold.names SET holders = 0, next_forget = now() WHERE name = '/b'");
    // Blocks the sweep at a, whose id it has to refuse.
    let refuse =
        format!("INSERT INTO leasehold.spent VALUES ('/a', '{}', now(), 'expired')", repeated.id.expose());
    let keeper = keeper(&place, &refuse).await;
    let sweep = {
        let store = store.clone();
        tokio::spawn(async move { store.sweep().await.unwrap() })
    };
    queued(&place, 1).await;
    place.sql("UPDATE leasehold.names SET holders = 1 WHERE name = '/b'");
    keeper.batch_execute("ROLLBACK").await.unwrap();
    let swept = sweep.await.unwrap();
    assert_eq!((swept.expired, swept.held, swept.waiting), (2, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_verbs_never_deadlock_and_leave_nothing_behind() {
    const NAMES: usize = 6;
    let place = place();
    let store = Store::builder(&place.url).unwrap().pool_size(12).open().await.unwrap();
    let mut tasks = JoinSet::new();
    for task in 0..12usize {
        let store = store.clone();
        tasks.spawn(async move {
            let mut known: Vec<Claim> = Vec::new();
            let started = Instant::now();
            for round in task.. {
                if started.elapsed() > Duration::from_secs(3) {
                    break;
                }
                // Short enough that another client's call finds it expired.
                let ttl = Duration::from_millis(1 + (round as u64 * 7) % 40);
                let on = name(&format!("n{}", round * 5 % NAMES));
                let mode = if round % 4 == 0 { Mode::Shared } else { Mode::Exclusive };
                let mut claim = Claim::new(on.clone(), mode, ttl, "test");
                claim.repeat = round % 5 == 0;
                if round % 3 == 0 {
                    claim = claim.queued(ttl);
                }
                let attempt = store.try_acquire(&claim).await.unwrap();
                if let (Attempt::Granted(grant), 0) = (&attempt, round % 2) {
                    store.release(&told(&claim, grant.fence)).await.unwrap();
                }
                known.push(claim);
                known.drain(..known.len().saturating_sub(NAMES));
                match round % 16 {
                    1 | 9 => drop(store.sweep().await.unwrap()),
                    4 => drop(store.revoke(&on, round % 32 == 4, None).await.unwrap()),
                    3 | 6 | 11 => {
                        known.reverse();
                        let renewals: Vec<_> = known
                            .iter()
                            .map(|claim| {
                                let mut renewal = Renewal::new(claim.name.clone(), claim.id, ttl);
                                renewal.mode =
                                    (claim.mode == Mode::Exclusive && round % 3 == 0).then_some(Mode::Shared);
                                renewal
                            })
                            .collect();
                        // On a slow machine a row may be locked for longer than such a lease has time.
                        for error in store.renew(&renewals).await.into_iter().filter_map(Result::err) {
                            assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
                        }
                    }
                    _ => {}
                }
            }
        });
    }
    tasks.join_all().await;
    assert!(!has_seen_a_deadlock(), "{}", server().log());
    until("all have ended", async || {
        let swept = store.sweep().await.unwrap();
        (swept.held, swept.waiting) == (0, 0)
    })
    .await;
    let left = "SELECT (SELECT count(*) FROM leasehold.leases) + (SELECT count(*) FROM leasehold.shares)
        + (SELECT count(*) FROM leasehold.tickets)";
    assert_eq!(place.sql(left), "0");
}
