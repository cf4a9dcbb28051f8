//! Sweeps and listings of more names than one call can look at.

use std::time::Duration;

use leasehold::Fence;
use leasehold::backend::{Backend as _, NameInfo, Page, Query};
use leasehold::backends::postgres::Postgres as Store;
use testkit::postgres::Postgres;
use testkit::proxy::{Direction, Proxy};

use crate::support::{LONG, Place, claim, granted, place, server, until};

/// Ten parts of unused names whose counters are still needed, and behind them some that are no longer needed.
fn fill(place: &Place) {
    let old = Fence::at(1_600_000_000_000_000).get();
    place.sql(&format!(
        "INSERT INTO leasehold.names (name, fence, version) SELECT '/at rest ' || n, 800000000000000, 1
            FROM generate_series(1, 5000) AS n;
         INSERT INTO leasehold.names (name, fence, version) SELECT '/last ' || n, {old}, 1 FROM generate_series(1, 9) AS n"
    ));
}

fn old_ones(place: &Place) -> String {
    place.sql("SELECT count(*) FROM leasehold.names WHERE name LIKE '/last%'")
}

/// A store whose every call takes at least this long.
async fn behind_a_slow_network(place: &Place, delay: Duration) -> (Proxy, Store) {
    let proxy = Proxy::before(([127, 0, 0, 1], server().port()).into()).unwrap();
    let url = format!("postgres://postgres@{}/postgres?schema={}", proxy.address(), place.schema);
    let store = Store::connect(&url).await.unwrap();
    granted(&store, &claim("a live one", LONG * 10)).await;
    proxy.delay(Direction::ToClient, delay);
    (proxy, store)
}

