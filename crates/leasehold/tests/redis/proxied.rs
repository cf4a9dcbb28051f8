//! What the network between a client and Redis can do: lose answers, deliver requests late, and fall silent.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold::backend::{Attempt, Backend as _, Release, Released, Renewal, Renewed};
use leasehold::backends::redis::Redis;
use leasehold::{ErrorKind, Gone, GuardState, LeaseId, Locks};
use testkit::proxy::{Direction, HeldRequest, Proxy};
use testkit::redis::Server;
use testkit::until::{in_time, until_async};

use crate::support::{
    HOUR, LONG, a_release_is_pushed, busy, claim, granted, granted_at_last, look, name, own_connection,
    served, until_one_waits,
};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn before(server: &Server) -> Proxy {
    Proxy::before((Ipv4Addr::LOCALHOST, server.port()).into()).unwrap()
}

/// A store through the proxy, whose answers must come this soon.
async fn through(proxy: &Proxy, patience: Duration) -> Redis {
    let store = Redis::builder(&format!("redis://{}", proxy.address())).unwrap();
    store.response_timeout(patience).connect().await.unwrap()
}

/// A store that has sent its scripts: from now on a verb is one request.
async fn warm(store: &Redis) {
    let held = claim("warm", HOUR);
    granted_at_last(store, &held).await;
    let renewal = [Renewal::new(name("warm"), held.id, LONG)];
    until_async("a renewal", async || store.renew(&renewal).await.remove(0).is_ok()).await;
    let release = Release::new(name("warm"), held.id);
    until_async("a release", async || store.release(&release).await.is_ok()).await;
}

/// Bytes that a request about this name contains.
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
    until_async("it arrives", async || calls() > before).await;
}

/// A store whose wake-ups come through a proxy, and whose calls do not.
async fn listening_through(proxy: &Proxy, server: &Server, options: &str) -> Redis {
    let own = own_connection(&server.url()).await;
    Redis::with_connection(&format!("redis://{}{options}", proxy.address()), own).await.unwrap()
}

/// What happens to a connection.
type Trouble = fn(&Proxy);

/// A hand-over that begins this long after something happened to the subscriber, and one after that.
async fn handed_over_after(server: &Server, on: &str, trouble: Trouble, after: Duration) {
    let proxy = before(server);
    let store = listening_through(&proxy, server, "").await;
    a_release_is_pushed(&store, on).await;
    let (held, queued) = (claim(on, HOUR), claim(on, HOUR).queued(HOUR));
    granted(&store, &held).await;
    busy(&store, &queued).await;
    trouble(&proxy);
    let release = async {
        tokio::time::sleep(after).await;
        store.release(&Release::new(name(on), held.id)).await.unwrap();
    };
    tokio::join!(served(&store, &queued), release);
    store.release(&Release::new(name(on), queued.id)).await.unwrap();
    proxy.pass();
    proxy.refuse(false);
    a_release_is_pushed(&store, on).await;
}

#[tokio::test]
async fn whatever_happens_to_the_subscriber_no_hand_over_is_missed() {
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
    let moments = [0, 600, 1000, 1500, 2500];
    let all = troubles.iter().flat_map(|(what, trouble)| {
        moments.map(|moment| {
            let server = &server;
            async move {
                handed_over_after(server, &format!("{what}-{moment}"), *trouble, ms(moment)).await;
            }
        })
    });
    join_all(all).await;
}

#[tokio::test]
async fn a_waiter_from_before_the_subscription_is_served_too() {
    let server = Server::start();
    let proxy = before(&server);
    // A connect that never ends: the waiters learn that it takes long.
    let store = listening_through(&proxy, &server, "?connect_timeout_ms=3600000").await;
    proxy.blackhole();
    let (held, queued) = (claim("x", HOUR), claim("x", HOUR).queued(HOUR));
    granted(&store, &held).await;
    busy(&store, &queued).await;
    store.release(&Release::new(name("x"), held.id)).await.unwrap();
    // It learns of it in its wait, or before.
    let _ = in_time("the waiter tries by itself", store.wait(&queued)).await;
    granted(&store, &queued).await;
}

