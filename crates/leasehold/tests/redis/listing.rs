//! Lists on a server that holds far more keys than one call can walk through, and lists that are large.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::MAX_METADATA_BYTES;
use leasehold::backend::{Backend as _, Page, Query};
use leasehold::backends::redis::Redis;
use testkit::proxy::Direction;
use testkit::redis::Server;
use testkit::until::in_time;

use crate::support::{HOUR, claim, granted, look, shared};
use crate::sweeping::crowded;

/// All pages of a list.
async fn pages(store: &Redis, limit: usize) -> Vec<Page> {
    let mut pages: Vec<Page> = Vec::new();
    loop {
        let cursor = pages.last().and_then(|page| page.next.clone());
        pages.push(store.inspect(&Query::Prefix { stored: "/n".into(), limit, cursor }).await.unwrap());
        if pages.last().is_some_and(|page| page.next.is_none()) {
            return pages;
        }
    }
}

fn names(pages: &[Page]) -> Vec<String> {
    pages.iter().flat_map(|page| &page.items).map(|info| info.name.as_str().to_owned()).collect()
}

/// How many steps of walks a server has answered.
fn steps(server: &Server) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_scan:calls="));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn one_walk_serves_all_lists_and_bounds_each_call() {
    let (server, proxy, store) = crowded(300_000).await;
    let right: Vec<String> = (0..10).map(|i| format!("n{i}")).collect();
    for on in &right {
        granted(&store, &claim(on, HOUR)).await;
    }
    let other = Redis::connect(&server.url()).await.unwrap();
    assert_eq!(names(&pages(&other, 100).await), right);
    let one_walk = steps(&server);
    // From here on a whole walk takes longer than one call may.
    proxy.delay(Direction::ToClient, Duration::from_millis(20));
    let lists = in_time("the lists", join_all((0..3).map(|_| pages(&store, 4)))).await;
    for list in &lists {
        assert_eq!(names(list), right);
        assert!(list[0].items.is_empty(), "the first call did not end before the walk");
        assert!(list.iter().all(|page| page.items.is_empty() || page.age.is_some()), "{list:?}");
    }
    let walked = steps(&server) - one_walk;
    assert!(walked < one_walk * 3 / 2, "three lists took {walked} steps, and a walk has {one_walk}");
    assert_eq!(names(&pages(&store, 4).await), right);
    assert_eq!(steps(&server) - one_walk, walked, "the next list had a walk of its own");
}

/// A hundred readers of each name, with this metadata.
async fn crowd(store: &Redis, names: &[String], metadata: &Arc<str>) {
    join_all(names.iter().map(async |on| {
        for _ in 0..100 {
            let mut one = shared(on);
            (one.ttl, one.metadata) = (HOUR, Some(Arc::clone(metadata)));
            granted(store, &one).await;
        }
    }))
    .await;
}

/// How many calls of scripts a server has answered.
fn calls(server: &Server) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn of_large_names_few_are_asked_for_at_once() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let right: Vec<String> = (0..40).map(|i| format!("n{i:02}")).collect();
    crowd(&store, &right, &"m".repeat(MAX_METADATA_BYTES).into()).await;
    // The server knows the script from now on.
    look(&store, "n00").await;
    let before = calls(&server);
    let first =
        store.inspect(&Query::Prefix { stored: "/n".into(), limit: 1000, cursor: None }).await.unwrap();
    assert_eq!(names(std::slice::from_ref(&first)), right[..10]);
    let asked = calls(&server) - before;
    assert!(asked <= 16, "{asked} names");
    assert_eq!(names(&pages(&store, 1000).await), right);
}

#[tokio::test]
async fn a_page_of_many_large_holders_ends_early() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let metadata: Arc<str> = "m".repeat(MAX_METADATA_BYTES).into();
    let right: Vec<String> = (0..15).map(|i| format!("n{i:02}")).collect();
    crowd(&store, &right, &metadata).await;
    let pages = pages(&store, 1000).await;
    assert_eq!(names(&pages), right);
    let holders = pages.iter().map(|page| page.items.iter().map(|info| info.holders.len()).sum::<usize>());
    let holders: Vec<usize> = holders.collect();
    assert_eq!(holders, [1000, 500]);
}
