//! What happens when Redis breaks, refuses, forgets or moves.

use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Mode, Release, Released, Renewal, Renewed};
use leasehold::backends::redis::Redis;
use leasehold::{ErrorKind, Gone, Guard, Locks};
use testkit::redis::{Sentinels, Server, with_replica};
use testkit::until::{PATIENCE, in_time, until, until_async};
use tokio::task::JoinHandle;

use crate::support::{
    HOUR, LONG, TICKET, a_release_is_pushed, busy, claim, granted, granted_at_last, look, name,
    own_connection, served, until_one_waits,
};

#[tokio::test]
async fn scripts_survive_script_flush_and_connections_are_replaced() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let held = claim("a", LONG);
    granted(&store, &held).await;
    server.cli(&["SCRIPT", "FLUSH"]);
    let renewals: Vec<Renewal> = (0..5).map(|_| Renewal::new(name("a"), held.id, LONG)).collect();
    server.cli(&["CONFIG", "RESETSTAT"]);
    for answer in store.renew(&renewals).await {
        assert!(matches!(answer.unwrap(), Renewed::Held(_)));
    }
    let stats = server.cli(&["INFO", "commandstats"]);
    assert!(stats.contains("cmdstat_eval:calls=1,"), "the text goes out once for all: {stats}");
    server.cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(store.release(&Release::new(name("a"), held.id)).await.unwrap(), Released::Done);
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    granted_at_last(&store, &claim("b", LONG)).await;
}

/// A task that waits for the lock, and is in the queue already.
async fn begin_to_wait(locks: &Locks, other: &Redis) -> JoinHandle<leasehold::Result<Guard>> {
    let mutex = locks.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    until_one_waits(other, "x").await;
    waiting
}

#[tokio::test]
async fn a_killed_subscriber_misses_no_hand_over_and_is_replaced() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    a_release_is_pushed(&store, "x").await;
    let (held, queued) = (claim("x", HOUR), claim("x", HOUR).queued(HOUR));
    granted(&store, &held).await;
    busy(&store, &queued).await;
    assert_eq!(server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]), "1");
    store.release(&Release::new(name("x"), held.id)).await.unwrap();
    served(&store, &queued).await;
    store.release(&Release::new(name("x"), queued.id)).await.unwrap();
    a_release_is_pushed(&store, "x").await;
}

#[tokio::test]
async fn a_release_of_an_older_attempt_ends_no_newer_wait() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    a_release_is_pushed(&store, "x").await;
    granted(&store, &claim("x", HOUR)).await;
    let mut queued = claim("x", HOUR).queued(HOUR);
    queued.nonce = 2;
    busy(&store, &queued).await;
    let mut release = Release::new(name("x"), queued.id);
    release.nonce = Some(1);
    assert_eq!(store.release(&release).await.unwrap(), Released::Gone(Gone::Superseded));
    let ended = tokio::time::timeout(Duration::from_millis(200), store.wait(&queued)).await;
    assert!(ended.is_err(), "{ended:?}");
    release.nonce = Some(2);
    let (ended, released) = tokio::join!(in_time("the wait", store.wait(&queued)), store.release(&release));
    ended.unwrap();
    assert_eq!(released.unwrap(), Released::Done);
}

#[tokio::test]
async fn a_server_that_stalls_is_a_fault_and_never_contention() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let hasty = Redis::connect(&format!("{}?response_timeout_ms=500", server.url())).await.unwrap();
    granted_at_last(&hasty, &claim("warm", LONG)).await;
    let unanswered = claim("stall", HOUR);
    let fails = async |claim: &Claim| {
        server.freeze();
        let error = hasty.try_acquire(claim).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{error}");
        server.go_on();
    };
    fails(&unanswered).await;
    // The same claim again: the same lease, or refused once it was given up, but never blocked by itself.
    let mut again = unanswered.clone();
    (again.repeat, again.first) = (true, false);
    granted_at_last(&hasty, &again).await;
    // And while another client has it.
    fails(&claim("stall", LONG)).await;
    busy(&store, &claim("stall", LONG)).await;
    let mut back = Release::new(name("stall"), unanswered.id);
    back.unanswered = Some(LONG);
    store.release(&back).await.unwrap();
    assert!(matches!(store.try_acquire(&unanswered).await.unwrap(), Attempt::Gone(Gone::Superseded)));
    granted(&store, &claim("stall", LONG)).await;
}

#[tokio::test]
async fn a_flush_while_held_frees_the_name_and_fences_still_rise() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let held = claim("x", LONG);
    let before = granted(&store, &held).await;
    server.cli(&["FLUSHALL"]);
    let renewal = Renewal::new(name("x"), held.id, LONG);
    assert_eq!(store.renew(&[renewal]).await.remove(0).unwrap(), Renewed::Gone(Gone::NotFound));
    let after = granted(&store, &claim("x", LONG)).await;
    assert!(after.fence > before.fence);
}

