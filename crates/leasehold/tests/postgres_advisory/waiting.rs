//! Waiting in the server's queue: hand-over, order, limits, and nothing left after a wait is cancelled.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::backend::Query;
use leasehold::backends::postgres::AdvisoryKey;
use leasehold::{ErrorKind, Guard, Locks};
use testkit::postgres::Postgres;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::support::{
    advisory_locks, connect, grant_as_time_ends, in_time, session_of, stranger, until, url,
};

/// Tries of each race: this many, on this many locks side by side.
const TRIES: (u64, i64) = (2_000, 4);

/// By then everything that was given up is free. It is less than the half minute after which an idle session is
/// closed, because closing would free what was left on it.
const FREE_AGAIN: Duration = Duration::from_secs(20);

async fn waiters(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_have_the_lock_one_after_the_other() {
    let server = Postgres::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let look = stranger(&server).await;
    let held = one.mutex("x").lock().await.unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..6 {
        let locks = if number % 2 == 0 { one.clone() } else { other.clone() };
        let tell = tell.clone();
        tokio::spawn(async move {
            let guard = locks.mutex("x").lock().await.unwrap();
            tell.send((number, guard.fence())).unwrap();
            guard.release().await.unwrap();
        });
        until("it waits", async || waiters(&look).await == number + 1).await;
    }
    let mut last = held.fence();
    held.release().await.unwrap();
    let mut all = HashSet::new();
    for _ in 0..6 {
        let (came, fence) = in_time("the next one has it", told.recv()).await.unwrap();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        all.insert(came);
    }
    assert_eq!(all.len(), 6);
    until("nothing is left", async || advisory_locks(&look).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_builds_concurrently_while_the_lock_has_waiters() {
    let server = Postgres::start();
    let (one, other, look) = (connect(&server).await, connect(&server).await, stranger(&server).await);
    server.sql("CREATE TABLE things (a int)");
    for mode in ["exclusive", "shared"] {
        let held = one.rwlock("x").write().await.unwrap();
        let waiter = {
            let lock = other.rwlock("x");
            tokio::spawn(async move { if mode == "shared" { lock.read().await } else { lock.write().await } })
        };
        until("it waits", async || waiters(&look).await == 1).await;
        let (migration, connection) =
            tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let index = format!("CREATE INDEX CONCURRENTLY {mode} ON things (a)");
        in_time("the index is built", migration.batch_execute(&index)).await.unwrap();
        until("it still waits", async || waiters(&look).await == 1).await;
        held.check().unwrap();
        held.release().await.unwrap();
        let guard = in_time("the waiter has it", waiter).await.unwrap().unwrap();
        assert_eq!(guard.attempts(), 2, "one attempt, one wait");
        guard.release().await.unwrap();
    }
    // The end of a slice of a wait is not an error that belongs in the server's log.
    assert!(!server.log().contains("lock timeout"), "{}", server.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_do_not_delay_vacuum() {
    let server = Postgres::start();
    let (one, other, look) = (connect(&server).await, connect(&server).await, stranger(&server).await);
    let held = one.mutex("x").lock().await.unwrap();
    let waiter = tokio::spawn(async move { other.mutex("x").lock().await.unwrap() });
    until("it waits", async || waiters(&look).await == 1).await;
    // The oldest transaction that it might still see; vacuum keeps what was deleted since.
    let oldest = async || {
        let sql = "SELECT backend_xmin::text FROM pg_stat_activity WHERE wait_event = 'advisory'";
        look.query_opt(sql, &[]).await.unwrap().and_then(|row| row.get::<_, Option<String>>(0))
    };
    let mut before = None;
    until("it has a snapshot", async || {
        before = oldest().await;
        before.is_some()
    })
    .await;
    look.execute("SELECT txid_current()", &[]).await.unwrap();
    until("it has a newer one", async || oldest().await.is_some_and(|now| Some(now) != before)).await;
    held.release().await.unwrap();
    in_time("the waiter has it", waiter).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn inspect_separates_own_waiters_from_foreign_ones() {
    let server = Postgres::start();
    let (locks, look) = (connect(&server).await, stranger(&server).await);
    let held = locks.mutex("MyLock").owner("me").lock().await.unwrap();
    let first = stranger(&server).await;
    let first =
        tokio::spawn(
            async move { first.execute("SELECT pg_advisory_lock(-1679399172, 2061500415)", &[]).await },
        );
    until("a stranger waits", async || waiters(&look).await == 1).await;
    let waiter = locks.mutex("MyLock").owner("me too");
    let waiter = tokio::spawn(async move { waiter.lock().await });
    until("the client waits", async || waiters(&look).await == 2).await;
    let query = Query::Name(held.name().clone());
    let mut seen = Vec::new();
    until("both are seen", async || {
        let info = locks.backend().inspect(&query).await.unwrap().items.remove(0);
        seen = info.waiters.iter().map(|waiter| waiter.owner.to_string()).collect();
        seen.len() == 2
    })
    .await;
    assert!(seen[0].starts_with("PostgreSQL session"), "{seen:?}");
    assert_eq!(seen[1], "me too");
    waiter.abort();
    first.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_readers_the_oldest_hundred_are_shown() {
    let server = Postgres::builder().setting("max_connections", "130").start();
    let locks = Locks::connect(&url(&server, "connections=110")).await.unwrap();
    let mut readers = Vec::new();
    for _ in 0..103 {
        readers.push(locks.rwlock("x").read().await.unwrap());
    }
    let seen = locks.inspect("x").await.unwrap();
    assert_eq!((seen.holders.len(), seen.holder_count), (100, 103));
    let shown: Vec<_> = seen.holders.iter().map(|holder| holder.id).collect();
    assert_eq!(shown, readers[..100].iter().map(|reader| reader.lease_id()).collect::<Vec<_>>());
}

/// PostgreSQL counts how often a session has a lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_comes_as_a_slice_ends_is_held_once() {
    let server = Postgres::start();
    let (one, other, look) = (connect(&server).await, connect(&server).await, stranger(&server).await);
    for write in [true, false] {
        let held = one.rwlock("x").write().await.unwrap();
        let lock = other.rwlock("x");
        let waiter = tokio::spawn(async move { if write { lock.write().await } else { lock.read().await } });
        let slice = Duration::from_secs(1);
        grant_as_time_ends(&look, held, slice).await;
        in_time("it is granted", waiter).await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(advisory_locks(&look).await, 0, "it is released, and the session has it still");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_exclude_writers_and_do_not_overtake_a_waiting_writer() {
    let server = Postgres::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let look = stranger(&server).await;
    // Several readers in one client: each on a session of its own.
    let first = one.rwlock("x").read().await.unwrap();
    let second = one.rwlock("x").read().await.unwrap();
    let third = other.rwlock("x").read().await.unwrap();
    assert!(second.fence() > first.fence() && third.fence() > second.fence());
    assert!(one.rwlock("x").try_write().await.unwrap().is_none());
    assert!(other.rwlock("x").try_write().await.unwrap().is_none());
    let writer = tokio::spawn(async move { other.rwlock("x").write().await.unwrap() });
    until("the writer waits", async || waiters(&look).await == 1).await;
    assert!(one.rwlock("x").try_read().await.unwrap().is_none(), "a reader came before a waiting writer");
    first.release().await.unwrap();
    second.release().await.unwrap();
    assert!(!writer.is_finished());
    third.release().await.unwrap();
    let writer = writer.await.unwrap();
    assert!(one.rwlock("x").try_read().await.unwrap().is_none());
    writer.release().await.unwrap();
    until("nothing is left", async || advisory_locks(&look).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_lets_readers_in_and_no_waiting_writer_between() {
    let server = Postgres::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let look = stranger(&server).await;
    for _ in 0..20 {
        let held = one.rwlock("x").write().await.unwrap();
        let locks = other.clone();
        let writer = tokio::spawn(async move { locks.rwlock("x").write().await.unwrap() });
        until("the writer waits", async || waiters(&look).await == 1).await;
        held.downgrade().await.unwrap();
        let modes = "SELECT string_agg(mode, ',') FROM pg_locks WHERE locktype = 'advisory' AND granted";
        let modes: String = look.query_one(modes, &[]).await.unwrap().get(0);
        assert_eq!(modes, "ShareLock");
        assert!(!writer.is_finished());
        held.release().await.unwrap();
        writer.await.unwrap().release().await.unwrap();
    }
    until("nothing is left", async || advisory_locks(&look).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_close_cancelled_waiters_are_out_of_the_queue() {
    let server = Postgres::start();
    let (one, look) = (connect(&server).await, stranger(&server).await);
    let _held = one.mutex("x").lock().await.unwrap();
    for _ in 0..5 {
        let other = connect(&server).await;
        let locks = other.clone();
        let waiter = tokio::spawn(async move { locks.mutex("x").lock().await.map(drop) });
        until("it waits", async || waiters(&look).await == 1).await;
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
        other.close().await;
        assert_eq!(waiters(&look).await, 0);
    }
}

/// Releases at about the moment when a waiter gives up, in one way or another, again and again.
async fn race<F: Future<Output = Option<Guard>> + Send>(
    give_up: impl Fn(Locks, String, Duration) -> F + Copy + Send + 'static,
) {
    let server = Arc::new(Postgres::builder().without_fsync().start());
    let mut races = JoinSet::new();
    for key in 0..TRIES.1 {
        let server = Arc::clone(&server);
        races.spawn(async move { race_on(&server, key, give_up).await });
    }
    races.join_all().await;
    let look = stranger(&server).await;
    until("nothing is left", async || advisory_locks(&look).await == 0).await;
}

async fn race_on<F: Future<Output = Option<Guard>> + Send>(
    server: &Postgres,
    key: i64,
    give_up: impl Fn(Locks, String, Duration) -> F,
) {
    let tries = TRIES.0 / TRIES.1.unsigned_abs();
    let open = async || {
        let builder = Locks::connect_builder(&url(server, "fences=off")).await.unwrap();
        builder.allow_unfenced(true).build()
    };
    let (holder, waiter, look) = (open().await, open().await, stranger(server).await);
    let name = AdvisoryKey::Bigint(key).to_string();
    let granted_now = format!(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = 0 AND objid = {key}"
    );
    let (mut granted, mut given_up) = (0, 0);
    // The moment moves to where both outcomes are about equally frequent.
    let mut limit = Duration::from_micros(1500);
    // A lock that was left behind would make this wait too long.
    let lock = async || {
        let lock = tokio::time::timeout(FREE_AGAIN, holder.mutex(&name).lock()).await;
        lock.expect("what was given up is free again").unwrap()
    };
    for _ in 0..tries {
        let held = lock().await;
        let release = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            held.release().await.unwrap();
        };
        let (guard, ()) = tokio::join!(give_up(waiter.clone(), name.clone(), limit), release);
        match guard {
            Some(guard) => {
                granted += 1;
                limit -= limit / 20;
                let holders: i64 = look.query_one(&granted_now, &[]).await.unwrap().get(0);
                assert_eq!(holders, 1, "the call says granted");
                guard.release().await.unwrap();
            }
            None => {
                given_up += 1;
                limit += limit / 20;
            }
        }
        lock().await.release().await.unwrap();
    }
    println!("{granted} granted, {given_up} given up");
    assert!(granted > tries / 10 && given_up > tries / 10, "it was no race: {granted} and {given_up}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_racing_the_grant_leaves_the_lock_free_or_granted() {
    race(|locks, name, limit| async move {
        match locks.mutex(&name).try_lock_for(limit).await {
            Ok(granted) => granted,
            // Not even the first attempt was answered within the limit.
            Err(error) if error.kind() == ErrorKind::NetworkTimeout => None,
            Err(error) => panic!("{error:?}"),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_racing_the_grant_leaves_the_lock_free_or_granted() {
    race(|locks, name, limit| async move {
        tokio::time::timeout(limit, async { locks.mutex(&name).lock().await.unwrap() }).await.ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_kept_and_the_place_in_the_queue_given_up() {
    let server = Postgres::start();
    let (one, other, look) = (connect(&server).await, connect(&server).await, stranger(&server).await);
    let _held = one.mutex("x").lock().await.unwrap();
    let began = Instant::now();
    let limit = Duration::from_secs(1);
    let mutex = other.mutex("x").max_wait(limit);
    // The lock is held for good: only the limit ends this.
    let error = in_time("the limit ends it", mutex.lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(limit <= began.elapsed(), "{:?}", began.elapsed());
    until("nobody waits", async || waiters(&look).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_without_a_free_connection_get_their_turn_too() {
    let server = Postgres::start();
    let locks = Locks::connect(&url(&server, "connections=3")).await.unwrap();
    let held = locks.mutex("x").lock().await.unwrap();
    let all: Vec<_> = (0..8)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.mutex("x").lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    let look = stranger(&server).await;
    until("two wait", async || waiters(&look).await == 2).await;
    // Clients can take locks that are free, and holders can release theirs.
    locks.mutex("y").lock().await.unwrap().release().await.unwrap();
    held.release().await.unwrap();
    for one in all {
        in_time("it gets its turn", one).await.unwrap();
    }
    let connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    assert!(server.sql(connections).parse::<u32>().unwrap() <= 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn free_locks_share_a_session_and_awaited_ones_have_their_own() {
    let server = Postgres::start();
    let (locks, look) = (connect(&server).await, stranger(&server).await);
    let names = ["x", "y", "z", "a name that is hashed", "00000000000000ff"];
    let mut free = Vec::new();
    for name in names {
        free.push(locks.mutex(name).lock().await.unwrap());
    }
    let waiter = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.mutex("x").lock().await.unwrap() })
    };
    until("it waits", async || waiters(&look).await == 1).await;
    let sessions = "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND granted";
    assert_eq!(server.sql(sessions), "1");
    let shared = session_of(&look, "x").await;
    free.remove(0).release().await.unwrap();
    let waited_for = waiter.await.unwrap();
    let own = session_of(&look, "x").await;
    assert!(own.is_some() && own != shared, "{own:?}");
    // A free lock is taken on the shared session, even while that one is held.
    free.push(locks.mutex("late").lock().await.unwrap());
    assert_eq!(session_of(&look, "late").await, shared);
    waited_for.release().await.unwrap();
    for guard in free {
        guard.release().await.unwrap();
    }
    assert_eq!(advisory_locks(&look).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_nobody_needs_are_few_and_hold_nothing() {
    let server = Postgres::start();
    let (locks, look) = (connect(&server).await, stranger(&server).await);
    let held = locks.mutex("x").lock().await.unwrap();
    let all: Vec<_> = (0..12)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.mutex("x").lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    until("all wait", async || waiters(&look).await == 12).await;
    held.release().await.unwrap();
    for one in all {
        one.await.unwrap();
    }
    assert_eq!(advisory_locks(&look).await, 0);
    let connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    until("one and four are left", async || server.sql(connections) == "5").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_s_limits_end_neither_a_wait_nor_an_idle_holder() {
    let server = Postgres::builder()
        .setting("statement_timeout", "500")
        .setting("lock_timeout", "500")
        .setting("default_transaction_isolation", "serializable")
        .start();
    if server.version() >= 14 {
        server.sql("ALTER ROLE postgres SET idle_session_timeout = 500");
    }
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.mutex("x").lock().await.unwrap();
    let waiter = tokio::spawn(async move { other.mutex("x").lock().await.unwrap() });
    let long = "SET statement_timeout = 0; SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                AND query_start < clock_timestamp() - interval '2 s'";
    until("it has waited several times each limit", async || server.sql(long) == "1").await;
    held.check().unwrap();
    held.release().await.unwrap();
    let guard = in_time("the waiter has it", waiter).await.unwrap();
    assert_eq!(guard.attempts(), 2, "one attempt, one wait");
    guard.release().await.unwrap();
}
