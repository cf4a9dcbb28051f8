//! Keys: collisions, explicit keys, other programs on the same keys.

use leasehold::backend::{Attempt, Backend, Claim, Mode, Query, Release, Released};
use leasehold::backends::postgres::{Advisory, AdvisoryKey};
use leasehold::{ErrorKind, Locks, Name};
use std::time::Duration;
use testkit::postgres::Postgres;

use crate::support::{advisory_locks, connect, stranger, until, url};

/// Two names, one key: nine characters, and the pair they are packed into.
const COLLIDING: (&str, &str) = ("123456789", "62c99b46,ad9bb872");

#[tokio::test(flavor = "multi_thread")]
async fn two_names_with_one_key_are_one_lock_also_within_a_client() {
    let (a, b) = COLLIDING;
    assert_eq!(AdvisoryKey::from_name(a, false).unwrap(), AdvisoryKey::from_name(b, false).unwrap());
    let server = Postgres::start();
    let (locks, look) = (connect(&server).await, stranger(&server).await);
    let held = locks.mutex(a).lock().await.unwrap();
    assert!(locks.mutex(b).try_lock().await.unwrap().is_none(), "the same key was taken twice");
    assert!(locks.rwlock(b).try_read().await.unwrap().is_none());
    let waiter = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.mutex(b).lock().await.unwrap() })
    };
    until("it waits", async || advisory_locks(&look).await == 2).await;
    held.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    assert_eq!(advisory_locks(&look).await, 0);
    // Readers of both share it, each on its own session, and each frees only its own lock.
    let (one, two) = (locks.rwlock(a).read().await.unwrap(), locks.rwlock(b).read().await.unwrap());
    let sessions = "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(server.sql(sessions), "2");
    one.release().await.unwrap();
    assert!(locks.mutex(a).try_lock().await.unwrap().is_none());
    two.release().await.unwrap();
    assert!(locks.mutex(a).try_lock().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_callers_in_one_client_have_exactly_one_winner() {
    let server = Postgres::builder().without_fsync().start();
    let (locks, look) = (connect(&server).await, stranger(&server).await);
    for round in 0..30 {
        let name = format!("round-{round}");
        let all: Vec<_> = (0..16)
            .map(|_| {
                let lock = locks.mutex(&name);
                tokio::spawn(async move { lock.try_lock().await.unwrap() })
            })
            .collect();
        let mut guards = Vec::new();
        for one in all {
            guards.extend(one.await.unwrap());
        }
        assert_eq!(guards.len(), 1);
        assert_eq!(advisory_locks(&look).await, 1);
        for guard in guards {
            guard.release().await.unwrap();
        }
        assert_eq!(advisory_locks(&look).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_on_the_dotnet_key_exclude_ours_and_ours_exclude_them() {
    let server = Postgres::start();
    let (locks, other) = (connect(&server).await, stranger(&server).await);
    // The vectors for MyLock, MyLockName and an explicit number.
    for (name, sql) in [
        ("MyLock", "-1679399172, 2061500415"),
        ("MyLockName", "4062898426641073528"),
        ("00000000000000ff", "255"),
    ] {
        other.execute(&format!("SELECT pg_advisory_lock({sql})"), &[]).await.unwrap();
        assert!(locks.mutex(name).try_lock().await.unwrap().is_none(), "{name}");
        other.execute(&format!("SELECT pg_advisory_unlock({sql})"), &[]).await.unwrap();
        let held = locks.mutex(name).try_lock().await.unwrap().unwrap();
        let row = other.query_one(&format!("SELECT pg_try_advisory_lock({sql})"), &[]).await.unwrap();
        assert!(!row.get::<_, bool>(0), "{name}");
        held.release().await.unwrap();
    }
    // Another space: the same bits as one number are another lock.
    let _pair = locks.mutex("00000000,000000ff").try_lock().await.unwrap().unwrap();
    assert!(locks.mutex("00000000000000ff").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn hashing_can_be_forbidden_and_a_namespace_makes_other_keys() {
    let server = Postgres::start();
    let locks = Locks::connect(&url(&server, "hashing=off")).await.unwrap();
    locks.mutex("short").try_lock().await.unwrap().unwrap().release().await.unwrap();
    let error = locks.mutex("longer than nine").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let locks = connect(&server).await;
    let _held = locks.mutex("x").try_lock().await.unwrap().unwrap();
    assert!(locks.with_namespace("team").mutex("x").try_lock().await.unwrap().is_some());
    assert!(connect(&server).await.mutex("x").try_lock().await.unwrap().is_none());
    assert_eq!(locks.semaphore("s", 2).try_acquire().await.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn the_release_after_a_dropped_attempt_gives_it_back() {
    let server = Postgres::start();
    let (store, look) = (Advisory::connect(&url(&server, "")).await.unwrap(), stranger(&server).await);
    for round in 0..200 {
        let name = Name::new(&format!("round-{round}")).unwrap();
        let claim = Claim::new(name.clone(), Mode::Exclusive, Duration::from_secs(30), "me");
        let mut attempt = store.try_acquire(&claim);
        // Polled a few times, then dropped with the answer on its way.
        for _ in 0..round % 4 {
            if futures_util_poll(&mut attempt).await {
                break;
            }
        }
        drop(attempt);
        let mut release = Release::new(name.clone(), claim.id);
        release.unanswered = Some(claim.ttl);
        let released = store.release(&release).await.unwrap();
        assert!(matches!(released, Released::Done | Released::Gone(_)));
        let again = store.try_acquire(&claim).await.unwrap();
        assert!(matches!(again, Attempt::Gone(_)), "a spent id was granted");
        // The next call on this key comes after the dropped one, whatever became of that.
        let next = Claim::new(name.clone(), Mode::Exclusive, Duration::from_secs(30), "me");
        let attempt = store.try_acquire(&next).await.unwrap();
        assert!(matches!(attempt, Attempt::Granted(_)), "round {round}: {attempt:?}");
        assert_eq!(advisory_locks(&look).await, 1, "round {round}");
        store.release(&Release::new(name.clone(), next.id)).await.unwrap();
        assert_eq!(advisory_locks(&look).await, 0, "round {round}");
        let page = store.inspect(&Query::Name(name)).await.unwrap();
        assert!(page.items[0].holders.is_empty());
    }
}

/// Polls once, then lets others run. Returns whether it is done.
async fn futures_util_poll<F: Future + Unpin>(future: &mut F) -> bool {
    let done = std::future::poll_fn(|cx| {
        std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_ready())
    })
    .await;
    tokio::task::yield_now().await;
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn inspect_shows_our_leases_and_foreign_locks() {
    let server = Postgres::start();
    let (locks, other) = (connect(&server).await, stranger(&server).await);
    let held = locks.mutex("MyLock").owner("me").lock().await.unwrap();
    let seen = locks.backend().inspect(&Query::Name(held.name().clone())).await.unwrap();
    let item = &seen.items[0];
    assert_eq!((item.holders.len(), &*item.holders[0].owner, item.holders[0].id), (1, "me", held.lease_id()));
    assert_eq!(item.last_fence, held.fence());
    let sql = "SELECT pg_backend_pid()";
    let pid: i32 = other.query_one(sql, &[]).await.unwrap().get(0);
    let name = held.name().clone();
    held.release().await.unwrap();
    other.execute("SELECT pg_advisory_lock(-1679399172, 2061500415)", &[]).await.unwrap();
    let seen = locks.backend().inspect(&Query::Name(name)).await.unwrap();
    assert!(seen.items[0].holders[0].owner.contains(&pid.to_string()), "{:?}", seen.items[0].holders);
}
