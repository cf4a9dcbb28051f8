//! Sweeps of a server that holds far more keys than one call can walk through.

use std::net::Ipv4Addr;
use std::time::Duration;

use leasehold::backend::{Backend as _, Query, Release};
use leasehold::backends::redis::Redis;
use testkit::proxy::{Direction, Proxy};
use testkit::redis::Server;
use testkit::until::until_async;
use tokio::time::timeout;

use crate::support::{HOUR, claim, granted, granted_at_last, name};

/// A server with this many foreign keys, a proxy before it, and a store that connects through the proxy.
pub(crate) async fn crowded(keys: u32) -> (Server, Proxy, Redis) {
    let server = Server::start();
    server.cli(&["DEBUG", "POPULATE", &keys.to_string(), "other", "8"]);
    let proxy = Proxy::before((Ipv4Addr::LOCALHOST, server.port()).into()).unwrap();
    let store = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    (server, proxy, store)
}

#[tokio::test]
async fn a_sweep_goes_on_where_the_last_one_failed() {
    let (server, proxy, store) = crowded(100_000).await;
    let mut ended = Vec::new();
    for i in 0..50 {
        let brief = claim(&format!("n{i}"), Duration::from_millis(1));
        granted_at_last(&store, &brief).await;
        ended.push((format!("leasehold:{{/n{i}}}"), brief.id));
    }
    let is_kept = |(key, id): &(String, leasehold::LeaseId)| server.cli(&["GET", key]).contains(id.expose());
    assert!(ended.iter().all(is_kept), "nobody has swept");
    // About thirty answers, of the two hundred that it takes.
    until_async("all are swept", async || {
        proxy.cut_after(Direction::ToClient, 1500);
        let _ = store.sweep().await;
        !ended.iter().any(is_kept)
    })
    .await;
    assert!(proxy.counts().cut > 3, "{:?}", proxy.counts());
}

#[tokio::test]
async fn a_long_sweep_answers_with_what_the_last_whole_one_found() {
    let (_server, proxy, store) = crowded(300_000).await;
    for on in ["a", "b"] {
        granted(&store, &claim(on, HOUR)).await;
    }
    let last = claim("c", HOUR);
    granted(&store, &last).await;
    let held = async || store.sweep().await.unwrap().held;
    until_async("all three are counted", async || held().await == 3).await;
    store.release(&Release::new(name("c"), last.id)).await.unwrap();
    // A whole walk would take a minute now.
    proxy.delay(Direction::ToClient, Duration::from_millis(100));
    let part = timeout(Duration::from_secs(30), held()).await.expect("a part of it is soon done");
    assert_eq!(part, 3);
    proxy.pass();
    until_async("two are left", async || held().await == 2).await;
}

/// While a client sweeps: a dashboard asks once a second for each of its viewers.
#[tokio::test]
async fn a_list_costs_no_walk_of_its_own() {
    let (server, _proxy, store) = crowded(20_000).await;
    let other = Redis::connect(&server.url()).await.unwrap();
    let listed = async |store: &Redis, limit: usize, cursor: Option<String>| {
        let page = store.inspect(&Query::Prefix { stored: "/".into(), limit, cursor }).await.unwrap();
        let names: Vec<String> = page.items.iter().map(|info| info.name.as_str().to_owned()).collect();
        (names, page.age, page.next)
    };
    for on in ["a", "b", "d"] {
        granted(&store, &claim(on, HOUR)).await;
    }
    assert_eq!(listed(&store, 10, None).await, (vec!["a".into(), "b".into(), "d".into()], None, None));
    until_async("a walk is over", async || {
        store.sweep().await.unwrap();
        listed(&store, 10, None).await.1.is_some()
    })
    .await;
    let walks = || {
        let stats = server.cli(&["INFO", "commandstats"]);
        stats.lines().find(|line| line.starts_with("cmdstat_scan:")).unwrap_or_default().to_owned()
    };
    let before = walks();
    // Names taken here since are listed, released ones are not, and pages follow each other.
    granted(&store, &claim("c", HOUR)).await;
    store.revoke(&name("a"), true, None).await.unwrap();
    let (names, age, next) = listed(&store, 2, None).await;
    assert_eq!(names, ["b", "c"]);
    assert!(age.is_some());
    let (names, _, next) = listed(&store, 2, next).await;
    assert_eq!((names, next), (vec!["d".to_owned()], None));
    assert_eq!(walks(), before, "it has walked");
    // Names that another client has taken are listed after the next walk.
    granted(&other, &claim("e", HOUR)).await;
    until_async("it is met", async || {
        store.sweep().await.unwrap();
        listed(&store, 10, None).await.0 == ["b", "c", "d", "e"]
    })
    .await;
}