#[tokio::test]
async fn a_restart_keeps_leases_and_fences_rise_even_without_data() {
    let mut server = Server::durable();
    let store = Redis::connect(&server.url()).await.unwrap();
    let held = claim("x", LONG);
    let first = granted(&store, &held).await;
    server.restart();
    let mut again = held.clone();
    (again.repeat, again.first) = (true, false);
    let kept = granted_at_last(&store, &again).await;
    assert_eq!(kept.fence, first.fence);
    busy(&store, &claim("x", LONG)).await;
    store.release(&Release::new(name("x"), held.id)).await.unwrap();
    let second = granted(&store, &claim("x", LONG)).await;
    assert!(second.fence > first.fence);
    server.restart_empty();
    let third = granted_at_last(&store, &claim("x", LONG)).await;
    assert!(third.fence > second.fence);
}

#[tokio::test]
async fn a_waiting_acquire_outlives_a_restart_of_the_server() {
    let mut server = Server::durable();
    let locks = Locks::connect(&server.url()).await.unwrap().with_namespace("");
    let other = Redis::connect(&server.url()).await.unwrap();
    let held = claim("x", LONG);
    granted(&other, &held).await;
    let waiting = begin_to_wait(&locks, &other).await;
    server.restart();
    let release = Release::new(name("x"), held.id);
    until_async("the release gets through", async || other.release(&release).await.is_ok()).await;
    let guard = in_time("its turn", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_killed_server_is_unavailable() {
    let mut server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    granted(&store, &claim("x", LONG)).await;
    server.kill();
    for _ in 0..2 {
        let error = store.try_acquire(&claim("x", LONG)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    let error = Redis::connect(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!format!("{error:?}").contains(&server.port().to_string()), "{error:?}");
}

#[tokio::test]
async fn a_full_server_grants_nothing_new_and_loses_nothing() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let (held, other) = (claim("x", LONG), claim("y", LONG));
    granted(&store, &held).await;
    granted(&store, &other).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    for attempt in [claim("new", LONG), claim("x", LONG).queued(TICKET)] {
        let error = store.try_acquire(&attempt).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("maxmemory"), "{error}");
    }
    assert_eq!(server.cli(&["EXISTS", "leasehold:{/new}"]), "0");
    // Renewals and releases go on.
    let renewal = Renewal::new(name("x"), held.id, LONG * 2);
    match store.renew(&[renewal]).await.remove(0).unwrap() {
        Renewed::Held(grant) => assert!(grant.left.unwrap() > LONG),
        gone => panic!("{gone:?}"),
    }
    assert_eq!(store.release(&Release::new(name("x"), held.id)).await.unwrap(), Released::Done);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    granted(&store, &claim("x", LONG)).await;
}

#[tokio::test]
async fn a_replica_is_refused_and_one_that_became_one_is_unavailable() {
    let servers = with_replica();
    let error = Redis::connect(&servers[1].url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("replica"), "{error}");
    let store = Redis::connect(&servers[0].url()).await.unwrap();
    granted(&store, &claim("x", LONG)).await;
    servers[1].cli(&["REPLICAOF", "NO", "ONE"]);
    servers[0].cli(&["REPLICAOF", "127.0.0.1", &servers[1].port().to_string()]);
    let error = store.try_acquire(&claim("y", LONG)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_refused_login_is_auth_failed_and_shows_no_password() {
    let server = Server::with(&["--requirepass", "hush-hush"]);
    let open = format!("redis://127.0.0.1:{}", server.port());
    for url in [open.clone(), open.replace("127", ":wrong-one@127")] {
        let error = Redis::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error:?}");
        assert!(!format!("{error:?}").contains("wrong-one"));
    }
    let store = Redis::connect(&server.url()).await.unwrap();
    assert!(!format!("{store:?}").contains("hush-hush"));
    granted(&store, &claim("x", LONG)).await;
    // The user of docs/redis.md can do everything.
    let docs = include_str!("../../../../docs/redis.md");
    let (_, command) = docs.split_once("redis-cli ACL SETUSER locks").unwrap();
    let (rules, _) = command.split_once("```").unwrap();
    let rules = rules.split_whitespace().filter(|word| *word != "\\").map(|word| word.trim_matches('\''));
    let rules: Vec<&str> = ["ACL", "SETUSER", "locks"].into_iter().chain(rules).collect();
    assert_eq!(server.cli(&rules), "OK");
    let url = open.replace("127", "locks:secret@127");
    let connect =
        || async { Ok(std::sync::Arc::new(Redis::connect(&url).await?) as std::sync::Arc<dyn Backend>) };
    let harness = leasehold::conformance::Harness::connect(connect).await.unwrap();
    leasehold::conformance::run_all(&harness).await.assert_passed();
    // And it can do nothing else.
    let store = Redis::connect(&url).await.unwrap();
    server.cli(&["ACL", "SETUSER", "locks", "-evalsha"]);
    let error = store.try_acquire(&claim("x", LONG)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error:?}");
}

#[tokio::test]
async fn over_tls_with_an_authority_of_its_own() {
    let server = Server::with_tls();
    let store = Redis::connect(&server.url()).await.unwrap();
    assert_eq!(store.info().scheme, "rediss");
    granted(&store, &claim("x", LONG)).await;
    busy(&store, &claim("x", LONG)).await;
    a_release_is_pushed(&store, "y").await;
    let pem = std::fs::read(server.ca()).unwrap();
    let bare = format!("rediss://localhost:{}", server.port());
    Redis::builder(&bare).unwrap().root_certificate(pem).connect().await.unwrap();
    let error = Redis::connect(&bare).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "an unknown authority is not trusted");
}

#[tokio::test]
async fn a_failover_is_followed_through_the_sentinels() {
    let mut group = Sentinels::start();
    let store = Redis::connect(&group.url()).await.unwrap();
    let locks = Locks::connect(&group.url()).await.unwrap().with_namespace("");
    let held = claim("x", HOUR);
    let before = granted(&store, &held).await;
    let waiting = begin_to_wait(&locks, &store).await;
    assert_eq!(group.servers[0].cli(&["WAIT", "1", "30000"]), "1");
    group.servers[0].kill();
    let mut again = held.clone();
    (again.repeat, again.first) = (true, false);
    let after = granted_at_last(&store, &again).await;
    assert_eq!(after.fence, before.fence, "the replica has it");
    // Another sentinel may have told the client before this one knew.
    let next = group.servers[1].port().to_string();
    until_async("the first sentinel names the next primary", async || group.primary() == next).await;
    store.release(&Release::new(name("x"), held.id)).await.unwrap();
    let guard = in_time("its turn", waiting).await.unwrap().unwrap();
    assert!(guard.fence() > after.fence);
    guard.release().await.unwrap();
    assert_eq!(store.info().scheme, "redis-sentinel");
}

#[tokio::test]
async fn servers_and_sentinels_have_passwords_of_their_own() {
    let group = Sentinels::with_passwords("for-servers", "for-sentinels");
    let without = group.url();
    let servers = without.replace("://", "://:for-servers@");
    let both = format!("{servers}?sentinel_password=for%2Dsentinels");
    let wrong = format!("{servers}?sentinel_password=for-nobody");
    for url in [&without, &servers, &wrong, &format!("{without}?sentinel_password=for-sentinels")] {
        let error = Redis::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error:?}");
        assert!(!format!("{error:?}").contains("for-"), "{error:?}");
    }
    let store = Redis::connect(&both).await.unwrap();
    assert!(!format!("{store:?}").contains("for-"));
    let held = claim("x", LONG);
    granted(&store, &held).await;
    let builder = Redis::builder(&servers).unwrap().sentinel_login(Some("default"), "for-sentinels");
    assert!(!format!("{builder:?}").contains("for-"));
    let other = builder.connect().await.unwrap();
    busy(&other, &claim("x", LONG)).await;
}

#[tokio::test]
async fn a_connection_of_the_callers_own_is_used_until_it_breaks() {
    let server = Server::start();
    let own = own_connection(&server.url()).await;
    let store = Redis::with_connection(&server.url(), own).await.unwrap();
    granted(&store, &Claim::new(name("x"), Mode::Exclusive, LONG, "x")).await;
    let clients = server.cli(&["CLIENT", "LIST", "TYPE", "normal"]);
    assert_eq!(clients.lines().filter(|line| !line.contains("cmd=client")).count(), 1, "{clients}");
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    granted_at_last(&store, &claim("y", LONG)).await;
    let error = Redis::with_connection("redis-cluster://h", own_connection(&server.url()).await);
    assert_eq!(error.await.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn synchronous_callers_lock_and_wait_too() {
    let server = Server::start();
    let locks = leasehold::blocking::Locks::connect(&server.url()).unwrap();
    let guard = locks.mutex("x").lock().unwrap();
    let (got, fences) = std::sync::mpsc::channel();
    std::thread::spawn({
        let mutex = locks.mutex("x");
        move || got.send(mutex.lock().unwrap().fence())
    });
    until("it waits", || server.cli(&["PUBSUB", "CHANNELS"]).contains("leasehold-wake:"));
    let fence = guard.fence();
    guard.release().unwrap();
    assert!(fences.recv_timeout(PATIENCE).unwrap() > fence);
}

#[tokio::test]
async fn connections_and_renewals_outlive_the_runtime_of_the_caller() {
    let server = Server::start();
    let url = server.url();
    // A runtime of its own, gone when the lock is held: the connection was replaced while it was there.
    let port = server.port().to_string();
    let guard = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let locks = Locks::connect(&url).await.unwrap();
            locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
            let kill = ["-p", &port, "CLIENT", "KILL", "TYPE", "normal"];
            std::process::Command::new("redis-cli").args(kill).output().unwrap();
            let locks = locks.with_namespace("");
            locks.mutex("x").ttl(Duration::from_millis(4500)).lock().await.unwrap()
        })
    });
    let guard = guard.join().unwrap();
    let store = Redis::connect(&server.url()).await.unwrap();
    let renewals = async || look(&store, "x").await.holders.first().map_or(0, |holder| holder.grant.renewals);
    until_async("it is renewed again and again", async || renewals().await >= 2).await;
    assert!(guard.check().is_ok());
    guard.release().await.unwrap();
}
