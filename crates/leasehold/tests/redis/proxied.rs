//! What the network between a client and Redis can do: answers that are lost, requests that come late, and silence.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold::backend::{Attempt, Backend as _, Release, Released, Renewal, Renewed};
use leasehold::backends::redis::Redis;
use leasehold::{ErrorKind, Gone, Locks, State};
use testkit::proxy::{Direction, HeldRequest, Proxy};
use testkit::redis::Server;
use tokio::time::timeout;

use crate::support::{LONG, TICKET, busy, claim, granted, granted_at_last, look, name};

/// Nothing here takes so long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(20);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn before(server: &Server) -> Proxy {
    Proxy::before((Ipv4Addr::LOCALHOST, server.port()).into()).unwrap()
}

/// Through the proxy, with an answer that has to come so soon.
async fn through(proxy: &Proxy, patience: Duration) -> Redis {
    let store = Redis::builder(&format!("redis://{}", proxy.address())).unwrap();
    store.response_timeout(patience).connect().await.unwrap()
}

/// A store that has sent its scripts: from here on a verb is one request.
async fn warm(store: &Redis) {
    let held = claim("warm", LONG);
    granted(store, &held).await;
    store.renew(&[Renewal::new(name("warm"), held.id, LONG)]).await.remove(0).unwrap();
    store.release(&Release::new(name("warm"), held.id)).await.unwrap();
}

/// What a request about this name contains.
fn about(on: &str) -> Vec<u8> {
    format!("leasehold:{{/{on}}}").into_bytes()
}