#[tokio::test]
async fn a_lock_repeated_after_a_lost_answer_is_the_same_lease() {
    let server = Server::start();
    let proxy = before(&server);
    let (store, direct) = (through(&proxy, ms(1500)).await, Redis::connect(&server.url()).await.unwrap());
    warm(&store).await;
    let mutex = Locks::new(store).with_namespace("").mutex("x");
    for round in 0..2 {
        proxy.swallow_answer(&about("x"));
        let started = Instant::now();
        let waiting = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock().await }
        });
        until_async("the answer is swallowed", async || proxy.counts().swallowed > round).await;
        let first = look(&direct, "x").await.holders.remove(0);
        let guard = in_time("the lock", waiting).await.unwrap().unwrap();
        assert!(started.elapsed() < LONG, "in its own way: {:?}", started.elapsed());
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
async fn a_try_lock_with_a_lost_answer_fails_and_is_given_back() {
    let server = Server::start();
    let proxy = before(&server);
    let (store, direct) = (through(&proxy, ms(500)).await, Redis::connect(&server.url()).await.unwrap());
    warm(&store).await;
    proxy.swallow_answer(&about("x"));
    let started = Instant::now();
    let waiting = tokio::spawn({
        let mutex = Locks::new(store).with_namespace("").mutex("x");
        async move { mutex.try_lock().await }
    });
    until_async("the answer is swallowed", async || proxy.counts().swallowed > 0).await;
    let fence = look(&direct, "x").await.last_fence;
    assert!(!fence.is_unfenced(), "it was granted");
    let error = in_time("an answer", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{error}");
    let mutex = Locks::new(direct.clone()).with_namespace("").mutex("x");
    let guard = in_time("it is given back", mutex.lock()).await.unwrap();
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    assert!(guard.fence() > fence);
    let mut late = claim("x", LONG);
    let spent = server.cli(&["ZRANGE", "leasehold:{/x}:spent", "0", "-1"]);
    late.id = LeaseId::parse(&spent).unwrap();
    assert!(matches!(direct.try_acquire(&late).await.unwrap(), Attempt::Gone(Gone::Superseded)));
    guard.release().await.unwrap();
    assert!(matches!(direct.try_acquire(&late).await.unwrap(), Attempt::Gone(Gone::Superseded)));
}

#[tokio::test]
async fn an_attempt_arriving_after_its_caller_left_makes_no_ghost() {
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
                biased;
                () = in_time("the request", late.caught()) => {}
                _ = mutex.lock() => panic!("the request was held back"),
            }
        } else {
            let error = mutex.try_lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{error}");
            in_time("the request", late.caught()).await;
        }
        // Promise 8: whatever it may have got is given back before anything else happens.
        let key = String::from_utf8(about(on)).unwrap();
        until_async("it is given back", async || server.cli(&["EXISTS", &key]) == "1").await;
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
async fn a_late_release_or_renewal_touches_no_other_lease() {
    let server = Server::start();
    let proxy = before(&server);
    let (store, direct) = (through(&proxy, ms(500)).await, Redis::connect(&server.url()).await.unwrap());
    warm(&store).await;
    for (on, releases) in [("a", true), ("b", false)] {
        let first = claim(on, ms(1500));
        granted_at_last(&store, &first).await;
        let mut late = proxy.hold_request(first.id.expose().as_bytes());
        let error = if releases {
            store.release(&Release::new(name(on), first.id)).await.unwrap_err()
        } else {
            store.renew(&[Renewal::new(name(on), first.id, LONG)]).await.remove(0).unwrap_err()
        };
        assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{error}");
        in_time("the request", late.caught()).await;
        let second = claim(on, LONG);
        until_async("the first has expired", async || {
            matches!(direct.try_acquire(&second).await.unwrap(), Attempt::Granted(_))
        })
        .await;
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
    proxy.delay(Direction::ToServer, ms(150));
    proxy.delay(Direction::ToClient, ms(150));
    let guard = Locks::new(store).with_namespace("").mutex("x").ttl(ms(9000)).lock().await.unwrap();
    let mut before = Duration::MAX;
    until_async("it is renewed, and believed for longer", async || {
        // Look at the belief first: then the store's answer is about a later moment.
        let (believed, at) = (guard.valid_for().unwrap(), Instant::now());
        let kept = look(&direct, "x").await.holders.remove(0).grant;
        let left = at.elapsed() + kept.left.unwrap();
        assert!(believed <= left, "{believed:?} believed, {left:?} left");
        guard.check().unwrap();
        kept.renewals > 0 && believed > std::mem::replace(&mut before, believed)
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_long_silence_is_a_loss_never_two_holders_and_then_heals() {
    let server = Server::start();
    let proxy = before(&server);
    let (store, direct) = (through(&proxy, ms(500)).await, Redis::connect(&server.url()).await.unwrap());
    warm(&store).await;
    let locks = Locks::new(store).with_namespace("");
    // A third of it passes before the first renewal fails, and more than another before it is lost.
    let guard = locks.mutex("x").ttl(ms(4500)).lock().await.unwrap();
    proxy.blackhole();
    let mut states = vec![GuardState::Held];
    let next = claim("x", HOUR);
    until_async("another has it", async || {
        if states.last() != Some(&guard.state()) {
            states.push(guard.state());
        }
        match direct.try_acquire(&next).await.unwrap() {
            Attempt::Granted(_) => true,
            other => {
                assert!(matches!(other, Attempt::Busy(_)), "{other:?}");
                false
            }
        }
    })
    .await;
    assert_eq!(guard.state(), GuardState::Lost, "when another has it");
    states.retain(|state| *state != GuardState::Lost);
    assert_eq!(states, [GuardState::Held, GuardState::AtRisk]);
    in_time("the signal", guard.lost()).await;
    // The renewals that were held back arrive now.
    proxy.pass();
    let waiting = tokio::spawn({
        let mutex = locks.mutex("x");
        async move { mutex.lock().await }
    });
    until_one_waits(&direct, "x").await;
    assert_eq!(guard.state(), GuardState::Lost, "a loss is final");
    drop(guard);
    assert_eq!(look(&direct, "x").await.holders[0].id, next.id);
    direct.release(&Release::new(name("x"), next.id)).await.unwrap();
    let again = in_time("its turn", waiting).await.unwrap().unwrap();
    again.release().await.unwrap();
}

#[tokio::test]
async fn a_cut_request_or_answer_is_a_fault_and_a_repeat_is_one_lease() {
    let server = Server::start();
    let proxy = before(&server);
    let (store, direct) = (through(&proxy, LONG).await, Redis::connect(&server.url()).await.unwrap());
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
async fn renewals_with_cut_answers_are_faults_and_not_losses() {
    let server = Server::start();
    let proxy = before(&server);
    let store = through(&proxy, LONG).await;
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
