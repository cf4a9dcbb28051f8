//! Sentinels that are wrong, or silent, beside others that know the primary.

use leasehold::backend::{Backend as _, Release};
use leasehold::backends::redis::Redis;
use leasehold::{ErrorKind, Locks};
use testkit::redis::{Sentinels, Server, free_port};
use testkit::until::{in_time, until, until_async};

use crate::support::{HOUR, LONG, a_release_is_pushed, claim, granted, granted_at_last, name};

/// Lets a sentinel say that the primary is there, as one that was cut off or started from an old file does.
fn misled(sentinel: &Server, port: u16) {
    assert_eq!(sentinel.cli(&["SENTINEL", "REMOVE", "main"]), "OK");
    assert_eq!(sentinel.cli(&["SENTINEL", "MONITOR", "main", "127.0.0.1", &port.to_string(), "2"]), "OK");
}

/// A lock is taken and handed over, also after all connections broke.
async fn all_works(group: &Sentinels, url: &str) {
    let store = in_time("a store", Redis::connect(url)).await.unwrap();
    for on in ["first", "again", "once more", "and again"] {
        let held = claim(on, LONG);
        in_time("a grant", granted_at_last(&store, &held)).await;
        store.release(&Release::new(name(on), held.id)).await.unwrap();
        a_release_is_pushed(&store, on).await;
        group.servers[0].cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        group.servers[0].cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    let guard = Locks::connect(url).await.unwrap().mutex("x").lock().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_sentinel_that_names_a_dead_server_stops_nobody() {
    let group = Sentinels::start();
    misled(&group.sentinels[0], free_port());
    all_works(&group, &group.url()).await;
    // One that is alone with it has no better answer.
    let alone = format!("redis-sentinel://127.0.0.1:{}/main", group.sentinels[0].port());
    let error = Redis::connect(&alone).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn a_sentinel_that_names_a_replica_stops_nobody() {
    let group = Sentinels::start();
    misled(&group.sentinels[0], group.servers[1].port());
    misled(&group.sentinels[1], group.servers[1].port());
    all_works(&group, &group.url()).await;
}

#[tokio::test]
async fn a_replica_that_nobody_may_ask_for_its_role_is_left() {
    let group = Sentinels::start();
    for server in &group.servers {
        server.cli(&["ACL", "SETUSER", "app", "on", ">hush", "~*", "&*", "+@all", "-info"]);
    }
    misled(&group.sentinels[0], group.servers[1].port());
    let store = Redis::connect(&group.url().replace("://", "://app:hush@")).await.unwrap();
    granted_at_last(&store, &claim("x", LONG)).await;
}

#[tokio::test]
async fn silent_sentinels_and_servers_leave_time_for_the_others() {
    let group = Sentinels::start();
    let silent = Server::start();
    group.sentinels[0].freeze();
    misled(&group.sentinels[1], silent.port());
    silent.freeze();
    // Whoever waits for one of them to the end waits for an hour.
    let url = format!("{}?connect_timeout_ms=3600000", group.url());
    all_works(&group, &url).await;
    // And with an ordinary limit.
    all_works(&group, &group.url()).await;
    silent.go_on();
    group.sentinels[0].go_on();
}

#[tokio::test]
async fn a_cut_off_sentinel_does_not_hide_a_failover() {
    let mut group = Sentinels::start();
    let store = Redis::connect(&group.url()).await.unwrap();
    granted(&store, &claim("before", HOUR)).await;
    assert_eq!(group.servers[0].cli(&["WAIT", "1", "30000"]), "1");
    // The others forget the first sentinel, and find each other and the replica again: nobody tells it anything.
    let old = group.servers[0].port();
    assert_eq!(group.sentinels[0].cli(&["SENTINEL", "REMOVE", "main"]), "OK");
    for sentinel in &group.sentinels[1..] {
        assert_eq!(sentinel.cli(&["SENTINEL", "RESET", "main"]), "1");
    }
    until("the other sentinels can agree on a failover", || {
        group.sentinels[1..].iter().all(|sentinel| {
            let known = |field: &str| {
                let seen = sentinel.cli(&["SENTINEL", "MASTER", "main"]);
                seen.lines().skip_while(|line| *line != field).nth(1).map(str::to_owned)
            };
            known("num-other-sentinels").as_deref() == Some("1")
                && known("num-slaves").as_deref() == Some("1")
        })
    });
    group.servers[0].kill();
    let to = ["SENTINEL", "MONITOR", "main", "127.0.0.1", &old.to_string(), "2"];
    assert_eq!(group.sentinels[0].cli(&to), "OK");
    granted_at_last(&store, &claim("after", LONG)).await;
    until_async("a second client gets there too", async || Redis::connect(&group.url()).await.is_ok()).await;
    assert_eq!(group.primary(), old.to_string(), "the first sentinel still names the old one");
}
