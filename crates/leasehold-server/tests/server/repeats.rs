//! Clients that disconnect, come back with the same lease id, and disconnect again. No client learned of the lease, so
//! the server must give it back.

use std::time::Duration;

use leasehold::{ErrorKind, Locks};
use leasehold_server::Settings;
use serde_json::{Value, json};
use testkit::faulty::{Act, Verb};
use testkit::proxy::{Direction, Proxy};
use testkit::until::{in_time, until_async};
use tokio::io::AsyncReadExt as _;
use tokio::task::LocalSet;

use crate::support::{Answer, Server, answered, asked, faulty, request};

const ID: &str = "GGGGGGGGGGGGGGGGGGGGGG";

fn body(wait_ms: u64) -> Value {
    json!({"owner_id": "me", "ttl_ms": 600_000, "lease_id": ID, "wait_ms": wait_ms})
}

fn acquire(wait_ms: u64) -> Vec<u8> {
    let headers = [("content-type", "application/json")];
    request("POST", "/v1/locks/a/acquire", &headers, &body(wait_ms).to_string())
}

/// Another client gets the lock long before the disconnected clients' ttl ends. False if nothing was shown, because one
/// of those was answered before the server noticed the disconnect.
async fn is_free(server: &Server, when: &str) -> bool {
    for _ in 0..20 {
        let next = json!({"owner_id": "next", "ttl_ms": 1000, "wait_ms": 1000});
        let next = server.verb("a", "acquire", next).await;
        if next.status == 200 {
            return true;
        }
        if was_answered(server).await {
            return false;
        }
    }
    panic!("{when}: a lease that nobody was told of is held");
}

async fn was_answered(server: &Server) -> bool {
    server.figure("lock_acquire_total{result=\"success\"}").await > 0.0
}

/// Runs all rounds at once, each with its own server. A round returns whether it showed anything; the rounds are
/// repeated until this many have.
async fn at_once<R>(floor: usize, rounds: impl Fn() -> R)
where
    R: Iterator<Item: Future<Output = bool> + 'static>,
{
    let mut shown = 0;
    for _ in 0..5 {
        let here = LocalSet::new();
        let running: Vec<_> = rounds().map(|round| here.spawn_local(round)).collect();
        here.await;
        for round in running {
            shown += usize::from(round.await.unwrap());
        }
        if shown >= floor {
            return;
        }
    }
    panic!("only {shown} rounds showed anything, not {floor}: the others were answered too early");
}

/// The second request comes while the first is being given back, and disconnects at every possible moment after that.
#[tokio::test]
async fn a_repeat_dropped_during_the_first_give_back_holds_nothing() {
    async fn round(went_after: Duration) -> bool {
        let (server, store) = faulty().await;
        store.always(Verb::TryAcquire, Act::Slow(Duration::from_millis(100)));
        store.always(Verb::Release, Act::SlowBefore(Duration::from_millis(150)));
        let first = server.raw(&acquire(0)).await;
        asked(&store, Verb::TryAcquire, 1).await;
        drop(first);
        // On a busy machine the first may be answered before the server notices the disconnect.
        until_async("the first gives back, or was answered", async || {
            store.count(Verb::Release) > 0 || was_answered(&server).await
        })
        .await;
        let second = server.raw(&acquire(0)).await;
        tokio::time::sleep(went_after).await;
        drop(second);
        is_free(&server, &format!("the second went after {went_after:?}")).await
    }
    at_once(4, || (0..10).map(|tenths| round(Duration::from_millis(tenths * 50)))).await;
}

/// The second and the third request come before the store has answered the first; each disconnects before its answer.
#[tokio::test]
async fn three_requests_dropped_in_turn_hold_nothing() {
    async fn round(went_after: Duration) -> bool {
        let (server, store) = faulty().await;
        store.always(Verb::TryAcquire, Act::Slow(Duration::from_millis(150)));
        let first = server.raw(&acquire(0)).await;
        asked(&store, Verb::TryAcquire, 1).await;
        let second = server.raw(&acquire(0)).await;
        drop(first);
        tokio::time::sleep(went_after / 2).await;
        let third = server.raw(&acquire(0)).await;
        drop(second);
        tokio::time::sleep(went_after / 2).await;
        drop(third);
        is_free(&server, &format!("after {went_after:?}")).await
    }
    at_once(5, || (0..12).map(|tenths| round(Duration::from_millis(tenths * 40)))).await;
}

