//! Verbs of one client that meet on one key: they run one after the other, and leave nothing on the session.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Mode, Release, Released, Renewal, Renewed};
use leasehold::backends::postgres::Advisory;
use leasehold::{Locks, Name};
use testkit::postgres::Postgres;
use testkit::proxy::{Direction, Proxy};
use tokio_postgres::Client;

use crate::support::{advisory_locks, connect, in_time, stranger, until, url};

const TTL: Duration = Duration::from_secs(30);

fn claim(mode: Mode) -> Claim {
    Claim::new(Name::new("x").unwrap(), mode, TTL, "me")
}

async fn granted(store: &Advisory, claim: &Claim) {
    let attempt = store.try_acquire(claim).await.unwrap();
    assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
}

fn release(claim: &Claim) -> Release {
    Release::new(claim.name.clone(), claim.id)
}

/// The renewal that turns it into a shared lease.
fn downgrade(claim: &Claim) -> [Renewal; 1] {
    let mut renewal = Renewal::new(claim.name.clone(), claim.id, TTL);
    renewal.mode = Some(Mode::Shared);
    [renewal]
}

/// The modes in which it is held.
async fn modes(look: &Client) -> String {
    let modes =
        "SELECT coalesce(string_agg(mode, ','), '') FROM pg_locks WHERE locktype = 'advisory' AND granted";
    look.query_one(modes, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn concurrent_downgrades_act_as_one() {
    let server = Postgres::start();
    let (store, look) = (Advisory::connect(&url(&server, "")).await.unwrap(), stranger(&server).await);
    for _ in 0..3 {
        let claim = claim(Mode::Exclusive);
        granted(&store, &claim).await;
        let renewal = downgrade(&claim);
        let (one, other, third) =
            tokio::join!(store.renew(&renewal), store.renew(&renewal), store.renew(&renewal));
        for answer in [one, other, third].into_iter().flatten() {
            assert!(matches!(answer, Ok(Renewed::Held(grant)) if grant.mode == Mode::Shared));
        }
        assert_eq!(modes(&look).await, "ShareLock");
        assert_eq!(store.release(&release(&claim)).await.unwrap(), Released::Done);
        // A session counts how often it took a key.
        assert_eq!(advisory_locks(&look).await, 0);
    }
}

#[tokio::test]
async fn a_release_during_a_downgrade_frees_the_whole_lock() {
    let server = Postgres::start();
    let (store, look) = (Advisory::connect(&url(&server, "")).await.unwrap(), stranger(&server).await);
    for _ in 0..3 {
        let claim = claim(Mode::Exclusive);
        granted(&store, &claim).await;
        let (renewal, release) = (downgrade(&claim), release(&claim));
        let (downgraded, released) = tokio::join!(store.renew(&renewal), store.release(&release));
        assert!(matches!(downgraded[..], [Ok(_)]), "{downgraded:?}");
        assert_eq!(released.unwrap(), Released::Done);
        assert_eq!(advisory_locks(&look).await, 0);
    }
}

#[tokio::test]
async fn an_attempt_during_a_release_overtakes_no_waiter() {
    let server = Postgres::start();
    let (store, look) = (Advisory::connect(&url(&server, "")).await.unwrap(), stranger(&server).await);
    let other = connect(&server).await;
    let held = claim(Mode::Exclusive);
    granted(&store, &held).await;
    let waiter = tokio::spawn(async move { other.mutex("x").lock().await.unwrap() });
    until("it waits", async || advisory_locks(&look).await == 2).await;
    // On the session that has the key the server would grant it at once, past all waiters.
    let (next, release) = (claim(Mode::Exclusive), release(&held));
    let (released, attempt) = tokio::join!(store.release(&release), store.try_acquire(&next));
    assert_eq!(released.unwrap(), Released::Done);
    assert!(matches!(attempt, Ok(Attempt::Busy(_))), "{attempt:?}");
    in_time("the waiter has it", waiter).await.unwrap().release().await.unwrap();
    granted(&store, &next).await;
}

/// As users see it: four times a second the client asks for what no message has told it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_downgrade_leaves_one_shared_lock_that_release_frees() {
    let server = Postgres::start();
    let proxy = Proxy::before(([127, 0, 0, 1], server.port()).into()).unwrap();
    let through = format!("postgres+advisory://postgres@{}/postgres", proxy.address());
    let (slow, other) = (Locks::connect(&through).await.unwrap(), connect(&server).await);
    let look = Arc::new(stranger(&server).await);
    let held = slow.rwlock("x").write().await.unwrap();
    let writer = tokio::spawn(async move { other.rwlock("x").write().await.unwrap() });
    until("the writer waits", async || advisory_locks(&look).await == 2).await;
    proxy.delay(Direction::ToClient, Duration::from_millis(700)); // more than two looks
    held.downgrade().await.unwrap();
    proxy.pass();
    assert_eq!(modes(&look).await, "ShareLock");
    assert!(!writer.is_finished());
    held.release().await.unwrap();
    in_time("the writer has it", writer).await.unwrap().release().await.unwrap();
    until("nothing is left", async || advisory_locks(&look).await == 0).await;
}
