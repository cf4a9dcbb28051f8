//! Sentinels that are wrong, or silent, beside others that know the primary.

use leasehold::Locks;
use leasehold::backend::{Backend as _, Release};
use leasehold::backends::redis::Redis;
use testkit::redis::{Sentinels, Server, free_port};
use testkit::until::{in_time, until, until_async};

use crate::support::{HOUR, LONG, a_release_is_pushed, claim, granted, granted_at_last, name};

/// Sets how long, in milliseconds, every sentinel waits before it finds that a server is down.
fn patient(sentinels: &[Server], millis: &str) {
    for sentinel in sentinels {
        let set = ["SENTINEL", "SET", "main", "down-after-milliseconds", millis];
        assert_eq!(sentinel.cli(&set), "OK");
    }
}

/// Sentinels that start no fail-over just because the machine is busy; which server is the primary, and which the
/// replica.
fn steady() -> (Sentinels, usize, usize) {
    let group = Sentinels::start();
    patient(&group.sentinels, "3600000");
    let role = |server: usize, role: &str| group.servers[server].cli(&["ROLE"]).starts_with(role);
    let mut primary = 0;
    until("there is one primary", || {
        let named =
            group.sentinels.iter().map(|one| one.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]));
        let named: Vec<String> = named.collect();
        primary = usize::from(named[0].ends_with(&group.servers[1].port().to_string()));
        named.iter().all(|one| *one == named[0]) && role(primary, "master") && role(1 - primary, "slave")
    });
    (group, primary, 1 - primary)
}

/// Makes a sentinel claim that the primary is there, like one that was cut off or started from an old file.
fn misled(sentinel: &Server, port: u16) {
    assert_eq!(sentinel.cli(&["SENTINEL", "REMOVE", "main"]), "OK");
    assert_eq!(sentinel.cli(&["SENTINEL", "MONITOR", "main", "127.0.0.1", &port.to_string(), "2"]), "OK");
}

/// Checks that a lock is taken and handed over, even after all connections broke.
async fn all_works(group: &Sentinels, url: &str) {
    let store = in_time("a store", Redis::connect(url)).await.unwrap();
    for on in ["first", "again", "once more", "and again"] {
        let held = claim(on, LONG);
        in_time("a grant", granted_at_last(&store, &held)).await;
        store.release(&Release::new(name(on), held.id)).await.unwrap();
        a_release_is_pushed(&store, on).await;
        for server in &group.servers {
            server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
    }
    let guard = Locks::connect(url).await.unwrap().mutex("x").lock().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_sentinel_that_names_a_dead_server_stops_nobody() {
    let (group, ..) = steady();
    misled(&group.sentinels[0], free_port());
    all_works(&group, &group.url()).await;
}

#[tokio::test]
async fn a_sentinel_that_names_a_replica_stops_nobody() {
    let (group, _, replica) = steady();
    misled(&group.sentinels[0], group.servers[replica].port());
    misled(&group.sentinels[1], group.servers[replica].port());
    all_works(&group, &group.url()).await;
}

#[tokio::test]
async fn a_replica_that_nobody_may_ask_for_its_role_is_left() {
    let (group, _, replica) = steady();
    for server in &group.servers {
        server.cli(&["ACL", "SETUSER", "app", "on", ">hush", "~*", "&*", "+@all", "-info"]);
    }
    misled(&group.sentinels[0], group.servers[replica].port());
    let store = Redis::connect(&group.url().replace("://", "://app:hush@")).await.unwrap();
    granted_at_last(&store, &claim("x", LONG)).await;
}

#[tokio::test]
async fn silent_sentinels_and_servers_leave_time_for_the_others() {
    let (group, ..) = steady();
    let silent = Server::start();
    group.sentinels[0].freeze();
    misled(&group.sentinels[1], silent.port());
    silent.freeze();
    // A client that waited for one of them to the end would wait for an hour.
    let url = format!("{}?connect_timeout_ms=3600000", group.url());
    all_works(&group, &url).await;
}

#[tokio::test]
async fn a_cut_off_sentinel_does_not_hide_a_failover() {
    let (mut group, primary, _) = steady();
    let store = Redis::connect(&group.url()).await.unwrap();
    granted(&store, &claim("before", HOUR)).await;
    // The others forget the first sentinel, and find each other and the replica again: nobody tells it anything.
    let old = group.servers[primary].port();
    assert_eq!(group.sentinels[0].cli(&["SENTINEL", "REMOVE", "main"]), "OK");
    for sentinel in &group.sentinels[1..] {
        assert_eq!(sentinel.cli(&["SENTINEL", "RESET", "main"]), "1");
    }
    until("the other sentinels can agree on a failover", || {
        group.sentinels[1..].iter().all(|sentinel| {
            let seen = sentinel.cli(&["SENTINEL", "MASTER", "main"]);
            let is = |field: &str, value: &str| {
                seen.lines().skip_while(|line| *line != field).nth(1) == Some(value)
            };
            is("num-other-sentinels", "1") && is("num-slaves", "1")
        })
    });
    group.servers[primary].kill();
    let to = ["SENTINEL", "MONITOR", "main", "127.0.0.1", &old.to_string(), "2"];
    assert_eq!(group.sentinels[0].cli(&to), "OK");
    patient(&group.sentinels[1..], "500");
    granted_at_last(&store, &claim("after", LONG)).await;
    until_async("a second client gets there too", async || Redis::connect(&group.url()).await.is_ok()).await;
    assert_eq!(group.primary(), old.to_string(), "the first sentinel still names the old one");
}