/// The store granted the first request but its answer was lost; the second took the lease over.
#[tokio::test]
async fn a_dropped_repeat_gives_back_a_lease_whose_grant_was_lost() {
    async fn round() -> bool {
        let (server, store) = faulty().await;
        store.plan(Verb::TryAcquire, [Act::LostAfter(ErrorKind::NetworkTimeout)]);
        store.always(Verb::TryAcquire, Act::Slow(Duration::from_millis(100)));
        store.always(Verb::Release, Act::SlowBefore(Duration::from_millis(100)));
        let first = server.raw(&acquire(20_000)).await;
        asked(&store, Verb::TryAcquire, 1).await;
        let second = server.raw(&acquire(20_000)).await;
        drop(first);
        asked(&store, Verb::TryAcquire, 2).await;
        drop(second);
        is_free(&server, "the grant of the first got lost").await
    }
    at_once(1, || std::iter::once(round())).await;
}

/// If the second client stays it gets the lease, whatever the first was doing, and keeps it.
#[tokio::test]
async fn a_repeat_that_stays_keeps_its_grant() {
    async fn round(came_after: Duration) -> bool {
        let (server, store) = faulty().await;
        store.plan(Verb::TryAcquire, [Act::Slow(Duration::from_millis(150))]);
        store.always(Verb::Release, Act::SlowBefore(Duration::from_millis(100)));
        let first = server.raw(&acquire(0)).await;
        asked(&store, Verb::TryAcquire, 1).await;
        drop(first);
        tokio::time::sleep(came_after).await;
        let second = server.verb("a", "acquire", body(0)).await;
        assert_eq!(second.status, 200, "{second:?}");
        let renew = json!({"lease_id": ID, "extend_by_ms": 1000});
        let renewed = server.replaced(&store).await.verb("a", "renew", renew).await;
        assert_eq!(renewed.body["fencing_token"], second.body["fencing_token"], "after {came_after:?}");
        true
    }
    at_once(8, || (0..8).map(|tenths| round(Duration::from_millis(tenths * 50)))).await;
}

