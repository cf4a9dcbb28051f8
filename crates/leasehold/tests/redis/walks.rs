//! Walks through all keys of a server that is replaced by another while they are under way.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leasehold::backend::{Backend as _, Query};
use leasehold::backends::redis::Redis;
use testkit::proxy::{Direction, Proxy};
use testkit::redis::{Sentinels, Server};

use crate::support::{HOUR, claim, granted, granted_at_last};

/// Names in use, among foreign keys.
const NAMES: usize = 50;

async fn fill(server: &Server) {
    server.cli(&["DEBUG", "POPULATE", "20000", "other", "8"]);
    let store = Redis::connect(&server.url()).await.unwrap();
    for i in 0..NAMES {
        granted(&store, &claim(&format!("n{i}"), HOUR)).await;
    }
}

fn before(server: &Server) -> Proxy {
    Proxy::before(SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()))).unwrap()
}

/// How many steps of walks a server has answered.
fn steps(server: &Server) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_scan:calls="));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// How many names the rest of a list has.
async fn listed(store: &Redis, mut cursor: Option<String>) -> usize {
    let mut found = 0;
    loop {
        let query = Query::Prefix { stored: "/n".into(), limit: 1000, cursor };
        let page = store.inspect(&query).await.unwrap();
        found += page.items.len();
        cursor = page.next;
        if cursor.is_none() {
            return found;
        }
    }
}

/// Makes a sweep and a list that end before their walks do, because the way to the server is slow. Returns the list's
/// cursor.
async fn begin(proxy: &Proxy, lists: &Redis, sweeps: &Redis) -> Option<String> {
    proxy.delay(Direction::ToClient, Duration::from_millis(100));
    sweeps.sweep().await.unwrap();
    let query = Query::Prefix { stored: "/n".into(), limit: 1000, cursor: None };
    let page = lists.inspect(&query).await.unwrap();
    assert!(page.items.is_empty() && page.next.is_some(), "the walk is over already");
    page.next
}

/// Checks that both walks begin again on this server, which has this many names more.
async fn check(server: &Server, lists: &Redis, sweeps: &Redis, cursor: Option<String>, more: usize) {
    let before = steps(server);
    assert_eq!(listed(lists, cursor).await, NAMES);
    let walk = steps(server) - before;
    while sweeps.sweep().await.unwrap().held < (NAMES + more) as u64 {}
    let swept = steps(server) - before - walk;
    assert!(swept <= walk, "{swept} steps to meet all, and a walk has {walk}");
}

#[tokio::test]
async fn a_walk_begins_again_on_the_next_primary() {
    let (group, servers) = (Sentinels::start(), [Server::start(), Server::start()]);
    fill(&servers[0]).await;
    fill(&servers[1]).await;
    let proxy = before(&servers[0]);
    let sentinel = &group.sentinels[0];
    let name = |port: u16| {
        assert_eq!(sentinel.cli(&["SENTINEL", "REMOVE", "main"]), "OK");
        let monitor = ["SENTINEL", "MONITOR", "main", "127.0.0.1", &port.to_string(), "2"];
        assert_eq!(sentinel.cli(&monitor), "OK");
    };
    name(proxy.address().port());
    let url = format!("redis-sentinel://127.0.0.1:{}/main", sentinel.port());
    let (lists, sweeps) = (Redis::connect(&url).await.unwrap(), Redis::connect(&url).await.unwrap());
    let cursor = begin(&proxy, &lists, &sweeps).await;
    name(servers[1].port());
    proxy.refuse(true);
    proxy.reset();
    // Other calls find the next primary before the walks go on.
    granted_at_last(&lists, &claim("lists", HOUR)).await;
    granted_at_last(&sweeps, &claim("sweeps", HOUR)).await;
    check(&servers[1], &lists, &sweeps, cursor, 2).await;
}

#[tokio::test]
async fn a_walk_begins_again_after_a_restart() {
    let mut server = Server::start();
    fill(&server).await;
    let proxy = before(&server);
    let url = format!("redis://{}", proxy.address());
    let (lists, sweeps) = (Redis::connect(&url).await.unwrap(), Redis::connect(&url).await.unwrap());
    let cursor = begin(&proxy, &lists, &sweeps).await;
    server.restart_empty();
    fill(&server).await;
    proxy.pass();
    // Nothing but the walks makes the new connections.
    for store in [&lists, &sweeps] {
        assert!(store.try_acquire(&claim("x", HOUR)).await.is_err());
    }
    check(&server, &lists, &sweeps, cursor, 0).await;
}
