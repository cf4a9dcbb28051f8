//! Many at once: on one name, at the moment of expiry, in batches, and with a stuck row.
//!
//! One file because the tests share the crowds of callers and the locked rows that they race against.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all, select_all};
use leasehold::backend::{Attempt, Backend, Claim, Gone, Mode, Query, Release, Released, Renewal, Renewed};
use leasehold::backends::postgres::Postgres as Store;
use leasehold::{ErrorKind, Fence, GuardState, LeaseId, Locks};
use testkit::postgres::Postgres;
use testkit::proxy::{Direction, Proxy};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::{LONG, claim, granted, has_seen_a_deadlock, in_time, look, name, place, server, until};

#[tokio::test(flavor = "multi_thread")]
async fn of_64_callers_that_race_for_a_name_exactly_one_wins() {
    let place = place();
    let store = Store::builder(&place.url).unwrap().pool_size(64).open().await.unwrap();
    for round in 0..12 {
        let on = format!("new {}", round / 4);
        let barrier = Arc::new(Barrier::new(64));
        let mut tasks = JoinSet::new();
        for _ in 0..64 {
            let (store, barrier, claim) = (store.clone(), Arc::clone(&barrier), claim(&on, LONG));
            tasks.spawn(async move {
                barrier.wait().await;
                matches!(store.try_acquire(&claim).await.unwrap(), Attempt::Granted(_))
            });
        }
        let winners = tasks.join_all().await.into_iter().filter(|won| *won).count();
        assert_eq!(winners, 1);
        let held = look(&store, &on).await.holders;
        assert_eq!(held.len(), 1);
        store.release(&Release::new(name(&on), held[0].id)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_and_a_takeover_at_expiry_never_both_succeed() {
    let place = place();
    let (holder, other) = (place.open().await, place.open().await);
    let (mut renewed, mut taken) = (0, 0);
    // The end moves to where both win about equally often, however quick the machine is.
    let mut ttl = Duration::from_millis(3);
    for round in 0..400u32 {
        let (first, second) = (claim("edge", ttl), claim("edge", LONG));
        granted(&holder, &first).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let renewal = [Renewal::new(name("edge"), first.id, LONG)];
        let (renewal, taking) = tokio::join!(holder.renew(&renewal), other.try_acquire(&second));
        let held = matches!(renewal[0], Ok(Renewed::Held(_)));
        let took = matches!(taking, Ok(Attempt::Granted(_)));
        assert!(!(held && took), "two holders in round {round}");
        (renewed, taken) = (renewed + u32::from(held), taken + u32::from(took));
        ttl = if held { ttl - ttl / 20 } else { ttl + ttl / 20 };
        for id in [first.id, second.id] {
            holder.release(&Release::new(name("edge"), id)).await.unwrap();
        }
    }
    assert!(renewed > 20 && taken > 20, "it was no race: {renewed} renewed, {taken} taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_got_its_row_after_expiry_says_gone() {
    let place = place();
    let url = format!("{}&application_name={}", place.url, place.schema);
    let store = Store::connect(&url).await.unwrap();
    let (mut keeper, connection) =
        tokio_postgres::connect(&server().url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let queued = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND wait_event_type = 'Lock'",
        place.schema
    );
    let live = "SELECT count(*) FROM leasehold.leases WHERE expires > clock_timestamp()";
    // Longer and longer until the machine is quick enough to queue both before the end.
    let mut ttl = Duration::from_millis(200);
    loop {
        assert!(ttl < Duration::from_secs(3), "both never queued in time");
        let (first, second) = (claim("late", ttl), claim("late", LONG));
        granted(&store, &first).await;
        let transaction = keeper.transaction().await.unwrap();
        let lock = format!("SELECT 1 FROM {}.names FOR UPDATE", place.schema);
        transaction.execute(&lock, &[]).await.unwrap();
        let renewal = {
            let (store, renewal) = (store.clone(), Renewal::new(name("late"), first.id, LONG));
            tokio::spawn(async move { store.renew(&[renewal]).await.remove(0).unwrap() })
        };
        let attempt = {
            let (store, second) = (store.clone(), second.clone());
            tokio::spawn(async move { store.try_acquire(&second).await.unwrap() })
        };
        until("both wait for the row", async || server().sql(&queued) == "2").await;
        let in_time = place.sql(live) == "1";
        until("the lease has ended", async || place.sql(live) == "0").await;
        transaction.commit().await.unwrap();
        let (renewed, attempt) = (renewal.await.unwrap(), attempt.await.unwrap());
        if in_time {
            assert!(matches!(renewed, Renewed::Gone(_)), "renewed after its end: {renewed:?}");
            assert!(matches!(attempt, Attempt::Granted(_)), "an ended lease in the way: {attempt:?}");
            return;
        }
        store.revoke(&name("late"), true, None).await.unwrap();
        ttl *= 2;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leases_ttl_starts_when_its_claim_has_the_row() {
    let place = place();
    let store = Store::connect(&format!("{}&application_name={}", place.url, place.schema)).await.unwrap();
    let known = claim("x", LONG);
    granted(&store, &known).await;
    assert_eq!(store.release(&Release::new(name("x"), known.id)).await.unwrap(), Released::Done);
    let (mut keeper, connection) =
        tokio_postgres::connect(&server().url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let transaction = keeper.transaction().await.unwrap();
    transaction.execute(&format!("SELECT 1 FROM {}.names FOR UPDATE", place.schema), &[]).await.unwrap();
    let attempt = {
        let (store, claim) = (store.clone(), claim("x", LONG));
        tokio::spawn(async move { granted(&store, &claim).await })
    };
    let queued = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND wait_event_type = 'Lock'",
        place.schema
    );
    until("it waits for the row", async || server().sql(&queued) == "1").await;
    // So that this read can be distinguished from earlier ones.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let free = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let free: u64 = server().sql(free).parse().unwrap();
    transaction.commit().await.unwrap();
    let grant = attempt.await.unwrap();
    assert!(grant.acquired_at_ms >= free, "{grant:?}, and the row was free at {free}");
    assert!(grant.fence >= Fence::at(free * 1000), "{grant:?}, and the row was free at {free}");
    let kept = "SELECT (extract(epoch FROM expires) * 1000)::bigint FROM leasehold.leases";
    let kept: u64 = place.sql(kept).parse().unwrap();
    assert!(kept >= free + 30_000, "expires at {kept}, and the row was free at {free}");
    assert_eq!(look(&store, "x").await.holders[0].grant.acquired_at_ms, grant.acquired_at_ms);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_in_any_order_deadlock_neither_each_other_nor_verbs() {
    let place = place();
    let store = Store::builder(&place.url).unwrap().pool_size(12).open().await.unwrap();
    let mut leases = Vec::new();
    for n in 0..24 {
        let claim = claim(&format!("batch {n}"), LONG);
        granted(&store, &claim).await;
        leases.push(Renewal::new(claim.name, claim.id, LONG));
    }
    let mut tasks = JoinSet::new();
    for task in 0..8usize {
        let (store, mut leases) = (store.clone(), leases.clone());
        tasks.spawn(async move {
            for round in 0..20 {
                leases.rotate_left((task * 5 + round * 7) % 24);
                if round % 2 == task % 2 {
                    leases.reverse();
                }
                for answer in store.renew(&leases).await {
                    // Busy if the machine is so slow that the row was not free in time.
                    let is_slow = answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Overloaded);
                    assert!(is_slow || matches!(answer, Ok(Renewed::Held(_))), "{answer:?}");
                }
                let on = leases[0].name.as_str().to_owned();
                assert!(matches!(store.try_acquire(&claim(&on, LONG)).await.unwrap(), Attempt::Busy(_)));
                store.sweep().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    assert!(!has_seen_a_deadlock(), "{}", server().log());
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_ending_together_are_reported_as_by_the_state_machine() {
    let place = place();
    let store = place.open().await;
    for (round, mode) in (0..16).flat_map(|round| [(round, Mode::Shared), (round, Mode::Permit { limit: 2 })])
    {
        let on = format!("{mode:?} {round}");
        let claims = ["first", "second"].map(|owner| Claim::new(name(&on), mode, LONG, owner));
        for claim in &claims {
            granted(&store, claim).await;
        }
        // One batch, one reading of the clock, one end.
        let batch = claims.map(|claim| Renewal::new(claim.name, claim.id, LONG * 2));
        assert!(store.renew(&batch).await.iter().all(Result::is_ok));
        let (next, told) = match mode {
            Mode::Shared => (Mode::Exclusive, "second"),
            other => (other, "first"),
        };
        let attempt = store.try_acquire(&Claim::new(name(&on), next, LONG, "next")).await.unwrap();
        let Attempt::Busy(busy) = attempt else { panic!("{attempt:?}") };
        assert_eq!(busy.owner.as_deref(), Some(told), "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_kept_locked_fails_in_time_and_delays_no_other_name() {
    let place = place();
    let store = Store::builder(&place.url).unwrap().pool_size(2).open().await.unwrap();
    let held = claim("stuck", LONG);
    granted(&store, &held).await;
    let keeper = keep_locked(&place.schema, "stuck").await;
    let (attempt, other) = (claim("stuck", LONG), claim("other", LONG));
    let mut stuck = std::pin::pin!(store.try_acquire(&attempt));
    tokio::select! {
        biased;
        answer = &mut stuck => panic!("{answer:?}"),
        _ = granted(&store, &other) => {}
    }
    let error = in_time("the row is given up", stuck).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    keeper.batch_execute("COMMIT").await.unwrap();
    assert_eq!(store.release(&Release::new(name("stuck"), held.id)).await.unwrap(), Released::Done);
}

/// Twenty claims for the same name at once. Ends when the first of them has an answer.
async fn crowd(store: &Store, on: &str) {
    let attempts = (0..20).map(|_| Box::pin(async { drop(store.try_acquire(&claim(on, LONG)).await) }));
    select_all(attempts).await;
}

/// Whether other names are served while a crowd waits for a row. The crowd waits for 4 s; a slower round shows
/// nothing.
async fn are_served(
    crowd: impl Future<Output = ()>,
    is_stuck: impl Fn() -> bool,
    others: impl Future<Output = ()>,
) -> bool {
    let mut crowd = pin!(crowd);
    tokio::select! {
        biased;
        () = &mut crowd => return false,
        () = until("the crowd waits for the row", async || is_stuck()) => {}
    }
    tokio::select! {
        biased;
        () = &mut crowd => false,
        () = others => true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_on_a_stuck_row_holds_up_no_other_name() {
    let place = place();
    let store = place.open().await;
    let (kept, other, stuck) =
        (claim("kept", LONG * 10), claim("other", LONG * 10), claim("stuck", LONG * 10));
    for claim in [&kept, &other, &stuck] {
        granted(&store, claim).await;
    }
    let keeper = keep_locked(&place.schema, "stuck").await;
    // Three attempts, and two of the releases and renewals.
    let is_stuck = || waiting(&place.schema).parse::<u32>().unwrap() >= 5;
    // What a round has given up still waits in the next one.
    until("others are served", async || {
        let release = Release::new(name("stuck"), LeaseId::random());
        let releases = (0..10).map(|_| store.release(&release));
        let renewal = [Renewal::new(name("stuck"), stuck.id, LONG * 10)];
        let renewals = (0..10).map(|_| store.renew(&renewal));
        let all = async {
            tokio::select! {
                biased;
                () = crowd(&store, "stuck") => {}
                _ = join(join_all(releases), join_all(renewals)) => std::future::pending().await,
            }
        };
        let others = async {
            let leases = [&kept, &other].map(|held| Renewal::new(held.name.clone(), held.id, LONG * 10));
            for batch in [&leases[..1], &leases[..]] {
                for answer in store.renew(batch).await {
                    assert!(matches!(answer, Ok(Renewed::Held(_))), "{answer:?}");
                }
            }
            let free = claim("free", LONG * 10);
            granted(&store, &free).await;
            look(&store, "free").await;
            store.sweep().await.unwrap();
            let released = store.release(&Release::new(name("free"), free.id)).await.unwrap();
            assert_eq!(released, Released::Done);
        };
        are_served(all, is_stuck, others).await
    })
    .await;
    keeper.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn several_stuck_rows_hold_up_no_renewal_or_release() {
    let place = place();
    let store = place.open().await;
    let (kept, ended) = (claim("kept", LONG * 10), claim("ended", LONG * 10));
    for claim in [&kept, &ended, &claim("a stuck", LONG), &claim("b stuck", LONG), &claim("c stuck", LONG)] {
        granted(&store, claim).await;
    }
    let keeper = keep_locked(&place.schema, "stuck").await;
    let is_stuck = || waiting(&place.schema).parse::<u32>().unwrap() >= 6;
    until("others are served", async || {
        let crowds = ["a stuck", "b stuck", "c stuck"].map(|on| Box::pin(crowd(&store, on)));
        let others = async {
            let renewal = [Renewal::new(name("kept"), kept.id, LONG * 10)];
            assert!(matches!(store.renew(&renewal).await[..], [Ok(Renewed::Held(_))]));
            store.release(&Release::new(name("ended"), ended.id)).await.unwrap();
        };
        are_served(async { drop(select_all(crowds).await) }, is_stuck, others).await
    })
    .await;
    keeper.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_held_leases_with_stuck_rows_cost_no_other_lease() {
    let place = place();
    let locks = Locks::connect(&place.url).await.unwrap();
    let mut held = Vec::new();
    for n in 0..16 {
        let stuck = locks.mutex(format!("{n} stuck")).ttl(LONG * 10).renew_every(Duration::from_millis(500));
        held.push(stuck.lock().await.unwrap());
    }
    let free = locks.mutex("free").ttl(Duration::from_secs(6)).lock().await.unwrap();
    let keeper = keep_locked(&place.schema, "stuck").await;
    until("the lease on a free row is renewed ten times", async || {
        free.check().unwrap();
        place.sql("SELECT renewals >= 10 FROM leasehold.names WHERE name LIKE '%free'") == "t"
    })
    .await;
    // They share the connections, so some are late, but each will be renewed again.
    keeper.batch_execute("COMMIT").await.unwrap();
    until("the others are renewed again", async || {
        held.iter().all(|guard| guard.state() == GuardState::Held)
    })
    .await;
}

/// How many calls of a store wait for a row.
fn waiting(schema: &str) -> String {
    server().sql(&format!(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%\"{schema}\"%' AND wait_event_type = 'Lock'"
    ))
}

/// Another session's transaction that has locked the row of a name, until the test ends it.
async fn keep_locked(schema: &str, on: &str) -> tokio_postgres::Client {
    let (keeper, connection) = tokio_postgres::connect(&server().url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let lock = format!("BEGIN; SELECT 1 FROM {schema}.names WHERE name LIKE '%{on}' FOR UPDATE");
    keeper.batch_execute(&lock).await.unwrap();
    keeper
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_row_fails_only_its_own_renewal_in_a_batch() {
    let place = place();
    let (store, other) = (place.open().await, place.open().await);
    let ttl = Duration::from_secs(60);
    let mut leases = Vec::new();
    for on in ["a", "stuck", "z"] {
        let claim = claim(on, ttl);
        granted(&store, &claim).await;
        leases.push(Renewal::new(claim.name, claim.id, ttl));
    }
    let keeper = keep_locked(&place.schema, "stuck").await;
    // It waits for 2 s; a slower round shows nothing.
    until("nobody is kept from the others while it waits", async || {
        let renewing = tokio::spawn({
            let (store, leases) = (store.clone(), leases.clone());
            async move {
                let started = Instant::now();
                (store.renew(&leases).await, started.elapsed())
            }
        });
        let waits = || waiting(&place.schema) == "1";
        until("it waits for the row", async || waits() || renewing.is_finished()).await;
        for on in ["a", "z"] {
            let attempt = other.try_acquire(&claim(on, ttl)).await;
            assert!(matches!(attempt, Ok(Attempt::Busy(_))), "{on}: {attempt:?}");
        }
        let meanwhile = waits();
        let (answers, took) = renewing.await.unwrap();
        let kinds: Vec<_> =
            answers.iter().map(|answer| answer.as_ref().err().map(|error| error.kind())).collect();
        assert_eq!(kinds, [None, Some(ErrorKind::Overloaded), None]);
        // The time of a renewal, after which its answers would no longer count.
        assert!(took < ttl / 6, "{took:?}");
        meanwhile
    })
    .await;
    keeper.batch_execute("COMMIT").await.unwrap();
    assert!(store.renew(&leases).await.iter().all(|answer| matches!(answer, Ok(Renewed::Held(_)))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_row_delays_no_short_lease_of_its_batch() {
    let place = place();
    let store = place.open().await;
    let ttl = Duration::from_millis(600);
    let mut leases = Vec::new();
    for on in ["free", "stuck"] {
        let claim = claim(on, LONG);
        granted(&store, &claim).await;
        leases.push(Renewal::new(claim.name, claim.id, ttl));
    }
    let _keeper = keep_locked(&place.schema, "stuck").await;
    // Again and again, but not each time: a loaded machine may be too slow.
    let mut in_time = 0;
    until("the answers come in the time of a renewal", async || {
        let started = Instant::now();
        let answers = store.renew(&leases).await;
        let took = started.elapsed();
        assert!(matches!(answers[0], Ok(Renewed::Held(_))), "{answers:?}");
        assert!(answers[1].as_ref().is_err_and(|error| error.kind() == ErrorKind::Overloaded), "{answers:?}");
        in_time += u32::from(took < ttl / 6);
        in_time == 5
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_leases_of_a_locked_name_are_renewed_together() {
    let place = place();
    let proxy = Proxy::before(([127, 0, 0, 1], server().port()).into()).unwrap();
    let url = format!("postgres://postgres@{}/postgres?schema={}", proxy.address(), place.schema);
    let (direct, store) = (place.open().await, Store::connect(&url).await.unwrap());
    let mut leases = Vec::new();
    for _ in 0..200 {
        let claim = Claim::new(name("permits"), Mode::Permit { limit: 200 }, LONG, "test");
        granted(&direct, &claim).await;
        leases.push(Renewal::new(claim.name, claim.id, LONG));
    }
    // One by one, even two at a time, they would take longer than a renewal may.
    proxy.delay(Direction::ToClient, Duration::from_millis(60));
    let keeper = keep_locked(&place.schema, "permits").await;
    let renewing = tokio::spawn(async move { store.renew(&leases).await });
    until("they wait for the row", async || waiting(&place.schema) == "1" || renewing.is_finished()).await;
    keeper.batch_execute("COMMIT").await.unwrap();
    for answer in renewing.await.unwrap() {
        assert!(matches!(answer, Ok(Renewed::Held(_))), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_briefly_locked_row_is_waited_for_also_in_a_batch() {
    let place = place();
    let store = place.open().await;
    let mut leases = Vec::new();
    for on in ["a", "stuck"] {
        let claim = claim(on, LONG);
        granted(&store, &claim).await;
        leases.push(Renewal::new(claim.name, claim.id, LONG));
    }
    leases.push(Renewal::new(name("never"), LeaseId::random(), LONG));
    let keeper = keep_locked(&place.schema, "stuck").await;
    let renewing = tokio::spawn(async move { store.renew(&leases).await });
    until("it waits for the row", async || waiting(&place.schema) == "1").await;
    keeper.batch_execute("COMMIT").await.unwrap();
    let answers = renewing.await.unwrap();
    let [Ok(Renewed::Held(_)), Ok(Renewed::Held(_)), Ok(Renewed::Gone(Gone::NotFound))] = &answers[..] else {
        panic!("{answers:?}")
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_rolled_back_for_a_foreign_deadlock_is_repeated() {
    // The session that looks for a deadlock, once after this long, is rolled back.
    let server = Postgres::builder().setting("deadlock_timeout", "100").start();
    let store = Store::connect(&server.url()).await.unwrap();
    let claim = Claim::new(name("x"), Mode::Shared, LONG, "test");
    granted(&store, &Claim::new(name("x"), Mode::Shared, LONG, "before")).await;
    let stranger = async || {
        let (client, connection) =
            tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    };
    // A gate before the rows: a session that locks this number shuts it.
    server.sql(
        "CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_lock_shared(1);
            PERFORM pg_advisory_unlock_shared(1); RETURN NEW; END';
         CREATE TRIGGER gate BEFORE INSERT ON leasehold.shares FOR EACH ROW EXECUTE FUNCTION pass()",
    );
    // A session that never looks for deadlocks inserts a row that the claim is about to insert, and then wants what
    // the claim has locked.
    let other = stranger().await;
    let same = format!(
        "SET deadlock_timeout = '1h'; BEGIN; INSERT INTO leasehold.shares SELECT name, '{}', mode, permits, fence, granted, owner, metadata, ttl, \
         granted_at, expires, renewals, nonce, repeated, revoked FROM leasehold.shares",
        claim.id.expose()
    );
    other.batch_execute(&same).await.unwrap();
    // The gate is shut until the other session waits: so there is a circle when the claim looks for one.
    let gate = stranger().await;
    gate.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap();
    let taking = tokio::spawn(async move { store.try_acquire(&claim).await });
    let waiting = async |count: &str| {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        until("it waits", async || server.sql(waiting) == count).await
    };
    waiting("1").await;
    let (locked, ()) = tokio::join!(other.batch_execute("SELECT 1 FROM leasehold.names FOR UPDATE"), async {
        waiting("2").await;
        gate.batch_execute("SELECT pg_advisory_unlock(1)").await.unwrap();
    });
    // The claim no longer has it: it was rolled back.
    locked.unwrap();
    // More than once if the repeat was quicker to lock it again.
    assert!(server.log().contains("deadlock detected"), "{}", server.log());
    other.batch_execute("ROLLBACK").await.unwrap();
    let attempt = taking.await.unwrap();
    assert!(matches!(attempt, Ok(Attempt::Granted(_))), "{attempt:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_waits_behind_one_that_was_given_up() {
    let place = place();
    let store = Store::builder(&place.url).unwrap().pool_size(2).open().await.unwrap();
    granted(&store, &claim("stuck", LONG)).await;
    let keeper = keep_locked(&place.schema, "stuck").await;
    // The server gives up on the row after 4 s; a slower round shows nothing.
    until("another call is answered before the one that was given up", async || {
        let given_up = claim("stuck", LONG);
        tokio::select! {
            _slow = store.try_acquire(&given_up) => return false,
            () = until("it waits for the row", async || waiting(&place.schema) == "1") => {}
        }
        for _ in 0..3 {
            granted(&store, &claim(&format!("other {}", given_up.nonce), LONG)).await;
            store.revoke(&name(&format!("other {}", given_up.nonce)), true, None).await.unwrap();
        }
        waiting(&place.schema) == "1"
    })
    .await;
    keeper.batch_execute("ROLLBACK").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_waiters_on_a_pool_of_two_do_not_delay_a_release() {
    let place = place();
    let locks = Locks::connect(&format!("{}&pool_size=2", place.url)).await.unwrap();
    let guard = locks.mutex("few").lock().await.unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let locks = locks.clone();
        tasks.spawn(async move { locks.mutex("few").lock().await.unwrap().release().await.unwrap() });
    }
    let store = place.open().await;
    until("all wait", async || {
        store.inspect(&Query::Name(locks.name("few").unwrap())).await.unwrap().items[0].queue_length == 10
    })
    .await;
    let started = Instant::now();
    guard.release().await.unwrap();
    // Before a request that is not answered would be given up.
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    in_time("all have had their turn", tasks.join_all()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_in_different_time_zones_agree() {
    let place = place();
    let at = |zone: &str| format!("{}&options=-c%20TimeZone%3D{zone}", place.url);
    let east = Store::connect(&at("Pacific/Auckland")).await.unwrap();
    let west = Store::connect(&at("America/Los_Angeles")).await.unwrap();
    for (one, other, on) in [(&east, &west, "from the east"), (&west, &east, "from the west")] {
        granted(one, &claim(on, LONG)).await;
        let left = look(other, on).await.holders.remove(0).grant.left.unwrap();
        assert!(left <= LONG && left > LONG / 3, "{left:?}");
        assert!(matches!(other.try_acquire(&claim(on, LONG)).await.unwrap(), Attempt::Busy(_)));
        let short = format!("short {on}");
        granted(one, &claim(&short, Duration::from_millis(100))).await;
        until("the lease has expired", async || {
            matches!(other.try_acquire(&claim(&short, LONG)).await.unwrap(), Attempt::Granted(_))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_any_characters_are_distinct_and_in_byte_order() {
    let place = place();
    let store = place.open().await;
    let longest = "\0".repeat(512);
    let mut names = vec![
        "p",
        "p\0",
        "p\0\u{1}",
        "p\u{1}",
        "p\u{1}\u{1}",
        "p\u{1}\u{2}",
        "p'",
        "p\"",
        "p\\",
        "p%",
        "p_",
        "pé",
        "p\u{10FFFF}",
        "p\u{10FFFF}x",
        "P",
        "q",
        &longest,
    ];
    for on in &names {
        granted(&store, &claim(on, LONG)).await;
    }
    names.retain(|on| on.starts_with('p'));
    names.sort_unstable();
    let mut seen = Vec::new();
    let mut cursor = None;
    loop {
        let query = Query::Prefix { stored: "/p".into(), limit: 3, cursor };
        let page = store.inspect(&query).await.unwrap();
        assert!(page.items.len() <= 3);
        seen.extend(page.items.into_iter().map(|item| item.name.as_str().to_owned()));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, names);
}