/// Lets a held request go on, and waits until the server has carried it out.
async fn delivered(server: &Server, held: HeldRequest) {
    let calls = || {
        let stats = server.cli(&["INFO", "commandstats"]);
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.and_then(|calls| calls.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = calls();
    held.deliver();
    let started = Instant::now();
    while calls() <= before {
        assert!(started.elapsed() < PATIENCE, "it did not arrive");
        tokio::time::sleep(ms(5)).await;
    }
}

/// A store whose wake-ups come through a proxy, and whose calls do not.
async fn listening_through(proxy: &Proxy, server: &Server) -> Redis {
    let client = redis::Client::open(server.url()).unwrap();
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(LONG));
    let own = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    Redis::with_connection(&format!("redis://{}", proxy.address()), own).await.unwrap()
}

/// Waits until the channel is there, and demands that a release comes over it.
async fn a_release_is_pushed(store: &Redis, on: &str) {
    let held = claim(on, LONG);
    granted(store, &held).await;
    let queued = claim(on, LONG).queued(TICKET);
    let started = Instant::now();
    loop {
        busy(store, &queued).await;
        // Without a channel it is told so before this.
        if timeout(ms(600), store.wait(&queued)).await.is_err() {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "no channel for wake-ups");
        tokio::time::sleep(ms(20)).await;
    }
    store.release(&Release::new(name(on), held.id)).await.unwrap();
    timeout(PATIENCE, store.wait(&queued)).await.unwrap().unwrap();
    granted(store, &queued).await;
    store.release(&Release::new(name(on), queued.id)).await.unwrap();
}

/// What happens to a connection.
type Trouble = fn(&Proxy);

/// How long a hand-over takes that begins so long after something happened to the subscriber.
async fn hand_over_after(server: &Server, on: &str, trouble: Trouble, after: Duration) -> Duration {
    let proxy = before(server);
    let store = listening_through(&proxy, server).await;
    let other = Redis::connect(&server.url()).await.unwrap();
    a_release_is_pushed(&store, on).await;
    let held = claim(on, LONG);
    granted(&other, &held).await;
    let waiting = tokio::spawn({
        let mutex = Locks::new(store.clone()).with_namespace("").mutex(on);
        async move { mutex.lock().await }
    });
    while look(&other, on).await.queue_length == 0 {
        tokio::time::sleep(ms(5)).await;
    }
    trouble(&proxy);
    tokio::time::sleep(after).await;
    let released = Instant::now();
    other.release(&Release::new(name(on), held.id)).await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    let delay = released.elapsed();
    guard.release().await.unwrap();
    proxy.pass();
    proxy.refuse(false);
    a_release_is_pushed(&store, on).await;
    delay
}

#[tokio::test]
async fn a_hand_over_is_delayed_by_a_second_at_most_whatever_happens_to_the_subscriber_and_the_next_is_pushed()
 {
    let server = Server::start();
    let troubles: [(&str, Trouble); 4] = [
        ("silence", |proxy| proxy.blackhole()),
        ("no-answer", |proxy| proxy.blackhole_one_way(Direction::ToClient)),
        ("reset", |proxy| proxy.reset()),
        ("gone", |proxy| {
            proxy.refuse(true);
            proxy.reset();
        }),
    ];
    let moments = [0, 600, 1000, 1500, 2500, 4000];
    let all = troubles.iter().flat_map(|(what, trouble)| {
        moments.map(|moment| {
            let server = &server;
            async move {
                let on = format!("{what}-{moment}");
                let delay = hand_over_after(server, &on, *trouble, ms(moment)).await;
                (on, delay)
            }
        })
    });
    for (what, delay) in join_all(all).await {
        assert!(delay < ms(1500), "{what}: {delay:?}");
    }
}

#[tokio::test]
async fn who_waits_before_there_was_a_channel_is_served_within_a_second_too() {
    let server = Server::start();
    let proxy = before(&server);
    let store = listening_through(&proxy, &server).await;
    proxy.blackhole();
    let held = claim("x", LONG);
    granted(&store, &held).await;
    let waiting = tokio::spawn({
        let mutex = Locks::new(store.clone()).with_namespace("").mutex("x");
        async move { mutex.lock().await }
    });
    while look(&store, "x").await.queue_length == 0 {
        tokio::time::sleep(ms(5)).await;
    }
    let released = Instant::now();
    store.release(&Release::new(name("x"), held.id)).await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert!(released.elapsed() < ms(1500), "{:?}", released.elapsed());
}

#[tokio::test]
async fn a_lock_whose_answer_was_swallowed_is_the_same_lease_when_it_is_asked_for_again() {
    let server = Server::start();
    let proxy = before(&server);
    let (store, direct) = (through(&proxy, ms(500)).await, Redis::connect(&server.url()).await.unwrap());
    warm(&store).await;
    let mutex = Locks::new(store).with_namespace("").mutex("x");
    for round in 0..3 {
        proxy.swallow_answer(&about("x"));
        let started = Instant::now();
        let waiting = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock().await }
        });
        while proxy.counts().swallowed == round {
            assert!(started.elapsed() < PATIENCE);
            tokio::time::sleep(ms(1)).await;
        }
        let first = look(&direct, "x").await.holders.remove(0);
        let guard = waiting.await.unwrap().unwrap();
        assert!(started.elapsed() < LONG / 2, "in its own way: {:?}", started.elapsed());
        assert_eq!((guard.lease_id(), guard.fence()), (first.id, first.grant.fence));
        assert!(guard.attempts() >= 2, "{}", guard.attempts());
        let seen = look(&direct, "x").await;
        assert_eq!((seen.holders.len(), seen.last_fence), (1, guard.fence()));
        assert!(guard.valid_for().unwrap() <= seen.holders[0].grant.left.unwrap() + ms(1000));
        guard.release().await.unwrap();
        assert!(look(&direct, "x").await.holders.is_empty());
    }
}

#[tokio::test]
async fn a_try_lock_whose_answer_was_swallowed_fails_and_is_given_back() {
    let server = Server::start();
    let proxy = before(&server);
    let (store, direct) = (through(&proxy, ms(2000)).await, Redis::connect(&server.url()).await.unwrap());
    warm(&store).await;
    proxy.swallow_answer(&about("x"));
    let started = Instant::now();
    let waiting = tokio::spawn({
        let mutex = Locks::new(store).with_namespace("").mutex("x");
        async move { mutex.try_lock().await }
    });
    while proxy.counts().swallowed == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let ghost = look(&direct, "x").await.holders.remove(0);
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{error}");
    let guard = Locks::new(direct.clone()).with_namespace("").mutex("x").lock().await.unwrap();
    assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());
    assert!(guard.fence() > ghost.grant.fence);
    let mut late = claim("x", LONG);
    late.id = ghost.id;
    assert!(matches!(direct.try_acquire(&late).await.unwrap(), Attempt::Gone(Gone::Superseded)));
    guard.release().await.unwrap();
    assert!(matches!(direct.try_acquire(&late).await.unwrap(), Attempt::Gone(Gone::Superseded)));
}