/// If both stay, both learn of the one lease; when a third disconnects, it stays theirs.
#[tokio::test]
async fn a_repeat_beside_one_that_is_answered_takes_nothing_away() {
    let (server, store) = faulty().await;
    store.plan(Verb::TryAcquire, [Act::Held, Act::Held]);
    let mut first = server.raw(&acquire(0)).await;
    asked(&store, Verb::TryAcquire, 1).await;
    let second = server.raw(&acquire(0)).await;
    store.let_go();
    let mut answer = Vec::new();
    in_time("the first is answered", first.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(Answer::parse(&answer).status, 200);
    // The probe whether the id has something; then the attempt, whose client has disconnected.
    asked(&store, Verb::TryAcquire, 2).await;
    server.hang_up(second).await;
    store.let_go();
    answered(&store, Verb::TryAcquire, 3).await;
    let server = server.replaced(&store).await;
    assert!(store.calls(Verb::Release).is_empty(), "a lease that was answered was given back");
    assert_eq!(server.get("/v1/locks/a").await.body["held"], true);
}

/// Of two waiting requests the older is answered at once; the newer takes its place, and gives it up on disconnect.
#[tokio::test]
async fn a_newer_wait_with_the_same_id_takes_the_place_of_the_older() {
    let server = Server::start().await;
    server.acquire("a").await;
    let mut older = server.raw(&acquire(50_000)).await;
    server.until("a", |lock| lock["queue_length"] == 1).await;
    let headers = [("content-type", "application/json")];
    let behind = json!({"owner_id": "behind", "ttl_ms": 1000, "wait_ms": 50_000}).to_string();
    let _behind = server.raw(&request("POST", "/v1/locks/a/acquire", &headers, &behind)).await;
    server.until("a", |lock| lock["queue_length"] == 2).await;
    let newer = server.raw(&acquire(50_000)).await;
    let mut answer = Vec::new();
    let read = older.read_to_end(&mut answer);
    tokio::time::timeout(Duration::from_secs(10), read)
        .await
        .expect("the older request is answered")
        .unwrap();
    let answer = Answer::parse(&answer);
    assert_eq!((answer.status, &answer.body["code"]), (410, &json!("SUPERSEDED")));
    let seen = server.get("/v1/locks/a").await.body;
    assert_eq!((&seen["queue_length"], &seen["waiters"][0]["owner_id"]), (&json!(2), &json!("me")), "{seen}");
    drop(newer);
    let seen = server.until("a", |lock| lock["queue_length"] == 1).await;
    assert_eq!(seen["waiters"][0]["owner_id"], "behind");
}

/// The repeat took over a lease that an earlier answer granted, does not know it, and disconnects.
#[tokio::test]
async fn a_dropped_repeat_with_a_lost_answer_takes_nothing_away() {
    let (server, store) = faulty().await;
    assert_eq!(server.verb("a", "acquire", body(0)).await.status, 200);
    // The probe is answered; the answer to the attempt is lost, and no other follows.
    store.plan(Verb::TryAcquire, [Act::Pass]);
    store.always(Verb::TryAcquire, Act::LostAfter(ErrorKind::NetworkTimeout));
    let going = server.raw(&acquire(20_000)).await;
    asked(&store, Verb::TryAcquire, 4).await;
    server.hang_up(going).await;
    let server = server.replaced(&store).await;
    let renew = json!({"lease_id": ID, "extend_by_ms": 1000});
    let renewed = server.verb("a", "renew", renew).await;
    assert_eq!(renewed.status, 200, "a lease that was answered was given back");
}

/// A give-back is retried for ten seconds. A repeat does not wait for that, and the give-back takes nothing away when
/// it arrives at last.
#[tokio::test]
async fn a_repeat_does_not_wait_for_a_give_back_that_fails() {
    let (server, store) = faulty().await;
    store.plan(Verb::TryAcquire, [Act::Held]);
    store.always(Verb::Release, Act::Fail(ErrorKind::Unavailable));
    let first = server.raw(&acquire(0)).await;
    asked(&store, Verb::TryAcquire, 1).await;
    server.hang_up(first).await;
    store.let_go();
    asked(&store, Verb::Release, 1).await;
    let second = server.verb("a", "acquire", body(0)).await;
    assert_eq!(second.status, 200, "{second:?}");
    // It is still being retried: the second request has not waited for its end.
    let tried = store.count(Verb::Release);
    store.always(Verb::Release, Act::Pass);
    answered(&store, Verb::Release, tried + 1).await;
    let seen = server.get("/v1/locks/a").await.body;
    assert_eq!((&seen["held"], &seen["fencing_token"]), (&json!(true), &second.body["fencing_token"]));
}

/// The same on a real store, whose network delays only the give-back.
#[tokio::test]
async fn a_delayed_give_back_leaves_nothing_to_a_dropped_repeat() {
    let postgres = testkit::postgres::Postgres::start();
    let proxy = Proxy::before(([127, 0, 0, 1], postgres.port()).into()).unwrap();
    let through =
        postgres.url().replacen(&postgres.port().to_string(), &proxy.address().port().to_string(), 1);
    let mut settings = Settings::default();
    // No calls besides those made here.
    settings.sweep_every = Duration::from_secs(3600);
    let server = Server::on(Locks::connect(&through).await.unwrap(), settings).await;
    let beside = Server::on(Locks::connect(&postgres.url()).await.unwrap(), Settings::default()).await;
    // Opens several connections in advance, since none of these is answered before all are asked.
    proxy.delay(Direction::ToClient, Duration::from_millis(100));
    let warm = json!({"owner_id": "me", "ttl_ms": 1});
    let acquire_warm = |name| server.verb(name, "acquire", warm.clone());
    tokio::join!(acquire_warm("w1"), acquire_warm("w2"), acquire_warm("w3"), acquire_warm("w4"));

    proxy.blackhole_one_way(Direction::ToClient);
    let first = server.raw(&acquire(0)).await;
    beside.until("a", |lock| lock["held"] == true).await;
    server.hang_up(first).await;
    let mut give_back = proxy.hold_request(b"");
    proxy.pass();
    in_time("it is given back", give_back.caught()).await;
    // Each answer takes a while: the second request probes, takes over, and its client disconnects before the answer.
    proxy.delay(Direction::ToClient, Duration::from_millis(600));
    let second = server.raw(&acquire(0)).await;
    tokio::time::sleep(Duration::from_millis(900)).await;
    server.hang_up(second).await;
    give_back.deliver();
    assert!(is_free(&beside, "both have gone").await);
}

/// A repeat that the replicas do not confirm is an error; the lease from the first answer is unchanged.
#[tokio::test]
async fn a_repeat_that_replicas_do_not_confirm_ends_no_lease() {
    let servers = testkit::redis::with_replica();
    let url = format!("{}?wait_replicas=1&wait_timeout_ms=500", servers[0].url());
    let server = Server::on(Locks::connect(&url).await.unwrap(), Settings::default()).await;
    // A replica may be slow; then the answer is an error, and the same request is sent again.
    let granted = async || {
        in_time("the replica confirms it", async {
            loop {
                match server.verb("a", "acquire", body(0)).await {
                    granted if granted.status == 200 => return granted.body["fencing_token"].clone(),
                    refused => refused.is_problem(503, "UNAVAILABLE"),
                }
            }
        })
        .await
    };
    let fence = granted().await;
    servers[1].freeze();
    server.verb("a", "acquire", body(0)).await.is_problem(503, "UNAVAILABLE");
    servers[1].go_on();
    assert_eq!(server.acquire("a").await.status, 409, "another client got the lock");
    assert_eq!(granted().await, fence);
}