#[tokio::test(flavor = "multi_thread")]
async fn sweeps_that_are_cut_short_reach_the_last_name() {
    let place = place();
    let (_proxy, store) = behind_a_slow_network(&place, Duration::from_millis(400)).await;
    fill(&place);
    // Eleven parts need more than this.
    let cut = Duration::from_secs(3);
    until("the last names are swept", async || {
        drop(tokio::time::timeout(cut, store.sweep()).await);
        old_ones(&place) == "0"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_of_many_names_answers_and_the_next_goes_on() {
    let place = place();
    let (_proxy, store) = behind_a_slow_network(&place, Duration::from_millis(600)).await;
    fill(&place);
    let (mut sweeps, mut counters) = (0, 0);
    until("the last names are swept", async || {
        let swept = store.sweep().await.unwrap();
        assert_eq!(swept.held, 1, "of all names, and each once");
        if sweeps == 0 {
            assert_eq!(old_ones(&place), "9", "one call went through all names");
        }
        (sweeps, counters) = (sweeps + 1, counters + swept.counters);
        old_ones(&place) == "0"
    })
    .await;
    assert_eq!(counters, 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_many_names_comes_in_parts() {
    let server = Postgres::start();
    drop(Store::connect(&server.url()).await.unwrap());
    // Leases that have ended and were not swept yet. Every hundredth name takes 50 ms: together longer than a statement
    // may take.
    server.sql(
        "INSERT INTO leasehold.names (name, fence, version, mode, holders, next_expiry)
            SELECT '/ended ' || lpad(n::text, 5, '0'), 1, 1, 'shared', 1, now() - interval '1 hour'
            FROM generate_series(1, 12000) AS n;
         CREATE ROLE app LOGIN;
         GRANT USAGE ON SCHEMA leasehold TO app;
         GRANT SELECT ON leasehold.about, leasehold.leases TO app;
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA leasehold TO app;
         CREATE FUNCTION leasehold.slow(name text) RETURNS boolean LANGUAGE plpgsql AS
            'BEGIN IF name LIKE ''%00'' THEN PERFORM pg_sleep(0.05); END IF; RETURN true; END';
         ALTER TABLE leasehold.names ENABLE ROW LEVEL SECURITY;
         CREATE POLICY slow ON leasehold.names USING (leasehold.slow(name))",
    );
    let store = Store::connect(&server.url_of("app", "postgres")).await.unwrap();
    for on in ["a first one", "the last one"] {
        granted(&store, &claim(on, LONG * 10)).await;
    }
    let (mut found, mut cursor, mut pages) = (Vec::new(), None, 0);
    loop {
        let query = Query::Prefix { stored: "/".into(), limit: 10, cursor };
        let page = store.inspect(&query).await.unwrap();
        found.extend(page.items.into_iter().map(|item| item.name.as_str().to_owned()));
        pages += 1;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, ["a first one", "the last one"]);
    assert!(pages > 1, "one call looked at all names");
}

/// Adds leases of shared locks, this many on each of these names, with metadata of 4 KiB.
fn fill_with_holders(place: &Place, names: u32, holders: u32) {
    place.sql(&format!(
        "INSERT INTO leasehold.names (name, fence, version, mode, holders, next_expiry)
            SELECT '/n ' || lpad(n::text, 5, '0'), {holders}, {holders}, 'shared', {holders}, now() + interval '1 hour'
            FROM generate_series(1, {names}) AS n;
         INSERT INTO leasehold.shares
            SELECT '/n ' || lpad(n::text, 5, '0'), lpad((n * 1000 + h)::text, 22, '0'), 'shared', NULL, h, h, 'o',
                repeat('m', 4096), 1, now(), now() + interval '1 hour', 0, 0, false, false
            FROM generate_series(1, {names}) AS n, generate_series(1, {holders}) AS h"
    ));
}

/// The pages of all names, as long as a page may be.
async fn pages(store: &Store) -> Vec<Page> {
    let (mut pages, mut cursor) = (Vec::new(), None);
    loop {
        let query = Query::Prefix { stored: "/n".into(), limit: 1000, cursor };
        let page = store.inspect(&query).await.unwrap();
        cursor = page.next.clone();
        pages.push(page);
        if cursor.is_none() {
            return pages;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_large_names_fetches_little_more_than_it_shows() {
    let place = place();
    let (proxy, store) = behind_a_slow_network(&place, Duration::ZERO).await;
    fill_with_holders(&place, 60, 100);
    let before = proxy.counts().to_client;
    let pages = pages(&store).await;
    let shown: Vec<_> = pages.iter().flat_map(|page| &page.items).collect();
    let names: Vec<_> = shown.iter().map(|item| item.name.as_str().to_owned()).collect();
    assert_eq!(names, (1..=60).map(|n| format!("n {n:05}")).collect::<Vec<_>>());
    let metadata =
        |info: &NameInfo| info.holders.iter().filter_map(|it| it.metadata.as_ref()).map(|it| it.len()).sum();
    let bytes: usize = shown.iter().map(|info| -> usize { metadata(info) }).sum();
    let fetched = proxy.counts().to_client - before;
    assert!(fetched < 2 * bytes as u64, "{fetched} bytes were fetched to show {bytes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_small_names_takes_few_statements() {
    let server = Postgres::builder().setting("log_statement", "all").start();
    let store = Store::builder(&server.url()).unwrap().pool_size(1).open().await.unwrap();
    server.sql(
        "INSERT INTO leasehold.names (name, mode, holders, next_expiry, id, owner, ttl, granted_at, renewals, fence,
            nonce, repeated, revoked)
            SELECT '/n ' || n, 'exclusive', 1, now() + interval '1 hour', lpad(n::text, 22, '0'), 'o', 1, now(), 0, 1,
                0, false, false
            FROM generate_series(1, 1000) AS n",
    );
    let told = || server.log().lines().filter(|line| line.contains("LOG:  execute ")).count();
    let began = told();
    let pages = pages(&store).await;
    assert_eq!(pages.iter().map(|page| page.items.len()).collect::<Vec<_>>(), [1000]);
    assert!(told() - began <= 8, "{} statements", told() - began);
}