#[tokio::test]
async fn an_attempt_that_arrives_after_its_caller_gave_up_makes_no_ghost_holder() {
    let server = Server::start();
    let proxy = before(&server);
    let (store, direct) = (through(&proxy, ms(500)).await, Redis::connect(&server.url()).await.unwrap());
    warm(&store).await;
    let locks = Locks::new(store).with_namespace("");
    for (on, still_held, waits) in
        [("a", true, false), ("b", false, false), ("c", true, true), ("d", false, true)]
    {
        let mut late = proxy.hold_request(&about(on));
        let mutex = locks.mutex(on);
        if waits {
            // Dropped while its first request is on its way.
            tokio::select! {
                _ = mutex.lock() => panic!("the request was held back"),
                () = late.caught() => {}
            }
        } else {
            let error = mutex.try_lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{error}");
            assert!(late.is_caught());
        }
        // Promise 8: whatever it may have got is given back before anything else happens.
        let started = Instant::now();
        while server.cli(&["EXISTS", &String::from_utf8(about(on)).unwrap()]) == "0" {
            assert!(started.elapsed() < PATIENCE, "nothing was given back");
            tokio::time::sleep(ms(5)).await;
        }
        let other = claim(on, LONG);
        let grant = granted(&direct, &other).await;
        if !still_held {
            direct.release(&Release::new(name(on), other.id)).await.unwrap();
        }
        delivered(&server, late).await;
        let seen = look(&direct, on).await;
        let holders: Vec<_> = seen.holders.iter().map(|holder| holder.id).collect();
        assert_eq!(holders, if still_held { vec![other.id] } else { Vec::new() }, "{on}");
        assert_eq!((seen.queue_length, seen.last_fence), (0, grant.fence), "{on}");
    }
}

#[tokio::test]
async fn a_release_or_renewal_that_arrives_late_touches_nobody_elses_lease() {
    let server = Server::start();
    let proxy = before(&server);
    let (store, direct) = (through(&proxy, ms(500)).await, Redis::connect(&server.url()).await.unwrap());
    warm(&store).await;
    for (on, releases) in [("a", true), ("b", false)] {
        let first = claim(on, ms(1500));
        granted(&store, &first).await;
        let late = proxy.hold_request(first.id.expose().as_bytes());
        let error = if releases {
            store.release(&Release::new(name(on), first.id)).await.unwrap_err()
        } else {
            store.renew(&[Renewal::new(name(on), first.id, LONG)]).await.remove(0).unwrap_err()
        };
        assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{error}");
        assert!(late.is_caught());
        let second = claim(on, LONG);
        let started = Instant::now();
        while !matches!(direct.try_acquire(&second).await.unwrap(), Attempt::Granted(_)) {
            assert!(started.elapsed() < PATIENCE);
            tokio::time::sleep(ms(5)).await;
        }
        let before = look(&direct, on).await.holders;
        delivered(&server, late).await;
        let after = look(&direct, on).await.holders;
        assert!(after[0].grant.left <= before[0].grant.left);
        assert_eq!(after[0].grant.renewals, 0);
        assert_eq!((after.len(), after[0].id, after[0].revoked), (1, second.id, false));
        // And no life of its own.
        assert_eq!(direct.release(&Release::new(name(on), second.id)).await.unwrap(), Released::Done);
        let renewal = Renewal::new(name(on), first.id, LONG);
        assert!(matches!(direct.renew(&[renewal]).await.remove(0).unwrap(), Renewed::Gone(_)));
        assert!(look(&direct, on).await.holders.is_empty());
    }
}

#[tokio::test]
async fn on_a_slow_way_a_guard_never_believes_longer_than_the_store() {
    let server = Server::start();
    let proxy = before(&server);
    let direct = Redis::connect(&server.url()).await.unwrap();
    let store = through(&proxy, ms(2000)).await;
    warm(&store).await;
    proxy.delay(Direction::ToServer, ms(300));
    proxy.delay(Direction::ToClient, ms(300));
    let guard = Locks::new(store).with_namespace("").mutex("x").ttl(ms(8000)).lock().await.unwrap();
    let mut renewals = 0;
    let started = Instant::now();
    while renewals < 2 {
        assert!(started.elapsed() < PATIENCE);
        // What is believed first: then the store's word is about a later moment.
        let (believed, at) = (guard.valid_for().unwrap(), Instant::now());
        let kept = look(&direct, "x").await.holders.remove(0).grant;
        let left = at.elapsed() + kept.left.unwrap();
        assert!(believed <= left, "{believed:?} believed, {left:?} left");
        guard.check().unwrap();
        renewals = kept.renewals;
        tokio::time::sleep(ms(20)).await;
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_silence_longer_than_the_ttl_is_a_risk_then_a_loss_and_never_two_holders_and_then_all_works_again()
{
    let server = Server::start();
    let proxy = before(&server);
    let (store, direct) = (through(&proxy, ms(500)).await, Redis::connect(&server.url()).await.unwrap());
    warm(&store).await;
    let locks = Locks::new(store).with_namespace("");
    let guard = locks.mutex("x").ttl(ms(3000)).lock().await.unwrap();
    proxy.blackhole();
    let mut states = vec![State::Held];
    let next = claim("x", LONG);
    let started = Instant::now();
    loop {
        if states.last() != Some(&guard.state()) {
            states.push(guard.state());
        }
        match direct.try_acquire(&next).await.unwrap() {
            Attempt::Granted(_) => break,
            other => assert!(matches!(other, Attempt::Busy(_)), "{other:?}"),
        }
        assert!(started.elapsed() < PATIENCE);
        tokio::time::sleep(ms(2)).await;
    }
    assert_eq!(guard.state(), State::Lost, "when another has it");
    states.retain(|state| *state != State::Lost);
    assert_eq!(states, [State::Held, State::AtRisk]);
    timeout(PATIENCE, guard.lost()).await.unwrap();
    // The renewals that were held back arrive now.
    proxy.pass();
    let waiting = tokio::spawn({
        let mutex = locks.mutex("x");
        async move { mutex.lock().await }
    });
    while look(&direct, "x").await.queue_length == 0 {
        assert!(started.elapsed() < PATIENCE * 2);
        tokio::time::sleep(ms(5)).await;
    }
    assert_eq!(guard.state(), State::Lost, "a loss is final");
    drop(guard);
    assert_eq!(look(&direct, "x").await.holders[0].id, next.id);
    direct.release(&Release::new(name("x"), next.id)).await.unwrap();
    let again = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    again.release().await.unwrap();
}

#[tokio::test]
async fn an_answer_or_a_request_cut_in_two_is_a_fault_and_asked_again_gives_one_lease() {
    let server = Server::start();
    let proxy = before(&server);
    let (store, direct) = (through(&proxy, ms(500)).await, Redis::connect(&server.url()).await.unwrap());
    warm(&store).await;
    let mut cut = 0;
    for (way, bytes) in [(Direction::ToClient, 1..75), (Direction::ToServer, 1..400)] {
        for bytes in bytes.step_by(if way == Direction::ToClient { 3 } else { 17 }) {
            let one = claim("x", LONG);
            proxy.cut_after(way, bytes);
            match store.try_acquire(&one).await {
                Err(error) => {
                    assert!(error.is_retryable(), "{error:?}");
                    cut += 1;
                }
                // The cut comes later, in the next answer.
                Ok(attempt) => assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}"),
            }
            let stored = look(&direct, "x").await;
            let mut again = one.clone();
            (again.repeat, again.first) = (true, false);
            let grant = granted_at_last(&store, &again).await;
            if let Some(holder) = stored.holders.first() {
                assert_eq!(holder.grant.fence, grant.fence);
            }
            assert_eq!(look(&direct, "x").await.holders.len(), 1);
            assert_eq!(direct.release(&Release::new(name("x"), one.id)).await.unwrap(), Released::Done);
        }
    }
    assert!(cut >= 30, "{cut}");
}

#[tokio::test]
async fn renewals_whose_answers_were_cut_off_in_the_middle_are_faults_and_not_losses() {
    let server = Server::start();
    let proxy = before(&server);
    let store = through(&proxy, ms(500)).await;
    warm(&store).await;
    let mut renewals = Vec::new();
    for i in 0..20 {
        let one = claim(&format!("n{i}"), LONG);
        granted(&store, &one).await;
        renewals.push(Renewal::new(one.name.clone(), one.id, LONG));
    }
    for bytes in [1, 70, 500, 1000] {
        proxy.cut_after(Direction::ToClient, bytes);
        let mut faults = 0;
        for answer in store.renew(&renewals).await {
            match answer {
                Ok(answer) => assert!(matches!(answer, Renewed::Held(_)), "{answer:?}"),
                Err(error) => {
                    assert!(error.is_retryable(), "{error:?}");
                    faults += 1;
                }
            }
        }
        assert!(faults > 0, "{bytes}");
        for answer in store.renew(&renewals).await {
            assert!(matches!(answer.unwrap(), Renewed::Held(_)));
        }
    }
}
